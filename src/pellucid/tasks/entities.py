"""Words to entities: one label for each word, and the words of one entity together."""

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.tasks.tagged_tokens import Tagged, guessed_words, whole_characters, words_of
from pellucid.text import Tokenizer

STRATEGIES = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class Tag:
    """What a label says: of which kind an entity is, and whether it begins (`opens`) or ends (`closes`) here."""

    kind: str
    opens: bool = False
    closes: bool = False


@functools.lru_cache(maxsize=64)
def tags_of(labels: tuple[str, ...]) -> tuple[Tag, ...]:
    """The labels, read. `B-`, `I-`, and where every label but one has such a letter also `E-`, `L-`, `S-`, `U-`."""
    written = [re.fullmatch(r"([BIELSU])-(.+)", label) for label in labels]
    scheme = sum(one is None for one in written) <= 1
    return tuple(
        Tag(one[2], one[1] in "BSU", one[1] in "ELSU") if one and (scheme or one[1] in "BI") else Tag(label)
        for one, label in zip(written, labels)
    )


@functools.lru_cache(maxsize=64)
def guessed_tags(labels: tuple[str, ...]) -> tuple[Tag, ...]:
    """The labels as the reference reads them: `B-` and `I-` alone."""
    return tuple(Tag(label[2:] if label[:2] in ("B-", "I-") else label, label[:2] == "B-") for label in labels)


@dataclass(frozen=True)
class Found:
    """An entity, or with strategy "none" a token.

    label: the number of its label, that of its first word.  score: the mean over its words.
    words: its words, each as the numbers of its tokens.
    """

    label: int
    score: float
    words: tuple[range, ...]

    @property
    def tokens(self) -> range:
        """From its first token to its last."""
        return range(self.words[0].start, self.words[-1].stop)


def labelled(tokens: Tagged, ranges: Sequence[range], strategy: str) -> list[Found]:
    """Each word with its label: that of its first token, of the surest, or of the mean of all."""
    if not ranges:
        return []
    scores, labels = _scores(tokens.scores, ranges, strategy).max(dim=-1)
    return [Found(*one) for one in zip(labels.tolist(), scores.tolist(), ((word,) for word in ranges))]


def written(tokens: Tagged, one: Found, strategy: str, words: Tokenizer) -> str:
    """What the tokenizer makes of an entity's tokens: as a word each, where words were labelled, then together."""
    pieces = [_piece(tokens, word) for word in one.words]
    if strategy == "none":
        return pieces[0][0]
    if strategy == "simple":
        return words.convert_tokens_to_string([piece for word in pieces for piece in word])
    return words.convert_tokens_to_string([words.convert_tokens_to_string(word) for word in pieces])


def _piece(tokens: Tagged, word: range) -> list[str]:
    """The tokens of a word, for those that the vocabulary lacks their text."""
    return [tokens.sentence.slice(*tokens.places[i]) if tokens.unknown[i] else tokens.pieces[i] for i in word]


def _scores(scores: Tensor, ranges: Sequence[range], strategy: str) -> Tensor:
    """Float[Tensor, "tokens labels"]  ->  Float[Tensor, "words labels"]"""
    if strategy == "average":
        sizes = torch.tensor([len(one) for one in ranges], device="cpu")
        word = torch.arange(len(ranges), device="cpu").repeat_interleave(sizes)
        sums = scores.new_zeros(len(ranges), scores.shape[1]).index_add(
            0, word, scores[[i for one in ranges for i in one]]
        )
        return sums / sizes[:, None]
    if strategy != "max":
        return scores[[one.start for one in ranges]]
    surest = scores.max(dim=-1).values.tolist()
    return scores[[max(one, key=surest.__getitem__) for one in ranges]]


def ranges_of(tokens: Tagged, strategy: str, true: bool, words: Tokenizer) -> list[range]:
    """The tokens that are labelled together.  true: the tokenizer's words, not guessed ones."""
    if strategy == "none" or (strategy == "simple" and not true):
        return [range(i, i + 1) for i in range(len(tokens.pieces))]
    if not true:
        return guessed_words(tokens, words.continues)
    return whole_characters(tokens) if strategy == "simple" else words_of(tokens)


def grouped(tokens: Tagged, found: Iterable[Found], tags: Sequence[Tag], *, touching: bool) -> list[Found]:
    """Neighbours of one kind together, unless the second begins an entity.

    touching: one that begins where the entity before it ends, without a space, goes on with it. Many models begin an
        entity at each part of a number or of an address; in scripts without spaces neighbours touch anyway.
    """
    groups: list[list[Found]] = []
    for one in found:
        if groups and _joins(tokens, groups[-1][-1], one, tags, touching):
            groups[-1].append(one)
        else:
            groups.append([one])
    return [_group(group) for group in groups]


def _joins(tokens: Tagged, before: Found, one: Found, tags: Sequence[Tag], touching: bool) -> bool:
    last, tag = tags[before.label], tags[one.label]
    if last.kind != tag.kind or last.closes:
        return False
    return not tag.opens or (touching and not tag.closes and _touch(tokens, before, one))


def _touch(tokens: Tagged, before: Found, one: Found) -> bool:
    shown = tokens.sentence.shown
    end, start = tokens.places[before.words[-1][-1]][1], tokens.places[one.words[0][0]][0]
    around = shown[end - 1 : end] + shown[start : start + 1]
    return start <= end and not any(c.isspace() or unicodedata.category(c) == "Lo" for c in around)


def _group(group: list[Found]) -> Found:
    score = sum(one.score for one in group) / len(group)
    return Found(group[0].label, score, tuple(word for one in group for word in one.words))


def longest(entities: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of entities that overlap the longer one, of two as long the surer one, as the reference chooses: each is compared
    with the last that was kept."""
    kept: list[dict[str, Any]] = []
    for one in sorted(entities, key=lambda entity: entity["start"]):
        if not kept or not kept[-1]["start"] <= one["start"] < kept[-1]["end"]:
            kept.append(one)
            continue
        size, other = (entity["end"] - entity["start"] for entity in (one, kept[-1]))
        if size > other or (size == other and one["score"] > kept[-1]["score"]):
            kept[-1] = one
    return kept
