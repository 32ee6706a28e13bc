"""Rows of ids through a model, those of like length together, several batches at a time where that is sooner done."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from pellucid.models import Network
from pellucid.streams import abreast, side_by_side
from pellucid.text.batch import PASS, TOKEN_BUDGET, by_length, limits

Made = TypeVar("Made")

SHARE = 0.75
"""How much of a stream's fair share a batch may be: beyond it the other streams would end long before it."""


def passes(
    module: Network, lengths: Sequence[int], work: Callable[[list[int]], Made], *, apart: bool = True
) -> Iterator[tuple[list[int], Made]]:
    """Groups of row numbers, the largest first, and what `work` makes of each, without gradients.

    work: may be called from several threads; what it gives is kept until its turn, so it should be small.
    apart: whether several groups may be worked on at a time. They are where the model is laid out for a processor, but
        for a group that the others would wait for.
    """
    device = module.device.type
    groups = sorted(by_length(lengths, *limits(device)), key=lambda group: -len(group) * lengths[group[0]])
    apart = apart and module.quick and device == "cpu"
    sizes = [len(group) * lengths[group[0]] + PASS for group in groups]
    yield from zip(groups, side_by_side(work, groups, alone=_alone(sizes) if apart else len(groups)))


def in_order(module: Network, lengths: Sequence[int], work: Callable[[list[int]], Iterable[Made]]) -> list[Made]:
    """What `work` makes of each row, in the order of the rows; it is given groups of them, as `passes` says."""
    found: dict[int, Made] = {}
    for group, some in passes(module, lengths, work):
        found.update(zip(group, some))
    return [found[i] for i in range(len(lengths))]


def _alone(sizes: Sequence[int]) -> int:
    """How many of the first fill a batch by a single long row, or are too much of a stream's share of what is left."""
    left = sum(sizes)
    for before, size in enumerate(sizes):
        if size <= TOKEN_BUDGET + PASS and size * abreast(len(sizes) - before) <= SHARE * left:
            return before
        left -= size
    return len(sizes)
