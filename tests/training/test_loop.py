"""The loop: steps, micro-batches, evaluations, best weights, early stopping; its events, and what it leaves alone."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.training import state, training_run
from pellucid.training.classification import TextClassification
from pellucid.training.inputs import DataArguments
from pellucid.training.learner import Learner
from pellucid.training.loop import Event, Loop, log_line
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training
from tests.training.small_runs import QUICK, Rows, largest_weight_difference, log_lines, same_weights
from tests.training.test_resume import train_small

Sentiments = Callable[..., Rows]
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def loop_of(model: "pellucid.Model", rows: Rows, held_out_rows: Rows = (), **options: Any) -> Loop:  # type: ignore[assignment]
    settings = Settings.of(QUICK | options, {})
    objective = TextClassification().fitted(rows)
    loaded = model_for_training(model.loaded, objective, settings)
    held_out = objective.examples(loaded, held_out_rows) if held_out_rows else ()
    return Loop(loaded, objective, settings, objective.examples(loaded, rows), held_out)


# -- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [2, 3, 6, 50])
def test_accumulation_does_not_change_the_training(body: "pellucid.Model", sentiments: Sentiments, pieces: int) -> None:
    """Twenty steps of six texts, fewer at the end of an epoch; also with more micro-batches than texts."""
    rows, settings = sentiments(20), NO_DROPOUT | {"max_steps": 20, "learning_rate": 1e-3}
    whole, parts = loop_of(body, rows, **settings), loop_of(body, rows, accumulation=pieces, **settings)
    for ours, theirs in zip(whole, parts, strict=True):
        assert ours.metrics["loss"] == pytest.approx(theirs.metrics["loss"], abs=1e-6)
        assert ours.metrics["gradient_norm"] == pytest.approx(theirs.metrics["gradient_norm"], rel=1e-4)
    assert largest_weight_difference(whole.finish(), parts.finish()) < 1e-6


def test_step_equals_pytorch_s_adamw_on_the_mean_loss(body: "pellucid.Model", sentiments: Sentiments) -> None:
    """Against PyTorch's AdamW, clipping and cross-entropy on the plain module, with the same examples."""
    rows = sentiments(12)
    loop, plain = loop_of(body, rows, **NO_DROPOUT, max_steps=6), loop_of(body, rows, **NO_DROPOUT, max_steps=6)
    module = plain.loaded.module.eval()
    parameters = dict(module.named_parameters())
    groups = [
        {"params": [p for p in parameters.values() if (p.dim() > 1) == tables], "weight_decay": decay}
        for tables, decay in ((True, 0.01), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-8)
    for step, event in enumerate(loop):
        examples = [plain.examples[i] for i in plain.order.epoch_and_batch(step)[1]]
        batch = plain.objective.collate(plain.loaded, examples, np.random.default_rng(0))
        labels = batch.pop("labels")
        loss = torch.nn.functional.cross_entropy(module(**batch)["logits"], labels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = event.metrics["learning_rate"]
        optimizer.step()
        optimizer.zero_grad()
        assert event.metrics["loss"] == pytest.approx(float(loss.detach()), abs=2e-6)
        assert event.metrics["gradient_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert largest_weight_difference(loop.finish(), plain.loaded) < 2e-6


def test_events_contain_the_metrics_of_each_step(body: "pellucid.Model", sentiments: Sentiments) -> None:
    loop = loop_of(body, sentiments(20), warmup=0.5)
    events = list(loop)
    assert [one.step for one in events] == list(range(1, 13)) and not any(one.is_evaluation for one in events)
    assert [one.metrics["epoch"] for one in events] == [0] * 4 + [1] * 4 + [2] * 4
    rates = [one.metrics["learning_rate"] / 3e-3 for one in events]
    assert rates == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    epoch_tokens = sum(len(example.ids[0]) for example in loop.examples)
    assert sum(one.metrics["tokens"] for one in events) == 3 * epoch_tokens
    assert all(one.metrics["gradient_norm"] > 0 and one.seconds > 0 for one in events)
    assert list(log_line(events[0])) == "step epoch loss learning_rate gradient_norm tokens seconds".split()


def test_training_is_seeded_and_leaves_the_global_generators(body: "pellucid.Model", sentiments: Sentiments) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    first = train_small(body, sentiments(20), None)
    assert torch.equal(torch.get_rng_state(), before) and (np.random.get_state()[1] == numbers).all()  # type: ignore[index]
    torch.manual_seed(6)
    assert same_weights(first.loaded, train_small(body, sentiments(20), None).loaded)


@pytest.mark.parametrize("setting", [torch.no_grad, torch.inference_mode])
def test_training_works_within_no_grad_and_inference_mode(
    body: "pellucid.Model", sentiments: Sentiments, setting: Callable[[], Any]
) -> None:
    expected = train_small(body, sentiments(20), None, max_steps=2, validation=0.0)
    with setting():
        found = train_small(body, sentiments(20), None, max_steps=2, validation=0.0)
    assert same_weights(found.loaded, expected.loaded)
    assert not any(parameter.is_inference() for parameter in found.loaded.module.parameters())


def test_training_of_one_step_changes_the_weights(body: "pellucid.Model", sentiments: Sentiments) -> None:
    result = train_small(body, sentiments(20), None, max_steps=1, validation=0.0)
    after, before = (one.module.state_dict()["layers.0.attention.query.weight"] for one in (result.loaded, body.loaded))
    assert result.log[0]["learning_rate"] == 3e-3 and not torch.equal(after, before) and not result.loaded.untrained


def test_base_is_unchanged_and_the_result_is_in_evaluation_mode(body: "pellucid.Model", sentiments: Sentiments) -> None:
    before = {name: tensor.clone() for name, tensor in body.loaded.module.state_dict().items()}
    result = train_small(body, sentiments(20), None, validation=sentiments(6, seed=9))
    assert all(torch.equal(before[name], tensor) for name, tensor in body.loaded.module.state_dict().items())
    assert not any(part.training for part in result.loaded.module.modules())
    module, batch = result.loaded.module, torch.tensor([[2, 9, 11, 3]])
    assert torch.equal(module(batch)["logits"], module(batch)["logits"])


def test_freezing_everything_is_refused(body: "pellucid.Model", sentiments: Sentiments) -> None:
    with pytest.raises(InputError, match="everything is frozen, so nothing would be trained"):
        train_small(body, sentiments(20), None, freeze=("*",))


def test_only_weights_that_are_not_frozen_change(body: "pellucid.Model", sentiments: Sentiments) -> None:
    result = train_small(body, sentiments(20), None, freeze=("embeddings.*", "layers.0.*"))
    after, before = result.loaded.module.state_dict(), body.loaded.module.state_dict()
    for name in before:
        frozen = name.startswith(("embeddings.", "layers.0."))
        assert torch.equal(after[name], before[name]) == frozen or name.startswith("pooler."), name


# -- evaluations ------------------------------------------------------------------------------------------------------


def evaluation_steps(events: list[Event]) -> list[int]:
    return [one.step for one in events if one.is_evaluation]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, [5, 10, 15]),
        ({"evaluate_every": 4}, [4, 8, 12, 15]),
        ({"max_steps": 7}, [5, 7]),
        ({"max_steps": 20}, [5, 10, 15, 20]),
        ({"evaluate_every": 40}, [15]),
    ],
)
def test_evaluations_happen_at_the_expected_steps(
    body: "pellucid.Model", sentiments: Sentiments, settings: dict[str, Any], steps: list[int]
) -> None:
    events = list(loop_of(body, sentiments(30), sentiments(6, seed=9), **settings))
    assert evaluation_steps(events) == steps
    assert all({"loss", "accuracy"} <= one.metrics.keys() for one in events if one.is_evaluation)


