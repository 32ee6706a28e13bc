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
from pellucid.training import state as kept
from pellucid.training.manifest import Manifest, read_manifest
from pellucid.training.state import State
from tests.search.test_killed import Disk
from tests.training.courses import Asked, Rows, lines
from tests.training.test_resume import study

Feelings = Callable[..., Rows]


# -- killed -----------------------------------------------------------------------------------------------------------


def ended(process: "subprocess.Popen[str]", within: float = 120.0) -> tuple[int, str]:
    """Waits for a process; returns its exit code and its stderr."""
    _, said = process.communicate(timeout=within)
    return process.returncode, said


def begun(process: "subprocess.Popen[str]", notes: Path, within: float = 120.0) -> None:
    """Waits until a process has started training."""
    until = time.monotonic() + within
    while not notes.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    assert notes.exists(), process.communicate()[1]


def steps_kept(notes: Path) -> int:
    """The last step whose state is saved according to the notes."""
    said = [line.split() for line in notes.read_text().splitlines()]
    return max((int(step) for what, *step_ in said for step in step_ if what == "kept"), default=0)


def many_kills(base: Path, rows: Rows, folder: Path, kills: int) -> int:
    """Kills so many processes, each of which resumes from the one before.  ->  number of runs that finished"""
    chance, ended_ = random.Random(kills), 0
    said: dict[str, Any] = {"validation": rows[:6], "settings": {"save_every": 1, "evaluate_every": 3, "epochs": 4}}
    whole = Asked(str(base), None, rows, **said)()
    longest, killed, number = 1.0, 0, 0
    while killed < kills or not ended_:
        out, known = folder / f"{ended_}", 0
        while True:
            number += 1
            notes = folder / f"notes{number}"
            process = Asked(str(base), str(out), rows, resume=True, notes=str(notes), pause=0.01, **said).start()
            begun(process, notes)
            started = time.monotonic()
            if killed < kills:
                time.sleep(chance.uniform(0.0, longest))
                process.kill()
            code, words = ended(process)
            if code == 0:
                longest = min(longest, time.monotonic() - started)
            if code == 0 or ((out / "config.json").exists() and not (out / "training").exists()):
                break  # in the latter case it was killed after it had finished, while Python cleaned up
            assert code == -9, words
            killed += 1
            assert int(notes.read_text().split()[1]) == known  # it resumed from the last saved state
            manifest = read_manifest(out / "training")
            known = manifest.step if manifest else 0
            assert known >= steps_kept(notes)
        ended_ += 1
        assert pellucid.load(out).loaded.module.state_dict().keys() == whole.loaded.module.state_dict().keys()
        for name, tensor in pellucid.load(out).loaded.module.state_dict().items():
            assert torch.equal(tensor, whole.loaded.module.state_dict()[name]), name
        assert lines(out / "log.jsonl") == lines(whole)
        assert not (out / "training").exists()
    return ended_


@pytest.mark.slow
def test_three_kills_lose_nothing_that_was_kept(
    checkpoint: Callable[[str], Path], feelings: Feelings, tmp_path: Path
) -> None:
    assert many_kills(checkpoint("bert-body"), feelings(30), tmp_path, 3) >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_kills_lose_nothing_that_was_kept(
    checkpoint: Callable[[str], Path], feelings: Feelings, tmp_path: Path
) -> None:
    assert many_kills(checkpoint("bert-body"), feelings(30), tmp_path, 50) >= 1


@pytest.mark.slow
def test_ctrl_c_in_a_process_of_its_own(checkpoint: Callable[[str], Path], feelings: Feelings, tmp_path: Path) -> None:
    asked = Asked(str(checkpoint("bert-body")), str(tmp_path / "a"), feelings(30), interrupt=4)
    code, said = ended(asked.start())
    assert code == 130 and said.count("\n") == 1
    assert said.startswith("pellucid: interrupted after step 5 of ") and "resume=True" in said
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and manifest.step == 5


# -- power loss -------------------------------------------------------------------------------------------------------


def whole(folder: Path) -> Manifest | None:
    """The manifest of a folder, if any, after a check that every file it names is there and unchanged."""
    manifest = read_manifest(folder)
    for name, (size, digest) in manifest.files.items() if manifest else ():
        assert (folder / name).stat().st_size == size and digest_of(folder / name) == digest, name
    return manifest


