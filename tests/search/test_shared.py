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
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.lazy import cached_property
from pellucid.search import opened_generation
from pellucid.search.forks import fork_guard
from pellucid.search.generations import newest_manifest, writer_lock
from tests.search.child_processes import KILLED, exit_code_of, start_fork

QUERIES = ["Apple", "a bank", "Microsfot", "oil and gas", "burgers", "drugs", "cars", "insurance"]
Answers = list[list[tuple[str, float]]]


def answers(index: pellucid.Index, mode: str = "hybrid") -> Answers:
    return [[(hit["id"], round(hit["score"], 5)) for hit in hits] for hits in index.search(QUERIES, k=8, mode=mode)]


def test_eight_threads_get_the_same_hits(index: pellucid.Index) -> None:
    expected = {query: [hit["id"] for hit in index.search(query, k=8)] for query in QUERIES}
    fresh = pellucid.Index.open(index.folder, model=index.loaded)

    def run_query(query: str) -> tuple[str, list[str]]:
        return query, [hit["id"] for hit in fresh.search(query, k=8, where="founded > 0" if query == "cars" else None)]

    expected["cars"] = [hit["id"] for hit in index.search("cars", k=8, where="founded > 0")]
    with ThreadPoolExecutor(8) as threads:
        for query, found in threads.map(run_query, QUERIES * 4):
            assert found == expected[query]


def test_searching_threads_see_complete_generations(writable_index: pellucid.Index) -> None:
    stop, errors, hit_counts = threading.Event(), [], []
    ids = [f"T{i}" for i in range(5)]

    def run_query() -> None:
        while not stop.is_set():
            try:
                hits = writable_index.search("a bank for everyone", k=100, mode="words") + writable_index.search(
                    np.ones(384), k=100
                )
                assert len({hit["id"] for hit in hits if hit["id"] in ids}) in (0, 5)
                hit_counts.append(len(hits))
            except Exception as error:  # noqa: BLE001 - of another thread, raised again by this one
                errors.append(error)

    threads = [threading.Thread(target=run_query) for _ in range(3)]
    for thread in threads:
        thread.start()
    for round_ in range(6):
        writable_index.add([{"symbol": one, "name": f"Bank of {one} {round_}"} for one in ids], progress=False)
        writable_index.delete(ids)
    writable_index.compact(progress=False)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert len(hit_counts) > 3


def test_unpickled_index_opens_its_folder_again(writable_index: pellucid.Index) -> None:
    expected = answers(writable_index)
    packed = pickle.dumps(writable_index)
    assert len(packed) < 1_000
    again = pickle.loads(packed)
    assert answers(again) == expected and again.folder == writable_index.folder
    assert answers(copy.deepcopy(writable_index)) == expected
    writable_index.delete("AAPL")
    assert len(pickle.loads(packed)) == 99


def test_model_without_files_is_pickled_with_its_index(minilm: pellucid.Model, tmp_path: Path) -> None:
    import dataclasses

    bare = dataclasses.replace(minilm.loaded, source=None)
    index = pellucid.Index.build(bare, ["one apple", "two pears"], tmp_path / "a.index", progress=False)
    assert pickle.loads(pickle.dumps(index)).search("pear", k=1)[0]["id"] == "2"
    with pytest.raises(InputError, match=r"a model that came from no files \(bert\): give that one as model=MODEL, or"):
        pellucid.Index.open(index.folder).search("pear")
    assert pellucid.Index.open(index.folder, model=bare).search("pear", k=1)[0]["id"] == "2"
    other = dataclasses.replace(bare, module=copy.deepcopy(bare.module))
    with torch.no_grad():
        other.module.embeddings.norm.weight.mul_(-1)
    with pytest.raises(InputError, match=r"^this index was built with a model that came from no files .*has digest"):
        pellucid.Index.open(index.folder, model=other)


@pytest.mark.slow
def test_forked_and_spawned_processes_get_the_same_hits(index: pellucid.Index) -> None:
    expected, together = answers(index, "words"), answers(index)

    def work() -> None:
        assert answers(index, "words") == expected
        assert answers(index) == together
        assert len({os.getpid(), os.getppid()}) == 2

    assert exit_code_of(start_fork(work)) == 0
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        assert processes.submit(answers, index).result(timeout=120) == together


def test_forks_beside_searching_threads_get_the_same_hits(index: pellucid.Index) -> None:
    """A fork copies SQLite's locks in whatever state another thread holds them."""
    expected, stop = answers(index, "words"), threading.Event()

    def search() -> None:
        while not stop.is_set():
            index.search("bank", mode="words")

    def work() -> None:
        with ThreadPoolExecutor(6) as threads:
            assert all(found == expected for found in threads.map(lambda _: answers(index, "words"), range(6)))

    searching = [threading.Thread(target=search) for _ in range(2)]
    for thread in searching:
        thread.start()
    try:
        assert [exit_code_of(start_fork(work), timeout=30) for _ in range(12)] == [0] * 12
    finally:
        stop.set()
        for thread in searching:
            thread.join()


