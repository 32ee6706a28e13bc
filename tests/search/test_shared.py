"""Shared by threads, processes and writers: each sees one generation, and all get the same answers."""

import copy
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pellucid
from pellucid.errors import InputError
from pellucid.lazy import cached_property
from pellucid.search import opened
from pellucid.search.forks import fork_guard
from pellucid.search.generations import newest_manifest, writer_lock
from tests.search.children import KILLED, ended, start

QUERIES = ["Apple", "a bank", "Microsfot", "oil and gas", "burgers", "drugs", "cars", "insurance"]
Answers = list[list[tuple[str, float]]]


def answers(index: pellucid.Index, mode: str = "hybrid") -> Answers:
    return [[(hit["id"], round(hit["score"], 5)) for hit in hits] for hits in index.search(QUERIES, k=8, mode=mode)]


def test_eight_threads_have_the_same_answers(index: pellucid.Index) -> None:
    wanted = {query: [hit["id"] for hit in index.search(query, k=8)] for query in QUERIES}
    fresh = pellucid.Index.open(index.folder, model=index.loaded)

    def ask(query: str) -> tuple[str, list[str]]:
        return query, [hit["id"] for hit in fresh.search(query, k=8, where="founded > 0" if query == "cars" else None)]

    wanted["cars"] = [hit["id"] for hit in index.search("cars", k=8, where="founded > 0")]
    with ThreadPoolExecutor(8) as threads:
        for query, found in threads.map(ask, QUERIES * 4):
            assert found == wanted[query]


def test_threads_that_search_while_another_changes_see_whole_generations(own: pellucid.Index) -> None:
    stop, faults, asked = threading.Event(), [], []
    ids = [f"T{i}" for i in range(5)]

    def ask() -> None:
        while not stop.is_set():
            try:
                hits = own.search("a bank for everyone", k=100, mode="words") + own.search(np.ones(384), k=100)
                assert len({hit["id"] for hit in hits if hit["id"] in ids}) in (0, 5)
                asked.append(len(hits))
            except Exception as error:  # noqa: BLE001 - of another thread, to be told by this one
                faults.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for round_ in range(6):
        own.add([{"symbol": one, "name": f"Bank of {one} {round_}"} for one in ids], progress=False)
        own.delete(ids)
    own.compact(progress=False)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]
    assert len(asked) > 3


def test_an_index_is_opened_anew_where_it_is_unpickled(own: pellucid.Index) -> None:
    wanted = answers(own)
    packed = pickle.dumps(own)
    assert len(packed) < 1_000
    again = pickle.loads(packed)
    assert answers(again) == wanted and again.folder == own.folder
    assert answers(copy.deepcopy(own)) == wanted
    own.delete("AAPL")
    assert len(pickle.loads(packed)) == 99


def test_a_model_without_files_travels_with_its_index(minilm: pellucid.Model, tmp_path: Path) -> None:
    import dataclasses

    bare = dataclasses.replace(minilm.loaded, source=None)
    index = pellucid.Index.build(bare, ["one apple", "two pears"], tmp_path / "a.index", progress=False)
    assert pickle.loads(pickle.dumps(index)).search("pear", k=1)[0]["id"] == "2"
    with pytest.raises(InputError, match=r"a model that came from no files \(bert\): give that one as model=MODEL, or"):
        pellucid.Index.open(index.folder).search("pear")
    assert pellucid.Index.open(index.folder, model=bare).search("pear", k=1)[0]["id"] == "2"


@pytest.mark.slow
def test_a_fork_and_a_spawned_process_have_the_same_answers(index: pellucid.Index) -> None:
    wanted, together = answers(index, "words"), answers(index)

    def work() -> None:
        assert answers(index, "words") == wanted
        assert answers(index) == together
        assert len({os.getpid(), os.getppid()}) == 2

    assert ended(start(work)) == 0
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        assert processes.submit(answers, index).result(timeout=120) == together


def test_forks_beside_threads_that_search_have_the_same_answers(index: pellucid.Index) -> None:
    """A fork copies SQLite's locks in whatever state another thread holds them."""
    wanted, stop = answers(index, "words"), threading.Event()

    def search() -> None:
        while not stop.is_set():
            index.search("bank", mode="words")

    def work() -> None:
        with ThreadPoolExecutor(6) as threads:
            assert all(found == wanted for found in threads.map(lambda _: answers(index, "words"), range(6)))

    busy = [threading.Thread(target=search) for _ in range(2)]
    for thread in busy:
        thread.start()
    try:
        assert [ended(start(work), within=30) for _ in range(12)] == [0] * 12
    finally:
        stop.set()
        for thread in busy:
            thread.join()


def test_a_fork_waits_until_no_thread_is_within_sqlite(index: pellucid.Index) -> None:
    inside, left = threading.Event(), list[float]()

    def stay() -> None:
        with fork_guard:
            inside.set()
            time.sleep(0.2)
            left.append(time.monotonic())

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    process, begun = start(lambda: index.search("bank", mode="words")[0]), time.monotonic()
    assert left and left[0] <= begun and ended(process, within=30) == 0
    thread.join()
    with fork_guard:  # the forking thread does not wait for itself
        assert ended(start(lambda: None), within=30) == 0