def at_every_moment(
    body: "pellucid.Model", rows: Rows, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, set[int]]:
    """Trains, and checks what a disk would hold at worst after a power loss at every single change of a file.

    ->  number of distinct moments, and the steps that training could resume from
    """
    out = folder / "out"
    folder.mkdir()
    disk, acknowledged = Disk(folder), [(0, 0)]
    disk.everything()
    real = State.save

    def save(*given: Any, **named: Any) -> None:
        real(*given, **named)
        manifest = read_manifest(out / "training")
        assert manifest is not None
        acknowledged.append((len(disk.steps), manifest.step))

    monkeypatch.setattr(State, "save", save)
    with disk.watched(monkeypatch):
        study(body, rows, out, save_every=1, validation=rows[:4], evaluate_every=2, max_steps=5)
    disk.note()
    monkeypatch.setattr(State, "save", real)
    model, seen, steps = digest_of(out / "model.safetensors"), [], set()
    for number, contents in enumerate(disk.steps):
        least = max(step for at, step in acknowledged if at <= number)
        for content in contents:
            if (least, content) in seen:
                continue
            seen.append((least, content))
            place = _laid(content, folder.with_name("cut"))
            manifest = whole(place / "out" / "training")
            if manifest is None and least > 0:  # the state is deleted once the model is in place
                assert digest_of(place / "out" / "model.safetensors") == model, f"moment {number}"
            elif manifest is not None:
                assert manifest.step >= least, f"moment {number}"
                steps.add(manifest.step)
    return len(seen), steps


def _laid(content: dict[str, bytes], folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    for name, held in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(held)
    return folder


def test_without_power_at_any_moment_the_last_state_that_was_kept_is_whole(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments, steps = at_every_moment(body, feelings(12), tmp_path / "a", monkeypatch)
    assert moments > 30 and steps == {1, 2, 3, 4, 5}


def test_that_test_can_fail(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # folders are not flushed
        patch.setattr(kept, "sync_to_disk", lambda path: None)
        with pytest.raises((AssertionError, pellucid.errors.PellucidError, FileNotFoundError)):
            at_every_moment(body, feelings(12), tmp_path / "a", monkeypatch)
    with monkeypatch.context() as patch:  # the old state is removed before the new one is there
        real = kept.write_manifest
        patch.setattr(
            kept, "write_manifest", lambda one, folder: [*map(Path.unlink, _older(one, folder)), real(one, folder)]
        )
        with pytest.raises((AssertionError, pellucid.errors.PellucidError, FileNotFoundError)):
            at_every_moment(body, feelings(12), tmp_path / "b", monkeypatch)


def _older(manifest: Manifest, folder: Path) -> list[Path]:
    return [path for path in folder.glob("*-*.safetensors") if path.name not in manifest.files]


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("wrong", [KeyboardInterrupt, OSError])
def test_what_breaks_off_the_keeping_of_a_state_leaves_a_whole_one(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, call: int, wrong: type[BaseException]
) -> None:
    """Before its manifest is in place, and afterwards, when it may not be on the disk yet."""
    out, real, calls = tmp_path / "a", kept.sync_to_disk, [0]

    def flush(path: Path) -> None:
        real(path)
        manifest = read_manifest(out / "training")
        if manifest and path == out / "training" and (manifest.step == 2 or list(path.glob("state-00000002*"))):
            calls[0] += 1
            if calls[0] == call:
                raise wrong(5, "broken off")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "sync_to_disk", flush)
        with pytest.raises((wrong, pellucid.errors.PellucidError)):
            study(body, feelings(12), out, save_every=1, max_steps=4, validation=0.0)
    manifest = whole(out / "training")
    assert manifest is not None and manifest.step == call
    left = sorted(path.name for path in (out / "training").glob("state-*"))
    assert left == [f"state-{step:08}.safetensors" for step in range(1, call + 1)]
    result = study(body, feelings(12), out, resume=True, save_every=1, max_steps=4, validation=0.0)
    assert lines(result) == lines(study(body, feelings(12), None, max_steps=4, validation=0.0))


def test_a_state_is_kept_in_this_order(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is flushed before its rename and the folder before the manifest; the older state is removed last."""
    import os

    events: list[str] = []
    folder = tmp_path / "a" / "training"

    def note(name: str, shown: Callable[..., str]) -> None:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            events.append(f"{name} {shown(*given)}")
            return real(*given, **named)

        monkeypatch.setattr(os, name, call)

    def kind(path: Any) -> str:
        place = Path(f"/proc/self/fd/{path}").resolve() if isinstance(path, int) else Path(path)
        named = "new " if place.name == "new" or place.name.startswith(".") else ""
        whole_ = place.parent.name if place.name == "new" else place.name
        words = ("state", "best", "manifest", "log")
        return "folder" if place == folder else named + next((one for one in words if one in whole_), place.name)

    note("fsync", kind)
    note("replace", lambda old, new: kind(new))
    note("unlink", lambda path, **_: kind(path))
    study(body, feelings(12), tmp_path / "a", save_every=1, max_steps=2, validation=0.0)
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


def test_the_notes_of_a_kill_are_read_as_meant(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("begun 0\nkept 1\nkept 2\n")
    assert steps_kept(tmp_path / "notes") == 2
    (tmp_path / "notes").write_text("begun 4\n")
    assert steps_kept(tmp_path / "notes") == 0
    assert json.loads(Asked("base", None, []).command()[-1])["base"] == "base"
