"""The few ways in which one tensor of a file becomes one or several of ours, each of them reversible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a page of facts is read without torch
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How a tensor of a file is laid out where ours is not: the way there and the way back.

    from_file: (the file's tensor, which part, of how many) -> ours; to_file: all our parts -> the file's tensor.
    file_shape: (the shape of one of ours, how many parts) -> the file's shape. (PyTorch could tell it from tensors
        without memory, and loads three seconds of symbolic algebra to join them.)
    transposed: the file's table is [in, out].
    """

    from_file: Callable[[Tensor, int, int], Tensor]
    to_file: Callable[[Sequence[Tensor]], Tensor]
    file_shape: Callable[[Shape, int], Shape]
    transposed: bool = False


def _stack_rows(parts: Sequence[Tensor]) -> Tensor:
    """Tables or biases one below the other."""
    import torch

    return torch.cat(list(parts))


def _transpose(x: Tensor) -> Tensor:
    """A table the other way round; a bias has no other way."""
    return x.T if x.dim() == 2 else x


def _stacked_shape(shape: Shape, parts: int) -> Shape:
    return (shape[0] * parts, *shape[1:])


UNCHANGED = Layout(lambda x, part, parts: x, lambda ours: ours[0], lambda shape, parts: shape)

TRANSPOSED = Layout(
    lambda x, part, parts: _transpose(x),
    lambda ours: _transpose(ours[0]),
    lambda shape, parts: shape[::-1],
    transposed=True,
)
"""GPT-2 keeps its tables as [in, out]."""

JOINED = Layout(lambda x, part, parts: x.chunk(parts)[part], _stack_rows, _stacked_shape)
"""Several maps of one input as one table, one below the other."""

JOINED_TRANSPOSED = Layout(
    lambda x, part, parts: _transpose(x).chunk(parts)[part],
    lambda ours: _transpose(_stack_rows(ours)),
    lambda shape, parts: _stacked_shape(shape, parts)[::-1],
    transposed=True,
)
"""Both at once: the table is [in, all outs]."""

ONE_ROW = Layout(
    lambda x, part, parts: x[0] if x.shape[:1] == (1,) else x,
    lambda ours: ours[0][None],
    lambda shape, parts: (1, *shape),
)
"""A vector that the file keeps as a table of one row."""
