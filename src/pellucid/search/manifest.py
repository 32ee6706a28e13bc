"""The manifest of an index: one small file per generation, with digests of every other file and of itself."""

import base64
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.checksummed import damaged_error, read_sealed, seal
from pellucid.config.checks import check_choice, check_count
from pellucid.config.plain import from_json_value
from pellucid.errors import CorruptFileError
from pellucid.files import write_atomically
from pellucid.lazy import cached_property

ENTRIES, VECTORS, GRAPH = "entries.sqlite", "vectors.f32", "vectors.faiss"

FORMAT = 1
"""Version of the folder's format. A later one is refused, naming the version that reads it."""

MAX_BYTES, REBUILD_ADVICE = 64 * 2**20, "build the index again"
"""Of a manifest; and the advice where it is damaged."""

KINDS, METRICS = ("flat", "hnsw"), ("cosine", "dot", "euclidean")

MAX_NEIGHBOURS, MAX_CANDIDATES = 1_024, 65_536
"""Limits of M, and of efConstruction and efSearch."""

MAX_DIMENSION = 65_536
"""Limit of the dimension of a vector."""

_FOLDER, _DIGEST = re.compile(r"[0-9]{6,12}"), re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Encoder:
    """The model that made the vectors, and how; vectors of two encoders cannot be compared.

    name: of the model.  digest: of its config and files; "" for given vectors.
    dimension: of a vector.  pooling, normalize, max_length, prompt: how a text is embedded.
    reading: digest of its tokenizer's behaviour; "" in indexes written before it was recorded.
    bits: 8 or 4 for quantised weights, 0 for floating point; None in indexes written before it was recorded.
    """

    name: str
    digest: str
    dimension: int
    pooling: tuple[str, ...] = ()
    normalize: bool = False
    max_length: int | None = None
    prompt: str = ""
    revision: str | None = None
    reading: str = ""
    bits: int | None = None


@dataclass(frozen=True)
class Settings:
    """How neighbours are found.

    metric: "cosine", "dot" or "euclidean".
    kind: "flat" compares with every vector; "hnsw" searches a graph (Malkov and Yashunin, 2016, arXiv:1603.09320);
        "auto" chooses by the rows of each segment.
    M: neighbours of a vertex.  efConstruction, efSearch: candidates kept while building, and while searching.
    """

    metric: str = "cosine"
    kind: str = "flat"
    M: int = 32
    efConstruction: int = 40  # noqa: N815 - the field's own names
    efSearch: int = 16  # noqa: N815

    def check(self) -> None:
        """Raises InputError for a setting that FAISS does not support."""
        check_choice("metric", self.metric, METRICS)
        check_choice("kind", self.kind, (*KINDS, "auto"))
        check_count("M", self.M, MAX_NEIGHBOURS, minimum=2)
        check_count("efConstruction", self.efConstruction, MAX_CANDIDATES)
        check_count("efSearch", self.efSearch, MAX_CANDIDATES)


