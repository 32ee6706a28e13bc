"""The rows of one segment: ids, texts and metadata, in one SQLite file that is written once.

SQLite's full-text index (FTS5) finds words, so no second file must be kept consistent with this one.
"""

import contextlib
import functools
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.errors import CorruptFileError, InputError, format_count, normalize_nfc
from pellucid.lazy import cached_property
from pellucid.search.conditions import NUL, SQL_FUNCTIONS, WHERE, Condition
from pellucid.search.connections import close_after, close_dropped
from pellucid.search.entry import Entry, hash_of
from pellucid.search.forks import fork_guard
from pellucid.search.metadata import metadata_json
from pellucid.search.passages import with_terms
from pellucid.text.truncation import replace_surrogates

_TABLES = """
CREATE TABLE rows (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, text TEXT NOT NULL, hash BLOB NOT NULL, metadata TEXT NOT NULL,
    first INTEGER, last INTEGER
);
CREATE VIRTUAL TABLE words USING fts5(terms, content='', tokenize='ascii');
CREATE VIRTUAL TABLE vocabulary USING fts5vocab(words, row);
"""

_WORD_POSITIONS = "CREATE VIRTUAL TABLE temp.standing USING fts5vocab(main, words, instance)"
"""The positions of each word; a temporary table, since the file is read-only."""

_PRAGMAS = "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; PRAGMA temp_store=MEMORY;"
"""For a file that is read."""

_CORRUPT_ROW = "a row is not as it was written"

_BY_ID = "CREATE INDEX by_id ON rows (id)"
"""Created last: sorting all ids at once is faster than inserting each."""


def write_entries(rows: Iterable[Entry], path: Path) -> None:
    """Writes rows, numbered from 0, and the index of their words."""
    with _create_file(path) as connection:
        for i, (r, found) in enumerate(with_terms(rows)):
            id_, text = replace_surrogates(r.id), replace_surrogates(r.text)
            values = (i, id_, text, r.hash, metadata_json(r.id, r.metadata), r.first, r.last)
            with fork_guard:
                connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", values)
                connection.execute("INSERT INTO words(rowid, terms) VALUES (?, ?)", (i, " ".join(found)))


def write_numbered_entries(rows: int, path: Path) -> None:
    """Writes this many rows without texts, whose ids count from 1; in one statement, since there may be millions."""
    with _create_file(path) as connection, fork_guard:
        connection.execute(
            "WITH RECURSIVE counted(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM counted WHERE i + 1 < ?) "
            "INSERT INTO rows SELECT i, CAST(i + 1 AS TEXT), '', ?, '{}', NULL, NULL FROM counted",
            (rows, hash_of("")),
        )


@contextlib.contextmanager
def _create_file(path: Path) -> Iterator[sqlite3.Connection]:
    """A file with the tables of a segment, to be filled at once; only the writer sees it before it is complete."""
    with fork_guard:
        connection = sqlite3.connect(path, isolation_level=None)
    try:
        with fork_guard:
            connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES)
            connection.execute("BEGIN")
        yield connection
        with fork_guard:
            connection.execute(_BY_ID)
            connection.execute("COMMIT")
    finally:
        with fork_guard:
            connection.close()


