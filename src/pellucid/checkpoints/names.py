"""The notation of weights: the reference's name on the left, ours on the right, `{i}` for the number of a layer.

One row per module: its weight and bias travel together. The table runs both ways, so that saving comes for free.
A third column says how the numbers move where they are not laid out alike; several of our names may share one tensor:

    ("block.{i}.wide", "layers.{i}.feed_forward.up", TRANSPOSED),
    ("block.{i}.qkv", ("layers.{i}.attention.query", ..., "layers.{i}.attention.value"), JOINED),

Where several rows have the same right side, the first is the name that is written, the others are read as well.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pellucid.checkpoints.moves import AS_IT_IS, Move
from pellucid.lazy import cached_property

if TYPE_CHECKING:  # a page of facts is read without torch
    from torch import Tensor

Row = tuple[Any, ...]
"""(theirs, ours), (theirs, ours, move) or (theirs, (ours, ours, ...), move)"""
Rows = tuple[Row, ...]


@dataclass(frozen=True)
class Place:
    """Where the numbers of one of our parameters stand: part `part` of `parts` of the tensor `theirs`."""

    theirs: str
    move: Move = AS_IT_IS
    part: int = 0
    parts: int = 1

    def take(self, numbers: Tensor) -> Tensor:
        """Our numbers out of the file's."""
        return self.move.take(numbers, self.part, self.parts)


@dataclass(frozen=True)
class Names:
    """How a family calls its tensors.

    body: (reference, ours[, move]), module by module.  head: the same of one head, whose names have no prefix.
    prefix: stands before the body's names in files saved from a model with a head, and is absent from the others.
    renamed: older spellings of the last word, as {older: newer}.
    dropped: patterns of tensors that are known and not needed, each with the reason.
    copies: names of the body, each with the one whose numbers it has: of tables that are not tied the reference reads
        each by itself, and makes up what it does not find.
    """

    body: Rows
    prefix: str = ""
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    head: Rows = ()

    def ours(self, theirs: str) -> dict[str, Place]:
        """Our parameters that a tensor of a file fills, and how; empty where no row speaks of it."""
        stem, _, last = theirs.rpartition(".")
        known = f"{stem}.{self.renamed.get(last, last)}" if stem else theirs
        found = _forward(known.removeprefix(self.prefix), self._body) or _forward(known, self._head)
        return {ours: replace(place, theirs=theirs) for ours, place in found.items()}

    def theirs(self, ours: str, *, prefixed: bool) -> Place:
        """Where one of our parameters stands in the reference's file."""
        body = _back(ours, self._body)
        if body is not None:
            return replace(body, theirs=(self.prefix if prefixed else "") + body.theirs)
        found = _back(ours, self._head)
        if found is None:
            raise KeyError(ours)
        return found

    def drop_reason(self, theirs: str) -> str | None:
        """Why this tensor of a file is not needed, or None where it is."""
        bare = theirs.removeprefix(self.prefix)
        return next((self.dropped[pattern] for pattern, _, _ in _spellings(bare) if pattern in self.dropped), None)

    @cached_property
    def _body(self) -> _Table:
        return _table(self.body)

    @cached_property
    def _head(self) -> _Table:
        return _table(self.head)


def under(theirs: str, ours: str, rows: Rows) -> Rows:
    """Rows of a part, with what stands before it on both sides."""
    return tuple((f"{theirs}{row[0]}", f"{ours}{row[1]}", *row[2:]) for row in rows)


@dataclass(frozen=True)
class _Table:
    """Places as the rows have them, with `{i}`: by our names for each left side, and by each name of a right side; of
    several alike the first counts."""

    forward: dict[str, dict[str, Place]]
    back: dict[str, Place]


@functools.cache
def _table(rows: Rows) -> _Table:
    table = _Table({}, {})
    for left, right, *rest in rows:
        names, move = (right,) if isinstance(right, str) else right, rest[0] if rest else AS_IT_IS
        places = {name: Place(left, move, part, len(names)) for part, name in enumerate(names)}
        table.forward.setdefault(left, places)
        for name, place in places.items():
            table.back.setdefault(name, place)
    return table


def gathered(held: Iterable[tuple[Place, Tensor]]) -> dict[str, Tensor]:
    """The tensors of a file by their names there, out of numbers of ours and the places where they stand."""
    groups: dict[str, dict[int, Tensor]] = {}
    moves: dict[str, Move] = {}
    for place, numbers in held:
        groups.setdefault(place.theirs, {})[place.part] = numbers
        moves[place.theirs] = place.move
    return {theirs: moves[theirs].give([parts[i] for i in sorted(parts)]) for theirs, parts in groups.items()}


def _forward(theirs: str, table: _Table) -> dict[str, Place]:
    for pattern, number, last in _spellings(theirs):
        if (places := table.forward.get(pattern)) is not None:
            return {name.replace("{i}", number) + last: place for name, place in places.items()}
    return {}


def _back(ours: str, table: _Table) -> Place | None:
    for pattern, number, last in _spellings(ours):
        if (place := table.back.get(pattern)) is not None:
            return replace(place, theirs=place.theirs.replace("{i}", number) + last)
    return None


def _spellings(name: str) -> Iterator[tuple[str, str, str]]:
    """What a row may call this tensor, each with the number of the layer and the last word that it leaves out.

    The whole name goes before the module that holds it, and a name as it stands before one with `{i}` for a number.
    """
    stem, _, last = name.rpartition(".")
    for known, rest in ((name, ""), (stem, f".{last}")) if last in ("weight", "bias") else ((name, ""),):
        yield known, "", rest
        words = known.split(".")
        for at, word in enumerate(words):
            if word.isascii() and word.isdigit():
                yield ".".join((*words[:at], "{i}", *words[at + 1 :])), word, rest
