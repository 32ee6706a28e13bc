"""Tags of words: checks them, normalises them to IOB2, and converts entities to tags and back.

Angela  Merkel  visited  Sao    Paulo
B-PER   I-PER   O        B-LOC  I-LOC      IOB2 (Tjong Kim Sang and Veenstra, 1999, arXiv:cs/9907006)
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pellucid.errors import InputError, shorten

OUTSIDE = "O"
"""The tag of words outside all entities."""

_MARKED = re.compile(r"[BIELSU]-.+", re.DOTALL)
_OPENS, _CONTINUES = "BSU", "BI"
"""Prefixes that begin an entity, and prefixes after which it may continue. E and L end one, S and U are whole ones."""


class Entity(NamedTuple):
    """An entity of a text: start and end in characters, and its kind."""

    start: int
    end: int
    kind: str


def have_prefixes(labels: Iterable[str]) -> bool:
    """Whether all labels but "O" have prefixes of entities; parts of speech have none."""
    others = [label for label in labels if label != OUTSIDE]
    return bool(others) and all(_MARKED.fullmatch(label) for label in others)


def labels_without_prefix(labels: Collection[str]) -> list[str]:
    """Labels without a prefix beside B- and I- of one kind: because of them no prefix is interpreted."""
    both = any(label[:2] == "B-" and f"I-{label[2:]}" in labels for label in labels)
    return sorted(label for label in labels if label != OUTSIDE and not _MARKED.fullmatch(label)) if both else []


def head_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels in the order of a head: "O" first, then by kind; every kind with B- also has I-."""
    found = set(labels)
    if have_prefixes(found):
        found |= {f"I-{label[2:]}" for label in found if label[0] == "B"}
        return tuple(sorted(found, key=lambda label: (label != OUTSIDE, label[2:], label[0])))
    return tuple(sorted(found, key=lambda label: (label != OUTSIDE, label)))


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Tags with B- for each I- that continues no entity, as in CoNLL's script.

    So IOB1, where B- occurs only directly after another entity of the same kind, becomes IOB2.
    """
    before = (OUTSIDE, *tags)
    return [f"B-{tag[2:]}" if tag[:2] == "I-" and not _continues(tag, last) else tag for tag, last in zip(tags, before)]


def inside_tag(tag: str) -> str:
    """The tag of further tokens of a word: I- for B-, else the same."""
    return f"I-{tag[2:]}" if tag[:2] == "B-" else tag


def _continues(tag: str, before: str) -> bool:
    return before != OUTSIDE and before[2:] == tag[2:] and before[0] in _CONTINUES


def entity_spans(tags: Sequence[str], are_marked: bool) -> list[tuple[str, int, int]]:
    """The entities of a sentence: kind, first word, last word. A tag that continues no entity begins one.

    are_marked: whether the tags have prefixes; else each tagged word is an entity of its own.
    """
    found = list[tuple[str, int, int]]()
    before = OUTSIDE
    for i, tag in enumerate(tags):
        if tag != OUTSIDE and are_marked and tag[0] not in _OPENS and _continues(tag, before):
            found[-1] = (*found[-1][:2], i)
        elif tag != OUTSIDE:
            found.append((tag[2:] if are_marked else tag, i, i))
        before = tag
    return found


# -- entities in data -------------------------------------------------------------------------------------------------


def parse_entities(entities: Any, length: int, row: str) -> list[Entity]:
    """The entities in order, from objects with "start", "end" and "label" (or "entity_group"), or lists of the three.

    length: characters of the text.  Raises InputError for invalid ones, and for those outside the text or overlapping.
    """
    if not isinstance(entities, Iterable) or isinstance(entities, str | Mapping):
        raise InputError(f"{row}: entities are {type(entities).__name__}, expected a list")
    found = sorted(_parse_entity(one, length, f"{row}: entity {i}") for i, one in enumerate(entities))
    for one, after in pairwise(found):
        if after.start < one.end:
            raise InputError(f"{row}: {_describe(one)} and {_describe(after)} overlap, and a word has one label")
    return found


def _parse_entity(entity: Any, length: int, what: str) -> Entity:
    if isinstance(entity, Mapping):
        entity = (entity.get("start"), entity.get("end"), entity.get("label", entity.get("entity_group")))
    if not isinstance(entity, Sequence) or isinstance(entity, str) or len(entity) != 3:
        raise InputError(f"{what} is {shorten(repr(entity), 60)}, expected start, end and label")
    start, end, kind = entity
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
        ends = f"{shorten(repr(start))} to {shorten(repr(end))}"
        raise InputError(f"{what} goes from {ends}, expected characters from 0 to {length}")
    if not isinstance(kind, str) or not kind or kind == OUTSIDE:
        raise InputError(f"{what} has the label {shorten(repr(kind))}, expected a name such as 'person'")
    return Entity(start, end, kind)


def tags_of(entities: Sequence[Entity], words: Sequence[tuple[int, int]], row: str) -> list[str]:
    """The tag of each word.  words: start and end in characters; a word belongs to the entity that it overlaps."""
    tags = [OUTSIDE] * len(words)
    for one in entities:
        word_indices = [
            i for i, (start, end) in enumerate(words) if start < one.end and one.start < end and tags[i] == OUTSIDE
        ]
        if not word_indices:
            raise InputError(f"{row}: {_describe(one)} holds no word of its own")
        for i in word_indices:
            tags[i] = f"{'B' if i == word_indices[0] else 'I'}-{one.kind}"
    return tags


def _describe(one: Entity) -> str:
    return f"{shorten(repr(one.kind))} from {one.start} to {one.end}"
