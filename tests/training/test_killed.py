"""Killed at any moment, or without power, a training run loses no saved state and ends as if undisturbed."""

import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.files import digest_of
from pellucid.training import state as training_state
from pellucid.training.manifest import Manifest, read_manifest
from pellucid.training.state import State
from tests.search.test_killed import Disk
from tests.training.small_runs import ProcessRun, Rows, log_lines
from tests.training.test_resume import train_small

Sentiments = Callable[..., Rows]


# -- killed -----------------------------------------------------------------------------------------------------------


def wait_for_process(process: "subprocess.Popen[str]", timeout: float = 120.0) -> tuple[int, str]:
    """Waits for a process; returns its exit code and its stderr."""
    _, stderr = process.communicate(timeout=timeout)
    return process.returncode, stderr


def wait_for_start(process: "subprocess.Popen[str]", notes: Path, timeout: float = 120.0) -> None:
    """Waits until a process has started training."""
    deadline = time.monotonic() + timeout
    while not notes.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert notes.exists(), process.communicate()[1]


def last_saved_step(notes: Path) -> int:
    """The last step whose state is saved according to the notes."""
    entries = [line.split() for line in notes.read_text().splitlines()]
    return max((int(step) for event, *steps in entries for step in steps if event == "kept"), default=0)


def kill_and_resume(base: Path, rows: Rows, folder: Path, kills: int) -> int:
    """Kills so many processes, each of which resumes from the one before.  ->  number of runs that finished"""
    generator, finished = random.Random(kills), 0
    options: dict[str, Any] = {"validation": rows[:6], "settings": {"save_every": 1, "evaluate_every": 3, "epochs": 4}}
    uninterrupted = ProcessRun(str(base), None, rows, **options)()
    longest, killed, number = 1.0, 0, 0
    while killed < kills or not finished:
        out, saved = folder / f"{finished}", 0
        while True:
            number += 1
            notes = folder / f"notes{number}"
            process = ProcessRun(
                str(base), str(out), rows, resume=True, notes=str(notes), pause=0.01, **options
            ).start()
            wait_for_start(process, notes)
            started = time.monotonic()
            if killed < kills:
                time.sleep(generator.uniform(0.0, longest))
                process.kill()
            code, stderr = wait_for_process(process)
            if code == 0:
                longest = min(longest, time.monotonic() - started)
            if code == 0 or ((out / "config.json").exists() and not (out / "training").exists()):
                break  # in the latter case it was killed after it had finished, while Python cleaned up
            assert code == -9, stderr
            killed += 1
            assert int(notes.read_text().split()[1]) == saved  # it resumed from the last saved state
            manifest = read_manifest(out / "training")
            saved = manifest.step if manifest else 0
            assert saved >= last_saved_step(notes)
        finished += 1
        assert pellucid.load(out).loaded.module.state_dict().keys() == uninterrupted.loaded.module.state_dict().keys()
        for name, tensor in pellucid.load(out).loaded.module.state_dict().items():
            assert torch.equal(tensor, uninterrupted.loaded.module.state_dict()[name]), name
        assert log_lines(out / "log.jsonl") == log_lines(uninterrupted)
        assert not (out / "training").exists()
    return finished


@pytest.mark.slow
def test_three_kills_lose_no_saved_state(
    checkpoint: Callable[[str], Path], sentiments: Sentiments, tmp_path: Path
) -> None:
    assert kill_and_resume(checkpoint("bert-body"), sentiments(30), tmp_path, 3) >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_kills_lose_no_saved_state(
    checkpoint: Callable[[str], Path], sentiments: Sentiments, tmp_path: Path
) -> None:
    assert kill_and_resume(checkpoint("bert-body"), sentiments(30), tmp_path, 50) >= 1


@pytest.mark.slow
def test_ctrl_c_ends_a_process_and_saves_its_state(
    checkpoint: Callable[[str], Path], sentiments: Sentiments, tmp_path: Path
) -> None:
    run = ProcessRun(str(checkpoint("bert-body")), str(tmp_path / "a"), sentiments(30), interrupt=4)
    code, stderr = wait_for_process(run.start())
    assert code == 130 and stderr.count("\n") == 1
    assert stderr.startswith("pellucid: interrupted after step 5 of ") and "resume=True" in stderr
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and manifest.step == 5


# -- power loss -------------------------------------------------------------------------------------------------------


