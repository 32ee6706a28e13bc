"""What is given to an edit, brought to where it goes: its kind, its shape, and its tokens to those of the pass."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import Argument, InputError, Placeholder, counted, did_you_mean, join_names, shorten
from pellucid.trace.selection import (
    PointContext,
    Selection,
    clone_unless_trainable,
    kind,
    resolve_indices,
    split_indices,
    text_length,
)


def tokens_before(source_of: Mapping[str, Tensor] | Tensor) -> int:
    """How many tokens of its text stand before the first that a trace, or a step of writing, holds."""
    if rows := getattr(source_of, "rows", ()):
        return len(rows[0].before)
    return len(getattr(source_of, "before", ())) - len(getattr(source_of, "read", ()))


def align_tokens(
    patched: Tensor, value: Tensor, context: PointContext, axis: str, where: Selection, first_position: int
) -> tuple[Tensor, Tensor]:
    """`patched`, whose tokens stand from `first_position` on, with them moved to where those of `value` stand, and
    where there are such."""
    place, keyword = context.axes.index(axis), "position" if axis == "seq" else "source"
    chosen = where.chosen.get(keyword, slice(None))
    size, end = value.shape[place], first_position + patched.shape[place]
    for one in split_indices(chosen):
        if not isinstance(one, slice) and not any(i >= first_position for i in resolve_indices(one, end)):
            has = f"{end - first_position}, from position {first_position} on" if first_position else str(end)
            raise InputError(
                f"{keyword} {one} of {context.display_name} does not exist in what is patched in, which has {has}"
            )
    wholly = context.is_first_pass() or (axis == "source" and "cross_attention." in context.name)
    edited_rows = resolve_indices(where.chosen.get("row", slice(None)), context.batch_size(value))
    rows, positions = [], context.positions(axis)
    for i, row in enumerate(positions):
        here, there = resolve_indices(chosen, text_length(row)), resolve_indices(chosen, end)
        reached = text_length(row) > first_position and (i in edited_rows or len(positions) == 1)
        if len(here) != len(there) and wholly and reached and isinstance(chosen, slice):
            many = f"{counted(len(there), 'token')} of {context.display_name} are to be patched into {len(here)}"
            raise InputError(f"{many}: choose which with ", Argument(keyword, Placeholder("...")))
        pairs = {one: two - first_position for one, two in zip(here, there)}
        rows.append([pairs.get(i, -1) for i in row[-size:]])
    shape = [1] * value.dim()
    shape[0], shape[place] = len(rows), size
    index = torch.tensor(rows, device=value.device).view(shape)
    return torch.take_along_dim(patched, index.clamp(min=0), dim=place), index >= 0


def check_patchable(patched: Tensor, value: Tensor, context: PointContext) -> None:
    """Refuses what cannot be patched in: other axes, other sizes apart from tokens, another dtype."""
    free = ("seq", "source")
    fits = patched.dim() == value.dim() and context.match_dtype(patched, value).dtype == value.dtype
    sizes = zip(context.axes, patched.shape, value.shape)
    if not fits or any(one != two and axis not in free and (axis, one) != ("batch", 1) for axis, one, two in sizes):
        target = f"{context.display_name}, which is {context.describe(value)}"
        raise InputError(f"{kind(patched)} was to be patched into {target}")


def expand_like(given: Tensor | float, value: Tensor, context: PointContext, what: str) -> Tensor:
    """`given` in the shape of `value`."""
    try:
        tensor = given if isinstance(given, Tensor) else torch.full_like(value, given)
        expanded = context.match_dtype(tensor, value).to(value.device).expand(value.shape).clone()
    except RuntimeError:  # of another shape, or beyond the numbers of this kind
        expanded = None
    if expanded is None or expanded.dtype != value.dtype:
        found = kind(given) if isinstance(given, Tensor) else given
        raise InputError(
            f"{what} is {found}, and {context.display_name} is {context.describe(value)}: give one that fits into it"
        )
    return expanded


def as_tensor_or_number(given: Any, takes: str) -> Tensor | float:
    """A tensor as it is now, a number as Python's own."""
    if isinstance(given, Tensor):
        return clone_unless_trainable(given)
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
        raise InputError(f"{what} is {shorten(repr(given))}, expected a number") from error
    return given if isinstance(given, int) and abs(given) < 2**63 else number


def traces_by_text(trace: Any) -> list[Mapping[str, Tensor]]:
    """A trace of several texts as one of each, without padding."""
    rows = getattr(trace, "rows", ())
    return [trace.row(i) for i in range(len(rows))] if len(rows) > 1 else [trace]


def check_has_point(trace: Mapping[str, Tensor], name: str) -> None:
    """Refuses a trace that does not hold a point."""
    if name not in trace:
        raise InputError(f"what was given has no {name}{did_you_mean(name, trace)}; it has {join_names(trace)}")


def describe(given: object) -> str:
    """What was given, as an edit says it: a tensor by its kind, a trace by its texts."""
    if isinstance(given, Tensor):
        return kind(given)
    if not isinstance(given, Mapping):
        return str(given)
    rows = getattr(given, "rows", ())
    return f"trace of {join_names(repr(row.texts[0]) for row in rows)}" if rows else "trace"
