"""How hard a graph must be searched, found out by searching it."""

from dataclasses import replace

import numpy as np

from pellucid.search.manifest import Settings
from pellucid.search.vectors import Vectors, prepared

RECALL, MOST = 0.965, 4_096
"""What a graph must find of the true ten neighbours in a sample, so that it finds 0.95 of those of all others; and how
far `efSearch` is raised for it."""

AWAY = np.float32(0.75)
"""How far rows are moved, as a share of the way to a neighbour. Measured on names and on made vectors, the neighbours
of new texts are found a little more often than those of rows that were moved so far."""


def enough(held: Vectors, settings: Settings, asked: int = 200, k: int = 10) -> int:
    """`efSearch`, raised by a quarter until a graph finds `RECALL` of the true neighbours of vectors that are not in
    it. What is as near as a true neighbour is one."""
    queries = _new(held, min(asked, len(held.numbers)))
    last = [score[-1] for _, score in replace(held, graph=None).scored(queries, k, None, 0)]
    effort = settings.efSearch
    while effort < MOST:
        found = held.scored(queries, k, None, effort)
        if np.mean([(score >= least).mean() for (_, score), least in zip(found, last)]) >= RECALL:
            break
        effort = min(effort + max(effort // 4, 1), MOST)
    return effort


def _new(held: Vectors, many: int) -> np.ndarray:
    """Some rows, the same each time, each moved away from one of its neighbours: about as far from the others as a new
    text is, and as hard to find its neighbours. The rows themselves would be too easy."""
    chance = np.random.default_rng(0)
    rows = held.numbers[np.sort(chance.choice(len(held.numbers), many, replace=False))]
    near = [found[1:] if len(found) > 1 else found for found, _ in held.scored(rows, 6, None, 64)]
    neighbours = held.numbers[[chance.choice(found) for found in near]]
    return prepared(rows + AWAY * (rows - neighbours), held.metric)
