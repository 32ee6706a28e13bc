"""A generation that was opened: its entries and vectors in memory, each file checked before anything reads it."""

import errno
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pellucid.errors import CorruptFileError, PellucidError, ResourceError
from pellucid.files import cannot_read
from pellucid.lazy import cached_property
from pellucid.search.bm25 import Counts, counts
from pellucid.search.conditions import Condition
from pellucid.search.entries import Entries
from pellucid.search.entry import Entry
from pellucid.search.generations import check, newest
from pellucid.search.manifest import ENTRIES, Manifest, Segment
from pellucid.search.vectors import Vectors, read_graph, read_vectors
from pellucid.search.words import Vocabulary

_BLOCK = 8_192
"""Rows whose numbers are looked at together."""

KEPT = 16
"""So many answers to conditions are kept of a segment."""


@dataclass
class Opened:
    """One segment.

    dead: Bool[ndarray, "rows"], the rows that were deleted.
    """

    segment: Segment
    entries: Entries
    vectors: Vectors
    dead: np.ndarray
    _found: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def alive(self, conditions: Sequence[Condition]) -> np.ndarray | None:
        """The rows that may be found: Bool[ndarray, "rows"], or None for all; those of the last conditions are kept."""
        if not conditions:
            return self._living
        asked = repr(conditions)  # in letters, since True equals 1
        if (found := self._found.pop(asked, None)) is None:
            found = self.entries.fitting(conditions) & ~self.dead
            found.flags.writeable = False
        for oldest in list(self._found)[: 1 - KEPT]:
            self._found.pop(oldest, None)
        self._found[asked] = found
        return found

    @cached_property
    def _living(self) -> np.ndarray | None:
        """The rows that were not deleted; None for all."""
        if not self.dead.any():
            return None
        living = ~self.dead
        living.flags.writeable = False
        return living

    def having(self, ids: Iterable[str]) -> list[int]:
        """The rows with one of these ids that were not deleted."""
        return [row for row in self.entries.having(ids) if not self.dead[row]]

    def living(self) -> Iterator[Entry]:
        """The entries that were not deleted, in order."""
        return (entry for entry, dead in zip(self.entries.all(), self.dead) if not dead)

    @cached_property
    def by_hash(self) -> dict[bytes, int]:
        """The number of a row by the hash of its text."""
        return {one: i for i, one in enumerate(self.entries.hashes())}


class Segments(list[Opened]):
    """The segments of a generation. The place of a row is its number, counted through all of them."""

    @cached_property
    def starts(self) -> np.ndarray:
        """The place of each segment's first row, and the number of all rows: Int64[ndarray, "segments+1"]"""
        return np.cumsum([0, *(one.segment.rows for one in self)])

    def has_id(self, id_: str) -> bool:
        """Whether a text that was not deleted goes by an id."""
        return any(one.having([id_]) for one in self)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Every word, and in how many rows of all segments it stands."""
        rows: Counter[str] = Counter()
        for one in self:
            rows.update(one.entries.vocabulary())
        return Vocabulary(rows, sum(int(one.dead.sum()) for one in self), partial(_lives, tuple(self)))

    @cached_property
    def counts(self) -> Counts:
        """What BM25 must know of all rows together."""
        return counts(one.entries for one in self)

    def divided(self, places: np.ndarray) -> Iterator[tuple[Any, np.ndarray, Opened]]:
        """Places by their segment: which of them stand there, and their rows in it."""
        if len(self) == 1:
            yield slice(None), places, self[0]
            return
        owner = np.searchsorted(self.starts, places, "right") - 1
        for number, one in enumerate(self):
            chosen = np.flatnonzero(owner == number)
            if len(chosen):
                yield chosen, places[chosen] - self.starts[number], one


def _lives(segments: tuple[Opened, ...], word: str) -> bool:
    """Whether a word stands in a row that was not deleted."""
    return any(not one.dead[one.entries.standing(word)].all() for one in segments)


@dataclass(frozen=True)
class Generation:
    """What an index is between two changes.

    folder: of the index.  manifest: what it says of itself.  segments: what is searched.
    """

    folder: Path
    manifest: Manifest
    segments: Segments

    def to(self, manifest: Manifest) -> "Generation":
        """Another generation of the same index; vectors that this one holds are not read again."""
        return opened(self.folder, manifest, {one.segment.digest: one.vectors for one in self.segments})


def newest_opened(folder: Path) -> Generation:
    """The generation that opens. Where a writer takes files away meanwhile, a newer one is there; where
    the folder is a link that was led to another index, that one's."""
    while True:
        manifest = newest(folder)
        try:
            return opened(folder, manifest)
        except (PellucidError, OSError):
            if newest(folder) == manifest:
                raise


def opened(folder: Path, manifest: Manifest, held: Mapping[str, Vectors | None] = MappingProxyType({})) -> Generation:
    """A generation with every segment. Raises CorruptFileError for a file that was changed.

    held: vectors that this process has already, by the digest of the file that they stand in: they are not read again.
    """

    def one(segment: Segment) -> Opened:
        entries = Entries(check(folder, segment, ENTRIES), segment.rows)
        return Opened(segment, entries, held.get(segment.digest) or _read(folder, manifest, segment), segment.deleted)

    return Generation(folder, manifest, Segments(map(one, manifest.segments)))


def _read(folder: Path, manifest: Manifest, segment: Segment) -> Vectors:
    """The vectors of a segment from its file."""
    read = read_graph if segment.kind == "hnsw" else read_vectors
    path = check(folder, segment, segment.numbers)
    try:
        vectors = read(path, segment.rows, manifest.encoder.dimension, manifest.settings.metric)
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise cannot_read(path, error) from error
        size = segment.files[path.name][0]
        raise ResourceError(f"not enough memory to open {path}, which has {size:,} bytes") from error
    for start in range(0, segment.rows, _BLOCK):
        if not np.isfinite(vectors.numbers[start : start + _BLOCK]).all():
            raise CorruptFileError(f"{path} holds a number that is not finite: build the index again")
    return vectors
