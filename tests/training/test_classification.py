"""Text classification: which labels there are, training, scores, and errors for unusable rows."""

import json
import math
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

import pellucid
from pellucid.checkpoints.save import save_checkpoint
from pellucid.errors import InputError
from pellucid.training.classification import TextClassification
from pellucid.training.data import read
from pellucid.training.label_losses import label_weights, row_losses
from pellucid.training.labels import label_of, label_target
from pellucid.training.learner import Learner
from pellucid.training.settings import Settings
from tests.training.whole_run import objective_and_model, run_loop, trained_model

LoadTiny = Callable[..., "pellucid.Model"]
Rows = list[dict[str, Any]]

QUICK: dict[str, Any] = {"epochs": 6, "batch_size": 8, "learning_rate": 5e-3, "precision": "float32"}


def rows_with(*labels: Any) -> Rows:
    return read([{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]).rows


def labels_of(model: Any, rows: Rows, **options: Any) -> tuple[str, ...]:
    return objective_and_model(model.loaded, TextClassification(**options), rows)[1].config.labels


def assert_refused(model: Any, rows: Rows, message: str, **options: Any) -> None:
    with pytest.raises(InputError, match=message):
        objective, loaded = objective_and_model(model.loaded, TextClassification(**options), rows)
        objective.examples(loaded, rows)


# -- training ---------------------------------------------------------------------------------------------------------


def test_planted_word_is_learned(scratch: "pellucid.Model", sentiments: Callable[..., Rows]) -> None:
    loop, events = run_loop(scratch.loaded, TextClassification(), sentiments(64), sentiments(24, seed=1), **QUICK)
    evaluations = [one.metrics for one in events if one.is_evaluation]
    assert evaluations[0]["accuracy"] < 0.9 < evaluations[-1]["accuracy"] and evaluations[-1]["matthews"] > 0.8
    trained = pellucid.Model(trained_model(loop))
    answers = pellucid.pipeline("text-classification", trained)(["the good school", "we hate water"])
    assert [one["label"] for one in answers] == ["positive", "negative"]


def test_reference_gives_the_same_answers_from_the_saved_folder(
    scratch: "pellucid.Model", sentiments: Callable[..., Rows], tmp_path: Path
) -> None:
    rows = sentiments(16)
    loop, _ = run_loop(scratch.loaded, TextClassification(), rows, **QUICK | {"epochs": 1})
    folder = save_checkpoint(trained_model(loop), tmp_path / "made")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.config.id2label == {0: "negative", 1: "positive"}
    assert theirs.config.problem_type == "single_label_classification"
    batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(pellucid.load(folder).module(**batch)["logits"], theirs(**batch).logits)
    ours = pellucid.pipeline("text-classification", folder)([rows[0]["text"]])
    (answer,) = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer)([rows[0]["text"]])
    assert ours[0]["label"] == answer["label"] and ours[0]["score"] == pytest.approx(answer["score"], abs=1e-5)


@pytest.mark.slow
def test_pretrained_model_learns_film_sentences(minilm: "pellucid.Model", sst2: Callable[..., Rows]) -> None:
    """On a pretrained body, training the head and the last layers on 192 sentences beats chance, 0.5."""
    freeze = ("embeddings.*", *(f"layers.{i}.*" for i in range(4)))
    settings = {"epochs": 3, "batch_size": 16, "learning_rate": 5e-4, "dropout": 0.0, "attention_dropout": 0.0}
    held_out = [*sst2("dev")[:40], *sst2("dev")[-40:]]
    loop, _ = run_loop(
        minilm.loaded, TextClassification(max_length=32), sst2("train", 192), held_out, freeze=freeze, **settings
    )
    scores = loop.objective.score(loop.finish(), loop.held_out)
    assert scores["accuracy"] > 0.65, scores


