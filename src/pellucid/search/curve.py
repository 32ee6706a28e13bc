"""What a graph finds and how long it takes: recall against the exact neighbours, and time, at several `efSearch`."""

import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pellucid.config.checks import count
from pellucid.errors import InputError
from pellucid.files import write_whole
from pellucid.search.opened import Opened
from pellucid.search.vectors import scores
from pellucid.view.plot import Plot, Spot

if TYPE_CHECKING:
    from pellucid.search.index import Index

EFFORTS = (8, 16, 32, 64, 128, 256, 512)
"""The values of `efSearch` that are tried, beside the index's own."""

SAMPLE = 200
"""So many texts of the index are queries, where none are given."""

Row = tuple[int, int]
"""(segment, row)"""


@dataclass(frozen=True)
class Point:
    """One way to search.

    efSearch: candidates that the graph keeps; None compares with every row.
    recall: the share of the true k neighbours that are found.
    milliseconds: of one query asked alone, the median; without the model that reads it.
    queries_per_second: one after the other.
    """

    efSearch: int | None  # noqa: N815 - the field's own name
    recall: float
    milliseconds: float
    queries_per_second: float


@dataclass(frozen=True)
class Curve:
    """Recall against time.

    k: neighbours asked for.  queries: how many were asked.  rows: how many there are to find.
    points: the graph at rising `efSearch`, where there is one; the last compares with every row.
    used: the `efSearch` of the index itself, or k where that is more; None where it has no graph.
    """

    k: int
    queries: int
    rows: int
    points: tuple[Point, ...]
    used: int | None

    def data(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return asdict(self)

    def plot(self) -> Plot:
        """A drawing: time to the right, recall upwards."""
        spots = [
            Spot(p.milliseconds, p.recall, "every row" if p.efSearch is None else f"efSearch {p.efSearch}",
                 strong=p.efSearch == self.used, joined=p.efSearch is not None)
            for p in self.points
        ]  # fmt: skip
        return Plot(
            title=f"Recall@{self.k} against time",
            said=f"{self.rows:,} rows, {self.queries:,} queries as vectors, each asked alone",
            right="milliseconds for one query (median)",
            up=f"recall@{self.k} against the exact neighbours",
            spots=tuple(spots),
        )

    def svg(self, path: str | os.PathLike[str], theme: str = "light") -> Path:
        """Writes the drawing."""
        drawing = self.plot().svg(theme).encode("utf-8")
        return write_whole(Path(path).expanduser(), lambda file: file.write(drawing))

    def png(self, path: str | os.PathLike[str], theme: str = "light") -> Path:
        """Writes the drawing as pixels; needs the extra `draw`."""
        picture = self.plot().png(theme)
        return write_whole(Path(path).expanduser(), lambda file: file.write(picture))

    def _repr_html_(self) -> str:
        return self.plot().svg("light")


def measured(index: "Index", queries: np.ndarray | None, k: int, efforts: Sequence[int] | None) -> Curve:
    """See `Index.curve`.  queries: Float32[ndarray, "queries dimension"], prepared; None for rows of the index."""
    count("k", k)
    own = max(index.manifest.settings.efSearch, k)
    tried = _efforts((*EFFORTS, own) if efforts is None else efforts, k)
    segments = index.segments
    rows = len(index)
    if not rows:
        raise InputError("the index is empty: there is nothing to find")
    asked = _of_the_index(segments) if queries is None else queries
    alive = [segment.alive(()) for segment in segments]
    exact = [replace(segment, vectors=replace(segment.vectors, graph=None)) for segment in segments]
    true, seconds = _timed(functools.partial(_nearest, exact, alive, k, 0), asked)
    points = [_point(None, true, true, seconds)]
    graph = any(segment.vectors.graph is not None for segment in segments)
    for effort in reversed(tried if graph else []):
        found, seconds = _timed(functools.partial(_nearest, segments, alive, k, effort), asked)
        points.insert(0, _point(effort, found, true, seconds))
    return Curve(k, len(asked), rows, tuple(points), own if graph else None)


def _efforts(efforts: Sequence[int], k: int) -> list[int]:
    """The values to try, rising. A graph keeps k candidates at least, so that smaller values are all the same."""
    for effort in efforts:
        count("efSearch", effort)
    return sorted({max(effort, k) for effort in efforts})


def _of_the_index(segments: Sequence[Opened]) -> np.ndarray:
    """Some rows that were not deleted, the same each time: Float32[ndarray, "queries dimension"]"""
    places = [(s, int(row)) for s, one in enumerate(segments) for row in np.flatnonzero(~one.dead)]
    chosen = np.random.default_rng(0).choice(len(places), min(SAMPLE, len(places)), replace=False)
    return np.stack([segments[s].vectors.numbers[row] for s, row in (places[i] for i in sorted(chosen))])


def _timed(search: Callable[[np.ndarray], list[Row]], queries: np.ndarray) -> tuple[list[list[Row]], list[float]]:
    """What is found for each query, and the seconds that each took; the first query is asked twice, to warm up."""
    search(queries[0])
    found, seconds = [], []
    for query in queries:
        started = time.perf_counter()
        found.append(search(query))
        seconds.append(time.perf_counter() - started)
    return found, seconds


def _nearest(
    segments: Sequence[Opened], alive: list[np.ndarray | None], k: int, effort: int, query: np.ndarray
) -> list[Row]:
    """The k nearest rows of all segments."""
    scored = []
    for number, (one, here) in enumerate(zip(segments, alive)):
        (rows,) = one.vectors.nearest(query[None], k, here, effort)
        near = scores(query, one.vectors.numbers[rows], one.vectors.metric)
        scored += [(-score, number, row) for score, row in zip(near.tolist(), rows.tolist())]
    return [(number, row) for _, number, row in sorted(scored)[:k]]


def _point(effort: int | None, found: list[list[Row]], true: list[list[Row]], seconds: list[float]) -> Point:
    recall = statistics.fmean(len(set(a) & set(b)) / len(b) for a, b in zip(found, true))
    return Point(effort, recall, 1000 * statistics.median(seconds), len(seconds) / sum(seconds))
