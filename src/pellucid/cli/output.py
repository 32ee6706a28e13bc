"""What is not an answer goes to stderr, and nowhere when nobody wants it."""

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

import rich_click as click

if TYPE_CHECKING:
    from rich.console import Console

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def say(message: str) -> None:
    """A line for the person at the terminal; `--quiet` silences it."""
    if not quiet():
        click.echo(message, err=True)


def quiet() -> bool:
    """Whether the person asked for answers and errors only."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


def tell_more() -> None:
    """Lets the library say what it does; `--quiet` silences it."""
    log = logging.getLogger("pellucid")
    if not quiet() and log.level > logging.INFO:
        log.setLevel(logging.INFO)


def table(rows: list[tuple[str, ...]]) -> None:
    """Rows as aligned columns on stdout."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def clean(text: str) -> str:
    """Characters of an answer; at a terminal without those that would steer it."""
    return _STEERING.sub("\ufffd", text) if sys.stdout.isatty() else text


def console() -> "Console":
    """What draws for stdout: in colours at a terminal, and there by its width."""
    from rich.console import Console

    found = Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = 10_000  # nobody's window: lines stay whole
    return found


def draw(*drawn: Any, err: bool = False) -> None:
    """Tables and texts of `rich` on stdout, or on stderr, without spaces at the ends of lines."""
    paper = console()
    with paper.capture() as shown:
        for one in drawn:
            paper.print(one)
    for line in shown.get().split("\n")[:-1]:
        click.echo(line.rstrip(), err=err)
