"""Where the pieces of a text stand in it, as the sentencepiece library counts."""

import unicodedata
from collections.abc import Container

from tokenizers import decoders

SPACE = "▁"
"""U+2581, which stands for a space inside pieces."""


def piece_decoder(spaces: int) -> decoders.Sequence:
    """The decoder of pieces, what is spelled in bytes among them.  spaces: at most so many are no part of the text."""
    strip = [decoders.Strip(" ", spaces, 0)] if spaces else []
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def cuts_of(piece: str, known: Container[str]) -> list[tuple[str, str]]:
    """The ways to make a piece of two others, the shortest left one first."""
    cuts = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
    return [(left, right) for left, right in cuts if left in known and right in known]


def tiled_offsets(text: str, tokens: list[str], offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The places of tokens in characters: each ends where the next begins, spaces belong to what follows them.

    A character that normalisation turned into several belongs to the last of them; the others are empty.
    """
    starts: list[int] = []
    end = 0
    for token, (start, stop) in zip(tokens, offsets):
        # Of several spaces, and of signs without width that become spaces, the library names only the last.
        wide = starts and token.startswith(SPACE) and all(_is_gap(c) for c in text[end:start])
        starts.append(min(end, start) if wide else start)
        end = max(stop, end)
    while end < len(text) and _joins(text[end]):  # a letter written as two: the library names the first
        end += 1
    return list(zip(starts, [*starts[1:], end]))


def _joins(character: str) -> bool:
    """Whether this is a part of the letter before it: an accent, the rest of a syllable of Hangul, a voiced sign."""
    return bool(unicodedata.combining(character)) or "\u1160" <= character <= "\u11ff" or character in "\uff9e\uff9f"


def _is_gap(character: str) -> bool:
    """Whether this is a separator or a sign that is not seen, by its Unicode category."""
    return unicodedata.category(character)[0] in "ZC"
