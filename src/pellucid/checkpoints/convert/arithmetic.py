"""ONNX operations on tensors (https://onnx.ai/onnx/operators), and some of ONNX Runtime's own."""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.convert.graph import FLOAT_TYPES, TYPES

MAX_NUMBERS = 2**25
"""Maximum number of elements of one value: a file of a thousand bytes may request a billion."""

Attributes = dict[str, Any]
Operation = Callable[..., Tensor]

_MAX_AXES = 8
_MAX_PRODUCTS = 2**32

_BITS = {2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 12: 32, 13: 64}
"""Bits of ONNX's integer types."""

_UNSIGNED = (2, 4, 12)


def gelu_by_tanh(numbers: Tensor) -> Tensor:
    """GELU in the tanh approximation, as in GPT-2."""
    return functional.gelu(numbers, approximate="tanh")


def checked_shape(shape: Sequence[int]) -> list[int]:
    """The shape of a new value; raises ValueError where it is too large."""
    if len(shape) > _MAX_AXES or prod(shape) > MAX_NUMBERS or any(size < 0 for size in shape):
        raise ValueError(f"it makes a value of {list(shape[:_MAX_AXES])}")
    return list(shape)


def _integers(numbers: Tensor | None, default: Any = None) -> Any:
    """A list of integers, such as axes, from an input, or the default, usually an attribute."""
    if numbers is None:
        return default
    if numbers.numel() > _MAX_AXES:
        raise ValueError(f"it has {numbers.numel():,} sizes or axes, expected at most {_MAX_AXES}")
    return [int(number) for number in numbers.reshape(-1).tolist()]


def _elementwise(function: Callable[..., Tensor]) -> Operation:
    """An elementwise operation with broadcasting."""

    def apply(attributes: Attributes, *parts: Tensor) -> Tensor:
        checked_shape(torch.broadcast_shapes(*(part.shape for part in parts)))
        return function(*parts)

    return apply


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Operation:
    """An elementwise operation that folds two or more values from left to right."""
    return _elementwise(lambda *parts: reduce(function, parts))


def _divided(number: Tensor, by: Tensor) -> Tensor:
    return number / by if number.is_floating_point() else torch.div(number, by, rounding_mode="trunc")


def _gelu(attributes: Attributes, numbers: Tensor, bias: Tensor | None = None) -> Tensor:
    return gelu_by_tanh(numbers) if attributes.get("approximate") == "tanh" else functional.gelu(numbers)


