"""Answers are dicts and lists that are valid JSON, cannot be changed, and survive copying, pickling and sending."""

import copy
import json
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pellucid.models import Output
from pellucid.tasks.answer import Answer, AnswerAttribution, Answers, TextCoverage

COVERAGE = TextCoverage(((0, 9), (7, 15)), cut=3, empty=False)
ATTRIBUTION = AnswerAttribution("logit of 'B'", ("a", "b"), (0.5, -1.25), "integrated gradients")
SECOND = Answer({"label": "A", "score": 0.25})
FIRST = Answer({"label": "B", "score": 0.75}, all=[Answer({"label": "B", "score": 0.75}), SECOND])
FULL = FIRST.replace(read=COVERAGE, window=1, why=ATTRIBUTION)
SEVERAL = Answers([FULL, SECOND], read=COVERAGE)
OUTPUT = Output({"label": torch.ones(1)})

CHANGES: dict[str, Callable[[Any], Any]] = {
    "item": lambda one: one.__setitem__("label", "C"),
    "deleted": lambda one: one.__delitem__("label"),
    "attribute": lambda one: setattr(one, "read", None),
    "attribute deleted": lambda one: delattr(one, "read"),
    "update": lambda one: one.update(label="C"),
    "setdefault": lambda one: one.setdefault("x", 1),
    "pop": lambda one: one.pop("label"),
    "popitem": lambda one: one.popitem(),
    "clear": lambda one: one.clear(),
    "or": lambda one: one.__ior__({"x": 1}),
}
LIST_CHANGES: dict[str, Callable[[Any], Any]] = {
    "item": lambda one: one.__setitem__(0, SECOND),
    "deleted": lambda one: one.__delitem__(0),
    "slice": lambda one: one.__setitem__(slice(0, 1), []),
    "attribute": lambda one: setattr(one, "read", None),
    "append": lambda one: one.append(1),
    "extend": lambda one: one.extend([1]),
    "insert": lambda one: one.insert(0, 1),
    "remove": lambda one: one.remove(SECOND),
    "pop": lambda one: one.pop(),
    "clear": lambda one: one.clear(),
    "sort": lambda one: one.sort(key=str),
    "reverse": lambda one: one.reverse(),
    "plus": lambda one: one.__iadd__([1]),
    "times": lambda one: one.__imul__(2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("one", "name"), [(FULL, "answer"), (OUTPUT, "output")], ids=["answer", "output"])
def test_answer_and_output_cannot_be_changed(one: Any, name: str, change: str) -> None:
    before = dict(one), vars(one).copy()
    with pytest.raises(TypeError, match=rf"cannot be changed: copy it with dict\({name}\)"):
        CHANGES[change](one)
    assert (dict(one), vars(one)) == before


@pytest.mark.parametrize("change", LIST_CHANGES)
def test_list_of_answers_cannot_be_changed(change: str) -> None:
    before = list(SEVERAL)
    with pytest.raises(TypeError, match=r"cannot be changed: .* list\(answer\)"):
        LIST_CHANGES[change](SEVERAL)
    assert list(SEVERAL) == before


def test_every_mutating_method_of_dict_and_list_is_refused() -> None:
    """Every method that dict and list have, and frozen mappings and tuples lack, is refused or returns a copy."""
    reading = {"copy", "fromkeys", "items", "keys", "values", "get"}
    kinds = ((Answer, dict, reading), (Output, dict, reading), (Answers, list, {"copy", "count", "index"}))
    for kind, builtin, harmless in kinds:
        for name in set(dir(builtin)) - set(dir(object)) - harmless:
            if not name.startswith("__") or name in ("__setitem__", "__delitem__", "__iadd__", "__imul__", "__ior__"):
                assert getattr(kind, name) is not getattr(builtin, name), f"{kind.__name__}.{name} changes it"


def test_copies_can_be_changed() -> None:
    copied, several = dict(FULL), list(SEVERAL)
    copied["label"] = "C"
    several.append(1)
    assert FULL["label"] == "B" and len(SEVERAL) == 2
    assert type(FULL | {"x": 1}) is dict and type(FULL.copy()) is dict and type(SEVERAL[:1]) is list


def test_answers_are_valid_json() -> None:
    assert json.loads(json.dumps(FULL)) == {"label": "B", "score": 0.75} == FULL
    assert json.loads(json.dumps(SEVERAL)) == [dict(FULL), dict(SECOND)] == SEVERAL
    assert isinstance(FULL, dict) and isinstance(SEVERAL, list)


def test_whole_adds_coverage_and_attribution() -> None:
    assert SECOND.whole() == {"label": "A", "score": 0.25}
    assert FULL.whole() == {
        "label": "B",
        "score": 0.75,
        "all": [{"label": "B", "score": 0.75}, {"label": "A", "score": 0.25}],
        "window": [7, 15],
        "cut": 3,
        "why": {"target": "logit of 'B'", "method": "integrated gradients", "tokens": [("a", 0.5), ("b", -1.25)]},
    }
    assert Answer({"a": 1}, read=TextCoverage(((0, 0),), empty=True), window=0).whole() == {"a": 1, "empty": True}
    assert SEVERAL.whole() == [FULL.whole(), SECOND.whole()] and Answers([[1.0]]).whole() == [[1.0]]
    whole = FULL.whole()
    assert json.loads(json.dumps(whole))["why"]["tokens"] == [["a", 0.5], ["b", -1.25]]
    whole["label"] = "C"
    assert FULL["label"] == "B" and type(whole) is dict


def test_replace_changes_only_the_given_fields() -> None:
    assert FULL == FIRST and FULL.all == FIRST.all and FIRST.why is None and FULL.why == ATTRIBUTION
    other = SEVERAL.replace(why=ATTRIBUTION)
    assert other == SEVERAL and other.read == COVERAGE and other.why == ATTRIBUTION and SEVERAL.why is None


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("method", COPIES)
@pytest.mark.parametrize(
    "one", [FULL, SECOND, SEVERAL, Answers([]), OUTPUT], ids=["full", "plain", "several", "none", "output"]
)
def test_answers_and_outputs_survive_copying_and_pickling(one: Any, method: str) -> None:
    copied = COPIES[method](one)
    assert type(copied) is type(one) and copied == one and vars(copied) == vars(one)
    with pytest.raises(TypeError):
        copied.read = None


def test_answers_can_be_sent_to_another_process() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (returned,) = pool.map(_without_window, [FULL])
    assert (
        returned == {"label": "B", "score": 0.75}
        and returned.why == ATTRIBUTION
        and returned.read == COVERAGE
        and returned.window is None
    )


def _without_window(answer: Answer) -> Answer:
    return answer.replace(window=None)


def test_coverage_and_attribution_are_hashable_and_frozen() -> None:
    assert hash(COVERAGE) == hash(TextCoverage(((0, 9), (7, 15)), 3)) and hash(ATTRIBUTION)
    with pytest.raises(AttributeError):
        COVERAGE.cut = 4  # type: ignore[misc]
