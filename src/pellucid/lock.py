"""Locks between processes: the one door to `filelock`. Conversions (`checkpoints/converted.py`) use the hub's own lock
instead, which also works on file systems that cannot lock."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pellucid.errors import InputError
from pellucid.files import cannot_write


@contextlib.contextmanager
def exclusive_lock(path: Path, locked_message: Callable[[], str], timeout: float = 0.0) -> Iterator[None]:
    """Holds a lock file against all other processes for the duration of the block; a process that died holds none.

    locked_message: returns the message for when another process holds it.  timeout: seconds to wait for that process.
    Raises InputError with that message, and where the file cannot be written.
    """
    from filelock import FileLock, Timeout  # takes longer to import than most commands run

    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        _check_writable(path)  # the library reports a path that cannot be created as a held lock
        raise InputError(locked_message()) from None
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield
    finally:
        lock.release()


def _check_writable(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
    except OSError as error:
        raise cannot_write(path, error) from error
