"""What rows must fit, by their other columns."""

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
        column, path = _EXTRACTED, f'$."{self.column}"'
        if any(sign in self.column for sign in '"\\\0'):  # a path of SQLite cannot say them
            column, path = _LOOKED_UP, self.column
        if self.operator == "~":
            return f"instr(lower({column}), lower(?)) > 0", [path, str(self.values[0])]
        number = f"CASE WHEN trim({column}) GLOB '*[0-9]*' THEN CAST({column} AS REAL) END"
        numbers = [_number(value) for value in self.values]
        if self.operator in ("=", "!="):
            marks = ",".join("?" * len(self.values))
            clause, given = f"CAST({column} AS TEXT) IN ({marks})", [path, *map(_text, self.values)]
            if all(one is not None for one in numbers):
                clause, given = f"({clause} OR {number} IN ({marks}))", [*given, path, path, *numbers]
            return (clause if self.operator == "=" else f"NOT {clause}"), given
        if numbers[0] is not None:
            return f"{number} {self.operator} ?", [path, path, numbers[0]]
        return f"CAST({column} AS TEXT) {self.operator} ?", [path, str(self.values[0])]


_EXTRACTED, _LOOKED_UP = "json_extract(metadata, ?)", "(SELECT value FROM json_each(metadata) WHERE key = ?)"


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


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
