"""Which files are opened: an audit hook of the interpreter records every file that Python opens."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_recordings: list[list[Path]] = []


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _recordings and isinstance(arguments[0], str | bytes | os.PathLike):
        _recordings[-1].append(Path(os.fsdecode(arguments[0])))


sys.addaudithook(_record)  # permanent: audit hooks cannot be removed


@contextlib.contextmanager
def opened_paths() -> Iterator[list[Path]]:
    """The path of each file that Python opens inside the block, as it was requested."""
    _recordings.append([])
    try:
        yield _recordings[-1]
    finally:
        _recordings.pop()