def test_fork_waits_until_no_thread_uses_sqlite(index: pellucid.Index) -> None:
    inside, left_at = threading.Event(), list[float]()

    def hold_guard() -> None:
        with fork_guard:
            inside.set()
            time.sleep(0.2)
            left_at.append(time.monotonic())

    thread = threading.Thread(target=hold_guard)
    thread.start()
    inside.wait()
    process, forked_at = start_fork(lambda: index.search("bank", mode="words")[0]), time.monotonic()
    assert left_at and left_at[0] <= forked_at and exit_code_of(process, timeout=30) == 0
    thread.join()
    with fork_guard:  # the forking thread does not wait for itself
        assert exit_code_of(start_fork(lambda: None), timeout=30) == 0


def test_thread_that_never_leaves_sqlite_does_not_block_forks_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.search.forks.TIMEOUT", 0.1)
    thread = threading.Thread(target=fork_guard.__enter__)  # which is never left
    thread.start()
    thread.join()
    assert exit_code_of(start_fork(lambda: fork_guard.__enter__()), timeout=30) == 0
    fork_guard._inside.clear()


def test_cached_property_computed_by_another_thread_does_not_block_a_fork() -> None:
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
    child = start_fork(lambda: Slow(False).value)
    go_on.set()
    assert exit_code_of(child, timeout=30) == 0
    thread.join()


def test_reader_keeps_its_generation_when_another_process_deletes_the_files(writable_index: pellucid.Index) -> None:
    reader = pellucid.Index.open(writable_index.folder, model=writable_index.loaded)
    expected = answers(writable_index)

    def work() -> None:
        writable_index.delete(where="sector = Financials")
        writable_index.compact(progress=False)

    assert exit_code_of(start_fork(work)) == 0
    assert [path.name for path in (writable_index.folder / "segments").iterdir()] != ["000001"]
    assert answers(reader) == expected
    with ThreadPoolExecutor(4) as threads:
        assert all(found == expected for found in threads.map(lambda _: answers(reader), range(4)))
    assert answers(pellucid.Index.open(writable_index.folder, model=writable_index.loaded)) != expected


def test_reader_beside_a_writer_opens_a_complete_generation(writable_index: pellucid.Index) -> None:
    ids = [f"T{i}" for i in range(40)]

    def write() -> None:
        for _ in range(8):
            writable_index.add([{"symbol": one, "name": "Another bank"} for one in ids], progress=False)
            writable_index.delete(ids)  # more than a fifth: segments are rewritten, old ones deleted

    process, lengths = start_fork(write), []
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        index = pellucid.Index.open(writable_index.folder)
        assert len({entry.id for one in index.segments for entry in one.live_entries()}) == len(index)
        lengths.append(len(index))
    assert set(lengths) <= {100, 140} and len(lengths) > 5


# -- two writers ----------------------------------------------------------------------------------------------------


def test_second_writer_waits_and_both_changes_are_kept(writable_index: pellucid.Index) -> None:
    def write(name: str) -> None:
        index = pellucid.Index.open(writable_index.folder, model=writable_index.loaded)
        for i in range(4):
            index.add([{"symbol": f"{name}{i}", "name": f"Writer {name} {i}"}], progress=False)

    writers = [start_fork(lambda: write("x")), start_fork(lambda: write("y"))]
    assert [exit_code_of(process) for process in writers] == [0, 0]
    found = {entry.id for one in pellucid.Index.open(writable_index.folder).segments for entry in one.live_entries()}
    assert {f"{name}{i}" for name in "xy" for i in range(4)} <= found and len(found) == 108


