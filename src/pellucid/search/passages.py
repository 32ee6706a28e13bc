"""The words of passages, which may begin and end within a word, since they are split between tokens."""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Literal

from pellucid.search.entry import Entry
from pellucid.search.words import MAX_WORD_CHARACTERS, split_words, terms
from pellucid.text.truncation import replace_surrogates
from pellucid.text.unspaced import is_unspaced


def with_terms(rows: Iterable[Entry]) -> Iterator[tuple[Entry, list[str]]]:
    """Each row with the terms of its text; each passage with those that begin in it, for which the text is reassembled
    from its consecutive passages."""
    for passages, group in itertools.groupby(rows, key=lambda row: row.first is not None):
        if passages:
            for parts in _by_text(group):
                text, spans = _rejoin(parts)
                yield from ((part, terms_between(text, *span)) for part, span in zip(parts, spans))
        else:
            yield from ((row, terms(replace_surrogates(row.text))) for row in group)


def terms_between(text: str, first: int, last: int) -> list[str]:
    """The terms that begin in a span of a text: a word divided by its end is included whole, one divided by its start
    is not; in scripts without spaces the characters on both sides of its end form a pair, too."""
    start = first
    if _kinds(_neighbours(text, first)) == {"word"}:
        while start < last and _character_kind(text[start]) in ("word", "nothing"):
            start += 1
    neighbours, end = _neighbours(text, last), last
    if start < last and _kinds(neighbours) == {"word"}:
        while end < min(len(text), last + MAX_WORD_CHARACTERS) and _character_kind(text[end]) in ("word", "nothing"):
            end += 1
    across = []
    if first < last and _kinds(neighbours) == {"alone"}:
        left, right = map(split_words, neighbours)  # a character may expand to several letters
        across.append(left[-1][-1] + right[0][0])
    return terms(text[start:end]) + across


def _by_text(passages: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The passages of each text; where two consecutive texts have the same id, the second starts over."""
    parts: list[Entry] = []
    for one in passages:
        if parts and (one.id != parts[-1].id or (one.first or 0) <= (parts[-1].first or 0)):
            yield parts
            parts = []
        parts.append(one)
    if parts:
        yield parts


def _rejoin(parts: Iterable[Entry]) -> tuple[str, list[tuple[int, int]]]:
    """A text reassembled from its passages, which may overlap, with one space for each gap; and the span of each in
    it."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    size = end = 0
    for part in parts:
        first, text = part.first or 0, replace_surrogates(part.text)
        if first > end:
            pieces.append(" ")
            size, end = size + 1, first
        start, new = size - (end - first), text[end - first :]
        spans.append((start, start + len(text)))
        pieces.append(new)
        size, end = size + len(new), max(end, first + len(text))
    return "".join(pieces), spans


@functools.lru_cache(4096)
def _character_kind(letter: str) -> Literal["word", "alone", "nothing", "space"]:
    """What a character is to `split_words`: part of a word, a word by itself, a joiner or accent, or between words."""
    if found := split_words(letter):
        return "alone" if is_unspaced(found[-1]) else "word"
    return "nothing" if len(split_words(f"x{letter}x")) == 1 else "space"


def _kinds(letters: str) -> set[str]:
    return set(map(_character_kind, letters))


def _neighbours(text: str, position: int) -> str:
    """The letters before and after a position, ignoring accents and joiners; " " where there is none."""
    sides = (
        text[max(position - MAX_WORD_CHARACTERS, 0) : position][::-1],
        text[position : position + MAX_WORD_CHARACTERS],
    )
    return "".join(next((letter for letter in side if _character_kind(letter) != "nothing"), " ") for side in sides)
