"""Special tokens in messages, marked so that a chat template cannot hide where they come from."""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import PreTokenizedString, Regex

from pellucid.text.truncation import panics_as_errors

_START, _END = "\U000f0000", "\U000f0001"
"""Two private-use characters, which are removed from the messages themselves."""


def mark_special_tokens(value: Any, tokens: Sequence[str], normalizer: Any = None, *, keys: bool = False) -> Any:
    """The messages with marks around each of `tokens`, and around text that `normalizer` turns into one.

    Roles such as "user" and keys stay, since templates compare and look them up, except the keys of a tool's arguments,
    which are content.  keys: whether these keys are such.
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
    """The parts of a text, each with whether it is one of `tokens`, verbatim or after both are normalised."""
    for i, part in enumerate(re.split(f"({_alternation(tokens)})", text)):
        if i % 2 or normalizer is None:
            yield part, i % 2 == 1
            continue
        with panics_as_errors():
            spans = _normalized_spans(part, {*tokens, *map(normalizer.normalize_str, tokens)} - {""}, normalizer)
        yield from _split_at_spans(part, spans)


def _normalized_spans(text: str, forms: Collection[str], normalizer: Any) -> list[tuple[int, int]]:
    """The spans of a text, in its own characters, that are one of `forms` after normalisation."""
    pre_tokenized = PreTokenizedString(text)
    pre_tokenized.normalize(normalizer.normalize)
    pre_tokenized.split(lambda _, part: part.split(Regex(_alternation(forms)), "isolated"))
    return [span for piece, span, _ in pre_tokenized.get_splits("original", "char") if piece in forms]


def _split_at_spans(text: str, special: Iterable[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """The parts of a text, each with whether it is one of the spans; two of them may share a character."""
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
    """The parts of a text, each with whether it was marked; a lone mark is dropped but still splits the text."""
    for i, part in enumerate(re.split(f"{_START}([^{_START}{_END}]*){_END}", text)):
        for piece in re.split(f"[{_START}{_END}]", part):
            if piece:
                yield piece, i % 2 == 1


def marked_ids(text: str, encode: Callable[[list[str], bool], list[list[int]]]) -> list[int]:
    """The ids of a text with the marks of `mark_special_tokens`; as in the reference, newlines included.

    encode: (texts, whether they are content) -> their ids.
    """
    ids: list[int] = []
    for part, is_content in split_marked(text):
        # After a newline no model inserts a space before the part, nor after a letter, which is used where the
        # vocabulary merges newlines with white space after them. The ids of that context are removed again.
        for before in ("\n", "x") if ids else ():
            alone, both = encode([before, f"{before}{part}"], is_content)
            if both[: len(alone)] == alone:
                break
        else:
            alone, both = encode(["", part], is_content)
        ids += both[len(alone) :]
    return ids
