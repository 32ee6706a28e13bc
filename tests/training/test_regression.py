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
from tests.training.learned import result, training

Rows = list[dict[str, Any]]


@pytest.fixture
def stars(feelings: Callable[..., Rows]) -> Callable[..., Rows]:
    """Rows with the targets 0.5 to 3.5: the count of a planted word, 0 to 3, plus 0.5."""

    def rows(many: int, seed: int = 0) -> Rows:
        found = []
        for i, row in enumerate(feelings(many, seed, longest=6)):
            plain = row["text"].replace("good", "house").replace("hate", "house")
            found.append({"text": f"{plain}{' good' * (i % 4)}", "label": i % 4 + 0.5})
        return read(found).rows

    return rows


def test_how_often_a_word_stands_is_learned(
    scratch: "pellucid.Model", stars: Callable[..., Rows], tmp_path: Path
) -> None:
    settings = {"epochs": 10, "batch_size": 8, "learning_rate": 5e-3, "precision": "float32"}
    loop, events = training(scratch.loaded, TextRegression(), stars(64), stars(24, 1), **settings)
    looks = [one.metrics for one in events if one.is_evaluation]
    assert looks[-1]["spearman"] > 0.8 and looks[-1]["pearson"] > 0.8 and looks[-1]["mse"] < looks[0]["mse"]
    assert set(looks[0]) == {"loss", "mse", "pearson", "spearman"}
    folder = save_checkpoint(result(loop), tmp_path / "made")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert theirs.config.problem_type == "regression" and theirs.config.num_labels == 1
    words = transformers.AutoTokenizer.from_pretrained(folder)
    batch = words([row["text"] for row in stars(8, 2)], padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted = theirs(**batch).logits[:, 0]
    answers = pellucid.pipeline("text-classification", folder)([row["text"] for row in stars(8, 2)])
    torch.testing.assert_close(torch.tensor([one["score"] for one in answers]), wanted, rtol=1e-4, atol=1e-5)


def test_the_loss_is_the_squared_error(scratch: "pellucid.Model") -> None:
    rows = read([{"text": "a", "label": 1}, {"text": "b c", "label": "2.5"}]).rows
    objective = TextRegression().fitted(rows)
    loaded = model_for_training(scratch.loaded, objective, Settings())
    batch = objective.collate(loaded, objective.examples(loaded, rows), np.random.default_rng(0))
    learner = Learner(loaded, Settings(precision="float32"))
    learner.seed_dropout(0, 0)
    loss = float(objective.loss(learner, batch).detach())
    given = {name: value for name, value in batch.items() if name != "labels"}
    said = loaded.module(**given)["logits"].detach()[:, 0]
    wanted = torch.nn.functional.mse_loss(said, torch.tensor([1.0, 2.5]))
    assert loss / objective.weight(batch) == pytest.approx(float(wanted), abs=1e-6)


def test_a_model_of_one_number_goes_on(opened: Callable[..., "pellucid.Model"]) -> None:
    given = opened("albert-similarity")
    found = model_for_training(given.loaded, TextRegression(), Settings())
    assert found.config.labels == ("similarity",) and not found.untrained
    other = model_for_training(opened("bert-feelings").loaded, TextRegression(), Settings())
    assert other.config.labels == ("LABEL_0",) and other.untrained


def test_the_simplest_answer_is_the_mean_of_the_rows_learned_from() -> None:
    """Not of the held-out rows, where a single one would be its own mean."""
    learned, held, bare = (
        [Example(((),), ((),), Target(number)) for number in numbers] for numbers in ([1, 2, 6], [4], [None])
    )
    assert TextRegression().baseline_scores(learned, learned) == {"mse": (4 + 1 + 9) / 3}
    assert TextRegression().baseline_scores(learned, held) == {"mse": 1}
    assert TextRegression().baseline_scores(learned, bare) == TextRegression().baseline_scores(bare, held) == {}


def test_a_report_says_what_the_simplest_answer_is_worth(scratch: "pellucid.Model", stars: Callable[..., Rows]) -> None:
    model = pellucid.train(scratch, stars(8), "regression", validation=stars(1, 1), max_steps=1)
    assert model.report.baseline == {"mse": 2.25}  # the targets 0.5 to 3.5 have mean 2, and the held-out one is 0.5


@pytest.mark.parametrize(
    ("labels", "sentence"),
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
def test_what_is_no_number_is_refused(labels: list[Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TextRegression().fitted(read([{"text": "a", "label": label} for label in labels]).rows)


def test_numbers_of_a_table_are_read(tmp_path: Path) -> None:
    (tmp_path / "stars.csv").write_text("text,label\na, 1.5\nb,-2e1\n", encoding="utf-8")
    assert label_numbers(read(tmp_path / "stars.csv").rows) == [1.5, -20.0]


def test_a_model_of_several_labels_is_not_measured_by_a_number(opened: Callable[..., "pellucid.Model"]) -> None:
    with pytest.raises(InputError, match="this model has 3 labels, expected one number: choose another task"):
        TextRegression().examples(opened("bert-feelings").loaded, read([{"text": "a", "label": 1}]).rows)
