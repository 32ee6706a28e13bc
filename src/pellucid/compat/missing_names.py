"""Names of the reference that do not exist here, each with its alternative."""

import re
import sys
from collections.abc import Collection

from pellucid.errors import did_you_mean

_THEIRS = "take it from transformers, whose own works on these models and tokenizers"
_TOKENIZER = "take AutoTokenizer, which opens every tokenizer that is read here"
_TEXTS = "only models of texts are supported here"

_ADVICE = {
    r"(Seq2Seq)?Trainer|(Seq2Seq)?TrainingArguments|\w*Callback|TrainerState|TrainerControl|EvalPrediction": _THEIRS,
    r"DataCollator\w*|default_data_collator|Text(Iterator)?Streamer|get_\w*schedule\w*|Adafactor": _THEIRS,
    r"StoppingCriteria(List)?|StopStringCriteria": "generate ends at eos_token_id and max_new_tokens, a pipeline at "
    "stop_strings=[...], and model.pellucid.generate(prompt, stop=[...]) at a text",
    r"\w*LogitsProcessor(List)?|\w*LogitsWarper": "generate takes its rules by name, such as no_repeat_ngram_size",
    r"PreTrainedTokenizer(Fast|Base)?": _TOKENIZER,
    r"SentenceTransformer": "pellucid.load(NAME).embed(texts) gives its vectors",
    r"CrossEncoder": 'pellucid.pipeline("text-ranking", model=NAME) ranks texts for a query',
    r"BitsAndBytesConfig|GPTQConfig|AwqConfig": "from_pretrained takes dtype='int8' or dtype='int4'",
    r"AutoModelForNextSentencePrediction": "take BertForNextSentencePrediction",
    r"AutoModelForMultipleChoice|\w+ForMultipleChoice": "no head that chooses among several texts is read; the heads "
    "are those of its other AutoModelFor... classes",
    r"Auto\w*Processor|AutoFeatureExtractor|AutoModelFor(Image|Audio|Vision|Speech|Video)\w*": _TEXTS,
    r"logging": "messages go to Python's logging.getLogger('pellucid')",
    r"\w+PreTrainedModel": "derive from the class of an architecture, such as BertModel, or hold a model in an "
    "nn.Module",
    r"PretrainedModel": "it is spelt PreTrainedModel",
    r"PreTrainedConfig": "it is spelt PretrainedConfig",
    r"\w*T5EncoderModel": "no encoder is loaded without its decoder: T5Model gives encoder_last_hidden_state",
    r"AddedToken": "use tokenizers.AddedToken, which add_tokens accepts",
    r"\w*Cache": "caches are not exposed: generate has its own",
    r"util|cos_sim": 'pellucid.pipeline("sentence-similarity", model=NAME) compares texts, and '
    "torch.nn.functional.cosine_similarity vectors",
    r"Model": "it is pellucid.Model",
}
"""Advice, by regular expressions for names."""

_ARCHITECTURE = re.compile(r"([A-Z]\w*?)(LMHead|MT|Encoder)?(Model|For[A-Z]\w*|Config|Tokenizer(Fast)?)")
"""The reference's class names, which begin with an architecture."""


def missing_name_message(name: str, known: Collection[str]) -> str:
    """The message for a name that `pellucid.compat` does not have.  known: those that it has."""
    advice = next((advice for pattern, advice in _ADVICE.items() if re.fullmatch(pattern, name)), None)
    stems = {one.removesuffix("Config") for one in known if one.endswith("Config")} - {
        "Pretrained",
        "Generation",
        "Auto",
    }
    if not advice and (found := _ARCHITECTURE.fullmatch(name)) and not found[1].startswith((*stems, "Auto", "PreT")):
        advice = f"its architectures are {', '.join(sorted(stems))}"
    return f"pellucid.compat has no {name!r}" + (f": {advice}" if advice else did_you_mean(name, known))


def is_from_import() -> bool:
    """Whether the attribute access that led to this call comes from `from PACKAGE import NAME`: there an AttributeError
    loses its message, and an ImportError keeps it."""
    asking = sys._getframe(2).f_code
    return asking.co_name == "_handle_fromlist" and "importlib" in asking.co_filename
