"""Special tokens that somebody typed into a message, marked so that a chat template cannot hide who wrote them."""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import PreTokenizedString, Regex

from pellucid.text.cut import panics_as_errors

_START, _END = "\U000f0000", "\U000f0001"
"""Two characters of private use; they are taken out of what people typed."""


def mark_special_tokens(value: Any, tokens: Sequence[str], normalizer: Any = None, *, keys: bool = False) -> Any:
    """The same messages with marks around each of `tokens`, and around what `normalizer` makes one.

    Roles such as "user" stay, with which templates compare them, and keys, by which templates ask; but not those of a
    tool's arguments, which somebody wrote.  keys: whether these keys are such.
    """
    if isinstance(value, str):
        clean = value.replace(_START, "").replace(_END, "")
        found = _split_at_tokens(clean, tokens, normalizer)
        return "".join(f"{_START}{part}{_END}" if special else part for part, special in found)
    marked = functools.partial(mark_special_tokens, tokens=tokens, normalizer=normalizer)
    if isinstance(value, Mapping) and keys:
        return {marked(key): marked(item, keys=True) for key, item in value.items()}
    if isinstance(value, Mapping):
        return {
            key: item if key == "role" and str(item).isidentifier() else marked(item, keys=key == "arguments")
            for key, item in value.items()
        }
    return [marked(item, keys=keys) for item in value] if isinstance(value, list | tuple) else value


def _split_at_tokens(text: str, tokens: Sequence[str], normalizer: Any) -> Iterator[tuple[str, bool]]:
    """The parts of a text, each with whether it is one of `tokens`, as they stand or once both are normalised."""
    for i, part in enumerate(re.split(f"({_alternation(tokens)})", text)):
        if i % 2 or normalizer is None:
            yield part, i % 2 == 1
            continue
        with panics_as_errors():
            places = _normalized_spans(part, {*tokens, *map(normalizer.normalize_str, tokens)} - {""}, normalizer)
        yield from _split_at_spans(part, places)


def _normalized_spans(text: str, forms: Collection[str], normalizer: Any) -> list[tuple[int, int]]:
    """Where a text, once normalised, holds one of `forms`, in characters of the text itself."""
    whole = PreTokenizedString(text)
    whole.normalize(normalizer.normalize)
    whole.split(lambda _, part: part.split(Regex(_alternation(forms)), "isolated"))
    return [place for piece, place, _ in whole.get_splits("original", "char") if piece in forms]


def _split_at_spans(text: str, special: Iterable[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """The parts of a text, of which some places are special; two of them may lie in one letter."""
    position = 0
    for first, last in special:
        if last > position:
            yield text[position:first], False
            yield text[max(first, position) : last], True
            position = last
    yield text[position:], False


def _alternation(tokens: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))


def split_marked(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text, each with whether it was marked; a lone mark is dropped, and what it parted stays parted."""
    for i, part in enumerate(re.split(f"{_START}([^{_START}{_END}]*){_END}", text)):
        for piece in re.split(f"[{_START}{_END}]", part):
            if piece:
                yield piece, i % 2 == 1


def marked_ids(text: str, encode: Callable[[list[str], bool], list[list[int]]]) -> list[int]:
    """The ids of a text with the marks of `mark_special_tokens`; the reference's way, newlines and all.

    encode: gives the ids of texts, and is told whether they were typed.
    """
    ids: list[int] = []
    for part, typed in split_marked(text):
        # Behind a newline no model puts a space before the part, nor behind a letter, which is asked where the
        # vocabulary joins newlines with the white space behind them. The ids of what stands before go again.
        for before in ("\n", "x") if ids else ():
            alone, both = encode([before, f"{before}{part}"], typed)
            if both[: len(alone)] == alone:
                break
        else:
            alone, both = encode(["", part], typed)
        ids += both[len(alone) :]
    return ids
