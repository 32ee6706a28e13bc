"""A network whose passes somebody looks on at, and may answer with other numbers: a copy that shares every number."""

from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from pellucid.blocks import Cache, Pass, Watch
from pellucid.errors import InputError


def _nowhere() -> Tensor:
    return torch.zeros(1, 0, dtype=torch.long, device="cpu")


@dataclass
class Standing:
    """Where the tokens of a pass stand in their texts, counted from 0; -1 for padding.

    reads: what the pass reads, Int[Tensor, "batch|1 seq"].
    sources: what self-attention may look at, of earlier passes too, Int[Tensor, "batch|1 source"].
    across: what cross-attention may look at, Int[Tensor, "batch|1 source"].
    rows: how many texts are read, also where a number is one for all of them.
    """

    reads: Tensor = field(default_factory=_nowhere)
    sources: Tensor = field(default_factory=_nowhere)
    across: Tensor = field(default_factory=_nowhere)
    rows: int = 1


class Onlooker(Protocol):
    """Somebody who looks on at every pass of a network; what belongs to one pass is handed to him."""

    @property
    def by_row(self) -> bool:
        """Whether he treats the texts of a batch differently."""
        ...

    def wants(self, name: str) -> bool:
        """Whether it is worth computing what only an onlooker needs."""
        ...

    def answer(self, name: str, value: Tensor, standing: Standing) -> Tensor:
        """Told `value` by its full name; answers the value to go on with."""
        ...


class Looking:
    """One pass of somebody who stays: he is asked first, and who looks on at this pass alone sees his answer."""

    def __init__(self, stays: Onlooker, passes: Watch | None, standing: Standing) -> None:
        self.stays, self.passes, self.standing = stays, passes, standing

    def __call__(self, name: str, value: Tensor) -> Tensor:
        value = self.stays.answer(name, value, self.standing)
        return value if self.passes is None else self.passes(name, value)

    def wants(self, name: str) -> bool:
        further = self.passes is not None and self.passes.wants(name)
        return self.stays.wants(name) or further

    def stand(self, run: Pass, reads: Tensor, sources: Tensor, rows: int) -> None:
        """Takes note of where the tokens stand, before the layers of a stack run."""
        self.standing.reads, self.standing.sources, self.standing.rows = reads, sources, rows
        if run.memory is not None:
            places = torch.arange(run.memory.shape[1], device=run.memory.device)[None]
            self.standing.across = _real(places, None if run.memory_mask is None else run.memory_mask[:, 0, 0])


class Watched(nn.Module):
    """A module that may have an onlooker of its own."""

    onlooker: Onlooker | None = None

    def edited(self, onlooker: Onlooker) -> Self:
        """The same module, sharing every number and every part, with `onlooker` at all of its passes."""
        copy: Self = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.__dict__["onlooker"] = onlooker
        return copy

    def rows_alike(self) -> Self:
        """The same module, for passes whose rows are not the texts as they were given: sorted, or one several times.

        Raises InputError for an onlooker who tells rows apart: he would be told of others than he means.
        """
        if self.onlooker is not None and self.onlooker.by_row:
            raise InputError(
                "an edit of a row holds for calls of the model and for traces alone, whose rows are the texts as they "
                "were given; here they are read in an order of their own: edit all of them, or trace them"
            )
        return self

    def watched(self, watch: Watch | None = None) -> Pass:
        """A pass that `watch` looks on at, behind the onlooker that stays."""
        return Pass(watch=watch if self.onlooker is None else Looking(self.onlooker, watch, Standing()))

    def __getstate__(self) -> dict[str, Any]:
        if self.onlooker is not None:
            raise InputError("an edited model cannot be copied or pickled: take the model that it was made from")
        return self.__dict__


def standing_at(run: Pass, places: Tensor, attention_mask: Tensor | None, cache: Cache | None, rows: int) -> None:
    """Tells an onlooker who stays where the tokens of a pass stand. places: Int[Tensor, "batch|1 seq"]  rows: texts"""
    if isinstance(run.watch, Looking):
        if cache is None:
            reads = sources = _real(places, attention_mask)
        else:
            sources = cache.positions.clamp(min=-1)
            reads = sources[:, -places.shape[1] :]
        run.watch.stand(run, reads, sources, rows)


def _real(places: Tensor, mask: Tensor | None) -> Tensor:
    """Places counted over real tokens alone, on whichever side the padding stands."""
    return places if mask is None else (mask.long().cumsum(dim=1) - 1).where(mask.bool(), -1)
