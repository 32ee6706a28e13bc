"""Failures in training: values that are not finite, a full disk, a second process, changed data."""

import ctypes
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import InputError, PellucidError, ResourceError
from pellucid.training import state, training_run
from pellucid.training.classification import TextClassification
from pellucid.training.loop import DivergedError, Event
from pellucid.training.manifest import read_manifest
from pellucid.training.state import lock_folder
from tests.quick import few
from tests.training.small_runs import ROOT, ProcessRun, Rows, file_contents, log_lines, same_weights
from tests.training.test_resume import train_small

Sentiments = Callable[..., Rows]


# -- values that are not finite ---------------------------------------------------------------------------------------


class NonFinite(TextClassification):
    """Text classification whose loss or gradient is not finite at some steps."""

    steps: tuple[int, ...] = ()
    factor = float("nan")
    gradient = False
    step = 0

    def collate(self, *args: Any) -> Any:
        type(self).step += 1
        return super().collate(*args)

    def loss(self, learner: Any, batch: Any) -> torch.Tensor:
        loss = super().loss(learner, batch)
        if self.step not in self.steps:
            return loss
        return ScaledGradient.apply(loss, self.factor) if self.gradient else loss * self.factor


class ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by `factor`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.factor, None


def train_non_finite(body: "pellucid.Model", rows: Rows, out: Path | None, *steps: int, **options: Any) -> Any:
    NonFinite.steps, NonFinite.step = steps, options.pop("before", 0)
    NonFinite.factor, NonFinite.gradient = options.pop("factor", float("nan")), options.pop("gradient", False)
    return train_small(body, rows, out, NonFinite(), **({"validation": 0.0} | options))


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
@pytest.mark.parametrize("gradient", [False, True])
def test_step_with_a_non_finite_loss_or_gradient_is_skipped(
    body: "pellucid.Model", sentiments: Sentiments, caplog: pytest.LogCaptureFixture, factor: float, gradient: bool
) -> None:
    events: list[Any] = []
    weights: list[torch.Tensor] = []

    def on_event(one: Any) -> None:
        events.append(one)
        weights.append(loops[0].parameters["layers.0.attention.query.weight"].detach().clone())

    loops: list[Any] = []
    from pellucid.training import training_run

    original = training_run.Loop
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            training_run, "Loop", lambda *given, **kwargs: loops.append(original(*given, **kwargs)) or loops[0]
        )
        result = train_non_finite(
            body, sentiments(30), None, 4, 8, 9, factor=factor, gradient=gradient, on_event=on_event
        )
    assert [one.step for one in events if one.skipped] == [4, 8, 9] and result.steps == 15
    assert torch.equal(weights[3], weights[2]) and torch.equal(weights[8], weights[6])
    assert not torch.equal(weights[9], weights[8])
    skipped = [line for line in result.log if line.get("skipped")]
    assert [line["step"] for line in skipped] == [4, 8, 9]
    assert skipped[0]["gradient_norm"] is None and (skipped[0]["loss"] is None) != gradient
    json.dumps(result.log, allow_nan=False)
    assert sum("was left out: its loss is" in one.message for one in caplog.records) == 3
    assert all(torch.isfinite(p).all() for p in result.loaded.module.parameters())


