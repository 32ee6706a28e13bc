"""What the commands that take texts share: arguments, a file, a column of a table, or standard input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from pellucid.cli.output import say

if TYPE_CHECKING:
    from pellucid.text.rows import Rows


def file_in(arguments: tuple[str, ...], column: str | None) -> Path | None:
    """The file that is meant by the arguments: one that is there and has a suffix, or any where a column is asked for.

    Raises NotFoundError where a column is asked for and there is no such file.
    """
    from pellucid.errors import NotFoundError

    if len(arguments) != 1 or arguments == ("-",):
        if column:
            raise click.UsageError("--column names a column of one FILE, and no such file was given")
        return None
    path = Path(arguments[0])
    if column or (path.suffix and len(path.name) < 256 and path.is_file()):
        if not path.is_file():
            raise NotFoundError(f"there is no file {arguments[0][:200]!r}")
        return path
    return None


def table_of(path: Path, encoding: str = "utf-8", *, skip_bad: bool = False) -> "Rows":
    """A file as rows; what stands between its fields is told where it is not what the suffix promises."""
    from pellucid.text.rows import DELIMITERS, read_rows

    rows = read_rows(path, encoding=encoding, skip_bad=skip_bad)
    if rows.delimiter and path.suffix.lower() == ".csv" and rows.delimiter != ",":
        say(f"{path.name}: a {DELIMITERS[rows.delimiter]} stands between its fields")
    return rows


def texts_in(arguments: tuple[str, ...], column: str | None, encoding: str = "utf-8") -> Iterable[str]:
    """The texts that were meant, in their order; those of a file or of standard input as they are read."""
    from pellucid.text.rows import LINE, check_column

    path = file_in(arguments, column)
    if path is not None:
        check_column(path, column)
        return table_of(path, encoding).column(column or LINE)
    return standard_lines() if arguments == ("-",) else list(arguments)


def standard_lines() -> Iterator[str]:
    """The lines of standard input, without their ends."""
    from pellucid.errors import InputError

    number = 0
    try:
        for line in sys.stdin:
            number += 1
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"standard input is not {error.encoding} text (after line {number}, byte 0x{byte:02x}): convert it first"
        ) from error


def standard_text() -> str:
    """All of standard input, as one text."""
    return "\n".join(standard_lines())
