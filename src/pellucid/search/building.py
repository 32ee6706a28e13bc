"""Builds a segment from entries: known vectors are reused, and new ones survive an interruption."""

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.errors import UnsafeFileError
from pellucid.files import write_atomically
from pellucid.search.effort import tuned_ef_search
from pellucid.search.entries import write_entries
from pellucid.search.entry import Entry
from pellucid.search.generations import STAGED
from pellucid.search.hnsw import build_graph, faiss, graph_vectors, write_graph
from pellucid.search.manifest import ENTRIES, GRAPH, VECTORS, Settings
from pellucid.search.vectors import FLAT_UP_TO, Vectors, prepare_vectors, write_vectors
from pellucid.streams import growing_batches

FIRST_CHUNK, CHUNK_SIZE = 256, 2_048
"""Texts that are embedded, and stored on disk, at a time: few at first, so that an early interruption loses little."""

ProgressCallback = Callable[[int], object]

Encode = Callable[[list[str], ProgressCallback], np.ndarray]


@dataclass
class StagedVectors:
    """The vectors that an unfinished build has embedded, by the hash of the text; complete files only.

    encoder: a digest of the encoder; vectors of another one are discarded.
    vectors: those stored by an earlier build.  num_stored: the number stored, those of this build included.
    """

    folder: Path
    encoder: str
    vectors: dict[bytes, np.ndarray] = field(default_factory=dict)
    num_stored: int = 0

    def __post_init__(self) -> None:
        if self.folder.is_symlink():
            raise UnsafeFileError(f"{self.folder} is a link, and what is written there may land outside: remove it")
        for path in sorted(self.folder.glob("*.npz")):
            if not STAGED.fullmatch(path.name):
                continue
            vectors = self._read(path)
            if vectors is None:  # incomplete, or of another encoder: its texts are embedded again
                path.unlink(missing_ok=True)
            else:
                self.vectors |= vectors
        self.num_stored = len(self.vectors)

    def _read(self, path: Path) -> dict[bytes, np.ndarray] | None:
        """The vectors in one file; None where it is incomplete, of another encoder, or larger once unpacked."""
        try:
            with zipfile.ZipFile(path) as packed:
                if sum(one.file_size for one in packed.infolist()) > path.stat().st_size:
                    return None
            with np.load(path, allow_pickle=False) as file:
                encoder, hashes, vectors = str(file["encoder"]), file["hashes"], file["vectors"]
        except (OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile):
            return None
        fits = hashes.dtype == np.uint8 and hashes.ndim == 2 and vectors.dtype == np.float32 and vectors.ndim == 2
        if encoder != self.encoder or not fits or len(hashes) != len(vectors) or not np.isfinite(vectors).all():
            return None
        return {bytes(one): vector for one, vector in zip(hashes, vectors)}

    def store(self, hashes: list[bytes], vectors: np.ndarray) -> None:
        """Writes some vectors to disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        table = np.frombuffer(b"".join(hashes), np.uint8).reshape(len(hashes), -1)
        np.savez(content, encoder=self.encoder, hashes=table, vectors=vectors)
        target = self.folder / f"{hashes[0].hex()}.npz"
        write_atomically(target, lambda file: file.write(content.getbuffer()))
        self.num_stored += len(hashes)


@dataclass
class GrowingArray:
    """An array of rows whose final number is unknown."""

    numbers: np.ndarray
    rows: int = 0

    def add(self, more: np.ndarray) -> None:
        if self.rows + len(more) > len(self.numbers):
            larger = np.empty((2 * len(self.numbers) + len(more), self.numbers.shape[1]), np.float32)
            larger[: self.rows] = self.numbers[: self.rows]
            self.numbers = larger
        self.numbers[self.rows : self.rows + len(more)] = more
        self.rows += len(more)

    def all(self) -> np.ndarray:
        return self.numbers[: self.rows]


@dataclass
class SegmentBuilder:
    """Writes a segment.

    encode: embeds texts, Float32[ndarray, "texts dimension"], and reports progress.
    find_vector: looks up the vector of a text by its hash.  staged: stores new vectors until the build is done.
    on_embedded, on_graph_rows: called with the number of further entries, and of further vertices, done.
    row_by_hash: the row of a text's vector among those written, by its hash, so that there is no second copy of it.
    """

    settings: Settings
    dimension: int
    encode: Encode
    find_vector: Callable[[bytes], np.ndarray | None]
    staged: StagedVectors
    on_embedded: ProgressCallback = lambda done: None
    on_graph_rows: ProgressCallback = lambda done: None
    embedded: int = 0
    row_by_hash: dict[bytes, int] = field(default_factory=dict)

    def write(self, entries: Iterable[Entry], folder: Path) -> tuple[int, Settings, Vectors | None]:
        """Writes the files of a segment; returns its number of rows, and the results of `write_vector_files`."""
        vectors = GrowingArray(np.empty((CHUNK_SIZE, self.dimension), np.float32))
        write_entries(self._with_vectors(entries, vectors), folder / ENTRIES)
        return vectors.rows, *write_vector_files(vectors.all(), self.settings, folder, self.on_graph_rows)

    def _with_vectors(self, entries: Iterable[Entry], vectors: GrowingArray) -> Iterator[Entry]:
        for chunk in growing_batches(entries, FIRST_CHUNK, CHUNK_SIZE):
            if resolve_kind(self.settings, vectors.rows + len(chunk)).kind == "hnsw":
                faiss()  # raises where it is missing, before anything is embedded
            hashes = [entry.hash for entry in chunk]
            more = self._vectors(chunk, hashes, vectors)
            for i, one in enumerate(hashes, vectors.rows):
                self.row_by_hash.setdefault(one, i)
            vectors.add(more)
            yield from chunk

    def _vectors(self, chunk: list[Entry], hashes: list[bytes], before: GrowingArray) -> np.ndarray:
        """The vectors of some entries: known ones are looked up, each new text is embedded once."""
        known: dict[bytes, np.ndarray] = {}
        for one in dict.fromkeys(hashes):
            vector = before.numbers[self.row_by_hash[one]] if one in self.row_by_hash else self.staged.vectors.get(one)
            vector = self.find_vector(one) if vector is None else vector
            if vector is not None:
                known[one] = vector
        missing = {one: entry.text for one, entry in zip(hashes, chunk) if one not in known}
        self.on_embedded(len(chunk) - len(missing))
        if missing:
            vectors = prepare_vectors(self.encode(list(missing.values()), self.on_embedded), self.settings.metric)
            self.staged.store(list(missing), vectors)
            self.embedded += len(missing)
            known |= zip(missing, vectors)
        return np.stack([known[one] for one in hashes])


def write_vector_files(
    vectors: Any, requested: Settings, folder: Path, on_progress: ProgressCallback | None = None
) -> tuple[Settings, Vectors | None]:
    """Writes vectors as the settings request. ->  the settings with `kind` and `efSearch` decided; and a graph with its
    vectors, which need not be read again, where one was built

    vectors: Float32[ndarray, "rows dimension"], prepared, or an object that prepares them when sliced.
    """
    settings = resolve_kind(requested, len(vectors))
    if settings.kind == "flat":
        write_vectors(vectors, folder / VECTORS)
        return settings, None
    graph = build_graph(vectors, settings, on_progress)
    write_graph(graph, folder / GRAPH)
    vectors_of_graph = Vectors(graph_vectors(graph), settings.metric, graph)
    return replace(settings, efSearch=tuned_ef_search(vectors_of_graph, settings)), vectors_of_graph


def resolve_kind(requested: Settings, rows: int) -> Settings:
    """The settings with `kind` "auto" resolved for this number of rows."""
    fitting = "hnsw" if rows >= FLAT_UP_TO else "flat"
    return replace(requested, kind=fitting) if requested.kind == "auto" else requested
