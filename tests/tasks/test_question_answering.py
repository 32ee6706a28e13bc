"""Question answering: planted facts under each rule for long contexts, the reference's scores, and odd inputs."""

import json
import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.tasks.answer import Answer
from pellucid.text import Window, windows
from tests.parity.cases import COUNTRIES, LONG, ZURICH
from tests.tasks import planted_facts
from tests.tasks.planted_facts import ANSWERS, WHERE, WHO, neutral_words

FAMILIES = ("bert-cased", "roberta", "albert", "xlm-roberta", "distilbert", "mpnet", "bart", "gpt2", "t5")
BORN, TALL = "Where was Marie Curie born?", "How tall is the Eiffel Tower?"


@pytest.fixture(scope="module")
def trained_reader(tmp_path_factory: pytest.TempPathFactory) -> "pellucid.Model":
    return pellucid.load(planted_facts.trained_reader(tmp_path_factory.mktemp("finder")))


@pytest.fixture(scope="module")
def load_reader(checkpoint: Callable[[str], Path]) -> Any:
    """Loads a tiny model of a family."""
    return cache(lambda family: pellucid.load(checkpoint(f"{family}-reader")))


def answer_to(model: "pellucid.Model", question: str, context: str, **options: Any) -> Answer:
    return pellucid.pipeline("question-answering", model)(question=question, context=context, **options)


# -- planted facts ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_planted_facts_are_found_and_absent_ones_are_not(trained_reader: "pellucid.Model") -> None:
    generator = random.Random(3)
    for question, answers in ANSWERS.items():
        for answer in answers:
            other = ANSWERS[WHERE if question == WHO else WHO][1]
            context = neutral_words(generator, 20, at_4=other, at_13=answer)
            found = answer_to(trained_reader, question, context, handle_impossible_answer=True)
            assert found["answer"] == answer == context[found["start"] : found["end"]]
            assert found["score"] > 0.5 and found.read.cut == 0
            without = answer_to(
                trained_reader, question, neutral_words(generator, 20, at_4=other), handle_impossible_answer=True
            )
            assert without == {"score": without["score"], "start": 0, "end": 0, "answer": ""}


def test_ten_thousand_words_follow_each_rule(trained_reader: "pellucid.Model") -> None:
    context = neutral_words(random.Random(1), 10_000, at_12="Vienna", at_7777="Werner von Siemens")
    with pytest.raises(InputError, match=r"^item 0 has [\d,]+ tokens more than the 96 that are read at once"):
        answer_to(trained_reader, WHO, context)
    truncated = {"long": "truncate", "handle_impossible_answer": True}
    assert answer_to(trained_reader, WHERE, context, **truncated)["answer"] == "Vienna"
    cut_off = answer_to(trained_reader, WHO, context, **truncated)
    assert cut_off["answer"] == "" and cut_off.read.cut > 9_900 and len(cut_off.read.windows) == 1
    assert cut_off.whole()["cut"] == cut_off.read.cut
    for question, answer in ((WHERE, "Vienna"), (WHO, "Werner von Siemens")):
        found = answer_to(trained_reader, question, context, long="windows", handle_impossible_answer=True)
        assert found["answer"] == answer and found["start"] == context.index(answer) and found.read.cut == 0
        windows = found.read.windows
        assert windows[0][0] == 0 and windows[-1][1] == len(context)
        assert all(later[0] <= earlier[1] for earlier, later in pairwise(windows))
        assert found.window is not None and windows[found.window][0] <= found["start"] < windows[found.window][1]
        assert json.loads(json.dumps(found)) == found and found.whole()["window"] == list(windows[found.window])


@pytest.mark.parametrize("stride", [0, 1, 20, None])
def test_fact_is_found_at_every_position(trained_reader: "pellucid.Model", stride: int | None) -> None:
    generator = random.Random(2)
    for position in range(0, 60, 7):
        context = neutral_words(generator, 60, **{f"at_{position}": "Gustave Eiffel"})
        found = answer_to(trained_reader, WHO, context, long="windows", max_length=40, stride=stride)
        assert found["answer"] == "Gustave Eiffel" and len(found.read.windows) > 1


