"""What a fork must wait for: SQLite locks what all its connections share, and where a thread that is within it does not
exist in the child, those locks stay shut there for ever."""

import os
import threading


class _Undivided:
    """Many threads may be inside at once, none twice; a fork waits until none is but the thread that forks."""

    def __init__(self) -> None:
        self._door, self._free, self._inside = threading.Lock(), threading.Condition(threading.Lock()), list[int]()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._close, after_in_parent=self._open, after_in_child=self._open)

    def __enter__(self) -> None:
        with self._door, self._free:
            self._inside.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._free:
            self._inside.remove(threading.get_ident())
            self._free.notify_all()

    def _close(self) -> None:
        """Both locks are held over the fork, so that nobody else holds one in the child."""
        self._door.acquire()
        self._free.acquire()
        own = {threading.get_ident()}
        self._free.wait_for(lambda: own.issuperset(self._inside))

    def _open(self) -> None:
        self._free.release()
        self._door.release()


undivided = _Undivided()
"""Around every call of SQLite that others may make at the same time."""
