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
from tests.training.courses import ROOT, Asked, Rows, lines, listing, same
from tests.training.test_resume import study

Feelings = Callable[..., Rows]


# -- values that are not finite ---------------------------------------------------------------------------------------


class Trouble(TextClassification):
    """Text classification whose loss or gradient is not finite at some steps."""

    steps: tuple[int, ...] = ()
    wrong = float("nan")
    gradient = False
    step = 0

    def collate(self, *given: Any) -> Any:
        type(self).step += 1
        return super().collate(*given)

    def loss(self, learner: Any, batch: Any) -> torch.Tensor:
        loss = super().loss(learner, batch)
        if self.step not in self.steps:
            return loss
        return Wrong.apply(loss, self.wrong) if self.gradient else loss * self.wrong


class Wrong(torch.autograd.Function):
    """The identity, whose gradient is multiplied by `wrong`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wrong: float) -> torch.Tensor:
        ctx.wrong = wrong
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        return slope * ctx.wrong, None


def troubled(body: "pellucid.Model", rows: Rows, out: Path | None, *steps: int, **options: Any) -> Any:
    Trouble.steps, Trouble.step = steps, options.pop("before", 0)
    Trouble.wrong, Trouble.gradient = options.pop("wrong", float("nan")), options.pop("gradient", False)
    return study(body, rows, out, Trouble(), **({"validation": 0.0} | options))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("gradient", [False, True])
def test_a_step_without_numbers_is_left_out(
    body: "pellucid.Model", feelings: Feelings, caplog: pytest.LogCaptureFixture, wrong: float, gradient: bool
) -> None:
    told: list[Any] = []
    numbers: list[torch.Tensor] = []

    def hear(one: Any) -> None:
        told.append(one)
        numbers.append(loops[0].parameters["layers.0.attention.query.weight"].detach().clone())

    loops: list[Any] = []
    from pellucid.training import training_run

    real = training_run.Loop
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "Loop", lambda *given, **named: loops.append(real(*given, **named)) or loops[0])
        result = troubled(body, feelings(30), None, 4, 8, 9, wrong=wrong, gradient=gradient, on_event=hear)
    assert [one.step for one in told if one.skipped] == [4, 8, 9] and result.steps == 15
    assert torch.equal(numbers[3], numbers[2]) and torch.equal(numbers[8], numbers[6])
    assert not torch.equal(numbers[9], numbers[8])
    held = [line for line in result.log if line.get("skipped")]
    assert [line["step"] for line in held] == [4, 8, 9]
    assert held[0]["gradient_norm"] is None and (held[0]["loss"] is None) != gradient
    json.dumps(result.log, allow_nan=False)
    assert sum("was left out: its loss is" in one.message for one in caplog.records) == 3
    assert all(torch.isfinite(p).all() for p in result.loaded.module.parameters())


def test_three_in_a_row_end_it_and_the_last_good_numbers_are_kept(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    with pytest.raises(DivergedError) as error:
        troubled(body, feelings(30), tmp_path / "a", 7, 8, 9, 10, 11)
    said = str(error.value)
    assert said.startswith(
        "step 9: the loss is nan and the gradient norm nan, the last 3 steps were not applied: try a "
    )
    assert "smaller learning_rate (it is 0.003)" in said and "the weights of step 6 are kept in " in said
    assert "\n" not in said and error.value.exit_code == 1
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and (manifest.step, manifest.diverged) == (6, True)
    with pytest.raises(InputError, match="cannot continue: seed was 0 and is 1"):
        troubled(body, feelings(30), tmp_path / "a", resume=True, seed=1, learning_rate=1e-3)
    result = troubled(body, feelings(30), tmp_path / "a", resume=True, learning_rate=1e-3)
    assert result.steps == 15 and [line["step"] for line in result.log if "loss" in line] == list(range(1, 16))


def test_looks_are_counted_once_where_steps_are_taken_back(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    """At a rate of 0 nothing improves: the first evaluation is the best, and patience ends it after the seventh."""
    said = {"validation": 0.5, "evaluate_every": 1, "patience": 6, "learning_rate": 0.0, "epochs": 20}
    assert troubled(body, feelings(30), None, **said).steps == 7
    with pytest.raises(DivergedError):
        troubled(body, feelings(30), tmp_path / "a", 4, 5, 6, **said)
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and (manifest.step, manifest.progress.evaluations_since_best) == (3, 2)
    result = troubled(body, feelings(30), tmp_path / "a", resume=True, **said)
    assert (result.steps, result.best_step) == (7, 1)


def test_the_last_step_is_looked_at_also_where_it_was_left_out(body: "pellucid.Model", feelings: Feelings) -> None:
    result = troubled(body, feelings(30), None, 2, 4, validation=0.5, evaluate_every=2, max_steps=4)
    assert [line["step"] for line in result.log if "scores" in line] == [4]


def test_what_no_step_could_change_stays_untrained(body: "pellucid.Model", feelings: Feelings) -> None:
    result = troubled(body, feelings(30), None, 1, 2, max_steps=2)
    assert "head.classifier.weight" in result.loaded.untrained
    assert not troubled(body, feelings(30), None, 2, max_steps=2, warmup=0.0).loaded.untrained


def test_it_also_ends_where_nothing_is_kept(body: "pellucid.Model", feelings: Feelings) -> None:
    with pytest.raises(
        DivergedError, match=r"step 3: .* try a smaller learning_rate \(it is 0\.003\) or a longer warmup$"
    ):
        troubled(body, feelings(30), None, 1, 2, 3)


def test_bad_steps_are_counted_across_a_resume(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    def on_event(one: Any) -> None:
        if one.step == 6:
            raise MemoryError

    with pytest.raises(MemoryError):
        troubled(body, feelings(30), tmp_path / "a", 4, 5, on_event=on_event)
    with pytest.raises(DivergedError, match=r"step 6: .*the weights of step 3 are kept"):
        troubled(body, feelings(30), tmp_path / "a", 6, before=5, resume=True)


# -- no disk space ----------------------------------------------------------------------------------------------------

_LIMITED = """
import json, resource, sys
from tests.training.courses import Asked, main
most, asked = int(sys.argv[1]), Asked(**json.loads(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
sys.exit(main(asked))
"""


def limited(asked: Asked, most: int) -> tuple[int, str]:
    """Runs it in a process whose files are limited to `most` bytes; returns its exit code and stderr."""
    around = os.environ | {"OMP_NUM_THREADS": "1", "PELLUCID_THREADS": "1"}
    command = [sys.executable, "-c", _LIMITED, str(most), asked.command()[-1]]
    done = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.parametrize("most", few([400, 300_000], [300_000]))
def test_without_room_the_old_state_stays_and_nothing_half_written_is_left(
    body: "pellucid.Model", checkpoint: Callable[[str], Path], feelings: Feelings, tmp_path: Path, most: int
) -> None:
    """The log finds no space after a few lines, and the state, of 490,000 bytes, none at all."""
    out, rows = tmp_path / "a", feelings(30)

    def on_event(one: Any) -> None:
        if one.step == 3:
            raise MemoryError

    with pytest.raises(MemoryError):
        study(body, rows, out, on_event=on_event, save_every=2, validation=0.0)
    before = listing(out)
    asked = Asked(str(checkpoint("bert-body")), str(out), rows, 0.0, {"save_every": 2}, resume=True)
    code, said = limited(asked, most)
    assert code == ResourceError.exit_code and said.count("\n") == 1, said
    wanted = r"log.jsonl; the last state is" if most == 400 else "state-00000004.safetensors: it takes 48"
    limit = "limit on the size of a file"
    assert limit in said and wanted in said and "continue with resume=True" in said and "bytes" in said
    after = listing(out)
    assert after.keys() == before.keys()
    assert {name: held for name, held in after.items() if "log" not in name} == {
        name: held for name, held in before.items() if "log" not in name
    }
    assert all(json.loads(line) for line in after["training/log.jsonl"].splitlines())
    result = study(body, rows, out, resume=True, save_every=2, validation=0.0)
    assert lines(result) == lines(study(body, rows, None, validation=0.0))


def test_where_only_the_second_file_has_no_room_the_first_goes_as_well(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = state.write_bundle

    def full(tensors: Any, note: Any, target: Path) -> Path:
        if target.name == "best-00000010.safetensors":
            raise ResourceError(f"no space left while writing {target}; what was there before is still there")
        return real(tensors, note, target)

    monkeypatch.setattr(state, "write_bundle", full)
    held = feelings(10, seed=9)
    grades = iter((0.1, 0.2, 0.3))
    monkeypatch.setattr(TextClassification, "best_metric", "grade")
    monkeypatch.setattr(TextClassification, "score", lambda *given: {"grade": next(grades)})
    with pytest.raises(
        ResourceError, match=r"best-00000010.safetensors: it takes 16.*the state of step 5 is still there"
    ):
        study(body, feelings(30), tmp_path / "a", validation=held)
    names = sorted(path.name for path in (tmp_path / "a" / "training").iterdir())
    assert names == ["best-00000005.safetensors", "lock", "log.jsonl", "manifest.json", "state-00000005.safetensors"]


_SMALL = """
import ctypes, json, os, sys
from pathlib import Path
import pellucid
from tests.training.courses import Asked, listing
place, asked = Path(sys.argv[1]), Asked(**json.loads(sys.argv[2]))
library = ctypes.CDLL(None, use_errno=True)
if library.unshare(0x20000) or library.mount(b"none", b"/", None, 0x44000, None):
    sys.exit(77)
if library.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, b"size=1500k"):
    sys.exit(77)
filler, out = place / "filler", place / "a"

def fill(one):
    if one.step == 5:
        filler.write_bytes(bytes(os.statvfs(place).f_bavail * 4096 - 200_000))

asked._on_event = fill
try:
    asked()
    sys.exit("there was room")
except pellucid.errors.ResourceError as error:
    said = str(error)
assert "state-00000006.safetensors: it takes 48" in said and "the state of step 4 is still there" in said, said
free = int(said.split("bytes, and ")[1].split(" ")[0].replace(",", ""))
assert 100_000 < free <= 200_000, said
names = sorted(path.name for path in (out / "training").iterdir())
assert names == ["lock", "log.jsonl", "manifest.json", "state-00000004.safetensors"], names
filler.unlink()
asked._on_event, asked.resume = lambda one: None, True
result = asked()
assert result.steps == 15 and result.start.step == 4
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full(checkpoint: Callable[[str], Path], feelings: Feelings, tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    asked = Asked(str(checkpoint("bert-body")), str(place / "a"), feelings(30), 0.0, {"save_every": 2})
    command = [sys.executable, "-c", _SMALL, str(place), asked.command()[-1]]
    around = os.environ | {"OMP_NUM_THREADS": "1", "PELLUCID_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == 77:
        pytest.skip("this machine lets nobody mount")
    assert done.returncode == 0, done.stderr


def test_a_place_that_cannot_be_written(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot write .*Not a directory|is a file"):
        study(body, feelings(12), tmp_path / "file" / "deep")
    with pytest.raises(PellucidError, match="cannot write /proc/nothing"):
        study(body, feelings(12), Path("/proc/nothing"))
    assert (tmp_path / "file").read_text() == "mine"


def test_those_limits_are_those_of_this_machine() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert ctypes.CDLL(None) is not None


# -- a second process, other data -------------------------------------------------------------------------------------


def test_two_trainings_in_one_folder_are_one_too_many(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    with (
        lock_folder(tmp_path / "a" / "training"),
        pytest.raises(InputError, match=r"another process trains in .*choose a new"),
    ):
        study(body, feelings(12), tmp_path / "a")
    assert study(body, feelings(12), tmp_path / "a").steps == 6


def test_one_that_begins_anew_has_its_folder_to_itself(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    study(body, feelings(12), tmp_path / "a")
    refused: list[str] = []

    def on_event(one: Event) -> None:
        for overwrite in (True, False):
            with pytest.raises(InputError) as error:
                study(body, feelings(12, seed=4), tmp_path / "a", overwrite=overwrite)
            refused.append(str(error.value))

    assert study(body, feelings(12), tmp_path / "a", overwrite=True, on_event=on_event).steps == 6
    assert refused and all("another process trains in" in one for one in refused[::2])
    assert not (tmp_path / "a" / "training").exists()


def test_a_model_that_came_to_stand_there_meanwhile_is_not_written_over(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process ends in the folder while this one reads its data."""
    honest, there = training_run.make_plan, tmp_path / "a"

    def planned(*given: Any) -> Any:
        monkeypatch.undo()
        study(body, feelings(12), there)
        return honest(*given)

    monkeypatch.setattr(training_run, "make_plan", planned)
    with pytest.raises(InputError, match="holds"):
        study(body, feelings(12, seed=4), there)
    found = pellucid.load(there).loaded
    assert same(found, study(body, feelings(12), None).loaded)


def test_a_file_that_changes_is_told_and_what_was_read_is_learned(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, rows = tmp_path / "rows.csv", feelings(30)
    file.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))

    def on_event(one: Any) -> None:
        if one.step == 7:
            file.write_text(file.read_text() + "a new one,positive\n")
        if one.step == 12:
            raise MemoryError

    with caplog.at_level(logging.WARNING, "pellucid"), pytest.raises(MemoryError):
        study(body, file, tmp_path / "a", on_event=on_event, validation=0.0)  # type: ignore[arg-type]
    said = [one.message for one in caplog.records if "has changed since it was read" in one.message]
    assert len(said) == 1 and str(file) in said[0] and said[0].endswith("this training continues with what it read")
    with pytest.raises(InputError, match="cannot continue: the data differ"):
        study(body, file, tmp_path / "a", resume=True, validation=0.0)  # type: ignore[arg-type]
    file.write_text(file.read_text().removesuffix("a new one,positive\n"))
    result = study(body, file, tmp_path / "a", resume=True, validation=0.0)  # type: ignore[arg-type]
    assert same(result.loaded, study(body, rows, None, validation=0.0).loaded)


def test_one_row_and_none_are_told(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    for rows in ([], feelings(1)):
        with pytest.raises(InputError) as error:
            study(body, rows, tmp_path / "a")
        assert "\n" not in str(error.value) and not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"learning_rate": 0.0}, ["learning_rate is 0: nothing will be learned"]),
        *(
            ({"warmup": warmup}, [f"warmup is {warmup:g}, and the training has 4 steps: the rate rises to the end"])
            for warmup in (9, 3, 0.75)
        ),
        ({"warmup": 2}, []),
    ],
)
def test_a_rate_that_nobody_means_is_told(
    body: "pellucid.Model", feelings: Feelings, said: dict[str, Any], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    study(body, feelings(8), None, max_steps=4, **said)
    assert caplog.messages == told


def test_a_training_does_not_write_over_what_it_began_with(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    """If it were killed while writing the model, it could not be resumed."""
    base = body.save(tmp_path / "base")
    before = sorted(base.iterdir())
    with pytest.raises(InputError, match=r"base, which a training needs to resume: choose another"):
        study(pellucid.load(base), feelings(12), base, overwrite=True)
    assert sorted(base.iterdir()) == before
