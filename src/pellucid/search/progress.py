"""How far a long work has come, for whoever waits at a terminal."""

import os
from collections.abc import Sized
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from pellucid.search.corpus import Corpus
from pellucid.text.rows import OBJECTS, TABLES


def bar(total: int | None, what: str, progress: bool | None) -> Any:
    """A bar on stderr, once the work has lasted a second.  progress: None shows it where stderr is a terminal."""
    hidden = None if progress is None else not progress
    return tqdm(total=total, unit=" rows", unit_scale=False, desc=what, disable=hidden, leave=False, delay=1.0)


def expected(corpus: Corpus) -> int | None:
    """About how many rows a corpus has, where that is known without reading it: a table has at most one in each line.
    None where nobody knows; long texts become several rows, and the bar then goes beyond it."""
    source = corpus.source
    if not isinstance(source, str | os.PathLike):
        return len(source) if isinstance(source, Sized) else None
    try:
        path = Path(source).expanduser()
        if path.suffix.lower() not in (*TABLES, *OBJECTS) or not path.is_file():
            return None
        with path.open("rb") as file:
            ends = sum(part.count(b"\n") for part in iter(lambda: file.read(2**20), b""))
    except (OSError, RuntimeError):  # whoever reads it says what is wrong
        return None
    return max(ends - (path.suffix.lower() in TABLES), 1)
