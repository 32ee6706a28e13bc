"""Errors whose sentences are built from parts."""

import copy
import pickle

import numpy as np
import pytest

from pellucid.errors import (
    Argument,
    InputError,
    Interrupted,
    NotFoundError,
    Placeholder,
    ResourceError,
    StructuredError,
    did_you_mean,
    join_names,
    shorten,
)

KINDS = (InputError, NotFoundError, ResourceError, Interrupted)


def test_a_sentence_is_its_parts_in_python() -> None:
    wrong = InputError(Argument("long"), " is 3: pass ", Argument("long", "windows"))
    assert str(wrong) == "long is 3: pass long='windows'" and wrong.args == (str(wrong),)
    assert str(InputError("item 3: ", wrong, (", or ", (Argument("stride", 0),)))) == f"item 3: {wrong}, or stride=0"
    assert str(Argument("columns", {"label": Placeholder("NAME")})) == "columns={'label': NAME}"
    assert str(Argument("seed", None)) == "seed=None"


def test_a_value_of_several_lines_is_said_in_one() -> None:
    wrong = InputError(f"temperature is {np.ones((2, 2))!r}, expected a number: pass ", Argument("temperature", 1.0))
    assert str(wrong) == "temperature is array([[1., 1.], [1., 1.]]), expected a number: pass temperature=1.0"


def test_names_that_are_none_are_near_by_how_they_are_written() -> None:
    assert did_you_mean("text", [0, ("text", 1), "texts"]) == " (did you mean texts?)"  # type: ignore[list-item]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "parts", [("one sentence",), ("pass ", Argument("long", "windows"), " or ", Argument("stride"))]
)
def test_an_error_travels_whole(kind: type[StructuredError], parts: tuple[str | Argument, ...]) -> None:
    wrong = kind(*parts)
    for again in (pickle.loads(pickle.dumps(wrong)), copy.copy(wrong), copy.deepcopy(wrong)):
        assert type(again) is kind and again.parts == parts and str(again) == str(wrong) == "".join(map(str, parts))


def test_a_long_name_is_shortened_alone_and_among_others() -> None:
    assert shorten("a" * 80) == "a" * 80 and shorten("a" * 81) == "a" * 79 + "…" and shorten("abcd", 3) == "ab…"
    assert join_names(["a" * 81, "b", "c"], 2) == f"{shorten('a' * 81)}, b and 1 more"


def test_a_near_name_that_looks_the_same_is_told_apart() -> None:
    assert did_you_mean("pr\u00e9nom", ["pre\u0301nom", "prenom"]) == " (did you mean prenom, 'pre\\u0301nom'?)"
    assert did_you_mean("textt", ["text", "city"]) == " (did you mean text?)" and did_you_mean("a", ["text"]) == ""


def test_an_interruption_is_no_error_that_somebody_catches() -> None:
    assert issubclass(Interrupted, KeyboardInterrupt) and not issubclass(Interrupted, Exception)
