"""The ways in which one tensor of a file becomes one or several of ours, all of them reversible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # family pages are imported without torch
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """A layout in the file that differs from ours, with the conversion both ways.

    from_file: (the file's tensor, which part, of how many) -> ours; to_file: all our parts -> the file's tensor.
    file_shape: (the shape of one of ours, how many parts) -> the file's shape. (PyTorch could infer it on the meta
        device, but imports three seconds of symbolic algebra to concatenate.)
    transposed: whether the file's matrix is [in, out].
    """

    from_file: Callable[[Tensor, int, int], Tensor]
    to_file: Callable[[Sequence[Tensor]], Tensor]
    file_shape: Callable[[Shape, int], Shape]
    transposed: bool = False


def _stack_rows(parts: Sequence[Tensor]) -> Tensor:
    """Concatenates matrices or biases along the first axis."""
    import torch

    return torch.cat(list(parts))


def _transpose(x: Tensor) -> Tensor:
    """Transposes a matrix; leaves a bias as it is."""
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
"""For weight matrices stored as [in, out], as in GPT-2."""

JOINED = Layout(lambda x, part, parts: x.chunk(parts)[part], _stack_rows, _stacked_shape)
"""Several linear layers with the same input as one matrix, concatenated along the outputs."""

JOINED_TRANSPOSED = Layout(
    lambda x, part, parts: _transpose(x).chunk(parts)[part],
    lambda ours: _transpose(_stack_rows(ours)),
    lambda shape, parts: _stacked_shape(shape, parts)[::-1],
    transposed=True,
)
"""Both at once: the matrix is [in, all outs]."""

ONE_ROW = Layout(
    lambda x, part, parts: x[0] if x.shape[:1] == (1,) else x,
    lambda ours: ours[0][None],
    lambda shape, parts: (1, *shape),
)
"""A vector that the file stores as a matrix of one row."""
