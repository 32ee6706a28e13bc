"""Integrates gradients along the path from a baseline input to a text, with smaller intervals where they vary."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pellucid.bars import progress_bar
from pellucid.machine import no_grad

BUDGET = 512
"""Positions in one pass: enough for full matrix products, within a bounded memory for the gradients of their logits."""
NODES = 4
"""Nodes in an interval, by Gauss-Legendre quadrature: exact for polynomials of degree 7. They exclude the ends, as the
gradient at zero may be infinite."""
INTERVALS = 8
"""The number of intervals at the start, if there are enough steps."""
TOLERANCE = 0.01
"""An interval is halved if its error exceeds its own part of this fraction of the whole change of the output."""
MIN_INTERVAL = 2.0**-48
"""Near zero, every norm inside a branch stretches a thousandth of the path to all of it, layer after layer."""
WARNING_TOLERANCE = 0.05
"""The largest error, relative to the change of the output, without a warning."""

Embeddings = dict[str, Tensor]

log = logging.getLogger("pellucid")


@dataclass(frozen=True, eq=False)
class IntegrationResult:
    """The integral along a path.

    scores: the integrated derivatives, Float64[Tensor, "tokens"].
    baseline, value: the output at the start of the path, and at its end.
    """

    scores: Tensor
    baseline: float
    value: float

    @property
    def error(self) -> float:
        """The absolute difference between the sum of the scores and `value - baseline`."""
        return abs(float(self.scores.sum()) - (self.value - self.baseline))

    def warn_if_inaccurate(self, advice: str) -> None:
        """Warns where the error is large. advice: what to do about it."""
        change = self.value - self.baseline
        if not self.error <= WARNING_TOLERANCE * max(
            abs(change), WARNING_TOLERANCE * abs(self.value)
        ):  # `not <=` also catches NaN
            log.warning("the scores miss the change of the answer, %.3g, by %.2g: %s", change, self.error, advice)


class IntegrationPath:
    """The straight path between two inputs, for one output.

    answer_of: the output for other embeddings: Float[Tensor, "rows seq hidden"] by point  ->  Float[Tensor, "rows"]
    start, end: the embeddings at both ends of the path, by the name of the point, Float[Tensor, "1 seq hidden"].
    """

    def __init__(self, answer_of: Callable[[Embeddings], Tensor], start: Embeddings, end: Embeddings) -> None:
        self.answer_of, self.start, self.end = answer_of, start, end
        self.difference = {name: point - start[name] for name, point in end.items()}
        self.tokens = sum(point.shape[1] for point in self.difference.values())

    def values_at(self, fractions: Tensor) -> Tensor:
        """The output at fractions 0 to 1 of the path: Float64[Tensor, "fractions"]  ->  Float64[Tensor, "fractions"]"""
        with no_grad():
            values = [self.answer_of(embeddings) for embeddings in self._embeddings_at(fractions)]
        return torch.cat(values).cpu().double()

    def derivatives_at(self, fractions: Tensor) -> Tensor:
        """Each token's derivative on the path: Float64[Tensor, "fractions"]  ->  Float64[Tensor, "fractions tokens"]"""
        derivatives = []
        for embeddings in self._embeddings_at(fractions):
            gradients = self._gradients(embeddings)
            each = [(gradients[name] * part).sum(dim=-1) for name, part in self.difference.items()]
            derivatives.append(torch.cat(each, dim=1).cpu().double())
        return torch.cat(derivatives)

    def integrate(self, steps: int, progress: bool | None = None) -> IntegrationResult:
        """The derivatives integrated along the path, and the output at both ends.

        steps: the most nodes. In every interval the sum must match the change of the output between its two ends;
            otherwise it is halved, the worst intervals first, as long as steps remain.
        """
        edges = torch.linspace(0, 1, min(INTERVALS, steps // NODES) + 1, dtype=torch.float64, device="cpu")
        values = self.values_at(edges)
        intervals, ends = torch.stack((edges[:-1], edges[1:]), dim=1), torch.stack((values[:-1], values[1:]), dim=1)
        change = max(float(abs(values[-1] - values[0])), TOLERANCE * float(abs(values[-1])))
        total = torch.zeros(self.tokens, dtype=torch.float64, device="cpu")
        with progress_bar("integrating", total=steps, unit=" steps", shown=progress) as line:
            while len(intervals):
                sums, length = self._integrate_intervals(intervals), intervals[:, 1] - intervals[:, 0]
                steps -= len(intervals) * NODES
                line.update(len(intervals) * NODES)
                errors = (sums.sum(dim=1) - (ends[:, 1] - ends[:, 0])).abs()
                is_inaccurate = (errors > TOLERANCE * change * length.clamp(min=1 / 64)) & (length > MIN_INTERVAL)
                max_bisections = min(steps // (2 * NODES), int(is_inaccurate.sum()))
                halved = errors.where(is_inaccurate, -1.0).argsort(descending=True)[:max_bisections]
                total += sums.sum(dim=0) - sums[halved].sum(dim=0)
                intervals, ends = self._bisect(intervals[halved], ends[halved])
        return IntegrationResult(total, float(values[0]), float(values[-1]))

    def _integrate_intervals(self, intervals: Tensor) -> Tensor:
        """The contribution of each token to the output along intervals of the path.

        Float64[Tensor, "intervals 2"]  ->  Float64[Tensor, "intervals tokens"]
        """
        nodes, weights = (torch.from_numpy(numbers) for numbers in np.polynomial.legendre.leggauss(NODES))
        middle, half = intervals.mean(dim=1, keepdim=True), (intervals[:, 1:] - intervals[:, :1]) / 2
        derivatives = self.derivatives_at((middle + half * nodes).flatten()).unflatten(0, (len(intervals), -1))
        return (derivatives * weights[:, None]).sum(dim=1) * half

    @torch.enable_grad()
    def _gradients(self, embeddings: Embeddings) -> Embeddings:
        """The gradient of the output at each row of embeddings; the model's weights receive none."""
        leaves = {name: point.detach().requires_grad_() for name, point in embeddings.items()}
        total = self.answer_of(leaves).sum()
        return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)))

    def _bisect(self, intervals: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Intervals, and the outputs at their ends, cut in two: Float64[Tensor, "intervals 2"], twice as many"""
        if not len(intervals):
            return intervals, ends
        middle = intervals.mean(dim=1)
        return _split_at(intervals, middle), _split_at(ends, self.values_at(middle))

    def _embeddings_at(self, fractions: Tensor) -> Iterator[Embeddings]:
        """Yields the embeddings at fractions of the path in batches: Float[Tensor, "fractions seq hidden"] by point"""
        for some in fractions.split(max(BUDGET // self.tokens, 1)):
            yield {name: _interpolate(self.start[name], end, some) for name, end in self.end.items()}


def _interpolate(start: Tensor, end: Tensor, fractions: Tensor) -> Tensor:
    """Points on the straight line, each rounded once, so that the ends are exact in any dtype.

    Float[Tensor, "1 seq hidden"] twice, Float64[Tensor, "fractions"]  ->  Float[Tensor, "fractions seq hidden"]
    """
    wide = torch.promote_types(end.dtype, torch.float32)
    weight = fractions.to(end.device, wide)[:, None, None]
    return torch.lerp(start.to(wide), end.to(wide), weight).to(end.dtype)


def _split_at(pairs: Tensor, middle: Tensor) -> Tensor:
    return torch.cat((torch.stack((pairs[:, 0], middle), dim=1), torch.stack((middle, pairs[:, 1]), dim=1)))
