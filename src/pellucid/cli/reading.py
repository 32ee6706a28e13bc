"""Reads the texts of commands: from arguments, a file, a column of a table, or standard input."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from pellucid.cli.options import first_typed
from pellucid.cli.output import say
from pellucid.errors import InputError, Item, join_names

if TYPE_CHECKING:
    from pellucid.text.rows import Rows


class TextType(click.ParamType):
    """A text argument. It refuses bytes that are invalid in the system's encoding, which Python passes as surrogates.

    warns_of_files: prints a message where the text, which is never read as a file, looks like one.
    """

    name = "text"

    def __init__(self, *, warns_of_files: bool = False) -> None:
        self.warns_of_files = warns_of_files

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if (byte := _SURROGATES.search(value)) is not None and not os.path.lexists(value):
            shown = _SURROGATES.sub("?", value[max(byte.start() - 20, 0) : byte.end() + 20])
            number, encoding = ord(byte[0]) - 0xDC00, sys.getfilesystemencoding()
            raise InputError(f"{shown!r} is not {encoding} text (byte 0x{number:02x}): convert it first")
        silent = ctx is not None and ctx.resilient_parsing  # it was printed before
        if self.warns_of_files and not silent and (os.path.isfile(value) or _may_be_a_path(value)):  # noqa: PTH113
            say(f"read as text, and not as the name of a file: {value}")
        return value


TEXT = TextType()
NEVER_FILE = TextType(warns_of_files=True)

_SURROGATES = re.compile("[\udc80-\udcff]")


def file_argument(arguments: tuple[str, ...], column: str | None) -> Path | None:
    """The file that the arguments name: an existing one with a suffix, or any where a column is given; else None.

    Raises NotFoundError for the name of a missing file, InputError for a folder and for a file among several arguments,
    and UsageError for a column or an encoding without a file.
    """
    found = _find_file(arguments, column)
    if found is None and first_typed("encoding"):
        raise click.UsageError("--encoding is for a FILE, and none was given: name the file, or leave it out")
    return found


def _find_file(arguments: tuple[str, ...], column: str | None) -> Path | None:
    if arguments == ("-",) or (column is not None and len(arguments) != 1):
        if column is not None:
            raise click.UsageError("columns are those of one FILE, and no such file was given")
        return None
    files = [one for one in arguments if _is_file(one, sure=column is not None)]
    if files and len(arguments) > 1:
        raise InputError(f"{files[0]!r} is a file, which is read alone, and {len(arguments)} things were given")
    texts = [one for one in dict.fromkeys(arguments) if one not in files]
    bare = [one for one in texts if os.path.isfile(one)]  # noqa: PTH113
    if bare:
        say(f"read as text, though a file is called so: {join_names(bare)}; its lines: on standard input (-)")
    if odd := [one for one in texts if one not in bare and _may_be_a_path(one)]:
        say(f"read as text, for there is no such file: {join_names(odd)}")
    return Path(files[0]) if files else None


def _is_file(argument: str, *, sure: bool) -> bool:
    """Whether an argument is the name of a file.  sure: it can be nothing else, as a column is given."""
    from pellucid.text.lines import size_and_time
    from pellucid.text.rows import COLUMN_SUFFIXES, PLAIN

    suffix = Path(argument).suffix
    if os.path.isdir(argument):  # noqa: PTH112 - a text may be longer than any name, and for such Path raises
        raise InputError(f"{argument!r} is a folder, expected a file; a text that is called so: on standard input (-)")
    if os.path.isfile(argument):  # noqa: PTH113
        return sure or suffix != ""
    if os.path.exists(argument):  # noqa: PTH110
        raise InputError(
            f"{argument!r} is a pipe or a device, expected a file: give what it holds on standard input (-)"
        )
    if sure or (_may_be_a_name(argument) and suffix.lower() in (*COLUMN_SUFFIXES, *PLAIN)):
        size_and_time(Path(argument))  # raises where it is missing or unreadable
    return False


def _may_be_a_name(text: str) -> bool:
    """Whether a text is one word with a suffix like a file name's, and neither an e-mail address nor a URL."""
    return Path(text).suffix[1:].isalpha() and not any(c.isspace() or c == "@" for c in text) and "://" not in text


def _may_be_a_path(text: str) -> bool:
    """Whether a text looks like a path."""
    rooted = text.startswith(("/", "./", "../", "~/")) and not any(c.isspace() for c in text)
    return rooted or _may_be_a_name(text)


