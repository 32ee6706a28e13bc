"""Conditions on a text's metadata: how they are parsed, what they cost, and their limits."""

import contextlib
import json
import logging
import math
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pellucid
from pellucid.errors import InputError
from pellucid.search.conditions import MAX_CONDITIONS, MAX_VALUES, OPERATORS, parse_condition, parse_conditions
from pellucid.search.dates import canonical_date
from pellucid.search.entries import Entries, write_entries
from pellucid.search.entry import Entry
from pellucid.search.metadata import metadata_json
from pellucid.search.opened_generation import MAX_CACHED_MASKS

CITIES = ("Zürich", "ZÜRICH", "Zu\u0308rich", "Straße", "STRASSE", "ΕΛΛΑΣ", "Łódź", None)


@pytest.fixture(scope="module")
def cities(minilm: pellucid.Model) -> pellucid.Index:
    """A row for each city, the last without the column."""
    rows = [{"text": f"row {i}", "city": city, "flag": i % 2 == 0, "n": i} for i, city in enumerate(CITIES)]
    return pellucid.Index.build(minilm, [*rows, {"text": "row 8"}], column="text", progress=False)


def matching_rows(index: pellucid.Index, where: object) -> set[int]:
    return {int(hit["text"].split()[1]) for hit in index.search("row", k=20, where=where)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("city ~ zürich", {0, 1, 2}), ("city ~ ZÜ", {0, 1, 2}), ("city ~ zu", set()), ("city ~ strasse", {3, 4}),
        ("city ~ AẞE", {3, 4}), ("city ~ ελλας", {5}), ("city ~ łÓ", {6}), ({"n": {"~": 7}}, {7}),
        ("city != Zürich", {1, 3, 4, 5, 6}), ({"city": "Zu\u0308rich"}, {0, 2}), ({"flag": True}, {0, 2, 4, 6}),
        ({"n": 1}, {1}),
    ],
)  # fmt: skip
def test_tilde_ignores_case_in_every_script_and_missing_values_match_nothing(
    cities: pellucid.Index, where: object, rows: set[int]
) -> None:
    assert matching_rows(cities, where) == rows


FORMS = ("tiếng", unicodedata.normalize("NFD", "tiếng"), "tiê\u0301ng")
"""One name that looks the same in three forms; in the last, one of two accents is composed with its letter."""


@pytest.mark.parametrize("names", [*((form,) * 3 for form in FORMS), FORMS], ids=["joined", "apart", "mixed", "each"])
def test_column_names_match_across_unicode_forms(minilm: pellucid.Model, names: tuple[str, ...]) -> None:
    rows = [{"text": f"row {i}", name: 2000 + i} for i, name in enumerate(names)]
    index = pellucid.Index.build(minilm, rows, column="text")
    for name in FORMS:
        assert matching_rows(index, f"{name} = 2001") == {1} and matching_rows(index, {name: {"!=": 2001}}) == {0, 2}
        assert matching_rows(index, {name: [2000, 2001]}) == {0, 1} and matching_rows(index, f"{name} >= 2001") == {
            1,
            2,
        }
        assert matching_rows(index, f"{name} = 1999") == set()


def test_large_whole_numbers_are_compared_exactly(minilm: pellucid.Model) -> None:
    """As floats, these four are two."""
    large = [2**53, 2**53 + 1, 12345678901234567890, 12345678901234567891]
    index = pellucid.Index.build(
        minilm, [{"text": f"row {i}", "n": n, "digits": str(n)} for i, n in enumerate(large)], column="text"
    )
    for column in ("n", "digits"):
        for i, n in enumerate(large):
            assert matching_rows(index, {column: n}) == matching_rows(index, f"{column} = {n}") == {i}
            assert matching_rows(index, {column: {"<": n}}) == set(range(i))
            assert (
                matching_rows(index, {column: {">=": n}})
                == matching_rows(index, f"{column} >= {n}")
                == set(range(i, 4))
            )
        assert matching_rows(index, {column: {"!=": large[3]}}) == {0, 1, 2}
    assert index.delete(where=f"digits = {large[3]}") == 1


