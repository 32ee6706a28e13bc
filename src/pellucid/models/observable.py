"""Networks with an observer, which receives the values of every pass and may replace them."""

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from pellucid.blocks import Cache, Observer, Pass
from pellucid.errors import InputError


@dataclass(frozen=True)
class TokenPositions:
    """Positions of the tokens of a pass within their texts, counted from 0; -1 for padding.

    queries: the tokens that the pass reads, Int[Tensor, "batch|1 seq"].
    keys: the tokens that self-attention can see, including those of earlier passes, Int[Tensor, "batch|1 source"].
    memory: the tokens that cross-attention can see, Int[Tensor, "batch|1 source"]; none where there is none.
    rows: number of texts in the batch, also where one row of positions serves all of them.
    """

    queries: Tensor
    keys: Tensor
    memory: Tensor
    rows: int


class NetworkObserver(Protocol):
    """Observes every pass of a network; what belongs to one pass is an argument."""

    @property
    def by_row(self) -> bool:
        """Whether it treats the texts of a batch differently."""
        ...

    def wants(self, name: str) -> bool:
        """Whether it needs the value `name`, which is computed only for observers."""
        ...

    def answer(self, name: str, value: Tensor, token_positions: TokenPositions) -> Tensor:
        """Receives `value` by its full name and returns the value to continue with."""
        ...


class CombinedObserver:
    """Observer of one pass: calls the network's own observer, then that of this pass with its result.

    token_positions: set by `report_positions` before a stack reports its first value.
    """

    token_positions: TokenPositions

    def __init__(self, network_observer: NetworkObserver, pass_observer: Observer | None) -> None:
        self.network_observer, self.pass_observer = network_observer, pass_observer

    def __call__(self, name: str, value: Tensor) -> Tensor:
        value = self.network_observer.answer(name, value, self.token_positions)
        return value if self.pass_observer is None else self.pass_observer(name, value)

    def wants(self, name: str) -> bool:
        further = self.pass_observer is not None and self.pass_observer.wants(name)
        return self.network_observer.wants(name) or further


class Observable(nn.Module):
    """A module that may have an observer of its own."""

    observer: NetworkObserver | None = None

    def observed_by(self, observer: NetworkObserver) -> Self:
        """Returns a copy of the module that shares all weights and submodules and calls `observer` in every pass."""
        copy: Self = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.__dict__["observer"] = observer
        return copy

    def require_no_row_edits(self) -> Self:
        """Returns itself, for passes whose rows are not the texts as given: sorted, or repeated.

        Raises InputError for an observer that distinguishes rows: it would receive other rows than it expects.
        """
        if self.observer is not None and self.observer.by_row:
            raise InputError(
                "an edit of a row holds for calls of the model and for traces alone, whose rows are the texts as they "
                "were given; here they are read in another order: edit all of them, or trace them"
            )
        return self

    def observed_pass(self, observer: Observer | None = None) -> Pass:
        """Returns a pass observed by `observer`, after the network's own observer."""
        return Pass(observer=observer if self.observer is None else CombinedObserver(self.observer, observer))

    def __getstate__(self) -> dict[str, Any]:
        if self.observer is not None:
            raise InputError("an edited model cannot be copied or pickled: take the model that it was made from")
        return self.__dict__


def report_positions(
    run: Pass, positions: Tensor, attention_mask: Tensor | None, cache: Cache | None, rows: int
) -> None:
    """Sets the token positions of a pass for the network's own observer, if there is one.

    positions: Int[Tensor, "batch|1 seq"].  rows: number of texts in the batch.
    """
    if not isinstance(run.observer, CombinedObserver):
        return
    if cache is None:
        queries = keys = _without_padding(positions, attention_mask)
    else:
        keys = cache.positions.clamp(min=-1)
        queries = keys[:, -positions.shape[1] :]
    memory = positions[:, :0]
    if run.memory is not None:
        source = torch.arange(run.memory.shape[1], device=run.memory.device)[None]
        memory = _without_padding(source, None if run.memory_mask is None else run.memory_mask[:, 0, 0])
    run.observer.token_positions = TokenPositions(queries, keys, memory, rows)


def _without_padding(positions: Tensor, mask: Tensor | None) -> Tensor:
    """Positions counted over real tokens only, for padding on either side."""
    return positions if mask is None else (mask.long().cumsum(dim=1) - 1).where(mask.bool(), -1)
