"""What can go wrong, as few kinds as a person can act on. Every message is one sentence that names the file, field or
value, what was expected, and what to do. `exit_code` is what the command line answers with."""

import difflib
import os
import re
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

_BREAK = re.compile(r"\s*\n\s*")
"""Where a value that is shown, an array for one, or another library's error goes on in a new line."""


class Placeholder(str):
    """What a person puts something in place of, such as NAME: a value that Python's words show without quotes."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Argument:
    """An argument within a sentence: `long='windows'`, or its name alone. The command line says it by its option.

    name: in Python.  value: that it is to have, or has; `...` for none.
    """

    name: str
    value: Any = ...

    def __str__(self) -> str:
        return self.name if self.value is ... else f"{self.name}={self.value!r}"


@dataclass(frozen=True)
class Item:
    """One of what was given, within a sentence: `item 3`. The command line says it by its line, where it stood in one.

    number: from 0.  what: what it is called.
    """

    number: int
    what: str = "item"

    def __str__(self) -> str:
        return f"{self.what} {self.number}"


MessagePart: TypeAlias = "str | Argument | Item | StructuredError | tuple[MessagePart, ...]"
"""Part of a sentence: text, an argument, an item, another error's whole sentence, or several of these."""


class StructuredError(BaseException):
    """An exception whose sentence may be given in parts, so that whoever shows it can say its arguments otherwise.

    >>> error = InputError("nothing is read whole: pass ", Argument("long", "windows"), " to read it in stretches")
    >>> str(error)
    "nothing is read whole: pass long='windows' to read it in stretches"

    parts: its texts, arguments and items in order.
    """

    parts: tuple[str | Argument | Item, ...]

    def __init__(self, *parts: MessagePart) -> None:
        self.parts = tuple(_flatten_parts(parts))
        super().__init__("".join(map(str, self.parts)))


def _flatten_parts(parts: tuple[MessagePart, ...]) -> Iterator[str | Argument | Item]:
    for part in parts:
        if isinstance(part, StructuredError | tuple):
            yield from _flatten_parts(part.parts if isinstance(part, StructuredError) else part)
        else:
            yield part if isinstance(part, Argument | Item) else _BREAK.sub(" ", part)


class PellucidError(StructuredError, Exception):
    """The root of every error that pellucid raises on purpose."""

    exit_code = 1


class Interrupted(StructuredError, KeyboardInterrupt):  # noqa: N818 - what somebody did is no error
    """Work that somebody broke off, with what is kept of it."""


class InputError(PellucidError, ValueError):
    """A value that a person gave cannot be used: a text, a name, an argument, a setting."""

    exit_code = 3


class NotFoundError(InputError, FileNotFoundError):
    """A checkpoint, file, layer or name that is not there."""


class UnsafeFileError(PellucidError):
    """A file that could run code, reach outside its folder or exhaust the machine; it was not opened."""

    exit_code = 4


class CorruptFileError(PellucidError):
    """A file that is damaged, cut short or not what its name says."""

    exit_code = 5


class CheckpointMismatchError(PellucidError):
    """Weights, configuration and tokenizer that do not belong together; nothing was loaded."""

    exit_code = 5


class ResourceError(PellucidError):
    """Not enough memory or disk for what was asked."""

    exit_code = 6


@contextmanager
def blaming(
    location: object, kind: type[PellucidError] = CorruptFileError, keys: Callable[[str], str | Argument] = str
) -> Iterator[None]:
    """What is found wrong within is what a file says: the error names it, and its keys as it spells them.

    location: the file, or where in it.  kind: of the error.
    keys: what the file calls an argument, by default by its name; one with a value is for somebody to pass, and stays.
    """
    try:
        yield
    except (InputError, RecursionError) as error:  # a list within a list within a list cannot even be shown
        parts = error.parts if isinstance(error, InputError) else (str(error),)
        message_parts = (keys(one.name) if isinstance(one, Argument) and one.value is ... else one for one in parts)
        raise kind(f"{location}: ", *message_parts) from error


_MAX_NAME_LENGTH = 300
"""Characters of a name that is looked for: a file may hold one of megabytes, and the search grows with its length."""


def requested_memory(error: BaseException) -> str:
    """How much memory PyTorch asked for and did not get, of a processor or of a GPU, such as "2.00 GiB"; "" for any
    other error. Of both kinds it says so by a bare RuntimeError, of a processor in bytes."""
    found = re.search(r"tried to allocate (\d+(?:\.\d+)?) (\w+)", str(error), re.IGNORECASE)
    if not found or not isinstance(error, RuntimeError):
        return ""
    if found[2] != "bytes":
        return f"{found[1]} {found[2]}"
    size = float(found[1])
    return f"{size / 2**20:.2f} MiB" if size < 2**30 else f"{size / 2**30:.2f} GiB"


_NO_MEMORY = ("std::bad_alloc", "failed to map segment", "cannot allocate memory")
"""What an error says where memory was missing in C++, or for a library that was to be read."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was missing, in Python, in PyTorch, or for PyTorch's own libraries while it is imported."""
    if isinstance(error, MemoryError) or requested_memory(error):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | ImportError | OSError) and any(phrase in text for phrase in _NO_MEMORY)


def was_interrupted(error: BaseException | None) -> bool:
    """Was Ctrl-C pressed before this came of it? PyTorch, stopped while one of its modes is off its stack, ends with a
    RuntimeError about that stack."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def handle_sigint(number: int, frame: Any) -> None:
    """Ctrl-C at the command line: as everywhere, but that it ends the process while NumPy or PyTorch are read, which
    swallow it there and go on with half of themselves."""
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in ("numpy", "torch"))
    if any(getattr(one, "_initializing", False) for one in specs):
        print("pellucid: interrupted", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(130)
    signal.default_int_handler(number, frame)


def did_you_mean(name: str, known: Iterable[str], max_hits: int = 3) -> str:
    """` (did you mean a, b?)` for the names nearest to `name`, or nothing when none is near, as none is to a page. One
    that looks the same, of other characters, is written by their numbers."""
    hits = (
        difflib.get_close_matches(name, [*map(str, known)], n=max_hits, cutoff=0.6)
        if len(name) <= _MAX_NAME_LENGTH
        else []
    )
    hits = [ascii(hit) if normalize_nfc(hit) == normalize_nfc(name) else hit for hit in hits]
    return f" (did you mean {', '.join(hits)}?)" if hits else ""


def normalize_nfc(text: str) -> str:
    """A text with each letter and its accents as one character, where there is one: the same for all that look so."""
    return unicodedata.normalize("NFC", text)


def shorten(name: str, max_length: int = 80) -> str:
    """`name`, cut to `max_length` characters, the last of which then is `…`."""
    return name if len(name) <= max_length else f"{name[: max_length - 1]}…"


def escape_unprintable(text: str) -> str:
    """What a file says, with `\\x1b` and the like in place of what steers a terminal or turns its letters around."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def format_count(number: int, one: str, many: str = "") -> str:
    """`1 row`, `2,000 rows`; `many` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def join_names(names: Iterable[str], max_names: int = 6) -> str:
    """`a, b, c and 4 more`: a list that stays readable however long it is."""
    names = list(names)
    return ", ".join(map(shorten, names[:max_names])) + (
        f" and {len(names) - max_names} more" if len(names) > max_names else ""
    )
