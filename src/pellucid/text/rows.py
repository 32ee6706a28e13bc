"""Rows from files, each with its line: tables, objects of JSON, plain lines. What looks odd is named, not guessed."""

import csv
import itertools
import json
import re
import sys
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
from pellucid.files import unique_keys
from pellucid.text.lines import lines

MAX_FIELD_CHARACTERS = 16 * 2**20
"""Characters of one field of a table."""

TABLE_SUFFIXES, JSON_LINES_SUFFIXES = (".csv", ".tsv"), (".jsonl", ".ndjson")
PLAIN = (".txt", ".text", ".md", ".markdown", ".rst", ".log", ".json", ".html", ".xml", ".tex")
"""How the name of a file of plain text often ends; any other is read as well."""

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
PLAIN_COLUMN = "text"
"""What the one field of a plain line is called."""

_Found = TypeVar("_Found")


class Row(NamedTuple):
    """line: where it begins in the file, from 1.  fields: by column; of a table all are texts, of JSON anything."""

    line: int
    fields: dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """The rows of a file; each time they are asked for, it is read anew, one row at a time.

    columns: of a table, by its first line; None where each row has its own.  delimiter: what stands between them.
    skip_bad: leave out rows that do not fit, and list them, with their line, in `skipped`; else the first is an error.
    text_lines: the line of each row whose texts were given.
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
        """The texts of one column, as they stand: "NA", "null" and "" are texts."""
        return (texts[0] for texts in self.texts(name))

    def texts(self, *names: str, numbers: Collection[str] = ()) -> Iterator[tuple[Any, ...]]:
        """The texts of some columns, row by row; a row that lacks one, or has no text there, does not fit.

        numbers: those of the names under which a number may stand as well, as JSON has it.
        Raises InputError for a column that the table has not.
        """
        for name in names:
            if self.columns is not None and matching_name(name, self.columns) not in self.columns:
                missing, known = f"{shorten(repr(name))}{_near_names(name, self.columns)}", join_names(self.columns)
                raise InputError(f"{self.path} has no column {missing}; its columns: {known}")
        return self._require_rows(self._fitting_texts(names, numbers))

    def skip_or_refuse(self, line: int, fault: str) -> None:
        """Takes note of a row that does not fit, or refuses it."""
        if not self.skip_bad:
            raise InputError(f"{self.path}, line {line}: {fault}")
        self.skipped.append(f"line {line}: {fault}")

    def location(self, number: int) -> str:
        """Where the texts stand that were given as number 0, 1, ..., in words."""
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
        """The same rows; raises InputError where there are none."""
        first = next(rows, None)
        if first is None:
            left_out = f" that fit ({join_names(self.skipped, 2)})" if self.skipped else ""
            raise InputError(f"{self.path} holds no rows{left_out}")
        return itertools.chain([first], rows)


def read_rows(path: Path, *, encoding: str = "utf-8", skip_bad: bool = False) -> Rows:
    """A file as rows: .csv and .tsv by the columns of their first line, .jsonl by its keys, all others as plain lines.

    The fields of a .csv may stand between commas, semicolons, tabs or bars; the first line tells, and `delimiter` says.
    Raises InputError for a file without rows, one that is no text, and columns that cannot be told apart.
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
    """Refuses a table with several columns of one name, of which one alone would be read."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise InputError(
            f"{table} has more than one column {join_names(map(repr, twice))}: rename them, so that names are unique"
        )


def check_column(path: Path, column: str | None) -> None:
    """Refuses a table without a column, and a column of what is no table."""
    table = path.suffix.lower() in (*TABLE_SUFFIXES, *JSON_LINES_SUFFIXES)
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
        elif len(names) > 1 and tuple(record) == names:  # a table of one column may hold its name as a word
            rows.skip_or_refuse(
                line, "the names of the columns are repeated here, as between tables put together: remove them"
            )
        else:
            yield Row(line, dict(zip(names, record)))


def _records(path: Path, encoding: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a table, the first line among them, with the line where each begins; empty lines are none."""
    csv.field_size_limit(
        max(MAX_FIELD_CHARACTERS, csv.field_size_limit())
    )  # of the whole process, which may have a greater one
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
    """What most often stands between the names of the first line, outside of quotes."""
    bare = re.sub(r'"[^"]*"', "", first)
    return max(DELIMITERS, key=bare.count)


def _json_rows(rows: Rows) -> Iterator[Row]:
    for number, line in enumerate(lines(rows.path, rows.encoding), 1):
        if not line.strip():
            continue
        try:
            found: Any = json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            rows.skip_or_refuse(number, _json_error_text(error))
            continue
        if isinstance(found, dict):
            yield Row(number, found)
        else:
            rows.skip_or_refuse(number, f"{type(found).__name__}, expected an object with names and values")


def _json_error_text(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "lists or objects nested too deeply: write them as a string"
    if "set_int_max_str_digits" in str(error):
        return f"a number of more than {sys.get_int_max_str_digits():,} digits: write it as a string"
    return f"not JSON: {error}"


def _fault(row: Row, name: str, number: bool) -> str | None:
    """Why a row has no text of this name, or no number either."""
    if name not in row.fields:
        return f"no {shorten(repr(name))}{_near_names(name, row.fields)}"
    value = row.fields[name]
    if isinstance(value, str) or (number and isinstance(value, int | float | Decimal) and not isinstance(value, bool)):
        return None
    return f"{name!r} is {type(value).__name__}, expected a {'number or a string' if number else 'string'}"


def matching_name(name: str, names: Collection[str]) -> str:
    """A name as it stands among others: itself, or one that looks the same, of letters and accents apart."""
    return name if name in names else next((one for one in names if normalize_nfc(one) == normalize_nfc(name)), name)


def _near_names(name: str, names: Iterable[str]) -> str:
    """Near names; one that differs in its letters' case is nearest."""
    same = [one for one in names if one.lower() == name.lower()]
    return f" (did you mean {', '.join(same)}?)" if same else did_you_mean(name, names)


def base_value(value: Any) -> Any:
    """A text or a number of a class of its own, such as a member of an Enum, as the text or the number that it is: as
    JSON writes it, where `str` may say its name. All else as it was."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def is_missing(value: Any) -> bool:
    """Whether there is no value: None, or the NaN, NA and NaT by which data frames say so."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return (isinstance(value, float | Decimal) or getattr(value, "ndim", None) == 0) and bool(value != value)