def test_every_form_of_several_items_is_accepted(trained_reader: "pellucid.Model") -> None:
    pipe, generator = pellucid.pipeline("question-answering", trained_reader), random.Random(4)
    first, second = (
        neutral_words(generator, 9, at_3="Berlin", at_6="Buzz Aldrin"),
        neutral_words(generator, 30, at_20="Paris"),
    )
    expected = [pipe(question=WHERE, context=first), pipe(question=WHERE, context=second)]
    assert [found["answer"] for found in expected] == ["Berlin", "Paris"]
    rows = [{"question": WHERE, "context": first}, {"question": WHERE, "context": second}]
    all_forms = [
        pipe(question=WHERE, context=[first, second]),
        pipe({"question": WHERE, "context": [first, second]}),
        pipe(question=[WHERE, WHERE], context=(first, second)),
        pipe(rows),
        pipe(row for row in rows),
        pipe([(WHERE, first), (WHERE, second)]),
        list(pipe.many(rows)),
    ]
    for found in all_forms:
        assert [dict(one) | {"score": 0} for one in found] == [dict(one) | {"score": 0} for one in expected]
        assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-5)
    assert pipe(WHO, first)["answer"] == pipe((WHO, first))["answer"] == pipe(rows[0] | {"question": WHO})["answer"]
    assert pipe(question=[WHERE], context=[first])[0]["answer"] == "Berlin" and pipe([]) == []


def test_attribution_explains_start_and_end_logits(trained_reader: "pellucid.Model") -> None:
    context = neutral_words(random.Random(5), 12, at_5="Werner von Siemens")
    found = answer_to(trained_reader, WHO, context, explain=True)
    assert found.why is not None and found.why.target == "logits of start and end of 'Werner von Siemens'"
    assert len(found.why.tokens) == len(found.why.scores) and any(found.why.scores)
    none = answer_to(trained_reader, WHERE, context, explain=True, handle_impossible_answer=True)
    assert none["answer"] == "" and none.why is not None and none.why.target == "logits of no answer"


# -- offsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("words", [True, False])
def test_answers_are_substrings_of_the_context(load_reader: Any, family: str, words: bool) -> None:
    context = "  Jürgen\u00a0Müller 🙂 ate 北京 naïve\tﬁre, it's\n 1,500 e\u0301t  "
    found = answer_to(load_reader(family), BORN, context, top_k=8, align_to_words=words, long="windows", max_length=45)
    assert len(found.all) > 2
    for one in found.all:
        text = context[one["start"] : one["end"]]
        assert one["answer"] == text == text.strip() and text
        if words:
            before, after = context[one["start"] - 1 : one["start"]], context[one["end"] : one["end"] + 1]
            within_word = (before.isalnum() and text[0].isalnum()) or (after.isalnum() and text[-1].isalnum())
            assert not within_word or "北" in text + before + after or "京" in text + before + after


def test_score_is_the_product_of_start_and_end_probabilities(load_reader: Any) -> None:
    model = load_reader("roberta")
    (window,) = windows(model.tokenizer, BORN, ZURICH, side=1)
    found = answer_to(model, BORN, ZURICH, align_to_words=False, max_answer_len=4)
    logits = model(torch.tensor([window.ids]))["logits"][0].detach().double()
    positions = [0, *(i for i, side in enumerate(window.sequence_ids) if side == 1)]
    probabilities = logits[positions].softmax(dim=0)
    best = max(
        (float(probabilities[i, 0] * probabilities[j, 1]), positions[i], positions[j])
        for i in range(1, len(positions))
        for j in range(i, min(i + 4, len(positions)))
    )
    assert found["score"] == pytest.approx(best[0], abs=1e-6)
    assert (found["start"], found["end"]) == (window.offsets[best[1]][0], window.offsets[best[2]][1])


# -- the reference ----------------------------------------------------------------------------------------------------

REFERENCE: list[tuple[str, str, str, dict[str, Any], list[tuple[float, int, int]]]] = [
    (
        *("bert", BORN, LONG, {"stride": 20, "max_length": 48, "top_k": 5}),
        [
            *[(0.269235831, 369, 385), (0.176832721, 66, 111), (0.118514621, 174, 211)],
            *[(0.107319619, 490, 507), (0.0862834649, 39, 74)],
        ],
    ),
    (
        *("bert", BORN, LONG, {"stride": 4, "max_length": 32, "top_k": 3, "max_answer_len": 3}),
        [(0.247879386, 144, 152), (0.0930689326, 239, 244), (0.0797740103, 450, 456)],
    ),
    (
        *("albert", TALL, LONG, {"top_k": 3, "handle_impossible_answer": True}),
        [(0.00607603596, 422, 456), (0.00213763368, 432, 456), (0.00212659559, 541, 586)],
    ),
    (
        *("roberta", BORN, COUNTRIES, {"align_to_words": False, "top_k": 5}),
        [
            *[(0.00708609633, 70, 71), (0.00583128631, 78, 92), (0.00507372199, 226, 227)],
            *[(0.00493616704, 280, 299), (0.0046503148, 57, 71)],
        ],
    ),
]
"""Answers of the pipeline of transformers 4.57.6 for the same tiny checkpoints."""


