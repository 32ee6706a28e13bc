"""What rows must fit, by their other columns."""

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.errors import Argument, InputError
from pellucid.text.cut import whole_characters

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
WHERE = Argument("where")
_SIGN = re.compile(r"!=|<=|>=|[=!<>~]")
_MORE = re.compile(
    r"(?:\b(?:and|or)\b|&&|\|\||[,;])\s*([^\s,;=!<>~][^,;=!<>~]{0,200}(?:!=|<=|>=|[=<>~]).*)", re.IGNORECASE
)
"""A second condition in the value of one: whoever types it means two, and as a value it would fit nearly everything."""

MOST, MOST_VALUES = 100, 10_000
"""Conditions that must hold together, and the values of one: SQLite does not take many more."""

MOST_LETTERS, MOST_BITS = 1_000, 10_000
"""Of a column's name, and of a number."""


@dataclass(frozen=True)
class Condition:
    """One column compared with a value. Numbers are compared as numbers where both are some, else as texts; which of
    two comes first is asked of two numbers, or of two texts that are none.

    operator: "=", "!=", "<", "<=", ">", ">=", or "~" for a text that holds the value, upper and lower case alike. A row
        without the column, or with null in it, fits none of them, "!=" neither.
    values: one, or several of which one must be equal.
    """

    column: str
    operator: str
    values: tuple[Any, ...]

    def sql(self) -> tuple[str, list[Any]]:
        """A clause, and the values that stand for its question marks; no value is ever part of the clause."""
        column, kind, path = *_EXTRACTED, f'$."{self.column}"'
        if any(sign in self.column for sign in '"\\\0'):  # a path of SQLite cannot say them
            column, kind, path = *_LOOKED_UP, self.column
        if self.operator == "~":
            return f"instr({FOLDED}({column}), ?) > 0", [path, folded(str(self.values[0]))]
        number = f"{NUMBER}({column})"
        numbers = [number_of(value) for value in self.values]
        if self.operator in ("=", "!="):
            marks = ",".join("?" * len(self.values))
            clause, given = f"CAST({column} AS TEXT) IN ({marks})", [path, *map(_text, self.values)]
            if all(one is not None for one in numbers):
                clause, given = f"({clause} OR IFNULL({number} IN ({marks}), 0))", [*given, path, *numbers]
            if truths := [str(value).lower() for value in self.values if str(value).lower() in ("true", "false")]:
                marks = ",".join("?" * len(truths))
                clause, given = f"({clause} OR {kind} IN ({marks}))", [*given, path, *truths]
            return (clause if self.operator == "=" else f"NOT {clause}"), given
        if numbers[0] is not None:
            return f"{number} {self.operator} ?", [path, numbers[0]]
        text = f"CAST({column} AS TEXT)"  # of texts that are some, and no numbers: "2005" is not less than "O2000"
        clause = f"({text} {self.operator} ? AND {text} != '' AND {number} IS NULL)"
        return clause, [path, str(self.values[0]), path, path]


_EXTRACTED = "json_extract(metadata, ?)", "json_type(metadata, ?)"
_LOOKED_UP = (
    "(SELECT value FROM json_each(metadata) WHERE key = ?)",
    "(SELECT type FROM json_each(metadata) WHERE key = ?)",
)
"""How SQLite says the value of a column, and what kind of JSON it is."""

NUMBER, FOLDED = "number_of", "folded"
"""The names by which SQLite calls the functions that it is lent."""


def number_of(value: Any) -> float | None:
    """A value as a number, where all of it is one: "12", " -1.5e3 ", 7; None for "3M", "2026-01-02", "inf", "1_000"."""
    if isinstance(value, str) and ("_" in value or not any(sign.isdigit() for sign in value)):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def folded(value: Any) -> str | None:
    """A value as a text without upper and lower case, in every script; its accents are one letter with it."""
    if value is None:
        return None
    text = str(value)
    return (
        text.lower() if text.isascii() else unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
    )


LENT = {NUMBER: number_of, FOLDED: folded}
"""What SQLite is lent; each takes one value."""


def conditions(where: Mapping[str, Any] | str | list[str] | tuple[str, ...] | None) -> list[Condition]:
    """Conditions as people write them.

    where: {"sector": "Finance"}, {"sector": ["Finance", "Energy"]}, {"ipoyear": {">=": 2000}}; or a text such as
        "ipoyear >= 2000", or several of them. All must hold.
    """
    if where is None:
        return []
    if not isinstance(where, Mapping | str | list | tuple):
        raise InputError(WHERE, f" is {type(where).__name__}, expected a text, several, or a mapping")
    if isinstance(where, Mapping):
        named = ((_named(whole_characters(str(column))), wanted) for column, wanted in where.items())
        found = [condition for column, wanted in named for condition in _wanted(column, wanted)]
    else:
        found = [typed(str(one)) for one in ([where] if isinstance(where, str) else where)]
    if len(found) > MOST:
        raise InputError(WHERE, f" has {len(found):,} conditions, expected at most {MOST}")
    return found


def typed(text: str) -> Condition:
    """A condition that somebody typed: "sector = Finance"."""
    text = whole_characters(text)
    sign = _SIGN.search(text)
    column, value = (text[: sign.start()].strip(), text[sign.end() :].strip()) if sign else ("", "")
    if sign is None or sign[0] not in OPERATORS or not column:
        known = " ".join(OPERATORS)
        raise InputError(f"cannot read the condition {_short(text)!r}, expected a column, one of {known}, a value")
    if value[:1] in ("=", "<", ">", "~"):
        raise InputError(
            f"cannot read the condition {_short(text)!r}: {sign[0]}{value[0]} is no operator, expected one of "
            f"{' '.join(OPERATORS)}"
        )
    if not value and sign[0][0] in "<>":
        raise InputError(f"cannot read the condition {_short(text)!r}: no value stands behind {sign[0]}")
    if more := _MORE.search(value):
        raise InputError(
            f"the condition {_short(text)!r} holds a second one, {_short(more[1])!r}: give each by itself, all "
            "must hold"
        )
    return Condition(_named(column), sign[0], (value,))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


def _named(column: str) -> str:
    if len(column) > MOST_LETTERS:
        raise InputError(WHERE, f": the name {_short(column)!r} has {len(column):,} letters: expected a column")
    return column


def _wanted(column: str, wanted: Any) -> list[Condition]:
    if isinstance(wanted, Mapping):
        for operator in wanted:
            if operator not in OPERATORS:
                raise InputError(WHERE, f": {column} has {operator!r}, expected one of {' '.join(OPERATORS)}")
        return [Condition(column, operator, (_value(column, value),)) for operator, value in wanted.items()]
    if isinstance(wanted, list | tuple | set):
        if not wanted:
            raise InputError(WHERE, f": {column} may be none of no values: give one at least")
        if len(wanted) > MOST_VALUES:
            raise InputError(
                WHERE, f": {column} may be one of {len(wanted):,} values, expected at most {MOST_VALUES:,}"
            )
        return [Condition(column, "=", tuple(_value(column, value) for value in wanted))]
    return [Condition(column, "=", (_value(column, wanted),))]


def _value(column: str, value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise InputError(WHERE, f": {column} is compared with a number of more than {MOST_BITS:,} bits")
    if not isinstance(value, str | int | float) or value != value:
        raise InputError(WHERE, f": {column} is compared with {str(value)[:40]!r}, expected a text or a number")
    return whole_characters(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
