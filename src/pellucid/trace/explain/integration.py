"""The way from an input that stands for nothing to a text: gradients along it, closer together where it is rough."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pellucid.bars import bar
from pellucid.machine import no_grad

BUDGET = 512
"""Positions in one pass: full matrix products, and a bounded memory for the gradients of their logits."""
NODES = 4
"""Places within a stretch, by the rule of Gauss and Legendre: exact for polynomials of degree 7. The ends are none of
them, for at nothing at all the gradient may be beyond all numbers."""
STRETCHES = 8
"""Into how many stretches the way is cut at first, as far as there are steps."""
EXACT = 0.01
"""A stretch is halved where it misses its change of the answer by more than its part of this share of the whole."""
SHORTEST = 2.0**-48
"""Every norm inside a branch turns a thousandth of the way near zero into all of it, one layer after the other."""
LOOSE = 0.05
"""A sum that misses the change of the answer by a larger share than this is told of."""

Points = dict[str, Tensor]

log = logging.getLogger("pellucid")


@dataclass(frozen=True, eq=False)
class Walked:
    """What was found on a way.

    scores: the slopes summed up, Float64[Tensor, "tokens"].  base, value: the answer where it begins, and at its end.
    """

    scores: Tensor
    base: float
    value: float

    @property
    def error(self) -> float:
        """By how much the scores together miss `value - base`."""
        return abs(float(self.scores.sum()) - (self.value - self.base))

    def tell(self, advice: str) -> None:
        """Warns where that is far off. advice: what to do then."""
        change = self.value - self.base
        if not self.error <= LOOSE * max(abs(change), LOOSE * abs(self.value)):  # so that NaN is told of, too
            log.warning("the scores miss the change of the answer, %.3g, by %.2g: %s", change, self.error, advice)


class Way:
    """The straight way between two inputs, for one question.

    values: the answer for other embeddings: Float[Tensor, "rows seq hidden"] by point  ->  Float[Tensor, "rows"]
    start, whole: where it begins, and what is added up to its end; by the name of the point,
        Float[Tensor, "1 seq hidden"].
    """

    def __init__(self, values: Callable[[Points], Tensor], start: Points, end: Points) -> None:
        self.values, self.start, self.end = values, start, end
        self.whole = {name: point - start[name] for name, point in end.items()}
        self.tokens = sum(point.shape[1] for point in self.whole.values())

    def answers(self, places: Tensor) -> Tensor:
        """The answer at places between 0 and 1: Float64[Tensor, "places"]  ->  Float64[Tensor, "places"]"""
        with no_grad():
            found = [self.values(here) for here in self._inputs(places)]
        return torch.cat(found).cpu().double()

    def slopes(self, places: Tensor) -> Tensor:
        """How fast each token changes it there: Float64[Tensor, "places"]  ->  Float64[Tensor, "places tokens"]"""
        found = []
        for here in self._inputs(places):
            gradients = self._gradients(here)
            each = [(gradients[name] * part).sum(dim=-1) for name, part in self.whole.items()]
            found.append(torch.cat(each, dim=1).cpu().double())
        return torch.cat(found)

    def walk(self, steps: int, progress: bool | None = None) -> Walked:
        """The slopes summed up along the way, and the answer at both ends.

        steps: at how many places at most. In every stretch the sum must come to the change of the answer between its
        two ends; where it does not, the stretch is halved, the worst first, as long as there are steps.
        """
        edges = torch.linspace(0, 1, min(STRETCHES, steps // NODES) + 1, dtype=torch.float64, device="cpu")
        values = self.answers(edges)
        todo, ends = torch.stack((edges[:-1], edges[1:]), dim=1), torch.stack((values[:-1], values[1:]), dim=1)
        change = max(float(abs(values[-1] - values[0])), EXACT * float(abs(values[-1])))
        total = torch.zeros(self.tokens, dtype=torch.float64, device="cpu")
        with bar("integrating", total=steps, unit=" steps", shown=progress) as line:
            while len(todo):
                sums, length = self._stretches(todo), todo[:, 1] - todo[:, 0]
                steps -= len(todo) * NODES
                line.update(len(todo) * NODES)
                missed = (sums.sum(dim=1) - (ends[:, 1] - ends[:, 0])).abs()
                rough = (missed > EXACT * change * length.clamp(min=1 / 64)) & (length > SHORTEST)
                room = min(steps // (2 * NODES), int(rough.sum()))
                halved = missed.where(rough, -1.0).argsort(descending=True)[:room]
                total += sums.sum(dim=0) - sums[halved].sum(dim=0)
                todo, ends = self._halves(todo[halved], ends[halved])
        return Walked(total, float(values[0]), float(values[-1]))

    def _stretches(self, stretches: Tensor) -> Tensor:
        """What each token adds to the answer along stretches of the way.

        Float64[Tensor, "stretches 2"]  ->  Float64[Tensor, "stretches tokens"]
        """
        nodes, weights = (torch.from_numpy(numbers) for numbers in np.polynomial.legendre.leggauss(NODES))
        middle, half = stretches.mean(dim=1, keepdim=True), (stretches[:, 1:] - stretches[:, :1]) / 2
        slopes = self.slopes((middle + half * nodes).flatten()).unflatten(0, (len(stretches), -1))
        return (slopes * weights[:, None]).sum(dim=1) * half

    @torch.enable_grad()
    def _gradients(self, points: Points) -> Points:
        """The gradient of the answer at each row of embeddings; none reaches the model's own numbers."""
        leaves = {name: point.detach().requires_grad_() for name, point in points.items()}
        total = self.values(leaves).sum()
        return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)))

    def _halves(self, stretches: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Stretches, and the answers at their ends, cut in two: Float64[Tensor, "stretches 2"], twice as many"""
        if not len(stretches):
            return stretches, ends
        middle = stretches.mean(dim=1)
        return _cut(stretches, middle), _cut(ends, self.answers(middle))

    def _inputs(self, places: Tensor) -> Iterator[Points]:
        """The embeddings there, some places at a time: Float[Tensor, "places seq hidden"] by the name of the point"""
        for some in places.split(max(BUDGET // self.tokens, 1)):
            yield {name: _between(self.start[name], end, some) for name, end in self.end.items()}


def _between(start: Tensor, end: Tensor, places: Tensor) -> Tensor:
    """Points of the straight line, each rounded once, so that the ends are the ends whatever the kind of number.

    Float[Tensor, "1 seq hidden"] twice, Float64[Tensor, "places"]  ->  Float[Tensor, "places seq hidden"]
    """
    wide = torch.promote_types(end.dtype, torch.float32)
    where = places.to(end.device, wide)[:, None, None]
    return torch.lerp(start.to(wide), end.to(wide), where).to(end.dtype)


def _cut(pairs: Tensor, middle: Tensor) -> Tensor:
    return torch.cat((torch.stack((pairs[:, 0], middle), dim=1), torch.stack((middle, pairs[:, 1]), dim=1)))
