"""What rows must fit, by their other columns."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.errors import InputError
from pellucid.text.cut import whole_characters

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
_TYPED = re.compile(r"\s*([^=!<>~]+?)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """One column compared with a value. Numbers are compared as numbers where both are some, else as texts.

    operator: "=", "!=", "<", "<=", ">", ">=", or "~" for a text that holds the value, upper and lower case alike.
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
            return f"instr(lower({column}), lower(?)) > 0", [path, str(self.values[0])]
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
        return f"CAST({column} AS TEXT) {self.operator} ?", [path, str(self.values[0])]


_EXTRACTED = "json_extract(metadata, ?)", "json_type(metadata, ?)"
_LOOKED_UP = (
    "(SELECT value FROM json_each(metadata) WHERE key = ?)",
    "(SELECT type FROM json_each(metadata) WHERE key = ?)",
)
"""How SQLite says the value of a column, and what kind of JSON it is."""

NUMBER = "number_of"
"""The name by which SQLite calls `number_of`."""


def number_of(value: Any) -> float | None:
    """A value as a number, where all of it is one: "12", " -1.5e3 ", 7; None for "3M", "2026-01-02", "inf", "1_000"."""
    if isinstance(value, str) and ("_" in value or not any(sign.isdigit() for sign in value)):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def conditions(where: Mapping[str, Any] | str | list[str] | tuple[str, ...] | None) -> list[Condition]:
    """Conditions as people write them.

    where: {"sector": "Finance"}, {"sector": ["Finance", "Energy"]}, {"ipoyear": {">=": 2000}}; or a text such as
        "ipoyear >= 2000", or several of them. All must hold.
    """
    if where is None:
        return []
    if not isinstance(where, Mapping | str | list | tuple):
        raise InputError(f"where is {type(where).__name__}, expected a text, several, or a mapping")
    if isinstance(where, str):
        return [typed(where)]
    if isinstance(where, list | tuple):
        return [typed(str(one)) for one in where]
    return [
        condition for column, wanted in where.items() for condition in _wanted(whole_characters(str(column)), wanted)
    ]


def typed(text: str) -> Condition:
    """A condition that somebody typed: "sector = Finance"."""
    found = _TYPED.fullmatch(whole_characters(text))
    if found is None:
        raise InputError(
            f"cannot read the condition {text!r}, expected a column, one of {' '.join(OPERATORS)}, a value"
        )
    if found[3][:1] in ("=", "<", ">", "~"):
        raise InputError(
            f"cannot read the condition {text!r}: {found[2]}{found[3][0]} is no operator, expected one of "
            f"{' '.join(OPERATORS)}"
        )
    return Condition(found[1], found[2], (found[3],))


def _wanted(column: str, wanted: Any) -> list[Condition]:
    if isinstance(wanted, Mapping):
        for operator in wanted:
            if operator not in OPERATORS:
                raise InputError(f"where: {column} has {operator!r}, expected one of {' '.join(OPERATORS)}")
        return [Condition(column, operator, (_value(column, value),)) for operator, value in wanted.items()]
    if isinstance(wanted, list | tuple | set):
        if not wanted:
            raise InputError(f"where: {column} may be none of no values: give one at least")
        return [Condition(column, "=", tuple(_value(column, value) for value in wanted))]
    return [Condition(column, "=", (_value(column, wanted),))]


def _value(column: str, value: Any) -> Any:
    if not isinstance(value, str | int | float) or value != value:
        raise InputError(f"where: {column} is compared with {str(value)[:40]!r}, expected a text or a number")
    return whole_characters(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
