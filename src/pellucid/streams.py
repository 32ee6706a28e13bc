"""Batches side by side: each in a thread of its own, with its share of the processors.

Two batches by one processor each are done sooner than one after the other by both: no product is cut in two, and nobody
waits for the other at every step. Most is gained where the processors are lent by a machine that has other work for
them as well.
"""

import ctypes
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from pellucid.errors import InputError
from pellucid.machine import available_cores, inference_mode

Batch = TypeVar("Batch")
Result = TypeVar("Result")

_START_LOCK = threading.Lock()
"""Held while streams begin: PyTorch gives a thread its number when it is first asked, and for this moment that would be
the number of a stream, for as long as that thread lasts."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_START_LOCK.acquire, after_in_parent=_START_LOCK.release, after_in_child=_START_LOCK.release
    )


@functools.cache
def use_threads() -> int:
    """Sets PyTorch's threads once per process, from `PELLUCID_THREADS` or by never taking more than there are, or
    than OpenMP gives. A fork has one from then on: OpenMP's stay behind, and whoever asks for more waits for ever."""
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
    """Threads that OpenMP, in which PyTorch works, always gives, by OMP_THREAD_LIMIT, OMP_DYNAMIC and
    OMP_MAX_ACTIVE_LEVELS. oneDNN shares a product among as many as it has asked for, and where there are fewer leaves
    the other parts as they were in memory, without a word."""
    if sys.platform != "linux":
        return sys.maxsize
    loaded = ctypes.CDLL(None)  # what this process has loaded, PyTorch's OpenMP among it
    try:
        if loaded.omp_get_dynamic() or not loaded.omp_get_max_active_levels():
            return 1
        return loaded.omp_get_thread_limit()
    except AttributeError:  # PyTorch was built without it
        return sys.maxsize


def parallel_batches(count: int) -> int:
    """How many of so many batches are worked on at a time: as many as share the processors evenly."""
    threads = _current_threads()
    return max(n for n in range(1, threads + 1) if threads % n == 0 and n <= max(count, 1))


@inference_mode()
def parallel_map(work: Callable[[Batch], Result], batches: Sequence[Batch], *, sequential: int = 0) -> Iterator[Result]:
    """What `work` makes of each batch, in their order, without gradients.

    As many as share the processors evenly are worked on at a time, one of them ahead of what was asked for.

    sequential: how many of the first have all processors, one after the other; so have those left over in the end.

    An error of `work` is raised where its answer would stand; batches that have not begun by then never do.
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
    usual: list[int] = []  # what a thread has that begins

    def begin() -> None:
        usual.append(torch.get_num_threads())  # asked first, or PyTorch would write it over what is set next
        torch.set_num_threads(threads // streams)
        started.release()
        all_started.wait()  # nobody is free for a second batch before everyone has begun

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
