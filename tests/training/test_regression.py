"""Text regression: trained on the squared error, measured by correlations."""

import math
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
from pellucid.training.data import read
from pellucid.training.learner import Learner
from pellucid.training.objective import Example
from pellucid.training.regression import Target, TextRegression, label_numbers
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training
from tests.training.whole_run import run_loop, trained_model

Rows = list[dict[str, Any]]


@pytest.fixture
def starred_rows(sentiments: Callable[..., Rows]) -> Callable[..., Rows]:
    """Rows with the targets 0.5 to 3.5: the count of a planted word, 0 to 3, plus 0.5."""

    def rows(count: int, seed: int = 0) -> Rows:
        found = []
        for i, row in enumerate(sentiments(count, seed, max_words=6)):
            neutral = row["text"].replace("good", "house").replace("hate", "house")
            found.append({"text": f"{neutral}{' good' * (i % 4)}", "label": i % 4 + 0.5})
        return read(found).rows

    return rows


def test_count_of_a_word_is_learned(
    scratch: "pellucid.Model", starred_rows: Callable[..., Rows], tmp_path: Path
) -> None:
    settings = {"epochs": 10, "batch_size": 8, "learning_rate": 5e-3, "precision": "float32"}
    loop, events = run_loop(scratch.loaded, TextRegression(), starred_rows(64), starred_rows(24, 1), **settings)
    evaluations = [one.metrics for one in events if one.is_evaluation]
    assert (
        evaluations[-1]["spearman"] > 0.8
        and evaluations[-1]["pearson"] > 0.8
        and evaluations[-1]["mse"] < evaluations[0]["mse"]
    )
    assert set(evaluations[0]) == {"loss", "mse", "pearson", "spearman"}
    folder = save_checkpoint(trained_model(loop), tmp_path / "made")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert theirs.config.problem_type == "regression" and theirs.config.num_labels == 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer([row["text"] for row in starred_rows(8, 2)], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**batch).logits[:, 0]
    answers = pellucid.pipeline("text-classification", folder)([row["text"] for row in starred_rows(8, 2)])
    torch.testing.assert_close(torch.tensor([one["score"] for one in answers]), expected, rtol=1e-4, atol=1e-5)


def test_loss_is_the_squared_error(scratch: "pellucid.Model") -> None:
    rows = read([{"text": "a", "label": 1}, {"text": "b c", "label": "2.5"}]).rows
    objective = TextRegression().fitted(rows)
    loaded = model_for_training(scratch.loaded, objective, Settings())
    batch = objective.collate(loaded, objective.examples(loaded, rows), np.random.default_rng(0))
    learner = Learner(loaded, Settings(precision="float32"))
    learner.seed_dropout(0, 0)
    loss = float(objective.loss(learner, batch).detach())
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    output = loaded.module(**inputs)["logits"].detach()[:, 0]
    expected = torch.nn.functional.mse_loss(output, torch.tensor([1.0, 2.5]))
    assert loss / objective.weight(batch) == pytest.approx(float(expected), abs=1e-6)


def test_regression_model_keeps_its_head(load_tiny: Callable[..., "pellucid.Model"]) -> None:
    model = load_tiny("albert-similarity")
    kept = model_for_training(model.loaded, TextRegression(), Settings())
    assert kept.config.labels == ("similarity",) and not kept.untrained
    other = model_for_training(load_tiny("bert-feelings").loaded, TextRegression(), Settings())
    assert other.config.labels == ("LABEL_0",) and other.untrained


def test_baseline_is_the_mean_of_the_training_rows() -> None:
    """Not of the held-out rows, where a single one would be its own mean."""
    training_examples, held_out, unlabelled = (
        [Example(((),), ((),), Target(number)) for number in numbers] for numbers in ([1, 2, 6], [4], [None])
    )
    assert TextRegression().baseline_scores(training_examples, training_examples) == {"mse": (4 + 1 + 9) / 3}
    assert TextRegression().baseline_scores(training_examples, held_out) == {"mse": 1}
    assert (
        TextRegression().baseline_scores(training_examples, unlabelled)
        == TextRegression().baseline_scores(unlabelled, held_out)
        == {}
    )


def test_report_contains_the_score_of_the_baseline(
    scratch: "pellucid.Model", starred_rows: Callable[..., Rows]
) -> None:
    model = pellucid.train(scratch, starred_rows(8), "regression", validation=starred_rows(1, 1), max_steps=1)
    assert model.report.baseline == {"mse": 2.25}  # the targets 0.5 to 3.5 have mean 2, and the held-out one is 0.5


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.0, float("nan")], "row 1: 'label' is empty: fill it in, or leave the row out"),
        ([1.0, None], "row 1: 'label' is empty"),
        ([1.0, "many"], "row 1: the label is 'many', expected a finite number"),
        ([1.0, "nan"], "row 1: the label is 'nan', expected a finite number"),
        ([1.0, math.inf], "row 1: the label is inf, expected a finite number"),
        ([1.0, True], "row 1: the label is True, expected a finite number"),
        ([1.0, 10**400], "row 1: the label is 10{58}…, expected a finite number"),
        ([1.0, [2.0]], r"row 1: the label is \[2\.0\], expected a finite number"),
        ([2, 2, 2], "every row has the number 2: there is nothing to tell apart"),
        ([2], "row 0 is the only row to learn from: expected at least two"),
    ],
)
def test_labels_that_are_not_numbers_are_refused(labels: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TextRegression().fitted(read([{"text": "a", "label": label} for label in labels]).rows)


def test_numbers_of_a_table_are_read_as_labels(tmp_path: Path) -> None:
    (tmp_path / "stars.csv").write_text("text,label\na, 1.5\nb,-2e1\n", encoding="utf-8")
    assert label_numbers(read(tmp_path / "stars.csv").rows) == [1.5, -20.0]


def test_model_with_several_labels_is_refused(load_tiny: Callable[..., "pellucid.Model"]) -> None:
    with pytest.raises(InputError, match="this model has 3 labels, expected one number: choose another task"):
        TextRegression().examples(load_tiny("bert-feelings").loaded, read([{"text": "a", "label": 1}]).rows)
