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
from tests.tasks.planted_facts import ANSWERS, WHERE, WHO, WORDS
from tests.training.whole_run import objective_and_model, run_loop, trained_model

Rows = list[dict[str, Any]]
LoadTiny = Callable[..., "pellucid.Model"]

GENERATOR = np.random.default_rng(0)
MARIE = {"question": "Where was she born?", "context": "Marie Curie was born in Warsaw, in Poland.", "answer": "Warsaw"}


def rows(count: int, seed: int = 0, max_words: int = 14) -> Rows:
    """Questions about facts planted among neutral words; some contexts do not hold the answer."""
    generator, made = random.Random(seed), []
    for _ in range(count):
        words, question, expected = (
            generator.choices(WORDS, k=generator.randint(4, max_words)),
            generator.choice(list(ANSWERS)),
            None,
        )
        for other, answers in ANSWERS.items():
            if generator.random() < 0.7:
                answer = generator.choice(answers)
                words.insert(generator.randint(0, len(words)), answer)
                expected = answer if other == question else expected
        context = " ".join(words)
        target = {"text": [expected] if expected else [], "answer_start": [context.index(expected)] if expected else []}
        made.append({"question": question, "context": context, "answers": target})
    return made


def prepare_training(
    model: "pellucid.Model", data: Rows, **options: Any
) -> tuple[QuestionAnswering, "pellucid.Model", list[Example]]:
    """The objective, the model at the start of training, and the examples."""
    objective, loaded = objective_and_model(model.loaded, QuestionAnswering(**options), data)
    return objective, pellucid.Model(loaded), objective.examples(loaded, data)


# -- against the reference ---------------------------------------------------------------------------------------------


def test_loss_equals_the_reference_s(load_tiny: LoadTiny, tmp_path: Path) -> None:
    row = rows(1)[0]
    data = [row, row | {"question": row["question"]}, {**row, "answers": {"text": [], "answer_start": []}}]
    objective, prepared, examples = prepare_training(load_tiny("bert-body"), data)
    batch = objective.collate(prepared.loaded, examples, GENERATOR)
    assert "attention_mask" not in batch  # the reference's softmax includes padding
    save_checkpoint(prepared.loaded, tmp_path / "begun")
    reference = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "begun")
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    starts, ends = batch["labels"].unbind(dim=1)
    expected = reference(**inputs, start_positions=starts, end_positions=ends).loss * objective.weight(batch)
    expected.backward()
    learner = Learner(prepared.loaded, Settings(precision="float32"))
    learner.seed_dropout(0, 0)
    loss = objective.loss(learner, batch)
    loss.backward()
    assert objective.weight(batch) == 3 and loss.item() == pytest.approx(expected.item(), abs=1e-4)
    own = dict(prepared.module.named_parameters())["head.classifier.weight"].grad
    assert torch.allclose(own, reference.qa_outputs.weight.grad, atol=1e-4)


def test_padding_does_not_change_the_loss(load_tiny: LoadTiny) -> None:
    data = rows(6)
    objective, prepared, examples = prepare_training(load_tiny("bert-body"), data)
    learner = Learner(prepared.loaded, Settings(precision="float32"))
    batch = objective.collate(prepared.loaded, examples, GENERATOR)
    assert "attention_mask" in batch
    learner.seed_dropout(0, 0)
    together = objective.loss(learner, batch).item()
    separate = [
        objective.loss(learner, objective.collate(prepared.loaded, [one], GENERATOR)).item() for one in examples
    ]
    assert together == pytest.approx(sum(separate), abs=1e-4)


# -- reading data ------------------------------------------------------------------------------------------------------


def test_target_tokens_contain_the_answer(load_tiny: LoadTiny) -> None:
    model = load_tiny("bert-body")
    _, prepared, examples = prepare_training(model, [MARIE, *rows(20)])
    for row, example in zip([MARIE, *rows(20)], examples):
        (window,) = QuestionAnswering()._windows(prepared.loaded, example.target.question, 0)
        assert window.ids == example.ids[0]
        first, last = example.target.first, example.target.last
        text = row["context"][window.offsets[first][0] : window.offsets[last][1]]
        answers = [row["answer"]] if "answer" in row else row["answers"]["text"]
        assert text == answers[0] if answers else (first, last) == (0, 0)


@pytest.mark.parametrize(
    ("context", "answer"), [("In a cafe\u0301", "cafe\u0301"), ("It is in Warsaw ", "Warsaw "), (" Ana did", " Ana")]
)
def test_answer_with_characters_outside_all_tokens_has_a_target(load_tiny: LoadTiny, context: str, answer: str) -> None:
    row = {"question": "Where?", "context": context, "answer": answer}
    _, _, (example,) = prepare_training(load_tiny("bert-body"), [row])
    assert 0 < example.target.first <= example.target.last


