"""Checks conditions against the rows: unknown columns, values of another type, deletions that would take everything."""

import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from pellucid.errors import Argument, InputError, did_you_mean, join_names
from pellucid.search.conditions import Condition, number_of
from pellucid.search.dates import canonical_date
from pellucid.search.opened_generation import OpenSegment

log = logging.getLogger("pellucid")

_YEAR = re.compile("[0-9]{4}-")
"""The beginning of a date or a month."""

_NEAR_DATE = re.compile("[0-9]{4}-[0-9]{1,2}(?:-[0-9]{1,2})?")
"""A month, or a date except for missing zeros or an impossible day."""


def check_columns(segments: Sequence[OpenSegment], conditions: Sequence[Condition]) -> None:
    """Where the conditions match no row: raises InputError for an unknown column, and logs a value that no row has, or
    of a type that no row has."""
    if not conditions or not segments or _any_row(segments, conditions):
        return
    known = {column for segment in segments for column in segment.entries.columns}
    for condition in conditions:
        if known.isdisjoint(
            form for segment in segments for form in segment.entries.column_spellings(condition.column)
        ):
            raise InputError(Argument("where"), f": {unknown_column_message(condition.column, known)}")
        if condition.operator == "=" and not _any_row(segments, [condition]):
            missing_values = sorted({str(one) for one in condition.values})
            hint = did_you_mean(missing_values[0], _values(segments, condition)) if len(missing_values) == 1 else ""
            log.warning("no row has %s = %s%s", condition.column, join_names(missing_values), hint)
        if condition.operator[0] in "<>":
            operand, values = condition.values[0], _values(segments, condition) - {""}
            of_numbers = number_of(operand) is not None
            if canonical_date(operand) and not any(_YEAR.match(value) for value in values):
                log.warning("%s holds no date as 2026-01-02, and is compared with %r", condition.column, operand)
            elif not any((number_of(value) is not None) == of_numbers for value in values):
                kind = "no number" if of_numbers else "only numbers"
                log.warning("%s holds %s, and is compared with %r", condition.column, kind, operand)


def unknown_column_message(column: str, known: Collection[str]) -> str:
    """The message that no row has a column, with those that exist."""
    there = f"there are {join_names(sorted(known))}" if known else "rows have no columns beside the text"
    return f"no row has {column!r}{did_you_mean(column, known)}; {there}"


def warn_of_misread_dates(segments: Sequence[OpenSegment], conditions: Sequence[Condition]) -> None:
    """Logs conditions that order dates and text that is not a date, even where rows match."""
    for condition in conditions:
        if message := _misread_date_message(segments, condition):
            log.warning("%s", message)


def check_deletion(segments: Sequence[OpenSegment], conditions: Sequence[Condition]) -> None:
    """As `check_columns`, and raises InputError for a deletion by an order of dates and of text that is not a date, or
    by "!=" a value that no row has: misspelt, it would delete everything."""
    check_columns(segments, conditions)
    for condition in conditions:
        if message := _misread_date_message(segments, condition):
            raise InputError(Argument("where"), f": {message}: nothing was deleted")
        alike = replace(condition, operator="=")
        named = condition.operator == "!=" and condition.values[0] != ""
        if named and not _any_row(segments, [alike]):
            same, column = join_names(map(str, condition.values)), condition.column
            hint = did_you_mean(condition.values[0], _values(segments, condition))
            advice = "so it excludes no row: correct it, or leave the condition out; nothing was deleted"
            raise InputError(Argument("where"), f": no row has {column} = {same}{hint}, {advice}")


def _misread_date_message(segments: Sequence[OpenSegment], condition: Condition) -> str | None:
    value = condition.values[0]
    if condition.operator[0] in "<>" and number_of(value) is None and canonical_date(value) is None:
        known = _values(segments, condition) - {""}
        if known and all(map(canonical_date, known)):
            return f"{condition.column} holds only dates, and is compared with {value!r}"
        others = sorted(one for one in known if not _YEAR.match(one))
        if _NEAR_DATE.fullmatch(str(value)) and others and any(map(canonical_date, known)):
            return f"{condition.column} holds {others[0]!r}, and is compared with {value!r}: give a whole date"
    return None


def _values(segments: Sequence[OpenSegment], condition: Condition) -> set[str]:
    """Some of the values of a column, as text."""
    rows = [segment.entries for segment in segments]
    return {value for one in rows for name in one.column_spellings(condition.column) for value in one.values(name)}


def _any_row(segments: Sequence[OpenSegment], conditions: Sequence[Condition]) -> bool:
    """Whether a live row meets all conditions."""
    return any(segment.matching_mask(conditions).any() for segment in segments)
