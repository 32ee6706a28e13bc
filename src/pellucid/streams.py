"""Batches in parallel: each in a thread of its own, with its share of the processors.

Two batches on one processor each finish sooner than one after the other on both: no matrix product is split, and no
thread waits for another at every step. The gain is largest where the processors are shared with other work.
"""

import ctypes
import functools
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from pellucid.errors import InputError
from pellucid.machine import available_cores, inference_mode

Item = TypeVar("Item")
Batch = TypeVar("Batch")
Result = TypeVar("Result")

_START_LOCK = threading.Lock()
"""Held while streams start: PyTorch sets a thread's thread count the first time that it is read, and at this moment it
would be that of a stream, for as long as that thread lasts."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_START_LOCK.acquire, after_in_parent=_START_LOCK.release, after_in_child=_START_LOCK.release
    )


@functools.cache
def use_threads() -> int:
    """Sets PyTorch's thread count once per process, from `PELLUCID_THREADS` or its own, to at most what the processors
    and OpenMP allow. A fork uses one thread: OpenMP's do not survive it, and asking for more would hang."""
    requested, max_threads = os.environ.get("PELLUCID_THREADS"), _guaranteed_threads()
    if requested is not None:
        if not (requested.isascii() and requested.isdecimal()) or not 1 <= int(requested) <= 1024:
            raise InputError(f"PELLUCID_THREADS is {requested!r}, expected a whole number from 1 to 1024")
        torch.set_num_threads(min(int(requested), max_threads))
    elif torch.get_num_threads() > (max_threads := min(available_cores(), max_threads)):
        torch.set_num_threads(max_threads)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))
    return torch.get_num_threads()


def _guaranteed_threads() -> int:
    """The number of threads that OpenMP, which PyTorch uses, always provides, by OMP_THREAD_LIMIT, OMP_DYNAMIC and
    OMP_MAX_ACTIVE_LEVELS. oneDNN splits a product among as many as it requested, and if there are fewer it silently
    leaves the other parts uninitialized."""
    if sys.platform != "linux":
        return sys.maxsize
    loaded = ctypes.CDLL(None)  # libraries of this process, PyTorch's OpenMP among them
    try:
        if loaded.omp_get_dynamic() or not loaded.omp_get_max_active_levels():
            return 1
        return loaded.omp_get_thread_limit()
    except AttributeError:  # PyTorch was built without OpenMP
        return sys.maxsize


def growing_batches(items: Iterable[Item], first: int, max_size: int) -> Iterator[list[Item]]:
    """Batches of items: `first` items at first, then twice as many each time, up to `max_size`."""
    source, size = iter(items), min(first, max_size)
    while batch := list(itertools.islice(source, size)):
        yield batch
        size = min(2 * size, max_size)


def parallel_batches(count: int) -> int:
    """How many of `count` batches run at a time: as many as share the processors evenly."""
    threads = _current_threads()
    return max(n for n in range(1, threads + 1) if threads % n == 0 and n <= max(count, 1))


@inference_mode()
def parallel_map(work: Callable[[Batch], Result], batches: Sequence[Batch], *, sequential: int = 0) -> Iterator[Result]:
    """The results of `work` for each batch, in their order, without gradients.

    As many batches as share the processors evenly run at a time, one of them ahead of the result that was requested.

    sequential: how many batches at the start run alone on all processors; so do those left over at the end.

    An error of `work` is raised in place of its result; batches that have not started by then never do.
    """
    threads, remaining = _current_threads(), len(batches) - sequential
    streams = parallel_batches(remaining)
    end = sequential + (remaining // streams * streams if streams > 1 else 0)
    yield from map(work, batches[:sequential])
    if end > sequential:
        yield from _in_streams(work, batches[sequential:end], streams, threads)
    yield from map(work, batches[end:])


def _current_threads() -> int:
    with _START_LOCK:
        return torch.get_num_threads()


def _in_streams(
    work: Callable[[Batch], Result], batches: Sequence[Batch], streams: int, threads: int
) -> Iterator[Result]:
    started, all_started = threading.Semaphore(0), threading.Event()
    usual: list[int] = []  # the thread count of a new thread

    def begin() -> None:
        usual.append(torch.get_num_threads())  # read first, or PyTorch would overwrite what is set next
        torch.set_num_threads(threads // streams)
        started.release()
        all_started.wait()  # no thread takes a second batch before all have started

    executor = ThreadPoolExecutor(streams, "pellucid-stream", begin)
    futures: deque[Future[Result]] = deque()
    try:
        with _START_LOCK:
            try:
                futures.extend(executor.submit(inference_mode()(work), one) for one in batches[:streams])
                for _ in range(streams):
                    started.acquire()
            finally:
                torch.set_num_threads(usual[0] if usual else threads)
        all_started.set()
        for one in batches[streams:]:
            futures.append(executor.submit(inference_mode()(work), one))
            yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        all_started.set()
        executor.shutdown(cancel_futures=True)
