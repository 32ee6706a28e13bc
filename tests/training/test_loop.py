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
from tests.training.courses import QUICK, Rows, farthest, lines, same
from tests.training.test_resume import study

Feelings = Callable[..., Rows]
STILL = {"dropout": 0.0, "attention_dropout": 0.0}


def loop_of(model: "pellucid.Model", rows: Rows, held: Rows = (), **options: Any) -> Loop:  # type: ignore[assignment]
    settings = Settings.of(QUICK | options, {})
    objective = TextClassification().fitted(rows)
    loaded = model_for_training(model.loaded, objective, settings)
    held_out = objective.examples(loaded, held) if held else ()
    return Loop(loaded, objective, settings, objective.examples(loaded, rows), held_out)


# -- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [2, 3, 6, 50])
def test_pieces_of_a_step_change_nothing(body: "pellucid.Model", feelings: Feelings, pieces: int) -> None:
    """Twenty steps of six texts, fewer at the end of an epoch; also with more micro-batches than texts."""
    rows, said = feelings(20), STILL | {"max_steps": 20, "learning_rate": 1e-3}
    whole, parts = loop_of(body, rows, **said), loop_of(body, rows, accumulation=pieces, **said)
    for ours, theirs in zip(whole, parts, strict=True):
        assert ours.metrics["loss"] == pytest.approx(theirs.metrics["loss"], abs=1e-6)
        assert ours.metrics["gradient_norm"] == pytest.approx(theirs.metrics["gradient_norm"], rel=1e-4)
    assert farthest(whole.finish(), parts.finish()) < 1e-6


