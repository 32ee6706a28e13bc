"""The notation of weights: the reference's name on the left, ours on the right, `{i}` for the number of a layer.

One row per module: its weight and bias travel together. The table runs both ways, so that saving comes for free.
A third column says how the numbers move where they are not laid out alike; several of our names may share one tensor:

    ("block.{i}.wide", "layers.{i}.feed_forward.up", TRANSPOSED),
    ("block.{i}.qkv", ("layers.{i}.attention.query", ..., "layers.{i}.attention.value"), JOINED),

Where several rows have the same right side, the first is the name that is written, the others are read as well.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pellucid.checkpoints.moves import AS_IT_IS, Move

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

    body: (reference, ours[, move]), module by module.
    prefix: stands before the body's names in files saved from a model with a head, and is absent from the others.
    renamed: older spellings of the last word, as (older, newer).
    dropped: patterns of tensors that are known and not needed, each with the reason.
    """

    body: Rows
    prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)

    def ours(self, theirs: str, rows: Rows) -> dict[str, Place]:
        """Our parameters that a tensor of a file fills, and how; empty where no row speaks of it."""
        stem, _, last = theirs.rpartition(".")
        known = f"{stem}.{dict(self.renamed).get(last, last)}" if stem else theirs
        found = _forward(known.removeprefix(self.prefix), self.body) or _forward(known, rows)
        return {ours: Place(theirs, place.move, place.part, place.parts) for ours, place in found.items()}

    def theirs(self, ours: str, rows: Rows, *, prefixed: bool) -> Place:
        """Where one of our parameters stands in the reference's file."""
        body = _back(ours, self.body)
        if body is not None:
            return Place((self.prefix if prefixed else "") + body.theirs, body.move, body.part, body.parts)
        found = _back(ours, rows)
        if found is None:
            raise KeyError(ours)
        return found

    def drop_reason(self, theirs: str) -> str | None:
        """Why this tensor of a file is not needed, or None where it is."""
        bare = theirs.removeprefix(self.prefix)
        return next((why for pattern, why in self.dropped.items() if _match(pattern, bare)), None)


def under(theirs: str, ours: str, rows: Rows) -> Rows:
    """Rows of a part, with what stands before it on both sides."""
    return tuple((f"{theirs}{row[0]}", f"{ours}{row[1]}", *row[2:]) for row in rows)


def _forward(theirs: str, rows: Rows) -> dict[str, Place]:
    """An exact row goes before one that names the module which holds the tensor."""
    loose: dict[str, Place] = {}
    for left, right, move in map(_whole, rows):
        found = _match(left, theirs)
        if found is None or (loose and found["rest"]):
            continue
        names = [_filled(name, found) for name in right]
        places = {name: Place(theirs, move, part, len(names)) for part, name in enumerate(names)}
        if not found["rest"]:
            return places
        loose = places
    return loose


def _back(ours: str, rows: Rows) -> Place | None:
    loose = None
    for left, right, move in map(_whole, rows):
        for part, name in enumerate(right):
            found = _match(name, ours)
            if found is None or (loose and found["rest"]):
                continue
            place = Place(_filled(left, found), move, part, len(right))
            if not found["rest"]:
                return place
            loose = place
    return loose


def _whole(row: Row) -> tuple[str, tuple[str, ...], Move]:
    left, right, *rest = row
    return left, (right,) if isinstance(right, str) else right, rest[0] if rest else AS_IT_IS


def _filled(pattern: str, found: dict[str, str | None]) -> str:
    return pattern.replace("{i}", found["i"] or "") + (found["rest"] or "")


def _match(pattern: str, name: str) -> dict[str, str | None] | None:
    """The layer's number `i` and the `rest` of `name` after `pattern` ("" or ".weight"); None for another name."""
    found = _compiled(pattern).fullmatch(name)
    return found and {"i": None, **found.groupdict()}


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    number = re.escape(pattern).replace(r"\{i\}", r"(?P<i>\d+)")
    return re.compile(number + r"(?P<rest>(?:\.(?:weight|bias))?)")
