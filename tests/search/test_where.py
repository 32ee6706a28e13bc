"""Conditions on what else is known of a text: how they are read, what they cost, and how much of them is too much."""

import logging
import re

import numpy as np
import pytest

import pellucid
from pellucid.errors import InputError
from pellucid.search.opened import KEPT
from pellucid.search.where import MOST, MOST_VALUES, conditions, typed

CITIES = ("Zürich", "ZÜRICH", "Zu\u0308rich", "Straße", "STRASSE", "ΕΛΛΑΣ", "Łódź", None)


@pytest.fixture(scope="module")
def cities(minilm: pellucid.Model) -> pellucid.Index:
    """A row for each city, and one without the column."""
    rows = [{"text": f"row {i}", "city": city, "flag": i % 2 == 0, "n": i} for i, city in enumerate(CITIES)]
    return pellucid.Index.build(minilm, [*rows, {"text": "row 8"}], column="text", progress=False)


def fitting(index: pellucid.Index, where: object) -> set[int]:
    return {int(hit["text"].split()[1]) for hit in index.search("row", k=20, where=where)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("city ~ zürich", {0, 1, 2}), ("city ~ ZÜ", {0, 1, 2}), ("city ~ zu", set()), ("city ~ strasse", {3, 4}),
        ("city ~ AẞE", {3, 4}), ("city ~ ελλας", {5}), ("city ~ łÓ", {6}), ({"n": {"~": 7}}, {7}),
        ("city != Zürich", {1, 2, 3, 4, 5, 6}), ({"flag": True}, {0, 2, 4, 6}), ({"n": 1}, {1}),
    ],
)  # fmt: skip
def test_case_is_alike_in_every_script_and_what_is_not_known_fits_nothing(
    cities: pellucid.Index, where: object, rows: set[int]
) -> None:
    assert fitting(cities, where) == rows


def test_whole_numbers_are_compared_exactly_however_large(minilm: pellucid.Model) -> None:
    """As floats these four are two."""
    large = [2**53, 2**53 + 1, 12345678901234567890, 12345678901234567891]
    index = pellucid.Index.build(
        minilm, [{"text": f"row {i}", "n": n, "said": str(n)} for i, n in enumerate(large)], column="text"
    )
    for column in ("n", "said"):
        for i, n in enumerate(large):
            assert fitting(index, {column: n}) == fitting(index, f"{column} = {n}") == {i}
            assert fitting(index, {column: {"<": n}}) == set(range(i))
            assert fitting(index, {column: {">=": n}}) == fitting(index, f"{column} >= {n}") == set(range(i, 4))
        assert fitting(index, {column: {"!=": large[3]}}) == {0, 1, 2}
    assert index.delete(where=f"said = {large[3]}") == 1


def test_of_several_values_those_that_are_numbers_are_compared_as_such(minilm: pellucid.Model) -> None:
    years = [1999, 1999.0, "unknown", "01999", "x", 2000]
    rows = [{"text": f"row {i}", "year": year, "a\nb": i, "t\t": "yes"} for i, year in enumerate(years)]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    assert fitting(index, {"year": [1999, "unknown"]}) == {0, 1, 2, 3}
    assert fitting(index, {"year": np.int64(1999)}) == {0, 1, 3}
    assert fitting(index, {"a\nb": 5}) == fitting(index, "a\nb = 5") == {5} and len(fitting(index, {"t\t": "yes"})) == 6
    with pytest.raises(InputError, match="year is compared with 'None', expected a text or a number"):
        index.search("row", where={"year": None})


def test_what_fits_is_looked_up_once(cities: pellucid.Index) -> None:
    segment = cities.segments[0]
    first = segment.alive(conditions({"flag": 1}))
    assert first is not None and not first.flags.writeable
    assert first is not segment.alive(conditions({"flag": True}))
    once = segment.alive(conditions({"n": -1}))
    for i in range(40):
        segment.alive(conditions({"n": i}))
        assert segment.alive(conditions({"flag": 1})) is first  # what is asked for again stays
    assert segment.alive(conditions({"n": -1})) is not once
    assert len(segment._found) == KEPT


@pytest.mark.parametrize("text", [" " * 100_000, "a" * 100_000, "= a", "a ! b", "a!b = c", "a => b", "a == b", "", "="])
def test_what_is_no_condition_is_refused_at_once_and_in_few_words(text: str) -> None:
    with pytest.raises(InputError, match="cannot read the condition") as refused:
        typed(text)
    assert len(str(refused.value)) < 300