class GivenScores(TextClassification):
    """Text classification with given scores, one for each evaluation."""

    best_metric = "grade"
    given_scores: tuple[float, ...] = ()
    evaluations = 0

    def score(self, loaded: Any, examples: Any) -> dict[str, float]:
        type(self).evaluations += 1
        return {"grade": self.given_scores[self.evaluations - 1]}


def train_with_scores(
    body: "pellucid.Model", rows: Rows, given_scores: tuple[float, ...], out: Path | None = None, **options: Any
) -> Any:
    GivenScores.given_scores, GivenScores.evaluations = given_scores, 0
    weights: list[torch.Tensor] = []
    original = Loop._evaluate

    def evaluate(loop: Loop) -> Event:
        weights.append(loop.parameters["layers.0.attention.query.weight"].detach().clone())
        return original(loop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_evaluate", evaluate)
        result = train_small(body, rows, out, GivenScores(), validation=rows[:4], evaluate_every=2, **options)
    final = result.loaded.module.get_parameter("layers.0.attention.query.weight")
    return result, [torch.equal(one, final) for one in weights]


@pytest.mark.parametrize("storage", ["nowhere", "folder", "disk"])
def test_best_weights_are_the_result(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile they are kept in memory, or on the disk where they are large."""
    out = None if storage == "nowhere" else tmp_path / "a"
    monkeypatch.setattr(state, "IN_MEMORY", 0 if storage == "disk" else 2**29)
    result, is_result = train_with_scores(body, sentiments(18), (0.1, 0.7, 0.3, 0.7, 0.2), out, max_steps=10)
    assert result.best_step == 4 and result.scores == {"grade": 0.7} and is_result == [False, True, False, False, False]
    assert [line["best"] for line in result.log if "scores" in line] == [True, True, False, False, False]
    if out is not None:
        assert same_weights(pellucid.load(out).loaded, result.loaded) and not (out / "training").exists()


def test_last_weights_are_the_result_with_keep_best_false(body: "pellucid.Model", sentiments: Sentiments) -> None:
    result, is_result = train_with_scores(body, sentiments(18), (0.1, 0.7, 0.3), keep_best=False, max_steps=6)
    assert result.scores == {"grade": 0.3} and is_result == [False, False, True] and not result.best_step


def test_patience_ends_the_training(body: "pellucid.Model", sentiments: Sentiments) -> None:
    result, is_result = train_with_scores(body, sentiments(18), (0.1, 0.7, 0.3, 0.6, 0.9), patience=2, epochs=9)
    assert result.steps == 8 and result.best_step == 4 and is_result == [False, True, False, False]
    result, _ = train_with_scores(body, sentiments(18), (0.1, 0.7, 0.3, 0.8, 0.2, 0.1), patience=2, epochs=9)
    assert result.steps == 12 and result.best_step == 8


def test_held_out_rows_that_cannot_be_scored_are_reported(
    load_tiny: Callable[..., pellucid.Model], caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"validation": [{"text": " "}], "max_steps": 1, "progress": False}
    rows = [{"text": "the film was good"}] * 3
    with pytest.raises(InputError, match="patience is 2, and none of the held-out rows can be scored"):
        pellucid.train(load_tiny("bert-filler"), rows, "fill-mask", patience=2, **settings)
    pellucid.train(load_tiny("bert-filler"), rows, "fill-mask", **settings)
    assert "none of the held-out rows can be scored, so no scores are computed" in caplog.messages


def test_patience_without_held_out_rows_is_refused(body: "pellucid.Model", sentiments: Sentiments) -> None:
    with pytest.raises(InputError, match="patience is 2, and nothing is held out to evaluate on: pass validation=FILE"):
        train_small(body, sentiments(18), None, validation=0.0, patience=2)


def test_states_are_saved_at_intervals_by_default(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short run saves none; a long one saves at each end of an epoch that is not too soon after the last state."""
    saved_steps: list[int] = []
    clock = [0.0]
    original = state.State.save
    monkeypatch.setattr(
        state.State,
        "save",
        lambda saved_state, loop, *args, **kwargs: (
            saved_steps.append(loop.progress.step),
            original(saved_state, loop, *args),
        ),
    )

    def on_event(event: Event) -> None:
        clock[0] += 8.0

    def steps_saved(**options: Any) -> list[int]:
        saved_steps.clear()
        clock[0] = 0.0
        objective, out = TextClassification(), tmp_path / str(options)
        monkeypatch.setattr(training_run, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        settings = Settings.of(QUICK | {"max_steps": 12} | options, {})
        training_run.run_training(
            body.loaded,
            DataArguments(sentiments(18), 0.0),
            objective,
            settings,
            out=out,
            on_event=on_event,
            progress=False,
        )
        return saved_steps.copy()

    monkeypatch.setattr(training_run, "SAVE_INTERVAL", 30.0)
    assert steps_saved() == [6, 12]  # epochs end at steps 3, 6, 9 and 12, 24 seconds apart
    assert steps_saved(save_every=5) == [5, 10, 12]
    monkeypatch.setattr(training_run, "SAVE_INTERVAL", 1000.0)
    assert steps_saved(seed=1) == []


def test_nan_is_never_the_best_score(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    nan = float("nan")
    result, is_result = train_with_scores(body, sentiments(18), (nan, 0.2, nan), tmp_path / "a", max_steps=6)
    assert result.best_step == 4 and is_result == [False, True, False]
    logged = [line["scores"] for line in log_lines(tmp_path / "a" / "log.jsonl") if "scores" in line]
    assert logged == [{"grade": None}, {"grade": 0.2}, {"grade": None}]


def test_evaluation_uses_the_current_weights(body: "pellucid.Model", sentiments: Sentiments) -> None:
    """Not those of an earlier step, which the module's packed copy may still hold."""
    rows = sentiments(12)
    loop = loop_of(body, rows, rows, **NO_DROPOUT, evaluate_every=1, max_steps=6, warmup=0.0, learning_rate=1e-2)
    for event in loop:
        if event.is_evaluation:
            batch = loop.objective.collate(loop.loaded, loop.examples, np.random.default_rng(0))
            with torch.inference_mode():
                loss = float(loop.objective.loss(Learner(loop.loaded, loop.settings), batch)) / len(rows)
            assert event.metrics["loss"] == pytest.approx(loss, abs=1e-5)


def test_trained_model_is_evaluated_before_training(body: "pellucid.Model", sentiments: Sentiments) -> None:
    first = train_small(body, sentiments(20), None, validation=sentiments(6, seed=9))
    assert first.before == {}
    second = train_small(pellucid.Model(first.loaded), sentiments(20), None, validation=sentiments(6, seed=9))
    assert second.before == first.scores


def test_a_tenth_of_the_rows_is_held_out_by_default(body: "pellucid.Model", sentiments: Sentiments) -> None:
    result = train_small(body, sentiments(30), None)
    assert (len(result.start.plan.examples), len(result.start.plan.held_out_examples)) == (27, 3)
    none = train_small(body, sentiments(30), None, validation=0.0)
    assert (len(none.start.plan.examples), len(none.start.plan.held_out_examples)) == (30, 0)
    assert none.scores == {} and none.best_step == 0
    with pytest.raises(InputError, match=r"validation is 1\.5, expected at least 0 and below 1"):
        train_small(body, sentiments(30), None, validation=1.5)


# -- log, events and progress bar -------------------------------------------------------------------------------------


def test_each_event_is_logged_before_its_callback(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    events: list[Event] = []
    lengths: list[int] = []

    def on_event(event: Event) -> None:
        events.append(event)
        lengths.append(len((tmp_path / "a" / "training" / "log.jsonl").read_text().splitlines()))

    result = train_small(body, sentiments(18), tmp_path / "a", on_event=on_event, validation=sentiments(6, seed=9))
    logged = [json.loads(line) for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    assert logged == [log_line(event) for event in events] == list(result.log)
    assert lengths == list(range(1, len(logged) + 1))  # each line is written before the callback is called
    assert [line["step"] for line in logged if "scores" in line] == [3, 6, 9]


def test_progress_bar_shows_steps_loss_rate_and_the_last_score(
    body: "pellucid.Model", sentiments: Sentiments, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.bars.DELAY", 0.0)
    monkeypatch.setattr(
        "pellucid.bars.UPDATE_INTERVAL", 0.0
    )  # nine steps of this body take less than a tenth of a second
    train_small(body, sentiments(18), None, validation=sentiments(6, seed=9), progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "/9 [" in err and "loss 0." in err and "rate " in err and "accuracy " in err
    train_small(body, sentiments(18), None, validation=sentiments(6, seed=9), progress=False)
    assert capsys.readouterr() == ("", "")
