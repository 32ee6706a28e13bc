"""What the reference's models answer: numbers by name, by place and as attributes, the loss among them."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.config import CausalLM, Config
from pellucid.errors import InputError


class ModelOutput(dict[str, Any]):
    """An answer by name (`output["logits"]`), as an attribute (`output.logits`) and by place (`output[0]`).

    What was not computed is no key, and None as an attribute. Places count what is there, in the reference's order.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__({name: value for name, value in found.items() if value is not None})
        self.__dict__["names"] = tuple(found)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name.startswith("_") or name not in self.__dict__.get("names", ()):
            raise AttributeError(f"this output has no {name!r}; it has {', '.join(self.__dict__.get('names', ()))}")
        return None

    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(place) if isinstance(place, str) else self.to_tuple()[place]

    def to_tuple(self) -> tuple[Any, ...]:
        """Everything that is there, in order."""
        return tuple(self.values())

    def __repr__(self) -> str:
        return f"ModelOutput({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__dict__['names'])})"

    def __reduce__(self) -> Any:
        return ModelOutput, ({name: self.get(name) for name in self.__dict__["names"]},)


def loss_of(config: Config, logits: Tensor, labels: Tensor, problem: str | None = None) -> Tensor:
    """How far the logits are from the labels, as the reference measures it for this head; one number.

    labels: Int[Tensor, "batch"] for a text, Int[Tensor, "batch seq"] for tokens, of which -100 does not count;
        real numbers for regression (one label, or none of them a class) and for several labels at once.
    problem: "regression", "single_label_classification" or "multi_label_classification"; by default what fits.
    """
    if config.head is not None and config.head.per == "text":
        return _of_text(logits, labels, problem)
    if config.kind == "decoder":  # whose losses the reference sums up in float32
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if isinstance(config.head, CausalLM):
        logits, labels = logits[:, :-1], labels[:, 1:]
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def _of_text(logits: Tensor, labels: Tensor, problem: str | None) -> Tensor:
    count = logits.shape[-1]
    whole = not labels.is_floating_point()
    kinds = ("regression", "single_label_classification", "multi_label_classification")
    problem = problem or kinds[0 if count == 1 else 1 if whole else 2]
    if problem not in kinds:
        raise InputError(f"problem_type is {problem!r}, expected one of {', '.join(kinds)}")
    if problem == "regression":
        return functional.mse_loss(logits.squeeze(), _real(labels.squeeze(), logits))
    if problem == "single_label_classification":
        return functional.cross_entropy(logits.view(-1, count), labels.view(-1))
    return functional.binary_cross_entropy_with_logits(logits, _real(labels, logits))


def _real(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels as they are compared with logits: real ones are not narrowed, and the loss is as wide as they are."""
    return labels if labels.is_floating_point() else labels.to(logits.dtype)


def loss_of_span(logits: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """The same for answers in a text: the mean over where they start and where they end.

    logits: Float[Tensor, "batch seq 2"].  starts, ends: Int[Tensor, "batch"]; a place behind the text does not count.
    """
    length = logits.shape[1]
    places = torch.stack((starts.view(-1), ends.view(-1)), dim=-1).clamp(0, length)
    each = [functional.cross_entropy(logits[..., i], places[:, i], ignore_index=length) for i in range(2)]
    return (each[0] + each[1]) / 2
