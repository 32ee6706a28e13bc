"""The temporary folder of an index without one, removed with the object or when the program ends."""

import contextlib
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

from pellucid.errors import Argument, Interrupted, Placeholder
from pellucid.files import make_temporary_folder
from pellucid.paths import path_of


@contextlib.contextmanager
def build_folder(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder to build in: the one passed, or a temporary one, which is removed where building fails."""
    if out is not None:
        yield path_of(out).absolute()
        return
    folder = make_temporary_folder("pellucid-index-", ", or pass ", Argument("out", Placeholder("FOLDER")))
    try:
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Interrupted):  # whose message says that texts are kept there
            none = "interrupted; nothing is kept, since the index has no folder ("
            raise Interrupted(none, Argument("out"), ")") from error
        raise


def remove_with(index: object, folder: Path) -> None:
    """Removes a temporary folder when its index is collected, or when the program ends."""
    weakref.finalize(index, _remove_folder, folder, os.getpid())


def _remove_folder(folder: Path, process: int) -> None:
    """Does nothing in a fork of the process that created the folder."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
