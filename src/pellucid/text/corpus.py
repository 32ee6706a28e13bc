"""Texts that are read more than once: from files, a chunk at a time, or from a list."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.config.checks import is_list_like, require_list, require_names, unwrap_arrow
from pellucid.errors import InputError, join_names
from pellucid.paths import path_of
from pellucid.text.lines import lines, size_and_time
from pellucid.text.rows import check_column, read_rows
from pellucid.text.truncation import clean_text

CHUNK_CHARACTERS = 2**16
"""Characters of a plain file that are yielded together; lines stay whole."""

FilePaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""One file, several, or none."""


@dataclass
class Corpus:
    """Texts that can be iterated over repeatedly.

    name: for messages.  texts: where there are no files.
    """

    name: str
    files: tuple[Path, ...] = ()
    columns: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def __iter__(self) -> Iterator[str]:
        yield from self.texts
        for path in self.files:
            yield from self._column_texts(path) if self.columns else self._text_parts(path)

    def character_counts(self, normalizer: Any = None) -> Counter[str]:
        """The number of occurrences of each character. Raises InputError where there is only white space.

        normalizer: a normalizer of the library that is applied to the texts first.
        """
        found: Counter[str] = Counter()
        for text in self:
            found.update(text if normalizer is None else normalizer.normalize_str(text))
        if not any(not one.isspace() for one in found):
            raise InputError(f"{self.name}: there is nothing but white space to learn from")
        return found

    def _text_parts(self, path: Path) -> Iterator[str]:
        """A file in chunks, with all line ends converted to "\\n"."""
        part: list[str] = []
        size = 0
        for line in lines(path, self.encoding):
            bare = line.rstrip("\r\n")
            part.append(line if bare == line else f"{bare}\n")
            size += len(line)
            if size >= CHUNK_CHARACTERS:
                yield "".join(part)
                part, size = [], 0
        if part:
            yield "".join(part)

    def _column_texts(self, path: Path) -> Iterator[str]:
        for texts in read_rows(path, encoding=self.encoding).texts(*self.columns):
            yield from texts


def corpus_of(files: FilePaths, texts: Iterable[str] | None, column: str | Sequence[str], encoding: str) -> Corpus:
    """The corpus of the files or the texts passed.

    Raises InputError for neither or both, for anything that is not text, and for a table without a column.
    """
    columns = require_names("column", column, "the name of a column, or several")
    if (files is None) == (texts is None):
        raise InputError("give files, or texts=[...]: one of both" if files is None else "files and texts: give one")
    if texts is not None:
        if not is_list_like(texts):
            raise InputError(f"texts is {type(texts).__name__}, expected several texts; a file goes to files")
        return Corpus("texts", texts=tuple(clean_text(text, i, "text") for i, text in enumerate(unwrap_arrow(texts))))
    paths = [files] if isinstance(files, str | os.PathLike) else require_list("files", files, "names of files")
    if not all(isinstance(path, str | os.PathLike) for path in paths):
        raise InputError("files hold something that is no path, expected names of files; texts go to texts=[...]")
    found = tuple(map(path_of, paths))
    if not found:
        raise InputError("files is empty: there is nothing to learn from")
    for path in found:
        check_column(path, columns[0] if columns else None)
        size_and_time(path)  # raises for anything but a regular file
    return Corpus(join_names(map(str, found), 3), found, columns, encoding=encoding)
