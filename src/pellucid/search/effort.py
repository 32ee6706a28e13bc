"""Tunes the search effort of a graph by searching it."""

from dataclasses import replace

import numpy as np

from pellucid.search.manifest import Settings
from pellucid.search.vectors import Vectors, prepare_vectors

RECALL, NEAREST, SAMPLE, MAX_EF_SEARCH = 0.965, 10, 200, 4_096
"""The recall that a graph must reach, for this many true neighbours on a sample of this size, so that it finds 0.95 of
those of other queries as near to the rows as rows are; and the limit up to which `efSearch` is raised."""

DISPLACEMENT = np.float32(0.75)
"""How far rows are displaced, as a share of the distance to a neighbour. As measured on names and on synthetic
clusters, the neighbours of new texts are found slightly more often than those of rows displaced so far. Of vectors
without clusters they are found less often (0.91 on 6,000 normal ones of 64 numbers; 0.94 where rows are displaced by
1.25), and of texts that are far from every row still less: `Index.curve` measures your own."""


def tuned_ef_search(vectors: Vectors, settings: Settings) -> int:
    """`efSearch`, raised by a quarter until a graph finds `RECALL` of the true neighbours of vectors that are not in
    it. Ties with the last true neighbour count."""
    queries = _perturbed_queries(vectors)
    last = [score[-1] for _, score in replace(vectors, graph=None).nearest(queries, NEAREST, None, 0)]
    ef = settings.efSearch
    while ef < MAX_EF_SEARCH:
        found = vectors.nearest(queries, NEAREST, None, ef)
        if np.mean([(score >= least).mean() for (_, score), least in zip(found, last)]) >= RECALL:
            break
        ef = min(ef + max(ef // 4, 1), MAX_EF_SEARCH)
    return ef


def _perturbed_queries(vectors: Vectors) -> np.ndarray:
    """A fixed sample of rows, each displaced away from one of its neighbours: about as far from the others as a new
    text is, and its neighbours as hard to find. The rows themselves would be too easy, and so would duplicates: each
    row is sampled once, and displaced away from a different one."""
    generator = np.random.default_rng(0)
    along = vectors.numbers @ generator.standard_normal(vectors.numbers.shape[1]).astype(np.float32)
    once = np.unique(along, return_index=True)[1]
    rows = vectors.numbers[np.sort(generator.choice(once, min(SAMPLE, len(once)), replace=False))]
    near = [vectors.numbers[found] for found, _ in vectors.nearest(rows, 6, None, 64)]
    others = [some[(some != row).any(axis=1)] for row, some in zip(rows, near)]
    moved = [row + DISPLACEMENT * (row - generator.choice(some)) for row, some in zip(rows, others) if len(some)]
    return prepare_vectors(moved or rows, vectors.metric)
