"""What was found: the nearest texts, best first, with what is known of them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from pellucid.search.entries import Entry

LATE = 10
"""How slowly a later place counts less, in reciprocal rank fusion (Cormack et al., 2009, who take 60): with 10 a first
place in one list outweighs a middling one in both."""


class Hit(dict[str, Any]):
    """One text that was found: `id`, `text`, `score`, `metadata`; of a passage, `start` and `end` in its text, too.

    similarity: of its vector and the query's.  words: its BM25 score; None where no word fits.
    It is JSON as it is, and refuses assignment.
    """

    similarity: float
    words: float | None

    def __init__(self, entry: Entry, score: float, similarity: float, words: float | None = None) -> None:
        if entry.first is None:
            super().__init__(id=entry.id, score=score, text=entry.text, metadata=entry.metadata)
        else:
            place = {"start": entry.first, "end": entry.last}
            super().__init__(id=entry.id, score=score, text=entry.text, **place, metadata=entry.metadata)
        told = self.__dict__
        told["similarity"], told["words"] = similarity, words

    def scored(self, score: float) -> "Hit":
        """The same hit with another score."""
        return _hit(self | {"score": score}, vars(self))

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a hit is an answer and cannot be changed: copy it with dict(hit)")

    __setattr__ = __delattr__ = __setitem__ = __delitem__ = __ior__ = _refuse
    pop = popitem = clear = update = setdefault = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return (_hit, (dict(self), vars(self)))


def _hit(keys: dict[str, Any], told: dict[str, Any]) -> Hit:
    hit = Hit.__new__(Hit)
    dict.update(hit, keys)
    vars(hit).update(told)
    return hit


class Hits(list[Hit]):
    """The answers to one query, the best first.

    query: what was asked; "" for a vector.
    corrected: the same with mistyped words put right; None where none was.
    """

    def __init__(self, hits: Iterable[Hit], query: str, corrected: str | None = None) -> None:
        super().__init__(hits)
        self.query, self.corrected = query, corrected


def fused(similar: np.ndarray, worded: np.ndarray) -> np.ndarray:
    """Two orders of the same rows as one, by reciprocal rank (Cormack et al., 2009): 1 for what is first in both.

    similar: Float64[ndarray, "rows"].  worded: BM25, NaN where no word fits.  Of equals the first row counts more.
    """
    score = 1 / (LATE + 1 + _ranks(similar))
    fits = np.flatnonzero(~np.isnan(worded))
    score[fits] += 1 / (LATE + 1 + _ranks(worded[fits]))
    return score * (LATE + 1) / 2


def _ranks(values: np.ndarray) -> np.ndarray:
    """0 for the largest; Int64[ndarray, "rows"]"""
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(-values, kind="stable")] = np.arange(len(values))
    return ranks


def bits(rows: int, dead: Iterable[tuple[int, int]]) -> np.ndarray:
    """Bool[ndarray, "rows"]: true in these ranges."""
    found = np.zeros(rows, bool)
    for first, last in dead:
        found[first:last] = True
    return found