def test_three_non_finite_steps_in_a_row_end_training_and_keep_the_last_good_weights(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    with pytest.raises(DivergedError) as error:
        train_non_finite(body, sentiments(30), tmp_path / "a", 7, 8, 9, 10, 11)
    message = str(error.value)
    assert message.startswith(
        "step 9: the loss is nan and the gradient norm nan, the last 3 steps were not applied: try a "
    )
    assert "smaller learning_rate (it is 0.003)" in message and "the weights of step 6 are kept in " in message
    assert "\n" not in message and error.value.exit_code == 1
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and (manifest.step, manifest.diverged) == (6, True)
    with pytest.raises(InputError, match="cannot continue: seed was 0 and is 1"):
        train_non_finite(body, sentiments(30), tmp_path / "a", resume=True, seed=1, learning_rate=1e-3)
    result = train_non_finite(body, sentiments(30), tmp_path / "a", resume=True, learning_rate=1e-3)
    assert result.steps == 15 and [line["step"] for line in result.log if "loss" in line] == list(range(1, 16))


def test_evaluations_of_reverted_steps_are_counted_once(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    """At a rate of 0 nothing improves: the first evaluation is the best, and patience ends it after the seventh."""
    settings = {"validation": 0.5, "evaluate_every": 1, "patience": 6, "learning_rate": 0.0, "epochs": 20}
    assert train_non_finite(body, sentiments(30), None, **settings).steps == 7
    with pytest.raises(DivergedError):
        train_non_finite(body, sentiments(30), tmp_path / "a", 4, 5, 6, **settings)
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and (manifest.step, manifest.progress.evaluations_since_best) == (3, 2)
    result = train_non_finite(body, sentiments(30), tmp_path / "a", resume=True, **settings)
    assert (result.steps, result.best_step) == (7, 1)


def test_skipped_last_step_is_evaluated(body: "pellucid.Model", sentiments: Sentiments) -> None:
    result = train_non_finite(body, sentiments(30), None, 2, 4, validation=0.5, evaluate_every=2, max_steps=4)
    assert [line["step"] for line in result.log if "scores" in line] == [4]


def test_weights_stay_untrained_if_every_step_was_skipped(body: "pellucid.Model", sentiments: Sentiments) -> None:
    result = train_non_finite(body, sentiments(30), None, 1, 2, max_steps=2)
    assert "head.classifier.weight" in result.loaded.untrained
    assert not train_non_finite(body, sentiments(30), None, 2, max_steps=2, warmup=0.0).loaded.untrained


def test_divergence_ends_training_without_a_folder(body: "pellucid.Model", sentiments: Sentiments) -> None:
    with pytest.raises(
        DivergedError, match=r"step 3: .* try a smaller learning_rate \(it is 0\.003\) or a longer warmup$"
    ):
        train_non_finite(body, sentiments(30), None, 1, 2, 3)


def test_skipped_steps_are_counted_across_a_resume(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    def on_event(one: Any) -> None:
        if one.step == 6:
            raise MemoryError

    with pytest.raises(MemoryError):
        train_non_finite(body, sentiments(30), tmp_path / "a", 4, 5, on_event=on_event)
    with pytest.raises(DivergedError, match=r"step 6: .*the weights of step 3 are kept"):
        train_non_finite(body, sentiments(30), tmp_path / "a", 6, before=5, resume=True)


# -- no disk space ----------------------------------------------------------------------------------------------------

_LIMITED = """
import json, resource, sys
from tests.training.small_runs import ProcessRun, main
most, run = int(sys.argv[1]), ProcessRun(**json.loads(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
sys.exit(main(run))
"""


def run_with_file_limit(run: ProcessRun, most: int) -> tuple[int, str]:
    """Runs it in a process whose files are limited to `most` bytes; returns its exit code and stderr."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PELLUCID_THREADS": "1"}
    command = [sys.executable, "-c", _LIMITED, str(most), run.command()[-1]]
    completed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    return completed.returncode, completed.stderr


@pytest.mark.parametrize("max_bytes", few([400, 300_000], [300_000]))
def test_full_disk_keeps_the_old_state_and_leaves_no_partial_file(
    body: "pellucid.Model", checkpoint: Callable[[str], Path], sentiments: Sentiments, tmp_path: Path, max_bytes: int
) -> None:
    """The log finds no space after a few lines, and the state, of 490,000 bytes, none at all."""
    out, rows = tmp_path / "a", sentiments(30)

    def on_event(one: Any) -> None:
        if one.step == 3:
            raise MemoryError

    with pytest.raises(MemoryError):
        train_small(body, rows, out, on_event=on_event, save_every=2, validation=0.0)
    before = file_contents(out)
    run = ProcessRun(str(checkpoint("bert-body")), str(out), rows, 0.0, {"save_every": 2}, resume=True)
    code, stderr = run_with_file_limit(run, max_bytes)
    assert code == ResourceError.exit_code and stderr.count("\n") == 1, stderr
    expected = "log.jsonl; what was saved before is" if max_bytes == 400 else "state-00000004.safetensors: it takes 48"
    limit = "limit on the size of a file"
    assert limit in stderr and expected in stderr and "continue with resume=True" in stderr and "bytes" in stderr
    after = file_contents(out)
    assert after.keys() == before.keys()
    assert {name: data for name, data in after.items() if "log" not in name} == {
        name: data for name, data in before.items() if "log" not in name
    }
    assert all(json.loads(line) for line in after["training/log.jsonl"].splitlines())
    result = train_small(body, rows, out, resume=True, save_every=2, validation=0.0)
    assert log_lines(result) == log_lines(train_small(body, rows, None, validation=0.0))


def test_first_file_is_removed_if_the_second_cannot_be_written(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = state.write_bundle

    def failing_write(tensors: Any, note: Any, target: Path) -> Path:
        if target.name == "best-00000010.safetensors":
            raise ResourceError(f"no space left while writing {target}; what was there before is still there")
        return original(tensors, note, target)

    monkeypatch.setattr(state, "write_bundle", failing_write)
    held_out = sentiments(10, seed=9)
    grades = iter((0.1, 0.2, 0.3))
    monkeypatch.setattr(TextClassification, "best_metric", "grade")
    monkeypatch.setattr(TextClassification, "score", lambda *given: {"grade": next(grades)})
    with pytest.raises(
        ResourceError, match=r"best-00000010.safetensors: it takes 16.*the state of step 5 is still there"
    ):
        train_small(body, sentiments(30), tmp_path / "a", validation=held_out)
    names = sorted(path.name for path in (tmp_path / "a" / "training").iterdir())
    assert names == ["best-00000005.safetensors", "lock", "log.jsonl", "manifest.json", "state-00000005.safetensors"]


_SMALL = """
import ctypes, json, os, sys
from pathlib import Path
import pellucid
from tests.training.small_runs import ProcessRun
folder, run = Path(sys.argv[1]), ProcessRun(**json.loads(sys.argv[2]))
library = ctypes.CDLL(None, use_errno=True)
if library.unshare(0x20000) or library.mount(b"none", b"/", None, 0x44000, None):
    sys.exit(77)
if library.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=1500k"):
    sys.exit(77)
filler, out = folder / "filler", folder / "a"

def fill(one):
    if one.step == 5:
        filler.write_bytes(bytes(os.statvfs(folder).f_bavail * 4096 - 200_000))

run._on_event = fill
try:
    run()
    sys.exit("there was room")
except pellucid.errors.ResourceError as error:
    message = str(error)
assert "state-00000006.safetensors: it takes 48" in message and "the state of step 4 is still there" in message, message
free = int(message.split("bytes, and ")[1].split(" ")[0].replace(",", ""))
assert 100_000 < free <= 200_000, message
names = sorted(path.name for path in (out / "training").iterdir())
assert names == ["lock", "log.jsonl", "manifest.json", "state-00000004.safetensors"], names
filler.unlink()
run._on_event, run.resume = lambda one: None, True
result = run()
assert result.steps == 15 and result.start.step == 4
"""


@pytest.mark.slow
def test_full_file_system_keeps_the_old_state(
    checkpoint: Callable[[str], Path], sentiments: Sentiments, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    run = ProcessRun(str(checkpoint("bert-body")), str(folder / "a"), sentiments(30), 0.0, {"save_every": 2})
    command = [sys.executable, "-c", _SMALL, str(folder), run.command()[-1]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PELLUCID_THREADS": "1"}
    completed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    if completed.returncode == 77:
        pytest.skip("this machine allows no mounting")
    assert completed.returncode == 0, completed.stderr


def test_unwritable_path_is_refused(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot write .*Not a directory|is a file"):
        train_small(body, sentiments(12), tmp_path / "file" / "deep")
    with pytest.raises(PellucidError, match="cannot write /proc/nothing"):
        train_small(body, sentiments(12), Path("/proc/nothing"))
    assert (tmp_path / "file").read_text() == "mine"


def test_file_size_limit_is_not_set_in_this_process() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert ctypes.CDLL(None) is not None


# -- a second process, other data -------------------------------------------------------------------------------------


def test_second_training_in_the_same_folder_is_refused(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    with (
        lock_folder(tmp_path / "a" / "training"),
        pytest.raises(InputError, match=r"another process trains in .*choose a new"),
    ):
        train_small(body, sentiments(12), tmp_path / "a")
    assert train_small(body, sentiments(12), tmp_path / "a").steps == 6


def test_overwriting_training_locks_its_folder(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    train_small(body, sentiments(12), tmp_path / "a")
    messages: list[str] = []

    def on_event(one: Event) -> None:
        for overwrite in (True, False):
            with pytest.raises(InputError) as error:
                train_small(body, sentiments(12, seed=4), tmp_path / "a", overwrite=overwrite)
            messages.append(str(error.value))

    assert train_small(body, sentiments(12), tmp_path / "a", overwrite=True, on_event=on_event).steps == 6
    assert messages and all("another process trains in" in one for one in messages[::2])
    assert not (tmp_path / "a" / "training").exists()


def test_model_saved_meanwhile_by_another_process_is_not_overwritten(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process ends in the folder while this one reads its data."""
    original, folder = training_run.make_plan, tmp_path / "a"

    def plan_after_another_run(*args: Any) -> Any:
        monkeypatch.undo()
        train_small(body, sentiments(12), folder)
        return original(*args)

    monkeypatch.setattr(training_run, "make_plan", plan_after_another_run)
    with pytest.raises(InputError, match="holds"):
        train_small(body, sentiments(12, seed=4), folder)
    saved = pellucid.load(folder).loaded
    assert same_weights(saved, train_small(body, sentiments(12), None).loaded)


def test_changed_data_file_is_reported_and_training_continues(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, rows = tmp_path / "rows.csv", sentiments(30)
    file.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))

    def on_event(one: Any) -> None:
        if one.step == 7:
            file.write_text(file.read_text() + "a new one,positive\n")
        if one.step == 12:
            raise MemoryError

    with caplog.at_level(logging.WARNING, "pellucid"), pytest.raises(MemoryError):
        train_small(body, file, tmp_path / "a", on_event=on_event, validation=0.0)  # type: ignore[arg-type]
    messages = [one.message for one in caplog.records if "has changed since it was read" in one.message]
    assert (
        len(messages) == 1
        and str(file) in messages[0]
        and messages[0].endswith("this training continues with what it read")
    )
    with pytest.raises(InputError, match="cannot continue: the data differ"):
        train_small(body, file, tmp_path / "a", resume=True, validation=0.0)  # type: ignore[arg-type]
    file.write_text(file.read_text().removesuffix("a new one,positive\n"))
    result = train_small(body, file, tmp_path / "a", resume=True, validation=0.0)  # type: ignore[arg-type]
    assert same_weights(result.loaded, train_small(body, rows, None, validation=0.0).loaded)


def test_one_row_and_none_are_refused(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    for rows in ([], sentiments(1)):
        with pytest.raises(InputError) as error:
            train_small(body, rows, tmp_path / "a")
        assert "\n" not in str(error.value) and not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"learning_rate": 0.0}, ["learning_rate is 0: nothing will be learned"]),
        *(
            ({"warmup": warmup}, [f"warmup is {warmup:g}, and the training has 4 steps: the rate rises to the end"])
            for warmup in (9, 3, 0.75)
        ),
        ({"warmup": 2}, []),
    ],
)
def test_ineffective_learning_rates_are_reported(
    body: "pellucid.Model",
    sentiments: Sentiments,
    settings: dict[str, Any],
    messages: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    train_small(body, sentiments(8), None, max_steps=4, **settings)
    assert caplog.messages == messages


def test_training_does_not_overwrite_its_base(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    """If it were killed while writing the model, it could not be resumed."""
    base = body.save(tmp_path / "base")
    before = sorted(base.iterdir())
    with pytest.raises(InputError, match=r"base, which a training needs to resume: choose another"):
        train_small(pellucid.load(base), sentiments(12), base, overwrite=True)
    assert sorted(base.iterdir()) == before