def test_a_step_is_the_gradient_of_the_mean_loss(body: "pellucid.Model", feelings: Feelings) -> None:
    """Against PyTorch's AdamW, clipping and cross-entropy on the plain module, with the same examples."""
    rows = feelings(12)
    loop, plain = loop_of(body, rows, **STILL, max_steps=6), loop_of(body, rows, **STILL, max_steps=6)
    module = plain.loaded.module.eval()
    named = dict(module.named_parameters())
    groups = [
        {"params": [p for p in named.values() if (p.dim() > 1) == tables], "weight_decay": decay}
        for tables, decay in ((True, 0.01), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-8)
    for step, event in enumerate(loop):
        chosen = [plain.examples[i] for i in plain.order.epoch_and_batch(step)[1]]
        batch = plain.objective.collate(plain.loaded, chosen, np.random.default_rng(0))
        labels = batch.pop("labels")
        loss = torch.nn.functional.cross_entropy(module(**batch)["logits"], labels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(named.values()), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = event.metrics["learning_rate"]
        optimizer.step()
        optimizer.zero_grad()
        assert event.metrics["loss"] == pytest.approx(float(loss.detach()), abs=2e-6)
        assert event.metrics["gradient_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert farthest(loop.finish(), plain.loaded) < 2e-6


def test_what_is_told_of_a_step(body: "pellucid.Model", feelings: Feelings) -> None:
    loop = loop_of(body, feelings(20), warmup=0.5)
    events = list(loop)
    assert [one.step for one in events] == list(range(1, 13)) and not any(one.is_evaluation for one in events)
    assert [one.metrics["epoch"] for one in events] == [0] * 4 + [1] * 4 + [2] * 4
    rates = [one.metrics["learning_rate"] / 3e-3 for one in events]
    assert rates == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    once = sum(len(example.ids[0]) for example in loop.examples)
    assert sum(one.metrics["tokens"] for one in events) == 3 * once
    assert all(one.metrics["gradient_norm"] > 0 and one.seconds > 0 for one in events)
    assert list(log_line(events[0])) == "step epoch loss learning_rate gradient_norm tokens seconds".split()


def test_chance_is_that_of_the_seed_and_the_globals_stay(body: "pellucid.Model", feelings: Feelings) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    first = study(body, feelings(20), None)
    assert torch.equal(torch.get_rng_state(), before) and (np.random.get_state()[1] == numbers).all()  # type: ignore[index]
    torch.manual_seed(6)
    assert same(first.loaded, study(body, feelings(20), None).loaded)


@pytest.mark.parametrize("setting", [torch.no_grad, torch.inference_mode])
def test_it_learns_the_same_whatever_a_caller_turned_off(
    body: "pellucid.Model", feelings: Feelings, setting: Callable[[], Any]
) -> None:
    wanted = study(body, feelings(20), None, max_steps=2, validation=0.0)
    with setting():
        found = study(body, feelings(20), None, max_steps=2, validation=0.0)
    assert same(found.loaded, wanted.loaded)
    assert not any(parameter.is_inference() for parameter in found.loaded.module.parameters())


def test_a_training_of_one_step_learns(body: "pellucid.Model", feelings: Feelings) -> None:
    result = study(body, feelings(20), None, max_steps=1, validation=0.0)
    now, before = (one.module.state_dict()["layers.0.attention.query.weight"] for one in (result.loaded, body.loaded))
    assert result.log[0]["learning_rate"] == 3e-3 and not torch.equal(now, before) and not result.loaded.untrained


def test_what_was_given_stays_as_it_is_and_the_result_evaluates(body: "pellucid.Model", feelings: Feelings) -> None:
    before = {name: tensor.clone() for name, tensor in body.loaded.module.state_dict().items()}
    result = study(body, feelings(20), None, validation=feelings(6, seed=9))
    assert all(torch.equal(before[name], tensor) for name, tensor in body.loaded.module.state_dict().items())
    assert not any(part.training for part in result.loaded.module.modules())
    module, batch = result.loaded.module, torch.tensor([[2, 9, 11, 3]])
    assert torch.equal(module(batch)["logits"], module(batch)["logits"])


def test_nothing_left_to_learn_is_told(body: "pellucid.Model", feelings: Feelings) -> None:
    with pytest.raises(InputError, match="everything is frozen, so nothing would be trained"):
        study(body, feelings(20), None, freeze=("*",))


def test_what_is_frozen_stays_and_the_rest_learns(body: "pellucid.Model", feelings: Feelings) -> None:
    result = study(body, feelings(20), None, freeze=("embeddings.*", "layers.0.*"))
    now, before = result.loaded.module.state_dict(), body.loaded.module.state_dict()
    for name in before:
        frozen = name.startswith(("embeddings.", "layers.0."))
        assert torch.equal(now[name], before[name]) == frozen or name.startswith("pooler."), name


# -- evaluations ------------------------------------------------------------------------------------------------------


def looks(told: list[Event]) -> list[int]:
    return [one.step for one in told if one.is_evaluation]


@pytest.mark.parametrize(
    ("said", "steps"),
    [
        ({}, [5, 10, 15]),
        ({"evaluate_every": 4}, [4, 8, 12, 15]),
        ({"max_steps": 7}, [5, 7]),
        ({"max_steps": 20}, [5, 10, 15, 20]),
        ({"evaluate_every": 40}, [15]),
    ],
)
def test_when_it_looks(body: "pellucid.Model", feelings: Feelings, said: dict[str, Any], steps: list[int]) -> None:
    events = list(loop_of(body, feelings(30), feelings(6, seed=9), **said))
    assert looks(events) == steps
    assert all({"loss", "accuracy"} <= one.metrics.keys() for one in events if one.is_evaluation)


class Scored(TextClassification):
    """Text classification with given scores, one for each evaluation."""

    best_metric = "grade"
    grades: tuple[float, ...] = ()
    at = 0

    def score(self, loaded: Any, examples: Any) -> dict[str, float]:
        type(self).at += 1
        return {"grade": self.grades[self.at - 1]}


def scored(
    body: "pellucid.Model", rows: Rows, grades: tuple[float, ...], out: Path | None = None, **options: Any
) -> Any:
    Scored.grades, Scored.at = grades, 0
    weights: list[torch.Tensor] = []
    real = Loop._evaluate

    def look(loop: Loop) -> Event:
        weights.append(loop.parameters["layers.0.attention.query.weight"].detach().clone())
        return real(loop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_evaluate", look)
        result = study(body, rows, out, Scored(), validation=rows[:4], evaluate_every=2, **options)
    kept = result.loaded.module.get_parameter("layers.0.attention.query.weight")
    return result, [torch.equal(one, kept) for one in weights]


@pytest.mark.parametrize("where", ["nowhere", "folder", "disk"])
def test_the_best_numbers_are_the_result(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile they are kept in memory, or on the disk where they are large."""
    out = None if where == "nowhere" else tmp_path / "a"
    monkeypatch.setattr(state, "IN_MEMORY", 0 if where == "disk" else 2**29)
    result, kept = scored(body, feelings(18), (0.1, 0.7, 0.3, 0.7, 0.2), out, max_steps=10)
    assert result.best_step == 4 and result.scores == {"grade": 0.7} and kept == [False, True, False, False, False]
    assert [line["best"] for line in result.log if "scores" in line] == [True, True, False, False, False]
    if out is not None:
        assert same(pellucid.load(out).loaded, result.loaded) and not (out / "training").exists()


def test_the_last_numbers_are_the_result_where_that_is_asked(body: "pellucid.Model", feelings: Feelings) -> None:
    result, kept = scored(body, feelings(18), (0.1, 0.7, 0.3), keep_best=False, max_steps=6)
    assert result.scores == {"grade": 0.3} and kept == [False, False, True] and not result.best_step


def test_it_ends_when_it_gets_no_better(body: "pellucid.Model", feelings: Feelings) -> None:
    result, kept = scored(body, feelings(18), (0.1, 0.7, 0.3, 0.6, 0.9), patience=2, epochs=9)
    assert result.steps == 8 and result.best_step == 4 and kept == [False, True, False, False]
    result, _ = scored(body, feelings(18), (0.1, 0.7, 0.3, 0.8, 0.2, 0.1), patience=2, epochs=9)
    assert result.steps == 12 and result.best_step == 8


def test_held_out_rows_without_anything_to_score_are_told(
    opened: Callable[..., pellucid.Model], caplog: pytest.LogCaptureFixture
) -> None:
    how = {"validation": [{"text": " "}], "max_steps": 1, "progress": False}
    rows = [{"text": "the film was good"}] * 3
    with pytest.raises(InputError, match="patience is 2, and none of the held-out rows can be scored"):
        pellucid.train(opened("bert-filler"), rows, "fill-mask", patience=2, **how)
    pellucid.train(opened("bert-filler"), rows, "fill-mask", **how)
    assert "none of the held-out rows can be scored, so no scores are computed" in caplog.messages


def test_patience_needs_something_to_look_at(body: "pellucid.Model", feelings: Feelings) -> None:
    with pytest.raises(InputError, match="patience is 2, and nothing is held out to evaluate on: pass validation=FILE"):
        study(body, feelings(18), None, validation=0.0, patience=2)


def test_states_are_kept_in_time_where_nobody_says_how_often(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short run saves none; a long one saves at each end of an epoch that is not too soon after the last state."""
    kept: list[int] = []
    clock = [0.0]
    real = state.State.save
    monkeypatch.setattr(
        state.State,
        "save",
        lambda one, loop, *given, **named: (kept.append(loop.progress.step), real(one, loop, *given)),
    )

    def on_event(one: Event) -> None:
        clock[0] += 8.0

    def learned(**said: Any) -> list[int]:
        kept.clear()
        clock[0] = 0.0
        objective, out = TextClassification(), tmp_path / str(said)
        monkeypatch.setattr(training_run, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        settings = Settings.of(QUICK | {"max_steps": 12} | said, {})
        training_run.run_training(
            body.loaded,
            DataArguments(feelings(18), 0.0),
            objective,
            settings,
            out=out,
            on_event=on_event,
            progress=False,
        )
        return kept.copy()

    monkeypatch.setattr(training_run, "SAVE_INTERVAL", 30.0)
    assert learned() == [6, 12]  # epochs end at steps 3, 6, 9 and 12, 24 seconds apart
    assert learned(save_every=5) == [5, 10, 12]
    monkeypatch.setattr(training_run, "SAVE_INTERVAL", 1000.0)
    assert learned(seed=1) == []


def test_a_score_that_is_no_number_is_never_the_best(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    none = float("nan")
    result, kept = scored(body, feelings(18), (none, 0.2, none), tmp_path / "a", max_steps=6)
    assert result.best_step == 4 and kept == [False, True, False]
    held = [line["scores"] for line in lines(tmp_path / "a" / "log.jsonl") if "scores" in line]
    assert held == [{"grade": None}, {"grade": 0.2}, {"grade": None}]


def test_a_look_sees_the_numbers_of_its_step(body: "pellucid.Model", feelings: Feelings) -> None:
    """Not those of an earlier step, which the module's packed copy may still hold."""
    rows = feelings(12)
    loop = loop_of(body, rows, rows, **STILL, evaluate_every=1, max_steps=6, warmup=0.0, learning_rate=1e-2)
    for one in loop:
        if one.is_evaluation:
            batch = loop.objective.collate(loop.loaded, loop.examples, np.random.default_rng(0))
            with torch.inference_mode():
                loss = float(loop.objective.loss(Learner(loop.loaded, loop.settings), batch)) / len(rows)
            assert one.metrics["loss"] == pytest.approx(loss, abs=1e-5)


def test_before_it_learns_it_looks_where_there_is_something_to_see(body: "pellucid.Model", feelings: Feelings) -> None:
    first = study(body, feelings(20), None, validation=feelings(6, seed=9))
    assert first.before == {}
    second = study(pellucid.Model(first.loaded), feelings(20), None, validation=feelings(6, seed=9))
    assert second.before == first.scores


def test_a_share_is_held_out_where_nothing_is_said(body: "pellucid.Model", feelings: Feelings) -> None:
    result = study(body, feelings(30), None)
    assert (len(result.start.plan.examples), len(result.start.plan.held_out_examples)) == (27, 3)
    none = study(body, feelings(30), None, validation=0.0)
    assert (len(none.start.plan.examples), len(none.start.plan.held_out_examples)) == (30, 0)
    assert none.scores == {} and none.best_step == 0
    with pytest.raises(InputError, match=r"validation is 1\.5, expected at least 0 and below 1"):
        study(body, feelings(30), None, validation=1.5)


# -- log, events and progress bar -------------------------------------------------------------------------------------


def test_the_log_is_told_line_by_line(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    told: list[Event] = []
    seen: list[int] = []

    def hear(one: Event) -> None:
        told.append(one)
        seen.append(len((tmp_path / "a" / "training" / "log.jsonl").read_text().splitlines()))

    result = study(body, feelings(18), tmp_path / "a", on_event=hear, validation=feelings(6, seed=9))
    held = [json.loads(line) for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    assert held == [log_line(one) for one in told] == list(result.log)
    assert seen == list(range(1, len(held) + 1))  # each line is written before the callback is called
    assert [line["step"] for line in held if "scores" in line] == [3, 6, 9]


def test_a_bar_shows_steps_loss_rate_and_the_last_score(
    body: "pellucid.Model", feelings: Feelings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.bars.DELAY", 0.0)
    monkeypatch.setattr(
        "pellucid.bars.UPDATE_INTERVAL", 0.0
    )  # nine steps of this body take less than a tenth of a second
    study(body, feelings(18), None, validation=feelings(6, seed=9), progress=True)
    out, said = capsys.readouterr()
    assert out == "" and "/9 [" in said and "loss 0." in said and "rate " in said and "accuracy " in said
    study(body, feelings(18), None, validation=feelings(6, seed=9), progress=False)
    assert capsys.readouterr() == ("", "")