def test_a_signal_that_breaks_a_thread_off_stops_no_fork_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.search.forks.TIMEOUT", 0.1)
    thread = threading.Thread(target=fork_guard.__enter__)  # which is never left
    thread.start()
    thread.join()
    assert ended(start(lambda: fork_guard.__enter__()), within=30) == 0
    fork_guard._inside.clear()


def test_what_another_thread_computes_does_not_lock_a_fork() -> None:
    """Python 3.11 has one lock for a cached property of all objects of a class."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, slow: bool) -> None:
            self.slow = slow

        @cached_property
        def value(self) -> int:
            if self.slow:
                inside.set()
                go_on.wait()
            return 1

    thread = threading.Thread(target=lambda: Slow(True).value)
    thread.start()
    inside.wait()
    child = start(lambda: Slow(False).value)
    go_on.set()
    assert ended(child, within=30) == 0
    thread.join()


def test_a_reader_keeps_what_it_opened_when_another_process_takes_the_files_away(own: pellucid.Index) -> None:
    reader = pellucid.Index.open(own.folder, model=own.loaded)
    wanted = answers(own)

    def work() -> None:
        own.delete(where="sector = Financials")
        own.compact(progress=False)

    assert ended(start(work)) == 0
    assert [path.name for path in (own.folder / "segments").iterdir()] != ["000001"]
    assert answers(reader) == wanted
    with ThreadPoolExecutor(4) as threads:
        assert all(found == wanted for found in threads.map(lambda _: answers(reader), range(4)))
    assert answers(pellucid.Index.open(own.folder, model=own.loaded)) != wanted


def test_a_reader_beside_a_busy_writer_opens_the_old_or_the_new_one(own: pellucid.Index) -> None:
    ids = [f"T{i}" for i in range(40)]

    def write() -> None:
        for _ in range(8):
            own.add([{"symbol": one, "name": "Another bank"} for one in ids], progress=False)
            own.delete(ids)  # more than a fifth: segments are rewritten, old ones deleted

    process, seen = start(write), []
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        index = pellucid.Index.open(own.folder)
        assert len({entry.id for one in index.segments for entry in one.live_entries()}) == len(index)
        seen.append(len(index))
    assert set(seen) <= {100, 140} and len(seen) > 5


# -- two writers ----------------------------------------------------------------------------------------------------


def test_of_two_writers_the_second_waits_and_both_are_heard(own: pellucid.Index) -> None:
    def write(name: str) -> None:
        mine = pellucid.Index.open(own.folder, model=own.loaded)
        for i in range(4):
            mine.add([{"symbol": f"{name}{i}", "name": f"Writer {name} {i}"}], progress=False)

    writers = [start(lambda: write("x")), start(lambda: write("y"))]
    assert [ended(process) for process in writers] == [0, 0]
    found = {entry.id for one in pellucid.Index.open(own.folder).segments for entry in one.live_entries()}
    assert {f"{name}{i}" for name in "xy" for i in range(4)} <= found and len(found) == 108


def test_a_writer_that_waits_too_long_is_told_who_writes(
    own: pellucid.Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hold() -> None:
        with writer_lock(own.folder):
            (tmp_path / "holds").touch()
            time.sleep(60)

    process = start(hold)
    while not (tmp_path / "holds").exists():
        time.sleep(0.01)
    monkeypatch.setattr("pellucid.search.generations.TIMEOUT", 0.2)
    with pytest.raises(InputError, match=rf"is being written by process {process} since 20\d\d-.*: wait until"):
        own.delete("AAPL")
    assert own.search("Apple", k=1)[0]["id"] == "AAPL"
    os.kill(process, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == KILLED
    assert (own.folder / "lock.json").exists()  # of the killed process
    assert own.delete("AAPL") == 1
    assert not (own.folder / "lock.json").exists()


def test_a_build_that_waits_for_one_that_fails_builds(tmp_path: Path) -> None:
    """The failing one deletes its folder, with the lock in it."""
    folder = tmp_path / "an.index"

    def build() -> bool:
        with writer_lock(folder, new=True):
            return folder.is_dir()

    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(ValueError, match="broken off"), writer_lock(folder, new=True):
            second = threads.submit(build)
            time.sleep(0.5)
            raise ValueError("broken off")
        assert second.result(30)
    assert not folder.exists()  # since the second build wrote nothing either


def test_an_index_whose_link_is_led_elsewhere_opens(own: pellucid.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are the same generation by number."""
    link, other = own.folder.with_name("link"), own.folder.with_name("other")
    shutil.copytree(own.folder, other)
    first, second = (pellucid.Index.open(folder, model=own.loaded) for folder in (own.folder, other))
    first.delete("AAPL")
    second.delete("MSFT")
    first.compact(progress=False)
    second.compact(progress=False)
    link.symlink_to(own.folder)
    read = opened.open_generation

    def led_elsewhere(folder: Path, *asked: Any) -> opened.Generation:
        link.unlink()
        link.symlink_to(other)
        return read(folder, *asked)

    monkeypatch.setattr(opened, "open_generation", led_elsewhere)
    found = opened.open_newest(link)
    assert newest_manifest(own.folder).generation == newest_manifest(other).generation
    assert found.segments.has_id("AAPL") and not found.segments.has_id("MSFT")


