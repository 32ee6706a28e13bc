"""Offsets of the pieces of a text, as the sentencepiece library counts them."""

import unicodedata
from collections.abc import Container

from tokenizers import decoders

SPACE = "▁"
"""U+2581, which represents a space in pieces."""


def piece_decoder(spaces: int) -> decoders.Sequence:
    """The decoder of pieces, including those that represent bytes.  spaces: leading spaces to strip, at most."""
    strip = [decoders.Strip(" ", spaces, 0)] if spaces else []
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def cuts_of(piece: str, known: Container[str]) -> list[tuple[str, str]]:
    """All ways to split a piece into two known ones, the shortest left part first."""
    cuts = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
    return [(left, right) for left, right in cuts if left in known and right in known]


def tiled_offsets(text: str, tokens: list[str], offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Offsets of tokens in characters: each token ends where the next begins; spaces belong to the token after them.

    A character that normalisation expanded belongs to the last of its tokens; the others are empty.
    """
    starts: list[int] = []
    end = 0
    for token, (start, stop) in zip(tokens, offsets):
        # Of several spaces, or zero-width characters that become spaces, the library reports only the last.
        wide = starts and token.startswith(SPACE) and all(_is_gap(c) for c in text[end:start])
        starts.append(min(end, start) if wide else start)
        end = max(stop, end)
    while end < len(text) and _joins(text[end]):  # a letter in two code points: the library reports the first
        end += 1
    return list(zip(starts, [*starts[1:], end]))


def _joins(character: str) -> bool:
    """Whether a character belongs to the one before: an accent, the rest of a Hangul syllable, a voicing mark."""
    return bool(unicodedata.combining(character)) or "\u1160" <= character <= "\u11ff" or character in "\uff9e\uff9f"


def _is_gap(character: str) -> bool:
    """Whether a character is a separator or invisible, by its Unicode category."""
    return unicodedata.category(character)[0] in "ZC"
