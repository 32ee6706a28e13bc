"""The reference's model classes: `AutoModel.from_pretrained(name)` and the like.

    from pellucid.compat import AutoModel, AutoTokenizer

replaces `from transformers import ...`. Every class that the reference names after a supported architecture
(`BertForMaskedLM`, `GPT2LMHeadModel`, `BertConfig`, `BertTokenizer`) can be imported in the same way, except those with
two heads for pretraining, of which only one is read.
"""

import copy
import functools
import logging
import os
import random
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor

from pellucid.checkpoints.families import families
from pellucid.checkpoints.load import open_checkpoint, read_config
from pellucid.compat.arguments import accepted_arguments, pop_hub_options, resolve_device
from pellucid.compat.config import COMMON_KEYS, PretrainedConfig, config_class, config_class_name
from pellucid.compat.missing_names import missing_name_message
from pellucid.compat.model import PreTrainedModel
from pellucid.compat.subclasses import build_subclass, init_keywords
from pellucid.compat.tokenizer import AutoTokenizer
from pellucid.config import CausalLM, QuestionAnswering
from pellucid.config.checks import check_bool, check_count, check_one_of, is_one_of
from pellucid.errors import CheckpointMismatchError, InputError, join_names
from pellucid.model import Model
from pellucid.paths import path_text

log = logging.getLogger("pellucid")

_KERNELS = {None: "fused", "sdpa": "fused", "flash_attention_2": "fused", "eager": "explicit"}
_MODEL_ARGUMENTS = ("dtype", "torch_dtype", "device_map", "attn_implementation", "config", "ignore_mismatched_sizes")


def open_model(
    name: str | os.PathLike[str],
    head: str | None,
    arguments: dict[str, Any],
    kind: type[PreTrainedModel] | None = None,
    init_arguments: tuple[Any, ...] = (),
) -> PreTrainedModel:
    """Opens a checkpoint as the reference's model with this head; one that the file lacks gets random weights.

    kind: its class; None for the one of its architecture.
    init_arguments: positional arguments for the `__init__` of a derived class.
    """
    pooling = {key: arguments[key] for key in ("add_pooling_layer",) if key in arguments}
    arguments = accepted_arguments(arguments, None, "a model")
    hub_options = pop_hub_options(arguments)
    model_arguments = {key: arguments.pop(key) for key in _MODEL_ARGUMENTS if key in arguments}
    config = model_arguments.get("config")
    if not (has_config := config is not None):
        config = PretrainedConfig.of(read_config(name, hub_options), path_text(name))
    elif not isinstance(config, PretrainedConfig):
        raise InputError(f"config is {type(config).__name__}, expected what AutoConfig.from_pretrained returns")
    config = copy.deepcopy(config)  # so that changes of the model's config stay its own
    if kind is not None and config.family is not kind.family:
        raise InputError(f"{name} is a {config.model_type}, not a {kind.family.model_type}: open it with an Auto class")
    init_kwargs = init_keywords(kind, config, arguments | pooling, has_config) if kind is not None else {}
    shared = set() if has_config else {*config.to_dict(), *COMMON_KEYS}  # which go to the config, too
    for key, value in arguments.items():
        if key not in init_kwargs or key in shared:
            config.set_fact(key, value)
    kernel = model_arguments.get("attn_implementation")
    if not is_one_of(kernel, "flash_attention_2"):  # which is accepted, but not listed
        check_one_of("attn_implementation", kernel, (None, "sdpa", "eager"))
    check_bool("ignore_mismatched_sizes", new_labels := model_arguments.get("ignore_mismatched_sizes") or False)
    dtype = model_arguments.get("dtype", model_arguments.get("torch_dtype"))
    try:
        loaded = open_checkpoint(
            name,
            device=resolve_device("device_map", model_arguments.get("device_map"), "cpu"),
            dtype="checkpoint" if is_one_of(dtype, "auto") else dtype,
            head=head,
            attention=_KERNELS[kernel],
            config=config.to_config(),
            hub_options=hub_options,
            new_labels=new_labels,
        )
    except CheckpointMismatchError as error:
        if new_labels or config.num_labels == len(read_config(name, hub_options).labels):
            raise
        advice = "; ignore_mismatched_sizes=True gives a classifier for another number of labels new random weights"
        raise CheckpointMismatchError(error, advice) from error
    if loaded.untrained:
        parts = "" if "all" in loaded.untrained else f" for its {join_names(loaded.untrained, 3)}"
        log.warning("%s holds no trained weights%s: they are random, so train it first", name, parts)
    kind = kind or architecture_class(loaded.family.page(loaded.config.head).architecture)
    if kind.__init__ is PreTrainedModel.__init__ and not init_arguments:
        return kind.from_model(Model(loaded), config)
    return build_subclass(kind, config, loaded, init_arguments, init_kwargs)


