"""pellucid chat"""

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import rich_click as click
from click import get_current_context

from pellucid.cli.output import clean, say
from pellucid.cli.reading import TEXT, one_text, standard_line
from pellucid.cli.typed import as_typed
from pellucid.cli.writing import asked, opened, put, writing_options

if TYPE_CHECKING:
    import pellucid

Turns = list[dict[str, str]]


@click.command("chat")
@click.argument("message", type=TEXT, required=False)
@writing_options
@click.option("--system", "-s", type=TEXT, metavar="TEXT", help="What the model is told before the conversation.")
def command(message: str | None, model: str, dtype: str, system: str | None, **given: Any) -> None:
    """Talk with a chat model.

    With a MESSAGE (`-` reads it from standard input) it answers once. Without one each line is a message, from the
    terminal or from a pipe, until /exit or Ctrl-D; /reset forgets what was said. Ctrl-C stops an answer; pressed
    again, or between answers, it quits. The likeliest token is taken each time, unless a sampling option is given, or
    the model's own generation_config.json says otherwise.

    \b
    Examples:
      pellucid chat "What is the capital of France?"
      pellucid chat --system "Answer in one word." --temperature 0.7
      cat questions.txt | pellucid chat
    """
    options = asked(given)
    text = None if message is None else one_text(message, "MESSAGE", "answer")
    writer = opened(model, dtype)
    start: Turns = [] if system is None else [{"role": "system", "content": system}]
    if text is not None:
        _answer(writer, [*start, {"role": "user", "content": text}], options)
    else:
        _talk(writer, start, options)


def _talk(model: "pellucid.Model", start: Turns, options: dict[str, Any]) -> None:
    """One message after the other, each answered with all that was said before it."""
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        say("/reset forgets what was said, /exit or Ctrl-D leaves")
    turns = list(start)
    for line in _lines():
        if line == "/exit":
            return
        if line == "/reset":
            turns = list(start)
        elif re.fullmatch(r"/\w+", line):
            say(f"there is no {line}: /reset forgets what was said, /exit or Ctrl-D leaves")
        elif line:
            turns += _turn(model, turns, line, options, at_terminal)


def _turn(model: "pellucid.Model", turns: Turns, line: str, options: dict[str, Any], at_terminal: bool) -> Turns:
    """A message and its answer; at a terminal, one that cannot be answered is said to be so, and forgotten."""
    from pellucid.errors import InputError

    message = {"role": "user", "content": line}
    try:
        answer = _answer(model, [*turns, message], options, stops=at_terminal)
    except InputError as error:
        if not at_terminal:
            raise
        said = as_typed(error, get_current_context())
        click.echo(clean(f"pellucid: {said}", err=True), err=True)
        return []
    return [message, {"role": "assistant", "content": answer}]


def _answer(model: "pellucid.Model", turns: Turns, options: dict[str, Any], *, stops: bool = False) -> str:
    """Writes an answer on stdout while it arises; with `stops`, Ctrl-C ends it where it is."""
    parts: list[str] = []
    try:
        for piece in model.stream(turns, **options):
            parts.append(piece.text)
            put(piece.text)
    except KeyboardInterrupt:
        if not stops:
            raise
    finally:
        if parts:
            put("", end=True)
    return "".join(parts)


def _lines() -> Iterator[str]:
    """What somebody types, or what comes from a pipe, line by line."""
    number = 0
    while (line := _line(number)) is not None:
        number += 1
        yield line.strip()


def _line(number: int) -> str | None:
    if sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(ImportError):  # not everywhere
            importlib.import_module("readline")  # lines can be edited
        try:
            return input("> ")
        except EOFError:
            return None
    if sys.stdin.isatty():
        click.echo("> ", nl=False, err=True)
    return standard_line(number)
