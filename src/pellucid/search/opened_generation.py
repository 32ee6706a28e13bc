"""An opened generation: its entries and vectors, each file checked before it is read."""

import errno
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from pellucid.checksummed import damaged_error
from pellucid.errors import CorruptFileError, PellucidError, ResourceError
from pellucid.files import cannot_read
from pellucid.lazy import cached_property
from pellucid.search.bm25 import CorpusStatistics, corpus_statistics
from pellucid.search.conditions import Condition
from pellucid.search.entries import Entries
from pellucid.search.entry import Entry
from pellucid.search.generations import checked_path, newest_manifest
from pellucid.search.manifest import ENTRIES, REBUILD_ADVICE, Manifest, Segment, file_of
from pellucid.search.vectors import Vectors, read_graph, read_vectors
from pellucid.search.words import Vocabulary

_BLOCK = 8_192
"""Rows whose numbers are checked at a time."""

MAX_CACHED_MASKS = 16
"""Masks of conditions that are cached for each segment."""


@dataclass
class OpenSegment:
    """One segment.

    deleted: Bool[ndarray, "rows"], the rows that were deleted.
    """

    segment: Segment
    entries: Entries
    vectors: Vectors
    deleted: np.ndarray
    _condition_masks: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def searchable_mask(self, conditions: Sequence[Condition]) -> np.ndarray | None:
        """The rows that may be found: Bool[ndarray, "rows"], or None for all."""
        return self.matching_mask(conditions) if conditions else self._undeleted_mask

    def matching_mask(self, conditions: Sequence[Condition]) -> np.ndarray:
        """The live rows that meet all conditions: Bool[ndarray, "rows"]; masks of recent conditions are cached."""
        key = repr(conditions)  # as text, since True equals 1
        if (found := self._condition_masks.pop(key, None)) is None:
            found = self.entries.condition_mask(conditions) & ~self.deleted
            found.flags.writeable = False
        for oldest in list(self._condition_masks)[: 1 - MAX_CACHED_MASKS]:
            self._condition_masks.pop(oldest, None)
        self._condition_masks[key] = found
        return found

    @cached_property
    def _undeleted_mask(self) -> np.ndarray | None:
        """The rows that are not deleted; None for all."""
        if not self.deleted.any():
            return None
        mask = ~self.deleted
        mask.flags.writeable = False
        return mask

    def rows_with_ids(self, ids: Iterable[str]) -> list[int]:
        """The live rows with one of these ids."""
        return [row for row in self.entries.rows_with_ids(ids) if not self.deleted[row]]

    def live_entries(self) -> Iterator[Entry]:
        """The entries of live rows, in order."""
        return (entry for entry, deleted in zip(self.entries.all(), self.deleted) if not deleted)

    @cached_property
    def row_by_hash(self) -> dict[bytes, int]:
        """A row by the hash of its text."""
        return {one: i for i, one in enumerate(self.entries.hashes())}


class Segments(list[OpenSegment]):
    """The segments of a generation. Global rows are numbered consecutively through all of them."""

    @cached_property
    def starts(self) -> np.ndarray:
        """The global row at which each segment begins, and the number of all rows: Int64[ndarray, "segments+1"]"""
        return np.cumsum([0, *(one.segment.rows for one in self)])

    def has_id(self, id_: str) -> bool:
        """Whether a live row has this id."""
        return any(one.rows_with_ids([id_]) for one in self)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """All words, and the number of rows in all segments that contain each."""
        rows: Counter[str] = Counter()
        for one in self:
            rows.update(one.entries.document_frequencies())
        return Vocabulary(rows, sum(int(one.deleted.sum()) for one in self), partial(_is_live, tuple(self)))

    @cached_property
    def corpus_statistics(self) -> CorpusStatistics:
        """The BM25 statistics over all rows."""
        return corpus_statistics(one.entries for one in self)

    def by_segment(self, global_rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, OpenSegment]]:
        """Splits global rows by segment: their indices in `global_rows`, and their rows in the segment."""
        owner = np.searchsorted(self.starts, global_rows, "right") - 1
        for number, one in enumerate(self):
            chosen = np.flatnonzero(owner == number)
            if len(chosen):
                yield chosen, global_rows[chosen] - self.starts[number], one


def _is_live(segments: tuple[OpenSegment, ...], word: str) -> bool:
    """Whether a live row contains a word."""
    return any(not one.deleted[one.entries.rows_with_word(word)].all() for one in segments)


@dataclass(frozen=True)
class Generation:
    """One state of an index, between two changes.

    folder: of the index.  manifest: its facts.  segments: those that are searched.
    """

    folder: Path
    manifest: Manifest
    segments: Segments

    def with_manifest(self, manifest: Manifest) -> "Generation":
        """Another generation of the same index; vectors that this one has loaded are not read again."""
        return open_generation(self.folder, manifest, {one.segment.digest: one.vectors for one in self.segments})


def open_newest(folder: Path) -> Generation:
    """Opens the newest generation; retried where a writer has replaced it meanwhile, or the folder is a link that now
    leads to another index."""
    while True:
        manifest = newest_manifest(folder)
        try:
            return open_generation(folder, manifest)
        except (PellucidError, OSError):
            if newest_manifest(folder) == manifest:
                raise


def open_generation(
    folder: Path, manifest: Manifest, loaded: Mapping[str, Vectors | None] = MappingProxyType({})
) -> Generation:
    """A generation with all its segments. Raises CorruptFileError for a file that was changed.

    loaded: vectors already in memory, by the digest of their file; they are not read again.
    """

    def one(segment: Segment) -> OpenSegment:
        entries = Entries(checked_path(folder, segment, ENTRIES), segment.rows)
        vectors = loaded.get(segment.digest) or _read_segment_vectors(folder, manifest, segment)
        return OpenSegment(segment, entries, vectors, _deleted_rows(folder, manifest, segment))

    return Generation(folder, manifest, Segments(map(one, manifest.segments)))


def _deleted_rows(folder: Path, manifest: Manifest, segment: Segment) -> np.ndarray:
    """The deleted rows of a segment, from its manifest."""
    try:
        return segment.deleted
    except CorruptFileError as error:
        raise damaged_error(folder / file_of(manifest.generation), error, REBUILD_ADVICE) from error


def _read_segment_vectors(folder: Path, manifest: Manifest, segment: Segment) -> Vectors:
    """Reads and checks the vectors of a segment."""
    read = read_graph if segment.kind == "hnsw" else read_vectors
    path = checked_path(folder, segment, segment.vectors_file)
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
