"""The same model for answering and for learning at speed; a packed copy is made anew when numbers have changed."""

from typing import Any, Self

import torch
from torch import nn

from pellucid.blocks import packing
from pellucid.blocks.learning import Lesson, learning
from pellucid.blocks.twin import evaluating, packed
from pellucid.errors import Argument, InputError
from pellucid.models.watched import Onlooker, Watched


class Swift(Watched):
    """A network that keeps packed copies of itself.

    bits: per number of its tables, where it holds 8 or 4 and is packed already; None where it holds real numbers.
    laid_out: whether it is itself such a copy.
    """

    bits: int | None = None
    laid_out: bool = False

    @property
    def kind(self) -> str:
        """What its numbers are: "float32", "int4", ..."""
        return f"int{self.bits}" if self.bits else str(next(self.parameters()).dtype).removeprefix("torch.")

    def real(self, what: str | Argument) -> Self:
        """This model, for work that needs real numbers. Raises InputError for one of 8 or 4 bits."""
        if self.bits:
            raise InputError(what, f" needs real numbers, and this model has {self.bits} bits each: load it as float32")
        return self

    def swift(self, dtype: torch.dtype | None = None) -> Self:
        """The same model for answering at speed: always evaluating, its tables packed for the processor.

        Equal to this one up to rounding. It is kept, and made anew when this one's numbers have changed since, as far
        as PyTorch counts that: not what is written through `.data`, nor within `torch.inference_mode` into numbers that
        were made there.
        One with an onlooker stays as it is, since he knows the plain blocks; so does one that is laid out already.
        """
        if self.bits or self.laid_out:
            return self
        first = next(self.parameters())
        dtype, own = dtype or first.dtype, first.dtype
        if self.onlooker is not None:
            return self._plain(dtype, own)
        state = _state(self)
        kept: dict[torch.dtype, tuple[Any, Self]] = self.__dict__.setdefault("_swift", {})
        if dtype not in kept or kept[dtype][0] != state:
            copy = _alone(packed(self, packing.real(dtype, first.device)))
            copy.laid_out = True
            kept[dtype] = (state, copy)
        return kept[dtype][1]

    def learning(self, lesson: Lesson) -> Self:
        """The same model for learning at speed: it shares every parameter, and drops out by the chance of its lesson.

        Raises InputError for one of 8 or 4 bits, and for one that somebody looks on at.
        """
        if self.onlooker is not None:
            raise InputError("an edited model does not learn: take the model that it was made from")
        return _alone(learning(self.real("training"), lesson))

    def edited(self, onlooker: Onlooker) -> Self:
        return _alone(super().edited(onlooker))

    def _plain(self, dtype: torch.dtype, own: torch.dtype) -> Self:
        if dtype != own:
            raise InputError(f"an edited model computes in its own numbers, {own}: leave ", Argument("dtype"), " out")
        return evaluating(self.rows_alike())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_swift"}


def _alone(copy: Any) -> Any:
    """A copy without the packed ones that its original keeps."""
    copy.__dict__.pop("_swift", None)
    return copy


def _state(module: nn.Module) -> list[tuple[int, int]]:
    """Where the numbers of a module stand, and how often each tensor was written. (PyTorch's own walk, which names all
    of them, takes as long as a layer of a small model.)"""
    found: list[tuple[int, int]] = []
    parts = [module]
    while parts:
        part = parts.pop()
        own = [one for one in part._parameters.values() if one is not None]
        found += [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in own]
        parts += [inner for inner in part._modules.values() if inner is not None]
    return found
