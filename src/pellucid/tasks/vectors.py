"""Tasks that compare texts by one vector each, and how such vectors are compared."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import OF_TOKENS
from pellucid.config.checks import choice
from pellucid.config.pooling import SIMILARITIES, Pooling
from pellucid.models import Network, Output
from pellucid.tasks.attribution import Aim
from pellucid.tasks.embed import finished, pool, pooled_states, tell_unread
from pellucid.tasks.reader import Reader, Stretch, mean_of
from pellucid.tasks.task import Work
from pellucid.text import Window

BODIES = (None, *OF_TOKENS)
"""Heads that leave a body whose states speak for a text: none, and those that it was trained with."""


@dataclass(frozen=True, kw_only=True)
class Comparing(Reader):
    """A task that compares vectors of texts, each made as the checkpoint says, and as the mean of a plain one.

    similarity: "cosine", "dot", or "euclidean" and "manhattan", which are distances below zero; by default what the
        checkpoint says.
    The vector of a text read in stretches is the mean of theirs, each weighed by its tokens.
    explain: by gradients, so for two texts that are the same it tells nothing: they cannot become more alike.
    """

    similarity: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.similarity is not None:
            choice("similarity", self.similarity, SIMILARITIES)

    @classmethod
    def fitting(cls, loaded: Loaded, options: Any) -> dict[str, Any]:
        """The length that the checkpoint was made for is the limit, as long as no other is given."""
        return {"max_length": loaded.most_pooled()} | dict(options)

    def look(self, work: Work, module: Network, batch: dict[str, Tensor]) -> Tensor:
        return pooled_states(module, batch, plan_of(work))[0]

    def keep(self, work: Work, here: Tensor, window: Window) -> Tensor:
        return pooled(work, here)

    def _passes(self, work: Work, rows: list[Window]) -> Iterator[tuple[int, Any]]:
        unread = [row.unread(work.loaded.words.unk_token_id) for row in rows]
        starts = [i for i, row in enumerate(rows) if row.number == 0]
        work.seen.texts += len(starts)
        work.seen.unread += sum(all(unread[i : i + rows[i].count]) for i in starts)
        return super()._passes(work, rows)

    def tell(self, work: Work) -> None:
        tell_unread(work.seen.unread, work.seen.texts)

    def compared(self, work: Work, one: Tensor, other: Tensor) -> Tensor:
        """How alike two texts are, from their vectors before these are finished: Float[Tensor, "width"], twice"""
        plan = plan_of(work)
        return similar(self.similarity or plan.similarity, finished(one, plan), finished(other, plan))

    def aim(self, work: Work, stretches: list[Stretch], other: Tensor, text: str) -> Aim:
        """The similarity as a number of that stretch of a text which is most like the other one.  text: its name."""
        best = max(stretches, key=lambda stretch: float(self.compared(work, stretch.kept, other)))
        rest = [stretch for stretch in stretches if stretch is not best]
        fixed = other.clone()  # what a pass in inference kept takes no part in gradients

        def of(output: Output) -> Tensor:
            states = output.get("encoder_last_hidden_state", output["last_hidden_state"])
            here = Stretch(best.window, pooled(work, states[0]))
            return self.compared(work, mean_of([here, *rest]), fixed.to(states))

        return Aim(f"{self.similarity or plan_of(work).similarity} of the two texts", best.window, of, text)


def plan_of(work: Work) -> Pooling:
    """How this checkpoint makes a vector of a text."""
    return work.loaded.pooling or Pooling()


def pooled(work: Work, states: Tensor) -> Tensor:
    """The vector of one stretch, before it is finished: Float[Tensor, "seq hidden"]  ->  Float[Tensor, "width"]"""
    return pool(states[None], None, Pooling(plan_of(work).modes))[0]


def similar(way: str, one: Tensor, other: Tensor) -> Tensor:
    """Two vectors compared: Float[Tensor, "width"], twice  ->  Float[Tensor, ""]"""
    match way:
        case "cosine":
            scaled = [torch.nn.functional.normalize(vector, dim=-1) for vector in (one, other)]
            return scaled[0] @ scaled[1]
        case "dot":
            return one @ other
        case "euclidean":
            return 0 - (one - other).norm()
        case _:
            return 0 - (one - other).abs().sum()
