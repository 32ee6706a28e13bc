"""Parallel batches: results in order, threads shared out among them, and no further work after an error."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.streams import growing_batches, parallel_map
from pellucid.tasks import embed as embedding
from pellucid.tasks.passes import run_batches
from tests.torch_state import in_threads


@pytest.fixture(params=[1, 2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with in_threads(request.param) as count:
        yield count


@pytest.fixture
def two_threads() -> Iterator[None]:
    with in_threads(2):
        yield


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 9, 16])
@pytest.mark.parametrize("sequential", [0, 1, 3])
def test_results_are_in_order_and_threads_are_shared_out(threads: int, count: int, sequential: int) -> None:
    sequential = min(sequential, count)

    def work(batch: int) -> tuple[int, int, str, bool]:
        time.sleep(0.002 * (batch % 3))
        thread_name = threading.current_thread().name
        return batch, torch.get_num_threads(), thread_name, torch.is_inference_mode_enabled()

    results = list(parallel_map(work, range(count), sequential=sequential))
    assert [batch for batch, *_ in results] == list(range(count))
    assert all(inference_mode for *_, inference_mode in results)
    for batch, share, name, _ in results:
        in_stream = name.startswith("pellucid-stream")
        assert (share == threads) if not in_stream else (share < threads and threads % share == 0)
        assert not (in_stream and batch < sequential)
    if threads == 2:
        assert sum(name.startswith("pellucid-stream") for *_, name, _ in results) == (count - sequential) // 2 * 2
    assert torch.get_num_threads() == threads
    assert not torch.is_inference_mode_enabled()


def test_other_threads_keep_their_thread_count(two_threads: None) -> None:
    """Another thread that starts while batches run has as many threads as before."""
    counts: list[int] = []

    def work(batch: int) -> None:
        if batch == 3:
            thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
            thread.start()
            thread.join()

    list(parallel_map(work, range(8)))
    assert counts == [2]


def test_threads_started_at_the_same_time_keep_the_thread_count() -> None:
    """A thread that first reads the number of threads while another's streams run keeps that number for good."""
    before, interval, counts = torch.get_num_threads(), sys.getswitchinterval(), []
    torch.set_num_threads(4)
    sys.setswitchinterval(1e-6)

    def map_in_parallel() -> None:
        list(parallel_map(abs, range(4)))
        counts.append(torch.get_num_threads())

    try:
        for _ in range(30):
            group = [threading.Thread(target=map_in_parallel) for _ in range(6)]
            for thread in group:
                thread.start()
            for thread in group:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
        torch.set_num_threads(before)
    assert counts == [4] * 180


def test_thread_count_set_last_stays_in_effect(two_threads: None) -> None:
    """Even when the streams run on a thread that had started with another number."""
    counts: list[int] = []
    started, may_continue = threading.Event(), threading.Event()

    def work() -> None:
        torch.get_num_threads()
        started.set()
        may_continue.wait()
        list(parallel_map(abs, range(4)))
        thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        thread.start()
        thread.join()

    worker = threading.Thread(target=work)
    worker.start()
    started.wait()
    torch.set_num_threads(1)
    may_continue.set()
    worker.join()
    assert counts == [1]


@pytest.mark.parametrize("failing", [0, 3, 8])
def test_error_is_raised_at_the_position_of_its_result(two_threads: None, failing: int) -> None:
    worked: list[int] = []

    def work(batch: int) -> int:
        worked.append(batch)
        if batch == failing:
            raise ValueError("no")
        return batch

    answers, results = parallel_map(work, range(9)), []
    with pytest.raises(ValueError, match="no"):
        results.extend(iter(answers.__next__, None))
    assert len(worked) <= failing + 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pellucid-stream")]
    assert torch.get_num_threads() == 2


@pytest.mark.timeout(60)
def test_late_starting_thread_causes_no_deadlock(two_threads: None) -> None:
    """A thread may get to start only after the other has done all the work; that must not deadlock."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(500):
            assert list(parallel_map(abs, range(2))) == [0, 1]
    finally:
        sys.setswitchinterval(before)


def test_closing_the_results_stops_the_threads(two_threads: None) -> None:
    worked: list[int] = []
    answers = parallel_map(worked.append, range(100))
    next(answers)
    answers.close()
    assert len(worked) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pellucid-stream")]


def test_parallel_embedding_equals_sequential_embedding(
    minilm: "pellucid.Model", two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: set[str] = set()
    pool = embedding.pool

    def recorded_pool(*arguments: torch.Tensor) -> torch.Tensor:
        names.add(threading.current_thread().name[:15])
        return pool(*arguments)

    monkeypatch.setattr(embedding, "pool", recorded_pool)
    texts = [f"{i} " + "time flies " * (i % 50) for i in range(150)]
    found = minilm.embed(texts)
    assert names == {"pellucid-stream"} or names == {"pellucid-stream", "MainThread"}
    monkeypatch.setattr("pellucid.tasks.embed.run_batches", lambda *arguments: run_batches(*arguments, parallel=False))
    names.clear()
    torch.testing.assert_close(found, minilm.embed(texts), rtol=0, atol=1e-6)
    assert names == {"MainThread"}


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_low_bit_model_runs_batches_in_parallel(
    dtype: str, checkpoint: Callable[[str], Path], two_threads: None
) -> None:
    model = pellucid.load(checkpoint("bert-body"), dtype=dtype)
    shares: list[int] = []
    list(run_batches(model.module.packed_copy(), [900] * 4, lambda group: shares.append(torch.get_num_threads())))
    assert shares == [1] * 4
    with model.edit({"layers.0.residual.post": lambda value: 2 * value}) as edited:
        list(run_batches(edited.module.packed_copy(), [900] * 4, lambda group: shares.append(torch.get_num_threads())))
        edited("time flies")
    assert shares[4:] == [2] * 4


def test_rows_that_fill_a_batch_alone_use_all_threads(minilm: "pellucid.Model", two_threads: None) -> None:
    shares: dict[int, int] = {}

    def work(group: list[int]) -> None:
        shares[group[0]] = torch.get_num_threads()

    module = minilm.module.packed_copy()
    list(run_batches(module, [1537, 5000, 1000, 850, 1300, 900, 1100], work))
    assert shares == {1: 2, 0: 2, 4: 1, 6: 1, 2: 1, 5: 1, 3: 2}
    shares.clear()
    list(run_batches(minilm.module, [1537, 5000, 1000, 850, 1300], work))
    assert set(shares.values()) == {2}


def test_dominating_batch_uses_all_threads(minilm: "pellucid.Model", two_threads: None) -> None:
    """Four texts, of which the longest exceeds the others together; then two more as long, enough for two streams."""
    shares: dict[int, int] = {}

    def work(group: list[int]) -> None:
        shares[group[0]] = torch.get_num_threads()

    module = minilm.module.packed_copy()
    list(run_batches(module, [20, 200, 60, 100], work))
    assert set(shares.values()) == {2}
    shares.clear()
    list(run_batches(module, [20, 900, 60, 800, 850, 820], work))
    assert shares == {1: 1, 4: 1, 5: 1, 3: 1, 2: 2}
    threads_after = torch.get_num_threads()
    assert list(run_batches(module, [], work)) == [] and torch.get_num_threads() == threads_after


def test_first_batches_are_small() -> None:
    parts = list(growing_batches(range(6_000), 256, 2_048))
    assert [len(part) for part in parts] == [256, 512, 1_024, 2_048, 2_048, 112]
    assert [item for part in parts for item in part] == list(range(6_000))
