"""From queries to hits: vectors that are near, words that stand there, and both orders as one."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.config.checks import choice, count
from pellucid.errors import Argument, InputError
from pellucid.search.bm25 import bm25
from pellucid.search.condition_checks import check_columns, tell_misread
from pellucid.search.conditions import Condition
from pellucid.search.entry import Entry
from pellucid.search.hits import Hit, Hits, fused
from pellucid.search.opened import Generation, Segments
from pellucid.search.rerank import reader, reranked
from pellucid.search.vectors import Ranked, scores
from pellucid.search.words import Words, understood

MODES = ("hybrid", "dense", "words")
DEPTH = 100
"""So many of each order are joined at least."""

RERANKED = 50


@dataclass(frozen=True)
class Asked:
    """How to search; see `Index.search`."""

    k: int
    mode: str
    conditions: tuple[Condition, ...]
    rerank: Any = None

    def __post_init__(self) -> None:
        count("k", self.k)
        choice("mode", self.mode, MODES)

    @property
    def wanted(self) -> int:
        """How many texts are looked for: what is read again is chosen from a fixed number of them."""
        return self.k if self.rerank is None else max(self.k, RERANKED)

    def depth(self, worded: bool) -> int:
        """How many rows of each order are looked at, at first."""
        return max(2 * self.wanted, DEPTH) if worded else self.wanted


@dataclass(frozen=True)
class Query:
    """vectors: its own, and that of the corrected text where there is one: Float32[ndarray, "vectors dimension"]"""

    text: str
    vectors: np.ndarray
    words: Words | None = None


@dataclass(frozen=True)
class Order:
    """Rows by their places (see `Segments`), the best first: Int64[ndarray, "rows"], and Float64 for each.

    similar: of the vectors; NaN where none was compared.  worded: BM25; NaN where no word fits, or none was looked for.
    """

    places: np.ndarray
    score: np.ndarray
    similar: np.ndarray
    worded: np.ndarray


Encode = Callable[[Sequence[str]], np.ndarray]
"""Queries as vectors that are prepared: Float32[ndarray, "texts dimension"]"""


def seek(now: Generation, encode: Encode, given: list[str] | np.ndarray, asked: Asked) -> list[Hits]:
    """The hits of each query.  given: texts, or vectors that are prepared."""
    silent = isinstance(given, np.ndarray)
    if silent and asked.rerank is not None:
        raise InputError("rerank reads texts, and vectors were asked for: give the queries as texts")
    if silent and asked.mode == "words":
        raise InputError("a vector has no words: give the queries as texts, or ask with ", Argument("mode", "dense"))
    judge = None if asked.rerank is None else reader(asked.rerank)
    field = Field(now.segments, asked, now.manifest.settings.efSearch)
    queries = _queries(encode, field, given)
    answers = []
    for query, hits in zip(queries, field.answers(queries)):
        if judge is not None:
            hits = reranked(judge, query.text, hits)[: asked.k]
        answers.append(Hits(hits, query.text, None if query.words is None else query.words.corrected))
    return answers


def _queries(encode: Encode, field: "Field", given: list[str] | np.ndarray) -> list[Query]:
    """The queries with their vectors and words, as far as these are looked for."""
    mode = field.asked.mode
    if isinstance(given, np.ndarray):
        return [Query("", vector[None]) for vector in given]
    if mode == "dense":
        return [Query(text, vector[None]) for text, vector in zip(given, encode(given))]
    words = [understood(text, field.segments.vocabulary) for text in given]
    if mode == "words":
        none = np.empty((0, 0), np.float32)
        return [Query(text, none, said) for text, said in zip(given, words)]
    corrected = {i: said.corrected for i, said in enumerate(words) if said.corrected is not None}
    made = encode([*given, *corrected.values()])
    vectors = [row[None] for row in made[: len(given)]]
    for i, more in zip(corrected, made[len(given) :]):
        vectors[i] = np.stack([made[i], more])
    return [Query(*one) for one in zip(given, vectors, words)]


class Field:
    """What is searched: the rows of all segments that fit the conditions.

    effort: how many candidates a graph keeps.
    """

    def __init__(self, segments: Segments, asked: Asked, effort: int) -> None:
        self.segments, self.asked, self.effort = segments, asked, effort
        self.alive = [segment.alive(asked.conditions) for segment in segments]
        check_columns(segments, asked.conditions, self.alive)
        tell_misread(segments, asked.conditions)

    def answers(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """The first texts of each query, as many as are wanted. Passages of one text count as one: where too few texts
        are left of as many rows as were looked at, more rows are."""
        k, rows = self.asked.wanted, int(self.segments.starts[-1])
        depth = self.asked.depth(any(query.words is not None for query in queries))
        answers: list[list[Hit]] = [[] for _ in queries]
        waiting = list(range(len(queries)))
        while waiting:
            orders = self.orders([queries[i] for i in waiting], depth)
            for i, hits in zip(waiting, self.hits(orders, k)):
                answers[i] = hits
            short = [i for i, order in zip(waiting, orders) if len(answers[i]) < k and len(order.places) >= depth]
            waiting = short if depth < rows else []
            depth *= 4
        return answers

    def orders(self, queries: Sequence[Query], depth: int) -> list[Order]:
        """The rows of each query, in the order that was asked for; `depth` of each kind are looked at."""
        near_ = iter(self.near(np.concatenate([query.vectors for query in queries]), depth))
        found = []
        for query in queries:
            mine = list(itertools.islice(near_, len(query.vectors)))
            if query.words is None:
                ((places, similar),) = mine
                found.append(Order(places, similar, similar, np.full(len(places), np.nan)))
            else:
                found.append(self._with_words(query, mine, depth))
        return found

    def near(self, vectors: np.ndarray, depth: int) -> list[Ranked]:
        """The places near to each vector, and how near they are."""
        if not len(vectors):
            return []
        parts = [
            segment.vectors.scored(vectors, depth, alive, self.effort)
            for segment, alive in zip(self.segments, self.alive)
        ]
        if len(parts) == 1:
            return parts[0]
        return [self._merged([part[i] for part in parts], depth) for i in range(len(vectors))]

    def _merged(self, parts: Sequence[Ranked], depth: int) -> Ranked:
        """The orders of all segments as one."""
        if not parts:
            return np.empty(0, np.int64), np.empty(0)
        places = np.concatenate([rows + start for (rows, _), start in zip(parts, self.segments.starts)])
        similar = np.concatenate([score for _, score in parts])
        order = np.lexsort((places, -similar))[:depth]
        return places[order], similar[order]

    def _with_words(self, query: Query, near_: Sequence[Ranked], depth: int) -> Order:
        """The rows that hold words of a query, and those that are near to it."""
        assert query.words is not None
        standing = self._standing(query.words)
        best = [_best(part, depth, alive) for part, alive in zip(standing, self.alive)]
        places = np.unique(np.concatenate([self._merged(best, depth)[0], *(rows for rows, _ in near_)]))
        worded = self._worded(standing, places)
        similar = self.similar(query.vectors, places)
        score = worded if self.asked.mode == "words" else fused(similar, worded)
        order = np.argsort(-score, kind="stable")
        return Order(places[order], score[order], similar[order], worded[order])

    def _standing(self, words: Words) -> list[Ranked]:
        """The rows of each segment that hold words of a query, in order, with their BM25 score; in a search by words
        alone those that hold its common words, where no row that fits the conditions holds another."""
        found = self._holding(words.asked)
        if words.common and self.asked.mode == "words":
            fitting = (len(rows) if alive is None else alive[rows].any() for (rows, _), alive in zip(found, self.alive))
            return found if any(fitting) else self._holding(words.common)
        return found

    def _holding(self, words: Sequence[str]) -> list[Ranked]:
        having, all_ = self.segments.vocabulary.rows, self.segments.counts
        return [bm25(segment.entries, words, having, all_) for segment in self.segments]

    def _worded(self, standing: Sequence[Ranked], places: np.ndarray) -> np.ndarray:
        """The BM25 score of each place, NaN where no word fits."""
        found = np.full(len(places), np.nan)
        for (rows, score), start in zip(standing, self.segments.starts):
            if len(rows):
                at = np.minimum(np.searchsorted(rows, places - start), len(rows) - 1)
                fits = rows[at] == places - start
                found[fits] = score[at[fits]]
        return found

    def similar(self, vectors: np.ndarray, places: np.ndarray) -> np.ndarray:
        """How near each place is to one of the vectors, whichever is nearest; exact."""
        found = np.full(len(places), np.nan)
        if len(vectors):
            for chosen, rows, segment in self.segments.divided(places):
                held = segment.vectors.numbers[rows]
                found[chosen] = np.max([scores(vector, held, segment.vectors.metric) for vector in vectors], axis=0)
        return found

    def hits(self, orders: Sequence[Order], k: int) -> list[list[Hit]]:
        """The first k texts of each order; of a text's passages the best. Only what is shown is read."""
        first = self._entries(place for order in orders for place in order.places[:k].tolist())
        return [self._first(order, k, first) for order in orders]

    def _first(self, order: Order, k: int, known: dict[int, Entry]) -> list[Hit]:
        hits: dict[str, Hit] = {}
        for start in range(0, len(order.places), k):
            some = slice(start, start + k)
            places, score = order.places[some].tolist(), order.score[some].tolist()
            similar, worded = _told(order.similar[some]), _told(order.worded[some])
            entries = self._entries(places) if start else known
            for place, total, alike, counted in zip(places, score, similar, worded):
                entry = entries[place]
                if entry.id not in hits:
                    hits[entry.id] = Hit(entry, total, alike, counted)
                    if len(hits) == k:
                        return list(hits.values())
        return list(hits.values())

    def _entries(self, places: Iterable[int]) -> dict[int, Entry]:
        wanted = np.array(sorted(set(places)), np.int64)
        return {
            place: entry
            for chosen, rows, segment in self.segments.divided(wanted)
            for place, entry in zip(wanted[chosen].tolist(), segment.entries.get(rows.tolist()))
        }


def _best(found: Ranked, most: int, alive: np.ndarray | None) -> Ranked:
    """So many of the rows that are alive, and those that are as good as the last of them; in no order."""
    rows, score = found
    if alive is not None:
        fits = alive[rows]
        rows, score = rows[fits], score[fits]
    if len(rows) > most:
        best = score >= np.partition(score, -most)[-most]
        rows, score = rows[best], score[best]
    return rows, score


def _told(numbers: np.ndarray) -> list[float | None]:
    """NaN, which JSON does not know, as None."""
    return [None if number != number else number for number in numbers.tolist()]
