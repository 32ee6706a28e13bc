"""What is given to an edit, brought to where it goes: its kind, its shape, and its tokens to those of the pass."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import Argument, Blank, InputError, counted, near, several, short
from pellucid.trace.selection import Spot, Where, kind, length, own, parts, taken


def beginning(source_of: Mapping[str, Tensor] | Tensor) -> int:
    """How many tokens of its text stand before the first that a trace, or a step of writing, holds."""
    if rows := getattr(source_of, "rows", ()):
        return len(rows[0].before)
    return len(getattr(source_of, "before", ())) - len(getattr(source_of, "read", ()))


def moved(given: Tensor, now: Tensor, spot: Spot, axis: str, where: Where, begin: int) -> tuple[Tensor, Tensor]:
    """`given`, whose tokens stand from `begin` on, with them moved to where those of `now` stand, and where there are
    such."""
    place, word = spot.axes.index(axis), "position" if axis == "seq" else "source"
    asked = where.chosen.get(word, slice(None))
    size, end = now.shape[place], begin + given.shape[place]
    for one in parts(asked):
        if not isinstance(one, slice) and not any(i >= begin for i in taken(one, end)):
            has = f"{end - begin}, from position {begin} on" if begin else str(end)
            raise InputError(f"{word} {one} of {spot.title} does not exist in what is patched in, which has {has}")
    wholly = spot.fresh() or (axis == "source" and "cross_attention." in spot.name)
    meant = taken(where.chosen.get("row", slice(None)), spot.rows(now))
    rows, places = [], spot.places(axis)
    for i, row in enumerate(places):
        here, there = taken(asked, length(row)), taken(asked, end)
        reached = length(row) > begin and (i in meant or len(places) == 1)
        if len(here) != len(there) and wholly and reached and isinstance(asked, slice):
            many = f"{counted(len(there), 'token')} of {spot.title} are to be patched into {len(here)}"
            raise InputError(f"{many}: choose which with ", Argument(word, Blank("...")))
        pairs = {one: two - begin for one, two in zip(here, there)}
        rows.append([pairs.get(i, -1) for i in row[-size:]])
    shape = [1] * now.dim()
    shape[0], shape[place] = len(rows), size
    index = torch.tensor(rows, device=now.device).view(shape)
    return torch.take_along_dim(given, index.clamp(min=0), dim=place), index >= 0


def check_alike(given: Tensor, now: Tensor, spot: Spot) -> None:
    """Refuses what cannot be patched in: other axes, other sizes apart from tokens, another dtype."""
    free = ("seq", "source")
    fits = given.dim() == now.dim() and spot.fitted(given, now).dtype == now.dtype
    sizes = zip(spot.axes, given.shape, now.shape)
    if not fits or any(one != two and axis not in free and (axis, one) != ("batch", 1) for axis, one, two in sizes):
        raise InputError(f"{kind(given)} was to be patched into {spot.title}, which is {spot.said(now)}")


def shaped(given: Tensor | float, now: Tensor, spot: Spot, what: str) -> Tensor:
    """`given` in the shape of `now`."""
    try:
        tensor = given if isinstance(given, Tensor) else torch.full_like(now, given)
        spread = spot.fitted(tensor, now).to(now.device).expand(now.shape).clone()
    except RuntimeError:  # of another shape, or beyond the numbers of this kind
        spread = None
    if spread is None or spread.dtype != now.dtype:
        said = kind(given) if isinstance(given, Tensor) else given
        raise InputError(f"{what} is {said}, and {spot.title} is {spot.said(now)}: give one that fits into it")
    return spread


def as_given(given: Any, takes: str) -> Tensor | float:
    """A tensor as it is now, a number as Python's own."""
    if isinstance(given, Tensor):
        return own(given)
    if not isinstance(given, Real) or isinstance(given, bool):
        raise InputError(f"{takes} a tensor or a number, and was given a {type(given).__name__}")
    return as_number(given, "the number")


def as_number(given: Any, what: str) -> float:
    """A number as Python's own; a tensor or an array of one is one, too."""
    try:
        if isinstance(given, bool | str):
            raise TypeError
        number = float(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{what} is {short(repr(given))}, expected a number") from error
    return given if isinstance(given, int) and abs(given) < 2**63 else number


def text_by_text(trace: Any) -> list[Mapping[str, Tensor]]:
    """A trace of several texts as one of each, without padding."""
    rows = getattr(trace, "rows", ())
    return [trace.row(i) for i in range(len(rows))] if len(rows) > 1 else [trace]


def check_there(trace: Mapping[str, Tensor], name: str) -> None:
    """Refuses a trace that does not hold a point."""
    if name not in trace:
        raise InputError(f"what was given has no {name}{near(name, trace)}; it has {several(trace)}")


def in_words(given: object) -> str:
    """What was given, as an edit says it: a tensor by its kind, a trace by its texts."""
    if isinstance(given, Tensor):
        return kind(given)
    if not isinstance(given, Mapping):
        return str(given)
    rows = getattr(given, "rows", ())
    return f"trace of {several(repr(row.texts[0]) for row in rows)}" if rows else "trace"