def _dropout(
    attributes: Attributes, numbers: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> Tensor:
    """Dropout in inference, where it changes nothing; refuses training mode."""
    if bool(training):
        raise ValueError("it applies dropout")
    return numbers


def _cast(attributes: Attributes, numbers: Tensor) -> Tensor:
    """Cast; rounds to a floating-point type only what was an integer, since half precision holds few of them."""
    to = attributes["to"]
    if to in FLOAT_TYPES:
        return (numbers if numbers.is_floating_point() else numbers.to(TYPES[to][1])).double()
    if to == 9:
        return numbers != 0
    if to not in _BITS:
        raise ValueError(f"it casts to ONNX's type {to}, which is not understood")
    bits, numbers = _BITS[to], numbers.long()
    if bits == 64:
        return numbers
    shift = 0 if to in _UNSIGNED else 2 ** (bits - 1)  # integer casts wrap around on overflow
    return (numbers + shift) % 2**bits - shift


def _cast_like(attributes: Attributes, numbers: Tensor, other: Tensor) -> Tensor:
    return numbers.to(other.dtype)


def _clip(attributes: Attributes, numbers: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    lower, upper = (attributes.get(name) if bound is None else bound for name, bound in (("min", low), ("max", high)))
    return numbers if lower is None and upper is None else torch.clamp(numbers, lower, upper)


# -- along axes --------------------------------------------------------------------------------------------------------


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Operation:
    def apply(attributes: Attributes, numbers: Tensor, axes: Tensor | None = None) -> Tensor:
        chosen = _integers(axes, attributes.get("axes")) or []
        if not chosen and attributes.get("noop_with_empty_axes"):
            return numbers
        return function(numbers, chosen or list(range(numbers.dim())), bool(attributes.get("keepdims", 1)))

    return apply


def _softmax(attributes: Attributes, numbers: Tensor) -> Tensor:
    if attributes.get("axis", -1) not in (-1, numbers.dim() - 1):  # older versions then flatten all axes from there on
        raise ValueError(f"its softmax is over axis {attributes['axis']}")
    return torch.softmax(numbers, -1)


def _matmul(attributes: Attributes, left: Tensor, right: Tensor) -> Tensor:
    """MatMul; ONNX Runtime's variant may transpose its inputs and scale the result."""
    left = left.mT if attributes.get("transA") else left
    right = right.mT if attributes.get("transB") else right
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        raise ValueError("it transposes its batch axes")
    shape = checked_shape([*torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1]])
    if prod(shape) * left.shape[-1] > _MAX_PRODUCTS:
        raise ValueError(f"it makes {prod(shape) * left.shape[-1]:,} products")
    return left.double() @ right.double() * attributes.get("alpha", 1.0)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _transpose(attributes: Attributes, numbers: Tensor) -> Tensor:
    return numbers.permute(attributes.get("perm", list(range(numbers.dim()))[::-1]))


def _reshape(attributes: Attributes, numbers: Tensor, shape: Tensor) -> Tensor:
    copied = 0 if not attributes.get("allowzero") else None
    return numbers.reshape([numbers.shape[i] if size == copied else size for i, size in enumerate(_integers(shape))])


def _squeeze(attributes: Attributes, numbers: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = _integers(axes, attributes.get("axes"))
    return numbers.squeeze(tuple(chosen)) if chosen else numbers.squeeze()


def _unsqueeze(attributes: Attributes, numbers: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = _integers(axes, attributes.get("axes")) or []
    rank = numbers.dim() + len(chosen)
    for axis in sorted(axis % rank for axis in chosen):
        numbers = numbers.unsqueeze(axis)
    return numbers


def _flatten(attributes: Attributes, numbers: Tensor) -> Tensor:
    return numbers.reshape(prod(numbers.shape[: attributes.get("axis", 1)]), -1)


def _expand(attributes: Attributes, numbers: Tensor, shape: Tensor) -> Tensor:
    return numbers.expand(checked_shape(torch.broadcast_shapes(numbers.shape, _integers(shape))))


def _tile(attributes: Attributes, numbers: Tensor, times: Tensor) -> Tensor:
    checked_shape([size * many for size, many in zip(numbers.shape, _integers(times), strict=True)])
    return numbers.repeat(_integers(times))


def _concat(attributes: Attributes, *parts: Tensor) -> Tensor:
    checked_shape([sum(part.numel() for part in parts)])
    return torch.cat(parts, attributes["axis"])


def _split(attributes: Attributes, numbers: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = attributes.get("axis", 0)
    if chosen := _integers(sizes, attributes.get("split")):
        return numbers.split(chosen, axis)
    return numbers.split(-(-numbers.shape[axis] // attributes["num_outputs"]), axis)


def _shape(attributes: Attributes, numbers: Tensor) -> Tensor:
    return torch.tensor(
        numbers.shape[attributes.get("start", 0) : attributes.get("end")], dtype=torch.int64, device="cpu"
    )


def _size(attributes: Attributes, numbers: Tensor) -> Tensor:
    return torch.tensor(numbers.numel(), device="cpu")


def _range(attributes: Attributes, start: Tensor, end: Tensor, step: Tensor) -> Tensor:
    first, last, by = (part.item() for part in (start, end, step))
    checked_shape([int((last - first) / by) + 1 if (last > first) == (by > 0) else 0])
    return torch.arange(first, last, by, dtype=start.dtype, device="cpu")


def _constant_of_shape(attributes: Attributes, shape: Tensor) -> Tensor:
    value = torch.tensor(attributes.get("value", 0.0), device="cpu")
    return (value.double() if value.is_floating_point() else value).expand(checked_shape(_integers(shape)))


# -- indexing ----------------------------------------------------------------------------------------------------------


def _gather(attributes: Attributes, numbers: Tensor, indices: Tensor) -> Tensor:
    if not numbers.dim():
        raise ValueError("it indexes a scalar")
    axis = attributes.get("axis", 0) % numbers.dim()
    shape = checked_shape([*numbers.shape[:axis], *indices.shape, *numbers.shape[axis + 1 :]])
    rows = numbers.index_select(axis, _non_negative(indices, numbers.shape[axis]).reshape(-1))
    return rows.reshape(shape)


def _gather_elements(attributes: Attributes, numbers: Tensor, indices: Tensor) -> Tensor:
    """GatherElements: an index along one axis for each element."""
    axis = attributes.get("axis", 0)
    return numbers.gather(axis, _non_negative(indices, numbers.shape[axis]))


def _gather_nd(attributes: Attributes, numbers: Tensor, indices: Tensor) -> Tensor:
    """GatherND: the last axis of `indices` holds the coordinates."""
    if attributes.get("batch_dims", 0):
        raise ValueError("it has batch_dims, which are not understood")
    checked_shape([*indices.shape[:-1], *numbers.shape[indices.shape[-1] :]])
    coordinates = [_non_negative(one, numbers.shape[axis]) for axis, one in enumerate(indices.unbind(-1))]
    return numbers[tuple(coordinates)]


def _non_negative(indices: Tensor, size: int) -> Tensor:
    return torch.where(indices < 0, indices + size, indices).long()


def _slice(attributes: Attributes, numbers: Tensor, *inputs: Tensor | None) -> Tensor:
    """Slice; refuses one that would truncate only texts longer than the trial batch's."""
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = (
        _integers(part, attributes.get(name)) for name, part in zip(names, [*inputs, *[None] * 4], strict=False)
    )
    if axes and len({axis % numbers.dim() for axis in axes}) < len(axes):
        raise ValueError("it slices an axis twice")
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = axes[i] if axes else i, steps[i] if steps else 1
        size = numbers.shape[axis]
        limit = size + (step < 0)  # backwards, the first place is before -size - 1
        if any(limit < abs(bound) < attributes["longest"] for bound in (start, end)):
            raise ValueError(f"it cuts an axis from {start} to {end}")
        chosen = range(size)[start:end:step]
        if len(chosen) < size or step != 1:
            numbers = numbers.index_select(axis, torch.arange(chosen.start, chosen.stop, chosen.step, device="cpu"))
    return numbers


SHAPE_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "Transpose": _transpose, "Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze,
}  # fmt: skip
"""Operations that exporters also put between a table and its use."""

OPERATIONS: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    "Identity": lambda attributes, numbers: numbers,
    "Dropout": _dropout,
    **dict.fromkeys(("Gelu", "BiasGelu"), _gelu),
    "FastGelu": lambda attributes, numbers, bias=None: gelu_by_tanh(numbers),
    "QuickGelu": lambda attributes, numbers: numbers * torch.sigmoid(attributes.get("alpha", 1.702) * numbers),
    "Swish": lambda attributes, numbers: numbers * torch.sigmoid(attributes.get("alpha", 1.0) * numbers),
    "Silu": _elementwise(functional.silu),
    "Add": _elementwise(torch.add), "Sub": _elementwise(torch.sub), "Mul": _elementwise(torch.mul),
    "Pow": _elementwise(lambda base, exponent: torch.pow(base, exponent).to(base.dtype)),
    "Mod": lambda attributes, *parts: _elementwise(torch.fmod if attributes.get("fmod") else torch.remainder)(
        attributes, *parts
    ),
    "Div": _elementwise(_divided),
    "Sum": _variadic(torch.add), "Max": _variadic(torch.maximum), "Min": _variadic(torch.minimum),
    "Neg": _elementwise(torch.neg), "Abs": _elementwise(torch.abs), "Log": _elementwise(torch.log),
    "Sqrt": _elementwise(torch.sqrt), "Reciprocal": _elementwise(torch.reciprocal), "Exp": _elementwise(torch.exp),
    "Erf": _elementwise(torch.erf), "Tanh": _elementwise(torch.tanh), "Sigmoid": _elementwise(torch.sigmoid),
    "Relu": _elementwise(torch.relu), "IsNaN": _elementwise(torch.isnan), "And": _elementwise(torch.logical_and),
    "Or": _elementwise(torch.logical_or), "Not": _elementwise(torch.logical_not),
    "BitwiseAnd": _elementwise(torch.bitwise_and), "BitwiseOr": _elementwise(torch.bitwise_or),
    "BitwiseNot": _elementwise(torch.bitwise_not), "Equal": _elementwise(torch.eq), "Greater": _elementwise(torch.gt),
    "GreaterOrEqual": _elementwise(torch.ge), "Less": _elementwise(torch.lt), "LessOrEqual": _elementwise(torch.le),
    "Where": _elementwise(lambda chosen, yes, no: torch.where(chosen.bool(), yes, no)),
    "Cast": _cast, "CastLike": _cast_like, "Clip": _clip, "Softmax": _softmax,
    **dict.fromkeys(("MatMul", "FusedMatMul"), _matmul),
    "ReduceMean": _reduction(lambda numbers, axes, keep: numbers.mean(axes, keep)),
    "ReduceSum": _reduction(lambda numbers, axes, keep: numbers.sum(axes, keep)),
    "ReduceMax": _reduction(lambda numbers, axes, keep: numbers.amax(axes, keep)),
    "ReduceMin": _reduction(lambda numbers, axes, keep: numbers.amin(axes, keep)),
    **SHAPE_OPERATIONS,
    "Flatten": _flatten, "Expand": _expand, "Tile": _tile, "Concat": _concat, "Split": _split,
    "Shape": _shape, "Size": _size, "Range": _range, "ConstantOfShape": _constant_of_shape,
    "Gather": _gather, "GatherND": _gather_nd, "GatherElements": _gather_elements, "Slice": _slice,
}  # fmt: skip
"""Each function takes the attributes and inputs of an operation."""
