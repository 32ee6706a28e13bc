"""`pellucid.train` and `pellucid.evaluate`: their inputs, results and reports."""

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.edits import zero
from pellucid.errors import InputError, PellucidError
from tests.training.conftest import *  # noqa: F403 - the same tiny checkpoints and rows

Sentiments = Callable[..., list[dict[str, Any]]]

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK: dict[str, Any] = {"max_steps": 2, "precision": "float32", "batch_size": 8}


def test_training_improves_the_scores_and_reports_them(scratch: pellucid.Model, sentiments: Sentiments) -> None:
    before = {name: p.clone() for name, p in scratch.named_parameters()}
    trained = pellucid.train(
        scratch,
        sentiments(240),
        "classify",
        validation=sentiments(40, seed=9),
        epochs=5,
        learning_rate=5e-3,
        batch_size=16,
    )
    report = trained.report
    assert report.scores["accuracy"] >= 0.95 > report.baseline["accuracy"] == 0.5
    assert (report.task, report.rows, report.held_out, report.steps) == ("text-classification", 240, 40, 75)
    assert report.before == {} and 0 < report.best_step <= 75 and report.seconds > 0 and report.folder is None
    assert [line["step"] for line in report.log if "loss" in line] == list(range(1, 76))
    assert repr(report).startswith("Report(text-classification: ") and "<img" in report.curves._repr_html_()
    assert all(torch.equal(p, before[name]) for name, p in scratch.named_parameters())

    assert "UNTRAINED" not in repr(trained) and "trained here" in repr(trained) and not trained.module.training
    pipe = pellucid.pipeline("sentiment-analysis", trained)
    assert [one["label"] for one in pipe(["people hate it", "good people"])] == ["negative", "positive"]
    scores = pellucid.evaluate(trained, sentiments(40, seed=9))
    assert scores == pytest.approx(dict(report.scores), abs=1e-6)


