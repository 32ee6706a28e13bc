"""Output of commands: answers on stdout, messages on stderr, and no messages with `--quiet`."""

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
from pellucid.errors import StructuredError
from pellucid.files import no_folder_error
from pellucid.paths import check_suffix, target_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal, or reverse the direction of text."""

_LINE_ENDS = re.compile(r"[\x7f-\x9f\u2028\u2029]")
"""Control characters that JSON does not escape, and those that some readers take for the end of a line."""

_LINE_BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]")
"""Characters that some readers take for the end of a line or a column."""


def say(message: str) -> None:
    """Prints a message on stderr, unless `--quiet` is given."""
    if not is_quiet():
        _echo(clean(message, err=True), err=True)


def report_empty(empty: int, first: int, many: int) -> None:
    """Prints how many of `many` texts are empty, where any is.  first: the number of the first, from 1."""
    if empty:
        say(f"empty texts: {empty:,} of {many:,} (the first is text {first:,})")


def _echo(line: str, *, err: bool) -> None:
    """Prints a line on stdout or stderr. A message that cannot be written to stderr is no error."""
    with contextlib.suppress(OSError) if err else contextlib.nullcontext():
        click.echo(line, err=err)


def print_result(line: str) -> None:
    """Prints a line on stdout; where its reader has closed it, the command continues for its exit code."""
    try:
        click.echo(clean(line))
    except BrokenPipeError:
        discard_output()


def print_path(path: Path) -> None:
    """Prints the path of a file or folder that was written on stdout."""
    click.echo(clean(str(path)))


def discard_output() -> None:
    """Discards what is not written to stdout yet, so that Python does not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_quiet() -> bool:
    """Whether `--quiet` is given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


def progress_option() -> bool | None:
    """The `progress` argument of library calls: None (a bar only at a terminal), or False with `--quiet`."""
    return False if is_quiet() else None


def enable_info_log() -> None:
    """Logs the library's messages at level INFO, unless `--quiet` is given."""
    log = logging.getLogger("pellucid")
    if not is_quiet() and log.level > logging.INFO:
        log.setLevel(logging.INFO)


def check_output_path(option: str, path: Path | None, *suffixes: str, inputs: Iterable[str] = ()) -> None:
    """Checks a path for output before a model is loaded: its suffix, its folder, and that it is not the file of a
    standard stream nor one of `inputs`, paths or texts. Raises InputError or UsageError."""
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
        raise no_folder_error(path)
    if any(_is_same_file(path, one) for one in (0, *inputs)):  # 0: standard input
        raise click.UsageError(f"{option} {path} is the FILE that is read, and would be overwritten: name another one")
    if ".png" in suffixes and path.suffix.lower() == ".png":
        from pellucid.view.picture import check_renderer

        check_renderer()


def _is_same_file(path: Path, other: str | int) -> bool:
    """Whether a path and another, or a stream by its number, are the same regular file."""
    return path.exists() and os.path.isfile(other) and os.path.samefile(path, other)  # noqa: PTH113, PTH121 - a number


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Prints rows as aligned columns on stdout."""
    from rich.cells import cell_len, set_cell_size

    rows = [tuple(map(clean, row)) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows)]
    for row in rows:
        click.echo("  ".join(map(set_cell_size, row, widths)).rstrip())


def plain_table(**options: Any) -> "Table":
    """An empty `rich` table without lines, with dim headings.  options: further arguments of `Table`."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), **options)


def score_colour(share: float) -> str:
    """The colour of a probability."""
    return "green" if share > 0.5 else "yellow" if share > 0.1 else "red"


def clean(text: str, *, err: bool = False) -> str:
    """A text without terminal controls: for stderr (`err`) they are escaped, as in errors; for stdout, and only at a
    terminal, replaced by U+FFFD."""
    if err:
        return _CONTROL_CHARACTERS.sub(_escape, text)
    return _CONTROL_CHARACTERS.sub("\ufffd", text) if sys.stdout.isatty() else text


def on_one_line(text: str) -> str:
    """A text on one line, with line breaks escaped, such as `\\n`."""
    return _LINE_BREAKS.sub(_escape, text)


def _escape(character: re.Match[str]) -> str:
    return ascii(character[0])[1:-1]


def to_json(value: Any, **options: Any) -> str:
    """JSON for stdout: characters unescaped, or all non-ASCII escaped where stdout cannot encode one or one would
    control a terminal. What might end a line is always escaped; a lone surrogate becomes U+FFFD."""
    text = _without_surrogates(json.dumps(value, ensure_ascii=False, **options))
    text = _LINE_ENDS.sub(lambda one: f"\\u{ord(one[0]):04x}", text)
    with contextlib.suppress(UnicodeEncodeError):
        text.encode(sys.stdout.encoding or "utf-8")
        if clean(text) == text:
            return text
    return json.dumps(json.loads(text), **options)


def _without_surrogates(text: str) -> str:
    """JSON without lone surrogates, which strict readers refuse even when escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        from pellucid.text.truncation import replace_surrogates  # imports torch, so only where needed

        return replace_surrogates(text)
    return text


class CleanFormatter(logging.Formatter):
    """Formats log messages as `say` does; arguments named in errors become options of the command line."""

    def format(self, record: logging.LogRecord) -> str:
        context, args = click.get_current_context(silent=True), record.args
        if context is not None and isinstance(args, tuple):
            record = copy.copy(record)
            record.args = tuple(
                message_as_typed(one, context) if isinstance(one, StructuredError) else one for one in args
            )
        return clean(super().format(record), err=True)


def console() -> "Console":
    """The `rich` console for stdout: at a terminal with its colours and width, else without."""
    from rich.console import Console

    found = Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = 10_000  # no window: lines are not wrapped
    return found


def print_rich(*renderables: Any, err: bool = False) -> None:
    """Prints `rich` tables and texts on stdout or stderr, without spaces at the ends of lines."""
    paper = console()
    with paper.capture() as shown:
        for one in renderables:
            paper.print(one)
    for line in shown.get().split("\n")[:-1]:
        _echo(line.rstrip(), err=err)