@dataclass(frozen=True)
class Segment:
    """Rows that were written together, and are never modified.

    folder: below `segments/`.  rows: their number.  kind: "flat" or "hnsw"; small segments are flat in every index.
    files: {name: (bytes, sha256)}.  dead: which rows were deleted since, as packed, compressed bits in base64.
    """

    folder: str
    rows: int
    kind: str
    files: dict[str, tuple[int, str]]
    dead: str = ""

    @property
    def vectors_file(self) -> str:
        """The name of the file of its vectors."""
        return GRAPH if self.kind == "hnsw" else VECTORS

    @property
    def digest(self) -> str:
        """The digest of the file of its vectors."""
        return self.files[self.vectors_file][1]

    @cached_property
    def alive(self) -> int:
        """The number of rows that are not deleted."""
        return self.rows - int(self.deleted.sum())

    @cached_property
    def deleted(self) -> np.ndarray:
        """Bool[ndarray, "rows"]. Raises CorruptFileError where there is not one bit per row."""
        if not self.dead:
            return np.zeros(self.rows, bool)
        num_bytes = (self.rows + 7) // 8
        try:
            bits = zlib.decompressobj().decompress(base64.b64decode(self.dead, validate=True), num_bytes + 1)
        except (ValueError, zlib.error) as error:
            raise CorruptFileError(f"segment {self.folder}: its deleted rows cannot be read ({error})") from error
        if len(bits) != num_bytes:
            raise CorruptFileError(f"segment {self.folder}: its deleted rows are not {self.rows:,} bits")
        return np.unpackbits(np.frombuffer(bits, np.uint8), count=self.rows).astype(bool)

    def without(self, rows: Sequence[int]) -> "Segment":
        """A copy with these rows deleted, too, by their numbers."""
        deleted = self.deleted.copy()
        deleted[rows] = True
        packed = base64.b64encode(zlib.compress(np.packbits(deleted).tobytes())).decode()
        return replace(self, dead=packed if deleted.any() else "")


@dataclass(frozen=True)
class Manifest:
    """One generation of an index.

    corpus: what was read and how, for information; with digests of files.
    numbered: how many texts were ever added, from where the numbering of new ones continues: no id is reused.
    """

    generation: int
    encoder: Encoder
    settings: Settings
    segments: tuple[Segment, ...] = ()
    corpus: dict[str, Any] = field(default_factory=dict)
    numbered: int = 0
    format: int = FORMAT

    @property
    def rows(self) -> int:
        """The number of rows that are not deleted."""
        return sum(segment.alive for segment in self.segments)


def file_of(generation: int) -> str:
    """The name of a generation's manifest."""
    return f"generation-{generation:06}.json"


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Makes a generation the newest: from here on it is the one that opens."""
    content = seal(asdict(manifest))
    write_atomically(folder / file_of(manifest.generation), lambda file: file.write(content))


def read_manifest(path: Path) -> Manifest:
    """Raises CorruptFileError for a file that was changed, and InputError for one from a later version."""
    body = read_sealed(path, FORMAT, MAX_BYTES, REBUILD_ADVICE)
    try:
        manifest = from_json_value(body, Manifest)
        _check(manifest, path)
    except ValueError as error:
        raise damaged_error(path, error, REBUILD_ADVICE) from error
    return manifest


def _check(manifest: Manifest, path: Path) -> None:
    """Raises ValueError for values that no index has: a valid digest does not prove who wrote the file."""
    if path.name != file_of(manifest.generation):
        raise ValueError(f"it is generation {manifest.generation!r}")
    encoder = manifest.encoder
    check_count("dimension", encoder.dimension, MAX_DIMENSION)
    if encoder.bits not in (None, 0, 4, 8):
        raise ValueError(f"its encoder has {encoder.bits!r} bits")
    if encoder.max_length is not None:
        check_count("max_length", encoder.max_length)
    manifest.settings.check()
    check_count("numbered", manifest.numbered, 2**62, minimum=0)
    if manifest.format != FORMAT:
        raise ValueError("its format is unknown")
    folders = [segment.folder for segment in manifest.segments]
    if len(set(folders)) != len(folders):
        raise ValueError("a segment appears twice")
    for segment in manifest.segments:
        _check_segment(segment)


def _check_segment(segment: Segment) -> None:
    check_choice("kind", segment.kind, KINDS)
    if not _FOLDER.fullmatch(segment.folder):
        raise ValueError(f"it names the segment {segment.folder!r}")
    if set(segment.files) != {ENTRIES, segment.vectors_file}:
        raise ValueError(f"it names the files {sorted(segment.files)} of a {segment.kind} segment")
    if not all(size >= 0 and _DIGEST.fullmatch(one) for size, one in segment.files.values()):
        raise ValueError(f"it names no digests for the files of {segment.folder}")
    check_count("rows", segment.rows, segment.files[ENTRIES][0])  # every row takes at least a byte
