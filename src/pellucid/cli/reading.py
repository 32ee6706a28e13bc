"""What the commands that take texts share: arguments, a file, a column of a table, or standard input."""

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
    """A text that was typed. Bytes that are none in the encoding of the system reach Python as halves of surrogates.

    warns_of_files: it is read beside others, and no file stands in its place; said of what looks like one.
    """

    name = "text"

    def __init__(self, *, warns_of_files: bool = False) -> None:
        self.warns_of_files = warns_of_files

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if (byte := _SURROGATES.search(value)) is not None and not os.path.lexists(value):
            shown = _SURROGATES.sub("?", value[max(byte.start() - 20, 0) : byte.end() + 20])
            number, encoding = ord(byte[0]) - 0xDC00, sys.getfilesystemencoding()
            raise InputError(f"{shown!r} is not {encoding} text (byte 0x{number:02x}): convert it first")
        silent = ctx is not None and ctx.resilient_parsing  # where it was said before
        if self.warns_of_files and not silent and (os.path.isfile(value) or _may_be_a_path(value)):  # noqa: PTH113
            say(f"read as text, and not as the name of a file: {value}")
        return value


TEXT = TextType()
NEVER_FILE = TextType(warns_of_files=True)

_SURROGATES = re.compile("[\udc80-\udcff]")


def file_argument(arguments: tuple[str, ...], column: str | None) -> Path | None:
    """The file that is meant by the arguments: one that is there and has a suffix, or any where a column is asked for.

    Raises NotFoundError for what is called as a file and is not there, InputError for a folder and for one file among
    several, none of which is meant as a text, and UsageError for the encoding of no file.
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
    """Whether an argument is the name of a file.  sure: it can be nothing else."""
    from pellucid.text.lines import size_and_time
    from pellucid.text.rows import JSON_LINES_SUFFIXES, PLAIN, TABLE_SUFFIXES

    suffix = Path(argument).suffix
    if os.path.isdir(argument):  # noqa: PTH112 - a text may be longer than any name, and for such Path raises
        raise InputError(f"{argument!r} is a folder, expected a file; a text that is called so: on standard input (-)")
    if os.path.isfile(argument):  # noqa: PTH113
        return sure or suffix != ""
    if os.path.exists(argument):  # noqa: PTH110
        raise InputError(
            f"{argument!r} is a pipe or a device, expected a file: give what it holds on standard input (-)"
        )
    if sure or (_may_be_a_name(argument) and suffix.lower() in (*TABLE_SUFFIXES, *JSON_LINES_SUFFIXES, *PLAIN)):
        size_and_time(Path(argument))  # says that there is none, or why it cannot be read
    return False


def _may_be_a_name(text: str) -> bool:
    """Whether a text is one word that ends as names of files do, and neither an address nor a link."""
    return Path(text).suffix[1:].isalpha() and not any(c.isspace() or c == "@" for c in text) and "://" not in text


def _may_be_a_path(text: str) -> bool:
    """Whether a word may be the path of a file that is not there: it is read as a text, and that is said."""
    rooted = text.startswith(("/", "./", "../", "~/")) and not any(c.isspace() for c in text)
    return rooted or _may_be_a_name(text)


def open_table(path: Path, encoding: str = "utf-8", *, skip_bad: bool = False) -> "Rows":
    """A file as rows; what stands between its fields is told where it is not what the suffix promises."""
    from pellucid.text.rows import DELIMITERS, read_rows

    rows = read_rows(path, encoding=encoding, skip_bad=skip_bad)
    if rows.delimiter and path.suffix.lower() == ".csv" and rows.delimiter != ",":
        say(f"{path.name}: its fields are separated by a {DELIMITERS[rows.delimiter]}")
    return rows


LocationOf = Callable[[int], str]
"""The line of an item, by the item's number."""


def read_texts(arguments: tuple[str, ...], column: str | None, encoding: str) -> tuple[list[str], LocationOf | None]:
    """The texts that were meant, in their order, and where they stand; None where that is nowhere but among arguments.

    Raises InputError where a file or standard input holds none.
    """
    texts, location_of, _ = texts_of(file_argument(arguments, column), arguments, column, encoding)
    return list(texts), location_of


def texts_of(
    path: Path | None, arguments: tuple[str, ...], column: str | None, encoding: str, *, skip_bad: bool = False
) -> tuple[Iterable[str], LocationOf | None, "Rows | None"]:
    """The same, those of standard input and of a file read while they are asked for; and the rows of a file.

    path: the file that is meant, if one is.
    """
    from pellucid.text.rows import PLAIN_COLUMN

    if path is None:
        return (stdin_texts(), stdin_location, None) if arguments == ("-",) else (list(arguments), None, None)
    check_text_file(path, column)
    rows = open_table(path, encoding, skip_bad=skip_bad)
    return rows.column(PLAIN_COLUMN if column is None else column), rows.location, rows


def typed_location(many: int, what: str = "text") -> LocationOf:
    """How an item is called that was typed, one of so many."""
    return lambda number: f"{what} {number + 1} of {many}" if many > 1 else f"the {what}"


@contextlib.contextmanager
def with_locations(location_of: LocationOf | None) -> Iterator[None]:
    """An error that names an item names its line instead, where it stands in one."""
    try:
        yield
    except InputError as error:
        if location_of is None or not any(isinstance(part, Item) for part in error.parts):
            raise
        parts = (location_of(part.number) if isinstance(part, Item) else part for part in error.parts)
        raise type(error)(*parts) from error


def check_text_file(path: Path, column: str | None) -> None:
    """Refuses a file whose lines are not texts: a table without a column, and JSON that is not one object a line."""
    from pellucid.text.rows import check_column

    check_column(path, column)
    if path.suffix.lower() == ".json":
        raise InputError(
            f"{path} is JSON, whose lines are not texts: write it as .jsonl, one object with its text a line"
        )


def stdin_lines() -> Iterator[str]:
    """The lines of standard input, without their ends."""
    number = 0
    while (line := read_stdin_line(number)) is not None:
        number += 1
        yield line.rstrip("\r\n")


def stdin_texts() -> Iterator[str]:
    """The same, each a text. Raises InputError where there is none: what should have written them may have failed."""
    found = stdin_lines()
    first = next(found, None)
    if first is None:
        raise InputError("standard input holds no texts: write one per line")
    yield first
    yield from found


def stdin_location(number: int) -> str:
    """Where such a text stands."""
    return f"standard input, line {number + 1}"


def read_stdin_line(number: int) -> str | None:
    """The next line of standard input, with its end; None where there is none. A byte order mark at the start is no
    text, as in a file.

    number: how many lines were read before.  Raises InputError for what is no text in the encoding of standard input.
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


def read_stdin() -> str:
    """All of standard input, as one text."""
    return "\n".join(stdin_lines())


def text_or_stdin(typed: str, argument_name: str, purpose: str) -> str:
    """A text that was typed, or all of standard input for `-`. Raises InputError for an empty one.

    argument_name: what the command calls it.  purpose: what is done with it, such as "look at".
    """
    given_as, text = ("standard input", read_stdin().strip()) if typed == "-" else (argument_name, typed)
    if not text.strip():
        raise InputError(f"{given_as} is empty: there is nothing to {purpose}")
    return text
