"""Estimates of the amount of work, for progress bars."""

import os
from collections.abc import Sized

from pellucid.config.checks import is_list_like
from pellucid.errors import InputError
from pellucid.paths import path_of
from pellucid.search.corpus import Corpus
from pellucid.text.rows import COLUMN_SUFFIXES, TABLE_SUFFIXES


def estimated_rows(corpus: Corpus) -> int | None:
    """The approximate number of rows of a corpus, where it is known without reading it: a table has at most one in each
    line. None where it is unknown; long texts become several rows, and the bar then exceeds it."""
    source = corpus.source
    if not isinstance(source, str | os.PathLike):
        return len(source) if isinstance(source, Sized) and is_list_like(source) else None
    try:
        path = path_of(source)
        if path.suffix.lower() not in COLUMN_SUFFIXES or not path.is_file():
            return None
        with path.open("rb") as file:
            ends = sum(part.count(b"\n") for part in iter(lambda: file.read(2**20), b""))
    except (OSError, RuntimeError, InputError):  # reading it will raise the error
        return None
    return max(ends - (path.suffix.lower() in TABLE_SUFFIXES), 1)
