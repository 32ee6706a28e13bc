"""Labels of the caller: planted facts under each rule, which label means what, the reference's scores, odd inputs."""

import json
import random
import time
import unittest.mock
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.tasks import zero_shot
from pellucid.tasks.answer import Answer
from pellucid.tasks.entailment import contradiction_index, entailment_index
from pellucid.tasks.zero_shot import labels_of
from tests.parity import tiny
from tests.parity.cases import BAD, GOOD, LONG, PLAIN
from tests.tasks import planted_facts
from tests.tasks.planted_facts import CLASSES, neutral_words

TASK = "zero-shot-classification"
TOPICS = ["politics", "sports", "science and technology"]
FAMILIES = ("bert", "roberta", "bart", "mpnet", "albert")


@pytest.fixture(scope="module")
def trained_nli(tmp_path_factory: pytest.TempPathFactory) -> "pellucid.Model":
    return pellucid.load(planted_facts.trained_nli(tmp_path_factory.mktemp("judge")))


@pytest.fixture(scope="module")
def load_nli(checkpoint: Callable[[str], Path]) -> Any:
    """Loads a tiny model of a family."""
    return cache(lambda family: pellucid.load(checkpoint(f"{family}-nli")))


def classify(model: "pellucid.Model", text: Any, labels: Any = ("city", "person"), **options: Any) -> Answer:
    return pellucid.pipeline(TASK, model, candidate_labels=labels)(text, **options)


def by_label(found: Answer) -> dict[str, float]:
    return dict(zip(found["labels"], found["scores"]))


# -- planted facts ----------------------------------------------------------------------------------------------------


def test_matching_labels_score_highest(trained_nli: "pellucid.Model") -> None:
    generator = random.Random(1)
    for kind, members in CLASSES.items():
        for member in members:
            found = classify(trained_nli, neutral_words(generator, 15, at_7=member))
            assert found["labels"][0] == kind and found["scores"][0] > 0.9 and sum(found["scores"]) == pytest.approx(1)
            independent = by_label(classify(trained_nli, neutral_words(generator, 15, at_7=member), multi_label=True))
            assert {label: score > 0.5 for label, score in independent.items()} == {one: one == kind for one in CLASSES}
    both = by_label(
        classify(trained_nli, neutral_words(generator, 15, at_3="Berlin", at_9="Buzz Aldrin"), multi_label=True)
    )
    neither = by_label(classify(trained_nli, neutral_words(generator, 15), multi_label=True))
    assert min(both.values()) > 0.5 > max(neither.values())
    one = classify(trained_nli, neutral_words(generator, 15), ["person"])
    assert one["scores"] == pytest.approx([neither["person"]], abs=0.2) and one["labels"] == ["person"]


def test_ten_thousand_words_follow_each_rule(trained_nli: "pellucid.Model") -> None:
    planted = {f"at_{position}": "Vienna" for position in range(300, 10_000, 20)}
    text = neutral_words(random.Random(2), 10_000, **planted)
    with pytest.raises(InputError, match=r"^item 0 has [\d,]+ tokens more than the 96 that are read at once"):
        classify(trained_nli, text)
    truncated = classify(trained_nli, text, long="truncate", multi_label=True)
    assert max(truncated["scores"]) < 0.5 and truncated.read.cut > 9_900 and len(truncated.read.windows) == 1
    windowed = classify(trained_nli, text, long="windows", multi_label=True)
    assert by_label(windowed)["city"] > 0.5 > by_label(windowed)["person"] and windowed.read.cut == 0
    assert (
        windowed.read.windows[0][0] == 0
        and windowed.read.windows[-1][1] == len(text)
        and len(windowed.read.windows) > 100
    )
    assert json.loads(json.dumps(windowed.whole())) == dict(windowed)


def test_windows_are_weighted_by_their_number_of_tokens(load_nli: Any) -> None:
    model, labels = load_nli("roberta"), ["sports", "a much longer label than the other"]
    found = classify(model, LONG, labels, long="windows", max_length=50, stride=0)
    logits = []
    for label in labels:
        rows = [
            (len(window.ids), model(torch.tensor([window.ids]))["logits"][0, 2])
            for window in pellucid.text.windows(
                model.tokenizer, LONG, f"This example is {label}.", rule="windows", max_length=50, stride=0
            )
        ]
        assert len(rows) > 3
        logits.append(sum(size * logit for size, logit in rows) / sum(size for size, _ in rows))
    expected = torch.stack(logits).softmax(dim=0).tolist()
    assert by_label(found) == pytest.approx(dict(zip(labels, expected)), abs=1e-6)


def test_several_texts_give_the_same_answers_as_one_by_one(load_nli: Any) -> None:
    model = load_nli("bart")
    pipe = pellucid.pipeline(TASK, model, candidate_labels=TOPICS, multi_label=True)
    texts = [GOOD, BAD, PLAIN, "", " \n"]
    together = pipe(texts)
    assert [one.read.empty for one in together] == [False, False, False, True, True]
    for text, found in zip(texts, together):
        single = pipe({"sequences": text})
        assert found["sequence"] == single["sequence"] == text and found["labels"] == single["labels"]
        assert found["scores"] == pytest.approx(single["scores"], abs=1e-5)
    assert [one["labels"] for one in pipe(iter(texts))] == [one["labels"] for one in together]
    assert pipe(GOOD, candidate_labels="b,a , c,")["labels"] != TOPICS and pipe([]) == []


