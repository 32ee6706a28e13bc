"""Killed at any moment, an index is the old one or the new one, and every acknowledged change is there."""

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import pellucid
from pellucid.errors import Interrupted, NotFoundError
from pellucid.search import building, change
from tests.quick import few
from tests.search.child_processes import KILLED, exit_code_of, kill_after, start_fork

POOL = [f"{a} {b} of {c}" for a in ("red", "old", "new") for b in ("boats", "books") for c in ("Oslo", "Lima", "Rome")]
ROWS = dict[str, str]


@pytest.fixture(scope="module")
def vectors(minilm: pellucid.Model) -> dict[str, np.ndarray]:
    return dict(zip(POOL, minilm.embed(POOL).numpy()))


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "CHUNK_SIZE", 3)


def build(minilm: pellucid.Model, folder: Path) -> pellucid.Index:
    corpus = [(f"first{i}", text) for i, text in enumerate(POOL)]
    return pellucid.Index.build(minilm, corpus, folder, progress=False)


def checked_rows(index: pellucid.Index, vectors: dict[str, np.ndarray]) -> ROWS:
    """The texts of an index by id, after checks that each has one row and the vector of its text."""
    rows: ROWS = {}
    for segment in index.segments:
        for entry, vector, deleted in zip(segment.entries.all(), segment.vectors.numbers, segment.deleted):
            if not deleted:
                assert entry.id not in rows, f"{entry.id} appears twice"
                assert np.allclose(vector, vectors[entry.text], atol=1e-5), f"{entry.id} has another text's vector"
                rows[entry.id] = entry.text
    assert len(index) == len(rows)
    return rows


@dataclass
class RandomChanges:
    """Adds, updates and deletes, `steps` times, and notes each change before and after it."""

    minilm: pellucid.Model
    folder: Path
    notes: Path
    seed: int
    steps: int = 8

    def __call__(self) -> None:
        generator = random.Random(self.seed)
        index = pellucid.Index.open(self.folder, model=self.minilm)
        ids = [entry.id for segment in index.segments for entry in segment.live_entries()]
        for step in range(self.steps):
            if generator.random() < 0.4 and len(ids) > 4:
                deleted = generator.sample(ids, 2)
                self.note({"delete": deleted})
                index.delete(deleted)
                ids = [one for one in ids if one not in deleted]
            else:
                rows = {
                    f"life{self.seed}.{step}": generator.choice(POOL),
                    generator.choice(ids): generator.choice(POOL),
                }
                self.note({"put": rows})
                index.update(list(rows.items()), progress=False)
                ids = list(dict.fromkeys([*ids, *rows]))
            self.note("done")

    def note(self, change: object) -> None:
        with self.notes.open("a") as file:
            file.write(json.dumps(change) + "\n")


def rows_after(rows: ROWS, change: dict) -> ROWS:
    return rows | change["put"] if "put" in change else {i: t for i, t in rows.items() if i not in change["delete"]}


def allowed_rows(rows: ROWS, notes: Path) -> tuple[ROWS, ROWS]:
    """The rows that must be there according to the notes, and those with the change that was under way."""
    entries = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    pending = rows
    for one in entries:
        if one == "done":
            rows = pending
        else:
            pending = rows_after(rows, one)
    return rows, pending


def kills_during_changes(minilm: pellucid.Model, vectors: dict[str, np.ndarray], folder: Path, kills: int) -> int:
    """Kills `kills` processes on one index, one after the other; returns how many had not finished before."""
    rows, generator, killed = checked_rows(build(minilm, folder), vectors), random.Random(kills), 0
    started = time.monotonic()
    assert exit_code_of(start_fork(RandomChanges(minilm, folder, folder.parent / "notes", 0))) == 0
    longest, rows = time.monotonic() - started, allowed_rows(rows, folder.parent / "notes")[0]
    for seed in range(1, kills + 1):
        notes = folder.parent / f"notes{seed}"
        if kill_after(start_fork(RandomChanges(minilm, folder, notes, seed)), generator.uniform(0, longest)) == KILLED:
            killed += 1
        else:
            longest *= 0.9  # the machine has become faster
        remaining = checked_rows(pellucid.Index.open(folder), vectors)
        assert remaining in allowed_rows(rows, notes)
        rows = remaining
    pellucid.Index.open(folder, model=minilm).delete([next(iter(rows))])
    assert len(list(folder.glob("generation-*"))) == 1 and not list((folder / "segments").glob(".*"))
    return killed


