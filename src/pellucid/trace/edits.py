"""What can be done to a number on the way: set it to nothing, to a value, to that of another pass; add, scale.

Each edit says where it reaches by words that all of them know:

    head      of `heads`, or of key and value heads where a point has those (`key`, `value`)
    position  of the tokens that are read, counted over the text's own tokens from 0; negative from its last token
    source    of the tokens that are looked at, in `scores` and `weights`
    neuron    of the inner width in `feed_forward`, of the stream elsewhere
    row       of the texts of a batch

each one index, several, or a slice. A text that is written grows: position 3 is its fourth token, whichever pass reads
it, and position -1 is the last token at every pass, so each new one. Padding is never a source.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor

from pellucid.blocks.hooks import is_differentiated
from pellucid.errors import Argument, Blank, InputError, counted, near, several, short
from pellucid.trace.points import Axes
from pellucid.trace.where import Chosen, Spot, Where, kind, length, own, parts, taken

Change = Callable[[Tensor, Spot], Tensor]
"""(the value, where it is told)  ->  another of the same shape, or that spreads to it"""


@dataclass(frozen=True)
class Edit:
    """One change of the numbers at a point. Made by `zero`, `fixed`, `add`, `scale`, `patch`, `mean` and `change`.

    said: the change in words.  change: its arithmetic.  where: the part that it reaches.
    fits: refuses a point that it cannot change, before anything runs.
    """

    said: str
    change: Change
    where: Where
    fits: Callable[[str, Axes], None] | None = None

    def check(self, name: str, axes: Axes, sizes: dict[str, int]) -> None:
        """Refuses a point that this does not fit."""
        self.where.check(name, axes, sizes)
        if self.fits is not None:
            self.fits(name, axes)

    def __call__(self, value: Tensor, spot: Spot) -> Tensor:
        """The value to go on with; `value` itself where no number changes and no derivative is asked for."""
        new, mask = self.change(value, spot), self.where.mask(value, spot)
        new = new if mask is None else torch.where(mask, new, value)
        return new if is_differentiated(new, value) or not torch.equal(new, value) else value

    def at_row(self, row: int) -> Self:
        """The same for one text of a batch."""
        return replace(self, where=replace(self.where, row=row))

    def __str__(self) -> str:
        inner, places = self.said.partition("(")[2].removesuffix(")"), str(self.where)
        return f"{self.said.partition('(')[0]}({', '.join(part for part in (inner, places) if part)})"

    __repr__ = __str__

    def __copy__(self) -> Self:
        return self  # nothing of it changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError(f"{self} is a function and cannot be pickled: make the edit where it is used")


def zero(**where: Chosen) -> Edit:
    """0 in place of every number. Scores of 0 are still looked at: to look away, zero `weights`, or fix scores at -inf.
    What a mask forbids, padding and a decoder's later tokens, stays forbidden whatever its scores become.

    Rows of edited `weights` are multiplied as they are: they need not sum to 1.
    where: `head`, `position`, `source`, `neuron`, `row`.

    >>> str(zero(head=5))
    'zero(head=5)'
    """
    return Edit("zero()", lambda value, spot: torch.zeros_like(value), Where.of(where))


def fixed(value: Tensor | float, **where: Chosen) -> Edit:
    """This value in place of what arises.

    value: a number, or a tensor of the point's dtype and shape, or of one that spreads to it: Float[Tensor, "hidden"]
        fits a stream, Float[Tensor, "seq source"] the weights of every head.  where: as for `zero`.
    """
    value = _given(value, "fixed takes")
    return Edit(f"fixed({_said(value)})", lambda now, spot: _like(value, now, spot, "the value"), Where.of(where))


def add(vector: Tensor | float, factor: float = 1.0, **where: Chosen) -> Edit:
    """What arises, plus `factor` times a vector: steering (Turner et al., 2023, arXiv:2308.10248).

    vector: a number, or a tensor of the point's dtype that spreads to its shape.  where: as for `zero`.
    """
    vector, factor = _given(vector, "add takes"), _number(factor, "the factor of add")
    said = f"add({_said(vector)})" if factor == 1.0 else f"add({_said(vector)}, factor={factor})"
    return Edit(said, lambda now, spot: now + _like(vector, now, spot, "the vector") * factor, Where.of(where))


def scale(factor: float, **where: Chosen) -> Edit:
    """What arises, times a number.  where: as for `zero`."""
    factor = _number(factor, "the factor of scale")
    return Edit(f"scale({factor})", lambda now, spot: now * factor, Where.of(where))


def change(function: Callable[[Tensor], Tensor], **where: Chosen) -> Edit:
    """What a function answers to the whole value, padding included: a tensor of the same shape and dtype. A plain
    function in place of an edit means the same.  where: the part of its answer that is taken; as for `zero`."""
    if not callable(function):
        raise InputError(f"change takes a function, and was given a {type(function).__name__}")
    name = getattr(function, "__name__", type(function).__name__)

    def changed(now: Tensor, spot: Spot) -> Tensor:
        try:
            new = function(now.clone())  # a copy, which it may also write into
        except RecursionError as error:
            raise InputError(
                f"{name} at {spot.name} never ends; what it asks of the model that it edits, ask before the edit"
            ) from error
        if not isinstance(new, Tensor):
            raise InputError(f"{name} at {spot.name} answered {type(new).__name__}, expected {spot.said(now)}")
        if (new := new.to_dense()).shape != now.shape or spot.fitted(new, now).dtype != now.dtype:
            raise InputError(f"{name} at {spot.name} answered {kind(new)}, expected {spot.said(now)}")
        return spot.fitted(new, now).to(now.device, copy=True)  # what the function keeps, it may write into later

    return Edit(f"change({name})", changed, Where.of(where))


def mean(*traces: Mapping[str, Tensor], **where: Chosen) -> Edit:
    """The mean of the same point over all tokens of these traces, in place of what arises: a head, say, that says what
    it says on average (mean ablation; Wang et al., 2022, arXiv:2211.00593).  where: as for `zero`."""
    if not traces or not all(isinstance(trace, Mapping) for trace in traces):
        raise InputError("mean needs a trace, or several, to take the mean of")

    def fits(name: str, axes: Axes) -> None:
        if "source" in axes:
            raise InputError(f"{name} has no mean: its sources are other tokens in every text; take attention.heads")
        for trace in traces:
            _there(trace, name)

    def changed(now: Tensor, spot: Spot) -> Tensor:
        tokens = spot.axes.index("seq") if "seq" in spot.axes else 0
        each = (text[spot.name] for trace in traces for text in _texts(trace))
        rows = [value.movedim(tokens, 0).flatten(0, min(1, tokens)) for value in each]
        return _like(torch.cat(rows).mean(dim=0).unsqueeze(max(tokens - 1, 0)), now, spot, "the mean")

    return Edit(f"mean({len(traces)} trace{'s' * (len(traces) > 1)})", changed, Where.of(where), fits)


def patch(source_of: Mapping[str, Tensor] | Tensor, **where: Chosen) -> Edit:
    """The value of the same point in another pass (activation patching; Meng et al., 2022, arXiv:2202.05262).

    source_of: a `Trace` that holds the point, of one text or of as many as the batch; or the tensor itself, of the
        point's dtype and axes.  where: as for `zero`.

    Positions stand for each other as they are chosen: position 3 for position 3, -1 for -1; without a choice, and in a
    slice, both texts need equally many. What is written behind the tokens of the trace is left as it is.
    """
    chosen = Where.of(where)
    if not isinstance(source_of, Mapping | Tensor):
        raise InputError(f"patch takes a trace or a tensor, and was given a {type(source_of).__name__}")
    source_of = own(source_of)
    if len({(len(row.before), len(row.ids), len(row.target_ids)) for row in getattr(source_of, "rows", ())}) > 1:
        raise InputError("patch takes the trace of one text, or of texts of one length: choose one with trace.row(0)")

    def fits(name: str, axes: Axes) -> None:
        if not isinstance(source_of, Tensor):
            _there(source_of, name)

    def changed(now: Tensor, spot: Spot) -> Tensor:
        given = source_of if isinstance(source_of, Tensor) else source_of[spot.name]
        _alike(given, now, spot)
        given, known = spot.fitted(given, now).to(now.device), torch.ones((), dtype=torch.bool, device=now.device)
        for axis in ("seq", "source"):
            if axis in spot.axes:
                given, there = _moved(given, now, spot, axis, chosen, _begin(source_of) if axis == "seq" else 0)
                known = known & there
        return torch.where(known, given, now)

    return Edit(f"patch({_said(source_of)})", changed, chosen, fits)


def edit_of(given: Any) -> Edit:
    """An edit as it is; a plain function as `change`, a tensor or a number as `fixed`."""
    if isinstance(given, Edit):
        return given
    if isinstance(given, Tensor) or (isinstance(given, Real) and not isinstance(given, bool)):
        return fixed(given if isinstance(given, Tensor) else _number(given, "the number"))
    for maker in (zero, fixed, add, scale, mean, patch, change):
        if given is maker:
            raise InputError(f"{maker.__name__} is called to make an edit: {maker.__name__}(...)")
    if callable(given):
        return change(given)
    raise InputError(f"an edit is {type(given).__name__}, expected one of pellucid.edits, a function or a tensor")


def _begin(source_of: Mapping[str, Tensor] | Tensor) -> int:
    """How many tokens of its text stand before the first that a trace, or a step of writing, holds."""
    if rows := getattr(source_of, "rows", ()):
        return len(rows[0].before)
    return len(getattr(source_of, "before", ())) - len(getattr(source_of, "read", ()))


def _moved(given: Tensor, now: Tensor, spot: Spot, axis: str, chosen: Where, begin: int) -> tuple[Tensor, Tensor]:
    """`given`, whose tokens stand from `begin` on, with them moved to where those of `now` stand, and where there are
    such."""
    place, word = spot.axes.index(axis), "position" if axis == "seq" else "source"
    asked: int | Sequence[int] | slice = chosen.chosen().get(word, slice(None))
    size, end = now.shape[place], begin + given.shape[place]
    for one in parts(asked):
        if not isinstance(one, slice) and not any(i >= begin for i in taken(one, end)):
            has = f"{end - begin}, from position {begin} on" if begin else str(end)
            raise InputError(f"{word} {one} of {spot.name} does not exist in what is patched in, which has {has}")
    wholly = spot.fresh() or (axis == "source" and "cross_attention." in spot.name)
    meant = None if chosen.row is None else taken(chosen.row, spot.rows(now))
    rows, places = [], spot.places(axis)
    for i, row in enumerate(places):
        here, there = taken(asked, length(row)), taken(asked, end)
        reached = length(row) > begin and (meant is None or i in meant or len(places) == 1)
        if len(here) != len(there) and wholly and reached and isinstance(asked, slice):
            many = f"{counted(len(there), 'token')} of {spot.name} are to be patched into {len(here)}"
            raise InputError(f"{many}: choose which with ", Argument(word, Blank("...")))
        pairs = {one: two - begin for one, two in zip(here, there)}
        rows.append([pairs.get(i, -1) for i in row[-size:]])
    shape = [1] * now.dim()
    shape[0], shape[place] = len(rows), size
    index = torch.tensor(rows, device=now.device).view(shape)
    return torch.take_along_dim(given, index.clamp(min=0), dim=place), index >= 0


def _alike(given: Tensor, now: Tensor, spot: Spot) -> None:
    """Refuses what cannot be patched in: other axes, other sizes apart from tokens, another dtype."""
    free = ("seq", "source")
    fits = given.dim() == now.dim() and spot.fitted(given, now).dtype == now.dtype
    sizes = zip(spot.axes, given.shape, now.shape)
    if not fits or any(one != two and axis not in free and (axis, one) != ("batch", 1) for axis, one, two in sizes):
        raise InputError(f"{kind(given)} was to be patched into {spot.name}, which is {spot.said(now)}")


def _like(given: Tensor | float, now: Tensor, spot: Spot, what: str) -> Tensor:
    """`given` in the shape of `now`."""
    try:
        tensor = given if isinstance(given, Tensor) else torch.full_like(now, given)
        spread = spot.fitted(tensor, now).to(now.device).expand(now.shape).clone()
    except RuntimeError:  # of another shape, or beyond the numbers of this kind
        spread = None
    if spread is None or spread.dtype != now.dtype:
        said = kind(given) if isinstance(given, Tensor) else given
        raise InputError(f"{what} is {said}, and {spot.name} is {spot.said(now)}: give one that fits into it")
    return spread


def _given(given: Any, takes: str) -> Tensor | float:
    """A tensor as it is now, a number as Python's own."""
    if isinstance(given, Tensor):
        return own(given)
    if not isinstance(given, Real) or isinstance(given, bool):
        raise InputError(f"{takes} a tensor or a number, and was given a {type(given).__name__}")
    return _number(given, "the number")


def _number(given: Any, what: str) -> float:
    """A number as Python's own; a tensor or an array of one is one, too."""
    try:
        if isinstance(given, bool | str):
            raise TypeError
        number = float(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{what} is {short(repr(given))}, expected a number") from error
    return given if isinstance(given, int) and abs(given) < 2**63 else number


def _texts(trace: Any) -> list[Mapping[str, Tensor]]:
    """A trace of several texts as one of each, without padding."""
    rows = getattr(trace, "rows", ())
    return [trace.row(i) for i in range(len(rows))] if len(rows) > 1 else [trace]


def _there(trace: Mapping[str, Tensor], name: str) -> None:
    if name not in trace:
        raise InputError(f"what was given has no {name}{near(name, trace)}; it has {several(trace)}")


def _said(given: object) -> str:
    if isinstance(given, Tensor):
        return kind(given)
    if not isinstance(given, Mapping):
        return str(given)
    rows = getattr(given, "rows", ())
    return f"trace of {several(repr(row.texts[0]) for row in rows)}" if rows else "trace"
