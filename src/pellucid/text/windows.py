"""A text that is longer than a model reads: refused, cut, or read in stretches that overlap."""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tokenizers

from pellucid.errors import InputError, format_count
from pellucid.text.cut import clean_text, item_name, overlap_tokens, too_long_error, trimmed_span, truncate_pair
from pellucid.text.encoded import Encoded, with_tiled_offsets
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.unspaced import word_starts

RULES = ("error", "truncate", "windows")


@dataclass(frozen=True, slots=True)
class Window(Encoded):
    """A stretch of a text, or of one of a pair beside the whole of the other, as the model sees it.

    word_ids: the number of each token's word, as the tokenizer splits its text; None for special tokens.
    words: the same, but that in scripts without spaces each token is a word (`text/unspaced.py`).
    sequence_ids: 0 for tokens of the first text, 1 for those of the second; None for special tokens.
    index, count: which stretch, from 0, of how many.  tokens_before: tokens of the text that stand before this stretch.
    cut: tokens that stand in no stretch of this text.
    """

    word_ids: list[int | None]
    words: list[int | None]
    sequence_ids: list[int | None]
    index: int
    count: int
    tokens_before: int

    def span(self, side: int = 0) -> tuple[int, int]:
        """The characters of a text that this stretch holds, from and to; (0, 0) where it holds none."""
        spans = [place for place, here in zip(self.offsets, self.sequence_ids) if here == side]
        return (spans[0][0], max(end for _, end in spans)) if spans else (0, 0)


@dataclass(frozen=True, slots=True)
class _TokenizedText:
    """A text whose tokens may yet be cut off.

    word_starts: where its words begin; None where they are the tokenizer's.
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
    """One text, or one pair, as one stretch or as several.

    rule: "error" refuses what is longer than `max_length`, "truncate" cuts its end off, or its beginning where the
        tokenizer's `truncation_side` is "left", and counts what was cut, "windows" reads all of it in stretches.
    max_length: tokens of a stretch, special ones among them; by default the tokenizer's own limit.
    stride: tokens that a stretch shares with the one before; by default a quarter of what a stretch holds.
    side: which text of a pair is cut, 0 or 1; the other stays whole. None cuts the longer one, then both in turn; in
        stretches it is the first.
    is_split_into_words: the text is a list of words, of which each is read as if it stood alone; places count the
        characters of the words with a space between them.
    index: the number of the text, or the place where it stands, for whoever reads an error.
    """
    read = [_tokenize_text(tokenizer, text, index, parse_special_tokens, is_split_into_words)]
    read += [] if pair is None else [_tokenize_text(tokenizer, pair, index, parse_special_tokens)]
    firsts, seconds = read[0].tokens, None if pair is None else read[1].tokens
    limit, excess, step = _limit(tokenizer, max_length), 0, 0
    long = firsts if seconds is None or not side else seconds
    size, added = len(long), tokenizer.added_tokens(pair=seconds is not None)
    if limit is not None:
        excess = max(sum(len(one.tokens) for one in read) + added - limit, 0)
    if limit is not None and excess:
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
            truncate_pair(firsts, seconds, limit, added, strategy, tokenizer.truncation_side)
        else:
            shared = overlap_tokens(stride, room)
            long.truncate(room, stride=shared)
            step = room - shared
    before = size - len(long) if rule == "truncate" and tokenizer.truncation_side == "left" else 0
    done = tokenizer.post_process(firsts, seconds, True)
    every = [done, *done.overflowing] if rule == "windows" else [done]
    cut = excess if rule == "truncate" else 0
    types = dict(zip(done.sequence_ids, done.type_ids))  # the library gives a text's type to its first stretch alone
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
    """The window with the numbers of the words that begin where its texts say."""
    words = list(window.word_ids)
    for i, (side, place) in enumerate(zip(window.sequence_ids, window.offsets)):
        if side is not None and (starts := read[side].word_starts) is not None:
            words[i] = bisect_right(starts, trimmed_span(read[side].text, *place)[0]) - 1
    return replace(window, words=words)


def _with_joined_offsets(window: Window, words: list[str]) -> Window:
    """The places of the tokens of single words, with a space between these; those of a second text stay."""
    starts = list(itertools.accumulate((len(word) + 1 for word in words), initial=0))
    places = [
        (starts[word] + start, starts[word] + end) if side == 0 and word is not None else (start, end)
        for side, word, (start, end) in zip(window.sequence_ids, window.word_ids, window.offsets)
    ]
    return replace(window, offsets=places)


def _limit(tokenizer: Tokenizer, max_length: int | None) -> int | None:
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise InputError(f"max_length is {max_length!r}, expected a whole number from 1")
    return tokenizer.model_max_length if max_length is None else max_length


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