def test_true_in_a_table_equals_true(minilm: pellucid.Model, tmp_path: Path) -> None:
    """There it is a text; if only its number counted, != would delete every row."""
    (tmp_path / "a.csv").write_text("text,flag\nrow 0,True\nrow 1,FALSE\nrow 2,\n")
    index = pellucid.Index.build(minilm, tmp_path / "a.csv", column="text", progress=False)
    assert (
        matching_rows(index, {"flag": True})
        == matching_rows(index, "flag = true")
        == matching_rows(index, "flag ~ tru")
        == {0}
    )
    assert index.delete(where={"flag": {"!=": True}}) == 2 and matching_rows(index, {"flag": True}) == {0}


def test_too_many_values_are_refused_without_blaming_the_file(cities: pellucid.Index) -> None:
    with pytest.raises(InputError, match=r"where has too many values.*: use fewer"):
        cities.search("row", where={f"c{i}": list(range(10_000)) for i in range(13)})


VALUES: list[Any] = [
    0, -0.0, 1, 7.0, "07", " 7 ", 0.1, 0.3, 0.1 + 0.2, "0.30000000000000004", 1e22, 5e-324, 1.7976931348623157e308,
    2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, -(2**63) - 1, 12345678901234567890, 10**20, 10**309, -(10**400), 10**400,
    "1e400", "1e-400", "1" + "0" * 400, "1e5", 1e5, "inf", "nan", "1_000", "3M", "2026-01-02", True, False, "true",
    None, "", "a", "A", "a\0b", "a\0c", "\0", "\0a", "a\0", "1\0", "é", "e\u0301", "a\\u0000b", "'", "%", [1, 2.5], {},
    {"a": {"b": [1e22, 0.1, "x\0y", 10**25]}}, ["a\0b", True, None], "１２", 12, "9" * 5_000,
    "FALSE",
]  # fmt: skip
"""Numbers that SQLite rounds, texts with a null character, and others."""


@pytest.mark.parametrize("column", ["n", "", "a b.c", 'a"\\', "a\0b", "é"])
def test_conditions_match_plain_python(column: str, tmp_path: Path) -> None:
    write_entries((Entry(str(i), "", {column: value}) for i, value in enumerate(VALUES)), tmp_path / "entries")
    entries = Entries(tmp_path / "entries", len(VALUES))
    assert entries.columns == {column}
    for operand in VALUES:
        for operator in OPERATORS if isinstance(operand, str | int | float) else ():
            found = entries.condition_mask(parse_conditions({column: {operator: operand}})).tolist()
            expected = [value is not None and condition_matches(value, operator, operand) for value in VALUES]
            assert found == expected, (operator, operand)


def condition_matches(value: Any, operator: str, operand: Any) -> bool:
    """The result of a condition on a value, in plain Python."""
    one, other = (as_text(each) for each in (value, operand))
    if operator == "~":
        return case_folded(str(operand)) in case_folded(str(value) if isinstance(value, bool) else one)
    numbers = as_number(value), as_number(operand)
    if operator in ("=", "!="):
        one, other = (unicodedata.normalize("NFC", each) for each in (one, other))
        same = one == other or (None not in numbers and numbers[0] == numbers[1])
        lowered = str(operand).lower()
        truth = lowered in ("true", "false") and isinstance(value, bool | str) and str(value).lower() == lowered
        return (same or truth) == (operator == "=")
    if numbers[1] is not None:
        return numbers[0] is not None and bool(ORDERS[operator](*numbers))
    comparable = one.startswith("2026-") if other == "2026-01-02" else one != ""  # the only date
    return numbers[0] is None and comparable and bool(ORDERS[operator](one.encode(), other.encode()))