def test_evaluation_on_training_rows_is_reported(
    scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, others = sentiments(40), sentiments(40, seed=9)
    pellucid.train(scratch, rows, "classify", out=tmp_path / "model", **QUICK)
    assert "flatter" not in caplog.text
    pellucid.evaluate(tmp_path / "model", others)
    assert "flatter" not in caplog.text
    pellucid.evaluate(tmp_path / "model", rows)
    assert f"{tmp_path / 'model' / 'recipe.toml'} names: the model learned from all but 4 of them" in caplog.text
    (tmp_path / "model" / "recipe.toml").write_text("no recipe")
    assert pellucid.evaluate(tmp_path / "model", rows)


def test_training_rows_among_the_validation_rows_are_counted(
    scratch: pellucid.Model, sentiments: Sentiments, caplog: pytest.LogCaptureFixture
) -> None:
    rows, others = sentiments(40), sentiments(40, seed=9)
    pellucid.train(scratch, rows, "classify", validation=others, **QUICK)
    assert "held-out rows" not in caplog.text
    pellucid.train(scratch, rows, "classify", validation=[*rows[:3], *others], **QUICK)
    assert "3 of 43 held-out rows are among those that are learned from" in caplog.text


def test_output_folder_is_a_checkpoint(scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path) -> None:
    trained = pellucid.train(scratch, sentiments(40), "classify", out=tmp_path / "model", **QUICK)
    assert trained.report.folder == tmp_path / "model" and trained.loaded.source is not None
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {
        "config.json", "model.safetensors", "tokenizer.json", "README.md", "recipe.toml", "log.jsonl", "curves.svg"
    }  # fmt: skip
    assert not (tmp_path / "model" / "training").exists()
    again = pellucid.load(tmp_path / "model")
    texts = [row["text"] for row in sentiments(9, seed=4)]
    answers = [pellucid.pipeline("text-classification", one)(texts) for one in (trained, again)]
    assert [one["score"] for one in answers[0]] == [one["score"] for one in answers[1]]
    assert again.config.labels == ("negative", "positive")
    from transformers import AutoModelForSequenceClassification

    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor([again.tokenizer(texts[0])["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, again(ids).logits, rtol=0, atol=1e-6)
    assert pellucid.curves(tmp_path / "model").steps


def test_columns_may_have_other_names(scratch: pellucid.Model, sentiments: Sentiments) -> None:
    rows = {"review": [row["text"] for row in sentiments(20)], "stars": [row["label"] for row in sentiments(20)]}
    columns = {"text": "review", "label": "stars"}
    trained = pellucid.train(scratch, rows, "text-classification", columns=columns, **QUICK)
    assert trained.config.labels == ("negative", "positive")
    assert "accuracy" in pellucid.evaluate(trained, rows, columns=columns)
    with pytest.raises(InputError, match="star"):
        pellucid.train(scratch, rows, "classify", columns={"text": "review", "label": "star"}, **QUICK)


def test_model_may_be_given_by_name(checkpoint: Callable[[str], Path], sentiments: Sentiments) -> None:
    trained = pellucid.train(str(checkpoint("bert-body")), sentiments(20), "classify", **QUICK)
    assert trained.loaded.source is None and trained.report.steps == 2


def test_from_scratch_keeps_only_the_tokenizer(body: pellucid.Model, sentiments: Sentiments) -> None:
    no_training = QUICK | {"max_steps": 1, "learning_rate": 0.0}
    with_weights = pellucid.train(body, sentiments(20), "classify", **no_training)
    from_scratch = pellucid.train(body, sentiments(20), "classify", from_scratch=True, **no_training)
    name = "layers.0.attention.query.weight"
    old_weight, kept_weight, new_weight = (one.module.get_parameter(name) for one in (body, with_weights, from_scratch))
    assert torch.equal(old_weight, kept_weight) and not torch.equal(old_weight, new_weight)
    assert float(new_weight.detach().std()) == pytest.approx(body.config.initializer_range, rel=0.1)
    assert from_scratch.tokenizer is body.tokenizer and from_scratch.config.hidden_size == body.config.hidden_size


def test_resumed_training_ends_like_an_uninterrupted_one(
    scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path
) -> None:
    settings = QUICK | {"max_steps": 6, "save_every": 2, "seed": 3}
    uninterrupted = pellucid.train(scratch, sentiments(40), "classify", out=tmp_path / "whole", **settings)

    class StopError(Exception):
        pass

    from pellucid.training.arguments import objective_and_settings
    from pellucid.training.inputs import DataArguments
    from pellucid.training.names import objective_named
    from pellucid.training.training_run import run_training

    def stop_at_step_four(event: Any) -> None:
        if event.step == 4:
            raise StopError

    objective, chosen_settings = objective_and_settings(objective_named("classify"), settings)
    with pytest.raises(StopError):
        run_training(
            scratch.loaded,
            DataArguments(sentiments(40)),
            objective,
            chosen_settings,
            out=tmp_path / "broken",
            on_event=stop_at_step_four,
        )
    with pytest.raises(InputError, match="resume"):
        pellucid.train(scratch, sentiments(40), "classify", out=tmp_path / "broken", **settings)
    resumed = pellucid.train(scratch, sentiments(40), "classify", out=tmp_path / "broken", resume=True, **settings)
    assert resumed.report.scores == uninterrupted.report.scores
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "broken")]
    assert files[0] == files[1]


def test_trained_model_can_be_saved_and_edited(scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path) -> None:
    trained = pellucid.train(scratch, sentiments(20), "classify", **QUICK)
    copy = pickle.loads(pickle.dumps(trained))
    assert copy.report.scores == trained.report.scores
    assert trained.save(tmp_path / "saved").is_dir()
    with trained.edit({"layers.0.attention.heads": zero(head=0)}) as edited:
        edited(["good people"])
    for made in (edited, trained.reading(trained.tokenizer), trained.saying(trained.config, {})):
        with pytest.raises(PellucidError, match=r"^an edited model, or one with another tokenizer or config, has no"):
            _ = made.report


# -- what cannot be ----------------------------------------------------------------------------------------------------


def test_missing_or_invalid_arguments_are_named(scratch: pellucid.Model, sentiments: Sentiments) -> None:
    for arguments, missing in (
        ((), "task"),
        ((scratch, None, "classify"), "data"),
        ((None, sentiments(9), "classify"), "model"),
    ):
        with pytest.raises(InputError, match=f"no {missing} is named"):
            pellucid.train(*arguments)
    with pytest.raises(InputError, match=r"unknown task 'clasify' \(did you mean classify"):
        pellucid.train(scratch, sentiments(9), "clasify")
    with pytest.raises(InputError, match=r"has no setting 'learning_rte' \(did you mean learning_rate"):
        pellucid.train(scratch, sentiments(9), "classify", learning_rte=1e-4)
    with pytest.raises(InputError, match="epochs is 'many', expected a whole number"):
        pellucid.train(scratch, sentiments(9), "classify", epochs="many")


def test_evaluation_needs_a_trained_model_with_the_right_head(
    scratch: pellucid.Model, load_tiny: Callable[..., pellucid.Model], sentiments: Sentiments
) -> None:
    with pytest.raises(InputError, match=r"text-classification needs a head for sequence-classification.*none"):
        pellucid.evaluate(scratch, sentiments(9), "classify")
    untrained = load_tiny("bert-body", head="sequence-classification")
    with pytest.raises(InputError, match=r"UNTRAINED .*its scores would be chance"):
        pellucid.evaluate(untrained, sentiments(9), "classify")
    trained = pellucid.train(scratch, sentiments(20), "classify", **QUICK)
    with pytest.raises(InputError, match="token-classification needs a head"):
        pellucid.evaluate(trained, sentiments(9), "tag")
    with pytest.raises(InputError, match="sentence-similarity needs no head, and the model has one for sequence-cl"):
        pellucid.evaluate(trained, sentiments(9), "similarity")
    with pytest.raises(InputError, match=r"has no option 'max_lenght' \(did you mean max_length"):
        pellucid.evaluate(trained, sentiments(9), max_lenght=3)
    with pytest.raises(InputError, match="neutral"):
        pellucid.evaluate(trained, [{"text": "good people", "label": "neutral"}])


@pytest.mark.parametrize(
    ("name", "task"),
    [("bert-filler", "fill-mask"), ("gpt2", "text-generation"), ("bert-people", "token-classification")],
)
def test_task_follows_the_head(load_tiny: Callable[..., pellucid.Model], name: str, task: str) -> None:
    from pellucid.learning import _objective_for_head

    assert _objective_for_head(load_tiny(name).loaded).name == task


def test_report_is_json_even_with_infinite_scores(scratch: pellucid.Model, sentiments: Sentiments) -> None:
    report = pellucid.train(scratch, sentiments(20), "classify", max_steps=1).report
    data = replace(report, scores={"loss": math.nan, "perplexity": math.inf, "f1": 0.5}).data()
    assert json.loads(json.dumps(data, allow_nan=False))["scores"] == {"loss": None, "perplexity": None, "f1": 0.5}


def test_paths_may_have_names_that_are_not_utf8(scratch: pellucid.Model, tmp_path: Path) -> None:
    """File names are bytes; those that are not UTF-8 contain surrogates in Python."""
    data, out = tmp_path / "data\udcff.csv", tmp_path / "out\udcff"
    data.write_text("text,label\n" + "good people,a\nbad people,b\n" * 8)
    trained = pellucid.train(scratch, data, "classify", out=out, **QUICK)
    assert trained.report.folder == out and pellucid.load(out).config.labels == ("a", "b")
    for name in ("README.md", "recipe.toml", "curves.svg"):
        assert (out / name).read_text(encoding="utf-8")
    assert "data\ufffd.csv" in (out / "recipe.toml").read_text(encoding="utf-8")


def test_temporary_files_of_a_killed_training_are_deleted(
    scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    leftovers = [out / f".{name}-0a1b2c3d" for name in ("recipe.toml", "README.md", "log.jsonl", "curves.svg")]
    foreign = [out / ".recipe.toml-mine", out / "recipe.toml-0a1b2c3d"]
    (out / "training").mkdir(parents=True)
    for path in (*leftovers, *foreign, out / "training" / ".recipe.toml-0a1b2c3d"):
        path.write_text("x")
    pellucid.train(scratch, sentiments(20), "classify", out=out, overwrite=True, **QUICK)
    assert not any(path.exists() for path in leftovers) and all(path.exists() for path in foreign)
    assert not (out / "training").exists()
