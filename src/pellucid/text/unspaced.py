"""Words in scripts without spaces, as far as a text can be split without a dictionary."""

import re
from collections.abc import Sequence

from pellucid.text.truncation import is_combining_mark, trimmed_span

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u31ff\u3400-\u9fff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana and Han, as a character class of a regular expression."""

_ONE = re.compile(f"[{UNSPACED}]")

Span = tuple[int, int]


def is_unspaced(text: str, start: int = 0) -> bool:
    """Whether the character at `start` is of such a script; False at the end of the text."""
    return _ONE.match(text, start) is not None


def word_starts(text: str, spans: Sequence[Span], words: Sequence[int | None]) -> list[int] | None:
    """The characters at which words begin, where each token in or next to such a script is a word.

    Tokenizers that split at spaces only take a whole sentence in such a script for one word, of which no part could be
    an answer or a name. Tokens that share a character stay together, as do a combining mark and its letter.
    spans: the span of each token, in characters.  words: word indices, as the tokenizer splits the text.
    ->  in order; None where the text has no such character, and its words are the tokenizer's
    """
    if _ONE.search(text) is None:
        return None
    starts, end, before = [0], 0, None
    for span, word in zip(spans, words):
        start, stop = trimmed_span(text, *span)
        touches_unspaced = is_unspaced(text, start) or (end > 0 and is_unspaced(text, end - 1))
        parts = word != before or (touches_unspaced and start < stop)
        if parts and end <= start > starts[-1] and not (is_unspaced(text, start) and is_combining_mark(text[start])):
            starts.append(start)
        end, before = max(end, stop), word
    return starts