ORDERS: dict[str, Callable[..., bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


def case_folded(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def as_text(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(int(value)) if isinstance(value, bool) else str(value)


def as_number(value: Any) -> int | float | None:
    if not isinstance(value, str):
        return value if isinstance(value, int | float) else None
    if "_" in value or not any(map(str.isdigit, value)):
        return None
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            number = kind(value)
            return 10**400 if value == "1e400" else None if number == math.inf else number
    return None


DATES = (
    "1957-03-04T23:59:59.999999", "1957-03-05", "1957-03-05 00:00:00", "1957-03-05T00:00", "1957-03-05T00:00:00.000",
    "1957-03-05T00:00:00.000001", "1957-03-05 10:00", "1957-03-05T10:00:00", "1957-03-05T10:00:00.5",
    "1957-03-05T10:00:00.500000", "1957-03-05T10:00:00.51", "1957-03-06", "1957-03-05T10:00:00Z",
    "1957-03-05 10:00:00.50+00:00", "1957-03-05T11:00:00+01:00", "1957-03-05T00:00:00-05:30",
    "1957-03-05 00:00:00+02:00", "0001-01-01T00:00:00+02:00",
)  # fmt: skip


@pytest.mark.parametrize("operator", [*ORDERS, "=", "!="])
def test_dates_compare_as_in_python(operator: str, tmp_path: Path) -> None:
    """A day is its midnight; a condition without a zone compares clock times, one with a zone compares moments."""
    write_entries((Entry(str(i), "", {"d": value}) for i, value in enumerate(DATES)), tmp_path / "entries")
    entries, compare = Entries(tmp_path / "entries", len(DATES)), {**ORDERS, "=": eq, "!=": ne}[operator]
    for operand in DATES[:-1]:
        found = entries.condition_mask(parse_conditions(f"d {operator} {operand}")).tolist()
        other = datetime.fromisoformat(operand)
        for value, matches in zip(DATES[:-1], found):
            one = datetime.fromisoformat(value)
            one = one.replace(tzinfo=one.tzinfo or UTC) if other.tzinfo else one.replace(tzinfo=None)
            assert matches == compare(one, other), (value, operand)


def test_dates_of_every_type_match_and_other_texts_compare_as_texts(minilm: pellucid.Model) -> None:
    days = [
        datetime(1957, 3, 4),
        datetime(1957, 3, 5),
        np.datetime64("1957-03-06T00:00:00", "ns"),
        "1957-03",
        "x",
        None,
    ]
    rows = [{"text": f"row {i}", "d": day} for i, day in enumerate(days)]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    for day in (date(1957, 3, 5), np.datetime64("1957-03-05"), datetime(1957, 3, 5), "1957-03-05 00:00"):
        assert matching_rows(index, {"d": day}) == {1} and matching_rows(index, {"d": {"!=": day}}) == {0, 2, 3, 4}
        assert matching_rows(index, {"d": {"<=": day}}) == {0, 1, 3} and matching_rows(index, {"d": {">": day}}) == {2}
    assert matching_rows(index, {"d": [date(1957, 3, 4), "1957-03-06", "1957-03-05T00:00:00Z", "x"]}) == {0, 1, 2, 4}
    assert matching_rows(index, "d ~ 1957-03-05T00") == {1} and matching_rows(index, "d = 1957-02-30") == set()
    (hit,) = index.search("row", where="d = 1957-03-05")
    assert hit["metadata"] == {"d": "1957-03-05T00:00:00"}


@pytest.mark.parametrize(
    ("form", "plain"),
    [
        ("2020-01-02t10:00:00.5z", "2020-01-02T10:00:00.5Z"),
        ("2020-01-02T10:00:00,50", "2020-01-02 10:00:00.5"),
        *((other, None) for other in ("2020-W01-4", "2020-002", "20200102", "2020-01-02T24:00", "2020-01-02T10:00,5")),
    ],
)
def test_accepted_date_formats_are_the_documented_ones(form: str, plain: str | None) -> None:
    assert canonical_date(form) == (None if plain is None else canonical_date(plain))
    assert plain is None or canonical_date(plain) is not None


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, np.float32("inf"), Decimal("Infinity")])
def test_non_finite_numbers_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"n is compared with .*, expected a text or a number"):
        parse_conditions({"n": {"<": value}})


def test_large_decimals_are_stored_exactly() -> None:
    for text in ("1e400", "1" * 401, "-" + "7" * 4_299, "9" * 5_000):
        stored = json.loads(metadata_json("a", {"n": Decimal(text)}))["n"]
        assert Decimal(stored) == Decimal(text)
    assert json.loads(metadata_json("a", {"n": Decimal("NaN")})) == {"n": None}


def test_float_in_a_row_equals_the_exact_whole_number(minilm: pellucid.Model) -> None:
    """Such as ids that became floats in a table with gaps; with 15 or 17 digits they would be other ids."""
    numbers = (float(2**60), float(2**63), 1234567890123456768.0, 2**60, 1e16, 40000000000000008.0, 1e30)
    rows = [{"text": f"row {i}", "n": number} for i, number in enumerate(numbers)]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    for where in ({"n": 2**60}, {"n": float(2**60)}, f"n = {2**60}"):
        assert matching_rows(index, where) == {0, 3}
    assert matching_rows(index, f"n <= {2**60}") == {0, 3, 4, 5} and matching_rows(index, f"n <= {2**63}") == {
        0,
        1,
        2,
        3,
        4,
        5,
    }
    assert matching_rows(index, f"n = {2**63}") == {1} and matching_rows(index, "n = 1234567890123456768") == {2}
    assert matching_rows(index, {"n": 40000000000000008}) == {5} and matching_rows(index, "n = 1e30") == {6}


def test_only_values_that_no_row_has_are_logged(minilm: pellucid.Model, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": f"row {i}", "flag": i % 2 == 0, "n": float(i), "name": f"v{i}"} for i in range(6)]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    for where in ({"flag": True, "n": 99}, {"n": 3, "name": "nobody"}, {"name": ["v1", "x"], "n": 98}):
        assert matching_rows(index, where) == set()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["no row has n = 99", "no row has name = nobody", "no row has n = 98"]
    caplog.clear()
    for where in ({"n": {">": "old"}}, {"name": {"<": 7}}, {"n": {">": 98}}, {"name": {"<": "a"}}):
        assert matching_rows(index, where) == set()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "n holds only numbers, and is compared with 'old'",
        "name holds no number, and is compared with 7",
    ]


def test_numbers_among_several_values_are_compared_as_numbers(minilm: pellucid.Model) -> None:
    years = [1999, 1999.0, "unknown", "01999", "x", 2000]
    rows = [{"text": f"row {i}", "year": year, "a\nb": i, "t\t": "yes"} for i, year in enumerate(years)]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    assert matching_rows(index, {"year": [1999, "unknown"]}) == {0, 1, 2, 3}
    for several in (np.array([1999, "unknown"], object), dict.fromkeys([1999, "unknown"]).keys()):
        assert matching_rows(index, {"year": several}) == {0, 1, 2, 3}
    assert matching_rows(index, {"year": np.int64(1999)}) == {0, 1, 3}
    assert (
        matching_rows(index, {"a\nb": 5}) == matching_rows(index, "a\nb = 5") == {5}
        and len(matching_rows(index, {"t\t": "yes"})) == 6
    )
    with pytest.raises(InputError, match="year is compared with 'None', expected a text or a number"):
        index.search("row", where={"year": None})


def test_condition_masks_are_cached(cities: pellucid.Index) -> None:
    segment = cities.segments[0]
    first = segment.searchable_mask(parse_conditions({"flag": 1}))
    assert first is not None and not first.flags.writeable
    assert first is not segment.searchable_mask(parse_conditions({"flag": True}))
    evicted = segment.searchable_mask(parse_conditions({"n": -1}))
    for i in range(40):
        segment.searchable_mask(parse_conditions({"n": i}))
        assert segment.searchable_mask(parse_conditions({"flag": 1})) is first  # a repeated condition stays cached
    assert segment.searchable_mask(parse_conditions({"n": -1})) is not evicted
    assert len(segment._condition_masks) == MAX_CACHED_MASKS


@pytest.mark.parametrize("text", [" " * 100_000, "a" * 100_000, "= a", "a ! b", "a!b = c", "a => b", "a == b", "", "="])
def test_invalid_condition_is_refused_with_a_short_message(text: str) -> None:
    with pytest.raises(InputError, match="cannot read the condition") as error:
        parse_condition(text)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("sign", ["==", "=>", "<>", "!==", "~="])
def test_unknown_operator_is_named(sign: str) -> None:
    with pytest.raises(InputError, match=f": {sign} is not an operator, expected one of = != < <= > >= ~$"):
        parse_condition(f"year {sign} 2000")


def test_condition_text_is_parsed_exactly() -> None:
    read = [parse_condition(text) for text in ("a b=c", " a  >=  2 ", "a = b = c", "a ~ ", "a!=!b", "a\n=\nb\nc")]
    assert [(one.column, one.operator, one.values[0]) for one in read] == [
        ("a b", "=", "c"), ("a", ">=", "2"), ("a", "=", "b = c"), ("a", "~", ""), ("a", "!=", "!b"), ("a", "=", "b\nc"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        *("n >= 2 and a = b", "n >= 2, a = b", "n != 2 OR n < 1", "a = b && n>3", "a = b; c ~ d", "a = x or y z != w"),
        *("d > 2011-01-01 and < 2013-01-01", "n >= 2, <= 5", "n > 1 && != 3", "2010 < year < 2020", "n > 1 < 3"),
        *("a != b & c != d", "a = b | c = d"),
    ],
)
def test_two_conditions_in_one_text_are_refused(text: str) -> None:
    with pytest.raises(
        pellucid.InputError, match=r"holds a second condition, '.*': give each by itself, all must hold"
    ):
        parse_condition(text)


def test_values_that_resemble_conditions_are_values() -> None:
    values = "Rock and Roll", "Smith, Jones & Sons", "this or that", "a, b; c", "and = or", "x=1", "a <b> c"
    values += "love, <3", "Smith, <a@b.c>", "rock and > roll", "sad, >:(", "https://a.b/?x=1&y=2"
    assert [parse_condition(f"a = {value}").values[0] for value in values] == list(values)


@pytest.mark.timeout(20)  # trying every end for every start takes minutes
@pytest.mark.parametrize("value", ["and " * 25_000, "a or b " * 20_000, ", " * 50_000, "or" + " " * 100_000 + "a"])
def test_long_value_is_parsed_in_linear_time(value: str) -> None:
    assert parse_condition(f"a = {value}").values[0] == value.strip()


@pytest.mark.parametrize(
    ("where", "fragment"),
    [
        *((f"d {value}", "d holds only dates, and is compared with .*: nothing was deleted") for value in (
            "> '2010-01-01'", "> 2010-01-01 and 2013-01-01", ">= 2010-01-01 to 2013-01-01", "< January 2010",
        )),
        ("sector != Finances", r"no row has sector = Finances \(did you mean Finance\?\), so it excludes no row: c"),
        ("sector != Finance, Energy", "no row has sector = Finance, Energy.*, so it excludes no row: correct it"),
        ({"d": {">": "soon"}}, "d holds only dates, and is compared with 'soon'"),
        ("sectr != Finance", r"no row has 'sectr' \(did you mean sector\?\)"),
    ],
)  # fmt: skip
def test_deletion_by_a_mistaken_condition_is_refused(minilm: pellucid.Model, where: object, fragment: str) -> None:
    days, sectors = ("2009-01-01", "2012-06-01", "", None), ("Finance", "Energy", "", None)
    rows = [{"text": f"row {i}", "d": day, "sector": one} for i, (day, one) in enumerate(zip(days, sectors))]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    with pytest.raises(InputError, match=fragment):
        index.delete(where=where)  # type: ignore[arg-type]
    assert len(index) == 4
    assert index.delete(where=["sector != Finance", "d > 2010-01-01"]) == 1


@pytest.mark.parametrize(
    "days", [("01.02.2024", "31.12.2025", "15.03.2026", "2.5.2026"), ("02/01/2024", "12/31/2025", "n/a", "May 2026")]
)
def test_comparing_dates_ignores_other_texts(
    minilm: pellucid.Model, days: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": f"row {i}", "d": day} for i, day in enumerate(days)]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    for sign in ("<", ">="):
        assert index.delete(where={"d": {sign: date(2024, 3, 1)}}) == 0
        assert "d holds no date as 2026-01-02, and is compared with '2024-03-01'" in caplog.text
    index.add([{"text": "row 4", "d": "2023-12-31"}, {"text": "row 5", "d": "2024-02"}])
    for nearly in ("2024-03", "2024-3-1", "2024-02-30"):
        with pytest.raises(
            InputError, match=f"d holds '.*', and is compared with '{nearly}': give a whole date: nothing"
        ):
            index.delete(where=f"d < {nearly}")
    assert index.delete(where="d < 2024-03-01") == 2 and len(index) == 4


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_pandas_timedelta_is_refused(minilm: pellucid.Model, unit: str) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": list("abcd"), "wait": pandas.to_timedelta([2, 3, 10, 30], unit=unit)})
    with pytest.raises(InputError, match="Timedelta is neither text nor number"):
        pellucid.Index.build(minilm, table, column="text", progress=False)
    index = pellucid.Index.build(minilm, [{"text": "a", "wait": 3}], column="text", progress=False)
    with pytest.raises(InputError, match=r"wait is compared with .3 days 00:00:00., expected a text or a number"):
        index.search("a", where={"wait": {">": pandas.Timedelta(days=3)}})


Mood = Enum("Mood", {"GLAD": "glad", "SAD": "sad"}, type=str)  # whose `str` is the member's name, unlike a StrEnum's
Grade = Enum("Grade", {"ONE": 1, "TWO": 2}, type=int)


def test_enum_members_stand_for_their_values(minilm: pellucid.Model) -> None:
    rows = [{"text": m.value, "id": m, "mood": m, "grade": g} for m, g in zip(Mood, Grade)]
    index = pellucid.Index.build(minilm, rows, column="text", id_column="id", progress=False)
    assert index.search("a", k=1, where={"mood": Mood.SAD})[0]["id"] == "sad"
    for where, expected in [
        ({"mood": Mood.GLAD}, {"glad"}),
        ({"mood": {"!=": Mood.GLAD}}, {"sad"}),
        ({"mood": [Mood.GLAD, "sad"]}, {"glad", "sad"}),
        ({"mood": {"~": Mood.SAD}}, {"sad"}),
        ({"grade": Grade.TWO}, {"sad"}),
        ({"grade": {"<": Grade.TWO}}, {"glad"}),
    ]:
        assert {hit["id"] for hit in index.search("a", k=2, where=where)} == expected
    conditions = Enum("typed", {"SAD": "mood = sad", "COLUMN": "mood"}, type=str)
    assert (
        index.search("a", where=conditions.SAD)[0]["id"]
        == index.search("a", where={conditions.COLUMN: "sad"})[0]["id"]
        == "sad"
    )
    assert index.evaluate(["a"], [Mood.GLAD], k=(2,)).queries == 1
    assert index.evaluate(["a"], [{Mood.SAD: 1.0}], by="mood", k=(2,)).queries == 1
    assert index.delete(Mood.GLAD) == 1 and index.delete(where={"mood": Mood.SAD}) == 1


def test_search_warns_when_dates_are_compared_with_other_text(
    minilm: pellucid.Model, caplog: pytest.LogCaptureFixture
) -> None:
    index = pellucid.Index.build(minilm, [{"text": "row 0", "d": date(2012, 6, 1)}], column="text", progress=False)
    assert matching_rows(index, "d > '2020-01-01'") == {0} and "d holds only dates, and is compared with" in caplog.text
    assert matching_rows(index, "d > 2020-01-01") == set()


def test_condition_on_rows_without_columns_is_refused(minilm: pellucid.Model) -> None:
    index = pellucid.Index.build(minilm, ["a cat", "a dog"])
    with pytest.raises(pellucid.InputError, match=r"no row has 'n'; rows have no columns beside the text$"):
        index.search("a cat", where={"n": 1})


@pytest.mark.parametrize(
    ("operand", "fragment"),
    [
        ([], "n is compared with no values: give one at least"),
        ({}, "n has no operator: give one of = .* and its value"),
    ],
)
def test_empty_condition_is_refused_and_deletes_nothing(cities: pellucid.Index, operand: object, fragment: str) -> None:
    for where in ({"n": operand}, {"flag": 1, "n": operand}):
        for request in (lambda where: cities.search("row", where=where), lambda where: cities.delete(where=where)):
            with pytest.raises(InputError, match=fragment):
                request(where)


def test_comparison_without_a_value_is_refused(cities: pellucid.Index) -> None:
    for sign in ("<", "<=", ">", ">="):
        with pytest.raises(pellucid.InputError, match=f"no value follows {sign}$"):
            parse_condition(f"n {sign} ")


def test_numbers_and_texts_are_not_ordered_against_each_other(minilm: pellucid.Model) -> None:
    years: list[object] = [1999, "2005", "", None, "unknown", "old"]
    index = pellucid.Index.build(
        minilm, [{"text": f"row {i}", "year": year} for i, year in enumerate(years)], column="text"
    )
    for where, expected in [
        ("year < O2000", set()), ("year > $1,000", {"unknown", "old"}), ("year >= p", {"unknown"}),
        ("year < 2000", {1999}), ({"year": {">": "a"}}, {"unknown", "old"}), ("year >= 1999", {1999, "2005"}),
    ]:  # fmt: skip
        assert {years[row] for row in matching_rows(index, where)} == expected, where


def test_number_of_conditions_and_values_is_limited(cities: pellucid.Index, caplog: pytest.LogCaptureFixture) -> None:
    assert matching_rows(cities, ["n >= 3"] * MAX_CONDITIONS) == {3, 4, 5, 6, 7}
    many = [3, *(f"no {i}" for i in range(MAX_VALUES - 1))]
    assert matching_rows(cities, {"n": many}) == {3}
    caplog.set_level(logging.WARNING, logger="pellucid")
    assert matching_rows(cities, {"n": many[1:]}) == set()
    assert re.search(r"no row has n = no 0, .* more$", caplog.text.strip()) and caplog.text.count("\n") == 1
    for where, fragment in [
        (["n = 1"] * (MAX_CONDITIONS + 1), "where has 101 conditions, expected at most 100"),
        ({"n": [*many, 4]}, "n is compared with 10,001 values, expected at most 10,000"),
        ({"n": 10**5_000}, "n is compared with a number of more than 10,000 bits"),
        ({"n" * 3_000_000: 1}, "has 3,000,000 letters: expected a column"),
        ("n" * 3_000_000 + "= 1", "has 3,000,000 letters: expected a column"),
    ]:
        with pytest.raises(InputError, match=re.escape(fragment)) as error:
            cities.search("row", where=where)  # type: ignore[arg-type]
        assert len(str(error.value)) < 300