@pytest.mark.parametrize(
    "name", ["distilbert-plain", "roberta-people", "gpt2", "llama", "t5-tied", "bart", "albert-people"]
)
def test_every_family_is_trained_and_saved(
    load_tiny: LoadTiny, name: str, sentiments: Callable[..., Rows], tmp_path: Path
) -> None:
    """The loss falls, and the reference computes the same logits from the saved folder."""
    rows = sentiments(16)
    settings = {
        "epochs": 25,
        "batch_size": 16,
        "learning_rate": 6e-3,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "warmup": 0.0,
    }
    loop, events = run_loop(load_tiny(name).loaded, TextClassification(), rows, precision="float32", **settings)
    assert events[-1].metrics["loss"] < 0.6 * events[0].metrics["loss"]
    folder = save_checkpoint(trained_model(loop), tmp_path / "made")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ours = pellucid.load(folder)
    ids = ours.tokenizer.encode([row["text"] for row in rows[:3]])
    for one in ids:
        with torch.no_grad():
            batch = torch.tensor([one.ids])
            torch.testing.assert_close(ours.module(batch)["logits"], theirs(batch).logits, rtol=1e-4, atol=1e-4)
    answers = pellucid.pipeline("text-classification", folder)([row["text"] for row in rows])
    assert sum(one["label"] == row["label"] for one, row in zip(answers, rows)) >= 14


def test_pairs_are_encoded_with_token_types(body: "pellucid.Model") -> None:
    rows = read(
        [{"text": "one", "text_pair": "two", "label": "x"}, {"text": "one", "text_pair": None, "label": "y"}]
    ).rows
    objective, loaded = objective_and_model(body.loaded, TextClassification(), rows)
    pair, single = objective.examples(loaded, rows)
    (encoded,) = body.tokenizer.encode(["one"], ["two"])
    assert pair.ids == (encoded.ids,) and pair.types == (encoded.type_ids,) and 1 in encoded.type_ids
    assert single.ids == (body.tokenizer.encode(["one"])[0].ids,)


# -- which labels there are -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["good", "bad", "good"], ("bad", "good")),
        ([10, 9, 10], ("9", "10")),
        (["10", "9"], ("9", "10")),
        ([True, False], ("False", "True")),
        ([2.0, 1.0], ("1", "2")),
        (["10", "9", "x"], ("10", "9", "x")),
        ([-1, 1], ("-1", "1")),
        ([["long", "dull"], []], ("dull", "long")),
        ([{"b": 0.2, "a": 0.8}, {"b": 1.0, "a": 0.0}], ("a", "b")),
        ([{"1": 0.4, "1.0": 0.6}, {"2": 1.0}], ("1", "2")),
        (["7", "007"], ("007", "7")),
        (["007", "7"], ("007", "7")),
        ([0.0, "-0.0", "1"], ("0", "1")),
        ([[0.2, 0.8], [0.5, 0.5]], ("0", "1")),
    ],
)
def test_labels_are_collected_from_the_rows(
    body: "pellucid.Model", labels: list[Any], expected: tuple[str, ...]
) -> None:
    assert labels_of(body, rows_with(*labels)) == expected


def test_two_spellings_of_a_label_add_their_shares() -> None:
    assert label_target("soft", label_of({"1": 0.4, "1.0": 0.6}, "row 0"), ("1", "2")) == [1.0, 0.0]
    assert label_target("multiple", label_of(["2", "1.0"], "row 0"), ("1", "2")) == [1.0, 1.0]
    for labels in (["1", "1.0"], ["2", "2"]):
        with pytest.raises(InputError, match=r"^row 0: the label .* names one twice"):
            label_target("multiple", label_of(labels, "row 0"), ("1", "2"))


def test_labels_passed_as_classes_keep_their_order(body: "pellucid.Model") -> None:
    assert labels_of(body, rows_with("b", "a", "c"), classes=("c", "a", "b")) == ("c", "a", "b")
    assert labels_of(body, rows_with(1, 0), classes=[1, 0]) == ("1", "0")


def test_model_with_the_same_labels_keeps_its_head(load_tiny: LoadTiny, caplog: pytest.LogCaptureFixture) -> None:
    model = load_tiny("bert-feelings")
    _, loaded = objective_and_model(model.loaded, TextClassification(), rows_with("positive", "negative"))
    assert loaded.config.labels == ("negative", "neutral", "positive") and not loaded.untrained and not caplog.messages


