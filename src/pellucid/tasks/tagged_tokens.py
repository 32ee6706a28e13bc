"""The tokens of a text with a head's scores, merged from its windows, and the words that they form."""

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.tasks.reader import WindowOutput, most_central_windows
from pellucid.text.piece_offsets import SPACE
from pellucid.text.truncation import clean_text, trimmed_span
from pellucid.text.unspaced import is_unspaced

BOUNDARIES = ("words", "heuristic")

Span = tuple[int, int]


@dataclass(frozen=True)
class AlignedText:
    """A text as the model reads it, aligned with the caller's characters.

    read, shown: the model's and the caller's.  positions: the position in `shown` of each character of `read` and of
        its end; None where the two are equal.  word_starts: where the caller's words begin in `read`; None for a text.
    """

    read: str
    shown: str
    positions: tuple[int, ...] | None = None
    word_starts: tuple[int, ...] | None = None

    @classmethod
    def of_text(cls, text: str, index: int | str) -> "AlignedText":
        """From a text. Where it holds a surrogate pair as two characters, the model reads one."""
        read = clean_text(text, index, "item")
        if len(read) == len(text):
            return cls(read, text)
        positions, position = [], 0
        for character in read:
            positions.append(position)
            position += 2 if ord(character) > 0xFFFF and ord(text[position]) <= 0xFFFF else 1
        return cls(read, text, (*positions, position))

    @classmethod
    def of_words(cls, words: Sequence[str], delimiter: str, index: int | str) -> "AlignedText":
        """From words, which the model reads joined by spaces, and the caller by a delimiter."""
        words = [clean_text(word, index, "item") for word in words]
        starts, positions, position = [], [], 0
        for word in words:
            starts.append(len(positions))
            positions += range(position, position + len(word) + 1)
            position += len(word) + len(delimiter)
        return cls(" ".join(words), delimiter.join(words), tuple(positions), tuple(starts))

    @property
    def words(self) -> list[str]:
        """The caller's words."""
        starts = self.word_starts or ()
        return [self.read[start : end - 1] for start, end in zip(starts, (*starts[1:], len(self.read) + 1))]

    def shown_span(self, start: int, end: int) -> tuple[Span, int | None]:
        """The characters in `shown` of a span of `read`, and the index of the caller's word there."""
        word = None
        if self.word_starts is not None:
            text_start = end - len(self.read[start:end].lstrip())
            word = bisect_right(self.word_starts, text_start) - 1
            start = max(start, self.word_starts[word])
            end = max(end, min(start + 1, len(self.read)))  # a single space counts as the letter that follows it
        if self.positions is not None:
            start, end = self.positions[start], self.positions[max(start, end)]
        return (start, end), word

    def slice(self, start: int, end: int) -> str:
        """The text there, cleaned of what cannot be encoded."""
        return clean_text(self.shown[start:end], 0, "item")


class TaggedToken(NamedTuple):
    """One token of a sentence.

    piece: as spelled in the vocabulary.  span: characters of the sentence as shown.  word: the index of its word.
    unknown: whether the vocabulary lacks it.  index_in_text: if that were read as a whole.
    window: number of the window that it is taken from.  position: its position there.
    """

    piece: str
    span: Span
    word: int | None
    unknown: bool
    index_in_text: int
    window: int
    position: int


@dataclass(frozen=True)
class TaggedTokens:
    """The tokens of a sentence, as a sequence.  scores: Float32[Tensor, "tokens labels"]"""

    sentence: AlignedText
    tokens: Sequence[TaggedToken]
    scores: Tensor

    def __getitem__(self, i: int) -> TaggedToken:
        return self.tokens[i]

    def __iter__(self) -> Iterator[TaggedToken]:
        return iter(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)


def tag_window(sentence: AlignedText, output: WindowOutput, unknown: int | None) -> TaggedTokens:
    """The tokens of one window. unknown: the id of the unknown token."""
    window, tokens = output.window, list[TaggedToken]()
    for position, side in enumerate(window.sequence_ids):
        if side is None:
            continue
        span, word = sentence.shown_span(*window.offsets[position])
        tokens.append(
            TaggedToken(
                # a mask in the text brings spaces
                window.tokens[position].strip() or window.tokens[position].strip(" "),
                span,
                window.words[position] if sentence.word_starts is None else word,
                window.ids[position] == unknown,
                window.tokens_before + position,
                window.index,
                position,
            )
        )
    return TaggedTokens(sentence, tokens, output.output[[token.position for token in tokens]])


