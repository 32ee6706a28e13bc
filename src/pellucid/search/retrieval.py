"""From queries to hits: rankings by vectors, by words, and both fused."""

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
from pellucid.search.hits import Hit, Hits, hit_of, reciprocal_rank_fusion
from pellucid.search.opened_generation import Generation, Segments
from pellucid.search.rerank import load_reranker, rerank_hits
from pellucid.search.vectors import ScoredRows, scores
from pellucid.search.words import QueryTerms, parse_query

MODES = ("hybrid", "dense", "words")
DEPTH = 100
"""Rows of each ranking that are fused, at least."""

RERANK_DEPTH = 50


@dataclass(frozen=True)
class SearchRequest:
    """The options of a search; see `Index.search`."""

    k: int
    mode: str
    conditions: tuple[Condition, ...]
    rerank: Any = None

    def __post_init__(self) -> None:
        check_count("k", self.k)
        check_choice("mode", self.mode, MODES)

    @property
    def num_candidates(self) -> int:
        """How many texts to search for: reranking chooses from a fixed number of them."""
        return self.k if self.rerank is None else max(self.k, RERANK_DEPTH)

    def depth(self, has_words: bool) -> int:
        """How many rows of each ranking to retrieve at first."""
        return max(2 * self.num_candidates, DEPTH) if has_words else self.num_candidates


@dataclass(frozen=True)
class Query:
    """vectors: its own, and that of the corrected text where there is one: Float32[ndarray, "vectors dimension"]"""

    text: str
    vectors: np.ndarray
    terms: QueryTerms | None = None


@dataclass(frozen=True)
class Ranking:
    """Rows by their global numbers (see `Segments`), best first: Int64[ndarray, "rows"], and Float64 scores for each.

    similarities: of the vectors; NaN where none were compared.
    bm25_scores: of the words; NaN where no word matches, or none were searched.
    """

    global_rows: np.ndarray
    score: np.ndarray
    similarities: np.ndarray
    bm25_scores: np.ndarray


Encode = Callable[[Sequence[str]], np.ndarray]
"""Embeds queries as prepared vectors: Float32[ndarray, "texts dimension"]"""


def search_queries(
    generation: Generation, encode: Encode, inputs: list[str] | np.ndarray, request: SearchRequest
) -> list[Hits]:
    """The hits of each query.  inputs: texts, or prepared vectors."""
    are_vectors = isinstance(inputs, np.ndarray)
    if are_vectors and request.rerank is not None:
        raise InputError("rerank reads texts, and the queries are vectors: give the queries as texts")
    if are_vectors and request.mode == "words":
        raise InputError("a vector has no words: give the queries as texts, or search with ", Argument("mode", "dense"))
    reranker = None if request.rerank is None else load_reranker(request.rerank)
    searcher = SegmentSearcher(generation.segments, request, generation.manifest.settings.efSearch)
    queries = _queries(encode, searcher, inputs)
    results = []
    for query, hits in zip(queries, searcher.top_hits(queries)):
        if reranker is not None:
            hits = rerank_hits(reranker, query.text, hits)[: request.k]
        results.append(Hits(hits, query.text, None if query.terms is None else query.terms.corrected))
    return results


def _queries(encode: Encode, searcher: "SegmentSearcher", inputs: list[str] | np.ndarray) -> list[Query]:
    """The queries with their vectors and words, as far as the mode needs them."""
    mode = searcher.request.mode
    if isinstance(inputs, np.ndarray):
        return [Query("", vector[None]) for vector in inputs]
    if mode == "dense":
        return [Query(text, vector[None]) for text, vector in zip(inputs, encode(inputs))]
    terms = [parse_query(text, searcher.segments.vocabulary) for text in inputs]
    if mode == "words":
        none = np.empty((0, 0), np.float32)
        return [Query(text, none, one) for text, one in zip(inputs, terms)]
    corrected = {i: one.corrected for i, one in enumerate(terms) if one.corrected is not None}
    encoded = encode([*inputs, *corrected.values()])
    vectors = [row[None] for row in encoded[: len(inputs)]]
    for i, more in zip(corrected, encoded[len(inputs) :]):
        vectors[i] = np.stack([encoded[i], more])
    return [Query(*one) for one in zip(inputs, vectors, terms)]


