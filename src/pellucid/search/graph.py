"""Checks the file of a graph before FAISS reads it: its C++ follows the numbers in it, even out of bounds.

    "IHNf" | header | probability of each level: f64 | neighbours up to each level: i32 | levels of each row: i32
    | start of each row's neighbours: u64 | neighbours: i32 | entry, top level, efConstruction, efSearch, 1: i32
    "IxF2" or "IxFI" | header | vectors: f32

Each list is preceded by its length, as u64. Source: `faiss/impl/index_write.cpp` and `index_read.cpp` of FAISS 1.15.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pellucid.errors import CorruptFileError

_STORED = {"euclidean": b"IxF2", "cosine": b"IxFI", "dot": b"IxFI"}
_METRIC = {"euclidean": 1, "cosine": 0, "dot": 0}
_MAX_LEVELS = 64


@dataclass
class _Reader:
    """Reads numbers in sequence; nothing is allocated beyond the size of the file."""

    path: Path
    bytes: np.ndarray
    offset: int = 0

    def fault(self, what: str) -> NoReturn:
        raise CorruptFileError(f"{self.path} is not a graph that can be searched: {what}")

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, self.read_array(struct.calcsize("<" + layout), "u1").tobytes())

    def read_array(self, count: int, kind: str) -> np.ndarray:
        size = count * np.dtype(kind).itemsize
        if size > len(self.bytes) - self.offset:
            self.fault(f"it ends at byte {len(self.bytes):,}, in the middle of {count:,} numbers")
        self.offset += size
        return self.bytes[self.offset - size : self.offset].view(kind)

    def read_counted_array(self, kind: str) -> np.ndarray:
        return self.read_array(self.unpack("Q")[0], kind)

    def header(self, kind: bytes, rows: int, dimension: int, metric: int) -> None:
        found, width, many, _, _, trained, measure = self.unpack("4siqqqBi")
        if (found, width, many, trained, measure) != (kind, dimension, rows, 1, metric):
            self.fault(
                f"it holds {many:,} vectors of {width:,} numbers ({found!r}), expected {rows:,} of {dimension:,}"
            )


def check_graph(path: Path, data: np.ndarray, rows: int, dimension: int, metric: str) -> None:
    """Raises CorruptFileError for a file with which FAISS could read out of bounds.

    data: the bytes of the file, UInt8[ndarray, "bytes"].
    """
    read = _Reader(path, data)
    read.header(b"IHNf", rows, dimension, _METRIC[metric])
    read.read_counted_array("<f8")
    cumulative_neighbours, levels, starts, neighbours = (
        read.read_counted_array(kind) for kind in ("<i4", "<i4", "<u8", "<i4")
    )
    entry, top, _, _, _ = read.unpack("iiiii")
    read.header(_STORED[metric], rows, dimension, _METRIC[metric])
    if len(read.read_counted_array("<f4")) != rows * dimension or read.offset != len(read.bytes):
        read.fault("its vectors do not end where the file ends")
    if (
        not 2 <= len(cumulative_neighbours) <= _MAX_LEVELS
        or cumulative_neighbours[0] != 0
        or (np.diff(cumulative_neighbours) < 0).any()
        or cumulative_neighbours[-1] > 2**20
    ):
        read.fault("its neighbours of each level are not counted upwards")
    if len(levels) != rows or not (levels.min() >= 1 and levels.max() == top + 1 < len(cumulative_neighbours)):
        read.fault("its rows are on levels that do not exist")
    if not 0 <= entry < rows or levels[entry] != top + 1:
        read.fault("its search does not start on the top level")
    ends = np.concatenate([[0], np.cumsum(cumulative_neighbours[levels], dtype=np.int64)])
    if len(starts) != rows + 1 or not np.array_equal(starts.astype(np.int64), ends) or ends[-1] != len(neighbours):
        read.fault("the neighbours of its rows do not follow one another")
    if len(neighbours) and not (neighbours.min() >= -1 and neighbours.max() < rows):
        read.fault(f"a neighbour is not one of its {rows:,} rows")
    for level in range(1, top + 1):
        _check_level(read, level, cumulative_neighbours, levels, ends, neighbours)


def _check_level(
    read: _Reader,
    level: int,
    cumulative_neighbours: np.ndarray,
    levels: np.ndarray,
    starts: np.ndarray,
    neighbours: np.ndarray,
) -> None:
    """On an upper level every neighbour must be on that level, too: FAISS reads its neighbours there."""
    rows = np.flatnonzero(levels > level)
    indices = starts[rows][:, None] + np.arange(cumulative_neighbours[level], cumulative_neighbours[level + 1])
    found = neighbours[indices]
    if (levels[found[found >= 0]] <= level).any():
        read.fault(f"a neighbour on level {level} is not on that level")
