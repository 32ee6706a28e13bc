"""What the operations of ONNX make of tensors (https://onnx.ai/onnx/operators), and some of ONNX Runtime's own."""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.convert.graph import REALS

MOST = 2**25
"""Numbers of one value: a file of a thousand bytes may ask for a table of a billion."""

Settings = dict[str, Any]
Work = Callable[..., Tensor]

_MOST_AXES = 8
_MOST_PRODUCTS = 2**32

_BITS = {2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 12: 32}
"""Of ONNX's types of whole numbers; the others have 64."""

_UNSIGNED = (2, 4, 12)

_ENDLESS = 2**31 - 1
"""From here on the end of a slice means: to the end."""


def gelu_by_tanh(numbers: Tensor) -> Tensor:
    """GELU as GPT-2 computes it."""
    return functional.gelu(numbers, approximate="tanh")


def room(shape: Sequence[int]) -> list[int]:
    """The shape of a value that is made; ValueError where it would take too much."""
    if len(shape) > _MOST_AXES or prod(shape) > MOST or any(size < 0 for size in shape):
        raise ValueError(f"it makes a value of {list(shape[:_MOST_AXES])}")
    return list(shape)


def _whole(numbers: Tensor | None, otherwise: Any = None) -> Any:
    """A vector of whole numbers, such as axes, from an input; or what a setting says in its place."""
    if numbers is None:
        return otherwise
    if numbers.numel() > _MOST_AXES:
        raise ValueError(f"it is told {numbers.numel():,} sizes or axes")
    return [int(number) for number in numbers.reshape(-1).tolist()]


def _each(work: Callable[..., Tensor]) -> Work:
    """An operation on the numbers of each place."""

    def done(said: Settings, *parts: Tensor) -> Tensor:
        room(torch.broadcast_shapes(*(part.shape for part in parts)))
        return work(*parts)

    return done


def _all(work: Callable[[Tensor, Tensor], Tensor]) -> Work:
    """An operation on two values or more, one after the other."""
    return _each(lambda *parts: reduce(work, parts))


def _gelu(said: Settings, numbers: Tensor, bias: Tensor | None = None) -> Tensor:
    return gelu_by_tanh(numbers) if said.get("approximate") == "tanh" else functional.gelu(numbers)


