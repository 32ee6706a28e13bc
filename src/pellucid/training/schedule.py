"""The learning rate from step to step: it rises to its greatest, then falls, as a share of it from 0 to 1."""

import math
from collections.abc import Callable


def linear(done: float, after: int, warmup: int) -> float:
    """Falls evenly to nothing."""
    return 1.0 - done


def cosine(done: float, after: int, warmup: int) -> float:
    """Falls as half a wave, slowly at both ends (Loshchilov and Hutter, 2016, arXiv:1608.03983, without restarts)."""
    return 0.5 * (1.0 + math.cos(math.pi * done))


def constant(done: float, after: int, warmup: int) -> float:
    """Stays."""
    return 1.0


def inverse_square_root(done: float, after: int, warmup: int) -> float:
    """Falls with the root of the step (Vaswani et al., 2017, section 5.3)."""
    scale = max(warmup, 1)
    return math.sqrt(scale / (scale + after))


SCHEDULES: dict[str, Callable[[float, int, int], float]] = {
    "linear": linear,
    "cosine": cosine,
    "constant": constant,
    "inverse-square-root": inverse_square_root,
}
"""By name; each is told the share of the steps behind the warm-up that is done, their number, and the warm-up."""


def rate(schedule: str, step: int, steps: int, warmup: int, floor: float = 0.0) -> float:
    """The share of the greatest learning rate at a step, counted from 0.

    >>> [rate("linear", step, 10, 2) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if step < warmup:
        return step / warmup
    after = step - warmup
    done = min(after / max(steps - warmup, 1), 1.0)
    return floor + (1.0 - floor) * SCHEDULES[schedule](done, after, warmup)
