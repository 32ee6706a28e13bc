"""A long text for a generating model: split into chunks that end with a sentence, or truncated at either end.

"One. Two and more. Three, which is long."   ->   "One. Two and more." | "Three, which is" | "long."
"""

import bisect
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace

import tokenizers

from pellucid.errors import InputError, Item, format_count
from pellucid.text.prefix import encode_raw_with_prefix
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.truncation import overlap_tokens, too_long_error, trimmed_span

_SENTENCE = re.compile(
    r"(?P<end>[.!?…؟۔।॥։።។။]+[\"'”’»)\]]*(?=\s)|(?:[。！？｡]|．(?![０-９0-9])|…{2,})+[”’」』）】〉》〕]*|\n(?=\s*?\n))|[.!?…؟۔।॥։።។။]+"
)
"""Sentence ends: Latin, Arabic, Urdu, Devanagari, Armenian, Ethiopic, Khmer, Burmese; Chinese needs no space. A run of
marks that ends no sentence matches as a whole: else matching would be retried from each mark in it."""

_SPACE = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A chunk of a text, as a model reads it.

    ids: its tokens, including the prefix and special tokens.  span: its start and end in the original text.
    cut: tokens of the text that are in no chunk.
    """

    ids: list[int]
    span: tuple[int, int]
    cut: int = 0


@dataclass(frozen=True, slots=True)
class PrefixedEncoder:
    """How texts are tokenized.

    prefix: a text before each chunk.
    parse_special_tokens: whether special tokens in a text are read as tokens, not characters; those in the prefix are.
    add_special_tokens: whether the tokenizer's special tokens are added to each chunk.
    """

    tokenizer: Tokenizer
    prefix: str = ""
    parse_special_tokens: bool = False
    add_special_tokens: bool = True

    @property
    def special_token_count(self) -> int:
        """The number of special tokens added to a chunk."""
        return self.tokenizer.added_tokens(pair=False) if self.add_special_tokens else 0

    def encode_raw(self, text: str) -> tokenizers.Encoding:
        """Tokenizes the prefix and a text, without adding special tokens."""
        return encode_raw_with_prefix(self.tokenizer, self.prefix, [text], self.parse_special_tokens, "item")[0]

    def post_process(self, encoding: tokenizers.Encoding) -> tokenizers.Encoding:
        """The encoding with special tokens added."""
        return self.tokenizer.post_process(encoding, None, self.add_special_tokens)

    def whole_chunk(self, text: str) -> TextChunk:
        """A text that fits, as one chunk."""
        return TextChunk(self.post_process(self.encode_raw(text)).ids, (0, len(text)))

    def prefixed_chunk(self, before: tokenizers.Encoding, part: tokenizers.Encoding, cut: int = 0) -> TextChunk:
        """The prefix and some tokens of a text as a chunk.  cut: how many other tokens are in no chunk."""
        span = part.offsets[0][0], max(end for _, end in part.offsets)
        return TextChunk(self.post_process(tokenizers.Encoding.merge([before, part], True)).ids, span, cut)


def sentence_chunks(
    encoder: PrefixedEncoder, text: str, index: int, *, rule: str, limit: int | None
) -> list[TextChunk]:
    """A text as one chunk; where it is too long it is refused, truncated, or split into chunks that do not overlap.

    text: without lone surrogates.
    rule: "error", "truncate" or "windows". Truncation cuts off the end of the text, or its beginning where the
        tokenizer's `truncation_side` is "left"; the prefix stays.  limit: tokens of a chunk, special tokens included;
        None for none.
    A chunk ends after the last sentence that ends in it, else after a word, else after a token, where a letter keeps
    its combining marks.
    """
    whole = encoder.encode_raw(text)
    excess = 0 if limit is None else len(whole) + encoder.special_token_count - limit
    if limit is None or excess <= 0:
        return [encoder.whole_chunk(text)]
    if rule == "error":
        raise too_long_error(index, excess, limit)
    room = limit - encoder.special_token_count
    if room <= len(encoder.encode_raw("")):
        raise InputError(
            Item(index),
            f": the prefix leaves no room for the text in {format_count(limit, 'token')}: allow more, or shorten it",
        )
    if rule == "truncate" and encoder.tokenizer.truncation_side == "left":
        return ending_chunks(encoder, text, index, room=limit, rule=rule)
    if rule == "truncate":
        return [_first_chunk(encoder, whole, room)]
    return list(_split_chunks(encoder, text, whole, room)) or [encoder.whole_chunk("")]


def ending_chunks(
    encoder: PrefixedEncoder,
    text: str,
    index: int,
    *,
    room: int,
    rule: str,
    stride: int | None = None,
    left: bool = True,
) -> list[TextChunk]:
    """A text that is too long for a model to continue, in chunks of at most `room` tokens, special tokens included.

    text: without lone surrogates.
    rule: "truncate" keeps its end, or its beginning where `left` is False; "windows" keeps all of it, in chunks of
        which the last is full.
    stride: tokens that a chunk shares with the previous one; by default a quarter of the text tokens in a chunk.
    """
    before, whole = encoder.encode_raw(""), replace(encoder, prefix="").encode_raw(text)
    room -= encoder.special_token_count + len(before)
    if room < 1:
        raise InputError(Item(index), ": the prefix leaves no room for the text: shorten it")
    if rule == "truncate" and not left:
        return [_first_chunk(encoder, encoder.encode_raw(text), room + len(before))]
    if rule == "truncate":
        excess = len(whole) - room
        whole.truncate(room, direction="left")
        return [encoder.prefixed_chunk(before, whole, excess)]
    whole.truncate(room, stride=overlap_tokens(stride, room), direction="left")
    return [encoder.prefixed_chunk(before, one) for one in (*reversed(whole.overflowing), whole)]


def _first_chunk(encoder: PrefixedEncoder, whole: tokenizers.Encoding, room: int) -> TextChunk:
    """The first tokens of a prefix and its text, tokenized together."""
    excess = max(len(whole) - room, 0)
    whole.truncate(room)
    last = max(end for _, end in whole.offsets) - len(encoder.prefix)
    return TextChunk(encoder.post_process(whole).ids, (0, max(last, 0)), excess)


def _split_chunks(encoder: PrefixedEncoder, text: str, whole: tokenizers.Encoding, room: int) -> Iterator[TextChunk]:
    """Chunks of at most `room` tokens; each is tokenized anew, since a word may be tokenized differently at a start."""
    shift, before = len(encoder.prefix), len(encoder.encode_raw(""))
    spans = [(max(start - shift, 0), end - shift) for start, end in whole.offsets if end > shift]
    starts, start = [first for first, _ in spans], 0
    while start < len(text):
        first, num_tokens = bisect.bisect_left(starts, start), room - before
        while True:
            last = first + num_tokens
            end = len(text) if last >= len(spans) else _chunk_end(text, start, max(spans[last - 1][1], start + 1))
            row = encoder.encode_raw(text[start:end].strip())
            if len(row) <= room or num_tokens == 1:
                break
            num_tokens = max(num_tokens - (len(row) - room), 1)
        if text[start:end].strip():
            cut = max(len(row) - room, 0)  # one word longer than a chunk
            row.truncate(room)
            yield TextChunk(encoder.post_process(row).ids, trimmed_span(text, start, end), cut)
        start = end


def _chunk_end(text: str, start: int, max_end: int) -> int:
    """Where a chunk ends that starts at `start` and may extend to `max_end`, in characters."""
    marks = _SENTENCE.finditer(text, start, min(max_end + 1, len(text)))
    ends = [found.end() for found in marks if found["end"] and found.end() <= max_end]
    if ends:
        return ends[-1]
    if _SPACE.match(text, max_end):
        return max_end
    spaces = [found.start() for found in _SPACE.finditer(text, start, max_end)]
    if spaces and text[start : spaces[-1]].strip():
        return spaces[-1]
    while start + 1 < max_end < len(text) and unicodedata.category(text[max_end])[0] == "M":
        max_end -= 1
    return max_end