def test_writer_that_waits_too_long_names_the_locking_process(
    writable_index: pellucid.Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hold_lock() -> None:
        with writer_lock(writable_index.folder):
            (tmp_path / "locked").touch()
            time.sleep(60)

    process = start_fork(hold_lock)
    while not (tmp_path / "locked").exists():
        time.sleep(0.01)
    monkeypatch.setattr("pellucid.search.generations.TIMEOUT", 0.2)
    with pytest.raises(InputError, match=rf"is being written by process {process} since 20\d\d-.*: wait until"):
        writable_index.delete("AAPL")
    assert writable_index.search("Apple", k=1)[0]["id"] == "AAPL"
    os.kill(process, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == KILLED
    assert (writable_index.folder / "lock.json").exists()  # of the killed process
    assert writable_index.delete("AAPL") == 1
    assert not (writable_index.folder / "lock.json").exists()


def test_build_that_waits_for_a_failing_one_succeeds(tmp_path: Path) -> None:
    """The failing one deletes its folder, with the lock in it."""
    folder = tmp_path / "an.index"

    def build() -> bool:
        with writer_lock(folder, new=True):
            return folder.is_dir()

    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(ValueError, match="broken off"), writer_lock(folder, new=True):
            second_build = threads.submit(build)
            time.sleep(0.5)
            raise ValueError("broken off")
        assert second_build.result(30)
    assert not folder.exists()  # since the second build wrote nothing either


def test_index_opens_while_its_link_is_redirected(
    writable_index: pellucid.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are the same generation by number."""
    link, other = writable_index.folder.with_name("link"), writable_index.folder.with_name("other")
    shutil.copytree(writable_index.folder, other)
    first, second = (
        pellucid.Index.open(folder, model=writable_index.loaded) for folder in (writable_index.folder, other)
    )
    first.delete("AAPL")
    second.delete("MSFT")
    first.compact(progress=False)
    second.compact(progress=False)
    link.symlink_to(writable_index.folder)
    open_generation = opened_generation.open_generation

    def redirect_link(folder: Path, *arguments: Any) -> opened_generation.Generation:
        link.unlink()
        link.symlink_to(other)
        return open_generation(folder, *arguments)

    monkeypatch.setattr(opened_generation, "open_generation", redirect_link)
    found = opened_generation.open_newest(link)
    assert newest_manifest(writable_index.folder).generation == newest_manifest(other).generation
    assert found.segments.has_id("AAPL") and not found.segments.has_id("MSFT")


def test_writer_that_waits_for_another_thread_names_its_own_process(
    writable_index: pellucid.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.search.generations.TIMEOUT", 0.2)
    with writer_lock(writable_index.folder), ThreadPoolExecutor(1) as threads:
        with pytest.raises(InputError, match=r"is being written by this process itself since 20\d\d-.*: wait until"):
            threads.submit(writable_index.delete, "AAPL").result()
        monkeypatch.setattr("pellucid.search.generations._PROCESS", "another container's, with the same number")
        with pytest.raises(InputError, match=rf"is being written by process {os.getpid()} since"):
            writable_index.delete("AAPL")
    assert writable_index.delete("AAPL") == 1


def test_writing_threads_take_turns(writable_index: pellucid.Index) -> None:
    with ThreadPoolExecutor(4) as threads:
        futures = [
            threads.submit(writable_index.add, [(f"t{i}", f"Thread number {i}")], progress=False) for i in range(4)
        ]
        assert [one.result() for one in futures] == [1, 1, 1, 1]
    assert len(pellucid.Index.open(writable_index.folder)) == 104


def test_index_rebuilt_by_another_model_must_be_opened_again(
    writable_index: pellucid.Index, minilm: pellucid.Model
) -> None:
    reader = pellucid.Index.open(writable_index.folder, model=writable_index.loaded)
    shutil.rmtree(writable_index.folder)
    pellucid.Index.build(minilm, ["another"], writable_index.folder, prompt="read: ", progress=False)
    with pytest.raises(InputError, match=r"was rebuilt by .* meanwhile: open it again"):
        reader.add(["more"])
    assert len(pellucid.Index.open(writable_index.folder)) == 1


def test_index_rebuilt_with_another_metric_must_be_opened_again(tmp_path: Path) -> None:
    vectors = np.eye(4, dtype=np.float32) + 1
    reader = pellucid.Index.build(None, vectors, tmp_path / "a.index", metric="dot", progress=False)
    shutil.rmtree(reader.folder)
    pellucid.Index.build(None, vectors, reader.folder, metric="euclidean", progress=False)
    with pytest.raises(InputError, match=r"was rebuilt by .* meanwhile: open it again"):
        reader.delete(["4"])
    assert reader.manifest.settings.metric == "dot" and len(pellucid.Index.open(reader.folder)) == 4


# -- the cost of opening ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_index_too_large_for_memory_raises_an_error(tmp_path: Path) -> None:
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
        expected = r"not enough memory to open .*vectors.*, which has 9\d,\d+,\d+ bytes"
        assert re.match(expected, done.stdout), done.stdout + done.stderr


def test_opening_needs_the_memory_of_the_vectors_and_no_model(tmp_path: Path) -> None:
    import tracemalloc

    numbers = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
    pellucid.Index.build(None, numbers, tmp_path / "a.index")
    tracemalloc.start()
    started = time.process_time()
    index = pellucid.Index.open(tmp_path / "a.index")
    seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.6 * numbers.nbytes
    assert seconds < 3
    assert index._loaded is None


def test_search_at_interpreter_exit_is_answered(index: pellucid.Index) -> None:
    """Its file was already closed, and reported as damaged; a thread of the search crashed the process."""
    script = """
import atexit, sys
atexit.register(lambda: print([hit["id"] for hit in opened[0].search("bank", k=3, mode="words")]))
import pellucid
opened = [pellucid.Index.open(sys.argv[1])]
print([hit["id"] for hit in opened[0].search("bank", k=3, mode="words")])
"""
    done = subprocess.run([sys.executable, "-c", script, index.folder], capture_output=True, text=True, check=False)
    first, again = done.stdout.splitlines()
    assert done.returncode == 0 and first == again != "[]"