def test_a_condition_is_read_as_it_was_typed() -> None:
    read = [typed(text) for text in ("a b=c", " a  >=  2 ", "a = b = c", "a ~ ", "a!=!b", "a\n=\nb\nc")]
    assert [(one.column, one.operator, one.values[0]) for one in read] == [
        ("a b", "=", "c"), ("a", ">=", "2"), ("a", "=", "b = c"), ("a", "~", ""), ("a", "!=", "!b"), ("a", "=", "b\nc"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["n >= 2 and a = b", "n >= 2, a = b", "n != 2 OR n < 1", "a = b && n>3", "a = b; c ~ d", "a = x or y z != w"],
)
def test_two_conditions_in_one_are_not_taken_for_a_value(text: str) -> None:
    with pytest.raises(pellucid.InputError, match=r"holds a second one, '.*': give each by itself, all must hold"):
        typed(text)


def test_what_only_looks_like_two_conditions_is_a_value() -> None:
    values = "Rock and Roll", "Smith, Jones & Sons", "this or that", "a, b; c", "and = or", "x=1"
    assert [typed(f"a = {value}").values[0] for value in values] == list(values)


@pytest.mark.timeout(20)  # trying every end for every beginning takes minutes
@pytest.mark.parametrize("value", ["and " * 25_000, "a or b " * 20_000, ", " * 50_000, "or" + " " * 100_000 + "a"])
def test_a_long_value_is_read_at_once(value: str) -> None:
    assert typed(f"a = {value}").values[0] == value.strip()


def test_rows_without_columns_say_so(minilm: pellucid.Model) -> None:
    index = pellucid.Index.build(minilm, ["a cat", "a dog"])
    with pytest.raises(pellucid.InputError, match=r"no row has 'n'; rows have nothing beside their texts$"):
        index.search("a cat", where={"n": 1})


def test_an_order_needs_a_value(cities: pellucid.Index) -> None:
    for sign in ("<", "<=", ">", ">="):
        with pytest.raises(pellucid.InputError, match=f"no value stands behind {sign}$"):
            typed(f"n {sign} ")


def test_numbers_and_texts_have_no_order(minilm: pellucid.Model) -> None:
    years: list[object] = [1999, "2005", "", None, "unknown", "old"]
    index = pellucid.Index.build(
        minilm, [{"text": f"row {i}", "year": year} for i, year in enumerate(years)], column="text"
    )
    for where, fits in [
        ("year < O2000", set()), ("year > $1,000", {"unknown", "old"}), ("year >= p", {"unknown"}),
        ("year < 2000", {1999}), ({"year": {">": "a"}}, {"unknown", "old"}), ("year >= 1999", {1999, "2005"}),
    ]:  # fmt: skip
        assert {years[row] for row in fitting(index, where)} == fits, where


def test_too_much_is_refused_and_much_is_said_in_one_line(
    cities: pellucid.Index, caplog: pytest.LogCaptureFixture
) -> None:
    assert fitting(cities, ["n >= 3"] * MOST) == {3, 4, 5, 6, 7}
    many = [3, *(f"no {i}" for i in range(MOST_VALUES - 1))]
    assert fitting(cities, {"n": many}) == {3}
    caplog.set_level(logging.WARNING, logger="pellucid")
    assert fitting(cities, {"n": many[1:]}) == set()
    assert re.search(r"no row has n = no 0, .* more$", caplog.text.strip()) and caplog.text.count("\n") == 1
    for where, said in [
        (["n = 1"] * (MOST + 1), "where has 101 conditions, expected at most 100"),
        ({"n": [*many, 4]}, "n may be one of 10,001 values, expected at most 10,000"),
        ({"n": 10**5_000}, "n is compared with a number of more than 10,000 bits"),
        ({"n" * 3_000_000: 1}, "has 3,000,000 letters: expected a column"),
        ("n" * 3_000_000 + "= 1", "has 3,000,000 letters: expected a column"),
    ]:
        with pytest.raises(InputError, match=re.escape(said)) as refused:
            cities.search("row", where=where)  # type: ignore[arg-type]
        assert len(str(refused.value)) < 300
