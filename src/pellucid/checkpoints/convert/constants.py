"""Values that a graph computes from constants alone: transposed, cast and dequantised tables."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from pellucid.checkpoints.convert.arithmetic import SHAPE_OPERATIONS, Attributes
from pellucid.checkpoints.convert.graph import TYPES, Graph
from pellucid.errors import CheckpointMismatchError, UnsafeFileError

MAX_BYTES = 2**28
MAX_GROWTH = 32
"""All tensors that are read and computed may take `MAX_BYTES`, plus `MAX_GROWTH` bytes per byte of the files; 4-bit
tables grow to 8 times their size."""

_MAX_STEPS = 16


@dataclass(frozen=True)
class ConstantTensor:
    """A table or vector, and the names of all stored tensors that it was computed from."""

    numbers: Tensor
    sources: frozenset[str]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.numbers.shape)

    def transposed(self) -> "ConstantTensor":
        """The transposed table."""
        return ConstantTensor(self.numbers.T, self.sources)


@dataclass
class Constants:
    """Looks up values of a graph that do not depend on its inputs."""

    graph: Graph
    cache: dict[str, ConstantTensor | None] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)
    bytes: int = 0

    def count_bytes(self, numbers: Tensor) -> Tensor:
        """Counts tensors that were read or computed, and returns them, since many operations may each expand one stored
        tensor.

        Raises UnsafeFileError where the total is out of proportion to the files.
        """
        self.bytes += numbers.nbytes
        size = sum(self.sizes.values())
        if self.bytes > MAX_BYTES + MAX_GROWTH * size:
            raise UnsafeFileError(f"{self.graph.path} makes {self.bytes:,} bytes of {size:,}; not read further")
        return numbers

    def get(self, name: str, steps: int = 0) -> ConstantTensor | None:
        """The value, or None where it depends on an input or on an operation that no exporter puts before a table."""
        if name not in self.cache and steps < _MAX_STEPS:
            self.cache[name] = self._compute(name, steps)
        return self.cache.get(name)

    def table(self, name: str) -> ConstantTensor | None:
        """A two-dimensional value, or None."""
        found = self.get(name)
        return found if found is not None and len(found.shape) == 2 else None

    def vector(self, name: str) -> ConstantTensor | None:
        """A value of one dimension, or of more where all but the last are 1; else None."""
        found = self.get(name)
        if found is None or not found.shape or found.numbers.numel() != found.shape[-1]:
            return None
        return ConstantTensor(found.numbers.reshape(-1), found.sources)

    def number(self, name: str) -> float | None:
        """A value with a single element, or None."""
        found = self.get(name)
        return None if found is None or found.numbers.numel() != 1 else found.numbers.item()

    def _compute(self, name: str, steps: int) -> ConstantTensor | None:
        if name in self.graph.initializers:
            initializer = self.graph.initializers[name]
            numbers = initializer.read()
            for path in (self.graph.path, *((self.graph.path.parent / initializer.file,) if initializer.file else ())):
                self.sizes.setdefault(path, path.stat().st_size)
            return ConstantTensor(self.count_bytes(numbers), frozenset([name]))
        node = self.graph.producers.get(name)
        if node is None or node.op_type not in _OPERATIONS:
            return None
        parts = [self.get(input_name, steps + 1) for input_name in node.inputs if input_name]
        if not parts or None in parts:
            return None
        constants = [part for part in parts if part is not None]
        if node.op_type in _ARITHMETIC and not _is_broadcastable([part.shape for part in constants]):
            return None
        try:
            numbers = _OPERATIONS[node.op_type](node.attributes, *(part.numbers for part in constants))
        except (RuntimeError, IndexError, ValueError, KeyError, TypeError) as error:
            raise CheckpointMismatchError(f"{self.graph.path}: {node} does not fit its tables ({error})") from error
        storages = {part.numbers.untyped_storage().data_ptr() for part in constants}
        if numbers.untyped_storage().data_ptr() not in storages:  # else it is a view, which takes no memory
            self.count_bytes(numbers)
        return ConstantTensor(numbers, frozenset().union(*(part.sources for part in constants)))


def dequantize_linear(attributes: Attributes, numbers: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """DequantizeLinear with its attributes."""
    return dequantise(numbers, scale, zero, attributes.get("axis", 1), attributes.get("block_size", 0))


def dequantise(numbers: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block: int = 0) -> Tensor:
    """`(numbers - zero) * scale`, in the dtype of the scale.

    numbers: integers of any shape.  zero: the zero point; None for 0.
    scale, zero: one value; or one per index of `axis`; or, with `block`, one per `block` indices of `axis`.
    """
    scale = _broadcast_scale(scale, numbers, axis, block)
    centered = numbers.int() if zero is None else numbers.int() - _broadcast_scale(zero, numbers, axis, block).int()
    return centered.to(scale.dtype) * scale


def _broadcast_scale(part: Tensor, numbers: Tensor, axis: int, block: int) -> Tensor:
    if part.numel() == 1:
        return part.reshape(())
    if not -numbers.dim() <= axis < numbers.dim():
        raise ValueError(f"axis {axis} of {numbers.dim()}")
    axis %= numbers.dim()
    size = numbers.shape[axis]
    if block > 0 and part.shape == (*numbers.shape[:axis], -(-size // block), *numbers.shape[axis + 1 :]):
        return part.repeat_interleave(min(block, size), dim=axis).narrow(axis, 0, size)
    if part.numel() != size:
        raise ValueError(f"{part.numel()} scales for {size} rows")
    return part.reshape([-1 if i == axis else 1 for i in range(numbers.dim())])


def _is_broadcastable(shapes: list[tuple[int, ...]]) -> bool:
    """Whether the smaller shape broadcasts to the larger, as a scale to its table; a column and a row could be huge."""
    one, two = sorted(shapes, key=math.prod) if len(shapes) == 2 else ((), ())
    tail = two[len(two) - len(one) :]
    return math.prod(two) > 0 and len(one) <= len(two) and all(a in (1, b) for a, b in zip(one, tail))


_ARITHMETIC: dict[str, Callable[..., Tensor]] = {
    "Mul": lambda attributes, one, other: one * other,
    "Sub": lambda attributes, one, other: one - other,
    "Div": lambda attributes, one, other: one / other,
}

_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "Identity": lambda attributes, numbers: numbers,
    "Cast": lambda attributes, numbers: numbers.to(TYPES[attributes["to"]][1]),
    "DequantizeLinear": dequantize_linear,
    **SHAPE_OPERATIONS,
    **_ARITHMETIC,
}
"""Operations that exporters put between a table and its use; each takes attributes and inputs."""