def _kept(said: Settings, numbers: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Tensor:
    """Dropout where nothing is dropped."""
    if training is not None and bool(training):
        raise ValueError("it drops numbers by chance")
    return numbers


def _cast(said: Settings, numbers: Tensor) -> Tensor:
    if said["to"] in REALS:
        return numbers.double()
    if said["to"] == 9:
        return numbers != 0
    bits, numbers = _BITS.get(said["to"], 64), numbers.long()
    if bits == 64:
        return numbers
    below = 0 if said["to"] in _UNSIGNED else 2 ** (bits - 1)  # what is too large begins again from the other end
    return (numbers + below) % 2**bits - below


def _cast_like(said: Settings, numbers: Tensor, other: Tensor) -> Tensor:
    return numbers.to(other.dtype)


def _clip(said: Settings, numbers: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    least, most = (said.get(name) if bound is None else bound for name, bound in (("min", low), ("max", high)))
    return torch.clamp(numbers, least, most)


# -- along axes --------------------------------------------------------------------------------------------------------


def _reduced(work: Callable[[Tensor, list[int], bool], Tensor]) -> Work:
    def done(said: Settings, numbers: Tensor, axes: Tensor | None = None) -> Tensor:
        chosen = _whole(axes, said.get("axes")) or []
        if not chosen and said.get("noop_with_empty_axes"):
            return numbers
        return work(numbers, chosen or list(range(numbers.dim())), bool(said.get("keepdims", 1)))

    return done


def _softmax(said: Settings, numbers: Tensor) -> Tensor:
    if said.get("axis", -1) not in (-1, numbers.dim() - 1):  # over which older versions join all axes behind it
        raise ValueError(f"it is over axis {said['axis']}")
    return torch.softmax(numbers, -1)


def _product(said: Settings, left: Tensor, right: Tensor) -> Tensor:
    """MatMul; ONNX Runtime's may turn its parts, and multiply what comes out."""
    left = left.mT if said.get("transA") else left
    right = right.mT if said.get("transB") else right
    if said.get("transBatchA") or said.get("transBatchB"):
        raise ValueError("turned otherwise")
    made = room([*torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1]])
    if prod(made) * left.shape[-1] > _MOST_PRODUCTS:
        raise ValueError(f"it makes {prod(made) * left.shape[-1]:,} products")
    return left.double() @ right.double() * said.get("alpha", 1.0)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _transposed(said: Settings, numbers: Tensor) -> Tensor:
    return numbers.permute(said.get("perm", list(range(numbers.dim()))[::-1]))


def _reshaped(said: Settings, numbers: Tensor, shape: Tensor) -> Tensor:
    same = 0 if not said.get("allowzero") else None
    return numbers.reshape([numbers.shape[i] if size == same else size for i, size in enumerate(_whole(shape))])


def _squeezed(said: Settings, numbers: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = _whole(axes, said.get("axes"))
    return numbers.squeeze(tuple(chosen)) if chosen else numbers.squeeze()


def _unsqueezed(said: Settings, numbers: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = _whole(axes, said.get("axes")) or []
    rank = numbers.dim() + len(chosen)
    for axis in sorted(axis % rank for axis in chosen):
        numbers = numbers.unsqueeze(axis)
    return numbers


def _flattened(said: Settings, numbers: Tensor) -> Tensor:
    axis = said.get("axis", 1) % (numbers.dim() + 1)
    return numbers.reshape(prod(numbers.shape[:axis]), -1)


def _expanded(said: Settings, numbers: Tensor, shape: Tensor) -> Tensor:
    return numbers.expand(room(torch.broadcast_shapes(numbers.shape, _whole(shape))))


def _tiled(said: Settings, numbers: Tensor, times: Tensor) -> Tensor:
    room([size * many for size, many in zip(numbers.shape, _whole(times), strict=True)])
    return numbers.repeat(_whole(times))


def _joined(said: Settings, *parts: Tensor) -> Tensor:
    room([sum(part.numel() for part in parts)])
    return torch.cat(parts, said["axis"])


def _split(said: Settings, numbers: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = said.get("axis", 0)
    if chosen := _whole(sizes, said.get("split")):
        return numbers.split(chosen, axis)
    return numbers.split(-(-numbers.shape[axis] // said["num_outputs"]), axis)


def _shape(said: Settings, numbers: Tensor) -> Tensor:
    return torch.tensor(numbers.shape[said.get("start", 0) : said.get("end")], dtype=torch.int64, device="cpu")


def _size(said: Settings, numbers: Tensor) -> Tensor:
    return torch.tensor(numbers.numel(), device="cpu")


def _counted(said: Settings, start: Tensor, end: Tensor, step: Tensor) -> Tensor:
    first, last, by = (part.item() for part in (start, end, step))
    room([int((last - first) / by) + 1 if (last > first) == (by > 0) else 0])
    return torch.arange(first, last, by, dtype=start.dtype, device="cpu")


def _filled(said: Settings, shape: Tensor) -> Tensor:
    value = torch.tensor(said.get("value", 0.0), device="cpu")
    return (value.double() if value.is_floating_point() else value).expand(room(_whole(shape)))


# -- chosen places -----------------------------------------------------------------------------------------------------


def _gathered(said: Settings, numbers: Tensor, places: Tensor) -> Tensor:
    if not numbers.dim():
        raise ValueError("it takes a place of a single number")
    axis = said.get("axis", 0) % numbers.dim()
    room([*numbers.shape[:axis], *places.shape, *numbers.shape[axis + 1 :]])
    rows = numbers.index_select(axis, _from_the_start(places, numbers.shape[axis]).reshape(-1))
    return rows.reshape([*numbers.shape[:axis], *places.shape, *numbers.shape[axis + 1 :]])


def _gathered_numbers(said: Settings, numbers: Tensor, places: Tensor) -> Tensor:
    """GatherElements: a place along one axis for each number."""
    axis = said.get("axis", 0)
    return numbers.gather(axis, _from_the_start(places, numbers.shape[axis]))


def _gathered_places(said: Settings, numbers: Tensor, places: Tensor) -> Tensor:
    """GatherND: the last axis of `places` holds the coordinates."""
    if said.get("batch_dims", 0):
        raise ValueError("places for each text")
    room([*places.shape[:-1], *numbers.shape[places.shape[-1] :]])
    ways = [_from_the_start(one, numbers.shape[axis]) for axis, one in enumerate(places.unbind(-1))]
    return numbers[tuple(ways)]


def _from_the_start(places: Tensor, size: int) -> Tensor:
    return torch.where(places < 0, places + size, places).long()


def _cut(said: Settings, numbers: Tensor, *given: Tensor | None) -> Tensor:
    """Slice; one that cuts only longer texts than these is refused."""
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = (
        _whole(part, said.get(name)) for name, part in zip(names, [*given, *[None] * 4], strict=False)
    )
    if axes and len({axis % numbers.dim() for axis in axes}) < len(axes):
        raise ValueError("it cuts an axis twice")
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = axes[i] if axes else i, steps[i] if steps else 1
        size = numbers.shape[axis]
        if size < end < said.get("longest", _ENDLESS):
            raise ValueError(f"it cuts after {end}")
        kept = range(size)[start : None if abs(end) >= _ENDLESS else end : step]
        if len(kept) < size or step != 1:
            numbers = numbers.index_select(axis, torch.arange(kept.start, kept.stop, kept.step, device="cpu"))
    return numbers


SHAPED: dict[str, Callable[..., Tensor]] = {
    "Transpose": _transposed, "Reshape": _reshaped, "Squeeze": _squeezed, "Unsqueeze": _unsqueezed,
}  # fmt: skip
"""What exporters also put between a table and its use."""

WORK: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    "Identity": lambda said, numbers: numbers,
    "Dropout": _kept,
    **dict.fromkeys(("Gelu", "BiasGelu"), _gelu),
    "FastGelu": lambda said, numbers, bias=None: gelu_by_tanh(numbers),
    "QuickGelu": lambda said, numbers: numbers * torch.sigmoid(said.get("alpha", 1.702) * numbers),
    **dict.fromkeys(("Silu", "Swish"), _each(functional.silu)),
    "Add": _each(torch.add), "Sub": _each(torch.sub), "Mul": _each(torch.mul), "Pow": _each(torch.pow),
    "Mod": _each(torch.remainder),
    "Div": _each(lambda one, by: one / by if one.is_floating_point() else torch.div(one, by, rounding_mode="trunc")),
    "Sum": _all(torch.add), "Max": _all(torch.maximum), "Min": _all(torch.minimum),
    "Neg": _each(torch.neg), "Abs": _each(torch.abs), "Log": _each(torch.log), "Sqrt": _each(torch.sqrt),
    "Reciprocal": _each(torch.reciprocal), "Exp": _each(torch.exp), "Erf": _each(torch.erf), "Tanh": _each(torch.tanh),
    "Sigmoid": _each(torch.sigmoid), "Relu": _each(torch.relu), "IsNaN": _each(torch.isnan),
    "And": _each(torch.logical_and), "Or": _each(torch.logical_or), "Not": _each(torch.logical_not),
    "BitwiseAnd": _each(torch.bitwise_and), "BitwiseOr": _each(torch.bitwise_or),
    "BitwiseNot": _each(torch.bitwise_not), "Equal": _each(torch.eq), "Greater": _each(torch.gt),
    "GreaterOrEqual": _each(torch.ge), "Less": _each(torch.lt), "LessOrEqual": _each(torch.le),
    "Where": _each(lambda chosen, yes, no: torch.where(chosen.bool(), yes, no)),
    "Cast": _cast, "CastLike": _cast_like, "Clip": _clip, "Softmax": _softmax,
    **dict.fromkeys(("MatMul", "FusedMatMul"), _product),
    "ReduceMean": _reduced(lambda numbers, axes, keep: numbers.mean(axes, keep)),
    "ReduceSum": _reduced(lambda numbers, axes, keep: numbers.sum(axes, keep)),
    "ReduceMax": _reduced(lambda numbers, axes, keep: numbers.amax(axes, keep)),
    "ReduceMin": _reduced(lambda numbers, axes, keep: numbers.amin(axes, keep)),
    **SHAPED,
    "Flatten": _flattened, "Expand": _expanded, "Tile": _tiled, "Concat": _joined, "Split": _split,
    "Shape": _shape, "Size": _size, "Range": _counted, "ConstantOfShape": _filled,
    "Gather": _gathered, "GatherND": _gathered_places, "GatherElements": _gathered_numbers, "Slice": _cut,
}  # fmt: skip
"""Each takes the settings and inputs of an operation."""
