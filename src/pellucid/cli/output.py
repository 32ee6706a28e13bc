"""What is not an answer goes to stderr, and nowhere when nobody wants it."""

import contextlib
import copy
import json
import logging
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.options import message_as_typed
from pellucid.errors import InputError, StructuredError
from pellucid.files import check_suffix, target_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, names its window, or turns the order of its letters around."""

_LINE_ENDS = re.compile(r"[\x7f-\x9f\u2028\u2029]")
"""Controls that JSON leaves as they are, and what some readers take for the end of a line."""

_LINE_BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]")
"""Where a new line begins, or a column, for one reader or another."""


def say(message: str) -> None:
    """A line for the person at the terminal; `--quiet` silences it."""
    if not is_quiet():
        _echo(clean(message, err=True), err=True)


def report_empty(empty: int, first: int, many: int) -> None:
    """How many of all texts hold nothing that could be read, where there are any.  first: its number, from 1."""
    if empty:
        say(f"empty texts: {empty:,} of {many:,} (the first is text {first:,})")


def _echo(line: str, *, err: bool) -> None:
    """A line on stdout or stderr. A work does not end because nobody can read what is said beside it."""
    with contextlib.suppress(OSError) if err else contextlib.nullcontext():
        click.echo(line, err=err)


def print_result(line: str) -> None:
    """A line on stdout of a work that goes on where nobody reads it: its exit code is asked for, too."""
    try:
        click.echo(clean(line))
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """What is still to be written on stdout is lost, and Python does not try once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_quiet() -> bool:
    """Whether the person asked for answers and errors only."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


def progress_option() -> bool | None:
    """What a work is told of its bar: to show one where it is looked at; with `--quiet` none."""
    return False if is_quiet() else None


def enable_info_log() -> None:
    """Lets the library say what it does; `--quiet` silences it."""
    log = logging.getLogger("pellucid")
    if not is_quiet() and log.level > logging.INFO:
        log.setLevel(logging.INFO)


def check_output_path(option: str, path: Path | None, *suffixes: str, inputs: Iterable[str] = ()) -> None:
    """What a file is called says what is in it, its folder is there, and it is neither what stands at standard input
    nor one of `inputs`, a file or a text each, nor where what is said goes; told before a model is read."""
    if path is None:
        return
    if suffixes:
        check_suffix(option, path, *suffixes)
    if str(path) == "-":
        raise click.UsageError(f"{option} is -, which is not the name of a file: leave {option} out to print")
    for number, stream in ((1, "standard output"), (2, "standard error")):
        if _is_same_file(path, number):
            problem = f"{option} {path} is the file where {stream} goes, and would be overwritten"
            raise click.UsageError(f"{problem}: leave {option} out, or name another one")
    if not target_of(path).parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {str(path.parent)!r}")
    if any(_is_same_file(path, one) for one in (0, *inputs)):  # 0: standard input
        raise click.UsageError(f"{option} {path} is the FILE that is read, and would be overwritten: name another one")
    if ".png" in suffixes and path.suffix.lower() == ".png":
        from pellucid.view.picture import check_renderer

        check_renderer()


def _is_same_file(path: Path, other: str | int) -> bool:
    """Whether two names, or a name and a stream by its number, are one file; a device is none."""
    return path.exists() and os.path.isfile(other) and os.path.samefile(path, other)  # noqa: PTH113, PTH121 - a number


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Rows as aligned columns on stdout."""
    from rich.cells import cell_len, set_cell_size

    rows = [tuple(map(clean, row)) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows)]
    for row in rows:
        click.echo("  ".join(map(set_cell_size, row, widths)).rstrip())


def plain_table(**options: Any) -> "Table":
    """A table of `rich` without lines, under dim headings, to be filled.  options: what else its class takes."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), **options)


def score_colour(share: float) -> str:
    """The colour in which a probability is written."""
    return "green" if share > 0.5 else "yellow" if share > 0.1 else "red"


def clean(text: str, *, err: bool = False) -> str:
    """Characters for stdout, at a terminal without those that would steer it; for stderr, which a person reads sooner
    or later, always without them."""
    return _CONTROL_CHARACTERS.sub("\ufffd", text) if err or sys.stdout.isatty() else text


def on_one_line(text: str) -> str:
    """The same on one line: what would break it as it is written in a string, such as `\\n`."""
    return _LINE_BREAKS.sub(lambda one: ascii(one[0])[1:-1], text)


def to_json(value: Any, **options: Any) -> str:
    """JSON for stdout: letters as they are, or by their numbers where stdout lacks one or a terminal obeyed it. What
    might end a line has its number everywhere; half a surrogate pair is U+FFFD."""
    text = _without_surrogates(json.dumps(value, ensure_ascii=False, **options))
    text = _LINE_ENDS.sub(lambda one: f"\\u{ord(one[0]):04x}", text)
    with contextlib.suppress(UnicodeEncodeError):
        text.encode(sys.stdout.encoding or "utf-8")
        if clean(text) == text:
            return text
    return json.dumps(json.loads(text), **options)


def _without_surrogates(text: str) -> str:
    """JSON without halves of surrogate pairs, which strict readers refuse in any spelling."""
    try:
        text.encode()
    except UnicodeEncodeError:
        from pellucid.text.cut import replace_surrogates  # with torch, for which no other text waits

        return replace_surrogates(text)
    return text


class CleanFormatter(logging.Formatter):
    """What the library says, as `say` says it; of an error its arguments as they are typed."""

    def format(self, record: logging.LogRecord) -> str:
        context, args = click.get_current_context(silent=True), record.args
        if context is not None and isinstance(args, tuple):
            record = copy.copy(record)
            record.args = tuple(
                message_as_typed(one, context) if isinstance(one, StructuredError) else one for one in args
            )
        return clean(super().format(record), err=True)


def console() -> "Console":
    """What draws for stdout: in colours at a terminal, and there by its width."""
    from rich.console import Console

    found = Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = 10_000  # nobody's window: lines stay whole
    return found


def print_rich(*renderables: Any, err: bool = False) -> None:
    """Tables and texts of `rich` on stdout, or on stderr, without spaces at the ends of lines."""
    paper = console()
    with paper.capture() as shown:
        for one in renderables:
            paper.print(one)
    for line in shown.get().split("\n")[:-1]:
        _echo(line.rstrip(), err=err)
