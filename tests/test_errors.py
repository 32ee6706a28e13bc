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


def test_message_joins_its_parts() -> None:
    error = InputError(Argument("long"), " is 3: pass ", Argument("long", "windows"))
    assert str(error) == "long is 3: pass long='windows'" and error.args == (str(error),)
    assert str(InputError("item 3: ", error, (", or ", (Argument("stride", 0),)))) == f"item 3: {error}, or stride=0"
    assert str(Argument("columns", {"label": Placeholder("NAME")})) == "columns={'label': NAME}"
    assert str(Argument("seed", None)) == "seed=None"
    assert str(Argument("column", "x" * 9999)) == f"column='{'x' * 298}…"


def test_value_of_several_lines_is_shortened_to_one() -> None:
    error = InputError(f"temperature is {np.ones((2, 2))!r}, expected a number: pass ", Argument("temperature", 1.0))
    assert str(error) == "temperature is array([[1., 1.], [1., 1.]]), expected a number: pass temperature=1.0"


def test_characters_that_control_a_terminal_are_escaped() -> None:
    assert str(InputError("the head \x1b[2J\u202e is not known: ", InputError("a\x00"))) == (
        r"the head \x1b[2J\u202e is not known: a\x00"
    )


def test_only_texts_are_suggested_as_similar_names() -> None:
    assert did_you_mean("text", [0, ("text", 1), "texts"]) == " (did you mean texts?)"  # type: ignore[list-item]
    assert did_you_mean(3, ["text"]) == did_you_mean(None, ["text"]) == ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "parts", [("one sentence",), ("pass ", Argument("long", "windows"), " or ", Argument("stride"))]
)
def test_errors_survive_pickling_and_copying(kind: type[StructuredError], parts: tuple[str | Argument, ...]) -> None:
    error = kind(*parts)
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(copied) is kind and copied.parts == parts and str(copied) == str(error) == "".join(map(str, parts))


def test_long_names_are_shortened() -> None:
    assert shorten("a" * 80) == "a" * 80 and shorten("a" * 81) == "a" * 79 + "…" and shorten("abcd", 3) == "ab…"
    assert join_names(["a" * 81, "b", "c"], 2) == f"{shorten('a' * 81)}, b and 1 more"


def test_suggestions_that_look_the_same_are_escaped() -> None:
    assert did_you_mean("pr\u00e9nom", ["pre\u0301nom", "prenom"]) == " (did you mean prenom, 'pre\\u0301nom'?)"
    assert did_you_mean("textt", ["text", "city"]) == " (did you mean text?)" and did_you_mean("a", ["text"]) == ""


def test_interrupted_is_no_exception() -> None:
    assert issubclass(Interrupted, KeyboardInterrupt) and not issubclass(Interrupted, Exception)
