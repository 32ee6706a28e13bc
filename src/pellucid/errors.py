"""The errors, one class for each kind that a caller can act on. Every message is one sentence that names the file,
field or value, what was expected, and what to do. `exit_code` is the exit status of the command line."""

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
"""A line break within a value that is shown, such as an array, or within another library's message."""


class Placeholder(str):
    """A name that stands for a value, such as NAME: its `repr` has no quotes."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Argument:
    """An argument within a message: `long='windows'`, or its name alone. The command line shows its option instead.

    name: the Python name.  value: the one to pass, or the one passed; `...` for none.
    """

    name: str
    value: Any = ...

    def __str__(self) -> str:
        return self.name if self.value is ... else f"{self.name}={shorten(repr(self.value), 300)}"


@dataclass(frozen=True)
class Item:
    """One of the caller's items within a message: `item 3`. The command line shows its line in the file, if it has one.

    number: from 0.  what: the noun for it.
    """

    number: int
    what: str = "item"

    def __str__(self) -> str:
        return f"{self.what} {self.number}"


MessagePart: TypeAlias = "str | Argument | Item | StructuredError | tuple[MessagePart, ...]"
"""Part of a message: text, an argument, an item, another error's whole message, or several of these."""


class StructuredError(BaseException):
    """An exception whose message may be given in parts, so that the command line can show its arguments differently.

    >>> error = InputError("nothing is read whole: pass ", Argument("long", "windows"), " to read it in windows")
    >>> str(error)
    "nothing is read whole: pass long='windows' to read it in windows"

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
            yield part if isinstance(part, Argument | Item) else escape_unprintable(_BREAK.sub(" ", part))


class PellucidError(StructuredError, Exception):
    """The base class of all errors that pellucid raises deliberately."""

    exit_code = 1


class Interrupted(StructuredError, KeyboardInterrupt):  # noqa: N818 - what somebody did is no error
    """Work that was interrupted; the message says what is kept of it."""


class InputError(PellucidError, ValueError):
    """An invalid value from the caller: a text, a name, an argument, a setting."""

    exit_code = 3


class NotFoundError(InputError, FileNotFoundError):
    """A checkpoint, file, layer or name that does not exist."""


class UnsafeFileError(PellucidError):
    """A file that could run code, reach outside its folder or exhaust the machine; it was not opened."""

    exit_code = 4


class CorruptFileError(PellucidError):
    """A file that is damaged, truncated or not what its name says."""

    exit_code = 5


class CheckpointMismatchError(PellucidError):
    """Weights, configuration and tokenizer that do not belong together; nothing was loaded."""

    exit_code = 5


class ResourceError(PellucidError):
    """Not enough memory or disk space."""

    exit_code = 6


@contextmanager
def blaming(
    location: object, kind: type[PellucidError] = CorruptFileError, keys: Callable[[str], str | Argument] = str
) -> Iterator[None]:
    """Makes an InputError raised within the block one about a file: the error names the file, and its own keys.

    location: the file, or where in it.  kind: class of the error.
    keys: the file's key for an argument, by default its name; an argument with a value is one to pass, and stays.
    """
    try:
        yield
    except (InputError, RecursionError) as error:  # too deeply nested even for `repr`
        parts = error.parts if isinstance(error, InputError) else (str(error),)
        message_parts = (keys(one.name) if isinstance(one, Argument) and one.value is ... else one for one in parts)
        raise kind(f"{location}: ", *message_parts) from error


_MAX_NAME_LENGTH = 300
"""Characters of a name for which similar ones are sought: one in a file may have megabytes, which would take long."""


def requested_memory(error: BaseException) -> str:
    """The size of the allocation that PyTorch failed to make on a CPU or GPU, such as "2.00 GiB"; "" for any other
    error. For both it raises a bare RuntimeError, with the size in bytes on the CPU."""
    found = re.search(r"tried to allocate (\d+(?:\.\d+)?) (\w+)", str(error), re.IGNORECASE)
    if not found or not isinstance(error, RuntimeError):
        return ""
    if found[2] != "bytes":
        return f"{found[1]} {found[2]}"
    size = float(found[1])
    return f"{size / 2**20:.2f} MiB" if size < 2**30 else f"{size / 2**30:.2f} GiB"


_NO_MEMORY = ("std::bad_alloc", "failed to map segment", "cannot allocate memory")
"""Parts of error messages where memory ran out in C++, or while a library was loaded."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, in Python, in PyTorch, or for PyTorch's own libraries during its import."""
    if isinstance(error, MemoryError) or requested_memory(error):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | ImportError | OSError) and any(phrase in text for phrase in _NO_MEMORY)


def was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C led to this error. PyTorch, interrupted while one of its modes is off its stack, raises a
    RuntimeError about that stack."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def handle_sigint(number: int, frame: Any) -> None:
    """The command line's handler of Ctrl-C: the default one, except that it ends the process while NumPy or PyTorch is
    being imported, since they swallow the interrupt and continue half initialized."""
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in ("numpy", "torch"))
    if any(getattr(one, "_initializing", False) for one in specs):
        print("pellucid: interrupted", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(130)
    signal.default_int_handler(number, frame)


def did_you_mean(name: object, known: Iterable[str], max_hits: int = 3) -> str:
    """` (did you mean a, b?)` for the names most similar to `name`; "" for none, or a name that is too long. A hit that
    looks identical but has other characters is shown with escapes.

    name: what was found in place of a name; a value that is no string is compared as `str` writes it.
    """
    name = str(name)
    hits = (
        difflib.get_close_matches(name, [*map(str, known)], n=max_hits, cutoff=0.6)
        if len(name) <= _MAX_NAME_LENGTH
        else []
    )
    hits = [ascii(hit) if normalize_nfc(hit) == normalize_nfc(name) else hit for hit in hits]
    return f" (did you mean {', '.join(hits)}?)" if hits else ""


def normalize_nfc(text: str) -> str:
    """The text in Unicode's composed form (NFC), the same for all texts that look the same."""
    return unicodedata.normalize("NFC", text)


def shorten(name: str, max_length: int = 80) -> str:
    """`name`, cut to `max_length` characters, the last of which is then `…`."""
    return name if len(name) <= max_length else f"{name[: max_length - 1]}…"


def escape_unprintable(text: str) -> str:
    """The text with escapes such as `\\x1b` in place of characters that control a terminal or the direction of text."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def format_count(number: int, one: str, many: str = "") -> str:
    """`1 row`, `2,000 rows`; `many` is the plural where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def join_names(names: Iterable[str], max_names: int = 6) -> str:
    """`a, b, c and 4 more`: a list that stays readable at any length."""
    names = list(names)
    return ", ".join(map(shorten, names[:max_names])) + (
        f" and {len(names) - max_names} more" if len(names) > max_names else ""
    )
