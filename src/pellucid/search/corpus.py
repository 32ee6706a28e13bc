"""The corpus of an index: rows of tables, files, or an iterable of texts, each with an id and metadata."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pellucid.config.checks import check_bool, is_list_like, plain_number, unwrap_arrow
from pellucid.errors import Argument, InputError, Item, MessagePart, Placeholder, did_you_mean, join_names, shorten
from pellucid.files import digest_of, file_errors
from pellucid.paths import path_text
from pellucid.search.entry import Entry
from pellucid.search.files import find_files, read_text
from pellucid.search.ids import checked_id
from pellucid.search.metadata import metadata_json
from pellucid.text.data_frames import rows_of_frame
from pellucid.text.lines import python_encoding, size_and_time
from pellucid.text.rows import COLUMN_SUFFIXES, base_value, check_column, is_missing, matching_name, read_rows
from pellucid.text.truncation import clean_text, replace_surrogates

SpanFunction = Callable[[str, int], list[tuple[int, int]]]
"""(text, its number) -> the spans of its passages, in characters; one or none for a text that is short enough."""

READ_OPTIONS = ("column", "id_column", "encoding", "skip_bad")
"""The options of reading a corpus, by their names in `Corpus`."""


def column_named(argument: str, column: Any) -> str | None:
    """The name of a column, which may be its number. Raises InputError for anything else."""
    column = plain_number(column)
    if type(column) is not int and not isinstance(column, str | None):
        raise InputError(Argument(argument), f" is {type(column).__name__}, expected the name of a column")
    return None if column is None else str(base_value(column))


@dataclass
class Corpus:
    """Texts with their ids, read one at a time.

    source: a path, a pattern such as "notes/*.md", several paths, a folder, a data frame (pandas, polars, Arrow), or an
        iterable of texts, pairs of id and text, or mappings.
    column: the field of the text.  id_column: that of the id; by default texts are numbered from 1, and files have
        their path as id.  encoding, skip_bad: as for `read_rows`.
    number_from, is_taken: the first number, and whether an id is in use, so that no text is given it.
    has_id: whether the index has a text with this id.
    skipped: what was skipped and why, after reading.  empty: the number of empty texts.  numbered: the last number.
    """

    source: Any
    column: str | None = None
    id_column: str | None = None
    encoding: str = "utf-8"
    skip_bad: bool = False
    skipped: list[str | InputError] = field(default_factory=list)
    delimiter: str | None = None
    number_from: int = 1
    is_taken: Callable[[str], bool] = lambda id_: False
    has_id: Callable[[str], bool] = lambda id_: False
    empty: int = 0
    numbered: int = 0
    digests: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_bool("skip_bad", self.skip_bad)
        if isinstance(source := self.source, str | os.PathLike):
            self.source = (str if isinstance(source, str) else Path)(path_text(source))
        python_encoding(self.encoding)
        self.column = column_named("column", self.column)
        self.id_column = column_named("id_column", self.id_column)

    def __iter__(self) -> Iterator[Entry]:
        self.skipped.clear()
        self.digests.clear()
        self.empty = 0
        if not self._source_patterns():
            return self._checked(self._from_items())
        if not (paths := self._paths()):
            raise InputError(f"{self.source} holds no files", self._skipped_note())
        if len(paths) == 1:
            size_and_time(paths[0])  # a missing file is the first error to report
        tables = [path for path in paths if path.suffix.lower() in COLUMN_SUFFIXES]
        named = self.id_column if self.column is None else self.column
        if tables and (named is not None or len(tables) == len(paths)):
            if other := next((path for path in paths if path not in tables), None):
                check_column(other, named)
            numbers = self._numbers()  # continue from one table to the next
            return self._checked(entry for path in tables for entry in self._table(path, numbers))
        if named is not None:
            check_column(paths[0], named)
        return self._checked(self._files(paths))

    def _checked(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        number = 0
        for number, entry in enumerate(entries, 1):
            text = clean_text(entry.text, number - 1, "text")
            self.empty += not text.strip()
            if not entry.id:
                raise InputError(Item(number - 1, "text"), " has an empty id: give each its own, or none")
            yield entry if text is entry.text else replace(entry, text=text)
        if number == self.empty:
            why = self._skipped_note(), ": there is nothing to put into the index"
            raise InputError("the corpus holds no texts", *why)

    def _skipped_note(self) -> MessagePart:
        """The first skipped item and the number of further ones, in parentheses; empty where there are none."""
        notes: list[str | InputError] = [*self.skipped, *([f"{self.empty:,} that are empty"] if self.empty else [])]
        more = f" and {len(notes) - 1:,} more" if len(notes) > 1 else ""
        return (" (left out: ", notes[0], f"{more})") if notes else ""

    def manifest_facts(self) -> dict[str, Any]:
        """The facts of the corpus for the manifest, after reading: for files, their digests."""
        named = self._source_patterns()
        name = join_names(replace_surrogates(str(one)) for one in named) if named else type(self.source).__name__
        facts = {"source": name, "column": self.column, "id_column": self.id_column, "encoding": self.encoding}
        return facts | ({"sha256": self.digests} if self.digests else {})

    def _numbers(self) -> Iterator[str]:
        """The ids for texts that have none."""
        for number in itertools.count(self.number_from):
            if not self.is_taken(str(number)):
                self.numbered = number
                yield str(number)

    def _table(self, path: Path, numbers: Iterator[str]) -> Iterator[Entry]:
        if self.column is None:
            named = Argument("column", Placeholder("NAME"))
            raise InputError(f"{path} is a table: name the column with the texts (", named, ")")
        before = size_and_time(path)
        rows = read_rows(path, encoding=self.encoding, skip_bad=self.skip_bad)
        self.delimiter = rows.delimiter
        for name in (self.column, self.id_column):
            if rows.columns is not None and name is not None and matching_name(name, rows.columns) not in rows.columns:
                known = f"{did_you_mean(name, rows.columns)}; its columns: {join_names(rows.columns)}"
                raise InputError(f"{path} has no column {name!r}{known}")
        for row in rows:
            try:
                entry = self._entry(numbers, row.fields)
            except InputError as error:
                rows.skip_or_refuse(row.line, str(error))
            else:
                yield entry
        self.skipped += [f"{path}, {row}" for row in rows.skipped]
        self._check_unchanged(path, before)

    def _check_unchanged(self, path: Path, before: tuple[int, int]) -> None:
        """Raises InputError for a file that was written while it was read: such rows never existed together."""
        with file_errors(path):
            digest = digest_of(path) if path.exists() else ""
        if not digest or size_and_time(path) != before:
            raise InputError(f"{path} was changed while it was read: run this again once nobody writes it")
        self.digests[replace_surrogates(str(path))] = digest

    def _entry(self, numbers: Iterator[str], fields: Mapping[str, Any], prefix: str = "") -> Entry:
        """The entry of a row whose column holds the text; an invalid row takes no number."""
        assert self.column is not None
        column, id_column = matching_name(self.column, fields), self.id_column and matching_name(self.id_column, fields)
        text = "" if column in fields and is_missing(fields[column]) else fields.get(column)
        if not isinstance(text, str):
            missing = f"missing, expected a text{did_you_mean(column, fields)}"
            kind = f"{type(text).__name__}, expected a text" if column in fields else missing
            raise InputError(f"{prefix}{column!r} is {kind}")
        metadata = {name: value for name, value in fields.items() if name != column}
        if id_column is not None and id_column not in fields:
            raise InputError(f"{prefix}no {id_column!r}{did_you_mean(id_column, fields)}")
        what = f"{prefix}its id, in the column {id_column!r},"
        named = id_column and checked_id(fields[id_column], self.has_id, what)
        if any(not isinstance(value, str | int | None) for value in metadata.values()):
            metadata_json(named or text[:40], metadata)  # what cannot be written invalidates only this row
        return Entry(named or next(numbers), text, metadata)

    def _source_patterns(self) -> list[str | Path]:
        """The path or pattern, or several paths; empty for other sources, such as a list of texts."""
        if isinstance(self.source, list | tuple) and all(isinstance(one, Path) for one in self.source):
            return list(self.source)
        return [self.source] if isinstance(self.source, str | Path) else []

    def _paths(self) -> list[Path]:
        """The files of a folder, of patterns, or of several paths, in order."""
        paths: dict[Path, None] = {}
        for one in self._source_patterns():
            files, indexes, closed = find_files(one)
            paths |= dict.fromkeys(files)
            self.skipped += [*(f"{index} is an index" for index in indexes), *closed]
        return list(paths)

    def _files(self, paths: list[Path]) -> Iterator[Entry]:
        """Each file as one text; of several, those that are not text are skipped and listed."""
        for path in paths:
            try:
                text = read_text(path, self.encoding)
            except InputError as error:
                if len(paths) == 1:
                    raise
                self.skipped.append(error)
                continue
            if text.strip():
                yield Entry(replace_surrogates(path.as_posix()), text, {"path": replace_surrogates(path.as_posix())})
            else:
                self.skipped.append(f"{path} is empty")

    def _from_items(self) -> Iterator[Entry]:
        """The entries of a Python object: texts, pairs of id and text, or mappings."""
        # first, since iterating over a data set of `datasets` yields labels as numbers
        source = rows_of_frame(self.source, self.column, self.id_column)
        if source is None and not is_list_like(self.source):
            raise InputError(f"{type(self.source).__name__} was given, expected a file, or something that yields texts")
        source = unwrap_arrow(self.source) if source is None else source
        numbers, place = self._numbers(), -1
        try:
            for place, one in enumerate(source):
                try:
                    entry = self._entry_of_item(f"item {place}", numbers, one)
                except InputError as error:
                    if not self.skip_bad:
                        raise
                    self.skipped.append(error)
                else:
                    yield entry
        except OSError as error:
            raise InputError(f"item {place + 1} could not be read: {error}") from error

    def _entry_of_item(self, location: str, numbers: Iterator[str], one: Any) -> Entry:
        if isinstance(one, str):
            return Entry(next(numbers), one)
        if isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], str):
            return Entry(checked_id(one[0], self.has_id, f"{location}: the id"), one[1])
        if not isinstance(one, Mapping):
            raise InputError(f"{location} is {type(one).__name__}, expected a text, (id, text), or a mapping")
        if self.column is None:
            named = Argument("column", Placeholder("NAME"))
            raise InputError(f"{location} is a mapping: name the field with the text (", named, ")")
        return self._entry(numbers, {str(base_value(name)): value for name, value in one.items()}, f"{location}: ")


@dataclass
class PassageSplitter:
    """Splits long entries into passages, which keep the id of their text, and checks that ids are unique.

    span_function: returns the passages of a text; None for no splitting.
    keep_last: of several texts with one id the last is kept; None where the caller has no such option.
    texts: the number of texts.  rows_by_id: the rows of each id.  replaced: rows of duplicated ids.
    """

    span_function: SpanFunction | None = None
    keep_last: bool | None = None
    texts: int = 0
    rows_by_id: dict[str, range] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)

    def split(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yields the rows."""
        row = 0
        for number, entry in enumerate(entries):
            self._check_duplicate(entry.id, number)
            self.texts = number + 1
            parts = self._parts(entry, number)
            self.rows_by_id[entry.id] = range(row, row + len(parts))
            row += len(parts)
            yield from parts

    def _parts(self, entry: Entry, number: int) -> list[Entry]:
        """The passages of a text; none of an empty one, whose vector would be near to many and mean nothing."""
        if not entry.text.strip():
            return []
        spans = [] if self.span_function is None else self.span_function(entry.text, number)
        if len(spans) <= 1:
            return [entry]
        return [Entry(entry.id, entry.text[first:last], entry.metadata, first, last) for first, last in spans]

    def _check_duplicate(self, id_: str, number: int) -> None:
        if (before := self.rows_by_id.get(id_)) is None:
            return
        if not self.keep_last:
            advice = () if self.keep_last is None else (", or pass ", Argument("on_duplicate", "keep-last"))
            raise InputError(
                f"the id {shorten(repr(id_))} appears twice, again as ", Item(number), ": give each its own", advice
            )
        self.replaced += before
