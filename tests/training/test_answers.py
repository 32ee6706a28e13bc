"""Question answering: the reference's loss, answer positions in windows, SQuAD files, and finding planted facts."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pellucid
from pellucid.checkpoints.save import save_checkpoint
from pellucid.errors import InputError
from pellucid.training.answers import QuestionAnswering
from pellucid.training.data import read
from pellucid.training.formats import read_squad
from pellucid.training.learner import Learner
from pellucid.training.objective import Example
from pellucid.training.settings import Settings
from tests.tasks.trained import ANSWERS, WHERE, WHO, WORDS
from tests.training.learned import ready, result, training

Rows = list[dict[str, Any]]
Opened = Callable[..., "pellucid.Model"]

CHANCE = np.random.default_rng(0)
MARIE = {"question": "Where was she born?", "context": "Marie Curie was born in Warsaw, in Poland.", "answer": "Warsaw"}


def rows(many: int, seed: int = 0, longest: int = 14) -> Rows:
    """Questions about facts planted among neutral words; some contexts do not hold the answer."""
    chance, found = random.Random(seed), []
    for _ in range(many):
        words, question, said = chance.choices(WORDS, k=chance.randint(4, longest)), chance.choice(list(ANSWERS)), None
        for asked_, answers in ANSWERS.items():
            if chance.random() < 0.7:
                answer = chance.choice(answers)
                words.insert(chance.randint(0, len(words)), answer)
                said = answer if asked_ == question else said
        context = " ".join(words)
        answers_ = {"text": [said] if said else [], "answer_start": [context.index(said)] if said else []}
        found.append({"question": question, "context": context, "answers": answers_})
    return found


def asked(
    model: "pellucid.Model", data: Rows, **options: Any
) -> tuple[QuestionAnswering, "pellucid.Model", list[Example]]:
    """The objective, the model at the start of training, and the examples."""
    objective, loaded = ready(model.loaded, QuestionAnswering(**options), data)
    return objective, pellucid.Model(loaded), objective.examples(loaded, data)


# -- against the reference ---------------------------------------------------------------------------------------------


def test_the_loss_is_the_references(opened: Opened, tmp_path: Path) -> None:
    row = rows(1)[0]
    alike = [row, row | {"question": row["question"]}, {**row, "answers": {"text": [], "answer_start": []}}]
    objective, begun, examples = asked(opened("bert-body"), alike)
    batch = objective.collate(begun.loaded, examples, CHANCE)
    assert "attention_mask" not in batch  # the reference's softmax includes padding
    save_checkpoint(begun.loaded, tmp_path / "begun")
    reference = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "begun")
    given = {name: value for name, value in batch.items() if name != "labels"}
    starts, ends = batch["labels"].unbind(dim=1)
    wanted = reference(**given, start_positions=starts, end_positions=ends).loss * objective.weight(batch)
    wanted.backward()
    learner = Learner(begun.loaded, Settings(precision="float32"))
    learner.seed_dropout(0, 0)
    loss = objective.loss(learner, batch)
    loss.backward()
    assert objective.weight(batch) == 3 and loss.item() == pytest.approx(wanted.item(), abs=1e-4)
    own = dict(begun.module.named_parameters())["head.classifier.weight"].grad
    assert torch.allclose(own, reference.qa_outputs.weight.grad, atol=1e-4)


def test_padding_changes_no_loss(opened: Opened) -> None:
    data = rows(6)
    objective, begun, examples = asked(opened("bert-body"), data)
    learner = Learner(begun.loaded, Settings(precision="float32"))
    batch = objective.collate(begun.loaded, examples, CHANCE)
    assert "attention_mask" in batch
    learner.seed_dropout(0, 0)
    together = objective.loss(learner, batch).item()
    apart = [objective.loss(learner, objective.collate(begun.loaded, [one], CHANCE)).item() for one in examples]
    assert together == pytest.approx(sum(apart), abs=1e-4)


# -- reading data ------------------------------------------------------------------------------------------------------


def test_tokens_of_an_answer(opened: Opened) -> None:
    model = opened("bert-body")
    _, begun, examples = asked(model, [MARIE, *rows(20)])
    for row, one in zip([MARIE, *rows(20)], examples):
        (window,) = QuestionAnswering()._windows(begun.loaded, one.target.question, 0)
        assert window.ids == one.ids[0]
        first, last = one.target.first, one.target.last
        text = row["context"][window.offsets[first][0] : window.offsets[last][1]]
        answers = [row["answer"]] if "answer" in row else row["answers"]["text"]
        assert text == answers[0] if answers else (first, last) == (0, 0)


@pytest.mark.parametrize(
    ("context", "answer"), [("In a cafe\u0301", "cafe\u0301"), ("It is in Warsaw ", "Warsaw "), (" Ana did", " Ana")]
)
def test_an_answer_is_learned_with_what_no_token_holds(opened: Opened, context: str, answer: str) -> None:
    row = {"question": "Where?", "context": context, "answer": answer}
    _, _, (example,) = asked(opened("bert-body"), [row])
    assert 0 < example.target.first <= example.target.last


@pytest.mark.parametrize("family", ["bert-cased", "roberta", "xlm-roberta", "albert", "mpnet"])
def test_stretches_without_the_answer_point_at_the_first_token(opened: Opened, family: str) -> None:
    context = " ".join([*WORDS[:60], "Warsaw", *WORDS[:40]])
    row = MARIE | {"context": context}
    _, begun, examples = asked(opened(f"{family}-reader", head=None), [row], max_length=48)
    windows = QuestionAnswering(max_length=48)._windows(begun.loaded, examples[0].target.question, 0)
    assert len(examples) == len(windows) > 3
    held = 0
    for window, one in zip(windows, examples):
        low, high = window.span(side=1)
        place = (one.target.first, one.target.last)
        if low <= context.index("Warsaw") and context.index("Warsaw") + 6 <= high:
            start, end = window.offsets[place[0]][0], window.offsets[place[1]][1]
            assert context[start:end].strip() == "Warsaw"
            held += 1
        else:
            assert place == (0, 0)
    assert 0 < held < len(windows)


def test_answers_as_data_write_them(body: "pellucid.Model") -> None:
    context, start = MARIE["context"], MARIE["context"].index("Warsaw")
    question = {"question": MARIE["question"], "context": context}
    forms = [
        {"answer": "Warsaw"},
        {"answer": "Warsaw", "answer_start": str(start)},
        {"answers": {"text": ["Warsaw", "Poland"], "answer_start": [start, context.index("Poland")]}},
        {"answers": [{"text": "Warsaw", "answer_start": start}]},
        {"answers": ["Warsaw"]},
        {"answers": {"text": "Warsaw", "answer_start": start}},
        {"answer": "Warsaw", "answer_start": float("nan")},  # a missing value of a data frame
    ]
    objective, _, examples = asked(body, [question | form for form in forms])
    assert len({one.target[:2] for one in examples}) == 1 and objective.impossible is False
    assert examples[2].target.question.answers == ("Warsaw", "Poland")
    for empty in ({"answer": ""}, {"answer": None}, {"answers": {"text": [], "answer_start": []}}, {"answers": []}):
        objective, _, (one,) = asked(body, [question | empty])
        assert objective.impossible is True and one.target[:2] == (0, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer_start": 3}, r"row 1: the answer 'Warsaw' is not at character 3 .*\('ie Cur'\); it is at 24"),
        ({"answer": "London", "answer_start": 3}, "row 1: the answer 'London' is not .*; it does not occur"),
        ({"answer": "London"}, "row 1: the answer 'London' occurs 0 times in the context: give its answer_start"),
        ({"answer": "in"}, "row 1: the answer 'in' occurs 2 times"),
        ({"answer_start": "x"}, "row 1: answer_start is 'x'"),
        ({"question": " "}, "row 1: 'question' is empty: fill it in"),
        ({"context": ""}, "row 1: 'context' is empty: fill it in"),
        ({"context": 3}, "row 1: 'context' is int, expected a text"),
        ({"answers": {"text": ["a", "b"], "answer_start": [1]}}, "row 1: answers have 2 texts and 1 answer_start"),
        ({"answers": [3]}, "row 1: an answer is 3, expected a passage of the context"),
        ({"answers": 5}, "row 1: answers are 5, expected a text, or texts with their answer_start"),
        ({"answers": True}, "row 1: answers are True, expected a text"),
        ({"answers": {"text": None, "answer_start": None}}, "row 1: an answer is None, expected a passage"),
        ({"answers": {"text": 5, "answer_start": 0}}, "row 1: an answer is 5, expected a passage"),
        ({"answer_start": float("inf")}, "row 1: answer_start is inf, expected the answer's first character"),
        ({"answer_start": 24.9}, "row 1: answer_start is 24.9, expected the answer's first character"),
        ({"answer_start": True}, "row 1: answer_start is True, expected the answer's first character"),
        ({"answer_start": "x" * 99}, "row 1: answer_start is 'x{58}…, expected the answer's first character"),
        ({"answers": "x" * 99}, "row 1: the answer 'x{59}…' occurs 0 times in the context"),
        ({"answers": [list(range(99))]}, r"row 1: an answer is \[0, 1, .*…, expected a passage of the context"),
    ],
)
def test_bad_rows_are_named(body: "pellucid.Model", change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked(body, read([MARIE, MARIE | change]).rows)


def test_a_row_without_room_for_its_context_is_named(body: "pellucid.Model", tmp_path: Path) -> None:
    lines = [MARIE, MARIE | {"question": "who " * 200}]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    with pytest.raises(
        InputError, match=r"^qa\.jsonl, line 2: the rest of the input leaves no room for the text in 96 tokens"
    ):
        asked(body, read(tmp_path / "qa.jsonl").rows)


def test_missing_columns(body: "pellucid.Model") -> None:
    with pytest.raises(InputError, match=r"row 0 has no 'answers' \(did you mean answer_s"):
        asked(body, read([{"question": "a?", "context": "b", "answer_s": "b"}]).rows)
    with pytest.raises(InputError, match=r"row 0: no column 'context' \(did you mean contexts"):
        asked(body, read([{"question": "a?", "contexts": "b", "answer": "b"}]).rows)
    with pytest.raises(InputError, match="row 0 has no answer, and impossible=False"):
        asked(body, read([MARIE | {"answer": ""}]).rows, impossible=False)


def test_squad_files(shared: Callable[[str], Path]) -> None:
    path = shared("data/xquad/xquad.es.json")
    found = read_squad(path)
    assert len(found) == 1190 and len({row["context"] for row in found}) == 240
    first = found[0]
    (text,), (start,) = first["answers"]["text"], first["answers"]["answer_start"]
    assert first["context"][start:].startswith(text)
    assert read(path, objective=QuestionAnswering).rows[7]["question"] == found[7]["question"]
    assert QuestionAnswering().fitted(found).impossible is False  # so every answer is found at its offset


@pytest.mark.parametrize(
    ("whole", "said"),
    [
        ("{", "is not JSON"),
        ({"version": 1}, "data is NoneType, expected a list"),
        ({"data": [{"paragraphs": [{"context": "a", "qas": [{"question": 3, "answers": []}]}]}]}, r"qas\[0\].question"),
        ({"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b", "answers": [{"text": "a"}]}]}]}]},
         r"data\[0\].paragraphs\[0\].qas\[0\].answers\[0\].answer_start is NoneType, expected a whole number"),
        ({"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b", "is_impossible": "true",
                                                             "answers": [{"text": "a", "answer_start": 0}]}]}]}]},
         r"qas\[0\].is_impossible is str, expected true or false"),
        ({"data": []}, "holds no questions"),
        ({"data": ["a"]}, r"data\[0\] is str, expected an object"),
    ],
)  # fmt: skip
def test_bad_squad_files(tmp_path: Path, whole: Any, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(whole if isinstance(whole, str) else json.dumps(whole), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_squad(path)


# -- training results --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finder(tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path]) -> Path:
    """A folder with a model trained to find who wrote a book, where somebody lives, and contexts without an answer."""
    sizes = {"vocab_size": 600, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 98}
    config = pellucid.Config.of("bert", intermediate_size=128, pad_token_id=0, **sizes, **still)
    model = pellucid.build(config, seed=0, tokenizer=pellucid.load(checkpoint("bert-body")).tokenizer)
    with torch.no_grad():  # no position embeddings, so that it reads long texts like short ones
        dict(model.named_parameters())["embeddings.position.weight"].zero_()
    how: dict[str, Any] = {"epochs": 5, "batch_size": 16, "learning_rate": 3e-3, "precision": "float32"}
    how |= {"freeze": ("embeddings.position.*",), "keep_best": False}
    loop, events = training(model.loaded, QuestionAnswering(), rows(640, 1), rows(30, 2), **how)
    looks = [one.metrics for one in events if one.is_evaluation]
    assert looks[-1]["f1"] > 0.95 and looks[-1]["exact_match"] > 0.9 > looks[0]["exact_match"]
    folder = tmp_path_factory.mktemp("finder") / "out"
    save_checkpoint(result(loop), folder)
    return folder


def test_the_pipeline_finds_what_was_learned(finder: Path) -> None:
    ask = pellucid.pipeline("question-answering", finder)
    context = "the old story in the house of Gustave Eiffel was read to people in Vienna last week"
    assert ask(question=WHO, context=context)["answer"] == "Gustave Eiffel"
    assert ask(question=WHERE, context=context)["answer"] == "Vienna"
    nothing = ask(question=WHERE, context="the old story was read to people", handle_impossible_answer=True)
    assert nothing["answer"] == ""


def test_the_reference_opens_it_with_the_same_logits(finder: Path) -> None:
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(finder).eval()
    words = transformers.AutoTokenizer.from_pretrained(finder)
    batch = words([WHO, WHERE], ["the dog of Buzz Aldrin", "in Oxford"], padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted, own = theirs(**batch), pellucid.load(finder)(**batch).logits
    assert torch.allclose(torch.stack((wanted.start_logits, wanted.end_logits), dim=-1), own, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["distilbert-body", "roberta-body", "albert-body", "gpt2-body", "t5-tied", "bart-body"]
)
def test_other_families_learn(opened: Opened, tmp_path: Path, name: str) -> None:
    how: dict[str, Any] = {"max_steps": 2, "batch_size": 6, "precision": "float32"}
    loop, events = training(opened(name, head=None).loaded, QuestionAnswering(max_length=60), rows(12, 1), **how)
    assert events[0].metrics["gradient_norm"] > 0 and len(events) == 2
    folder, held = save_checkpoint(result(loop), tmp_path / "out"), rows(4, 2)
    loaded = pellucid.load(folder).loaded
    scores = loop.objective.score(loaded, loop.objective.examples(loaded, held))
    wanted = loop.objective.score(loop.loaded, loop.objective.examples(loop.loaded, held))
    assert scores == pytest.approx(wanted, abs=1e-5)


def test_scores_over_stretches_and_without_answers(finder: Path) -> None:
    loaded, data = pellucid.load(finder).loaded, rows(12, 5, longest=60)
    objective = QuestionAnswering(max_length=40).fitted(rows(20))
    examples = objective.examples(loaded, data)
    assert len(examples) > len(data)
    scores = objective.score(loaded, examples)
    assert scores["f1"] >= scores["exact_match"] > 0.6
    said = [
        one | {"answers": {"text": ["zebra"], "answer_start": [0]}, "context": f"zebra {one['context']}"}
        for one in data
    ]
    wrong = objective.score(loaded, objective.examples(loaded, said))
    assert wrong["exact_match"] < 0.3 and wrong["loss"] > scores["loss"]
    share = sum(not one["answers"]["text"] for one in data) / len(data)
    learned = objective.examples(loaded, rows(20))
    assert objective.baseline_scores(learned, examples) == {"exact_match": share, "f1": share}


def test_whoever_measures_sees_whether_contexts_may_not_tell(finder: Path) -> None:
    """`evaluate` allows contexts without an answer, as training does: the same rows get the same scores."""
    data = rows(16, 5)
    loaded, objective = pellucid.load(finder).loaded, QuestionAnswering().fitted(data)
    wanted = objective.score(loaded, objective.examples(loaded, data))
    assert any(not row["answers"]["text"] for row in data) and wanted["f1"] > 0.7
    assert pellucid.evaluate(finder, data) == pytest.approx(wanted)


def test_from_a_file_to_a_folder(scratch: "pellucid.Model", tmp_path: Path) -> None:
    asked_ = [
        {"question": row["question"], "answers": [dict(zip(("text", "answer_start"), one)) for one in _pairs(row)]}
        for row in rows(40, 1)
    ]
    paragraphs = [{"context": row["context"], "qas": [one]} for row, one in zip(rows(40, 1), asked_)]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
    how: dict[str, Any] = {"epochs": 1, "batch_size": 16, "precision": "float32"}
    model = pellucid.train(scratch, tmp_path / "squad.json", "answer", out=tmp_path / "out", **how)
    assert model.report.scores.keys() == {"exact_match", "f1", "loss"}
    assert model.report.baseline["f1"] == model.report.baseline["exact_match"]
    assert 0.0 <= pellucid.evaluate(tmp_path / "out", tmp_path / "squad.json", impossible=True)["f1"] <= 1.0


def _pairs(row: dict[str, Any]) -> list[tuple[str, int]]:
    return list(zip(row["answers"]["text"], row["answers"]["answer_start"]))
