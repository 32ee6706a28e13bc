"""Parallel text files: line 7 of one file corresponds to line 7 of the other."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from pellucid.errors import InputError, format_count
from pellucid.text.lines import lines
from pellucid.text.rows import COLUMN_SUFFIXES, Row


def read_parallel(paths: Sequence[Path], names: Sequence[str], *, encoding: str = "utf-8") -> Iterator[Row]:
    """The lines of several files side by side, each under the name for its file.

    Lines that are empty in all files are skipped, as translation corpora have them between documents.
    Raises InputError for a table, and where a file ends before the others.
    """
    if tables := [path for path in paths if path.suffix.lower() in COLUMN_SUFFIXES]:
        raise InputError(f"{tables[0]} is a table, expected lines of plain text: put all columns into one table")
    if len(paths) != len(names):
        raise InputError(
            f"data has {format_count(len(paths), 'file')}, expected {len(names)}: one each for {', '.join(names)}"
        )
    read = itertools.zip_longest(*(lines(path, encoding) for path in paths))
    for number, each in enumerate(read, 1):
        if None in each:
            short = paths[each.index(None)]
            long = next(path for path, line in zip(paths, each) if line is not None)
            raise InputError(f"{short} ends after line {number - 1}, and {long} continues: their lines do not pair")
        texts = [line.rstrip("\r\n") for line in each]
        if any(text.strip() for text in texts):
            yield Row(number, dict(zip(names, texts)))
