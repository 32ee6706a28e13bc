"""A text longer than a model's input: refused, truncated, or split into overlapping windows."""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tokenizers

from pellucid.config.checks import check_count
from pellucid.errors import InputError, format_count
from pellucid.text.encoded import Encoded, with_tiled_offsets
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.truncation import clean_text, item_name, overlap_tokens, too_long_error, trimmed_span, truncate_pair
from pellucid.text.unspaced import word_starts

RULES = ("error", "truncate", "windows")


@dataclass(frozen=True, slots=True)
class Window(Encoded):
    """A window of a text, or of one text of a pair next to the whole of the other, as a model reads it.

    word_ids: the index of each token's word, as the tokenizer splits its text; None for special tokens.
    words: the same, except that each token of a script without spaces is a word (`text/unspaced.py`).
    sequence_ids: 0 for tokens of the first text, 1 for those of the second; None for special tokens.
    index, count: the number of this window, from 0, and of all.  tokens_before: tokens of the text before this window.
    cut: tokens of the text that are in no window.
    """

    word_ids: list[int | None]
    words: list[int | None]
    sequence_ids: list[int | None]
    index: int
    count: int
    tokens_before: int

    def span(self, side: int = 0) -> tuple[int, int]:
        """The start and end of this window in a text, in characters; (0, 0) where it holds none of it."""
        spans = [offsets for offsets, here in zip(self.offsets, self.sequence_ids) if here == side]
        return (spans[0][0], max(end for _, end in spans)) if spans else (0, 0)


@dataclass(frozen=True, slots=True)
class _TokenizedText:
    """A text whose tokens may still be truncated.

    word_starts: where its words begin, in characters; None where the tokenizer's words are used.
    """

    text: str
    word_starts: list[int] | None
    tokens: tokenizers.Encoding


def windows(
    tokenizer: Tokenizer,
    text: object,
    pair: object = None,
    *,
    index: int | str = 0,
    rule: str = "error",
    max_length: int | None = None,
    stride: int | None = None,
    side: int | None = 0,
    parse_special_tokens: bool = False,
    is_split_into_words: bool = False,
) -> list[Window]:
    """One text, or one pair, as one window or several.

    rule: "error" refuses a text longer than `max_length`; "truncate" cuts off its end, or its beginning where the
        tokenizer's `truncation_side` is "left", and counts the tokens cut; "windows" reads all of it.
    max_length: tokens of a window, special tokens included; by default the tokenizer's own limit.
    stride: tokens that a window shares with the previous one; by default a quarter of the text tokens in a window.
    side: which text of a pair is shortened, 0 or 1; the other stays whole. None truncates the longer one, then both in
        turn; with "windows" it means the first.
    is_split_into_words: the text is a list of words, each tokenized on its own; offsets count the characters of the
        words joined by single spaces.
    index: the number of the text, or its location in words, for error messages.
    """
    read = [_tokenize_text(tokenizer, text, index, parse_special_tokens, is_split_into_words)]
    read += [] if pair is None else [_tokenize_text(tokenizer, pair, index, parse_special_tokens)]
    firsts, seconds = read[0].tokens, None if pair is None else read[1].tokens
    limit, cut, before, step = _limit(tokenizer, max_length), 0, 0, 0
    long = firsts if seconds is None or not side else seconds
    size, added = len(long), tokenizer.added_tokens(pair=seconds is not None)
    if limit is not None and (excess := sum(len(one.tokens) for one in read) + added - limit) > 0:
        room, longest_first = size - excess, side is None and rule == "truncate"
        if rule == "error" and (room > 0 or (seconds is not None and side is None)):
            raise too_long_error(index, excess, limit)
        if room < 1 and not longest_first:
            raise InputError(
                item_name(index, "item"),
                f": the rest of the input leaves no room for the text in {format_count(limit, 'token')}: allow more, "
                "or shorten it",
            )
        if rule == "truncate":
            strategy = "longest_first" if longest_first else "only_second" if long is seconds else "only_first"
            cut = truncate_pair(firsts, seconds, limit, added, strategy, tokenizer.truncation_side)
            before = size - len(long) if tokenizer.truncation_side == "left" else 0
        else:
            shared = overlap_tokens(stride, room)
            long.truncate(room, stride=shared)
            step = room - shared
    done = tokenizer.post_process(firsts, seconds, True)
    every = [done, *done.overflowing] if rule == "windows" else [done]
    types = dict(zip(done.sequence_ids, done.type_ids))  # the library sets a text's type in the first window only
    found = [_window(one, i, len(every), cut, before + i * step, types) for i, one in enumerate(every)]
    if any(one.word_starts for one in read):
        found = [_with_unspaced_words(one, read) for one in found]
    if is_split_into_words and isinstance(text, list):
        return [_with_joined_offsets(one, text) for one in found]
    return [with_tiled_offsets(one, str(text)) for one in found] if tokenizer.tiled and pair is None else found


def _tokenize_text(
    tokenizer: Tokenizer, text: object, index: int | str, parse_special_tokens: bool, is_split_into_words: bool = False
) -> _TokenizedText:
    if is_split_into_words and isinstance(text, list):
        return _TokenizedText("", None, tokenizer.encode_raw_words([text], parse_special_tokens)[0])
    clean = clean_text(text, index, "item")
    (tokens,) = tokenizer.encode_raw([clean], parse_special_tokens, "item")
    return _TokenizedText(clean, word_starts(clean, tokens.offsets, tokens.word_ids), tokens)


def _with_unspaced_words(window: Window, read: Sequence[_TokenizedText]) -> Window:
    """The window with `words` numbered by the word starts of its texts."""
    words = list(window.word_ids)
    for i, (side, span) in enumerate(zip(window.sequence_ids, window.offsets)):
        if side is not None and (starts := read[side].word_starts) is not None:
            words[i] = bisect_right(starts, trimmed_span(read[side].text, *span)[0]) - 1
    return replace(window, words=words)


def _with_joined_offsets(window: Window, words: list[str]) -> Window:
    """The window with offsets in words shifted to those in the words joined by spaces; a second text's stay."""
    starts = list(itertools.accumulate((len(word) + 1 for word in words), initial=0))
    offsets = [
        (starts[word] + start, starts[word] + end) if side == 0 and word is not None else (start, end)
        for side, word, (start, end) in zip(window.sequence_ids, window.word_ids, window.offsets)
    ]
    return replace(window, offsets=offsets)


def _limit(tokenizer: Tokenizer, max_length: int | None) -> int | None:
    return tokenizer.model_max_length if max_length is None else check_count("max_length", max_length, maximum=None)


def _window(
    done: tokenizers.Encoding, index: int, count: int, cut: int, tokens_before: int, types: dict[int | None, int]
) -> Window:
    return Window(
        done.ids,
        [kind if side is None else types.get(side, kind) for side, kind in zip(done.sequence_ids, done.type_ids)],
        done.tokens,
        done.offsets,
        done.special_tokens_mask,
        cut,
        done.word_ids,
        done.word_ids,
        done.sequence_ids,
        index,
        count,
        tokens_before,
    )