@pytest.mark.parametrize("labels", [(0, 2), ("0", "2")])
def test_numbers_as_labels_are_indices_of_the_model_s_labels(
    load_tiny: LoadTiny, labels: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    objective, loaded = objective_and_model(load_tiny("bert-feelings").loaded, TextClassification(), rows_with(*labels))
    assert [one.target.label for one in objective.examples(loaded, rows_with(*labels))] == [0, 2]
    assert caplog.messages == ["the labels 0, 2 are taken as the numbers of negative, neutral, positive"]


def test_numbers_as_labels_in_evaluation_rows_are_reported(
    load_tiny: LoadTiny, body: "pellucid.Model", caplog: pytest.LogCaptureFixture
) -> None:
    pellucid.evaluate(load_tiny("bert-feelings"), rows_with(0, 2, "neutral"))
    assert caplog.messages == ["the labels 0, 2 are taken as the numbers of negative, neutral, positive"]
    caplog.clear()
    objective, loaded = objective_and_model(body.loaded, TextClassification(), rows_with("zebra", "ape"))
    assert [one.target.label for one in objective.examples(loaded, rows_with(0, 1))] == [0, 1]
    assert caplog.messages == ["the labels 0, 1 are taken as the numbers of ape, zebra"]
    caplog.clear()
    pellucid.evaluate(load_tiny("bert-feelings"), rows_with([1, 0, 1], [0, 1, 0]))
    assert not caplog.messages
    assert labels_of(load_tiny("bert-feelings"), rows_with(0, 7)) == ("0", "7")


def test_problem_type_follows_from_the_labels(body: "pellucid.Model") -> None:
    kinds = {
        "single_label_classification": ["a", "b"],
        "multi_label_classification": [["a"], ["a", "b"]],
    }
    for kind, labels in kinds.items():
        _, loaded = objective_and_model(body.loaded, TextClassification(), rows_with(*labels))
        assert loaded.config.inert["problem_type"] == kind
    _, loaded = objective_and_model(body.loaded, TextClassification(), rows_with({"a": 0.5, "b": 0.5}, {"a": 1.0}))
    assert loaded.config.inert["problem_type"] == "single_label_classification"


# -- losses -----------------------------------------------------------------------------------------------------------


def summed_loss(model: Any, rows: Rows, **options: Any) -> tuple[float, float, torch.Tensor, Any]:
    """The summed loss of all rows, its weight, the logits without dropout, and the batch."""
    objective, loaded = objective_and_model(model.loaded, TextClassification(**options), rows)
    batch = objective.collate(loaded, objective.examples(loaded, rows), np.random.default_rng(0))
    learner = Learner(loaded, Settings(precision="float32"))
    learner.seed_dropout(0, 0)
    loss = objective.loss(learner, batch)
    inputs = {name: value for name, value in batch.items() if name in ("input_ids", "attention_mask", "token_type_ids")}
    return float(loss.detach()), objective.weight(batch), loaded.module(**inputs)["logits"].detach(), batch


@pytest.fixture
def model_without_dropout(scratch: "pellucid.Model") -> "pellucid.Model":
    """A model without dropout."""
    return scratch


def test_loss_of_single_labels_is_cross_entropy(model_without_dropout: "pellucid.Model") -> None:
    loss, weight, logits, batch = summed_loss(model_without_dropout, rows_with("a", "b", "a"))
    assert weight == 3 and batch["labels"].tolist() == [0, 1, 0]
    assert loss / weight == pytest.approx(float(functional.cross_entropy(logits, torch.tensor([0, 1, 0]))), abs=1e-6)


def test_label_smoothing_equals_pytorch_s(model_without_dropout: "pellucid.Model") -> None:
    loss, weight, logits, _ = summed_loss(model_without_dropout, rows_with("a", "b", "a"), label_smoothing=0.1)
    expected = functional.cross_entropy(logits, torch.tensor([0, 1, 0]), label_smoothing=0.1)
    assert loss / weight == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("weights", [{"b": 3.0}, "balanced"])
def test_class_weights_equal_pytorch_s(model_without_dropout: "pellucid.Model", weights: Any) -> None:
    loss, weight, logits, _ = summed_loss(model_without_dropout, rows_with("a", "b", "a"), class_weights=weights)
    per_label = torch.tensor([1.0, 3.0] if weights != "balanced" else [3 / (2 * 2), 3 / (2 * 1)])
    expected = functional.cross_entropy(logits, torch.tensor([0, 1, 0]), weight=per_label)
    assert loss / weight == pytest.approx(float(expected), abs=1e-6)
    assert weight == pytest.approx(float(per_label[0] * 2 + per_label[1]))


def test_class_weights_accept_labels_by_number(load_tiny: LoadTiny) -> None:
    objective, loaded = objective_and_model(
        load_tiny("bert-feelings").loaded, TextClassification(class_weights="balanced"), rows_with(0, 0, 2)
    )
    assert label_weights("balanced", loaded.config.labels, objective._label_summary).tolist() == [0.75, 1.0, 1.5]
    assert label_weights({"2": 4.0}, loaded.config.labels, objective._label_summary).tolist() == [1.0, 1.0, 4.0]


def test_loss_of_multiple_labels_is_binary_cross_entropy(model_without_dropout: "pellucid.Model") -> None:
    loss, weight, logits, batch = summed_loss(model_without_dropout, rows_with(["a"], [], ["b", "a"]))
    targets = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert torch.equal(batch["labels"], targets) and weight == 3
    assert loss / weight == pytest.approx(float(functional.binary_cross_entropy_with_logits(logits, targets)), abs=1e-6)
    loss, weight, logits, _ = summed_loss(
        model_without_dropout, rows_with(["a"], [], ["b", "a"]), class_weights="balanced"
    )
    expected = functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=torch.tensor([0.5, 2.0]))
    assert loss / weight == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("as_list", [False, True])