def test_a_writer_that_waits_for_another_thread_is_told_so(
    own: pellucid.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.search.generations.TIMEOUT", 0.2)
    with writer_lock(own.folder), ThreadPoolExecutor(1) as threads:
        with pytest.raises(InputError, match=r"is being written by this process itself since 20\d\d-.*: wait until"):
            threads.submit(own.delete, "AAPL").result()
        monkeypatch.setattr("pellucid.search.generations._PROCESS", "another container's, with the same number")
        with pytest.raises(InputError, match=rf"is being written by process {os.getpid()} since"):
            own.delete("AAPL")
    assert own.delete("AAPL") == 1


def test_two_threads_write_one_after_the_other(own: pellucid.Index) -> None:
    with ThreadPoolExecutor(4) as threads:
        done = [threads.submit(own.add, [(f"t{i}", f"Thread number {i}")], progress=False) for i in range(4)]
        assert [one.result() for one in done] == [1, 1, 1, 1]
    assert len(pellucid.Index.open(own.folder)) == 104


def test_an_index_that_was_built_anew_by_another_model_is_opened_again_first(
    own: pellucid.Index, minilm: pellucid.Model
) -> None:
    reader = pellucid.Index.open(own.folder, model=own.loaded)
    shutil.rmtree(own.folder)
    pellucid.Index.build(minilm, ["another"], own.folder, prompt="read: ", progress=False)
    with pytest.raises(InputError, match=r"was rebuilt by .* meanwhile: open it again"):
        reader.add(["more"])
    assert len(pellucid.Index.open(own.folder)) == 1


def test_so_is_one_that_was_built_anew_with_another_metric(tmp_path: Path) -> None:
    vectors = np.eye(4, dtype=np.float32) + 1
    reader = pellucid.Index.build(None, vectors, tmp_path / "a.index", metric="dot", progress=False)
    shutil.rmtree(reader.folder)
    pellucid.Index.build(None, vectors, reader.folder, metric="euclidean", progress=False)
    with pytest.raises(InputError, match=r"was rebuilt by .* meanwhile: open it again"):
        reader.delete(["4"])
    assert reader.manifest.settings.metric == "dot" and len(pellucid.Index.open(reader.folder)) == 4


# -- the cost of opening ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_index_that_does_not_fit_into_memory_is_said(tmp_path: Path) -> None:
    """In a process of its own, since one that has trained keeps freed memory, and so has enough."""
    script = """
import resource, sys
from pathlib import Path
import faiss
import pellucid
import pellucid.search.index
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 10_000_000, resource.RLIM_INFINITY))
try:
    pellucid.Index.open(sys.argv[1])
except pellucid.errors.ResourceError as error:
    print(error)
"""
    numbers = np.eye(20_000, 1_200, dtype=np.float32)
    for kind in ("flat", "hnsw"):
        folder = tmp_path / f"{kind}.index"
        pellucid.Index.build(None, numbers, folder, kind=kind, efSearch=4_096, M=2, efConstruction=2)
        done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=False)
        wanted = r"not enough memory to open .*vectors.*, which has 9\d,\d+,\d+ bytes"
        assert re.match(wanted, done.stdout), done.stdout + done.stderr


def test_opening_takes_the_room_of_the_vectors_and_no_model(tmp_path: Path) -> None:
    import tracemalloc

    numbers = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
    pellucid.Index.build(None, numbers, tmp_path / "a.index")
    tracemalloc.start()
    begun = time.process_time()
    index = pellucid.Index.open(tmp_path / "a.index")
    seconds, (_, most) = time.process_time() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1.6 * numbers.nbytes
    assert seconds < 3
    assert index._loaded is None


def test_a_search_that_is_made_while_python_ends_is_answered(index: pellucid.Index) -> None:
    """Its file was already closed, and reported as damaged; a thread of the search crashed the process."""
    script = """
import atexit, sys
atexit.register(lambda: print([hit["id"] for hit in held[0].search("bank", k=3, mode="words")]))
import pellucid
held = [pellucid.Index.open(sys.argv[1])]
print([hit["id"] for hit in held[0].search("bank", k=3, mode="words")])
"""
    done = subprocess.run([sys.executable, "-c", script, index.folder], capture_output=True, text=True, check=False)
    first, again = done.stdout.splitlines()
    assert done.returncode == 0 and first == again != "[]"
