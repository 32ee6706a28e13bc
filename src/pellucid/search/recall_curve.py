"""Recall of a graph against the exact neighbours, and its time, at several values of `efSearch`."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pellucid.config.checks import check_count, require_integers
from pellucid.errors import InputError, format_count
from pellucid.search.opened_generation import Segments
from pellucid.search.retrieval import SearchRequest, SegmentSearcher
from pellucid.view.picture import Drawing
from pellucid.view.plot import Plot, PlotPoint

if TYPE_CHECKING:
    from pellucid.search.index import Index

EF_VALUES = (8, 16, 32, 64, 128, 256, 512)
"""The values of `efSearch` measured, besides the index's own."""

SAMPLE = 200
"""The number of texts of the index used as queries, where none are given."""


@dataclass(frozen=True)
class Point:
    """One measurement.

    efSearch: candidates that the graph keeps; None compares with every row.
    recall: the share of the true k neighbours that are found; ties with the last of them count.
    milliseconds: of one query searched alone, the median; without embedding it.
    queries_per_second: one after the other.
    """

    efSearch: int | None  # noqa: N815 - the field's own name
    recall: float
    milliseconds: float
    queries_per_second: float


@dataclass(frozen=True)
class Curve(Drawing):
    """Recall against time.

    k: neighbours searched for.  queries: number of queries.  rows: number of rows searched.
    points: the graph at rising `efSearch`, where there is one; the last compares with every row.
    used: the `efSearch` of the index itself, or k where that is larger; None where it has no graph.
    """

    k: int
    queries: int
    rows: int
    points: tuple[Point, ...]
    used: int | None

    def data(self) -> dict[str, Any]:
        """All of it, as JSON-compatible values."""
        return asdict(self)

    def plot(self) -> Plot:
        """A plot of recall (y) over time (x)."""
        points = [
            PlotPoint(p.milliseconds, p.recall, "every row" if p.efSearch is None else f"efSearch {p.efSearch}",
                 filled=p.efSearch == self.used, on_line=p.efSearch is not None)
            for p in self.points
        ]  # fmt: skip
        queries = format_count(self.queries, "query", "queries")
        return Plot(
            title=f"Recall@{self.k} against time",
            subtitle=f"{format_count(self.rows, 'row')}, {queries} as vectors, each asked alone",
            x_label="milliseconds for one query (median)",
            y_label=f"recall@{self.k} against the exact neighbours",
            points=tuple(points),
        )

    def text(self, theme: str = "light") -> str:
        return self.plot().text(theme)


def measure_curve(index: "Index", queries: np.ndarray | None, k: int, ef_values: Sequence[int] | None) -> Curve:
    """See `Index.curve`.  queries: Float32[ndarray, "queries dimension"], prepared; None for a sample of rows."""
    request = SearchRequest(k, "dense", ())
    own = max(index.manifest.settings.efSearch, k)
    ef_values = _ef_values((*EF_VALUES, own) if ef_values is None else ef_values, k)
    segments = index.segments
    rows = len(index)
    if not rows:
        raise InputError("the index is empty: there is nothing to find")
    queries = _sample_vectors(segments) if queries is None else queries
    if not len(queries):
        raise InputError("queries is empty, expected at least one")
    exact = Segments(replace(segment, vectors=replace(segment.vectors, graph=None)) for segment in segments)
    true, seconds = _timed_search(SegmentSearcher(exact, request, 0), queries)
    points = [_point(None, true, true, seconds)]
    graph = any(segment.vectors.graph is not None for segment in segments)
    for ef in reversed(ef_values if graph else []):
        found, seconds = _timed_search(SegmentSearcher(segments, request, ef), queries)
        points.insert(0, _point(ef, found, true, seconds))
    return Curve(k, len(queries), rows, tuple(points), own if graph else None)


def _ef_values(requested: Sequence[int], k: int) -> list[int]:
    """The values to measure, rising. A graph keeps at least k candidates, so smaller values are equivalent to k."""
    requested = require_integers("efSearch", requested, "several whole numbers")
    for ef in requested:
        check_count("efSearch", ef)
    return sorted({max(ef, k) for ef in requested})


def _sample_vectors(segments: Segments) -> np.ndarray:
    """A fixed sample of live rows: Float32[ndarray, "queries dimension"]"""
    live = np.flatnonzero(np.concatenate([~one.deleted for one in segments]))
    chosen = live[np.sort(np.random.default_rng(0).choice(len(live), min(SAMPLE, len(live)), replace=False))]
    return np.concatenate([segment.vectors.numbers[rows] for _, rows, segment in segments.by_segment(chosen)])


def _timed_search(searcher: SegmentSearcher, queries: np.ndarray) -> tuple[list[np.ndarray], list[float]]:
    """The scores of the rows found for each query, and the seconds that each took; the first is searched twice, to warm
    up."""
    searcher.nearest(queries[:1], searcher.request.k)
    found, seconds = [], []
    for query in queries:
        started = time.perf_counter()
        ((_, similar),) = searcher.nearest(query[None], searcher.request.k)
        seconds.append(time.perf_counter() - started)
        found.append(similar)
    return found, seconds


def _point(ef: int | None, found: list[np.ndarray], true: list[np.ndarray], seconds: list[float]) -> Point:
    recall = statistics.fmean(np.count_nonzero(near >= best[-1]) / len(best) for near, best in zip(found, true))
    return Point(ef, recall, 1000 * statistics.median(seconds), len(seconds) / sum(seconds))
