"""An index that nobody gave a folder: it has one of its own, which goes with the object or with the program."""

import contextlib
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

from pellucid.errors import Argument, Blank, Interrupted
from pellucid.files import path_of, temporary


@contextlib.contextmanager
def place(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder to build in: the one that was given, or a temporary one, which is gone again where building fails."""
    if out is not None:
        yield path_of(out).absolute()
        return
    folder = temporary("pellucid-index-", ", or pass ", Argument("out", Blank("FOLDER")))
    try:
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Interrupted):  # which says that something is kept there
            none = "interrupted; nothing of it is kept, since it has no folder ("
            raise Interrupted(none, Argument("out"), ")") from error
        raise


def goes_with(index: object, folder: Path) -> None:
    """Takes a temporary folder away when its index is, and when the program ends."""
    weakref.finalize(index, _vanish, folder, os.getpid())


def _vanish(folder: Path, process: int) -> None:
    """A fork of the process that made the folder leaves it alone."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