def test_loss_of_label_shares_is_the_divergence(model_without_dropout: "pellucid.Model", as_list: bool) -> None:
    shares = [[0.8, 0.2], [0.0, 1.0]]
    loss, weight, logits, _ = summed_loss(
        model_without_dropout, rows_with(*(shares if as_list else [dict(zip("ab", one)) for one in shares]))
    )
    log = logits.log_softmax(-1)
    expected = sum(
        share * (math.log(share) - float(log[i, j]))
        for i, one in enumerate(shares)
        for j, share in enumerate(one)
        if share
    )
    assert loss / weight == pytest.approx(expected / 2, abs=1e-6)


def test_share_of_one_equals_a_single_label() -> None:
    logits = torch.randn(4, 3)
    one_hot = functional.one_hot(torch.tensor([0, 2, 1, 1]), 3).float()
    torch.testing.assert_close(row_losses("soft", logits, one_hot), row_losses("single", logits, one_hot.argmax(-1)))


def test_separator_splits_multiple_labels(model_without_dropout: "pellucid.Model") -> None:
    _, _, _, batch = summed_loss(model_without_dropout, rows_with("a|b", "", " b "), separator="|")
    assert batch["labels"].tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]


# -- scores -----------------------------------------------------------------------------------------------------------


def test_score_names_follow_from_the_kind_of_labels(body: "pellucid.Model") -> None:
    expected = {"loss", "accuracy", "f1"}
    for labels, others in (
        (["a", "b", "c", "a"], {"matthews"}),
        ([["a"], ["a", "b"], [], ["b"]], {"f1_macro"}),
        ([[0.9, 0.1], [0.2, 0.8]], {"f1_second", "matthews"}),
    ):
        objective, loaded = objective_and_model(body.loaded, TextClassification(), rows_with(*labels))
        found = objective.score(loaded, objective.examples(loaded, rows_with(*labels)))
        assert set(found) == expected | others and all(math.isfinite(one) for one in found.values())


