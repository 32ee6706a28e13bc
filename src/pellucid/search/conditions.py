"""Conditions on the other columns of rows."""

import contextlib
import functools
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pellucid.config.checks import as_list
from pellucid.errors import Argument, InputError, normalize_nfc, shorten
from pellucid.search.dates import canonical_date, is_zoned
from pellucid.search.metadata import MAX_DIGITS, to_json_value
from pellucid.text.rows import base_value
from pellucid.text.truncation import replace_surrogates

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
WHERE = Argument("where")
_SIGN = re.compile(r"!=|<=|>=|[=!<>~]")
_MORE = re.compile(
    r"(?:\b(?:and|or)\b|&&|\|\||\s[&|]\s|[,;])\s*([^\s,;=!<>~][^,;=!<>~]{0,200}(?:!=|<=|>=|[=<>~]).*)", re.IGNORECASE
)
"""A second condition in the value of one: the user means two, and as a value it would match nearly everything."""

_BETWEEN = re.compile("((?:[<>]|!=).*)")
"""The same for ordered values, without a column: `2010 < year < 2020`, `year > 2010 and < 2020`."""

MAX_CONDITIONS, MAX_VALUES = 100, 10_000
"""Conditions that must hold together, and the values of one; SQLite does not take many more."""

MAX_COLUMN_CHARACTERS, MAX_BITS = 1_000, 10_000
"""Of a column's name, and of a number."""


@dataclass(frozen=True)
class Condition:
    """One column compared with a value. Values are compared as numbers where both are numbers, else as texts; an order
    exists only between two numbers, or between two texts that are not. True and false equal their names in a table, in
    any case. Dates are compared as dates in the extended form of ISO 8601, which is 2026-01-02, alone or before a time
    (T10, " 10:30", T10:30:00.5, T10:30:00Z, T10:30+02:00): a day is its midnight; a value without a time zone is
    compared with the local time of a row. Other forms, 2026-W01-4 or 20260102, are not dates; between a date and a text
    an order exists only where the text begins with a year and a hyphen, such as 2026-01.

    operator: "=", "!=", "<", "<=", ">", ">=", or "~" for a text that contains the value, in any case. A row without the
        column, or with null in it, matches none of them, "!=" included.
    values: one, or several of which one must be equal.

    Accented letters are the same composed and decomposed, in names and in values that must be equal.
    """

    column: str
    operator: str
    values: tuple[Any, ...]

    def sql(self, columns: Iterable[str], parameters: dict[str, Any]) -> str:
        """An SQL clause with named parameters such as :v3, whose values it adds to `parameters`; no value is ever part
        of the clause.

        columns: the spellings of the column in the rows, in any Unicode form; empty where no row has it.
        """
        return f"({' OR '.join(self._sql(name, parameters) for name in columns) or 0})"

    def _sql(self, name: str, parameters: dict[str, Any]) -> str:
        def bound(*values: Any) -> str:
            names = [f"v{len(parameters) + i}" for i in range(len(values))]
            parameters.update(zip(names, values))
            return ",".join(f":{name}" for name in names)

        named = bound(name)
        value, kind = f"value_in(metadata, {named})", f"kind_in(metadata, {named})"
        if not any(sign in '"\\' or sign < " " for sign in name):  # which no JSON path of SQLite can contain
            path = bound(f'$."{name}"')
            found = f"json_extract(metadata, {path})"  # exact for integers below 2^63, else of 15 digits
            value = f"CASE WHEN {NUL} OR typeof({found}) = 'real' THEN {value} ELSE {found} END"
            kind = f"json_type(metadata, {path})"
        if self.operator == "~":
            text = f"CASE WHEN {kind} IN ('true', 'false') THEN {kind} ELSE {value} END"  # SQLite extracts 1 and 0
            return f"instr(folded({text}), {bound(casefolded(str(self.values[0])))}) > 0"
        if self.operator in ("=", "!="):
            return f"{'NOT ' if self.operator == '!=' else ''}({' OR '.join(self._equal(value, kind, bound))})"
        operand = self.values[0]
        if (number := canonical_number(operand)) is not None:
            return f"compared({value}, {bound(number)}) {self.operator} 0"
        ordered = text = f"CAST({value} AS TEXT)"
        some = f"{text} != ''"
        if (date := canonical_date(operand)) is not None:
            ordered, operand = f"IFNULL(dated({value}, {bound(is_zoned(date))}), {text})", date
            some = f"{text} GLOB '[0-9][0-9][0-9][0-9]-*'"
        # texts that are not empty and not numbers: "2005" is not less than "O2000"
        return f"({ordered} {self.operator} {bound(str(operand))} AND {some} AND spelled({value}) IS NULL)"

    def _equal(self, value: str, kind: str, bound: Callable[..., str]) -> Iterator[str]:
        """The ways in which a value can be equal: as text, number, boolean or date."""
        texts, text = [normalize_nfc(_text(one)) for one in self.values], f"CAST({value} AS TEXT)"
        yield f"{text if ''.join(texts).isascii() else f'composed({text})'} IN ({bound(*texts)})"
        if numbers := _without_none(map(canonical_number, self.values)):
            yield f"IFNULL(spelled({value}) IN ({bound(*numbers)}), 0)"
        if truths := _without_none(map(truth_of, self.values)):
            places = bound(*truths)
            yield f"{kind} IN ({places}) OR lower({text}) IN ({places})"
        dates = _without_none(map(canonical_date, self.values))
        for zoned in {is_zoned(date) for date in dates}:
            alike = [date for date in dates if is_zoned(date) == zoned]
            yield f"IFNULL(dated({value}, {bound(zoned)}) IN ({bound(*alike)}), 0)"


