"""How hard a graph must be searched, found out by searching it."""

from dataclasses import replace

import numpy as np

from pellucid.search.manifest import Settings
from pellucid.search.vectors import Vectors, prepare_vectors

RECALL, NEAREST, SAMPLE, MAX_EF_SEARCH = 0.965, 10, 200, 4_096
"""What a graph must find of so many true neighbours, in a sample of so many, so that it finds 0.95 of those of
others where these lie as near to the rows as rows do; and how far `efSearch` is raised for it."""

DISPLACEMENT = np.float32(0.75)
"""How far rows are moved, as a share of the way to a neighbour. Measured on names and on made clusters, the neighbours
of new texts are found a little more often than those of rows that were moved so far. Of vectors without clusters they
are found less often (0.91 on 6,000 normal ones of 64 numbers; 0.94 where rows are moved by 1.25), and of texts that
are far from every row still less: `Index.curve` measures one's own."""


def tuned_ef_search(vectors: Vectors, settings: Settings) -> int:
    """`efSearch`, raised by a quarter until a graph finds `RECALL` of the true neighbours of vectors that are not in
    it. What is as near as a true neighbour is one."""
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
    """Some rows, the same each time, each moved away from one of its neighbours: about as far from the others as a new
    text is, and as hard to find its neighbours. The rows themselves would be too easy, and so would those that stand
    there often: each is taken once, and moved away from another one."""
    generator = np.random.default_rng(0)
    along = vectors.numbers @ generator.standard_normal(vectors.numbers.shape[1]).astype(np.float32)
    once = np.unique(along, return_index=True)[1]
    rows = vectors.numbers[np.sort(generator.choice(once, min(SAMPLE, len(once)), replace=False))]
    near = [vectors.numbers[found] for found, _ in vectors.nearest(rows, 6, None, 64)]
    others = [some[(some != row).any(axis=1)] for row, some in zip(rows, near)]
    moved = [row + DISPLACEMENT * (row - generator.choice(some)) for row, some in zip(rows, others) if len(some)]
    return prepare_vectors(moved or rows, vectors.metric)
