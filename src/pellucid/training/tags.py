"""Tags of words as data write them: checked, put in order, made of entities, and entities of them.

Angela  Merkel  visited  Sao    Paulo
B-PER   I-PER   O        B-LOC  I-LOC      IOB2 (Tjong Kim Sang and Veenstra, 1999, arXiv:cs/9907006)
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pellucid.errors import InputError, shorten

OUTSIDE = "O"
"""The tag of words that are part of nothing."""

_MARKED = re.compile(r"[BIELSU]-.+", re.DOTALL)
_OPENS, _CONTINUES = "BSU", "BI"
"""Letters of a tag that begins an entity, and of one that another may follow. E and L end one, S and U are alone."""


class Entity(NamedTuple):
    """An entity of a text: its characters, from and to, and of which kind it is."""

    start: int
    end: int
    kind: str


def have_prefixes(labels: Iterable[str]) -> bool:
    """Whether labels say where entities begin; parts of speech do not."""
    others = [label for label in labels if label != OUTSIDE]
    return bool(others) and all(_MARKED.fullmatch(label) for label in others)


def labels_without_prefix(labels: Collection[str]) -> list[str]:
    """Labels by which all others lose their letters: those without one where B- and I- of a kind stand beside them."""
    both = any(label[:2] == "B-" and f"I-{label[2:]}" in labels for label in labels)
    return sorted(label for label in labels if label != OUTSIDE and not _MARKED.fullmatch(label)) if both else []


def head_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels as a head has them: "O" first, then by kind; every kind that can begin can also go on."""
    found = set(labels)
    if have_prefixes(found):
        found |= {f"I-{label[2:]}" for label in found if label[0] == "B"}
        return tuple(sorted(found, key=lambda label: (label != OUTSIDE, label[2:], label[0])))
    return tuple(sorted(found, key=lambda label: (label != OUTSIDE, label)))


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Tags in which what goes on with nothing begins, as in CoNLL's script.

    So data in IOB1, where B- stands only right behind another entity of the same kind, become IOB2.
    """
    before = (OUTSIDE, *tags)
    return [f"B-{tag[2:]}" if tag[:2] == "I-" and not _continues(tag, last) else tag for tag, last in zip(tags, before)]


def inside_tag(tag: str) -> str:
    """The tag of what follows within a word."""
    return f"I-{tag[2:]}" if tag[:2] == "B-" else tag


def _continues(tag: str, before: str) -> bool:
    return before != OUTSIDE and before[2:] == tag[2:] and before[0] in _CONTINUES


def entity_spans(tags: Sequence[str], are_marked: bool) -> list[tuple[str, int, int]]:
    """The entities of a sentence: kind, first word, last word. What goes on with nothing begins.

    are_marked: whether the tags have letters; else each word that has one is an entity of its own.
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


# -- entities as data write them --------------------------------------------------------------------------------------


def parse_entities(entities: Any, length: int, row: str) -> list[Entity]:
    """In their order: objects with "start", "end" and "label", as the task answers too, or lists of the three.

    length: characters of the text.  Raises InputError for those that are none, lie outside the text, or overlap.
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
        raise InputError(f"{what} goes from {start!r} to {end!r}, expected characters from 0 to {length}")
    if not isinstance(kind, str) or not kind or kind == OUTSIDE:
        raise InputError(f"{what} has the label {kind!r}, expected a name such as 'person'")
    return Entity(start, end, kind)


def tags_of(entities: Sequence[Entity], words: Sequence[tuple[int, int]], row: str) -> list[str]:
    """The tag of each word. words: their characters, from and to; one belongs to the entity that it has a part in."""
    tags = [OUTSIDE] * len(words)
    for one in entities:
        here = [i for i, (start, end) in enumerate(words) if start < one.end and one.start < end and tags[i] == OUTSIDE]
        if not here:
            raise InputError(f"{row}: {_describe(one)} holds no word of its own")
        for i in here:
            tags[i] = f"{'B' if i == here[0] else 'I'}-{one.kind}"
    return tags


def _describe(one: Entity) -> str:
    return f"{one.kind!r} from {one.start} to {one.end}"
