"""Search results: the nearest texts with their metadata, best first."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pellucid.search.entry import Entry
from pellucid.tasks.answer import FrozenDict, FrozenList

RRF_K = 10
"""The constant of reciprocal rank fusion (Cormack et al., 2009, who use 60), by which lower ranks count less: with 10 a
first rank in one list outweighs a middling one in both."""


class Hit(FrozenDict):
    """One text that was found: `id`, `text`, `score`, `metadata`; for a passage also its `start` and `end` in the
    document.

    similarity: of its vector and the query's; None in mode "words".  words: its BM25 score; None where no word matches.
    It can be written as JSON, and refuses assignment.
    """

    similarity: float | None
    words: float | None

    def __init__(self, keys: Mapping[str, Any], *, similarity: float | None = None, words: float | None = None) -> None:
        super().__init__(keys)
        self._set_facts(similarity=similarity, words=words)

    def scored(self, score: float) -> "Hit":
        """A copy of the hit with another score."""
        return Hit(self | {"score": score}, **vars(self))


def hit_of(entry: Entry, score: float, similarity: float | None, words: float | None) -> Hit:
    """The hit for an entry."""
    place = {} if entry.first is None else {"start": entry.first, "end": entry.last}
    keys = {"id": entry.id, "score": score, "text": entry.text, **place, "metadata": entry.metadata}
    return Hit(keys, similarity=similarity, words=words)


class Hits(FrozenList):
    """The results of one query, each a `Hit`, best first. It refuses assignment.

    query: the query; "" for a vector.
    corrected: the query with mistyped words corrected; None where there was none.
    """

    query: str
    corrected: str | None

    def __init__(self, hits: Iterable[Hit], query: str = "", corrected: str | None = None) -> None:
        super().__init__(hits)
        self._set_facts(query=query, corrected=corrected)


def reciprocal_rank_fusion(similarities: np.ndarray, bm25_scores: np.ndarray) -> np.ndarray:
    """Fuses two rankings of the same rows by reciprocal rank (Cormack et al., 2009): 1 for a row that is first in both.

    similarities: Float64[ndarray, "rows"].  bm25_scores: likewise, NaN where no word matches.
    Ties go to the row that comes first.
    """
    score = 1 / (RRF_K + 1 + _ranks(similarities))
    fits = np.flatnonzero(~np.isnan(bm25_scores))
    score[fits] += 1 / (RRF_K + 1 + _ranks(bm25_scores[fits]))
    return score * (RRF_K + 1) / 2


def _ranks(values: np.ndarray) -> np.ndarray:
    """The ranks, 0 for the largest: Int64[ndarray, "rows"]"""
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(-values, kind="stable")] = np.arange(len(values))
    return ranks
