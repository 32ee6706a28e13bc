"""Rows from files, each with its line: tables, JSON lines, plain lines. Anything odd is reported, not guessed."""

import csv
import itertools
import json
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pellucid.errors import (
    Argument,
    InputError,
    Placeholder,
    did_you_mean,
    format_count,
    join_names,
    normalize_nfc,
    shorten,
)
from pellucid.files import json_error_text, unique_keys
from pellucid.text.lines import lines

MAX_FIELD_CHARACTERS = 16 * 2**20
"""Characters of one field of a table."""

TABLE_SUFFIXES, JSON_LINES_SUFFIXES = (".csv", ".tsv"), (".jsonl", ".ndjson")
COLUMN_SUFFIXES = TABLE_SUFFIXES + JSON_LINES_SUFFIXES
"""Suffixes of files whose texts are in columns."""
PLAIN = (".txt", ".text", ".md", ".markdown", ".rst", ".log", ".json", ".html", ".xml", ".tex")
"""Common suffixes of plain text files; files with any other are read as well."""

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
PLAIN_COLUMN = "text"
"""The name of the only field of a plain line."""

_Found = TypeVar("_Found")


class Row(NamedTuple):
    """line: where it begins in the file, from 1.  fields: by column; strings in a table, any value in JSON lines."""

    line: int
    fields: dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """The rows of a file; each iteration reads it anew, one row at a time.

    columns: of a table, from its first line; None where each row has its own.  delimiter: between its fields.
    skip_bad: skip invalid rows and list them, with their line, in `skipped`; else the first one is an error.
    text_lines: the line of each row that `texts` has yielded.
    """

    path: Path
    encoding: str
    columns: tuple[str, ...] | None
    delimiter: str | None
    skip_bad: bool = False
    skipped: list[str] = field(default_factory=list)
    text_lines: "array[int]" = field(default_factory=lambda: array("Q"))

    def __iter__(self) -> Iterator[Row]:
        self.skipped.clear()
        del self.text_lines[:]
        read = (
            _table_rows
            if self.delimiter
            else _json_rows
            if self.path.suffix.lower() in JSON_LINES_SUFFIXES
            else _plain_rows
        )
        return self._require_rows(read(self))

    def column(self, name: str) -> Iterator[str]:
        """The texts of one column, verbatim: "NA", "null" and "" are texts."""
        return (texts[0] for texts in self.texts(name))

    def texts(self, *names: str, numbers: Collection[str] = ()) -> Iterator[tuple[Any, ...]]:
        """The texts of some columns, row by row; a row without one of them, or with another value there, is invalid.

        numbers: columns that may also hold numbers, as JSON has them.
        Raises InputError for a column that the table does not have.
        """
        for name in names:
            if self.columns is not None and matching_name(name, self.columns) not in self.columns:
                missing, known = f"{shorten(repr(name))}{_near_names(name, self.columns)}", join_names(self.columns)
                raise InputError(f"{self.path} has no column {missing}; its columns: {known}")
        return self._require_rows(self._fitting_texts(names, numbers))

    def skip_or_refuse(self, line: int, fault: str) -> None:
        """Records an invalid row as skipped, or raises InputError for it."""
        if not self.skip_bad:
            raise InputError(f"{self.path}, line {line}: {fault}")
        self.skipped.append(f"line {line}: {fault}")

    def location(self, number: int) -> str:
        """The file and line of the row that `texts` has yielded as number 0, 1, ..., for messages."""
        return f"{self.path}, line {self.text_lines[number]}"

    def _fitting_texts(self, columns: tuple[str, ...], numbers: Collection[str]) -> Iterator[tuple[Any, ...]]:
        for row in self:
            names = [matching_name(name, row.fields) for name in columns]
            faults = (_fault(row, name, column in numbers) for name, column in zip(names, columns))
            fault = next(filter(None, faults), None)
            if fault is None:
                self.text_lines.append(row.line)
                yield tuple(row.fields[name] for name in names)
            else:
                self.skip_or_refuse(row.line, fault)

    def _require_rows(self, rows: Iterator[_Found]) -> Iterator[_Found]:
        """The rows; raises InputError where there are none."""
        first = next(rows, None)
        if first is None:
            left_out = f" that fit ({join_names(self.skipped, 2)})" if self.skipped else ""
            raise InputError(f"{self.path} holds no rows{left_out}")
        return itertools.chain([first], rows)


def read_rows(path: Path, *, encoding: str = "utf-8", skip_bad: bool = False) -> Rows:
    """A file as rows: .csv and .tsv by the columns of their first line, .jsonl by its keys, all others as plain lines.

    The delimiter of a .csv is a comma, semicolon, tab or bar, found in the first line and returned in `delimiter`.
    Raises InputError for an empty file, one that is not text, and columns of the same name.
    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        return Rows(
            path, encoding, None if path.suffix.lower() in JSON_LINES_SUFFIXES else (PLAIN_COLUMN,), None, skip_bad
        )
    first = next((line for line in lines(path, encoding) if line.strip()), None)
    if first is None:
        raise InputError(f"{path} is empty: expected a line of column names, and rows")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(first)
    _, names = next(_records(path, encoding, delimiter))
    check_unique_columns(str(path), names)
    return Rows(path, encoding, tuple(names), delimiter, skip_bad)


def check_unique_columns(table: str, names: Sequence[str]) -> None:
    """Raises InputError for a table with several columns of one name, of which only one would be read."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise InputError(
            f"{table} has more than one column {join_names(map(repr, twice))}: rename them, so that names are unique"
        )