@pytest.mark.parametrize("family", ["bert-cased", "roberta", "xlm-roberta", "albert", "mpnet"])
def test_windows_without_the_answer_target_the_first_token(load_tiny: LoadTiny, family: str) -> None:
    context = " ".join([*WORDS[:60], "Warsaw", *WORDS[:40]])
    row = MARIE | {"context": context}
    _, prepared, examples = prepare_training(load_tiny(f"{family}-reader", head=None), [row], max_length=48)
    windows = QuestionAnswering(max_length=48)._windows(prepared.loaded, examples[0].target.question, 0)
    assert len(examples) == len(windows) > 3
    with_answer = 0
    for window, example in zip(windows, examples):
        low, high = window.span(side=1)
        target = (example.target.first, example.target.last)
        if low <= context.index("Warsaw") and context.index("Warsaw") + 6 <= high:
            start, end = window.offsets[target[0]][0], window.offsets[target[1]][1]
            assert context[start:end].strip() == "Warsaw"
            with_answer += 1
        else:
            assert target == (0, 0)
    assert 0 < with_answer < len(windows)


def test_every_format_of_an_answer_is_read(body: "pellucid.Model") -> None:
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
    objective, _, examples = prepare_training(body, [question | form for form in forms])
    assert len({one.target[:2] for one in examples}) == 1 and objective.impossible is False
    assert examples[2].target.question.answers == ("Warsaw", "Poland")
    for empty in ({"answer": ""}, {"answer": None}, {"answers": {"text": [], "answer_start": []}}, {"answers": []}):
        objective, _, (one,) = prepare_training(body, [question | empty])
        assert objective.impossible is True and one.target[:2] == (0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
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
def test_invalid_rows_are_refused_by_number(body: "pellucid.Model", change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare_training(body, read([MARIE, MARIE | change]).rows)


def test_row_without_room_for_its_context_is_refused_by_line(body: "pellucid.Model", tmp_path: Path) -> None:
    lines = [MARIE, MARIE | {"question": "who " * 200}]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    with pytest.raises(
        InputError, match=r"^qa\.jsonl, line 2: the rest of the input leaves no room for the text in 96 tokens"
    ):
        prepare_training(body, read(tmp_path / "qa.jsonl").rows)


def test_missing_columns_are_refused(body: "pellucid.Model") -> None:
    with pytest.raises(InputError, match=r"row 0 has no 'answers' \(did you mean answer_s"):
        prepare_training(body, read([{"question": "a?", "context": "b", "answer_s": "b"}]).rows)
    with pytest.raises(InputError, match=r"row 0: no column 'context' \(did you mean contexts"):
        prepare_training(body, read([{"question": "a?", "contexts": "b", "answer": "b"}]).rows)
    with pytest.raises(InputError, match="row 0 has no answer, and impossible=False"):
        prepare_training(body, read([MARIE | {"answer": ""}]).rows, impossible=False)


def test_squad_file_is_read(shared: Callable[[str], Path]) -> None:
    path = shared("data/xquad/xquad.es.json")
    found = read_squad(path)
    assert len(found) == 1190 and len({row["context"] for row in found}) == 240
    first = found[0]
    (text,), (start,) = first["answers"]["text"], first["answers"]["answer_start"]
    assert first["context"][start:].startswith(text)
    assert read(path, objective=QuestionAnswering).rows[7]["question"] == found[7]["question"]
    assert QuestionAnswering().fitted(found).impossible is False  # so every answer is found at its offset


@pytest.mark.parametrize(
    ("content", "message"),
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
def test_invalid_squad_files_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_squad(path)


# -- training results --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finder(tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path]) -> Path:
    """A folder with a model trained to find who wrote a book, where somebody lives, and contexts without an answer."""
    sizes = {"vocab_size": 600, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 98}
    config = pellucid.Config.of("bert", intermediate_size=128, pad_token_id=0, **sizes, **no_dropout)
    model = pellucid.build(config, seed=0, tokenizer=pellucid.load(checkpoint("bert-body")).tokenizer)
    with torch.no_grad():  # no position embeddings, so that it reads long texts like short ones
        dict(model.named_parameters())["embeddings.position.weight"].zero_()
    settings: dict[str, Any] = {"epochs": 5, "batch_size": 16, "learning_rate": 3e-3, "precision": "float32"}
    settings |= {"freeze": ("embeddings.position.*",), "keep_best": False}
    loop, events = run_loop(model.loaded, QuestionAnswering(), rows(640, 1), rows(30, 2), **settings)
    evaluations = [one.metrics for one in events if one.is_evaluation]
    assert evaluations[-1]["f1"] > 0.95 and evaluations[-1]["exact_match"] > 0.9 > evaluations[0]["exact_match"]
    folder = tmp_path_factory.mktemp("finder") / "out"
    save_checkpoint(trained_model(loop), folder)
    return folder


def test_pipeline_finds_answers_with_the_trained_model(finder: Path) -> None:
    ask = pellucid.pipeline("question-answering", finder)
    context = "the old story in the house of Gustave Eiffel was read to people in Vienna last week"
    assert ask(question=WHO, context=context)["answer"] == "Gustave Eiffel"
    assert ask(question=WHERE, context=context)["answer"] == "Vienna"
    nothing = ask(question=WHERE, context="the old story was read to people", handle_impossible_answer=True)
    assert nothing["answer"] == ""


def test_reference_computes_the_same_logits_from_the_saved_folder(finder: Path) -> None:
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(finder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(finder)
    batch = tokenizer([WHO, WHERE], ["the dog of Buzz Aldrin", "in Oxford"], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected, ours = theirs(**batch), pellucid.load(finder)(**batch).logits
    assert torch.allclose(torch.stack((expected.start_logits, expected.end_logits), dim=-1), ours, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["distilbert-body", "roberta-body", "albert-body", "gpt2-body", "t5-tied", "bart-body"]
)
def test_other_families_are_trained_and_saved(load_tiny: LoadTiny, tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {"max_steps": 2, "batch_size": 6, "precision": "float32"}
    loop, events = run_loop(
        load_tiny(name, head=None).loaded, QuestionAnswering(max_length=60), rows(12, 1), **settings
    )
    assert events[0].metrics["gradient_norm"] > 0 and len(events) == 2
    folder, held_out = save_checkpoint(trained_model(loop), tmp_path / "out"), rows(4, 2)
    loaded = pellucid.load(folder).loaded
    scores = loop.objective.score(loaded, loop.objective.examples(loaded, held_out))
    expected = loop.objective.score(loop.loaded, loop.objective.examples(loop.loaded, held_out))
    assert scores == pytest.approx(expected, abs=1e-5)


def test_scores_cover_windows_and_rows_without_answers(finder: Path) -> None:
    loaded, data = pellucid.load(finder).loaded, rows(12, 5, max_words=60)
    objective = QuestionAnswering(max_length=40).fitted(rows(20))
    examples = objective.examples(loaded, data)
    assert len(examples) > len(data)
    scores = objective.score(loaded, examples)
    assert scores["f1"] >= scores["exact_match"] > 0.6
    changed = [
        row | {"answers": {"text": ["zebra"], "answer_start": [0]}, "context": f"zebra {row['context']}"}
        for row in data
    ]
    wrong = objective.score(loaded, objective.examples(loaded, changed))
    assert wrong["exact_match"] < 0.3 and wrong["loss"] > scores["loss"]
    share = sum(not row["answers"]["text"] for row in data) / len(data)
    training_examples = objective.examples(loaded, rows(20))
    assert objective.baseline_scores(training_examples, examples) == {"exact_match": share, "f1": share}


def test_evaluation_allows_contexts_without_an_answer(finder: Path) -> None:
    """`evaluate` allows contexts without an answer, as training does: the same rows get the same scores."""
    data = rows(16, 5)
    loaded, objective = pellucid.load(finder).loaded, QuestionAnswering().fitted(data)
    expected = objective.score(loaded, objective.examples(loaded, data))
    assert any(not row["answers"]["text"] for row in data) and expected["f1"] > 0.7
    assert pellucid.evaluate(finder, data) == pytest.approx(expected)


def test_training_reads_a_file_and_saves_a_folder(scratch: "pellucid.Model", tmp_path: Path) -> None:
    questions = [
        {"question": row["question"], "answers": [dict(zip(("text", "answer_start"), one)) for one in _pairs(row)]}
        for row in rows(40, 1)
    ]
    paragraphs = [{"context": row["context"], "qas": [one]} for row, one in zip(rows(40, 1), questions)]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 16, "precision": "float32"}
    model = pellucid.train(scratch, tmp_path / "squad.json", "answer", out=tmp_path / "out", **settings)
    assert model.report.scores.keys() == {"exact_match", "f1", "loss"}
    assert model.report.baseline["f1"] == model.report.baseline["exact_match"]
    assert 0.0 <= pellucid.evaluate(tmp_path / "out", tmp_path / "squad.json", impossible=True)["f1"] <= 1.0


def _pairs(row: dict[str, Any]) -> list[tuple[str, int]]:
    return list(zip(row["answers"]["text"], row["answers"]["answer_start"]))
