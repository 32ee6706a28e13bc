"""Which part of a point an edit reaches: rows, heads, positions, neurons, each by the axis that it chooses from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from pellucid.blocks.checks import kind_of as kind
from pellucid.config.checks import is_list_like, require_integer, require_integers
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.models import TokenPositions
from pellucid.trace.axes import is_transposed, transposed
from pellucid.trace.points import Axes

Indices = int | Sequence[int] | slice
"""One index, several, or a slice, negative ones from the end."""

OptionalIndices = Indices | None
"""The same; None for all."""

SELECTABLE_AXES: dict[str, Axes] = {
    "row": ("batch",),
    "head": ("heads", "key_heads"),
    "position": ("seq",),
    "source": ("source",),
    "neuron": ("inner", "hidden", "width"),
}
"""The keyword that chooses, and the axes that it chooses from."""


@dataclass(frozen=True)
class PointContext:
    """A point at which a value is told, and where the tokens of the pass stand.

    name: the whole one.  axes: those of the value.  bits: of the numbers of the model's tables, 8 or 4; None of real
    ones.  alias: the name of another library by which the point was asked for, with the axes that it has there.
    """

    name: str
    axes: Axes
    token_positions: TokenPositions
    bits: int | None = None
    alias: str = ""

    @property
    def display_name(self) -> str:
        """What the point is called by the one who asked for it."""
        return self.alias or self.name

    def value_in(self, trace: Mapping[str, Tensor]) -> Tensor:
        """What a trace holds of this point, on the axes of `value`."""
        return transposed(trace[self.name]) if self.alias and is_transposed(self.name) else trace[self.name]

    def positions(self, axis: str) -> list[list[int]]:
        """Where the tokens along `seq` or `source` stand in their texts, by row; -1 for padding. One row for all
        where they are alike."""
        across, by_role = "cross_attention." in self.name, self.token_positions
        found = by_role.queries if axis == "seq" else by_role.memory if across else by_role.keys
        return found.tolist()

    def batch_size(self, value: Tensor) -> int:
        """How many texts a value is of, also where it is one for all of them."""
        return max(len(value), self.token_positions.rows)

    def is_first_pass(self) -> bool:
        """Whether the pass begins at the beginning of its texts."""
        return any(0 in row for row in self.token_positions.queries.tolist())

    def match_dtype(self, tensor: Tensor, value: Tensor) -> Tensor:
        """`tensor` in the kind of `value` where a model of few bits has both: how many positions a pass reads decides
        whether a point is float32 or bfloat16."""
        both = {tensor.dtype, value.dtype} == {torch.float32, torch.bfloat16}
        return tensor.to(value.dtype) if self.bits and both else tensor

    def describe(self, value: Tensor) -> str:
        """`float32[1, 12, 5, 5] (batch, heads, seq, source)`"""
        return f"{kind(value)} ({', '.join(self.axes)})"


@dataclass(frozen=True, eq=False)
class Selection:
    """A choice along axes. See `pellucid.edits`.

    chosen: the indices by keyword, in the order of SELECTABLE_AXES; what is not there is not chosen from.
    """

    chosen: dict[str, Indices]

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, OptionalIndices]) -> Self:
        """What was asked for by keywords, of which each must be known."""
        for keyword in keywords:
            if keyword not in SELECTABLE_AXES:
                unknown = f"{shorten(repr(keyword))}{did_you_mean(keyword, SELECTABLE_AXES)}"
                raise InputError(f"an edit selects by {', '.join(SELECTABLE_AXES)}, not by {unknown}")
        provided = [keyword for keyword in SELECTABLE_AXES if keywords.get(keyword) is not None]
        return cls({keyword: _as_indices(keyword, keywords[keyword]) for keyword in provided})

    def check(self, name: str, axes: Axes, sizes: dict[str, int]) -> None:
        """Refuses axes that the point does not have, and indices beyond the sizes that are known beforehand."""
        for keyword, chosen in self.chosen.items():
            axis = _selected_axis(keyword, axes)
            if not axis:
                indices = shorten(format_indices(chosen))
                raise InputError(f"{keyword}={indices}: {name} has no {keyword}s, its axes are {', '.join(axes)}")
            if axis in sizes and (missing := first_out_of_range(chosen, sizes[axis])) is not None:
                noun = f"key and value {keyword}s" if axis == "key_heads" else f"{keyword}s"
                index = shorten(format_indices(missing))
                raise InputError(f"{keyword}={index} does not exist: {name} has {sizes[axis]} {noun}")

    def mask(self, value: Tensor, context: PointContext) -> Tensor | None:
        """Bool[Tensor, "..."] that spreads over `value`, True where it is chosen; None where all of it is.

        Padding is no source, chosen or not: else what is looked at would depend on the texts beside this one.
        """
        mask, sources = None, {"source": slice(None)} if "source" in context.axes else {}
        for keyword, chosen in (sources | self.chosen).items():
            part = _axis_mask(keyword, chosen, value, context).to(value.device)
            mask = part if mask is None else mask & part
        return mask

    def axis_lengths(self, value: Tensor, context: PointContext) -> dict[str, int]:
        """How far each axis that is chosen from reaches: rows of the batch, tokens of the longest text so far."""
        return {keyword: max(size for _, size in _positions_along(keyword, value, context)) for keyword in self.chosen}

    def matched_indices(self, value: Tensor, context: PointContext) -> dict[str, set[str]]:
        """Which of the indices that are chosen, as they are shown, stand in `value`."""
        found = {}
        for keyword, chosen in self.chosen.items():
            rows = [(set(positions), size) for positions, size in _positions_along(keyword, value, context)]
            found[keyword] = {
                format_indices(one)
                for one in split_indices(chosen)
                if any(here & {*resolve_indices(one, n)} for here, n in rows)
            }
        return found

    def __str__(self) -> str:
        return ", ".join(f"{keyword}={format_indices(chosen)}" for keyword, chosen in self.chosen.items())


def first_out_of_range(chosen: Indices, size: int) -> int | slice | None:
    """The first that was chosen and does not exist among `size`; a slice where it holds nothing."""
    return next((one for one in split_indices(chosen) if not resolve_indices(one, size)), None)


def resolve_indices(chosen: Indices, size: int) -> list[int]:
    """The places that are chosen among `size`, counted from 0, in their order; what does not exist left out."""
    if isinstance(chosen, slice):
        return list(range(size)[chosen])
    return [i % size for i in ([chosen] if isinstance(chosen, int) else chosen) if -size <= i < size]


def text_length(positions: Sequence[int]) -> int:
    """How many tokens of its text stand there when a row has been read so far."""
    return max(positions, default=-1) + 1


def format_indices(chosen: Indices) -> str:
    """`5`, `[1, 2]` or `1:`"""
    if not isinstance(chosen, slice):
        return str(chosen if isinstance(chosen, int) else list(chosen))
    ends = ("" if end is None else str(end) for end in (chosen.start, chosen.stop))
    return ":".join(ends) + ("" if chosen.step is None else f":{chosen.step}")


def split_indices(chosen: Indices) -> Sequence[int | slice]:
    """Index by index; a slice is one part."""
    return [chosen] if isinstance(chosen, int | slice) else chosen


def clone_unless_trainable(argument: Any) -> Any:
    """A tensor that somebody gave, or a dictionary of such, as it is now, whatever he writes into it later; one that
    learns stays itself, since it is written into by whoever learns it. All else, such as a trace, as it is."""
    if type(argument) is dict:
        return {name: clone_unless_trainable(one) for name, one in argument.items()}
    return argument.clone() if isinstance(argument, Tensor) and not argument.requires_grad else argument


def _axis_mask(keyword: str, chosen: Indices, value: Tensor, context: PointContext) -> Tensor:
    """True along one axis where it is chosen, of as many dimensions as `value`."""
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
    """The places along the axis of a keyword, and how many there are in the text so far; by row where rows differ."""
    axis = _selected_axis(keyword, context.axes)
    size = context.batch_size(value) if axis == "batch" else value.shape[context.axes.index(axis)]
    if axis in ("seq", "source"):
        return [(row[-size:], text_length(row)) for row in context.positions(axis)]
    return [(list(range(size)), size)]


def _selected_axis(keyword: str, axes: Axes) -> str:
    """The axis that a keyword chooses from; "" where a point has none."""
    return next((axis for axis in SELECTABLE_AXES[keyword] if axis in axes), "")


def _as_indices(keyword: str, chosen: Any) -> int | list[int] | slice:
    """What was chosen in Python's own whole numbers; those of numpy and torch are ones, too."""
    expected = "a whole number, several, or a slice"
    if isinstance(chosen, slice):
        try:
            range(1)[chosen]  # has whole numbers or nothing, and a step that is not 0
        except (TypeError, ValueError) as error:
            raise InputError(f"{keyword} is {shorten(repr(chosen))}, expected {expected}") from error
        return chosen
    if is_list_like(chosen) and (found := require_integers(keyword, chosen, expected)):
        return found
    return require_integer(keyword, chosen, expected)
