"""One process at a time: the one door to `filelock`. What is converted once (`checkpoints/converted.py`) is held by the
hub's own lock, which does without the system's where a disk has none."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pellucid.errors import InputError
from pellucid.files import cannot_write


@contextlib.contextmanager
def exclusive_lock(path: Path, locked_message: Callable[[], str], timeout: float = 0.0) -> Iterator[None]:
    """Holds a file against every other process for as long as the block lasts; that of a process that died is free.

    locked_message: the sentence for where another one holds it.  timeout: seconds to wait for that one.
    Raises InputError with that sentence, and where the file cannot be written.
    """
    from filelock import FileLock, Timeout  # takes longer to import than most commands take

    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        _check_writable(path)  # the library takes a place where no file can be made for one that somebody holds
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
