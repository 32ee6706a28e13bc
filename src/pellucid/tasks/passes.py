"""Rows of ids through a model, those of like length together, several batches at a time where that is sooner done."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from pellucid.models import Network
from pellucid.streams import parallel_batches, parallel_map
from pellucid.text.batch import PASS_COST, TOKEN_BUDGET, batch_limits, length_batches

Result = TypeVar("Result")

SHARE = 0.75
"""How much of a stream's fair share a batch may be: beyond it the other streams would end long before it."""


def run_batches(
    module: Network, lengths: Sequence[int], work: Callable[[list[int]], Result], *, parallel: bool = True
) -> Iterator[tuple[list[int], Result]]:
    """Groups of row numbers, the largest first, and what `work` makes of each, without gradients.

    work: may be called from several threads; what it gives is kept until its turn, so it should be small.
    parallel: whether several groups may be worked on at a time. They are where the model is a packed copy on a
        processor, but for a group that the others would wait for.
    """
    device = module.device.type
    groups = sorted(length_batches(lengths, *batch_limits(device)), key=lambda group: -len(group) * lengths[group[0]])
    run_parallel = parallel and module.is_fast and device == "cpu"
    sizes = [len(group) * lengths[group[0]] + PASS_COST for group in groups]
    yield from zip(
        groups, parallel_map(work, groups, sequential=_sequential_count(sizes) if run_parallel else len(groups))
    )


def run_in_order(
    module: Network, lengths: Sequence[int], work: Callable[[list[int]], Iterable[Result]]
) -> list[Result]:
    """What `work` makes of each row, in the order of the rows; it is given groups of them, as `run_batches` says."""
    found: dict[int, Result] = {}
    for group, some in run_batches(module, lengths, work):
        found.update(zip(group, some))
    return [found[i] for i in range(len(lengths))]


def _sequential_count(sizes: Sequence[int]) -> int:
    """How many of the first fill a batch by a single long row, or are too much of a stream's share of what is left."""
    left = sum(sizes)
    for before, size in enumerate(sizes):
        if size <= TOKEN_BUDGET + PASS_COST and size * parallel_batches(len(sizes) - before) <= SHARE * left:
            return before
        left -= size
    return len(sizes)
