"""Texts from files: one per line, or a column of a table. Strict: what looks odd is named by its line, not guessed."""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pellucid.errors import InputError, near

MOST_FIELD = 16 * 2**20
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "a zip file (or .xlsx)",
    b"\x89PNG": "a PNG picture",
    b"%PDF": "a PDF",
    b"PAR1": "a Parquet file",
}


def read_texts(path: Path, column: str | None = None) -> Iterator[str]:
    """The texts of a file: a column of .csv, .tsv or .jsonl, or the lines of anything else."""
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return (row[column] for row in _table(path, column)) if column else _needs_column(path)
    if kind in (".jsonl", ".ndjson"):
        return _json_column(path, column) if column else _needs_column(path)
    if column:
        raise InputError(f"{path} is no table, so it has no column {column!r}: expected .csv, .tsv or .jsonl")
    return (line.rstrip("\r\n") for line in _lines(path))


def _needs_column(path: Path) -> Iterator[str]:
    raise InputError(f"{path} is a table: name the column with the texts (--column NAME)")


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with path.open("rb") as file:
            start = file.read(4)
        for magic, name in _MAGIC.items():
            if start.startswith(magic):
                raise InputError(f"{path} looks like {name}, expected text")
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, line in enumerate(file, 1):
                if "\0" in line:
                    raise InputError(
                        f"{path} holds a NUL in line {number}: it is binary or UTF-16, expected UTF-8 text"
                    )
                yield line
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (after line {number}, byte 0x{error.object[error.start]:02x}): convert it first"
        ) from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _table(path: Path, column: str | None) -> Iterator[dict[str, str]]:
    csv.field_size_limit(MOST_FIELD)
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise InputError(f"{path} is empty: expected a line of column names")
    delimiter = max(",;\t|", key=first.count) if path.suffix.lower() == ".csv" else "\t"
    reader = csv.reader(_chain(first, lines), delimiter=delimiter, strict=True)
    try:
        names = next(reader)
        if column not in names:
            raise InputError(
                f"{path} has no column {column!r}{near(str(column), names)}; its columns: {', '.join(names)}"
            )
        for row in reader:
            if len(row) != len(names) and row:
                raise InputError(f"{path}, line {reader.line_num}: {len(row)} fields, expected {len(names)}")
            if row:
                yield dict(zip(names, row))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from error


def _chain(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _json_column(path: Path, column: str | None) -> Iterator[str]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict) or column not in row:
            raise InputError(
                f"{path}, line {number}: no {column!r}{near(str(column), row if isinstance(row, dict) else ())}"
            )
        if not isinstance(row[column], str):
            raise InputError(f"{path}, line {number}: {column!r} is {type(row[column]).__name__}, expected a string")
        yield row[column]
