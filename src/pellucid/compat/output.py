"""The reference's model outputs: tensors by name, by index and as attributes, and the loss."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import CausalLM, Config, QuestionAnswering, SequenceToSequenceLM
from pellucid.config.checks import check_choice
from pellucid.errors import InputError, join_names

_NO_CACHE = "since caches are not exposed: generate has its own"


class ModelOutput(dict[str, Any]):
    """An output by name (`output["logits"]`), as an attribute (`output.logits`) and by index (`output[0]`).

    What was not computed has no key, and is None as an attribute. Indices skip it and follow the reference's order.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__({name: value for name, value in found.items() if value is not None})
        self.__dict__["names"] = tuple(found)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in ("past_key_values", "cache"):
            raise AttributeError(f"this output has no {name!r}, {_NO_CACHE}")
        if name.startswith("_") or name not in self.__dict__.get("names", ()):
            raise AttributeError(f"this output has no {name!r}; it has {', '.join(self.__dict__.get('names', ()))}")
        return None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__.get("names", ()):
            super().__setattr__(name, value)
            return
        values = dict.fromkeys(self.__dict__["names"]) | dict(self) | {name: value}
        self.clear()
        self.update({one: found for one, found in values.items() if found is not None})

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            if place in ("past_key_values", "cache"):
                raise KeyError(f"this output has no {place!r}, {_NO_CACHE}")
            return super().__getitem__(place)
        if isinstance(place, int) and not -len(self) <= place < len(self):
            raise IndexError(f"this output has no index {place}: it has {', '.join(self)}, {_NO_CACHE}")
        return self.to_tuple()[place]

    def to_tuple(self) -> tuple[Any, ...]:
        """All values present, in order."""
        return tuple(self.values())

    def __repr__(self) -> str:
        return f"ModelOutput({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__dict__['names'])})"

    def __reduce__(self) -> Any:
        return ModelOutput, ({name: self.get(name) for name in self.__dict__["names"]},)