class AutoModel:
    """The body of any checkpoint, without a head."""

    head: ClassVar[str | None] = None

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **arguments: Any) -> PreTrainedModel:
        """Opens a checkpoint.

        name: a folder, a name on the hub, or an installed package.
        arguments: `revision`, `token`, `cache_dir`, `local_files_only`; `dtype` ("auto" is the file's, by default
            float32), `device_map`, `attn_implementation`; `config`, or its values by name: `num_labels=3`, `id2label`,
            `output_attentions=True`, `hidden_dropout_prob=0.0`; `ignore_mismatched_sizes=True` gives a
            classifier that the files hold for another number of labels new random weights.
        Raises InputError for any other argument, and whatever `pellucid.load` raises.
        """
        return open_model(name, cls.head, arguments)

    @classmethod
    def from_config(cls, config: PretrainedConfig) -> PreTrainedModel:
        """A model with random weights."""
        page = config.family.page(config.family.head_named(cls.head) if cls.head else None)
        return architecture_class(page.architecture)(config)


class AutoModelForSequenceClassification(AutoModel):
    """One logit per label for each text."""

    head = "sequence-classification"


class AutoModelForTokenClassification(AutoModel):
    """One logit per label for each token."""

    head = "token-classification"


class AutoModelForQuestionAnswering(AutoModel):
    """Logits for where the answer to a question starts and ends in a text."""

    head = "question-answering"


class AutoModelForMaskedLM(AutoModel):
    """Logits for the tokens at masks."""

    head = "masked-lm"


class AutoModelForCausalLM(AutoModel):
    """Logits for the next token."""

    head = "causal-lm"


class AutoModelForSeq2SeqLM(AutoModel):
    """Logits for the next token of the output text."""

    head = "sequence-to-sequence-lm"


class QuestionAnsweringModel(PreTrainedModel):
    """A model whose labels are the starts and ends of answers; the reference's Trainer finds labels by these names."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **arguments: Any,
    ) -> Any:
        """One pass; see `PreTrainedModel.forward`.

        start_positions, end_positions: Int[Tensor, "batch"]; positions beyond the text are ignored by the loss.
        """
        if arguments.get("labels") is not None:
            raise InputError(
                "labels were given, and answers are learned from start_positions and end_positions: give both"
            )
        if start_positions is not None and end_positions is not None:
            arguments["labels"] = torch.stack((start_positions.view(-1), end_positions.view(-1)), dim=-1)
        return super().forward(input_ids, attention_mask, token_type_ids, **arguments)


_NAMES = (
    """AutoConfig AutoModel AutoTokenizer BatchEncoding GenerationConfig ModelOutput Page PreTrainedModel
PretrainedConfig head_view model_view neuron_view pipeline set_seed""".split()
    + [kind.__name__ for kind in AutoModel.__subclasses__()]
)


@functools.cache
def architecture_class(name: str) -> type[PreTrainedModel]:
    """The model class of this name in the reference, such as "BertForMaskedLM"."""
    pages = {page.architecture: (family, page) for family in families().values() for page in family.heads}
    if name not in pages:
        raise AttributeError(
            missing_name_message(name, [*pages, *map(config_class_name, families().values()), *_NAMES])
        )
    family, page = pages[name]
    if (read := family.page(page.head)) is not page:
        instead = f"of whose heads not all are read: take {read.architecture}"
        raise AttributeError(f"pellucid.compat has no {name!r}, {instead}")
    head = page.head.name if page.head else None

    def from_pretrained(
        cls: type[PreTrainedModel], checkpoint: str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> PreTrainedModel:
        """Opens a checkpoint of this architecture. See `AutoModel.from_pretrained`.

        A derived class with its own `__init__` is constructed as `cls(config, *args, **kwargs)`, with those keywords
        that its `__init__` names, or, for `**`, that are not values of the config; it then gets the weights of the
        files, and what these lack keeps its initial weights. If `config` is passed, `**` of that `__init__` receives
        config values, too.
        """
        return open_model(checkpoint, head, kwargs, cls, args)

    about = {"__module__": __name__, "__doc__": f"A {name}.", "from_pretrained": classmethod(from_pretrained)}
    kind = QuestionAnsweringModel if isinstance(page.head, QuestionAnswering) else PreTrainedModel
    loss = "ForCausalLM" if isinstance(page.head, CausalLM) else None
    return type(name, (kind,), about | {"family": family, "head": page.head, "loss_type": loss})


def set_seed(seed: int) -> None:
    """Seeds the global random number generators of Python, NumPy and torch."""
    seed = check_count("seed", seed, maximum=2**32 - 1, minimum=0)  # NumPy's range
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def find_class(name: str) -> Any:
    """The class of a name that the reference derives from an architecture: a model or config class, or the tokenizer.

    Raises AttributeError, with what to do, for an unknown name.
    """
    if name.endswith("Config") and name in map(config_class_name, families().values()):
        return config_class(name)
    plain = name.removesuffix("Fast").removesuffix("Tokenizer")
    if plain != name and f"{plain}Config" in map(config_class_name, families().values()):
        return AutoTokenizer
    return architecture_class(name)


def __getattr__(name: str) -> Any:
    """The classes above by name, for pickle."""
    if name.startswith("_"):
        raise AttributeError(name)
    return find_class(name)
