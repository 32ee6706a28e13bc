"""Words of scripts that put no space between them, as far as a text can be parted without a dictionary."""

import re
from collections.abc import Sequence

from pellucid.text.cut import is_combining_mark, trimmed_span

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u31ff\u3400-\u9fff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana and Han: a class of characters for a regular expression."""

_ONE = re.compile(f"[{UNSPACED}]")

Span = tuple[int, int]


def is_unspaced(text: str, start: int = 0) -> bool:
    """Whether the character at `start` is of such a script; no character is none."""
    return _ONE.match(text, start) is not None


def word_starts(text: str, places: Sequence[Span], words: Sequence[int | None]) -> list[int] | None:
    """The characters at which words begin, where every token is one that stands in such a script or beside it.

    Tokenizers that know only spaces take a whole sentence of these for one word, of which no part could be an answer or
    a name. Tokens that share a character stay together, and so does a mark with the letter it stands on.
    places: the characters of each token.  words: as the tokenizer parts the text.
    ->  in their order; None where the text has no such letter, and its words are the tokenizer's
    """
    if _ONE.search(text) is None:
        return None
    starts, end, before = [0], 0, None
    for place, word in zip(places, words):
        start, stop = trimmed_span(text, *place)
        touches_unspaced = is_unspaced(text, start) or (end > 0 and is_unspaced(text, end - 1))
        parts = word != before or (touches_unspaced and start < stop)
        if parts and end <= start > starts[-1] and not (is_unspaced(text, start) and is_combining_mark(text[start])):
            starts.append(start)
        end, before = max(end, stop), word
    return starts
