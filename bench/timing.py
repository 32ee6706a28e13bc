"""Timing that notices other processes, tuning, and the order of sides within a round."""

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from machine import OtherProcesses, wait_for_quiet
from side import Setting

DISTURBED = 0.05
"""The share of the processor above which other processes disturb a measurement."""

ATTEMPTS = 3
"""How often a disturbed measurement is tried."""

Item = TypeVar("Item")


def elapsed_seconds(call: Callable[..., object], *arguments: Any) -> float:
    """The seconds that a call takes."""
    begun = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begun


def least_disturbed(measure: Callable[[], float], attempts: int = ATTEMPTS) -> tuple[float, float]:
    """The result of ``measure``, and the share of the processor that other processes used meanwhile.

    Above DISTURBED it is measured again once the machine is quiet; of ``attempts`` the least disturbed one counts.
    """
    found: list[tuple[float, float]] = []
    while len(found) < attempts:
        others = OtherProcesses()
        found.append((measure(), others.share()))
        if found[-1][1] < DISTURBED:
            break
        if len(found) < attempts:
            wait_for_quiet(DISTURBED)
    return min(found, key=lambda measured: measured[1])


def tune(
    axes: dict[str, list[Any]],
    configure: Callable[[Setting], None],
    measure: Callable[[], float],
    *,
    warm_up: Callable[[], float] | None = None,
    repeats: int = 2,
    attempts: int = ATTEMPTS,
) -> Setting:
    """Tunes one axis after the other; each value is warmed up and counts by the best of ``repeats`` measurements."""
    best = first_values(axes)
    for axis, values in axes.items():
        seconds: dict[Any, float] = {}
        for value in values if len(values) > 1 else ():
            configure(best | {axis: value})
            (warm_up or measure)()
            seconds[value] = min(least_disturbed(measure, attempts)[0] for _ in range(repeats))
        best[axis] = min(seconds, key=seconds.__getitem__) if seconds else best[axis]
    configure(best)
    return best


def first_values(axes: dict[str, list[Any]]) -> Setting:
    """The first value of every axis, which is the most promising one."""
    return {axis: values[0] for axis, values in axes.items()}


def order_of_round(sides: Iterable[Item], number: int) -> list[Item]:
    """The sides in the order of a round: every second round is reversed, which cancels slow drifts of the machine."""
    ordered = list(sides)
    return ordered if number % 2 == 0 else ordered[::-1]