def open_table(path: Path, encoding: str, *, skip_bad: bool = False) -> "Rows":
    """Opens a file as rows; prints the delimiter of a .csv file where it is no comma."""
    from pellucid.text.rows import DELIMITERS, read_rows

    rows = read_rows(path, encoding=encoding, skip_bad=skip_bad)
    if rows.delimiter and path.suffix.lower() == ".csv" and rows.delimiter != ",":
        say(f"{path.name}: its fields are separated by a {DELIMITERS[rows.delimiter]}")
    return rows


LocationOf = Callable[[int], str]
"""Returns the location of an item from its index."""


def read_texts(arguments: tuple[str, ...], column: str | None, encoding: str) -> tuple[list[str], LocationOf | None]:
    """The texts that the arguments name, in order, and their locations, None for texts in the arguments themselves.

    Raises InputError where a file or standard input holds none.
    """
    texts, location_of, _ = texts_of(file_argument(arguments, column), arguments, column, encoding)
    return list(texts), location_of


def texts_of(
    path: Path | None, arguments: tuple[str, ...], column: str | None, encoding: str, *, skip_bad: bool = False
) -> tuple[Iterable[str], LocationOf | None, "Rows | None"]:
    """As `read_texts`, but texts of standard input and of a file are read lazily; and the rows of a file.

    path: as `file_argument` returns it.
    """
    from pellucid.text.rows import PLAIN_COLUMN

    if path is None:
        return (stdin_texts(), stdin_location, None) if arguments == ("-",) else (list(arguments), None, None)
    check_text_file(path, column)
    rows = open_table(path, encoding, skip_bad=skip_bad)
    return rows.column(PLAIN_COLUMN if column is None else column), rows.location, rows


def typed_location(many: int, what: str = "text") -> LocationOf:
    """The locations of `many` items in the arguments, such as "text 2 of 3"."""
    return lambda number: f"{what} {number + 1} of {many}" if many > 1 else f"the {what}"


@contextlib.contextmanager
def with_locations(location_of: LocationOf | None) -> Iterator[None]:
    """Replaces items in an InputError raised within the block by their locations."""
    try:
        yield
    except InputError as error:
        if location_of is None or not any(isinstance(part, Item) for part in error.parts):
            raise
        parts = (location_of(part.number) if isinstance(part, Item) else part for part in error.parts)
        raise type(error)(*parts) from error


def check_text_file(path: Path, column: str | None) -> None:
    """Raises InputError for a file whose lines are no texts: a table without `column`, and .json."""
    from pellucid.text.rows import check_column

    check_column(path, column)
    if path.suffix.lower() == ".json":
        raise InputError(
            f"{path} is JSON, whose lines are not texts: write it as .jsonl, one object with its text a line"
        )


def stdin_texts() -> Iterator[str]:
    """The lines of standard input as texts. Raises InputError where there is none, as after a failed pipe."""
    found = stdin_lines()
    first = next(found, None)
    if first is None:
        raise InputError("standard input holds no texts: write one per line")
    yield first
    yield from found


def stdin_location(number: int) -> str:
    """The location of a text of standard input."""
    return f"standard input, line {number + 1}"


def read_stdin_line(number: int) -> str | None:
    """The next line of standard input, with its line end, without a byte order mark; None at the end.

    number: lines read before.  Raises InputError for what is not valid text in the encoding of standard input.
    """
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError as error:
        byte, line = error.object[error.start], number + 1 + error.object[: error.start].count(b"\n")
        raise InputError(
            f"standard input is not {error.encoding} text (line {line}, byte 0x{byte:02x}): convert it first"
        ) from error
    if "\0" in line:
        raise InputError(f"standard input holds a NUL in line {number + 1}: it is binary or UTF-16, expected text")
    return (line if number else line.removeprefix("\ufeff")) or None


def stdin_lines(read: Callable[[int], str | None] = read_stdin_line) -> Iterator[str]:
    """The lines of standard input, without line ends.  read: returns the next line, from the number of those before."""
    number = 0
    while (line := read(number)) is not None:
        number += 1
        yield line.rstrip("\r\n")


def read_stdin() -> str:
    """All of standard input, as one text."""
    return "\n".join(stdin_lines())


def text_or_stdin(typed: str, argument_name: str, purpose: str) -> str:
    """A text from the arguments, or all of standard input for `-`. Raises InputError for an empty one.

    argument_name: its name in errors.  purpose: its use in errors, such as "look at".
    """
    given_as, text = ("standard input", read_stdin().strip()) if typed == "-" else (argument_name, typed)
    if not text.strip():
        raise InputError(f"{given_as} is empty: there is nothing to {purpose}")
    return text
