"""pellucid chat"""

import contextlib
import importlib
import re
import sys
from typing import TYPE_CHECKING, Any

import rich_click as click
from click import get_current_context

from pellucid.cli.generation_options import load_generator, print_text, requested_options, writing_options
from pellucid.cli.options import message_as_typed
from pellucid.cli.output import clean, say
from pellucid.cli.reading import TEXT, read_stdin_line, stdin_lines, text_or_stdin
from pellucid.errors import InputError, format_count

if TYPE_CHECKING:
    import pellucid

Turns = list[dict[str, str]]


@click.command("chat")
@click.argument("message", type=TEXT, required=False)
@writing_options
@click.option("--system", "-s", type=TEXT, metavar="TEXT", help="The system message, before the conversation.")
def command(message: str | None, model: str, dtype: str, system: str | None, **typed: Any) -> None:
    """Talk with a chat model.

    With a MESSAGE (`-` reads it from standard input) it answers once. Without one each line is a message, from the
    terminal or from a pipe, until /exit or Ctrl-D; /reset clears the conversation. The oldest messages are left out
    where the model can read no more. Ctrl-C stops an answer; pressed again, or between answers, it quits. The
    likeliest token is taken each time, unless a sampling option is given, or the model's own generation_config.json
    says otherwise.

    \b
    Examples:
      pellucid chat "What is the capital of France?"
      pellucid chat --system "Answer in one word." --temperature 0.7
      cat questions.txt | pellucid chat
    """
    options = requested_options(typed)
    text = None if message is None else text_or_stdin(message, "MESSAGE", "answer")
    writer = load_generator(model, dtype)
    start: Turns = [] if system is None else [{"role": "system", "content": system}]
    if text is not None:
        _answer(writer, _fit_to_context(writer, [*start, {"role": "user", "content": text}], options), options)
    else:
        _talk(writer, start, options)


def _talk(model: "pellucid.Model", start: Turns, options: dict[str, Any]) -> None:
    """Answers one message after the other, each with the conversation before it, as far as it fits. At a terminal, a
    message that cannot be answered is reported and dropped; elsewhere its error is raised."""
    at_terminal, turns, is_noted = sys.stdin.isatty(), start, False
    if at_terminal:
        say("/reset clears the conversation, /exit or Ctrl-D leaves")
    for line in map(str.strip, stdin_lines(_next_line)):
        if line == "/exit":
            return
        if line == "/reset":
            turns, is_noted = start, False
        elif re.fullmatch(r"/\w+", line):
            say(f"there is no {line}: /reset clears the conversation, /exit or Ctrl-D leaves")
        elif line:
            conversation = [*turns, {"role": "user", "content": line}]
            try:
                fits = _fit_to_context(model, conversation, options)
                if len(fits) < len(conversation) and not is_noted:
                    oldest = "the oldest messages no longer fit, and are left out from here on"
                    say(f"{oldest}; /reset forgets it all")
                    is_noted = True
                answer = _answer(model, fits, options, interruptible=at_terminal)
            except KeyboardInterrupt:  # before the first piece of an answer, which is then forgotten
                if not at_terminal:
                    raise
                click.echo(err=True)  # the terminal shows ^C on the line of the next prompt
            except InputError as error:
                if not at_terminal:
                    raise
                message = message_as_typed(error, get_current_context())
                click.echo(clean(f"pellucid: {message}", err=True), err=True)
            else:
                turns = [*fits, {"role": "assistant", "content": answer}]


def _fit_to_context(model: "pellucid.Model", turns: Turns, options: dict[str, Any]) -> Turns:
    """A conversation without its oldest turns, so that the model has room to generate the requested tokens, or half its
    positions if these are fewer. Raises InputError where its last message alone is too long."""
    from pellucid.generation.checkpoint_settings import settings_of
    from pellucid.tasks.text_generation import without_oldest_turn

    max_positions, tokenizer, remaining = model.config.max_sequence_length, model.tokenizer, turns
    if max_positions is None or tokenizer is None:
        return turns
    new = 0 if model.config.kind == "encoder-decoder" else settings_of(model.loaded, options).max_new_tokens
    while True:
        size = len(tokenizer.apply_chat_template(remaining, tokenize=True, parse_special_tokens=False))
        if size <= max_positions - min(new, max_positions // 2):
            return remaining
        if not (less := without_oldest_turn(remaining)):
            break
        remaining = less
    if size > max_positions:
        found_length = f"the message has {format_count(size, 'token')} with its chat template"
        what = "it, or the system message" if any(turn["role"] == "system" for turn in remaining) else "it"
        raise InputError(f"{found_length}, and this model reads {max_positions:,} in all: shorten {what}")
    return remaining


def _answer(model: "pellucid.Model", turns: Turns, options: dict[str, Any], *, interruptible: bool = False) -> str:
    """Prints an answer on stdout while it is generated; with `interruptible`, Ctrl-C ends it early."""
    parts: list[str] = []
    try:
        for piece in model.stream(turns, **options):
            parts.append(piece.text)
            print_text(piece.text)
    except KeyboardInterrupt:
        if not (interruptible and parts):
            raise
    finally:
        if parts:
            print_text("", end=True)
    return "".join(parts)


def _next_line(number: int) -> str | None:
    """The next line, typed at a terminal or read from a pipe, None at the end; at a terminal an invalid one is reported
    and read again."""
    while sys.stdin.isatty():
        try:
            return _typed_line(number)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            say(f"what was typed is not {error.encoding} text (byte 0x{byte:02x}): type it again")
        except InputError as error:
            say(f"{error}, or type it again")
    return read_stdin_line(number)


def _typed_line(number: int) -> str | None:
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):  # not on every system
            importlib.import_module("readline")  # makes lines editable
        try:
            return input("> ")
        except EOFError:
            return None
    click.echo("> ", nl=False, err=True)
    return read_stdin_line(number)
