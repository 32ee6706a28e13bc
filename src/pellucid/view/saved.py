"""A page or a drawing as a file, whose name says which of them it is."""

import os
from collections.abc import Callable
from pathlib import Path

from pellucid.files import check_suffix, target_of, write_atomically


def save_file(path: str | os.PathLike[str], suffix: str, content_of: Callable[[], bytes]) -> Path:
    """Writes what is made: beside its place first, then moved there. InputError for another ending, before it is."""
    check_suffix("path", path, suffix)
    content = content_of()
    return write_atomically(target_of(path), lambda file: file.write(content))
