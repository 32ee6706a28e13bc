"""Fits the arguments of edits to the values that they edit: dtype, shape, and the alignment of tokens."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import Argument, InputError, Placeholder, did_you_mean, format_count, join_names, shorten
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
    """How many tokens of the text come before the first one that a trace, or a step of generation, holds."""
    if rows := getattr(source_of, "rows", ()):
        return len(rows[0].before)
    return len(getattr(source_of, "before", ())) - len(getattr(source_of, "read", ()))


def align_tokens(
    patched: Tensor, value: Tensor, context: PointContext, axis: str, selection: Selection, first_position: int
) -> tuple[Tensor, Tensor]:
    """`patched`, whose first token is at `first_position`, with its tokens moved to the positions of those of `value`,
    and a mask of where it has any."""
    dim, keyword = context.axes.index(axis), "position" if axis == "seq" else "source"
    chosen = selection.chosen.get(keyword, slice(None))
    size, end = value.shape[dim], first_position + patched.shape[dim]
    for one in split_indices(chosen):
        if not isinstance(one, slice) and not any(i >= first_position for i in resolve_indices(one, end)):
            has = f"{end - first_position}, from position {first_position} on" if first_position else str(end)
            raise InputError(
                f"{keyword} {one} of {context.requested} does not exist in what is patched in, which has {has}"
            )
    must_match = context.is_first_pass() or (axis == "source" and "cross_attention." in context.name)
    edited_rows = resolve_indices(selection.chosen.get("row", slice(None)), context.batch_size(value))
    rows, positions = [], context.positions(axis)
    for i, row in enumerate(positions):
        target_positions, source_positions = resolve_indices(chosen, text_length(row)), resolve_indices(chosen, end)
        reached = text_length(row) > first_position and (i in edited_rows or len(positions) == 1)
        if len(target_positions) != len(source_positions) and must_match and reached and isinstance(chosen, slice):
            given = f"{format_count(len(source_positions), 'token')} of {context.requested}"
            raise InputError(
                f"{given} are to be patched into {len(target_positions)}: choose which with ",
                Argument(keyword, Placeholder("...")),
            )
        pairs = {one: two - first_position for one, two in zip(target_positions, source_positions)}
        rows.append([pairs.get(i, -1) for i in row[-size:]])
    shape = [1] * value.dim()
    shape[0], shape[dim] = len(rows), size
    index = torch.tensor(rows, device=value.device).view(shape)
    return torch.take_along_dim(patched, index.clamp(min=0), dim=dim), index >= 0


def check_patchable(patched: Tensor, value: Tensor, context: PointContext) -> None:
    """Raises InputError for a tensor with other axes, other sizes (except along tokens), or another dtype."""
    free = ("seq", "source")
    fits = patched.dim() == value.dim() and context.match_dtype(patched, value).dtype == value.dtype
    sizes = zip(context.axes, patched.shape, value.shape)
    if not fits or any(one != two and axis not in free and (axis, one) != ("batch", 1) for axis, one, two in sizes):
        target = f"{context.requested}, which is {context.describe(value)}"
        raise InputError(f"{kind(patched)} cannot be patched into {target}")


def expand_like(operand: Tensor | float, value: Tensor, context: PointContext, name: str) -> Tensor:
    """`operand` in the shape, dtype and device of `value`."""
    try:
        tensor = operand if isinstance(operand, Tensor) else torch.full_like(value, operand)
        expanded = context.match_dtype(tensor, value).to(value.device).expand(value.shape).clone()
    except RuntimeError:  # of another shape, or out of range for this dtype
        expanded = None
    if expanded is None or expanded.dtype != value.dtype:
        description = kind(operand) if isinstance(operand, Tensor) else operand
        raise InputError(
            f"{name} is {description}, and {context.requested} is {context.describe(value)}: give one that fits into it"
        )
    return expanded


def as_tensor_or_number(argument: Any, subject: str) -> Tensor | float:
    """A tensor copied as it is now, or a Python number."""
    if isinstance(argument, Tensor):
        return clone_unless_trainable(argument)
    if not isinstance(argument, Real) or isinstance(argument, bool):
        raise InputError(f"{subject} a tensor or a number, and was given a {type(argument).__name__}")
    return as_number(argument, "the number")


def as_number(argument: Any, name: str) -> float:
    """A Python number, also from a tensor or array of one element."""
    try:
        if isinstance(argument, bool | str):
            raise TypeError
        number = float(argument)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name} is {shorten(repr(argument))}, expected a number") from error
    return argument if isinstance(argument, int) and abs(argument) < 2**63 else number


def traces_by_text(trace: Any) -> list[Mapping[str, Tensor]]:
    """A trace of several texts as one trace for each, without padding."""
    rows = getattr(trace, "rows", ())
    return [trace.row(i) for i in range(len(rows))] if len(rows) > 1 else [trace]


def check_has_point(trace: Mapping[str, Tensor], name: str) -> None:
    """Raises InputError for a trace that does not hold a point."""
    if name not in trace:
        raise InputError(f"what was given has no {name}{did_you_mean(name, trace)}; it has {join_names(trace)}")


def describe(argument: object) -> str:
    """An argument as an edit displays it: a tensor by dtype and shape, a trace by its texts."""
    if isinstance(argument, Tensor):
        return kind(argument)
    if not isinstance(argument, Mapping):
        return str(argument)
    rows = getattr(argument, "rows", ())
    return f"trace of {join_names(repr(row.texts[0]) for row in rows)}" if rows else "trace"