def ordered_outputs(
    config: Config, outputs: Mapping[str, Tensor], recorded: Mapping[str, tuple[Tensor, ...]], loss: Tensor | None
) -> dict[str, Any]:
    """All outputs of a pass, in the reference's order.  recorded: requested intermediate tensors, layer by layer."""
    logits = outputs.get("logits")
    if logits is None:
        first = {"last_hidden_state": outputs["last_hidden_state"], "pooler_output": outputs.get("pooler_output")}
    elif isinstance(config.head, QuestionAnswering):
        first = {"loss": loss, "start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    else:
        first = {"loss": loss, "logits": logits}
    if config.kind != "encoder-decoder":
        return first | {"hidden_states": recorded.get("hidden_states"), "attentions": recorded.get("attentions")}
    first.pop("pooler_output", None)
    names = ("decoder_hidden_states", "decoder_attentions", "cross_attentions", "encoder_last_hidden_state")
    recorded_outputs = {name: recorded.get(name) for name in (*names, "encoder_hidden_states", "encoder_attentions")}
    return first | recorded_outputs | {"encoder_last_hidden_state": outputs["encoder_last_hidden_state"]}


def loss_of(
    config: Config, logits: Tensor, labels: Tensor, problem: str | None = None, num_items: Tensor | int | None = None
) -> Tensor:
    """The reference's loss for this head; a scalar.

    labels: Int[Tensor, "batch"] for a text, Int[Tensor, "batch seq"] for tokens, where -100 is ignored; floats for
        regression and for several labels at once; Int[Tensor, "batch 2"] for the starts and ends of answers, where
        positions beyond the text are ignored.
    problem: the problem type of a text's labels, see `problem_type`.
    num_items: the number of labels, of which these are a part, to average over; None for these alone.
    """
    over = "mean" if num_items is None else "sum"
    per_text = config.head is not None and config.head.per == "text"
    loss = _text_loss(logits, labels, problem, over) if per_text else _token_loss(config, logits, labels, over)
    return loss if num_items is None else loss / num_items


def check_labels(loaded: Loaded, labels: object, input_ids: object) -> None:
    """Refuses labels for which no loss can be computed, and warns of a new head that stays frozen.

    input_ids: the ids of the pass.
    """
    config = loaded.config
    _warn_of_frozen_head(loaded)
    if not isinstance(labels, Tensor):
        raise InputError(f"labels are {type(labels).__name__}, expected a tensor")
    if isinstance(config.head, CausalLM | SequenceToSequenceLM) and labels.dim() != 2:
        raise InputError(f"labels have the shape {list(labels.shape)}, expected [batch, seq]: one for each token")
    if (
        isinstance(config.head, SequenceToSequenceLM)
        and isinstance(input_ids, Tensor)
        and len(labels) != len(input_ids)
    ):
        shapes = f"labels have the shape {list(labels.shape)} and input_ids {list(input_ids.shape)}"
        raise InputError(f"{shapes}: give one row of each for every text")


def _warn_of_frozen_head(loaded: Loaded) -> None:
    """Warns of parts of a head that have random weights and are frozen while other parts are trained: PEFT freezes what
    it does not know by name, and saves none of it."""
    module, head = loaded.module, getattr(loaded.module, "head", None)
    if head is None or not (loaded.untrained and module.training and torch.is_grad_enabled()):
        return
    frozen = {}
    for name, parameter in head.named_parameters():
        path = f"head.{name.rpartition('.')[0].removesuffix('.base_layer')}"
        is_kept = parameter.requires_grad or path.endswith(".original_module")
        if not is_kept and loaded.is_untrained(f"{path}.weight"):
            frozen[path] = parameter
    if not frozen:
        return
    parameters = dict(module.named_parameters())
    tables = {id(one) for name, one in parameters.items() if name.endswith("embeddings.token.weight")}
    frozen = {path: one for path, one in frozen.items() if id(one) not in tables}
    if not frozen or not any(parameter.requires_grad for parameter in parameters.values()):
        return
    if len(parameters) == len(loaded.initial_samples) and not loaded.still_untrained:  # reads a value of each: last
        return
    warnings.warn(
        f"the random weights of {join_names(frozen)} are frozen, while other parts are trained: train them by "
        f"requires_grad_(True), or with PEFT by modules_to_save={[*frozen]}",
        stacklevel=4,
    )


def problem_type(logits: Tensor, labels: Tensor, requested: str | None = None) -> str:
    """The problem type of a text's labels: "regression" or one of two classifications, as requested or inferred."""
    kinds = ("regression", "single_label_classification", "multi_label_classification")
    problem = requested or kinds[0 if logits.shape[-1] == 1 else 2 if labels.is_floating_point() else 1]
    check_choice("problem_type", problem, kinds)
    return problem


def _text_loss(logits: Tensor, labels: Tensor, requested: str | None, reduction: str) -> Tensor:
    problem = problem_type(logits, labels, requested)
    if problem == "regression":
        return functional.mse_loss(logits.squeeze(), _float_labels(labels.squeeze(), logits), reduction=reduction)
    if problem == "single_label_classification":
        return _cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1), reduction)
    return functional.binary_cross_entropy_with_logits(logits, _float_labels(labels, logits), reduction=reduction)


def _float_labels(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels in a dtype that can be compared with logits: floats are not narrowed, and the loss has their dtype."""
    return labels if labels.is_floating_point() else labels.to(logits.dtype)


def _token_loss(config: Config, logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    if isinstance(config.head, QuestionAnswering):
        length = logits.shape[1]
        places = labels.clamp(0, length)
        each = [
            functional.cross_entropy(logits[..., i], places[:, i], ignore_index=length, reduction=reduction)
            for i in range(2)
        ]
        return (each[0] + each[1]) / 2
    if config.kind == "decoder":  # whose losses the reference computes in float32
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if isinstance(config.head, CausalLM):
        logits, labels = logits[:, :-1], labels[:, 1:]
    if labels.numel() != math.prod(logits.shape[:-1]):
        shapes = f"{list(labels.shape)} for logits of {list(logits.shape[:-1])} tokens"
        raise InputError(f"labels have the shape {shapes}: expected one for each token")
    return _cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction)


def _cross_entropy(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Raises InputError for a label out of range, which on a GPU is PyTorch's own error."""
    try:
        return functional.cross_entropy(logits, labels, reduction=reduction)
    except IndexError as error:
        count = logits.shape[-1]
        invalid = labels[(labels != -100) & ((labels < 0) | (labels >= count))]
        raise InputError(
            f"labels hold {invalid[0].item()}, and the model has {count}: give 0 to {count - 1}, or -100 to ignore one"
        ) from error