def test_evaluation_uses_the_model_s_labels(load_tiny: LoadTiny) -> None:
    """Without training rows, as in `pellucid evaluate`."""
    objective = TextClassification()
    loaded = load_tiny("bert-feelings").loaded
    found = objective.score(loaded, objective.examples(loaded, rows_with("positive", "neutral")))
    assert 0.0 <= found["accuracy"] <= 1.0
    with pytest.raises(
        InputError, match=r"row 1: the label 'postive' is not one of negative, neutral, positive \(did you"
    ):
        objective.examples(loaded, rows_with("positive", "postive"))
    stars = load_tiny("bert-stars").loaded
    assert objective.examples(stars, rows_with("1 stars", "2 stars"))[0].target.label == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_baseline_is_the_most_frequent_training_label(body: "pellucid.Model") -> None:
    """Not of the held-out rows: their labels are unknown in advance, and a single row would always be right."""
    objective, loaded = objective_and_model(body.loaded, TextClassification(), rows_with("a", "a", "a", "b"))
    training_examples = objective.examples(loaded, rows_with("a", "a", "a", "b"))
    for labels, share in ((("a", "b", "b", "b"), 0.25), (("b",), 0.0), (("a",), 1.0)):
        held_out = objective.examples(loaded, rows_with(*labels))
        assert objective.baseline_scores(training_examples, held_out) == {"accuracy": share}
    objective, loaded = objective_and_model(body.loaded, TextClassification(), rows_with(["a"], ["a", "b"]))
    training_examples = objective.examples(loaded, rows_with(["a"], ["a", "b"]))
    assert objective.baseline_scores(training_examples, training_examples) == {}


# -- unusable rows ----------------------------------------------------------------------------------------------------

