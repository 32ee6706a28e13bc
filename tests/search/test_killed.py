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
from tests.search.children import KILLED, ended, kill_after, start

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


def held(index: pellucid.Index, vectors: dict[str, np.ndarray]) -> ROWS:
    """The texts of an index by id, after checks that each has one row and the vector of its text."""
    rows: ROWS = {}
    for segment in index.segments:
        for entry, vector, dead in zip(segment.entries.all(), segment.vectors.numbers, segment.deleted):
            if not dead:
                assert entry.id not in rows, f"{entry.id} appears twice"
                assert np.allclose(vector, vectors[entry.text], atol=1e-5), f"{entry.id} has another text's vector"
                rows[entry.id] = entry.text
    assert len(index) == len(rows)
    return rows


@dataclass
class Life:
    """Adds, updates and deletes, `steps` times, and notes each change before and after it."""

    minilm: pellucid.Model
    folder: Path
    notes: Path
    seed: int
    steps: int = 8

    def __call__(self) -> None:
        chance = random.Random(self.seed)
        index = pellucid.Index.open(self.folder, model=self.minilm)
        there = [entry.id for segment in index.segments for entry in segment.live_entries()]
        for step in range(self.steps):
            if chance.random() < 0.4 and len(there) > 4:
                gone = chance.sample(there, 2)
                self.note({"delete": gone})
                index.delete(gone)
                there = [one for one in there if one not in gone]
            else:
                new = {f"life{self.seed}.{step}": chance.choice(POOL), chance.choice(there): chance.choice(POOL)}
                self.note({"put": new})
                index.update(list(new.items()), progress=False)
                there = list(dict.fromkeys([*there, *new]))
            self.note("done")

    def note(self, what: object) -> None:
        with self.notes.open("a") as file:
            file.write(json.dumps(what) + "\n")


def applied(rows: ROWS, change: dict) -> ROWS:
    return rows | change["put"] if "put" in change else {i: t for i, t in rows.items() if i not in change["delete"]}


def allowed(rows: ROWS, notes: Path) -> tuple[ROWS, ROWS]:
    """The rows that must be there according to the notes, and those with the change that was under way."""
    said = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    instead = rows
    for one in said:
        if one == "done":
            rows = instead
        else:
            instead = applied(rows, one)
    return rows, instead


def many_lives(minilm: pellucid.Model, vectors: dict[str, np.ndarray], folder: Path, kills: int) -> int:
    """Kills `kills` processes on one index, one after the other; returns how many had not finished before."""
    rows, chance, killed = held(build(minilm, folder), vectors), random.Random(kills), 0
    begun = time.monotonic()
    assert ended(start(Life(minilm, folder, folder.parent / "notes", 0))) == 0
    longest, rows = time.monotonic() - begun, allowed(rows, folder.parent / "notes")[0]
    for seed in range(1, kills + 1):
        notes = folder.parent / f"notes{seed}"
        if kill_after(start(Life(minilm, folder, notes, seed)), chance.uniform(0, longest)) == KILLED:
            killed += 1
        else:
            longest *= 0.9  # the machine has become faster
        found = held(pellucid.Index.open(folder), vectors)
        assert found in allowed(rows, notes)
        rows = found
    pellucid.Index.open(folder, model=minilm).delete([next(iter(rows))])
    assert len(list(folder.glob("generation-*"))) == 1 and not list((folder / "segments").glob(".*"))
    return killed


