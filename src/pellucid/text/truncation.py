"""Before and after the library: texts are cleaned, pairs truncated, and panics turned into errors."""

import logging
import operator
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pellucid.errors import (
    Argument,
    CorruptFileError,
    InputError,
    Item,
    MessagePart,
    PellucidError,
    ResourceError,
    format_count,
    shorten,
)
from pellucid.integers import as_integer

log = logging.getLogger("pellucid")

MAX_CHARACTERS = 10_000_000
"""Longest single text that is tokenized; a longer one is refused before any work is done."""


def item_name(index: int | str, what: str) -> str | Item:
    """The name of a text in an error: its number, or its location in a file where the caller passed that."""
    return index if isinstance(index, str) else Item(index, what)


def clean_text(text: object, index: int | str, what: str) -> str:
    """The text with lone surrogates replaced. Raises InputError for anything but a string, or where it is too long."""
    if not isinstance(text, str):
        raise InputError(item_name(index, what), f" is {type(text).__name__}, expected a string")
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            item_name(index, what),
            f" has {len(text):,} characters, expected at most {MAX_CHARACTERS:,}: split it first",
        )
    return replace_surrogates(text)


def check_has_tokens(ids: Sequence[int], name: MessagePart, advice: str = "") -> None:
    """Raises InputError where a text has no tokens.  name: the name of the text in the error."""
    if not ids:
        raise InputError(name, " has no tokens: a model reads at least one", advice)


def warn_of_truncation(number: int, total: int, max_tokens: int | None, what: str = "text") -> None:
    """Logs how many of all texts were truncated, if any.  max_tokens: the number of tokens kept of each."""
    if number and max_tokens is not None:
        were, limit = "was" if number == 1 else "were", format_count(max_tokens, "token")
        log.warning("%s of %s %s cut to %s", f"{number:,}", format_count(total, what), were, limit)


def checked_ids(ids: Any) -> list[int]:
    """Token ids from any iterable as a list of ints. Raises InputError for anything that is not an id."""
    try:
        values = list(ids)
        found = [-1] if _are_not_ids(ids, values) else [operator.index(i) for i in values]
    except TypeError:
        found = [-1]
    if found and not 0 <= min(found) <= max(found) < 2**32:
        raise InputError(f"the ids are {shorten(repr(ids))}, expected the ids of tokens: whole numbers from 0")
    return found


def _are_not_ids(ids: Any, values: list[Any]) -> bool:
    """Whether these are strings, bytes or booleans, which Python would silently convert to numbers."""
    if hasattr(ids, "dtype"):
        return str(ids.dtype) in ("torch.bool", "bool")
    kinds = {kind.__name__ for kind in set(map(type, values))}  # each type once, since there may be many ids
    truths = "Tensor" in kinds and any(str(getattr(one, "dtype", "")) == "torch.bool" for one in values)
    return truths or bool(kinds & {"bool", "bool_"}) or isinstance(ids, str | bytes | bytearray | memoryview)


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which is no character and cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def trimmed_span(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space at its ends; an empty span at its end where it holds nothing else."""
    piece = text[start:end]
    return end - len(piece.lstrip()), start + len(piece.rstrip()) if piece.strip() else end


def visible_span(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space at its ends, extended by the combining marks of its last letter, which a tokenizer
    that strips accents does not count as characters of the token."""
    start, end = trimmed_span(text, start, end)
    while start < end < len(text) and is_combining_mark(text[end]):
        end += 1
    return start, end


def start_without_marks(text: str, start: int, end: int) -> int:
    """The start of a span after the combining marks of the letter before it, which `visible_span` adds to the span of
    that letter; unchanged where the span holds nothing else."""
    position = start
    while start and not text[start - 1].isspace() and position < end and is_combining_mark(text[position]):
        position += 1
    return position if position < end else start


def is_combining_mark(character: str) -> bool:
    """Whether a character combines with the one before it: an accent, a vowel sign, a half-width kana voicing mark."""
    return unicodedata.category(character)[0] == "M" or character in "\uff9e\uff9f"


def truncate_pair(first: Any, second: Any, limit: int | None, added: int, strategy: str, side: str) -> int:
    """Truncates the encodings in place until both fit into `limit` with `added` special tokens; returns the number cut.

    side: "right" cuts off the end of a text, "left" its beginning.
    """
    sizes = [len(first), 0 if second is None else len(second)]
    if limit is None:
        return 0
    excess = sum(sizes) + added - limit
    if excess <= 0:
        return 0
    second_alone = truncates_second(strategy, second)
    room = sum(sizes) - excess
    if room < 0:
        raise InputError(
            Argument("max_length", limit), f" leaves no room beside {format_count(added, 'special token')}"
        )
    if strategy == "only_first" or second is None:
        keep = [sizes[0] - excess, sizes[1]]
    elif second_alone:
        keep = [sizes[0], sizes[1] - excess]
    else:  # the longer one first, then both in turn, as in the reference
        shorter = min(min(sizes), room // 2)
        keep = [room - shorter, shorter] if sizes[0] > sizes[1] else [shorter, room - shorter]
    if min(keep) < 0:
        raise InputError(
            f"cutting {strategy.removeprefix('only_')} text alone cannot fit the pair into "
            f"{format_count(limit, 'token')}"
        )
    for encoding, size in zip((first, second), keep):
        if encoding is not None:
            encoding.truncate(size, direction=side)
    return excess


def truncates_second(strategy: str, second: Any) -> bool:
    """Whether only the second text is to be truncated. Raises InputError where there is none."""
    if strategy == "only_second" and second is None:
        raise InputError("'only_second' cuts the second text, and there is only one")
    return strategy == "only_second"


def too_long_error(index: int | str, excess: int, limit: int) -> InputError:
    """The error for an item longer than the limit, where neither truncation nor windows were requested."""
    return InputError(
        item_name(index, "item"),
        f" has {format_count(excess, 'token')} more than the {limit:,} that are read at once: pass ",
        Argument("long", "windows"),
        " to read all of it in windows, or ",
        Argument("long", "truncate"),
        " to cut it",
    )


def overlap_tokens(stride: int | None, room: int) -> int:
    """The number of tokens that windows of `room` tokens share: `stride`, by default a quarter of `room`."""
    shared = room // 4 if stride is None else as_integer(stride)
    if shared is None or not 0 <= shared < room:
        raise InputError(
            Argument("stride"),
            f" is {shorten(repr(stride))}, expected a whole number below the {format_count(room, 'token')} of a "
            "window: pass fewer, or raise ",
            Argument("max_length"),
        )
    return shared


@contextmanager
def panics_as_errors(what: str = "the tokenizer failed on this text") -> Iterator[None]:
    """Turns panics of the library, which are no `Exception`, into CorruptFileError beginning with `what`; errors of
    pellucid are left alone. Raises ResourceError where the system cannot start its threads."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, PellucidError):
        raise
    except BaseException as error:
        if "ThreadPoolBuildError" in str(error):  # neither the text nor the tokenizer is at fault
            raise ResourceError(
                "the system starts no more threads, and reading several texts needs them: set "
                "TOKENIZERS_PARALLELISM=false, "
                "or raise its limit of memory or processes"
            ) from error
        raise CorruptFileError(f"{what}: {shorten(str(error), 120)}") from error
