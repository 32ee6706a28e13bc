"""Learning rate schedules: the rate rises to its maximum, then falls, as a factor from 0 to 1."""

import math

SCHEDULES = ("linear", "cosine", "constant", "inverse-square-root")


def learning_rate_factor(schedule: str, step: int, steps: int, warmup: int, floor: float = 0.0) -> float:
    """The factor on the maximum learning rate at a step, counted from 0.

    schedule: after the warmup "linear" falls linearly to `floor`; "cosine" as half a cosine wave, slowly at both ends
        (Loshchilov and Hutter, 2016, arXiv:1608.03983, without restarts); "inverse-square-root" with the inverse square
        root of the step (Vaswani et al., 2017, section 5.3); "constant" stays at 1.

    >>> [learning_rate_factor("linear", step, 10, 2) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if step < warmup:
        return step / warmup
    after = step - warmup
    done = min(after / max(steps - warmup, 1), 1.0)
    scale = max(warmup, 1)
    shares = {
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
        "constant": 1.0,
        "inverse-square-root": math.sqrt(scale / (scale + after)),
    }
    return floor + (1.0 - floor) * shares[schedule]
