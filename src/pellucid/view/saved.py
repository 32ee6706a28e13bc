"""Writes a page or a drawing to a file whose suffix matches its format."""

import os
from collections.abc import Callable
from pathlib import Path

from pellucid.files import write_atomically
from pellucid.paths import check_suffix, target_of


def save_file(path: str | os.PathLike[str], suffix: str, content_of: Callable[[], bytes]) -> Path:
    """Writes the content atomically. Raises InputError for another suffix, before the content is made."""
    check_suffix("path", path, suffix)
    content = content_of()
    return write_atomically(target_of(path), lambda file: file.write(content))
