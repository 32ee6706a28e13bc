"""Rows of data from files, lists of dicts, dicts of columns and data frames. Each row has its location, and the whole a
digest, so that a run is resumed only with the same data."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.config.checks import is_list_like, unwrap_arrow
from pellucid.errors import Argument, InputError, Placeholder, did_you_mean, join_names, shorten
from pellucid.files import digest_of, file_errors, unique_keys
from pellucid.paths import path_of
from pellucid.text.data_frames import rows_of_frame
from pellucid.text.lines import size_and_time
from pellucid.text.parallel import read_parallel
from pellucid.text.rows import base_value, is_missing, matching_name, read_rows
from pellucid.training.formats import read_known_format
from pellucid.training.provenance import data_source


class Record(dict[str, Any]):
    """A row by column, with its location in the data: "train.csv, line 7" or "row 6"."""

    def __init__(self, fields: Mapping[str, Any], location: str) -> None:
        super().__init__(fields)
        self.location = location

    def __reduce__(self) -> Any:
        return Record, (dict(self), self.location)


def row_location(row: Mapping[str, Any]) -> str:
    """The location of a row for messages; "a row" where it is not known."""
    return row.location if isinstance(row, Record) else "a row"


@dataclass(frozen=True)
class File:
    """A file as it was when it was read.  stamp: its size in bytes and its modification time in nanoseconds."""

    path: Path
    stamp: tuple[int, int]
    digest: str

    @classmethod
    def of(cls, path: Path) -> "File":
        """The file as it is now. Raises NotFoundError and InputError where it cannot be read."""
        stamp = size_and_time(path)  # refuses a pipe or a device, which may be endless
        with file_errors(path):
            return cls(path, stamp, digest_of(path))

    def change_message(self) -> str | None:
        """One sentence where the content has changed, else None. It is read only where size or time differ."""
        try:
            found = self.path.stat()
        except OSError:
            return f"{self.path} was removed after it was read: restore it to continue this training later"
        if (found.st_size, found.st_mtime_ns) == self.stamp or File.of(self.path).digest == self.digest:
            return None
        return f"{self.path} has changed since it was read: restore its content to continue this training later"


@dataclass(frozen=True)
class Data:
    """Rows with their source.

    name: the source for messages: "train.csv", "a list of rows".
    digest: of their order and content; equal for the same rows from a file and from a list.
    files: the files they were read from; empty for rows from memory.
    """

    rows: list[Record]
    name: str
    digest: str
    files: tuple[File, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def change_message(self) -> str | None:
        """One sentence where a file has changed since it was read, else None; cheap enough to be called often. The rows
        are in memory, so a running training is not affected."""
        return next((message for file in self.files if (message := file.change_message()) is not None), None)


def read(data: Any, columns: Mapping[str, str] | None = None, objective: Any = None, encoding: str = "utf-8") -> Data:
    """Reads rows from a file (.csv, .tsv, .jsonl, .json with a list, else plain lines as the column "text"; CoNLL's and
    SQuAD's formats where the objective reads them), rows as dicts, a dict of columns, a data frame (pandas, polars,
    Arrow), a `datasets.Dataset`, or an iterator of dicts, which is read to its end.

    columns: {name that the objective reads: name in the data}.
    objective: the objective that uses the rows, or its class; some read two parallel files.
    encoding: of files; that of .json with a list is detected from its first bytes.

    Raises InputError for data of another kind, for a missing column, and for a file that changes while it is read.
    """
    known, columns = check_column_names(columns, objective), normalise_columns(columns)
    origin = data_source(data)
    paths = [path_of(one) for one in origin.files]
    files = tuple(map(File.of, paths))
    column_names = (*known, *columns.values())
    parallel = getattr(objective, "parallel", ())
    read_ = (
        _records_from_files(paths, column_names, parallel, encoding)
        if paths
        else _records_from_memory(data, known, columns)
    )
    rows = _rename_columns(list(read_), columns)
    if not rows:
        raise InputError(f"{paths[0] if paths else 'the data'} holds no rows")
    found = Data(rows, origin.name, digest_of_rows(rows), files)
    if found.change_message() is not None:
        raise InputError(f"{found.name} changed while it was read: wait until it is written, and try again")
    return found


def check_files_exist(data: Any) -> None:
    """Raises NotFoundError for the path of a missing file, and InputError for an unreadable one; ignores other data."""
    for path in map(path_of, data_source(data).files):
        size_and_time(path)


def normalise_columns(columns: Mapping[str, str] | None) -> Mapping[str, str]:
    """The names of columns as strings, {} for None; columns of a data frame may be called by numbers."""
    if columns is not None and not isinstance(columns, Mapping):
        kind = type(columns).__name__
        raise InputError(Argument("columns"), f" is {kind}, expected names, such as {{'label': 'sentiment'}}")
    return {ours: str(theirs) for ours, theirs in (columns or {}).items()}


def check_column_names(columns: Mapping[str, str] | None, objective: Any) -> tuple[str, ...]:
    """The columns that an objective reads. Raises InputError where `columns` names another one."""
    known: tuple[str, ...] = getattr(objective, "columns", ())
    for ours in normalise_columns(columns):
        if known and ours not in known:
            what = f"the task has no column {ours!r}{did_you_mean(ours, known)}, expected {join_names(known)}"
            raise InputError(Argument("columns"), f": {what}")
    return known


def digest_of_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """The SHA-256 of the rows' order and content, as 64 hexadecimal digits."""
    found = hashlib.sha256()
    for row in rows:
        found.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return found.hexdigest()


# -- sources of rows --------------------------------------------------------------------------------------------------


