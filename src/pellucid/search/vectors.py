"""Vectors and their nearest neighbours: all compared, or found by a graph search; in the end by exact scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.errors import CorruptFileError, InputError
from pellucid.lazy import cached_property
from pellucid.search import hnsw

FLAT_UP_TO = 50_000
"""Fewer rows are all compared: exact, and faster than building a graph."""

BLOCK = 1_024
"""Rows that are prepared, or compared exactly, at a time: as many as fit into the processor's cache."""

MAX_SCORES, ROWS_PER_COPY = 2**24, 16_384
"""Approximate scores held at a time (64 MiB), and rows that are copied together to be compared."""

MAX_VALUE, MIN_LENGTH = 1e15, 1e-154
"""The largest absolute value in a vector: products of larger ones overflow float32. And the least length of a vector,
below which it has no direction."""

ROWS_PER_CANDIDATE = 30
"""How many rows can be compared in the time that a graph search takes per candidate, as measured."""


def prepare_vectors(vectors: Any, metric: str, what: str = "vectors") -> np.ndarray:
    """Vectors prepared for comparison: float32, finite, and of length 1 for the cosine."""
    return LazyVectors(vectors, metric, what)[:]


class LazyVectors:
    """Vectors that are prepared when sliced, so that there is no second copy of all of them."""

    def __init__(self, vectors: Any, metric: str, what: str = "vectors") -> None:
        """Raises InputError for anything but a two-dimensional array of numbers."""
        self.metric, self.what = metric, what
        if np.ma.is_masked(vectors):
            raise InputError(f"{what} are a masked array, with numbers that do not count: fill them, or leave rows out")
        try:
            self.vectors = np.asarray(list(vectors) if isinstance(vectors, Iterator) else vectors)
        except (TypeError, ValueError, RuntimeError) as error:  # the last of PyTorch, for tensors with gradients
            raise InputError(f"{what} are not a table of numbers: {str(error)[:120]}") from error
        if self.vectors.ndim != 2:
            raise InputError(f"{what} have the shape {list(self.vectors.shape)}, expected [rows, dimension]")
        if self.vectors.dtype.kind not in "fiub":
            raise InputError(f"{what} are {self.vectors.dtype}, expected numbers")
        self.shape: tuple[int, ...] = self.vectors.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Float32[ndarray, "rows dimension"]"""
        first, last, _ = rows.indices(len(self))
        chunk = np.empty((max(last - first, 0), self.shape[1]), np.float32)
        for start in range(first, last, BLOCK):
            chunk[start - first : start - first + BLOCK] = self._prepared_rows(start, min(start + BLOCK, last))
        return chunk

    def _prepared_rows(self, first: int, last: int) -> np.ndarray:
        rows = self.vectors[first:last]
        rows = rows.astype(np.float32) if rows.dtype == np.float16 else rows  # in which `MAX_VALUE` overflows
        if self.metric != "cosine":
            self._check(rows, first)
            return rows
        wide = rows.astype(np.float64)
        lengths = np.sqrt(np.einsum("rd,rd->r", wide, wide))
        if not (lengths <= MAX_VALUE).all():  # otherwise no number is larger
            self._check(rows, first)
        lengths[lengths < MIN_LENGTH] = np.inf
        return wide / lengths[:, None]

    def _check(self, rows: np.ndarray, first: int) -> None:
        """Raises InputError for numbers that cannot be compared, in rows numbered from `first`."""
        if not (
            small := (rows <= MAX_VALUE) & (rows >= -MAX_VALUE)
        ).all():  # the smallest integer has no absolute value
            row = int((~small.all(axis=1)).argmax())
            fault = f"beyond {MAX_VALUE:g}" if np.isfinite(rows[row]).all() else "that is not finite"
            raise InputError(f"{self.what}: row {first + row} holds a number {fault}")


def scores(query: np.ndarray, vectors: np.ndarray, metric: str) -> np.ndarray:
    """The scores of vectors for one query, the nearest largest: Float64[ndarray, "rows"]; summed in float64, so that
    they do not depend on what else is compared at the same time."""
    found = np.empty(len(vectors))
    for start in range(0, len(vectors), BLOCK):
        some = vectors[None, start : start + BLOCK]
        found[start : start + BLOCK] = _exact_scores(query[None], some, metric)[0]
    return found


def _exact_scores(queries: np.ndarray, vectors: np.ndarray, metric: str) -> np.ndarray:
    """queries: [queries, dimension], vectors: [queries, rows, dimension] -> Float64[ndarray, "queries rows"]"""
    wide = vectors.astype(np.float64)
    if metric != "euclidean":
        return np.einsum("qrd,qd->qr", wide, queries.astype(np.float64))
    wide -= queries[:, None]
    return -np.sqrt(np.einsum("qrd,qrd->qr", wide, wide))


def min_candidates(k: int, ef: int) -> int:
    """The number of rows that a graph search must find, so that the first few are the same for any k."""
    return max(k, min(ef // 2, 10))


ScoredRows = tuple[np.ndarray, np.ndarray]
"""Rows, the nearest first, and their scores: Int64[ndarray, "rows"], Float64[ndarray, "rows"]"""


@dataclass
class Vectors:
    """The vectors of one segment.

    numbers: Float32[ndarray, "rows dimension"], prepared by `prepare_vectors`.
    graph: a FAISS index over them; None compares with every one.
    """

    numbers: np.ndarray
    metric: str
    graph: Any = None

    def nearest(self, queries: np.ndarray, k: int, alive: np.ndarray | None, ef: int) -> list[ScoredRows]:
        """For each query at most k rows with their exact scores, the nearest first; ties in the order of the rows.
        Without a graph no nearer row is ever missed.

        queries: Float32[ndarray, "queries dimension"], prepared by `prepare_vectors`.
        alive: Bool[ndarray, "rows"]; None for all.
        ef: candidates that the graph keeps where all rows are live; where a filter leaves half of them, twice as many,
            of which the nearer half is used. A query near to which the filter leaves too few is repeated with more,
            until comparing all would be faster.
        """
        rows = len(self.numbers)
        num_alive = rows if alive is None else int(np.count_nonzero(alive))
        k = min(k, num_alive)
        if k == 0 or not len(queries):
            return [(np.empty(0, np.int64), np.empty(0)) for _ in queries]
        alive = None if num_alive == rows else alive
        num_candidates = min(min_candidates(k, ef), num_alive)
        ef = min(max(ef, k if alive is None else 4 * num_candidates) * rows // num_alive, rows)
        rows_by_query: dict[int, ScoredRows] = {}
        pending = np.arange(len(queries))
        while len(pending) and self.graph is not None and ef <= rows and num_alive > ROWS_PER_CANDIDATE * ef:
            found = hnsw.search_graph(self.graph, queries[pending], num_candidates, alive, ef)
            is_complete = found[:, -1] >= 0  # missing rows are at the end
            rows_by_query |= zip(
                pending[is_complete].tolist(), self._rescored(queries[pending[is_complete]], found[is_complete], k)
            )
            pending = pending[~is_complete]
            ef = rows + 1 if alive is None else 4 * ef  # where all rows are live, more candidates would find no others
        rows_by_query |= zip(pending.tolist(), self._exhaustive(queries[pending], k, alive, num_alive))
        return [rows_by_query[i] for i in range(len(queries))]

    def _rescored(self, queries: np.ndarray, found: np.ndarray, k: int) -> Iterator[ScoredRows]:
        """The first k of the rows that a graph search found, by exact scores."""
        step = max(BLOCK // found.shape[1], 1)
        for start in range(0, len(found), step):
            some = slice(start, start + step)
            exact = _exact_scores(queries[some], self.numbers[found[some]], self.metric)
            for rows, score in zip(found[some], exact):
                rows, score = _sort_by_score(rows, score)
                yield rows[:k], score[:k]

    def _exhaustive(
        self, queries: np.ndarray, k: int, alive: np.ndarray | None, num_alive: int
    ) -> Iterator[ScoredRows]:
        """Compares each query with every live row in float32; then exactly with those that may be among the first k."""
        alive_rows = np.flatnonzero(alive) if alive is not None and 4 * num_alive < len(alive) else None
        step = max(MAX_SCORES // len(self.numbers if alive_rows is None else alive_rows), 1)
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            rough = self._approximate_scores(block, alive_rows)
            if alive is not None and alive_rows is None:
                rough[:, ~alive] = -np.inf
            for query, row in zip(block, rough):
                first = np.flatnonzero(row >= np.partition(row, -k)[-k] - self._rounding_bound(query))
                rows = first if alive_rows is None else alive_rows[first]
                rows, exact = _sort_by_score(rows, scores(query, self.numbers[rows], self.metric))
                yield rows[:k], exact[:k]

    def _approximate_scores(self, queries: np.ndarray, alive_rows: np.ndarray | None) -> np.ndarray:
        """Scores that order rows as the exact ones do, up to float32 rounding: Float32[ndarray, "queries rows"]"""
        if alive_rows is None:
            approximate = queries @ self.numbers.T
        else:
            approximate = np.empty((len(queries), len(alive_rows)), np.float32)
            for start in range(0, len(alive_rows), ROWS_PER_COPY):
                some = slice(start, start + ROWS_PER_COPY)
                approximate[:, some] = queries @ self.numbers[alive_rows[some]].T
        if self.metric == "euclidean":
            approximate -= self._half_squared_norms if alive_rows is None else self._half_squared_norms[alive_rows]
        return approximate

    def _rounding_bound(self, query: np.ndarray) -> float:
        """The largest difference between float32 scores of equal rows: the bound for a sum of rounded products, the
        smallest of which underflow."""
        length, kind = float(np.linalg.norm(query.astype(np.float64))), np.finfo(np.float32)
        more = self._max_norm if self.metric == "euclidean" else 0.0
        return (len(query) + 8) * (float(kind.eps) * (length + more) * self._max_norm + float(kind.tiny))

    @cached_property
    def _max_norm(self) -> float:
        """The length of the longest vector."""
        return float(np.sqrt(2 * self._half_squared_norms.max(initial=0)))

    @cached_property
    def _half_squared_norms(self) -> np.ndarray:
        """Half of each vector's squared length: Float32[ndarray, "rows"]. By Euclidean distance the nearest row is the
        one whose product with the query, minus this, is largest."""
        return np.einsum("rd,rd->r", self.numbers, self.numbers) / 2


def _sort_by_score(rows: np.ndarray, exact: np.ndarray) -> ScoredRows:
    order = np.lexsort((rows, -exact))
    return rows[order], exact[order]


def write_vectors(vectors: Any, path: Path) -> None:
    """Writes plain float32 numbers, row by row, little-endian."""
    with path.open("wb") as file:
        for start in range(0, len(vectors), BLOCK):
            file.write(np.ascontiguousarray(vectors[start : start + BLOCK], dtype="<f4").data)


def read_vectors(path: Path, rows: int, dimension: int, metric: str) -> Vectors:
    """Raises CorruptFileError where the size of the file is wrong."""
    if path.stat().st_size != 4 * rows * dimension:
        raise CorruptFileError(f"{path} has {path.stat().st_size:,} bytes, expected {4 * rows * dimension:,}")
    return Vectors(np.fromfile(path, dtype="<f4").reshape(rows, dimension), metric)


def read_graph(path: Path, rows: int, dimension: int, metric: str) -> Vectors:
    """A graph and its vectors, which are not copied. Raises CorruptFileError for any other file."""
    graph, numbers = hnsw.read_graph(path, rows, dimension, metric)
    return Vectors(numbers, metric, graph)