def _schema_by_name(schema: Iterable[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The declarations in a file, by name; FTS5's own tables may be declared in any way, as long as they are tables."""
    return {name: (kind, None if str(name).startswith("words_") else sql) for name, kind, sql in schema}


@functools.cache
def _expected_schema() -> dict[str, tuple[Any, ...]]:
    """The declarations in the files of an index: a view or a trigger would be foreign code."""
    with fork_guard, contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_TABLES + _BY_ID)
        return _schema_by_name(connection.execute("SELECT name, type, sql FROM sqlite_schema").fetchall())


class Entries:
    """The rows of a written segment. Threads may share it; they take turns. The file stays open, so that it can still
    be read after another process has removed it.

    rows: the expected number of rows.
    """

    def __init__(self, path: Path, rows: int) -> None:
        self.path, self.rows = path, rows
        self._lock, self._process = threading.Lock(), os.getpid()
        with fork_guard:
            self._open()
        if _schema_by_name(self._run("SELECT name, type, sql FROM sqlite_schema")) != _expected_schema():
            raise self._corrupt_error("its tables are not those of an index")
        if self._run("SELECT count(*), min(number), max(number) FROM rows") != [(rows, 0, rows - 1)]:
            raise self._corrupt_error(f"it does not hold {format_count(rows, 'row')}")

    def _open(self) -> None:
        """Opens the file read-only, with a schema that runs no code."""
        name = f"{self.path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(name, uri=True, check_same_thread=False)
            close_after(self, self._connection)
            self._connection.executescript(_PRAGMAS + _WORD_POSITIONS)
            for (name, many), function in SQL_FUNCTIONS.items():
                self._connection.create_function(name, many, function, deterministic=True)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where the message quotes damaged text
            raise self._corrupt_error(str(error)) from error

    def _run(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that a statement returns."""
        close_dropped()
        try:
            with fork_guard, self._lock:
                if self._process != os.getpid():  # a fork, which must not use its parent's connection
                    if self.path.exists():
                        self._open()
                    self._process = os.getpid()
                return self._connection.execute(statement, values).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._corrupt_error(str(error)) from error

    def _run_in_batches(self, statement: str, values: Sequence[Any], size: int = 500) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement that ends with a column, for all these values of it, in batches for SQLite."""
        for start in range(0, len(values), size):
            part = values[start : start + size]
            yield from self._run(f"{statement} IN ({','.join('?' * len(part))})", part)

    def _corrupt_error(self, why: str) -> CorruptFileError:
        return CorruptFileError(f"{self.path} cannot be read: {why}; restore it, or build the index again")

    def _entry(self, row: Sequence[Any]) -> Entry:
        """The entry of (id, text, metadata, first, last), with types checked."""
        id_, text, metadata, first, last = row
        try:
            known = {} if metadata == "{}" else json.loads(metadata)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._corrupt_error(f"the metadata of a row is not JSON ({error})") from error
        whole = type(id_) is str and type(text) is str and type(known) is dict
        if not whole or not (first is last is None or (type(first) is type(last) is int and 0 <= first <= last)):
            raise self._corrupt_error(_CORRUPT_ROW)
        return Entry(id_, text, known, first, last)

    def get(self, numbers: Sequence[int]) -> list[Entry]:
        """Rows by their numbers, in this order."""
        found: dict[int, Entry] = {}
        statement = "SELECT number, id, text, metadata, first, last FROM rows WHERE number"
        for number, *row in self._run_in_batches(statement, sorted(set(map(int, numbers)))):
            found[number] = self._entry(row)
        try:
            return [found[int(number)] for number in numbers]
        except KeyError as error:
            raise self._corrupt_error(f"row {error} is not there") from error

    def all(self) -> Iterator[Entry]:
        """All rows, in the order of their numbers."""
        start, step = 0, 10_000
        while part := self._run(
            "SELECT id, text, metadata, first, last FROM rows WHERE number >= ? AND number < ? ORDER BY number",
            (start, start + step),
        ):
            yield from map(self._entry, part)
            start += step

    def hashes(self) -> list[bytes]:
        """The hash of each row's text, in the order of their numbers."""
        found = [row[0] for row in self._run("SELECT hash FROM rows ORDER BY number")]
        if not all(isinstance(one, bytes) for one in found):
            raise self._corrupt_error("a text has an invalid hash")
        return found

    def ids(self) -> list[str]:
        """The id of each row, in the order of their numbers."""
        return [row[0] for row in self._run("SELECT id FROM rows ORDER BY number")]

    def rows_with_ids(self, ids: Iterable[str]) -> list[int]:
        """The numbers of the rows with one of these ids."""
        found = self._run_in_batches("SELECT number FROM rows WHERE id", [replace_surrogates(one) for one in ids])
        return sorted(number for (number,) in found)

    @cached_property
    def max_passages(self) -> int:
        """The largest number of rows with the same id, which are passages; deleted ones count."""
        ((found,),) = self._run("SELECT max(many) FROM (SELECT count(*) AS many FROM rows GROUP BY id)")
        return found

    def condition_mask(self, conditions: Sequence[Condition]) -> np.ndarray:
        """Which rows meet all conditions: Bool[ndarray, "rows"]; SQLite reads the metadata of every row for it."""
        parameters: dict[str, Any] = {}
        clauses = [condition.sql(self.column_spellings(condition.column), parameters) for condition in conditions]
        if len(parameters) > (max_variables := self._connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)):
            many = f" has too many values, {len(parameters):,} with their columns, and SQLite takes {max_variables:,}"
            raise InputError(WHERE, f"{many}: use fewer")
        fitting = self._run(f"SELECT number FROM rows WHERE {' AND '.join(clauses)}", parameters)
        mask = np.zeros(self.rows, bool)
        mask[[number for (number,) in fitting]] = True
        return mask

    @cached_property
    def columns(self) -> set[str]:
        """The names of the metadata columns in any row."""
        known = {row[0] for row in self._run(f"SELECT DISTINCT key FROM rows, json_each(metadata) WHERE NOT {NUL}")}
        if not all(isinstance(name, str) for name in known):  # of metadata that is a list or a number
            raise self._corrupt_error(_CORRUPT_ROW)
        others = self._run(f"SELECT id, text, metadata, first, last FROM rows WHERE {NUL}")
        return known.union(*(self._entry(row).metadata for row in others))

    def column_spellings(self, column: str) -> list[str]:
        """The spellings of a column in the rows, in any Unicode form; an ASCII name has only one, and reads no row."""
        if column.isascii():
            return [column]
        return [one for one in self.columns if normalize_nfc(one) == normalize_nfc(column)]

    def values(self, column: str, limit: int = 2_000) -> set[str]:
        """Some of the values of one column, as text."""
        statement = "SELECT DISTINCT CAST(value AS TEXT) FROM rows, json_each(metadata) WHERE key = ? LIMIT ?"
        return {row[0] for row in self._run(statement, (column, limit)) if row[0] is not None}

    def document_frequencies(self) -> dict[str, int]:
        """All words, and the number of rows that contain each."""
        return dict(self._run("SELECT term, doc FROM vocabulary"))

    def rows_with_word(self, word: str) -> np.ndarray:
        """The row of each occurrence of a word, in order: Int64[ndarray, "places"]"""
        ((row_list,),) = self._run("SELECT group_concat(doc) FROM standing WHERE term = ?", (word,))
        rows = np.fromstring(row_list or "", np.int64, sep=",")  # one string instead of half a million tuples
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.rows:
            raise self._corrupt_error("its words refer to rows that do not exist")
        return rows

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of words in each row: Int32[ndarray, "rows"]"""
        sizes = [size for (size,) in self._run("SELECT sz FROM words_docsize ORDER BY id")]
        if not sizes:  # built from vectors, without words
            return np.zeros(self.rows, np.int32)
        if len(sizes) != self.rows or not all(isinstance(one, bytes) and len(one) <= 4 for one in set(sizes)):
            raise self._corrupt_error("it does not say how many words its rows have")
        lengths = {one: _decode_varint(one) for one in set(sizes)}
        return np.fromiter(map(lengths.__getitem__, sizes), np.int32, self.rows)


def _decode_varint(size: bytes) -> int:
    """A varint of FTS5 (https://sqlite.org/fileformat2.html#varint): seven bits a byte, the highest first."""
    return functools.reduce(lambda number, byte: number << 7 | byte & 127, size, 0)