def check_column(path: Path, column: str | None) -> None:
    """Raises InputError for a table without a column name, and a column name without a table."""
    table = path.suffix.lower() in COLUMN_SUFFIXES
    if table and column is None:
        raise InputError(
            f"{path} is a table: name the column with the texts (", Argument("column", Placeholder("NAME")), ")"
        )
    if column is not None and not table:
        raise InputError(f"{path} is not a table, so it has no column {column!r}: expected .csv, .tsv or .jsonl")


def _plain_rows(rows: Rows) -> Iterator[Row]:
    for number, line in enumerate(lines(rows.path, rows.encoding), 1):
        yield Row(number, {PLAIN_COLUMN: line.rstrip("\r\n")})


def _table_rows(rows: Rows) -> Iterator[Row]:
    names, delimiter = rows.columns or (), rows.delimiter or ","
    for line, record in itertools.islice(_records(rows.path, rows.encoding, delimiter), 1, None):
        if len(record) != len(names):
            rows.skip_or_refuse(line, f"{format_count(len(record), 'field')}, expected {len(names)}")
        elif len(names) > 1 and tuple(record) == names:  # in a table of one column its name may be a text
            rows.skip_or_refuse(
                line, "the names of the columns are repeated here, as between tables put together: remove them"
            )
        else:
            yield Row(line, dict(zip(names, record)))


def _records(path: Path, encoding: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a table, its first line included, each with the line where it begins; empty lines are skipped."""
    csv.field_size_limit(max(MAX_FIELD_CHARACTERS, csv.field_size_limit()))  # process-wide, and may be larger already
    reader = csv.reader(lines(path, encoding), delimiter=delimiter, strict=True)
    line = 0
    try:
        for record in reader:
            if delimiter == "\t" and any("\t" in field and "\n" in field for field in record):
                end = reader.line_num
                raise InputError(
                    f"{path}: lines {line + 1} to {end} are one row, for a quote opens in the first and closes in the "
                    'last: where quotes are letters, write each as "" within a field that two enclose'
                )
            if record:
                yield line + 1, record
            line = reader.line_num
    except csv.Error as error:
        raise InputError(f"{path}, line {line + 1}: {_csv_error_text(error)}") from error


def _csv_error_text(error: csv.Error) -> str:
    if "field larger" in str(error):
        return f"a field of more than {MAX_FIELD_CHARACTERS // 2**20} MiB; a quote may be missing"
    return "a quote is never closed" if "unexpected end" in str(error) else str(error)


def _delimiter(first: str) -> str:
    """The most frequent delimiter in the first line, outside of quotes."""
    bare = re.sub(r'"[^"]*"', "", first)
    return max(DELIMITERS, key=bare.count)


def _json_rows(rows: Rows) -> Iterator[Row]:
    for number, line in enumerate(lines(rows.path, rows.encoding), 1):
        if not line.strip():
            continue
        try:
            found: Any = json.loads(line.rstrip("\r\n"), object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            rows.skip_or_refuse(number, json_error_text(error))
            continue
        if isinstance(found, dict):
            yield Row(number, found)
        else:
            rows.skip_or_refuse(number, f"{type(found).__name__}, expected an object with names and values")


def _fault(row: Row, name: str, number: bool) -> str | None:
    """Why a row has no valid value for a column; None where it has one."""
    if name not in row.fields:
        return f"no {shorten(repr(name))}{_near_names(name, row.fields)}"
    value = row.fields[name]
    if isinstance(value, str) or (number and isinstance(value, int | float | Decimal) and not isinstance(value, bool)):
        return None
    return f"{name!r} is {type(value).__name__}, expected a {'number or a string' if number else 'string'}"


def matching_name(name: str, names: Collection[str]) -> str:
    """A name as spelled in `names`: itself, or one that is equal after Unicode normalisation (NFC)."""
    return name if name in names else next((one for one in names if normalize_nfc(one) == normalize_nfc(name)), name)


def _near_names(name: str, names: Iterable[str]) -> str:
    """A hint of similar names, those that differ only in case first."""
    same = [one for one in names if one.lower() == name.lower()]
    return f" (did you mean {', '.join(same)}?)" if same else did_you_mean(name, names)


def base_value(value: Any) -> Any:
    """Converts an instance of a subclass of str, int or float, such as an Enum member, to the plain value that JSON
    writes; its `str` may be a name. Other values are returned unchanged."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def is_missing(value: Any) -> bool:
    """Whether a value is missing: None, or the NaN, NA or NaT of data frames."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return (isinstance(value, float | Decimal) or getattr(value, "ndim", None) == 0) and bool(value != value)
