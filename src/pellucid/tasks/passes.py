"""Runs rows of ids in batches of similar length, several batches in parallel where that is faster."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from pellucid.models import Network
from pellucid.streams import parallel_batches, parallel_map
from pellucid.text.batch import PASS_COST, TOKEN_BUDGET, batch_limits, length_batches

Result = TypeVar("Result")

MAX_BATCH_SHARE = 0.75
"""The largest batch, as a share of a stream's fair part of the work: a larger one leaves the other streams idle."""


def run_batches(
    module: Network, lengths: Sequence[int], work: Callable[[list[int]], Result], *, parallel: bool = True
) -> Iterator[tuple[list[int], Result]]:
    """Groups of row indices, the largest first, and the result of `work` for each, without gradients.

    work: may be called from several threads; its result is held until its turn, so it should be small.
    parallel: whether several groups may run at a time. They do where the model is a packed copy on a CPU, except a
        group so large that the others would wait for it.
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
    """The result of `work` for each row, in the order of the rows; `work` gets groups of them, as in `run_batches`."""
    found: dict[int, Result] = {}
    for group, some in run_batches(module, lengths, work):
        found.update(zip(group, some))
    return [found[i] for i in range(len(lengths))]


def _sequential_count(sizes: Sequence[int]) -> int:
    """How many of the first batches hold a single long row, or exceed a stream's share of the remaining work."""
    left = sum(sizes)
    for before, size in enumerate(sizes):
        if size <= TOKEN_BUDGET + PASS_COST and size * parallel_batches(len(sizes) - before) <= MAX_BATCH_SHARE * left:
            return before
        left -= size
    return len(sizes)