def merge_windows(parts: Sequence[TaggedTokens], outputs: Sequence[WindowOutput]) -> TaggedTokens:
    """The tokens of the whole sentence, each from the window in which it is farthest from a cut."""
    if len(parts) == 1:
        return parts[0]
    indices = [{token.position: i for i, token in enumerate(part)} for part in parts]
    best = most_central_windows([output.window for output in outputs])
    chosen = [(parts[number], indices[number][position]) for number, position in best]
    scores = torch.stack([part.scores[i] for part, i in chosen])
    return TaggedTokens(parts[0].sentence, [part[i] for part, i in chosen], scores)


def tokenizer_words(tokens: TaggedTokens) -> list[range]:
    """The tokens of each word, by the tokenizer's own words: `Merkel` `'` `s` `Siemens` `-` `Villa` `.`

    Tokenizers that split at spaces only, such as sentencepiece, do not separate a word from punctuation. So a token of
    punctuation is a word of its own, unless the caller gave words; a token of a space belongs to the word that follows,
    but not in scripts without spaces, whose words seldom begin with one. Invisible tokens form no word.
    """
    kinds = _token_kinds(tokens)
    found = joined_ranges(len(kinds), lambda i: _continues_word(tokens, kinds, i))
    return [word for word in found if any(kinds[i] in ("word", "sign") for i in word)]


def joined_ranges(count: int, joins: Callable[[int], bool]) -> list[range]:
    """The numbers below `count`, in ranges: each number joins that of the number before it, or begins one."""
    starts = [i for i in range(count) if i == 0 or not joins(i)]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], count])]


def character_ranges(tokens: TaggedTokens) -> list[range]:
    """Each token alone, except those that share a character."""
    found: list[range] = []
    for i, kind in enumerate(_token_kinds(tokens)):
        if (
            found
            and found[-1].stop == i
            and (_overlaps_previous(tokens, i) or (kind in ("word", "sign") and _shares_character(tokens, i)))
        ):
            found[-1] = range(found[-1].start, i + 1)
        elif kind in ("word", "sign"):
            found.append(range(i, i + 1))
    return found


def _continues_word(tokens: TaggedTokens, kinds: list[str], i: int) -> bool:
    shown, is_pretokenized = tokens.sentence.shown, tokens.sentence.word_starts is not None
    if kinds[i] == "space" and _overlaps_previous(tokens, i):  # one character, normalized to several words
        return True
    if not is_pretokenized and kinds[i - 1] == "space" and is_unspaced(shown, trimmed_span(shown, *tokens[i].span)[0]):
        return False
    if kinds[i] in ("word", "sign") and _shares_character(tokens, i):
        return True
    if tokens[i].word != tokens[i - 1].word or "gap" in kinds[i - 1 : i + 1]:
        return False
    return is_pretokenized or "sign" not in kinds[i - 1 : i + 1]


def _shares_character(tokens: TaggedTokens, i: int) -> bool:
    """Whether a token holds a part of the character before it: some of its bytes, or an accent on it."""
    (start, _), (_, end) = tokens[i].span, tokens[i - 1].span
    return _overlaps_previous(tokens, i) or (
        start == end > 0 and unicodedata.category(tokens.sentence.shown[start])[0] == "M"
    )


def _overlaps_previous(tokens: TaggedTokens, i: int) -> bool:
    """Whether a token begins before the one before it ends."""
    return i > 0 and tokens[i].span[0] < tokens[i - 1].span[1]


def _token_kinds(tokens: TaggedTokens) -> list[str]:
    """The kind of each token: "word", "sign", "space" at the beginning of a word, otherwise "gap"."""
    shown, kinds = tokens.sentence.shown, list[str]()
    for i, token in enumerate(tokens):
        start, end = token.span
        visible = shown[start:end].strip()
        # A space may have the span of the letter after it.
        if visible and (token.piece != SPACE or visible == SPACE):
            kinds.append("sign" if all(unicodedata.category(c)[0] in "PS" for c in visible) else "word")
        else:
            kinds.append("gap" if i and token.word == tokens[i - 1].word and kinds[i - 1] != "space" else "space")
    return kinds


def heuristic_words(tokens: TaggedTokens, continues: str | None) -> list[range]:
    """The tokens of each word as the reference guesses them.

    Where the vocabulary marks continuations, a token is one if its length differs from its text's, as it also does for
    letters that normalisation changed; otherwise if no space is at its beginning.
    """
    shown = tokens.sentence.shown

    def continues_word(i: int) -> bool:
        start, end = tokens[i].span
        without_space = start > 0 and " " not in shown[start - 1 : start + 1]
        inner = len(tokens[i].piece) != end - start if continues else without_space
        return inner and not tokens[i].unknown

    return joined_ranges(len(tokens), continues_word)