INVALID: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "no label": (["a", None, "b"], {}, "row 1: 'label' is empty: fill it in, or leave the row out"),
    "NaN": ([1, float("nan")], {}, "row 1: 'label' is empty"),
    "a real number": (
        [1, 2.5],
        {},
        r"row 1: the label is 2\.5, expected a name or a whole number; for others use text-reg",
    ),
    "a list in a cell": (["a", "['a', 'b']"], {}, "row 1: the label is .*, a list written as one text: give lists"),
    "a list between signs": (["a", '["a", "b"]'], {"separator": ","}, "row 1: the label is .*, a list written as one"),
    "one kind": (["a", "a"], {}, "the only label is 'a': a classifier needs at least two to tell apart"),
    "no kind": ([[], []], {}, "no row has a label: a classifier needs at least two to tell apart"),
    "one row": (["a"], {}, "row 0 is the only row to learn from: expected at least two"),
    "mixed": (["a", ["b"]], {}, "row 1: the label is a list of names, and that of row 0 is a name: expected the same"),
    "misspelt": (
        ["ham", "spam", "spma"],
        {"classes": ("ham", "spam")},
        r"row 2: the label 'spma' is not one of ham, spam \(did",
    ),
    "an empty class": (
        ["ham", "ham"],
        {"classes": ("ham", "spam")},
        "no row has the label 'spam': leave it out of classes",
    ),
    "what others do not ask": (["1", -100], {}, "row 1: the label is -100, which other libraries use for no label"),
    "twice": ([["a", "a"], ["b"]], {}, r"row 0: the label \['a', 'a'\] names one twice"),
    "twice in two spellings": ([["2"], ["1", "1.0"]], {}, r"row 1: the label \['1', '1.0'\] names one twice"),
    "too much": (
        [{"a": 0.9, "b": 0.3}, {"a": 1.0}],
        {},
        r"row 0: the shares \{'a': 0\.9, 'b': 0\.3\} sum to 1\.2, expected 1",
    ),
    "below 0": ([{"a": 1.5, "b": -0.5}, {"a": 1.0}], {}, "row 0: the shares .* and none below 0"),
    "wide": (
        [[3, 1], [0, 1]],
        {},
        r"row 0: the label is \[3, 1\], expected names, or for each label a number from 0 to 1",
    ),
    "an object": (
        [["a"], [None]],
        {},
        r"row 1: the label is \[None\], expected a name, several, or a share of each label",
    ),
    "unequal": (
        [[0.5, 0.5], [1.0]],
        {},
        "row 1: the label has 1 number, and that of row 0 2: expected one for each label",
    ),
    "weights": (["a", "b"], {"class_weights": {"c": 2.0}}, "class_weights: the label 'c' is not one of a, b"),
    "a weight": (["a", "b"], {"class_weights": {"a": -2.0}}, r"class_weights\['a'\] is -2\.0, expected above 0"),
    "smoothing": ([["a"], ["b"]], {"label_smoothing": 0.1}, "label_smoothing is for one label each: leave it out"),
    "weighed shares": (
        [[0.5, 0.5], [0.1, 0.9]],
        {"class_weights": "balanced"},
        "class_weights are for labels that hold",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_labels_are_refused(body: "pellucid.Model", case: str) -> None:
    labels, options, message = INVALID[case]
    assert_refused(body, rows_with(*labels), message, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ("a",)}, "expected at least two, and no two alike"),
        ({"classes": ("a", "a")}, "expected at least two, and no two alike"),
        ({"separator": ""}, "separator is '', expected at least one character"),
        ({"class_weights": 3}, "class_weights is 3, expected 'balanced' or a weight for each label"),
        ({"label_smoothing": 1.0}, r"label_smoothing is 1\.0, expected at least 0 and below 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TextClassification(**options)


def test_invalid_texts_are_refused(body: "pellucid.Model") -> None:
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    assert_refused(body, read([rows[0], {"text": " ", "label": "y"}]).rows, "row 1: 'text' is empty")
    assert_refused(body, read([rows[0], {"text": 5, "label": "y"}]).rows, "row 1: 'text' is int, expected a text")
    assert_refused(
        body, read([rows[0], {"Text": "b", "label": "y"}]).rows, r"row 1: no column 'text' \(did you mean Text\?\)"
    )
    assert_refused(
        body, read([{"text": "a", "lable": "x"}] * 2).rows, r"row 0: no column 'label' \(did you mean lable\?\)"
    )
    assert_refused(pellucid.build(body.config), read(rows).rows, "this model came without a tokenizer")
    assert_refused(
        body, read(rows).rows, "max_length is 99, and this model reads 96 tokens at once at most", max_length=99
    )


def test_unknown_held_out_label_is_refused_by_line(body: "pellucid.Model", tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text("text,label\na b,ham\nc,Spam\n", encoding="utf-8")
    objective, loaded = objective_and_model(body.loaded, TextClassification(), rows_with("ham", "spam"))
    with pytest.raises(
        InputError, match=r"dev.csv, line 3: the label 'Spam' is not one of ham, spam \(did you mean spam\?\)"
    ):
        objective.examples(loaded, read(tmp_path / "dev.csv").rows)


OTHER_FORMS: dict[str, tuple[list[Any], list[Any], str]] = {
    "a list for a name": (
        ["a", "b"],
        [["b", "a"]],
        r"the label is \['b', 'a'\], and the labels of this training are one name each",
    ),
    "no name": (["a", "b"], [[]], r"the label is \[\], and the labels of this training are one name each"),
    "shares for a name": (
        ["a", "b"],
        [{"a": 0.5, "b": 0.5}],
        "the label is {'a': 0.5, 'b': 0.5}, and the labels of this training are",
    ),
    "a real number": ([0, 1, 2], [1.5], "the label is 1.5, expected a name or a whole number"),
    "without end": ([0, 1, 2], [math.inf], "the label is inf, expected a name or a whole number"),
    "a list in a list": (["a", "b"], [[["a"]]], r"the label is \[\['a'\]\], expected a name, several"),
    "a share that is a text": ([{"a": 1.0}, {"b": 1.0}], [{"a": "x"}], "the label is {'a': 'x'}, expected a name"),
    "half a share": ([{"a": 1.0}, {"b": 1.0}], [{"a": 0.3}], "the shares {'a': 0.3} sum to 0.3, expected 1"),
    "no share": ([[0.5, 0.5], [0.0, 1.0]], [[5, 0]], r"the label is \[5, 0\], expected names, or for each label"),
    "less than a share": (
        [[0.5, 0.5], [0.0, 1.0]],
        [[0.3, 0.3]],
        r"the label is \[0.3, 0.3\], and the labels of this training are s",
    ),
    "several for shares": (
        [{"a": 1.0}, {"b": 1.0}],
        [["a"]],
        ".* and the labels of this training are shares that sum to 1",
    ),
    "too many": ([["a"], ["a", "b"]], [[5, 0]], r"the label is \[5, 0\], expected names, or for each label"),
    "shares for several": (
        [["a"], ["a", "b"]],
        [{"a": 1.0}],
        ".* and the labels of this training are several labels each",
    ),
}


@pytest.mark.parametrize("case", OTHER_FORMS)
def test_held_out_labels_of_another_form_are_refused(body: "pellucid.Model", case: str, tmp_path: Path) -> None:
    training_labels, held_out, message = OTHER_FORMS[case]
    rows = [json.dumps({"text": "a film", "label": label}) for label in held_out]
    (tmp_path / "dev.jsonl").write_text("\n".join(rows), encoding="utf-8")
    objective, loaded = objective_and_model(body.loaded, TextClassification(), rows_with(*training_labels))
    with pytest.raises(InputError, match=f"^dev.jsonl, line 1: {message}"):
        objective.examples(loaded, read(tmp_path / "dev.jsonl").rows)


def test_equivalent_held_out_labels_are_accepted(body: "pellucid.Model") -> None:
    """A name is read as a list of one label or as a share of 1, and a 0/1 list may hold a single 1."""
    for training_labels, held_out, expected in (
        ([["a"], ["a", "b"]], "b", [0.0, 1.0]),
        ([{"a": 0.5, "b": 0.5}, {"b": 1.0}], "b", [0.0, 1.0]),
        ([[1, 0], [1, 1]], [0, 1], [0.0, 1.0]),
    ):
        objective, loaded = objective_and_model(body.loaded, TextClassification(), rows_with(*training_labels))
        assert [one.target.label for one in objective.examples(loaded, rows_with(held_out, held_out))] == [expected] * 2
        unfitted = TextClassification().examples(loaded, rows_with(held_out, held_out))  # as in `evaluate`
        assert unfitted[0].target.kind == ("multiple" if isinstance(training_labels[0], list) else "single")


def test_booleans_beside_numbers_are_reported(body: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    assert labels_of(body, rows_with(*[True, False, 1, 0] * 2)) == ("0", "1", "False", "True")
    assert "the labels False, True occur beside 0, 1: are they the same?" in caplog.messages


def test_enum_members_are_read_by_value(body: "pellucid.Model") -> None:
    kind = Enum("kind", {"GLAD": "glad", "SAD": "sad"}, type=str)
    assert labels_of(body, rows_with(*[*kind] * 2)) == ("glad", "sad")
    several = [np.array([*kind], dtype=object), np.array([kind.SAD], dtype=object)]
    assert labels_of(body, rows_with(*several)) == ("glad", "sad")


def test_labels_that_look_misspelt_are_reported(body: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    labels_of(body, rows_with(*["positive"] * 3, "positve", *["negative"] * 2, "Negative", "Negative", "other"))
    assert caplog.messages == [
        "the label 'Negative' occurs in 2 rows, and 'negative' in 2: is it misspelt?",
        "the label 'positve' occurs in one row alone (row 3), and 'positive' in 3: is it misspelt?",
    ]
    caplog.clear()
    labels_of(body, rows_with("caf\u00e9", "cafe\u0301", "tea", "tea"))
    assert caplog.messages == [
        "the label 'cafe\\u0301' occurs in one row alone (row 1), and 'caf\\xe9' in 1: is it misspelt?"
    ]
    caplog.clear()
    labels_of(body, rows_with("good", "good", "good ", "good ", "good ", "bad"))
    assert caplog.messages == [
        "the label 'good' occurs in 2 rows, and 'good ' in 3: they differ only by the spaces at their ends"
    ]
    caplog.clear()
    labels_of(body, rows_with(*[f"2024-02-{day:02}" for day in range(1, 29)], "2024-02-01", "2024-02-02"))
    assert caplog.messages == []
    labels_of(body, rows_with(*[f"label{one}" for one in range(10)], *["label"] * 2))
    assert len(caplog.messages) == 6
    assert caplog.messages[5] == "5 more labels are similar to others: is this the right column?"
    caplog.clear()
    labels_of(body, rows_with(*range(30)))
    assert caplog.messages == ["each of 30 rows has a label of its own: is 'label' the right column?"]


def test_long_texts_are_cut_and_counted(body: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    rows = read([{"text": "water " * 200, "label": "x"}, {"text": "a", "label": "y"}]).rows
    objective, loaded = objective_and_model(body.loaded, TextClassification(), rows)
    assert [one.length for one in objective.examples(loaded, rows)] == [96, 3]
    assert caplog.messages == ["1 of 2 texts was cut to 96 tokens"]


@pytest.mark.parametrize(
    ("labels", "names"),
    [(("1.0", "2.0", "3.0"), (1, 2)), (("1", "2", "3"), ("1.0", "2.0")), (("2.0", "1"), (1.0, 2.0))],
)
def test_whole_number_is_the_same_label_as_int_float_and_text(
    body: "pellucid.Model", labels: tuple[Any, ...], names: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """A table has 1.0 where a list has 1; it was once taken for the index of another label."""
    objective, loaded = objective_and_model(body.loaded, TextClassification(), rows_with(*labels))
    found = [loaded.config.labels[one.target.label] for one in objective.examples(loaded, rows_with(*names))]
    assert list(map(float, found)) == list(map(float, names)) and not caplog.messages


def test_two_spellings_of_a_number_are_one_label(load_tiny: LoadTiny, body: "pellucid.Model") -> None:
    """They used to have the weights, shares and indices of two labels."""
    mixed, plain = (rows_with(*(["0"] * 4 + [zero] * 8 + ["1"] * 8)) for zero in ("0.0", "0"))
    found = [
        objective_and_model(body.loaded, TextClassification(class_weights="balanced"), rows) for rows in (mixed, plain)
    ]
    for objective, loaded in found:
        examples = objective.examples(loaded, mixed)
        assert loaded.config.labels == ("0", "1") and objective.baseline_scores(examples, examples) == {"accuracy": 0.6}
        weights = label_weights("balanced", loaded.config.labels, objective._label_summary)
        assert weights.tolist() == pytest.approx([20 / 24, 20 / 16])
    numbers = [f"{i}.0" for i in range(12)]
    assert TextClassification().fitted(rows_with(*numbers))._label_summary.classes == tuple(map(str, range(12)))
    for classes, labels in ((["0", "1"], ["0.0", "1.0"]), (["0.0", "1.0"], [0.0, 1.0])):
        assert TextClassification(classes=classes).fitted(rows_with(*labels))._label_summary.counts == (1, 1)
    assert TextClassification().fitted(rows_with("007", "7", "1.0"))._label_summary.classes == ("007", "1.0", "7")
    with pytest.raises(InputError, match="class_weights names the label '1' twice"):
        label_weights({"1": 2.0, 1.0: 3.0}, ["0", "1"], None)


def test_unknown_number_as_label_is_refused(body: "pellucid.Model") -> None:
    objective, loaded = objective_and_model(body.loaded, TextClassification(), rows_with("1.0", "2.0"))
    for name in (0, "3", "1.5", "01", "9" * 5000):
        with pytest.raises(InputError, match="is not one of 1, 2"):
            objective.examples(loaded, rows_with(name))


def test_evaluation_uses_the_separator_of_training(body: "pellucid.Model", tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("text,label\n" + "".join(f"text {i},{label}\n" for i in range(8) for label in ("a|b", "c", "")))
    pellucid.train(body, table, "text-classification", out=tmp_path / "out", separator="|", **QUICK)
    scores = pellucid.evaluate(tmp_path / "out", table)
    assert scores == pellucid.evaluate(tmp_path / "out", table, separator="|")
