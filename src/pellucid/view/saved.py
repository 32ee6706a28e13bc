"""A page or a drawing as a file, whose name says which of them it is."""

import os
from collections.abc import Callable
from pathlib import Path

from pellucid.files import check_ending, target_of, write_whole


def saved(path: str | os.PathLike[str], ending: str, make: Callable[[], bytes]) -> Path:
    """Writes what is made: beside its place first, then moved there. InputError for another ending, before it is."""
    check_ending("path", path, ending)
    content = make()
    return write_whole(target_of(path), lambda file: file.write(content))
