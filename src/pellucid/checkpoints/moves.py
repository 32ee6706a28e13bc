"""The few ways in which one tensor of a file becomes one or several of ours, each of them reversible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a page of facts is read without torch
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """A way there and the way back.

    take: (the file's tensor, which part, of how many) -> ours; give: all our parts -> the file's tensor.
    shape: (the shape of one of ours, how many parts) -> the file's shape. (PyTorch could tell it from tensors without
    memory, and loads three seconds of symbolic algebra to join them.)
    flipped: the file's table is [in, out].
    """

    take: Callable[[Tensor, int, int], Tensor]
    give: Callable[[Sequence[Tensor]], Tensor]
    shape: Callable[[Shape, int], Shape]
    flipped: bool = False


def _below(parts: Sequence[Tensor]) -> Tensor:
    """Tables or biases one below the other."""
    import torch

    return torch.cat(list(parts))


def _flipped(x: Tensor) -> Tensor:
    """A table the other way round; a bias has no other way."""
    return x.T if x.dim() == 2 else x


def _longer(shape: Shape, parts: int) -> Shape:
    return (shape[0] * parts, *shape[1:])


AS_IT_IS = Move(lambda x, part, parts: x, lambda ours: ours[0], lambda shape, parts: shape)

TRANSPOSED = Move(
    lambda x, part, parts: _flipped(x),
    lambda ours: _flipped(ours[0]),
    lambda shape, parts: shape[::-1],
    flipped=True,
)
"""GPT-2 keeps its tables as [in, out]."""

JOINED = Move(lambda x, part, parts: x.chunk(parts)[part], _below, _longer)
"""Several maps of one input as one table, one below the other."""

JOINED_TRANSPOSED = Move(
    lambda x, part, parts: _flipped(x).chunk(parts)[part],
    lambda ours: _flipped(_below(ours)),
    lambda shape, parts: _longer(shape, parts)[::-1],
    flipped=True,
)
"""Both at once: the table is [in, all outs]."""

ONE_ROW = Move(
    lambda x, part, parts: x[0] if x.shape[:1] == (1,) else x,
    lambda ours: ours[0][None],
    lambda shape, parts: (1, *shape),
)
"""A vector that the file keeps as a table of one row."""
