"""The part of a point that an edit applies to: rows, heads, positions or neurons, each selected along an axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from pellucid.blocks.checks import kind_of as kind
from pellucid.config.checks import is_list_like, require_integer, require_integers
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.models import TokenPositions
from pellucid.trace.axes import requested_value
from pellucid.trace.points import Axes

Indices = int | Sequence[int] | slice
"""One index, several, or a slice; negative ones count from the end."""

OptionalIndices = Indices | None
"""The same; None selects all."""

Part = tuple[str, int | slice]
"""The keyword of a selected index or slice, and the index or slice."""

SELECTABLE_AXES: dict[str, Axes] = {
    "row": ("batch",),
    "head": ("heads", "key_heads"),
    "position": ("seq",),
    "source": ("source",),
    "neuron": ("inner", "hidden", "width"),
}
"""Each keyword of a selection, and the axes that it can select from."""


@dataclass(frozen=True)
class PointContext:
    """The point at which a value is edited, and the positions of the tokens of the pass.

    name: the full name.  requested: the name by which the point was requested, ours or another library's.
    axes: those of the value, under the requested name.
    bits: of the model's quantized weights, 8 or 4; None without any.
    """

    name: str
    requested: str
    axes: Axes
    token_positions: TokenPositions
    bits: int | None

    def value_in(self, trace: Mapping[str, Tensor]) -> Tensor:
        """The value of this point in a trace, on the axes of the edited value."""
        return requested_value(trace[self.name], self.name, self.requested)

    def positions(self, axis: str) -> list[list[int]]:
        """The position of each token along `seq` or `source` in its text, by row; -1 for padding. One row if all are
        alike."""
        across, by_role = "cross_attention." in self.name, self.token_positions
        found = by_role.queries if axis == "seq" else by_role.memory if across else by_role.keys
        return found.tolist()

    def batch_size(self, value: Tensor) -> int:
        """The number of texts of the pass, also for a value that all of them share."""
        return max(len(value), self.token_positions.rows)

    def is_first_pass(self) -> bool:
        """Whether the pass reads texts from their first token on."""
        return any(0 in row for row in self.token_positions.queries.tolist())

    def match_dtype(self, tensor: Tensor, value: Tensor) -> Tensor:
        """`tensor` in the dtype of `value` where a quantized model uses both: there the number of positions in a pass
        decides whether a point is float32 or bfloat16."""
        both = {tensor.dtype, value.dtype} == {torch.float32, torch.bfloat16}
        return tensor.to(value.dtype) if self.bits and both else tensor

    def describe(self, value: Tensor) -> str:
        """`float32[1, 12, 5, 5] (batch, heads, seq, source)`"""
        return f"{kind(value)} ({', '.join(self.axes)})"


@dataclass(frozen=True, eq=False)
class Selection:
    """Indices along axes. See `pellucid.edits`.

    chosen: the indices by keyword, in the order of SELECTABLE_AXES; an absent keyword selects everything.
    """

    chosen: dict[str, Indices]

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, OptionalIndices]) -> Self:
        """The selection given by keywords. Raises InputError for an unknown one."""
        for keyword in keywords:
            if keyword not in SELECTABLE_AXES:
                unknown = f"{shorten(repr(keyword))}{did_you_mean(keyword, SELECTABLE_AXES)}"
                raise InputError(f"an edit selects by {', '.join(SELECTABLE_AXES)}, not by {unknown}")
        provided = [keyword for keyword in SELECTABLE_AXES if keywords.get(keyword) is not None]
        return cls({keyword: _as_indices(keyword, keywords[keyword]) for keyword in provided})

    def check(self, name: str, axes: Axes, sizes: dict[str, int]) -> None:
        """Raises InputError for axes that the point lacks, and for indices beyond the sizes known in advance."""
        for keyword, chosen in self.chosen.items():
            axis = _selected_axis(keyword, axes)
            if not axis:
                indices = format_indices(chosen)
                raise InputError(f"{keyword}={indices}: {name} has no {keyword}s, its axes are {', '.join(axes)}")
            if axis in sizes and (missing := first_out_of_range(chosen, sizes[axis])) is not None:
                noun = f"key and value {keyword}s" if axis == "key_heads" else f"{keyword}s"
                index = format_indices(missing)
                raise InputError(f"{keyword}={index} does not exist: {name} has {sizes[axis]} {noun}")

    def mask(self, value: Tensor, context: PointContext) -> Tensor | None:
        """Bool[Tensor, "..."] that broadcasts to `value`, True where it is selected; None where everything is.

        Padding is never a source, selected or not: otherwise attention would depend on the other texts of the batch.
        """
        mask, sources = None, {"source": slice(None)} if "source" in context.axes else {}
        for keyword, chosen in (sources | self.chosen).items():
            part = _axis_mask(keyword, chosen, value, context).to(value.device)
            mask = part if mask is None else mask & part
        return mask

    def axis_lengths(self, value: Tensor, context: PointContext) -> dict[str, int]:
        """The length of each selected axis: the rows of the batch, or the tokens of the longest text so far."""
        return {keyword: max(size for _, size in _positions_along(keyword, value, context)) for keyword in self.chosen}

    def parts(self) -> list[Part]:
        """The selected indices one by one; a slice stays whole."""
        return [(keyword, one) for keyword, chosen in self.chosen.items() for one in split_indices(chosen)]

    def missing(self, parts: Sequence[Part], value: Tensor, context: PointContext) -> list[Part]:
        """Those of the selected indices that do not occur in `value`."""
        rows = {
            keyword: [(set(positions), size) for positions, size in _positions_along(keyword, value, context)]
            for keyword in dict(parts)
        }
        return [
            (keyword, one)
            for keyword, one in parts
            if not any(here & {*resolve_indices(one, size)} for here, size in rows[keyword])
        ]

    def __str__(self) -> str:
        return ", ".join(f"{keyword}={format_indices(chosen)}" for keyword, chosen in self.chosen.items())


def first_out_of_range(chosen: Indices, size: int) -> int | slice | None:
    """The first selected index not among `size`, or slice that selects nothing; None if there is none."""
    return next((one for one in split_indices(chosen) if not resolve_indices(one, size)), None)


def resolve_indices(chosen: Indices, size: int) -> list[int]:
    """The selected indices among `size`, counted from 0, in the order given; those that do not exist are left out."""
    if isinstance(chosen, slice):
        return list(range(size)[chosen])
    return [i % size for i in ([chosen] if isinstance(chosen, int) else chosen) if -size <= i < size]


def text_length(positions: Sequence[int]) -> int:
    """The number of tokens of a text that have been read so far, from the positions of its row."""
    return max(positions, default=-1) + 1


def format_indices(chosen: Indices) -> str:
    """`5`, `[1, 2]` or `1:`"""
    if not isinstance(chosen, slice):
        return shorten(str(chosen if isinstance(chosen, int) else list(chosen)))
    ends = ("" if end is None else str(end) for end in (chosen.start, chosen.stop))
    return shorten(":".join(ends) + ("" if chosen.step is None else f":{chosen.step}"))


def split_indices(chosen: Indices) -> Sequence[int | slice]:
    """The indices one by one; a slice stays whole."""
    return [chosen] if isinstance(chosen, int | slice) else chosen


def clone_unless_trainable(argument: Any) -> Any:
    """A copy of a tensor, or of each tensor of a dictionary, so that later changes by the caller have no effect. A
    tensor that requires gradients stays itself, to follow its training; anything else, such as a trace, too."""
    if type(argument) is dict:
        return {name: clone_unless_trainable(one) for name, one in argument.items()}
    return argument.clone() if isinstance(argument, Tensor) and not argument.requires_grad else argument


def _axis_mask(keyword: str, chosen: Indices, value: Tensor, context: PointContext) -> Tensor:
    """A mask, True where selected along one axis, with as many dimensions as `value`."""
    rows = _positions_along(keyword, value, context)
    resolved = [(positions, set(resolve_indices(chosen, size))) for positions, size in rows]
    hits = torch.tensor([[i in indices for i in positions] for positions, indices in resolved], device="cpu")
    axis, shape = _selected_axis(keyword, context.axes), [1] * value.dim()
    if axis == "batch":
        shape[0] = hits.shape[1]
    else:
        shape[0], shape[context.axes.index(axis)] = hits.shape
    return hits.view(shape)


def _positions_along(keyword: str, value: Tensor, context: PointContext) -> list[tuple[list[int], int]]:
    """The indices along a keyword's axis, and their number in the text so far; for each row where rows differ."""
    axis = _selected_axis(keyword, context.axes)
    size = context.batch_size(value) if axis == "batch" else value.shape[context.axes.index(axis)]
    if axis in ("seq", "source"):
        return [(row[-size:], text_length(row)) for row in context.positions(axis)]
    return [(list(range(size)), size)]


def _selected_axis(keyword: str, axes: Axes) -> str:
    """The axis that a keyword selects from; "" where the point has none."""
    return next((axis for axis in SELECTABLE_AXES[keyword] if axis in axes), "")


def _as_indices(keyword: str, chosen: Any) -> int | list[int] | slice:
    """A selection as Python integers; those of numpy and torch are accepted too."""
    expected = "a whole number, several, or a slice"
    if isinstance(chosen, slice):
        try:
            range(1)[chosen]  # raises unless its parts are integers or None, with a step other than 0
        except (TypeError, ValueError) as error:
            raise InputError(f"{keyword} is {shorten(repr(chosen))}, expected {expected}") from error
        return chosen
    if is_list_like(chosen) and (found := require_integers(keyword, chosen, expected)):
        return found
    return require_integer(keyword, chosen, expected)
