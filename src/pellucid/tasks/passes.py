"""Rows of ids through a model, those of like length together, several batches at a time where that is sooner done."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from pellucid.models import Network
from pellucid.streams import side_by_side
from pellucid.text.batch import TOKEN_BUDGET, by_length

Made = TypeVar("Made")


def passes(
    module: Network, lengths: Sequence[int], work: Callable[[list[int]], Made], *, apart: bool = True
) -> Iterator[tuple[list[int], Made]]:
    """Groups of row numbers, the longest first, and what `work` makes of each, without gradients.

    work: may be called from several threads; what it gives is kept until its turn, so it should be small.
    apart: whether several groups may be worked on at a time. They are where the model is laid out for a processor, but
        for a row so long that it fills a batch alone, and for what is said of one thread (`torch.autocast`).
    """
    groups = list(by_length(lengths))
    apart = apart and module.laid_out and module.embeddings.token.like.device.type == "cpu"
    apart = apart and not torch.is_autocast_enabled("cpu")
    long = sum(lengths[group[0]] > TOKEN_BUDGET for group in groups)
    yield from zip(groups, side_by_side(work, groups, alone=long if apart else len(groups)))