def _records_from_files(
    paths: list[Path], column_names: Collection[str], parallel: Sequence[str], encoding: str
) -> Iterator[Record]:
    path, many = paths[0], len(paths)
    if many > 1 and not parallel:
        raise InputError(
            f"data are {many} files ({join_names(map(str, paths))}), expected one: put them together first"
        )
    if many > 1:
        both = read_parallel(paths, parallel, encoding=encoding)
        location = " and ".join(f"{one.name} ({name})" for one, name in zip(paths, parallel))
        return (Record(row.fields, f"{location}, line {row.line}") for row in both)
    if (found := read_known_format(path, column_names, encoding)) is not None:
        return (Record(fields, f"{path.name}, example {i}") for i, fields in enumerate(found, 1))
    if path.suffix.lower() == ".json":
        entries = enumerate(_list(path), 1)
        return (Record(_row(row, f"{path}, entry {i}"), f"{path.name}, entry {i}") for i, row in entries)
    return (Record(row.fields, f"{path.name}, line {row.line}") for row in read_rows(path, encoding=encoding))


def _list(path: Path) -> list[Any]:
    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error} (one object a line is called .jsonl)") from error
    if not isinstance(found, list):
        raise InputError(f"{path} holds {type(found).__name__}, expected a list of objects")
    return found


def _records_from_memory(data: Any, known: Iterable[str], columns: Mapping[str, str]) -> Iterator[Record]:
    found: Any = rows_of_frame(data, *(columns.get(name, name) for name in known))
    if found is None and isinstance(data, Mapping):
        found = _rows_from_columns(data)
    if found is None and is_list_like(data):
        found = unwrap_arrow(data)
    if found is None:
        kinds = "a file, rows as dicts, a dict of columns or a data frame"
        raise InputError(f"data is {type(data).__name__}, expected {kinds}")
    return (Record(_row(row, f"row {i}"), f"row {i}") for i, row in enumerate(found))


def _rows_from_columns(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    lengths = {}
    for name, column in data.items():
        if isinstance(column, str | bytes | Mapping) or not hasattr(column, "__len__"):
            raise InputError(f"column {name!r} is {type(column).__name__}, expected a list of values, one for each row")
        lengths[str(name)] = len(column)
    if len(set(lengths.values())) > 1:
        raise InputError(f"columns of unequal length: {', '.join(f'{name} {many}' for name, many in lengths.items())}")
    return (dict(zip(data, values)) for values in zip(*map(unwrap_arrow, data.values())))


def _row(row: Any, location: str) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise InputError(f"{location} is {type(row).__name__}, expected values by column")
    try:
        return {str(base_value(name)): to_python(value) for name, value in row.items()}
    except RecursionError as error:
        raise InputError(
            f"{location} holds a list that contains itself, or lists in lists without end: leave it out"
        ) from error


def to_python(value: Any) -> Any:
    """A value of NumPy, or a container of such, as Python's own types; a set as a sorted list."""
    if isinstance(value, np.ndarray):
        return to_python(value.tolist()) if value.dtype.hasobject else value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(map(to_python, value), key=str)
    if isinstance(value, list | tuple):
        return [to_python(one) for one in value]
    if isinstance(value, Mapping):
        return {str(to_python(name)): to_python(one) for name, one in value.items()}
    return to_python(value.tolist()) if hasattr(value, "tolist") else base_value(value)


# -- columns and values -----------------------------------------------------------------------------------------------


def _rename_columns(rows: list[Record], columns: Mapping[str, str]) -> list[Record]:
    if not columns:
        return rows
    found = []
    for row in rows:
        named = {ours: matching_name(theirs, row) for ours, theirs in columns.items()}
        for theirs in named.values():
            if theirs not in row:
                raise missing_column_error(row, theirs, advice=False)
        left = {name: value for name, value in row.items() if name not in named.values()}
        found.append(Record(left | {ours: row[theirs] for ours, theirs in named.items()}, row.location))
    return found


def missing_column_error(row: Mapping[str, Any], name: str, advice: bool = True) -> InputError:
    """The error for a missing column.  advice: whether it says how to name another one."""
    same = [one for one in row if one.lower() == name.lower()]
    hint = f" (did you mean {same[0]}?)" if same else did_you_mean(name, row)
    meant = (": ", Argument("columns", {name: Placeholder("NAME")}), " says which one is meant") if advice else ()
    return InputError(
        f"{row_location(row)}: no column {shorten(repr(name))}{hint}; its columns are {join_names(row) or 'none'}",
        meant,
    )


def is_blank(value: Any) -> bool:
    """Whether a value is missing: None, an empty text, or the NaN and NA of data frames."""
    return is_missing(value) or (isinstance(value, str) and not value.strip())


def check_at_least_two(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputError for a single row, which gives nothing to tell apart."""
    if len(rows) < 2:
        raise InputError(
            f"{row_location(rows[0])} is the only row to learn from: expected at least two, beside those held out"
        )


def value_of(row: Mapping[str, Any], name: str, is_empty: Callable[[Any], bool] = is_blank) -> Any:
    """The value in a column. Raises InputError, which names the row, where it is missing or `is_empty`."""
    if name not in row:
        raise missing_column_error(row, name)
    if is_empty(row[name]):
        raise InputError(f"{row_location(row)}: {name!r} is empty: fill it in, or leave the row out")
    return row[name]


def text_of(row: Mapping[str, Any], name: str, is_empty: Callable[[Any], bool] = is_blank) -> str:
    """The text in a column. Raises InputError as `value_of` does, and for another type."""
    found = value_of(row, name, is_empty)
    if not isinstance(found, str):
        raise InputError(f"{row_location(row)}: {name!r} is {type(found).__name__}, expected a text")
    return found


def column_texts(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """The texts of a column. Raises InputError, which names the row, where one is missing, empty or no text."""
    return [text_of(row, name) for row in rows]
