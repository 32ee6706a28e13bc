"""Makes forks wait for calls of SQLite: it locks state shared by all connections, and where a thread holds such a lock,
it stays locked in the child, in which that thread does not exist."""

import os
import threading
import time

TIMEOUT = 10.0
"""Seconds that a fork waits before it proceeds: a signal may have kept a thread from leaving the guard."""


class _ForkGuard:
    """Many threads may be inside at once; a fork waits until none is but the forking thread.

    It has no lock, which a fork, a signal or the collector could find half-acquired: a thread registers and then checks
    for forks, a fork registers and then checks for threads, so that one of the two sees the other.
    """

    def __init__(self) -> None:
        self._inside, self._forking = dict[int, None](), dict[int, None]()  # threads
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
            )

    def __enter__(self) -> None:
        thread = threading.get_ident()
        self._inside[thread] = None
        while self._forking and thread not in self._forking:
            self._inside.pop(thread, None)
            time.sleep(0.0005)
            self._inside[thread] = None

    def __exit__(self, *_: object) -> None:
        self._inside.pop(threading.get_ident(), None)

    def _before_fork(self) -> None:
        thread, deadline = threading.get_ident(), time.monotonic() + TIMEOUT
        self._forking[thread] = None
        while self._inside.keys() - {thread} and time.monotonic() < deadline:
            time.sleep(0.0005)

    def _after_in_parent(self) -> None:
        self._forking.pop(threading.get_ident(), None)

    def _after_in_child(self) -> None:
        self._forking.clear()
        for thread in self._inside.keys() - {threading.get_ident()}:
            self._inside.pop(thread, None)


fork_guard = _ForkGuard()
"""Wraps every call of SQLite that may run concurrently."""
