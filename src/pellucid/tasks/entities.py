"""Words to entities: labels each word, and groups the words of one entity."""

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.tasks.answer import Answer
from pellucid.tasks.tagged_tokens import (
    TaggedTokens,
    character_ranges,
    heuristic_words,
    joined_ranges,
    tokenizer_words,
)
from pellucid.text import Tokenizer

STRATEGIES = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class Tag:
    """The meaning of a label: the entity's type, and whether it begins (`begins`) or ends (`ends`) here."""

    entity_type: str
    begins: bool = False
    ends: bool = False


@functools.lru_cache(maxsize=64)
def parse_tags(labels: tuple[str, ...]) -> tuple[Tag, ...]:
    """The labels, parsed: `B-`, `I-`, and where every label but one has such a prefix also `E-`, `L-`, `S-`, `U-`."""
    written = [re.fullmatch(r"([BIELSU])-(.+)", label) for label in labels]
    scheme = sum(one is None for one in written) <= 1
    return tuple(
        Tag(one[2], one[1] in "BSU", one[1] in "ELSU") if one and (scheme or one[1] in "BI") else Tag(label)
        for one, label in zip(written, labels)
    )


@functools.lru_cache(maxsize=64)
def heuristic_tags(labels: tuple[str, ...]) -> tuple[Tag, ...]:
    """The labels as the reference parses them: `B-` and `I-` alone."""
    return tuple(Tag(label[2:] if label[:2] in ("B-", "I-") else label, label[:2] == "B-") for label in labels)


@dataclass(frozen=True)
class Entity:
    """An entity, or with strategy "none" a token.

    label: the index of its label, that of its first word.  score: the mean over its words.
    words: the token indices of each of its words.
    """

    label: int
    score: float
    words: tuple[range, ...]

    @property
    def tokens(self) -> range:
        """From its first token to its last."""
        return range(self.words[0].start, self.words[-1].stop)


def label_words(tokens: TaggedTokens, ranges: Sequence[range], strategy: str) -> list[Entity]:
    """Each word with its label: that of its first token, of the token with the highest score, or of the mean score."""
    if not ranges:
        return []
    scores, labels = _word_scores(tokens.scores, ranges, strategy).max(dim=-1)
    return [Entity(*one) for one in zip(labels.tolist(), scores.tolist(), ((word,) for word in ranges))]


def entity_text(tokens: TaggedTokens, one: Entity, strategy: str, tokenizer: Tokenizer) -> str:
    """An entity's tokens decoded by the tokenizer: word by word where words were labelled, then together."""
    pieces = [_word_pieces(tokens, word) for word in one.words]
    if strategy == "none":
        return pieces[0][0]
    if strategy == "simple":
        return tokenizer.convert_tokens_to_string([piece for word in pieces for piece in word])
    return tokenizer.convert_tokens_to_string([tokenizer.convert_tokens_to_string(word) for word in pieces])


def _word_pieces(tokens: TaggedTokens, word: range) -> list[str]:
    """The tokens of a word; for unknown ones, their text."""
    return [tokens.sentence.slice(*tokens[i].span) if tokens[i].unknown else tokens[i].piece for i in word]


def _word_scores(scores: Tensor, ranges: Sequence[range], strategy: str) -> Tensor:
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
    max_scores = scores.max(dim=-1).values.tolist()
    return scores[[max(one, key=max_scores.__getitem__) for one in ranges]]


def word_ranges(tokens: TaggedTokens, strategy: str, use_tokenizer_words: bool, tokenizer: Tokenizer) -> list[range]:
    """The tokens that are labelled together.  use_tokenizer_words: the tokenizer's words, not the reference's guess."""
    if strategy == "none" or (strategy == "simple" and not use_tokenizer_words):
        return [range(i, i + 1) for i in range(len(tokens))]
    if not use_tokenizer_words:
        return heuristic_words(tokens, tokenizer.subword_prefix)
    return character_ranges(tokens) if strategy == "simple" else tokenizer_words(tokens)


def group_entities(
    tokens: TaggedTokens, found: Sequence[Entity], tags: Sequence[Tag], *, merge_adjacent: bool
) -> list[Entity]:
    """Groups neighbours of one type, unless the second begins an entity.

    merge_adjacent: one that begins where the entity before it ends, without a space, continues it. Many models begin an
        entity at each part of a number or of an address; in scripts without spaces neighbours touch anyway.
    """
    groups = joined_ranges(
        len(found), lambda i: _continues_entity(tokens, found[i - 1], found[i], tags, merge_adjacent)
    )
    return [_merge_entities(found[group.start : group.stop]) for group in groups]


def _continues_entity(
    tokens: TaggedTokens, before: Entity, one: Entity, tags: Sequence[Tag], merge_adjacent: bool
) -> bool:
    last, tag = tags[before.label], tags[one.label]
    if last.entity_type != tag.entity_type or last.ends:
        return False
    return not tag.begins or (merge_adjacent and not tag.ends and _are_adjacent(tokens, before, one))


def _are_adjacent(tokens: TaggedTokens, before: Entity, one: Entity) -> bool:
    shown = tokens.sentence.shown
    end, start = tokens[before.words[-1][-1]].span[1], tokens[one.words[0][0]].span[0]
    around = shown[end - 1 : end] + shown[start : start + 1]
    return start <= end and not any(c.isspace() or unicodedata.category(c) == "Lo" for c in around)


def _merge_entities(group: Sequence[Entity]) -> Entity:
    score = sum(one.score for one in group) / len(group)
    return Entity(group[0].label, score, tuple(word for one in group for word in one.words))


def longest_entities(entities: Iterable[Answer]) -> list[Answer]:
    """Of entities that overlap the longer one, of equally long ones the higher score, chosen as in the reference: each
    is compared with the last one kept."""
    kept: list[Answer] = []
    for one in sorted(entities, key=lambda entity: entity["start"]):
        if not kept or not kept[-1]["start"] <= one["start"] < kept[-1]["end"]:
            kept.append(one)
            continue
        size, other = (entity["end"] - entity["start"] for entity in (one, kept[-1]))
        if size > other or (size == other and one["score"] > kept[-1]["score"]):
            kept[-1] = one
    return kept