@pytest.mark.parametrize(("family", "question", "context", "options", "expected"), REFERENCE)
def test_scores_per_window_equal_the_reference_s(
    load_reader: Any, family: str, question: str, context: str, options: Any, expected: list[tuple[float, int, int]]
) -> None:
    found = answer_to(load_reader(family), question, context, scores="per_window", **options)
    assert [(one["start"], one["end"]) for one in found.all] == [span[1:] for span in expected]
    assert [one["score"] for one in found.all] == pytest.approx([span[0] for span in expected], abs=1e-6)
    assert all(one["answer"] == context[one["start"] : one["end"]] for one in found.all)


# -- refused inputs ---------------------------------------------------------------------------------------------------

ITEMS: list[tuple[Any, str]] = [
    ([(WHO, "a"), "b"], r"^item 1 is one text, expected a question and its context"),
    ([(WHO, "a"), (WHO, " \n")], r"^the context of item 1 is empty"),
    ([("", "a")], r"^the question of item 0 is empty"),
    ([(WHO, "a"), {"question": WHO}], r"^item 1 has no context"),
    ([{"question": None, "context": "a"}], r"^item 0 has no question"),
    ([{"question": WHO, "context": "a", "id": "7"}], r"^item 0 has the keys question, context, id, expected"),
    ([(WHO, 5)], r"^item 0 holds int, expected two texts"),
    ([(WHO, "a"), None], r"^item 1 is NoneType"),
    ([(WHO, b"a")], r"^item 0 holds bytes"),
    ([(WHO, "a"), (WHO, "\x00\u200b")], r"^the context of item 1 has no tokens"),
    ([(WHO * 30, "a")], r"^item 0: the rest of the input leaves no room"),
]


@pytest.mark.parametrize(("items", "message"), ITEMS)
def test_invalid_items_are_refused(load_reader: Any, items: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pellucid.pipeline("question-answering", load_reader("bert"), long="windows")(items)


CALLS: list[tuple[dict[str, Any], str]] = [
    ({"question": WHO, "context": None}, r"^item 0 has no context: give both"),
    ({"question": [WHO], "context": torch.tensor(3)}, r"^context is Tensor, expected a text or a list of texts"),
    ({"question": [WHO], "context": ["a", "b"]}, r"entries, expected as many of each"),
    ({"question": WHO, "context": "a", "top_k": 0}, r"^top_k is 0, expected a whole number from 1"),
    ({"question": WHO, "context": "a", "max_answer_len": 1.5}, r"^max_answer_len is 1.5"),
    ({"question": WHO, "context": "a", "align_to_words": "no"}, r"^align_to_words is 'no', expected true or false"),
    ({"question": WHO, "context": "a", "handle_impossible_answer": 1}, r"^handle_impossible_answer is 1"),
    ({"question": WHO, "context": "a", "scores": "compared"}, r"^scores is 'compared' \(did you mean comparable\?\)"),
    ({"question": WHO, "context": "a", "doc_stride": 4}, r"has no option 'doc_stride' \(did you mean stride\?\)"),
    ({"question": WHO, "context": LONG, "long": "windows", "stride": 95}, r"^stride is 95, expected a whole number"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_invalid_calls_are_refused(load_reader: Any, call: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pellucid.pipeline("question-answering", load_reader("bert"))(**call)


def test_unpaired_surrogates_and_special_tokens_are_plain_text(load_reader: Any) -> None:
    context = "[SEP] Berlin \ud83d\ude00 [CLS] \udc00 [MASK]"
    found = answer_to(load_reader("bert"), "Who \ud800?", context, top_k=20, explain=True)
    json.dumps(found.whole(), ensure_ascii=False).encode()
    for one in found.all:  # surrogate pairs are tokenized as one character and counted as two
        text = context[one["start"] : one["end"]].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert text == one["answer"]
    assert any(one["start"] > context.index("[CLS]") for one in found.all)


def test_model_without_the_head_is_refused(minilm: "pellucid.Model", tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no head, and question-answering needs question-answering"):
        pellucid.pipeline("question-answering", minilm)


def test_windows_have_token_types(load_reader: Any) -> None:
    """The context is the second text in every window, not only in the first."""
    found: list[Window] = windows(load_reader("bert").tokenizer, WHO, LONG, rule="windows", side=1)
    assert len(found) > 2
    for window in found:
        assert all(kind == side for kind, side in zip(window.type_ids, window.sequence_ids) if side is not None)
