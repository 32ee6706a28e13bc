"""The names of other libraries, so that code can be ported by changing one import.

    from pellucid.compat import head_view, model_view, neuron_view

take BertViz's arguments, with its names and defaults, and return a `View`.

    from pellucid.compat import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM

behave like the reference's classes: `AutoConfig`, `AutoModel`, `AutoModelFor...`, `pipeline`, and every class of an
architecture whose heads are supported, by its own name.
"""

from typing import Any

from pellucid.compat import auto
from pellucid.compat import neuron_view as neuron_view
from pellucid.compat.attention import Page as Page
from pellucid.compat.attention import head_view as head_view
from pellucid.compat.attention import model_view as model_view
from pellucid.compat.auto import AutoModel as AutoModel
from pellucid.compat.auto import AutoModelForCausalLM as AutoModelForCausalLM
from pellucid.compat.auto import AutoModelForMaskedLM as AutoModelForMaskedLM
from pellucid.compat.auto import AutoModelForQuestionAnswering as AutoModelForQuestionAnswering
from pellucid.compat.auto import AutoModelForSeq2SeqLM as AutoModelForSeq2SeqLM
from pellucid.compat.auto import AutoModelForSequenceClassification as AutoModelForSequenceClassification
from pellucid.compat.auto import AutoModelForTokenClassification as AutoModelForTokenClassification
from pellucid.compat.auto import PreTrainedModel as PreTrainedModel
from pellucid.compat.auto import set_seed as set_seed
from pellucid.compat.batch import BatchEncoding as BatchEncoding
from pellucid.compat.config import AutoConfig as AutoConfig
from pellucid.compat.config import PretrainedConfig as PretrainedConfig
from pellucid.compat.generation_config import GenerationConfig as GenerationConfig
from pellucid.compat.missing_names import is_from_import
from pellucid.compat.output import ModelOutput as ModelOutput
from pellucid.compat.pipeline import pipeline as pipeline
from pellucid.compat.tokenizer import AutoTokenizer as AutoTokenizer


def __getattr__(name: str) -> Any:
    """The reference's classes by the names of architectures: `BertModel`, `GPT2LMHeadModel`, `T5Config`."""
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return auto.find_class(name)
    except AttributeError as error:
        kind = ImportError if is_from_import() else AttributeError
        raise kind(str(error), name=name) from None
