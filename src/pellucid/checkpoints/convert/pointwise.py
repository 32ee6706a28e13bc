"""What a run of operations makes of each number: activations, norms that are written out, masks and scales."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.convert.constants import DTYPES, Constants
from pellucid.checkpoints.convert.graph import Node
from pellucid.errors import CheckpointMismatchError

_DEEPEST = 120
"""Operations behind each other; a mask, the longest of what is computed here, has some twenty."""

_MOST = 2**20
"""Numbers of a value: a handful for an activation, a few times the width for a norm."""

SAME = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Dropout", "CastLike", "Expand")
"""Operations that change the shape or type of numbers, or repeat them, and no number."""

_BIASED = ("BiasGelu", "FastGelu")
"""Their second input is the bias of the product before them, and placed with it."""

_PICKS = ("Slice", "Gather", "GatherND", "Tile", "ReduceSum")
"""In a mask, where every number of the input is the same, these change none either."""


class Pointwise:
    """The value of a name where other values are given; every value stands for all numbers of its table alike.

    width: of a head, which graphs ask for as the last size of the query.  mask: whether this is a mask.
    """

    def __init__(self, constants: Constants, given: dict[str, Tensor], *, width: int = 0, mask: bool = False) -> None:
        self.constants, self.known, self.width, self.mask = constants, dict(given), width, mask

    def of(self, name: str, depth: int = 0) -> Tensor:
        """The numbers of a value.

        Raises: CheckpointMismatchError for an operation that is none of those that stand in such a place.
        """
        if name not in self.known:
            self.known[name] = self._find(name, depth)
        return self.known[name]

    def _find(self, name: str, depth: int) -> Tensor:
        part, graph = self.constants.get(name), self.constants.graph
        if part is not None and part.numbers.numel() <= _MOST:
            return part.numbers.double() if part.numbers.is_floating_point() else part.numbers
        node = graph.makers.get(name)
        if node is None or depth > _DEEPEST:
            raise self._strange("an input that is not expected there" if node is None else node)
        if (size := self._size(node)) is not None:
            return size
        if node.kind in SAME or (self.mask and node.kind in _PICKS):
            return self.of(node.input(0), depth + 1)
        if (source := rounded(self.constants, node)) and name == node.outputs[0]:
            return self.of(source, depth + 1)
        if node.kind == "EmbedLayerNormalization" and self.mask and name in node.outputs[1:2]:
            return self.of(node.input(7), depth + 1)
        if node.kind == "ConstantOfShape" and self.mask:
            return torch.tensor(node.settings.get("value", 0.0), device="cpu")
        if node.kind not in _WORK:
            raise self._strange(node)
        read = node.inputs[:1] if node.kind in _BIASED else node.inputs
        parts = [self.of(value, depth + 1) if value else None for value in read]
        try:
            if node.kind != "ReduceMean" and prod(_common(parts)) > _MOST:
                raise self._strange(node)
            return _WORK[node.kind](node.settings, *parts)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
            raise self._strange(node) from error

    def _size(self, node: Node) -> Tensor | None:
        """The width of a head, where it is asked for: the last of the sizes of a query."""
        maker = self.constants.graph.makers.get(node.input(0))
        if maker is None or maker.kind != "Shape" or node.kind not in ("Slice", "Gather"):
            return None
        place = self.constants.number(node.input(1))
        if place not in (-1, 3) or not self.width:
            raise self._strange(node)
        return torch.tensor(float(self.width), dtype=torch.float64, device="cpu")

    def _strange(self, what: object) -> CheckpointMismatchError:
        return CheckpointMismatchError(f"{what} stands there")


def rounded(constants: Constants, node: Node) -> str:
    """What was quantised by an operation, or is made real again by it with the scale of before; "" for any other."""
    if node.kind == "DynamicQuantizeLinear":
        return node.input(0)
    maker = constants.graph.makers.get(node.input(0)) if node.kind == "DequantizeLinear" else None
    for _ in range(_DEEPEST):
        if maker is None or maker.kind not in SAME:
            break
        maker = constants.graph.makers.get(maker.input(0))
    if maker is None or maker.kind != "QuantizeLinear":
        return ""
    for ours, theirs in zip((node.input(1), node.input(2)), (maker.input(1), maker.input(2))):
        if ours != theirs and (constants.number(ours) or 0) != (constants.number(theirs) or 0):
            return ""
    return maker.input(0)


def gelu_by_tanh(numbers: Tensor) -> Tensor:
    """GELU as GPT-2 computes it."""
    return functional.gelu(numbers, approximate="tanh")


def _gelu(said: dict[str, Any], numbers: Tensor) -> Tensor:
    return gelu_by_tanh(numbers) if said.get("approximate") == "tanh" else functional.gelu(numbers)


def _cast(said: dict[str, Any], numbers: Tensor) -> Tensor:
    to = said["to"]
    if to == 9:
        return numbers != 0
    return numbers.double() if DTYPES.get(to, torch.int64).is_floating_point else numbers.long()


def _mean(said: dict[str, Any], numbers: Tensor, axes: Tensor | None = None) -> Tensor:
    wanted = said.get("axes") if axes is None else axes.tolist()
    if wanted not in ([-1], [2]) or not said.get("keepdims", 1) or numbers.dim() == 0:
        raise ValueError("a mean of something else than the last axis")
    return numbers.mean(-1, keepdim=True)


def _common(parts: list[Tensor | None]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*(part.shape for part in parts if part is not None)))


def _clip(said: dict[str, Any], numbers: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    least, most = (said.get(name) if bound is None else bound for name, bound in (("min", low), ("max", high)))
    return torch.clamp(numbers, least, most)


def _plain(work: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda said, *parts: work(*parts)


_WORK: dict[str, Callable[..., Tensor]] = {
    "Add": _plain(torch.add),
    "Sub": _plain(torch.sub),
    "Mul": _plain(torch.mul),
    "Div": _plain(torch.div),
    "Pow": _plain(torch.pow),
    "Max": _plain(torch.maximum),
    "Min": _plain(torch.minimum),
    "Neg": _plain(torch.neg),
    "Abs": _plain(torch.abs),
    "Clip": _clip,
    "Log": _plain(torch.log),
    "Sqrt": _plain(torch.sqrt),
    "Reciprocal": _plain(torch.reciprocal),
    "Exp": _plain(torch.exp),
    "Erf": _plain(torch.erf),
    "Tanh": _plain(torch.tanh),
    "Sigmoid": _plain(torch.sigmoid),
    "Relu": _plain(torch.relu),
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": _plain(gelu_by_tanh),
    "QuickGelu": lambda said, numbers: numbers * torch.sigmoid(said.get("alpha", 1.702) * numbers),
    "Silu": _plain(functional.silu),
    "Swish": _plain(functional.silu),
    "Cast": _cast,
    "ReduceMean": _mean,
    "And": _plain(torch.logical_and),
    "BitwiseAnd": _plain(torch.bitwise_and),
    "BitwiseNot": _plain(torch.bitwise_not),
    "Or": _plain(torch.logical_or),
    "Not": _plain(torch.logical_not),
    "Equal": _plain(torch.eq),
    "Greater": _plain(torch.gt),
    "GreaterOrEqual": _plain(torch.ge),
    "Less": _plain(torch.lt),
    "LessOrEqual": _plain(torch.le),
    "Where": _plain(lambda condition, yes, no: torch.where(condition.bool(), yes, no)),
}
"""Operations that make each number of the numbers in its place, and the mean of a norm."""