def test_attribution_explains_the_best_label(trained_nli: "pellucid.Model") -> None:
    text = neutral_words(random.Random(3), 12, at_5="Oxford")
    found = classify(trained_nli, text, explain=True)
    assert found.why is not None and found.why.target == "logit of entailment of 'city'"
    assert len(found.why.tokens) == len(found.why.scores) and any(found.why.scores)


# -- what the model's labels mean -------------------------------------------------------------------------------------

NAMES: list[tuple[tuple[str, ...], int | None, int | None]] = [
    (("contradiction", "neutral", "entailment"), 2, 0),
    (("ENTAILMENT", "NEUTRAL", "CONTRADICTION"), 0, 2),
    (("neutral", "entailment", "contradiction"), 1, 2),
    (("Contradictory", "Entailed", "Unknown"), 1, 0),
    (("is_entailment", "is-neutral", "is contradicted"), 0, 2),
    (("not_entailment", "entailment"), 1, 0),
    (("entailment", "not_entailment"), 0, 1),
    (("notEntailed", "entailed"), 1, 0),
    (("entails", "other"), 0, 1),
    (("neutral", "entailment", "not_entailment"), 1, None),
    (("LABEL_0", "LABEL_1", "LABEL_2"), None, None),
    (("negative", "positive"), None, None),
]


@pytest.mark.parametrize(("labels", "entails", "contradicts"), NAMES)
def test_entailment_and_contradiction_are_found_by_label_names(
    labels: tuple[str, ...], entails: int | None, contradicts: int | None
) -> None:
    assert (entailment_index(labels), contradiction_index(labels)) == (entails, contradicts)


def test_contradiction_is_not_assumed_to_be_the_first_label(trained_nli: "pellucid.Model") -> None:
    """The reference takes "neutral" here, which this model never answers."""
    text = neutral_words(random.Random(4), 15)
    assert max(classify(trained_nli, text, multi_label=True)["scores"]) < 0.5
    assert (
        min(
            pellucid.pipeline(TASK, trained_nli, roles="fixed")(text, candidate_labels="city,person", multi_label=True)[
                "scores"
            ]
        )
        > 0.1
    )


def test_model_without_an_entailment_label_is_refused(tmp_path: Path) -> None:
    model = pellucid.load(tiny.write("distilbert-nli", tmp_path / "unnamed"))
    message = (
        r"^none of the model's labels \(LABEL_0, LABEL_1, LABEL_2\) means entailment: choose .* pass roles='fixed'"
    )
    with pytest.raises(InputError, match=message):
        pellucid.pipeline(TASK, model)
    found = pellucid.pipeline(TASK, model, roles="fixed")(GOOD, candidate_labels=TOPICS)
    assert found["labels"] == ["science and technology", "sports", "politics"]
    assert found["scores"] == pytest.approx([0.363586247, 0.321091294, 0.315322399], abs=1e-6)


# -- the reference ----------------------------------------------------------------------------------------------------

REFERENCE: list[tuple[str, str, dict[str, Any], list[float]]] = [
    ("bert", GOOD, {"multi_label": True}, [0.737209976, 0.682355642, 0.739549994]),
    ("roberta", GOOD, {}, [0.3478432, 0.357881218, 0.294275612]),
    (
        "roberta",
        GOOD,
        {"hypothesis_template": "{} is the topic", "multi_label": True},
        [0.177851751, 0.183579087, 0.149085835],
    ),
    ("bart", GOOD, {}, [0.294609755, 0.316697329, 0.388692945]),
    ("bart", BAD, {"multi_label": True}, [0.0580257475, 0.054845497, 0.060823001]),
    ("mpnet", GOOD, {}, [0.334173977, 0.343141645, 0.322684288]),
    ("albert", BAD, {"multi_label": True}, [0.475141257, 0.533255875, 0.306114078]),
]
"""Scores of TOPICS from the pipeline of transformers 4.57.6 for the same tiny checkpoints."""


@pytest.mark.parametrize(("family", "text", "options", "expected"), REFERENCE)
def test_scores_equal_the_reference_s(
    load_nli: Any, family: str, text: str, options: Any, expected: list[float]
) -> None:
    found = classify(load_nli(family), text, TOPICS, **options)
    assert found["sequence"] == text and by_label(found) == pytest.approx(dict(zip(TOPICS, expected)), abs=1e-6)
    assert found["scores"] == sorted(found["scores"], reverse=True)


# -- refused inputs ---------------------------------------------------------------------------------------------------

OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"candidate_labels": []}, r"^candidate_labels holds no label: give at least one$"),
    ({"candidate_labels": " , ,"}, r"^candidate_labels holds no label"),
    ({"candidate_labels": ["a", "b", "a"]}, r"^candidate_labels\[2\] is 'a' again"),
    ({"candidate_labels": "a, b,a"}, r"^candidate_labels\[2\] is 'a' again"),
    ({"candidate_labels": ["a", " "]}, r"^candidate_labels\[1\] is empty"),
    ({"candidate_labels": ["a", 5]}, r"^candidate_labels\[1\] is int, expected a text"),
    ({"candidate_labels": 5}, r"^candidate_labels is int, expected a list of texts"),
    ({"candidate_labels": b"a,b"}, r"^candidate_labels is bytes, expected a list of texts"),
    ({"hypothesis_template": "This is it."}, r"^hypothesis_template is 'This is it.', expected a text with {} where"),
    ({"hypothesis_template": None}, r"^hypothesis_template is None, expected a text with {}"),
    ({"multi_label": "yes"}, r"^multi_label is 'yes', expected true or false"),
    ({"roles": "fixd"}, r"^roles is 'fixd' \(did you mean fixed\?\)"),
    ({"labels": ["a"]}, r"has no option 'labels'"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_invalid_options_are_refused(load_nli: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pellucid.pipeline(TASK, load_nli("bert"))(GOOD, **({"candidate_labels": TOPICS} | options))


ITEMS: list[tuple[list[Any], str]] = [
    ([GOOD, None], r"^item 1 is NoneType, expected a text"),
    ([GOOD, b"bytes"], r"^item 1 is bytes"),
    ([GOOD, {"text": GOOD}], r"^item 1 has the keys text, expected a text, or a dict with a text under 'sequences'"),
    ([GOOD, (GOOD, BAD)], r"^item 1 is tuple"),
    ([GOOD, LONG], r"^item 1 has \d+ tokens more than the 96"),
]


@pytest.mark.parametrize(("items", "message"), ITEMS)
def test_invalid_items_are_refused(load_nli: Any, items: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        classify(load_nli("bert"), items, TOPICS)


def test_missing_labels_are_refused(load_nli: Any) -> None:
    with pytest.raises(InputError, match=r"^zero-shot-classification needs labels: pass candidate_labels=\["):
        pellucid.pipeline(TASK, load_nli("bert"))(GOOD)


def test_single_label_without_a_contradiction_label_is_refused(tmp_path: Path) -> None:
    folder = tiny.write("bert-nli", tmp_path / "open")
    config = json.loads((folder / "config.json").read_text())
    names = ["entailment", "neutral", "unrelated"]
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps(config))
    pipe = pellucid.pipeline(TASK, folder)
    assert len(pipe(GOOD, candidate_labels=TOPICS)["labels"]) == 3
    with pytest.raises(InputError, match=r"means contradiction, against which a label is scored alone"):
        pipe(GOOD, candidate_labels="sports")


@pytest.mark.parametrize(
    ("numbers", "reported"),
    [
        ({"ENTAILMENT": 2, "NEUTRAL": 1, "CONTRADICTION": 0}, "'ENTAILMENT', 'CONTRADICTION'"),
        ({"ENTAILMENT": "0", "NEUTRAL": 1, "CONTRADICTION": 2}, ""),
        ({"yes": 1}, "'ENTAILMENT', 'NEUTRAL', 'CONTRADICTION', 'yes'"),
        ({"LABEL_0": 0, "LABEL_1": 1}, ""),
    ],
)
def test_conflicting_label_indices_are_reported(
    tmp_path: Path, numbers: dict[str, Any], reported: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reference's zero-shot classification reads label2id, everything else id2label."""
    path = tiny.write("bert-nli", tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"label2id": numbers}))
    assert pellucid.load(tmp_path).config.labels[0] == "ENTAILMENT"
    assert [one.partition("about ")[2].partition(";")[0] for one in caplog.messages] == ([reported] if reported else [])


def test_labels_with_special_characters_are_accepted(load_nli: Any) -> None:
    labels = ["{}", "{0.__class__}", "a, b", "[SEP] it", "half \ud800"]
    found = classify(load_nli("bert"), "half a \ud83d\ude00 pair \ud800", labels)
    assert sorted(found["labels"]) == sorted(labels) and sum(found["scores"]) == pytest.approx(1)
    assert found["sequence"] == "half a 😀 pair \ufffd"


def test_thousands_of_labels_are_checked_quickly() -> None:
    """Each used to be compared with all before it, and again for each label of an answer."""
    labels = [f"label {i}" for i in range(20_000)]
    start = time.process_time()
    assert labels_of(labels) == labels
    assert time.process_time() - start < 1


def test_labels_are_checked_once_per_answer(load_nli: Any) -> None:
    labels = [f"label {i}" for i in range(1_000)]
    with unittest.mock.patch.object(zero_shot, "labels_of", wraps=labels_of) as spy:
        assert sorted(classify(load_nli("bert"), GOOD, labels)["labels"]) == sorted(labels)
    assert spy.call_count < 10