def _without_none(found: Iterable[str | None]) -> list[str]:
    return [one for one in found if one is not None]


NUL = "instr(metadata, '\\u0000')"
"""SQL for whether the JSON metadata of a row contains a NUL, at which SQLite's own JSON texts end."""


def number_of(value: Any) -> int | float | None:
    """The number that a value is or spells in full: "12", " -1.5e3 ", 7; None for "3M", "2026-01-02", "inf", "1_000".
    Integers are exact, however large; with an exponent it is the nearest float, where there is one, as in JSON: "1e30"
    is 1e30, which is not 10**30, and "1e400" is 10**400."""
    if isinstance(value, str) and ("_" in value or not any(sign.isdigit() for sign in value)):
        return None
    try:
        return int(value if isinstance(value, int) else str(value))
    except ValueError:
        return _finite_float(value)


def _finite_float(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else _exact_integer(value)


def _exact_integer(value: Any) -> int | None:
    """The integer that a float cannot hold, of at most as many digits as Python reads; else None."""
    with contextlib.suppress(ArithmeticError):
        exact = Decimal(value)
        if exact.is_finite() and exact.adjusted() < MAX_DIGITS and exact == exact.to_integral_value():
            return int(exact)
    return None


def canonical_number(value: Any) -> str | None:
    """A number as text that is the same for equal ones: "7" for 7, 7.0 and "07"; None for anything but a number."""
    number = number_of(value)
    return None if number is None else str(int(number)) if number == int(number) else repr(number)


def truth_of(value: Any) -> str | None:
    """Returns "true" or "false" for booleans and their names in any case; None for anything else."""
    name = str(value).lower()
    return name if name in ("true", "false") else None


def compare_number(value: Any, operand: str) -> int | None:
    """Compares a value with a number: -1, 0 or 1; None for anything but a number. SQLite itself would round large
    ones."""
    number, other = number_of(value), _operand_number(operand)
    return None if number is None else (number > other) - (number < other)


@functools.lru_cache(64)
def _operand_number(text: str) -> int | float:
    found = number_of(text)
    assert found is not None
    return found


def value_in(metadata: str, column: str) -> Any:
    """The value that SQLite would extract, except that numbers which it would round are returned as text."""
    value = json.loads(metadata).get(column)
    if isinstance(value, dict | list):
        return as_json(value)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def as_json(value: Any) -> str:
    """A list, or a mapping, as a condition spells it: '["a","b"]'."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=to_json_value)


def kind_in(metadata: str, column: str) -> str:
    """Returns "true" or "false" for a boolean, and other text for anything else."""
    return json.dumps(json.loads(metadata).get(column))


def casefolded(value: Any) -> str | None:
    """A value as text, case-folded in every script, with accented letters composed."""
    if value is None:
        return None
    text = str(value)
    return text.lower() if text.isascii() else normalize_nfc(unicodedata.normalize("NFD", text).casefold())


SQL_FUNCTIONS = {
    ("spelled", 1): canonical_number,
    ("compared", 2): compare_number,
    ("dated", 2): canonical_date,
    ("folded", 1): casefolded,
    ("composed", 1): lambda value: None if value is None else normalize_nfc(value),
    ("value_in", 2): value_in,
    ("kind_in", 2): kind_in,
}
"""The functions registered with SQLite, by name and number of arguments."""


def parse_conditions(where: Mapping[str, Any] | str | list[str] | tuple[str, ...] | None) -> list[Condition]:
    """Parses conditions as users write them.

    where: {"sector": "Finance"}, {"sector": ["Finance", "Energy"]}, {"ipoyear": {">=": 2000}}; or a text such as
        "ipoyear >= 2000", or several of them. All must hold.
    """
    if where is None:
        return []
    if not isinstance(where, Mapping | str | list | tuple):
        raise InputError(WHERE, f" is {type(where).__name__}, expected a text, several, or a mapping")
    if isinstance(where, Mapping):
        found = [
            condition
            for column, operand in where.items()
            for condition in _column_conditions(_checked_column(replace_surrogates(str(base_value(column)))), operand)
        ]
    else:
        found = [parse_condition(str(base_value(one))) for one in ([where] if isinstance(where, str) else where)]
    if len(found) > MAX_CONDITIONS:
        raise InputError(WHERE, f" has {len(found):,} conditions, expected at most {MAX_CONDITIONS}")
    return found


def parse_condition(text: str) -> Condition:
    """Parses a condition such as "sector = Finance"."""
    text = replace_surrogates(text)
    sign = _SIGN.search(text)
    column, value = (text[: sign.start()].strip(), text[sign.end() :].strip()) if sign else ("", "")
    if sign is None or sign[0] not in OPERATORS or not column:
        known = " ".join(OPERATORS)
        raise InputError(f"cannot read the condition {shorten(text)!r}, expected a column, one of {known}, a value")
    if value[:1] in ("=", "<", ">", "~"):
        raise InputError(
            f"cannot read the condition {shorten(text)!r}: {sign[0]}{value[0]} is not an operator, expected one of "
            f"{' '.join(OPERATORS)}"
        )
    if not value and sign[0][0] in "<>":
        raise InputError(f"cannot read the condition {shorten(text)!r}: no value follows {sign[0]}")
    if more := _MORE.search(value) or (_BETWEEN.search(value) if sign[0][0] in "<>" else None):
        raise InputError(
            f"the condition {shorten(text)!r} holds a second condition, {shorten(more[1])!r}: "
            "give each by itself, all must hold"
        )
    return Condition(_checked_column(column), sign[0], (value,))


def _checked_column(column: str) -> str:
    if len(column) > MAX_COLUMN_CHARACTERS:
        raise InputError(WHERE, f": the name {shorten(column)!r} has {len(column):,} letters: expected a column")
    return column


def _column_conditions(column: str, operand: Any) -> list[Condition]:
    if isinstance(operand, Mapping):
        if not operand:
            raise InputError(WHERE, f": {column} has no operator: give one of {' '.join(OPERATORS)} and its value")
        for operator in operand:
            if not isinstance(operator, str) or operator not in OPERATORS:
                raise InputError(
                    WHERE, f": {column} has {shorten(repr(operator))}, expected one of {' '.join(OPERATORS)}"
                )
        return [Condition(column, operator, (_checked_value(column, value),)) for operator, value in operand.items()]
    values = [operand] if (found := as_list(operand)) is None else found
    if not values:
        raise InputError(WHERE, f": {column} is compared with no values: give one at least")
    if len(values) > MAX_VALUES:
        raise InputError(WHERE, f": {column} is compared with {len(values):,} values, expected at most {MAX_VALUES:,}")
    return [Condition(column, "=", tuple(_checked_value(column, value) for value in values))]


def _checked_value(column: str, value: Any) -> Any:
    original = value
    with contextlib.suppress(TypeError, ValueError):  # reported by the second error below
        value = base_value(value) if isinstance(value, str | int | float) else to_json_value(value)
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise InputError(WHERE, f": {column} is compared with a number of more than {MAX_BITS:,} bits")
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(WHERE, f": {column} is compared with {str(original)[:40]!r}, expected a text or a number")
    return replace_surrogates(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
