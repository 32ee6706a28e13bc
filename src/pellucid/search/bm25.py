"""BM25 scores (Robertson and Zaragoza, 2009), computed as in SQLite's FTS5, but over all segments of an index, so that
their scores can be compared."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.search.entries import Entries

K1, B = 1.2, 0.75
"""Saturation of the term frequency, and strength of the length normalisation (k1 and b in the paper)."""

MIN_IDF = 1e-6
"""The weight of a word that half of all rows or more contain."""


@dataclass(frozen=True)
class CorpusStatistics:
    """Statistics over all rows; deleted rows count until their segment is rewritten.

    rows: their number.  average_length: words of a row, on average.
    """

    rows: int
    average_length: float

    def idf(self, rows: int) -> float:
        """The inverse document frequency of a word that this many rows contain."""
        return max(math.log((self.rows - rows + 0.5) / (rows + 0.5)), MIN_IDF)


def corpus_statistics(segments: Iterable[Entries]) -> CorpusStatistics:
    """The statistics over all of these segments."""
    lengths = [one.lengths for one in segments]
    rows = sum(map(len, lengths))
    return CorpusStatistics(rows, max(sum(int(one.sum()) for one in lengths), 1) / max(rows, 1))


def bm25(
    entries: Entries, terms: Sequence[str], document_frequencies: Mapping[str, int], statistics: CorpusStatistics
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a segment that contain any of these words, in order, and their scores; larger is better:
    Int64[ndarray, "rows"], Float64[ndarray, "rows"]

    document_frequencies: how many of all rows contain a word.
    """
    if not terms:
        return np.empty(0, np.int64), np.empty(0)
    found, scores = [], []
    for word in terms:
        rows, counts = np.unique(entries.rows_with_word(word), return_counts=True)
        length_norm = K1 * (1 - B + B * entries.lengths[rows] / statistics.average_length)
        found.append(rows)
        scores.append(statistics.idf(document_frequencies[word]) * (counts * (K1 + 1) / (counts + length_norm)))
    rows, index = np.unique(np.concatenate(found), return_inverse=True)
    return rows, np.bincount(index, np.concatenate(scores), len(rows))
