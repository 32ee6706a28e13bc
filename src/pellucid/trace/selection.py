"""Which part of a point an edit reaches: rows, heads, positions, neurons, each by the axis that it chooses from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from pellucid.blocks.checks import kind_of as kind
from pellucid.config.checks import is_several, number_of, numbers_of
from pellucid.errors import InputError, near, short
from pellucid.models import Standing
from pellucid.trace.axes import is_turned, turned
from pellucid.trace.points import Axes

Some = int | Sequence[int] | slice
"""One index, several, or a slice, negative ones from the end."""

Chosen = Some | None
"""The same; None for all."""

CHOOSES: dict[str, Axes] = {
    "row": ("batch",),
    "head": ("heads", "key_heads"),
    "position": ("seq",),
    "source": ("source",),
    "neuron": ("inner", "hidden", "width"),
}
"""The word that chooses, and the axes that it chooses from."""


@dataclass(frozen=True)
class Spot:
    """A point at which a value is told, and where the tokens of the pass stand.

    name: the whole one.  axes: those of the value.  bits: of the numbers of the model's tables, 8 or 4; None of real
    ones.  called: the name of another library by which the point was asked for, with the axes that it has there.
    """

    name: str
    axes: Axes
    standing: Standing
    bits: int | None = None
    called: str = ""

    @property
    def title(self) -> str:
        """What the point is called by the one who asked for it."""
        return self.called or self.name

    def of(self, trace: Mapping[str, Tensor]) -> Tensor:
        """What a trace holds of this point, on the axes of `value`."""
        return turned(trace[self.name]) if self.called and is_turned(self.name) else trace[self.name]

    def places(self, axis: str) -> list[list[int]]:
        """Where the tokens along `seq` or `source` stand in their texts, by row; -1 for padding. One row for all
        where they are alike."""
        across = "cross_attention." in self.name
        standing = self.standing
        found = standing.reads if axis == "seq" else standing.across if across else standing.sources
        return found.tolist()

    def rows(self, value: Tensor) -> int:
        """How many texts a value is of, also where it is one for all of them."""
        return max(len(value), self.standing.rows)

    def fresh(self) -> bool:
        """Whether the pass begins at the beginning of its texts."""
        return any(0 in row for row in self.standing.reads.tolist())

    def fitted(self, given: Tensor, value: Tensor) -> Tensor:
        """`given` in the kind of `value` where a model of few bits has both: how many positions a pass reads decides
        whether a point is float32 or bfloat16."""
        both = {given.dtype, value.dtype} == {torch.float32, torch.bfloat16}
        return given.to(value.dtype) if self.bits and both else given

    def said(self, value: Tensor) -> str:
        """`float32[1, 12, 5, 5] (batch, heads, seq, source)`"""
        return f"{kind(value)} ({', '.join(self.axes)})"


@dataclass(frozen=True, eq=False)
class Where:
    """A choice along axes. See `pellucid.edits`.

    chosen: what was asked for, by its word, in the order of CHOOSES; what is not there is not chosen from.
    """

    chosen: dict[str, Some]

    @classmethod
    def of(cls, asked: Mapping[str, Chosen]) -> Self:
        """What was asked for by words, of which each must be known."""
        for word in asked:
            if word not in CHOOSES:
                said = short(repr(word))
                raise InputError(f"an edit is placed by {', '.join(CHOOSES)}, and not by {said}{near(word, CHOOSES)}")
        return cls({word: _whole(word, asked[word]) for word in CHOOSES if asked.get(word) is not None})

    def check(self, name: str, axes: Axes, sizes: dict[str, int]) -> None:
        """Refuses axes that the point does not have, and indices beyond the sizes that are known beforehand."""
        for word, chosen in self.chosen.items():
            axis = _axis(word, axes)
            if not axis:
                said = short(shown(chosen))
                raise InputError(f"{word}={said}: {name} has no {word}s, its axes are {', '.join(axes)}")
            if axis in sizes and (lost := beyond(chosen, sizes[axis])) is not None:
                what = f"key and value {word}s" if axis == "key_heads" else f"{word}s"
                raise InputError(f"{word}={short(shown(lost))} does not exist: {name} has {sizes[axis]} {what}")

    def mask(self, value: Tensor, spot: Spot) -> Tensor | None:
        """Bool[Tensor, "..."] that spreads over `value`, True where it is chosen; None where all of it is.

        Padding is no source, chosen or not: else what is looked at would depend on the texts beside this one.
        """
        mask, sources = None, {"source": slice(None)} if "source" in spot.axes else {}
        for word, chosen in (sources | self.chosen).items():
            part = _part(word, chosen, value, spot).to(value.device)
            mask = part if mask is None else mask & part
        return mask

    def reach(self, value: Tensor, spot: Spot) -> dict[str, int]:
        """How far each axis that is chosen from reaches: rows of the batch, tokens of the longest text so far."""
        return {word: max(size for _, size in _along(word, value, spot)) for word in self.chosen}

    def met(self, value: Tensor, spot: Spot) -> dict[str, set[str]]:
        """Which of the indices that are chosen, as they are shown, stand in `value`."""
        found = {}
        for word, chosen in self.chosen.items():
            rows = [(set(places), size) for places, size in _along(word, value, spot)]
            found[word] = {shown(one) for one in parts(chosen) if any(here & {*taken(one, n)} for here, n in rows)}
        return found

    def __str__(self) -> str:
        return ", ".join(f"{word}={shown(chosen)}" for word, chosen in self.chosen.items())


def beyond(chosen: Some, size: int) -> int | slice | None:
    """The first that was chosen and does not exist among `size`; a slice where it holds nothing."""
    return next((one for one in parts(chosen) if not taken(one, size)), None)


def taken(chosen: Some, size: int) -> list[int]:
    """The places that are chosen among `size`, counted from 0, in their order; what does not exist left out."""
    if isinstance(chosen, slice):
        return list(range(size)[chosen])
    return [i % size for i in ([chosen] if isinstance(chosen, int) else chosen) if -size <= i < size]


def length(places: Sequence[int]) -> int:
    """How many tokens of its text stand there when a row has been read so far."""
    return max(places, default=-1) + 1


def shown(chosen: Some) -> str:
    """`5`, `[1, 2]` or `1:`"""
    if not isinstance(chosen, slice):
        return str(chosen if isinstance(chosen, int) else list(chosen))
    ends = ("" if end is None else str(end) for end in (chosen.start, chosen.stop))
    return ":".join(ends) + ("" if chosen.step is None else f":{chosen.step}")


def parts(chosen: Some) -> Sequence[int | slice]:
    """Index by index; a slice is one part."""
    return [chosen] if isinstance(chosen, int | slice) else chosen


def own(given: Any) -> Any:
    """A tensor that somebody gave, or a dictionary of such, as it is now, whatever he writes into it later; one that
    learns stays itself, since it is written into by whoever learns it. All else, such as a trace, as it is."""
    if type(given) is dict:
        return {name: own(one) for name, one in given.items()}
    return given.clone() if isinstance(given, Tensor) and not given.requires_grad else given


def _part(word: str, chosen: Some, value: Tensor, spot: Spot) -> Tensor:
    """True along one axis where it is chosen, of as many dimensions as `value`."""
    wanted = [(places, set(taken(chosen, size))) for places, size in _along(word, value, spot)]
    hits = torch.tensor([[i in them for i in places] for places, them in wanted], device="cpu")
    axis, shape = _axis(word, spot.axes), [1] * value.dim()
    if axis == "batch":
        shape[0] = hits.shape[1]
    else:
        shape[0], shape[spot.axes.index(axis)] = hits.shape
    return hits.view(shape)


def _along(word: str, value: Tensor, spot: Spot) -> list[tuple[list[int], int]]:
    """The places along the axis of a word, and how many there are in the text so far; by row where rows differ."""
    axis = _axis(word, spot.axes)
    size = spot.rows(value) if axis == "batch" else value.shape[spot.axes.index(axis)]
    if axis in ("seq", "source"):
        return [(row[-size:], length(row)) for row in spot.places(axis)]
    return [(list(range(size)), size)]


def _axis(word: str, axes: Axes) -> str:
    """The axis that a word chooses from; "" where a point has none."""
    return next((axis for axis in CHOOSES[word] if axis in axes), "")


def _whole(word: str, chosen: Any) -> int | list[int] | slice:
    """What was chosen in Python's own whole numbers; those of numpy and torch are ones, too."""
    expected = "a whole number, several, or a slice"
    if isinstance(chosen, slice):
        try:
            range(1)[chosen]  # has whole numbers or nothing, and a step that is not 0
        except (TypeError, ValueError) as error:
            raise InputError(f"{word} is {short(repr(chosen))}, expected {expected}") from error
        return chosen
    if is_several(chosen) and (found := numbers_of(word, chosen, expected)):
        return found
    return number_of(word, chosen, expected)