def checked_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, if any, after a check that every file it names is there and unchanged."""
    manifest = read_manifest(folder)
    for name, (size, digest) in manifest.files.items() if manifest else ():
        assert (folder / name).stat().st_size == size and digest_of(folder / name) == digest, name
    return manifest


def resumable_steps_after_power_loss(
    body: "pellucid.Model", rows: Rows, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, set[int]]:
    """Trains, and checks what a disk would hold at worst after a power loss at every single change of a file.

    ->  number of distinct moments, and the steps that training could resume from
    """
    out = folder / "out"
    folder.mkdir()
    disk, acknowledged = Disk(folder), [(0, 0)]
    disk.flush_all()
    original = State.save

    def save(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        manifest = read_manifest(out / "training")
        assert manifest is not None
        acknowledged.append((len(disk.steps), manifest.step))

    monkeypatch.setattr(State, "save", save)
    with disk.recording(monkeypatch):
        train_small(body, rows, out, save_every=1, validation=rows[:4], evaluate_every=2, max_steps=5)
    disk.record_state()
    monkeypatch.setattr(State, "save", original)
    model, checked, steps = digest_of(out / "model.safetensors"), [], set()
    for number, contents in enumerate(disk.steps):
        acknowledged_step = max(step for at, step in acknowledged if at <= number)
        for content in contents:
            if (acknowledged_step, content) in checked:
                continue
            checked.append((acknowledged_step, content))
            written = _written_folder(content, folder.with_name("cut"))
            manifest = checked_manifest(written / "out" / "training")
            if manifest is None and acknowledged_step > 0:  # the state is deleted once the model is in place
                assert digest_of(written / "out" / "model.safetensors") == model, f"moment {number}"
            elif manifest is not None:
                assert manifest.step >= acknowledged_step, f"moment {number}"
                steps.add(manifest.step)
    return len(checked), steps


def _written_folder(content: dict[str, bytes], folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_power_loss_at_any_moment_leaves_the_last_saved_state_intact(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments, steps = resumable_steps_after_power_loss(body, sentiments(12), tmp_path / "a", monkeypatch)
    assert moments > 30 and steps == {1, 2, 3, 4, 5}


def test_missing_flush_and_wrong_order_are_detected_after_power_loss(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # folders are not flushed
        patch.setattr(training_state, "sync_to_disk", lambda path: None)
        with pytest.raises((AssertionError, pellucid.errors.PellucidError, FileNotFoundError)):
            resumable_steps_after_power_loss(body, sentiments(12), tmp_path / "a", monkeypatch)
    with monkeypatch.context() as patch:  # the old state is removed before the new one is there
        original = training_state.write_manifest
        patch.setattr(
            training_state,
            "write_manifest",
            lambda manifest, folder: [*map(Path.unlink, _earlier_states(manifest, folder)), original(manifest, folder)],
        )
        with pytest.raises((AssertionError, pellucid.errors.PellucidError, FileNotFoundError)):
            resumable_steps_after_power_loss(body, sentiments(12), tmp_path / "b", monkeypatch)


def _earlier_states(manifest: Manifest, folder: Path) -> list[Path]:
    return [path for path in folder.glob("*-*.safetensors") if path.name not in manifest.files]


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_error_while_saving_leaves_an_intact_state(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, call: int, error: type[BaseException]
) -> None:
    """Before its manifest is in place, and afterwards, when it may not be on the disk yet."""
    out, original, calls = tmp_path / "a", training_state.sync_to_disk, [0]

    def flush(path: Path) -> None:
        original(path)
        manifest = read_manifest(out / "training")
        if manifest and path == out / "training" and (manifest.step == 2 or list(path.glob("state-00000002*"))):
            calls[0] += 1
            if calls[0] == call:
                raise error(5, "broken off")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_state, "sync_to_disk", flush)
        with pytest.raises((error, pellucid.errors.PellucidError)):
            train_small(body, sentiments(12), out, save_every=1, max_steps=4, validation=0.0)
    manifest = checked_manifest(out / "training")
    assert manifest is not None and manifest.step == call
    names = sorted(path.name for path in (out / "training").glob("state-*"))
    assert names == [f"state-{step:08}.safetensors" for step in range(1, call + 1)]
    result = train_small(body, sentiments(12), out, resume=True, save_every=1, max_steps=4, validation=0.0)
    assert log_lines(result) == log_lines(train_small(body, sentiments(12), None, max_steps=4, validation=0.0))


def test_files_of_a_state_are_written_and_flushed_in_this_order(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is flushed before its rename and the folder before the manifest; the older state is removed last."""
    import os

    events: list[str] = []
    folder = tmp_path / "a" / "training"

    def note(name: str, description: Callable[..., str]) -> None:
        original = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            events.append(f"{name} {description(*args)}")
            return original(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    def kind(path: Any) -> str:
        resolved = Path(f"/proc/self/fd/{path}").resolve() if isinstance(path, int) else Path(path)
        prefix = "new " if resolved.name == "new" or resolved.name.startswith(".") else ""
        stem = resolved.parent.name if resolved.name == "new" else resolved.name
        kinds = ("state", "best", "manifest", "log")
        return "folder" if resolved == folder else prefix + next((one for one in kinds if one in stem), resolved.name)

    note("fsync", kind)
    note("replace", lambda old, new: kind(new))
    note("unlink", lambda path, **_: kind(path))
    train_small(body, sentiments(12), tmp_path / "a", save_every=1, max_steps=2, validation=0.0)
    second = events[len(events) - events[::-1].index("replace state") - 2 :]
    assert second[:8] == [
        "fsync new state",
        "replace state",
        "fsync log",
        "fsync folder",
        "fsync new manifest",
        "replace manifest",
        "unlink new manifest",
        "fsync folder",
    ]
    assert second[8] == "unlink state"


def test_notes_of_a_killed_process_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("begun 0\nkept 1\nkept 2\n")
    assert last_saved_step(tmp_path / "notes") == 2
    (tmp_path / "notes").write_text("begun 4\n")
    assert last_saved_step(tmp_path / "notes") == 0
    assert json.loads(ProcessRun("base", None, []).command()[-1])["base"] == "base"