@pytest.mark.slow
def test_no_row_that_was_acknowledged_is_lost_by_eight_kills(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    assert many_lives(minilm, vectors, tmp_path / "a.index", 8) >= 4


@pytest.mark.slow
def test_no_row_that_was_acknowledged_is_lost_by_fifty_kills(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    assert many_lives(minilm, vectors, tmp_path / "a.index", 50) >= 30


def test_a_build_that_was_killed_goes_on_and_embeds_nothing_twice(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, embedded = tmp_path / "a.index", tmp_path / "embedded"
    real = pellucid.search.change.embed_texts

    def slow(loaded: object, texts: list[str], *given: object, **named: object) -> np.ndarray:
        with embedded.open("a") as file:
            file.writelines(f"{text}\n" for text in texts)
        time.sleep(0.05)
        return real(loaded, texts, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("pellucid.search.change.embed_texts", slow)
    for kills in range(1, 4):
        child = start(lambda: build(minilm, folder))
        until = time.monotonic() + 30
        while len(list(folder.glob("building/*.npz"))) < kills and time.monotonic() < until:
            time.sleep(0.005)
        assert kill_after(child, 0.02) == KILLED
        with pytest.raises(NotFoundError, match="run the same build again to continue"):
            pellucid.Index.open(folder)
    index = build(minilm, folder)
    assert sorted(held(index, vectors).values()) == sorted(POOL)
    assert len(embedded.read_text().splitlines()) <= len(POOL) + 3 * 3  # plus at most the chunk that each kill lost
    assert sorted(path.name for path in folder.iterdir()) == ["generation-000001.json", "lock", "segments"]


# -- every single step ----------------------------------------------------------------------------------------------


def _touches(folder: Path, event: str, given: tuple) -> bool:
    """Whether an audit event of the interpreter may change files in a folder."""
    named = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "open", "sqlite3.connect", "shutil.rmtree")
    return named and any(isinstance(one, str | Path) and str(folder) in str(one) for one in given)


def _killed_at(step: int, folder: Path, work: Callable[[], object]) -> Callable[[], object]:
    """The work, ended by signal 9 when it touches its folder for the nth time, from 0."""

    def doomed() -> None:
        left = iter(range(step, -1, -1))

        def hook(event: str, given: tuple) -> None:
            if _touches(folder, event, given) and next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        work()

    return doomed


EVERY = [12, pytest.param(1, marks=pytest.mark.slow)]


@pytest.mark.parametrize("stride", EVERY)
@pytest.mark.parametrize("change", few(["put", "delete", "compact"], ["put"]))
def test_killed_at_every_single_step_it_is_the_old_or_the_new_one(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, change: str, stride: int
) -> None:
    build(minilm, tmp_path / "old.index").delete(["first3"])
    before = held(pellucid.Index.open(tmp_path / "old.index"), vectors)
    put = {"new": POOL[0], "first1": POOL[5]}
    wanted = {"put": before | put, "delete": {i: t for i, t in before.items() if i != "first2"}, "compact": before}

    def work(folder: Path) -> None:
        index = pellucid.Index.open(folder, model=minilm)
        if change == "compact":
            index.compact(progress=False)
        else:
            index.update(list(put.items()), progress=False) if change == "put" else index.delete("first2")

    step, seen = 0, []
    while True:
        folder = tmp_path / f"{step}.index"
        shutil.copytree(tmp_path / "old.index", folder)
        code = ended(start(_killed_at(step, folder, lambda: work(folder))))  # noqa: B023
        found = held(pellucid.Index.open(folder), vectors)
        assert found in (before, wanted[change]), f"after step {step}"
        seen.append(found == wanted[change])
        if code == 0:
            break
        assert code == KILLED
        work(folder) if not seen[-1] or change == "compact" else None  # leftovers do not matter
        assert held(pellucid.Index.open(folder), vectors) == wanted[change]
        shutil.rmtree(folder)
        step += stride
    assert step > 10 and seen[-1] and sorted(seen) == seen  # it happens once, and is never undone


@pytest.mark.slow
@pytest.mark.parametrize("stride", [10, 1])
def test_a_build_that_is_killed_at_every_single_step_is_there_or_goes_on(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, stride: int
) -> None:
    wanted = {f"first{i}": text for i, text in enumerate(POOL)}
    step, code = 0, KILLED
    while code == KILLED:
        folder = tmp_path / f"{step}.index"
        code = ended(start(_killed_at(step, folder, lambda: build(minilm, folder))))  # noqa: B023
        with contextlib.suppress(NotFoundError):
            assert held(pellucid.Index.open(folder), vectors) == wanted, f"after step {step}"
        if not list(folder.glob("generation-*")):
            build(minilm, folder)
        assert held(pellucid.Index.open(folder), vectors) == wanted
        shutil.rmtree(folder)
        step += stride
    assert code == 0 and step > 30


@pytest.mark.slow
def test_a_build_that_is_killed_at_random_gets_there_in_the_end(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    chance, kills = random.Random(0), 0
    begun = time.monotonic()
    assert ended(start(lambda: build(minilm, tmp_path / "whole.index"))) == 0
    longest = time.monotonic() - begun
    for number in range(25):
        folder = tmp_path / f"{number}.index"
        for _ in range(2):
            if not list(folder.glob("generation-*")):
                seconds = chance.uniform(0, longest)
                kills += kill_after(start(lambda: build(minilm, folder)), seconds) == KILLED  # noqa: B023
        if not list(folder.glob("generation-*")):
            build(minilm, folder)
        assert sorted(held(pellucid.Index.open(folder), vectors).values()) == sorted(POOL)
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

    def flushed(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        number = os.fstat(handle).st_ino
        self.handles.append(os.dup(handle))
        if path.is_dir():
            self.folders[number] = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            self.files[number] = path.read_bytes()

    def everything(self) -> None:
        """Flushes everything that is there."""
        for path in (self.root, *self.root.rglob("*")):
            handle = os.open(path, os.O_RDONLY)
            self.flushed(handle)
            os.close(handle)

    def note(self) -> None:
        """Appends the contents at worst: with flushed names only, and with all names."""
        self.steps.append((self._named(self.root.stat().st_ino, ""), self._all()))

    def _named(self, folder: int, before: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, number in self.folders.get(folder, {}).items():
            if number in self.folders:
                found |= self._named(number, f"{before}{name}/")
            else:
                found[before + name] = self.files.get(number, b"")
        return found

    def _all(self) -> dict[str, bytes]:
        paths = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(one.relative_to(self.root)): self.files.get(one.stat().st_ino, b"") for one in paths}

    @contextlib.contextmanager
    def watched(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Notes the contents after every file operation within the context."""
        real = os.fsync

        def fsync(handle: int) -> None:
            real(handle)
            self.flushed(handle)
            self.note()

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            for name in ("replace", "rename", "unlink", "rmdir", "mkdir"):
                patch.setattr(os, name, self._then(getattr(os, name)))
            yield
        for handle in self.handles:
            os.close(handle)

    def _then(self, real: Callable[..., object]) -> Callable[..., object]:
        def step(*given: object, **named: object) -> object:
            done = real(*given, **named)
            self.note()
            return done

        return step


@pytest.mark.parametrize("change", ["update", "delete", "compact"])
def test_without_power_at_any_moment_it_is_the_old_or_the_new_one(
    minilm: pellucid.Model,
    vectors: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    index = build(minilm, tmp_path / "a.index")
    index.delete("first9")
    before = held(index, vectors)
    disk = Disk(index.folder)
    disk.everything()
    with disk.watched(monkeypatch):
        given = {"update": [("first1", POOL[7])], "delete": "first2"}
        getattr(index, change)(*([given[change]] if change in given else []))
    disk.note()
    after, states = held(index, vectors), []
    for number, (least, most) in enumerate(disk.steps):
        for content in (least, most):
            if content not in states:
                states.append(content)
                assert held(_laid(content, tmp_path / "cut.index"), vectors) in (before, after), f"step {number}"
    assert held(_laid(disk.steps[-1][0], tmp_path / "cut.index"), vectors) == after  # the acknowledged change
    assert len(states) >= 5


def _laid(content: dict[str, bytes], folder: Path) -> pellucid.Index:
    """Opens an index of these files."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, held_ in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(held_)
    return pellucid.Index.open(folder)


def test_that_test_can_fail(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.search.generations.sync_to_disk", lambda path: None)
    with pytest.raises((AssertionError, pellucid.errors.PellucidError)):
        test_without_power_at_any_moment_it_is_the_old_or_the_new_one(minilm, vectors, tmp_path, monkeypatch, "update")


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------

_TYPED = """
import sys, time
from pellucid.search import building, change
building.CHUNK_SIZE = 2
real = change.embed_texts
change.embed_texts = lambda *given, **named: (time.sleep(%s), real(*given, **named))[1]
from pellucid.cli.app import app
from pellucid.cli.errors import run
sys.exit(run(app))
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_embedded_and_says_how_to_go_on(minilm: pellucid.Model, tmp_path: Path) -> None:
    table, folder = tmp_path / "rows.csv", tmp_path / "a.index"
    table.write_text("text\n" + "\n".join(POOL) + "\n")
    typed = ["index", "build", str(table), "--column", "text", "-o", str(folder)]
    child = subprocess.Popen(
        [sys.executable, "-c", _TYPED % 0.5, *typed], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while len(list(folder.glob("building/*.npz"))) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert out == "" and said.strip().startswith("pellucid: interrupted; ") and said.strip().count("\n") == 0
    assert said.strip().endswith("embedded texts are kept: run the same again to continue from there")
    kept = len(list(folder.glob("building/*.npz")))
    done = subprocess.run(
        [sys.executable, "-c", _TYPED % 0, "--debug", *typed], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(POOL)} rows, {len(POOL) - 2 * kept} embedded" in done.stderr
    assert len(pellucid.Index.open(folder)) == len(POOL)


def test_ctrl_c_is_of_the_kind_that_tells_what_is_kept(
    minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = change.embed_texts, []

    def embed_texts(*given: object, **named: object) -> np.ndarray:
        asked.append(given)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(change, "embed_texts", embed_texts)
    with pytest.raises(Interrupted, match=r"^interrupted; 3 embedded texts are kept: run the same again"):
        build(minilm, tmp_path / "a.index")
    asked.clear()
    with pytest.raises(Interrupted, match=r"^interrupted; nothing is kept, since the index has no folder \(out\)$"):
        pellucid.Index.build(minilm, POOL, progress=False)


def break_off(*_: object, **__: object) -> None:
    """Stands in for the function that is running when a user presses Ctrl-C."""
    raise KeyboardInterrupt


def test_ctrl_c_in_the_middle_of_a_change_leaves_the_old_one_and_no_lock(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(minilm, tmp_path / "a.index")
    before = held(index, vectors)
    monkeypatch.setattr("pellucid.search.building.write_vectors", break_off)
    with pytest.raises(KeyboardInterrupt):
        index.add([("new", POOL[0])], progress=False)
    monkeypatch.undo()
    assert held(index, vectors) == held(pellucid.Index.open(index.folder), vectors) == before
    assert not (index.folder / "lock.json").exists() and len(list((index.folder / "segments").iterdir())) == 1
    assert index.add([("new", POOL[0])], progress=False) == 1


def test_ctrl_c_while_the_old_one_is_closed_says_that_the_change_is_made(
    minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the garbage collector, Python would ignore it."""
    closed: list[object] = []

    class Connection(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            closed.append(self)
            if self is old:
                break_off()

    old = None
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Connection))
    index = build(minilm, tmp_path / "a.index")
    for change_it in (lambda: index.add([("new", POOL[0])]), index.compact, lambda: index.delete("new")):
        old = index.segments[-1].entries._connection
        with pytest.raises(Interrupted, match="was changed as requested"):
            change_it()
        assert closed[-1] is old
    old = None
    other = pellucid.Index.open(index.folder)
    let_go = other.segments[0].entries._connection
    del other
    assert let_go not in closed  # not closed by the garbage collector, but by the next call
    assert index.search("red boats", mode="words") and let_go in closed


def without_generations(folder: Path) -> None:
    for path in folder.glob("generation-*"):
        path.unlink()


def as_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("something else")


@pytest.mark.parametrize("gone", [without_generations, shutil.rmtree, as_file])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_index_that_is_gone_hides_no_error(
    minilm: pellucid.Model, tmp_path: Path, gone: Callable[[Path], object], error: type[BaseException]
) -> None:
    index = build(minilm, tmp_path / "a.index")

    def rows() -> Iterator[tuple[str, str]]:
        yield "new", POOL[0]
        gone(index.folder)
        raise error("of the texts")

    with pytest.raises(error, match=r"^of the texts$"):
        index.add(rows(), progress=False)


def test_ctrl_c_behind_a_change_says_that_it_is_made(
    minilm: pellucid.Model, vectors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(minilm, tmp_path / "a.index")
    before = held(index, vectors)
    monkeypatch.setattr(change, "MAX_SEGMENTS", 1)
    monkeypatch.setattr(change, "_commit_merged", break_off)
    with pytest.raises(Interrupted, match=r"a.index was changed as requested: do not run the same again$"):
        index.add([("new", POOL[0])], progress=False)
    monkeypatch.undo()
    assert held(index, vectors) == held(pellucid.Index.open(index.folder), vectors) == before | {"new": POOL[0]}
    taken = Path.unlink

    def break_off_there(path: Path, **how: bool) -> None:
        taken(path, **how)
        if path.name == "lock.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", break_off_there)  # while the lock is released
    with pytest.raises(Interrupted, match="was changed as requested"):
        index.delete("new")
    monkeypatch.undo()
    assert held(index, vectors) == before
