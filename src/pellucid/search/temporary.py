"""An index that nobody gave a folder: it has one of its own, which goes with the object or with the program."""

import contextlib
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

from pellucid.errors import Argument, Interrupted, Placeholder
from pellucid.files import make_temporary_folder, path_of


@contextlib.contextmanager
def build_folder(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder to build in: the one that was given, or a temporary one, which is gone again where building fails."""
    if out is not None:
        yield path_of(out).absolute()
        return
    folder = make_temporary_folder("pellucid-index-", ", or pass ", Argument("out", Placeholder("FOLDER")))
    try:
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Interrupted):  # which says that something is kept there
            none = "interrupted; nothing is kept, since the index has no folder ("
            raise Interrupted(none, Argument("out"), ")") from error
        raise


def remove_with(index: object, folder: Path) -> None:
    """Takes a temporary folder away when its index is, and when the program ends."""
    weakref.finalize(index, _remove_folder, folder, os.getpid())


def _remove_folder(folder: Path, process: int) -> None:
    """A fork of the process that made the folder leaves it alone."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