class SegmentSearcher:
    """Searches the rows of all segments that meet the conditions.

    ef_search: the number of candidates that a graph search keeps.
    """

    def __init__(self, segments: Segments, request: SearchRequest, ef_search: int) -> None:
        self.segments, self.request, self.ef_search = segments, request, ef_search
        self.alive = [segment.searchable_mask(request.conditions) for segment in segments]
        check_columns(segments, request.conditions)
        warn_of_misread_dates(segments, request.conditions)

    def top_hits(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """The first `num_candidates` texts of each query. Passages of one text count as one: where the rows retrieved
        hold too few texts, more rows are retrieved."""
        k, rows = self.request.num_candidates, int(self.segments.starts[-1])
        depth = self.request.depth(any(query.terms is not None for query in queries))
        hits_by_query: list[list[Hit]] = [[] for _ in queries]
        pending = list(range(len(queries)))
        while pending:
            rankings = self.rankings([queries[i] for i in pending], depth)
            for i, hits in zip(pending, self.hits(rankings, k)):
                hits_by_query[i] = hits
            short = [
                i for i, one in zip(pending, rankings) if len(hits_by_query[i]) < k and len(one.global_rows) >= depth
            ]
            pending = short if depth < rows else []
            depth *= 4
        return hits_by_query

    def rankings(self, queries: Sequence[Query], depth: int) -> list[Ranking]:
        """The ranking of each query, in the requested mode; `depth` rows of each kind are retrieved."""
        nearest = iter(self.nearest(np.concatenate([query.vectors for query in queries]), depth))
        found = []
        for query in queries:
            of_query = list(itertools.islice(nearest, len(query.vectors)))
            if query.terms is None:
                ((global_rows, similarities),) = of_query
                found.append(Ranking(global_rows, similarities, similarities, np.full(len(global_rows), np.nan)))
            else:
                found.append(self._ranking_with_words(query, of_query, depth))
        return found

    def nearest(self, vectors: np.ndarray, depth: int) -> list[ScoredRows]:
        """The global rows nearest to each vector, and their scores."""
        parts = [
            segment.vectors.nearest(vectors, depth, alive, self.ef_search)
            for segment, alive in zip(self.segments, self.alive)
        ]
        if len(parts) == 1:
            return parts[0]
        return [self._merge_segments([part[i] for part in parts], depth) for i in range(len(vectors))]

    def _merge_segments(self, parts: Sequence[ScoredRows], depth: int) -> ScoredRows:
        """Merges the rankings of all segments."""
        if not parts:
            return np.empty(0, np.int64), np.empty(0)
        global_rows = np.concatenate([rows + start for (rows, _), start in zip(parts, self.segments.starts)])
        scores = np.concatenate([score for _, score in parts])
        order = np.lexsort((global_rows, -scores))[:depth]
        return global_rows[order], scores[order]

    def _ranking_with_words(self, query: Query, nearest: Sequence[ScoredRows], depth: int) -> Ranking:
        """The ranking of the rows that contain words of a query, and of those near to it."""
        assert query.terms is not None
        by_words = self._bm25_rankings(query.terms)
        best = [_top_rows(part, depth, alive) for part, alive in zip(by_words, self.alive)]
        global_rows = np.unique(np.concatenate([self._merge_segments(best, depth)[0], *(rows for rows, _ in nearest)]))
        bm25_scores = self._bm25_scores_at(by_words, global_rows)
        similarities = self.similarities(query.vectors, global_rows)
        words_alone = self.request.mode == "words"
        score = bm25_scores if words_alone else reciprocal_rank_fusion(similarities, bm25_scores)
        order = np.argsort(-score, kind="stable")
        return Ranking(global_rows[order], score[order], similarities[order], bm25_scores[order])

    def _bm25_rankings(self, query: QueryTerms) -> list[ScoredRows]:
        """The rows of each segment that contain words of a query, in order, with their BM25 scores; in mode "words"
        those with its common words, where no row that meets the conditions contains another."""
        found = self._score_words(query.terms)
        if query.common and self.request.mode == "words":
            fitting = (len(rows) if alive is None else alive[rows].any() for (rows, _), alive in zip(found, self.alive))
            return found if any(fitting) else self._score_words(query.common)
        return found

    def _score_words(self, terms: Sequence[str]) -> list[ScoredRows]:
        frequencies, statistics = self.segments.vocabulary.document_frequencies, self.segments.corpus_statistics
        return [bm25(segment.entries, terms, frequencies, statistics) for segment in self.segments]

    def _bm25_scores_at(self, by_words: Sequence[ScoredRows], global_rows: np.ndarray) -> np.ndarray:
        """The BM25 score of each row, NaN where no word matches."""
        found = np.full(len(global_rows), np.nan)
        for (rows, score), start in zip(by_words, self.segments.starts):
            if len(rows):
                at = np.minimum(np.searchsorted(rows, global_rows - start), len(rows) - 1)
                fits = rows[at] == global_rows - start
                found[fits] = score[at[fits]]
        return found

    def similarities(self, vectors: np.ndarray, global_rows: np.ndarray) -> np.ndarray:
        """The exact score of each row for the nearest of the vectors."""
        found = np.full(len(global_rows), np.nan)
        if len(vectors):
            for chosen, rows, segment in self.segments.by_segment(global_rows):
                numbers = segment.vectors.numbers[rows]
                found[chosen] = np.max([scores(vector, numbers, segment.vectors.metric) for vector in vectors], axis=0)
        return found

    def hits(self, rankings: Sequence[Ranking], k: int) -> list[list[Hit]]:
        """The first k texts of each ranking; of a text's passages only the best. Only the rows returned are read."""
        first = self._entries(row for ranking in rankings for row in ranking.global_rows[:k].tolist())
        return [self._first_hits(ranking, k, first) for ranking in rankings]

    def _first_hits(self, ranking: Ranking, k: int, known: dict[int, Entry]) -> list[Hit]:
        hits: dict[str, Hit] = {}
        for start in range(0, len(ranking.global_rows), k):
            some = slice(start, start + k)
            rows, scores = ranking.global_rows[some].tolist(), ranking.score[some].tolist()
            similarities, bm25_scores = (
                _nan_to_none(ranking.similarities[some]),
                _nan_to_none(ranking.bm25_scores[some]),
            )
            entries = self._entries(rows) if start else known
            for row, score, similarity, bm25_score in zip(rows, scores, similarities, bm25_scores):
                entry = entries[row]
                if entry.id not in hits:
                    hits[entry.id] = hit_of(entry, score, similarity, bm25_score)
                    if len(hits) == k:
                        return list(hits.values())
        return list(hits.values())

    def _entries(self, global_rows: Iterable[int]) -> dict[int, Entry]:
        unique_rows = np.array(sorted(set(global_rows)), np.int64)
        return {
            row: entry
            for chosen, rows, segment in self.segments.by_segment(unique_rows)
            for row, entry in zip(unique_rows[chosen].tolist(), segment.entries.get(rows.tolist()))
        }


def _top_rows(found: ScoredRows, limit: int, alive: np.ndarray | None) -> ScoredRows:
    """The best `limit` live rows, and those that tie with the last of them; in no order."""
    rows, score = found
    if alive is not None:
        is_alive = alive[rows]
        rows, score = rows[is_alive], score[is_alive]
    if len(rows) > limit:
        best = score >= np.partition(score, -limit)[-limit]
        rows, score = rows[best], score[best]
    return rows, score


def _nan_to_none(numbers: np.ndarray) -> list[float | None]:
    """Replaces NaN, which JSON does not have, by None."""
    return [None if number != number else number for number in numbers.tolist()]