@pytest.mark.slow
def test_eight_kills_lose_no_acknowledged_row(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    assert kills_during_changes(minilm, vectors, tmp_path / "a.index", 8) >= 4


@pytest.mark.slow
def test_fifty_kills_lose_no_acknowledged_row(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    assert kills_during_changes(minilm, vectors, tmp_path / "a.index", 50) >= 30


def test_killed_build_continues_without_embedding_twice(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, embedded = tmp_path / "a.index", tmp_path / "embedded"
    embed_texts = pellucid.search.change.embed_texts

    def slow_embed_texts(loaded: object, texts: list[str], *arguments: object, **options: object) -> np.ndarray:
        with embedded.open("a") as file:
            file.writelines(f"{text}\n" for text in texts)
        time.sleep(0.05)
        return embed_texts(loaded, texts, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("pellucid.search.change.embed_texts", slow_embed_texts)
    for kills in range(1, 4):
        child = start_fork(lambda: build(minilm, folder))
        deadline = time.monotonic() + 30
        while len(list(folder.glob("building/*.npz"))) < kills and time.monotonic() < deadline:
            time.sleep(0.005)
        assert kill_after(child, 0.02) == KILLED
        with pytest.raises(NotFoundError, match="run the same build again to continue"):
            pellucid.Index.open(folder)
    index = build(minilm, folder)
    assert sorted(checked_rows(index, vectors).values()) == sorted(POOL)
    assert len(embedded.read_text().splitlines()) <= len(POOL) + 3 * 3  # plus at most the chunk that each kill lost
    assert sorted(path.name for path in folder.iterdir()) == ["generation-000001.json", "lock", "segments"]


# -- every single step ----------------------------------------------------------------------------------------------


def _modifies_folder(folder: Path, event: str, arguments: tuple) -> bool:
    """Whether an audit event of the interpreter may change files in a folder."""
    modifies = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "open", "sqlite3.connect", "shutil.rmtree")
    return modifies and any(isinstance(one, str | Path) and str(folder) in str(one) for one in arguments)


def _killed_at_step(step: int, folder: Path, work: Callable[[], object]) -> Callable[[], object]:
    """The work, ended by signal 9 when it touches its folder for the nth time, from 0."""

    def killed_work() -> None:
        countdown = iter(range(step, -1, -1))

        def hook(event: str, arguments: tuple) -> None:
            if _modifies_folder(folder, event, arguments) and next(countdown) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        work()

    return killed_work


STRIDES = [12, pytest.param(1, marks=pytest.mark.slow)]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("change", few(["put", "delete", "compact"], ["put"]))
def test_change_killed_at_any_step_leaves_the_old_or_the_new_index(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, change: str, stride: int
) -> None:
    build(minilm, tmp_path / "old.index").delete(["first3"])
    before = checked_rows(pellucid.Index.open(tmp_path / "old.index"), vectors)
    put = {"new": POOL[0], "first1": POOL[5]}
    expected_rows = {
        "put": before | put,
        "delete": {i: t for i, t in before.items() if i != "first2"},
        "compact": before,
    }

    def work(folder: Path) -> None:
        index = pellucid.Index.open(folder, model=minilm)
        if change == "compact":
            index.compact(progress=False)
        else:
            index.update(list(put.items()), progress=False) if change == "put" else index.delete("first2")

    step, committed = 0, []
    while True:
        folder = tmp_path / f"{step}.index"
        shutil.copytree(tmp_path / "old.index", folder)
        code = exit_code_of(start_fork(_killed_at_step(step, folder, lambda: work(folder))))  # noqa: B023
        found = checked_rows(pellucid.Index.open(folder), vectors)
        assert found in (before, expected_rows[change]), f"after step {step}"
        committed.append(found == expected_rows[change])
        if code == 0:
            break
        assert code == KILLED
        work(folder) if not committed[-1] or change == "compact" else None  # leftovers do not matter
        assert checked_rows(pellucid.Index.open(folder), vectors) == expected_rows[change]
        shutil.rmtree(folder)
        step += stride
    assert step > 10 and committed[-1] and sorted(committed) == committed  # it happens once, and is never undone


@pytest.mark.slow
@pytest.mark.parametrize("stride", [10, 1])
def test_build_killed_at_any_step_is_complete_or_continues(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, stride: int
) -> None:
    expected = {f"first{i}": text for i, text in enumerate(POOL)}
    step, code = 0, KILLED
    while code == KILLED:
        folder = tmp_path / f"{step}.index"
        code = exit_code_of(start_fork(_killed_at_step(step, folder, lambda: build(minilm, folder))))  # noqa: B023
        with contextlib.suppress(NotFoundError):
            assert checked_rows(pellucid.Index.open(folder), vectors) == expected, f"after step {step}"
        if not list(folder.glob("generation-*")):
            build(minilm, folder)
        assert checked_rows(pellucid.Index.open(folder), vectors) == expected
        shutil.rmtree(folder)
        step += stride
    assert code == 0 and step > 30


@pytest.mark.slow
def test_build_killed_at_random_times_is_completed_later(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    generator, kills = random.Random(0), 0
    started = time.monotonic()
    assert exit_code_of(start_fork(lambda: build(minilm, tmp_path / "whole.index"))) == 0
    longest = time.monotonic() - started
    for number in range(25):
        folder = tmp_path / f"{number}.index"
        for _ in range(2):
            if not list(folder.glob("generation-*")):
                seconds = generator.uniform(0, longest)
                kills += kill_after(start_fork(lambda: build(minilm, folder)), seconds) == KILLED  # noqa: B023
        if not list(folder.glob("generation-*")):
            build(minilm, folder)
        assert sorted(checked_rows(pellucid.Index.open(folder), vectors).values()) == sorted(POOL)
    assert kills >= 10  # how many of up to 50 kills come in time is random


# -- power loss -----------------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """What a disk would hold at worst after a power loss: the flushed contents of files, and the names that a folder
    had when it was flushed. Names that were not flushed may be there as well: both are tried.

    files, folders: by inode number; an open handle keeps the number from being reused.
    """

    root: Path
    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=dict)
    handles: list[int] = field(default_factory=list)
    steps: list[tuple[dict[str, bytes], dict[str, bytes]]] = field(default_factory=list)

    def record_flush(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        inode = os.fstat(handle).st_ino
        self.handles.append(os.dup(handle))
        if path.is_dir():
            self.folders[inode] = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            self.files[inode] = path.read_bytes()

    def flush_all(self) -> None:
        """Flushes everything that is there."""
        for path in (self.root, *self.root.rglob("*")):
            handle = os.open(path, os.O_RDONLY)
            self.record_flush(handle)
            os.close(handle)

    def record_state(self) -> None:
        """Appends the contents at worst: with flushed names only, and with all names."""
        self.steps.append((self._named(self.root.stat().st_ino, ""), self._all()))

    def _named(self, folder: int, prefix: str) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        for name, inode in self.folders.get(folder, {}).items():
            if inode in self.folders:
                contents |= self._named(inode, f"{prefix}{name}/")
            else:
                contents[prefix + name] = self.files.get(inode, b"")
        return contents

    def _all(self) -> dict[str, bytes]:
        paths = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(one.relative_to(self.root)): self.files.get(one.stat().st_ino, b"") for one in paths}

    @contextlib.contextmanager
    def recording(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Records the contents after every file operation within the context."""
        original_fsync = os.fsync

        def fsync(handle: int) -> None:
            original_fsync(handle)
            self.record_flush(handle)
            self.record_state()

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            for name in ("replace", "rename", "unlink", "rmdir", "mkdir"):
                patch.setattr(os, name, self._then(getattr(os, name)))
            yield
        for handle in self.handles:
            os.close(handle)

    def _then(self, operation: Callable[..., object]) -> Callable[..., object]:
        def recorded(*arguments: object, **options: object) -> object:
            result = operation(*arguments, **options)
            self.record_state()
            return result

        return recorded


@pytest.mark.parametrize("change", ["update", "delete", "compact"])
def test_power_loss_at_any_step_leaves_the_old_or_the_new_index(
    minilm: pellucid.Model,
    vectors: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    index = build(minilm, tmp_path / "a.index")
    index.delete("first9")
    before = checked_rows(index, vectors)
    disk = Disk(index.folder)
    disk.flush_all()
    with disk.recording(monkeypatch):
        arguments = {"update": [("first1", POOL[7])], "delete": "first2"}
        getattr(index, change)(*([arguments[change]] if change in arguments else []))
    disk.record_state()
    after, states = checked_rows(index, vectors), []
    for number, (flushed_only, all_names) in enumerate(disk.steps):
        for content in (flushed_only, all_names):
            if content not in states:
                states.append(content)
                assert checked_rows(_index_from_contents(content, tmp_path / "cut.index"), vectors) in (
                    before,
                    after,
                ), f"step {number}"
    assert (
        checked_rows(_index_from_contents(disk.steps[-1][0], tmp_path / "cut.index"), vectors) == after
    )  # the acknowledged change
    assert len(states) >= 5


def _index_from_contents(content: dict[str, bytes], folder: Path) -> pellucid.Index:
    """Opens an index of these files."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return pellucid.Index.open(folder)


def test_power_loss_test_fails_without_sync(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.search.generations.sync_to_disk", lambda path: None)
    with pytest.raises((AssertionError, pellucid.errors.PellucidError)):
        test_power_loss_at_any_step_leaves_the_old_or_the_new_index(minilm, vectors, tmp_path, monkeypatch, "update")


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------

_COMMAND = """
import sys, time
from pellucid.search import building, change
building.CHUNK_SIZE = 2
real = change.embed_texts
change.embed_texts = lambda *arguments, **options: (time.sleep(%s), real(*arguments, **options))[1]
from pellucid.cli.app import app
from pellucid.cli.errors import run
sys.exit(run(app))
"""


@pytest.mark.slow
def test_interrupted_build_keeps_embedded_texts_and_can_be_continued(minilm: pellucid.Model, tmp_path: Path) -> None:
    table, folder = tmp_path / "rows.csv", tmp_path / "a.index"
    table.write_text("text\n" + "\n".join(POOL) + "\n")
    command = ["index", "build", str(table), "--column", "text", "-o", str(folder)]
    child = subprocess.Popen(
        [sys.executable, "-c", _COMMAND % 0.5, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while len(list(folder.glob("building/*.npz"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    output, error_output = child.communicate(timeout=30)
    assert child.returncode == 130
    assert (
        output == ""
        and error_output.strip().startswith("pellucid: interrupted; ")
        and error_output.strip().count("\n") == 0
    )
    assert error_output.strip().endswith("embedded texts are kept: run the same again to continue from there")
    saved_chunks = len(list(folder.glob("building/*.npz")))
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND % 0, "--debug", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(POOL)} rows, {len(POOL) - 2 * saved_chunks} embedded" in done.stderr
    assert len(pellucid.Index.open(folder)) == len(POOL)


def test_interruption_states_what_is_kept(
    minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = change.embed_texts, []

    def embed_texts(*arguments: object, **options: object) -> np.ndarray:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(change, "embed_texts", embed_texts)
    with pytest.raises(Interrupted, match=r"^interrupted; 3 embedded texts are kept: run the same again"):
        build(minilm, tmp_path / "a.index")
    calls.clear()
    with pytest.raises(Interrupted, match=r"^interrupted; nothing is kept, since the index has no folder \(out\)$"):
        pellucid.Index.build(minilm, POOL, progress=False)


def interrupt(*_: object, **__: object) -> None:
    """Stands in for the function that is running when a user presses Ctrl-C."""
    raise KeyboardInterrupt


def test_interrupted_change_leaves_the_old_index_and_no_lock(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(minilm, tmp_path / "a.index")
    before = checked_rows(index, vectors)
    monkeypatch.setattr("pellucid.search.building.write_vectors", interrupt)
    with pytest.raises(KeyboardInterrupt):
        index.add([("new", POOL[0])], progress=False)
    monkeypatch.undo()
    assert checked_rows(index, vectors) == checked_rows(pellucid.Index.open(index.folder), vectors) == before
    assert not (index.folder / "lock.json").exists() and len(list((index.folder / "segments").iterdir())) == 1
    assert index.add([("new", POOL[0])], progress=False) == 1


def test_interruption_while_closing_the_old_generation_reports_the_change(
    minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the garbage collector, Python would ignore it."""
    closed: list[object] = []

    class Connection(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            closed.append(self)
            if self is old:
                interrupt()

    old = None
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Connection))
    index = build(minilm, tmp_path / "a.index")
    for change_index in (lambda: index.add([("new", POOL[0])]), index.compact, lambda: index.delete("new")):
        old = index.segments[-1].entries._connection
        with pytest.raises(Interrupted, match="was changed as requested"):
            change_index()
        assert closed[-1] is old
    old = None
    other = pellucid.Index.open(index.folder)
    connection = other.segments[0].entries._connection
    del other
    assert connection not in closed  # not closed by the garbage collector, but by the next call
    assert index.search("red boats", mode="words") and connection in closed


def remove_manifests(folder: Path) -> None:
    for path in folder.glob("generation-*"):
        path.unlink()


def replace_by_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("something else")


@pytest.mark.parametrize("remove", [remove_manifests, shutil.rmtree, replace_by_file])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_deleted_index_does_not_hide_an_error(
    minilm: pellucid.Model, tmp_path: Path, remove: Callable[[Path], object], error: type[BaseException]
) -> None:
    index = build(minilm, tmp_path / "a.index")

    def rows() -> Iterator[tuple[str, str]]:
        yield "new", POOL[0]
        remove(index.folder)
        raise error("of the texts")

    with pytest.raises(error, match=r"^of the texts$"):
        index.add(rows(), progress=False)


def test_interruption_after_a_change_reports_the_change(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(minilm, tmp_path / "a.index")
    before = checked_rows(index, vectors)
    monkeypatch.setattr(change, "MAX_SEGMENTS", 1)
    monkeypatch.setattr(change, "_commit_merged", interrupt)
    with pytest.raises(Interrupted, match=r"a.index was changed as requested: do not run the same again$"):
        index.add([("new", POOL[0])], progress=False)
    monkeypatch.undo()
    assert (
        checked_rows(index, vectors)
        == checked_rows(pellucid.Index.open(index.folder), vectors)
        == before | {"new": POOL[0]}
    )
    unlink = Path.unlink

    def interrupting_unlink(path: Path, **options: bool) -> None:
        unlink(path, **options)
        if path.name == "lock.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", interrupting_unlink)  # while the lock is released
    with pytest.raises(Interrupted, match="was changed as requested"):
        index.delete("new")
    monkeypatch.undo()
    assert checked_rows(index, vectors) == before
