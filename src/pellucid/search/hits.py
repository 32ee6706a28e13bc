"""What was found: the nearest texts, best first, with what is known of them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from pellucid.search.entry import Entry
from pellucid.tasks.answer import FrozenDict, FrozenList

RRF_K = 10
"""How slowly a later place counts less, in reciprocal rank fusion (Cormack et al., 2009, who take 60): with 10 a first
place in one list outweighs a middling one in both."""


class Hit(FrozenDict):
    """One text that was found: `id`, `text`, `score`, `metadata`; of a passage, `start` and `end` in its text, too.

    similarity: of its vector and the query's; None where words alone were looked for.  words: its BM25 score; None
        where no word fits.
    It is JSON as it is, and refuses assignment.
    """

    similarity: float | None
    words: float | None

    def __init__(self, entry: Entry, score: float, similarity: float | None, words: float | None = None) -> None:
        place = {} if entry.first is None else {"start": entry.first, "end": entry.last}
        super().__init__(id=entry.id, score=score, text=entry.text, **place, metadata=entry.metadata)
        self._set_facts(similarity=similarity, words=words)

    def scored(self, score: float) -> "Hit":
        """The same hit with another score."""
        return _hit(self | {"score": score}, vars(self))

    def __reduce__(self) -> Any:
        return (_hit, (dict(self), vars(self)))


def _hit(keys: dict[str, Any], facts: dict[str, Any]) -> Hit:
    hit = Hit.__new__(Hit)
    dict.update(hit, keys)
    vars(hit).update(facts)
    return hit


class Hits(FrozenList):
    """The answers to one query, each a `Hit`, the best first. It refuses assignment.

    query: what was asked; "" for a vector.
    corrected: the same with mistyped words put right; None where none was.
    """

    query: str
    corrected: str | None

    def __init__(self, hits: Iterable[Hit], query: str, corrected: str | None = None) -> None:
        super().__init__(hits)
        self._set_facts(query=query, corrected=corrected)

    def __reduce__(self) -> Any:
        return (Hits, (list(self), self.query, self.corrected))


def reciprocal_rank_fusion(similarities: np.ndarray, bm25_scores: np.ndarray) -> np.ndarray:
    """Two orders of the same rows as one, by reciprocal rank (Cormack et al., 2009): 1 for what is first in both.

    similarities: Float64[ndarray, "rows"].  bm25_scores: the same of words, NaN where none fits.
    Of equals the first row counts more.
    """
    score = 1 / (RRF_K + 1 + _ranks(similarities))
    fits = np.flatnonzero(~np.isnan(bm25_scores))
    score[fits] += 1 / (RRF_K + 1 + _ranks(bm25_scores[fits]))
    return score * (RRF_K + 1) / 2


def _ranks(values: np.ndarray) -> np.ndarray:
    """0 for the largest; Int64[ndarray, "rows"]"""
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(-values, kind="stable")] = np.arange(len(values))
    return ranks
