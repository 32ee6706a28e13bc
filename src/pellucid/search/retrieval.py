"""From queries to hits: vectors that are near, words that stand there, and both orders as one."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.config.checks import check_choice, check_count
from pellucid.errors import Argument, InputError
from pellucid.search.bm25 import bm25
from pellucid.search.condition_checks import check_columns, warn_of_misread_dates
from pellucid.search.conditions import Condition
from pellucid.search.entry import Entry
from pellucid.search.hits import Hit, Hits, reciprocal_rank_fusion
from pellucid.search.opened import Generation, Segments
from pellucid.search.rerank import load_reranker, rerank_hits
from pellucid.search.vectors import ScoredRows, scores
from pellucid.search.words import QueryTerms, parse_query

MODES = ("hybrid", "dense", "words")
DEPTH = 100
"""So many of each order are joined at least."""

RERANK_DEPTH = 50


@dataclass(frozen=True)
class SearchRequest:
    """How to search; see `Index.search`."""

    k: int
    mode: str
    conditions: tuple[Condition, ...]
    rerank: Any = None

    def __post_init__(self) -> None:
        check_count("k", self.k)
        check_choice("mode", self.mode, MODES)

    @property
    def num_candidates(self) -> int:
        """How many texts are looked for: what is read again is chosen from a fixed number of them."""
        return self.k if self.rerank is None else max(self.k, RERANK_DEPTH)

    def depth(self, has_words: bool) -> int:
        """How many rows of each order are looked at, at first."""
        return max(2 * self.num_candidates, DEPTH) if has_words else self.num_candidates


@dataclass(frozen=True)
class Query:
    """vectors: its own, and that of the corrected text where there is one: Float32[ndarray, "vectors dimension"]"""

    text: str
    vectors: np.ndarray
    terms: QueryTerms | None = None


@dataclass(frozen=True)
class Ranking:
    """Rows by their places (see `Segments`), the best first: Int64[ndarray, "rows"], and Float64 for each.

    similarities: of the vectors; NaN where none was compared.  bm25_scores: BM25; NaN where no word fits, or none was looked for.
    """

    global_rows: np.ndarray
    score: np.ndarray
    similarities: np.ndarray
    bm25_scores: np.ndarray


Encode = Callable[[Sequence[str]], np.ndarray]
"""Queries as vectors that are prepared: Float32[ndarray, "texts dimension"]"""


def search_queries(
    generation: Generation, encode: Encode, inputs: list[str] | np.ndarray, request: SearchRequest
) -> list[Hits]:
    """The hits of each query.  inputs: texts, or vectors that are prepared."""
    silent = isinstance(inputs, np.ndarray)
    if silent and request.rerank is not None:
        raise InputError("rerank reads texts, and vectors were asked for: give the queries as texts")
    if silent and request.mode == "words":
        raise InputError("a vector has no words: give the queries as texts, or ask with ", Argument("mode", "dense"))
    reranker = None if request.rerank is None else load_reranker(request.rerank)
    field = SegmentSearcher(generation.segments, request, generation.manifest.settings.efSearch)
    queries = _queries(encode, field, inputs)
    answers = []
    for query, hits in zip(queries, field.top_hits(queries)):
        if reranker is not None:
            hits = rerank_hits(reranker, query.text, hits)[: request.k]
        answers.append(Hits(hits, query.text, None if query.terms is None else query.terms.corrected))
    return answers


def _queries(encode: Encode, searcher: "SegmentSearcher", inputs: list[str] | np.ndarray) -> list[Query]:
    """The queries with their vectors and words, as far as these are looked for."""
    mode = searcher.request.mode
    if isinstance(inputs, np.ndarray):
        return [Query("", vector[None]) for vector in inputs]
    if mode == "dense":
        return [Query(text, vector[None]) for text, vector in zip(inputs, encode(inputs))]
    words = [parse_query(text, searcher.segments.vocabulary) for text in inputs]
    if mode == "words":
        none = np.empty((0, 0), np.float32)
        return [Query(text, none, said) for text, said in zip(inputs, words)]
    corrected = {i: said.corrected for i, said in enumerate(words) if said.corrected is not None}
    made = encode([*inputs, *corrected.values()])
    vectors = [row[None] for row in made[: len(inputs)]]
    for i, more in zip(corrected, made[len(inputs) :]):
        vectors[i] = np.stack([made[i], more])
    return [Query(*one) for one in zip(inputs, vectors, words)]


class SegmentSearcher:
    """What is searched: the rows of all segments that fit the conditions.

    ef_search: how many candidates a graph keeps.
    """

    def __init__(self, segments: Segments, request: SearchRequest, ef_search: int) -> None:
        self.segments, self.request, self.ef_search = segments, request, ef_search
        self.alive = [segment.searchable_mask(request.conditions) for segment in segments]
        check_columns(segments, request.conditions, self.alive)
        warn_of_misread_dates(segments, request.conditions)

    def top_hits(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """The first texts of each query, as many as are wanted. Passages of one text count as one: where too few texts
        are left of as many rows as were looked at, more rows are."""
        k, rows = self.request.num_candidates, int(self.segments.starts[-1])
        depth = self.request.depth(any(query.terms is not None for query in queries))
        answers: list[list[Hit]] = [[] for _ in queries]
        waiting = list(range(len(queries)))
        while waiting:
            orders = self.rankings([queries[i] for i in waiting], depth)
            for i, hits in zip(waiting, self.hits(orders, k)):
                answers[i] = hits
            short = [i for i, order in zip(waiting, orders) if len(answers[i]) < k and len(order.global_rows) >= depth]
            waiting = short if depth < rows else []
            depth *= 4
        return answers

    def rankings(self, queries: Sequence[Query], depth: int) -> list[Ranking]:
        """The rows of each query, in the order that was asked for; `depth` of each kind are looked at."""
        near_ = iter(self.nearest(np.concatenate([query.vectors for query in queries]), depth))
        found = []
        for query in queries:
            mine = list(itertools.islice(near_, len(query.vectors)))
            if query.terms is None:
                ((places, similar),) = mine
                found.append(Ranking(places, similar, similar, np.full(len(places), np.nan)))
            else:
                found.append(self._ranking_with_words(query, mine, depth))
        return found

    def nearest(self, vectors: np.ndarray, depth: int) -> list[ScoredRows]:
        """The places near to each vector, and how near they are."""
        if not len(vectors):
            return []
        parts = [
            segment.vectors.nearest(vectors, depth, alive, self.ef_search)
            for segment, alive in zip(self.segments, self.alive)
        ]
        if len(parts) == 1:
            return parts[0]
        return [self._merge_segments([part[i] for part in parts], depth) for i in range(len(vectors))]

    def _merge_segments(self, parts: Sequence[ScoredRows], depth: int) -> ScoredRows:
        """The orders of all segments as one."""
        if not parts:
            return np.empty(0, np.int64), np.empty(0)
        places = np.concatenate([rows + start for (rows, _), start in zip(parts, self.segments.starts)])
        similar = np.concatenate([score for _, score in parts])
        order = np.lexsort((places, -similar))[:depth]
        return places[order], similar[order]

    def _ranking_with_words(self, query: Query, near_: Sequence[ScoredRows], depth: int) -> Ranking:
        """The rows that hold words of a query, and those that are near to it."""
        assert query.terms is not None
        standing = self._bm25_rankings(query.terms)
        best = [_top_rows(part, depth, alive) for part, alive in zip(standing, self.alive)]
        places = np.unique(np.concatenate([self._merge_segments(best, depth)[0], *(rows for rows, _ in near_)]))
        worded = self._bm25_scores_at(standing, places)
        similar = self.similarities(query.vectors, places)
        score = worded if self.request.mode == "words" else reciprocal_rank_fusion(similar, worded)
        order = np.argsort(-score, kind="stable")
        return Ranking(places[order], score[order], similar[order], worded[order])

    def _bm25_rankings(self, words: QueryTerms) -> list[ScoredRows]:
        """The rows of each segment that hold words of a query, in order, with their BM25 score; in a search by words
        alone those that hold its common words, where no row that fits the conditions holds another."""
        found = self._score_words(words.terms)
        if words.common and self.request.mode == "words":
            fitting = (len(rows) if alive is None else alive[rows].any() for (rows, _), alive in zip(found, self.alive))
            return found if any(fitting) else self._score_words(words.common)
        return found

    def _score_words(self, words: Sequence[str]) -> list[ScoredRows]:
        having, all_ = self.segments.vocabulary.rows, self.segments.corpus_statistics
        return [bm25(segment.entries, words, having, all_) for segment in self.segments]

    def _bm25_scores_at(self, standing: Sequence[ScoredRows], places: np.ndarray) -> np.ndarray:
        """The BM25 score of each place, NaN where no word fits."""
        found = np.full(len(places), np.nan)
        for (rows, score), start in zip(standing, self.segments.starts):
            if len(rows):
                at = np.minimum(np.searchsorted(rows, places - start), len(rows) - 1)
                fits = rows[at] == places - start
                found[fits] = score[at[fits]]
        return found

    def similarities(self, vectors: np.ndarray, places: np.ndarray) -> np.ndarray:
        """How near each place is to one of the vectors, whichever is nearest; exact."""
        found = np.full(len(places), np.nan)
        if len(vectors):
            for chosen, rows, segment in self.segments.by_segment(places):
                held = segment.vectors.numbers[rows]
                found[chosen] = np.max([scores(vector, held, segment.vectors.metric) for vector in vectors], axis=0)
        return found

    def hits(self, orders: Sequence[Ranking], k: int) -> list[list[Hit]]:
        """The first k texts of each order; of a text's passages the best. Only what is shown is read."""
        first = self._entries(place for order in orders for place in order.global_rows[:k].tolist())
        return [self._first_hits(order, k, first) for order in orders]

    def _first_hits(self, order: Ranking, k: int, known: dict[int, Entry]) -> list[Hit]:
        hits: dict[str, Hit] = {}
        for start in range(0, len(order.global_rows), k):
            some = slice(start, start + k)
            places, score = order.global_rows[some].tolist(), order.score[some].tolist()
            similar, worded = _nan_to_none(order.similarities[some]), _nan_to_none(order.bm25_scores[some])
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
            for chosen, rows, segment in self.segments.by_segment(wanted)
            for place, entry in zip(wanted[chosen].tolist(), segment.entries.get(rows.tolist()))
        }


def _top_rows(found: ScoredRows, most: int, alive: np.ndarray | None) -> ScoredRows:
    """So many of the rows that are alive, and those that are as good as the last of them; in no order."""
    rows, score = found
    if alive is not None:
        fits = alive[rows]
        rows, score = rows[fits], score[fits]
    if len(rows) > most:
        best = score >= np.partition(score, -most)[-most]
        rows, score = rows[best], score[best]
    return rows, score


def _nan_to_none(numbers: np.ndarray) -> list[float | None]:
    """NaN, which JSON does not know, as None."""
    return [None if number != number else number for number in numbers.tolist()]
