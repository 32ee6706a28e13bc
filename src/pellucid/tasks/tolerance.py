"""How far two outputs differ, and how far they may."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

Point = tuple[str, Tensor, Tensor]
"""(name, actual, expected)"""

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""The rounding error allowed in a deep model, relative to the largest number of a row.

A thousand times float32's machine epsilon is what a different order of summation leaves after some thirty layers. It
hides small mistakes, such as another epsilon in a norm; float64 does not.
"""


@dataclass(frozen=True)
class Check:
    """One check of a checkpoint, and its result.

    passed: None where it could not be made; `note` then gives the reason.
    difference, tolerance: the largest difference and the largest one allowed; see `relative_difference`.
    where: the first point that exceeds it.  points: the difference at every point, in the order of a pass.
    """

    name: str
    passed: bool | None
    difference: float | None = None
    tolerance: float | None = None
    where: str = ""
    note: str = ""
    points: tuple[tuple[str, float], ...] = ()


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference in any row (the last axis), relative to the largest number of that row of `expected`.

    Row by row, since some models have one position whose numbers are a thousand times larger, and an error at the
    others must not be hidden by it. Infinite where a number is not finite, or the shapes differ.
    """
    if actual.shape != expected.shape:
        return math.inf
    if not expected.numel():
        return 0.0
    differences = (actual.double() - expected.double()).abs().amax(dim=-1)
    size = expected.double().abs().amax(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    largest = float((differences / size).max())
    return largest if math.isfinite(largest) else math.inf


def with_unit_column(logits: Tensor) -> Tensor:
    """The logits with a 1 appended to each row, so that no row is scaled by less: no softmax would show the difference.

    Float[Tensor, "... labels"]  ->  Float[Tensor, "... labels+1"]
    """
    return torch.cat((logits, torch.ones_like(logits[..., :1])), dim=-1)


def compare_points(name: str, points: Iterable[Point], tolerance: float, note: str = "") -> Check:
    """Compares point by point; of several texts, the largest difference at a point counts."""
    differences: dict[str, float] = {}
    for point, actual, expected in points:
        if point.endswith("logits"):
            actual, expected = with_unit_column(actual), with_unit_column(expected)
        differences[point] = max(differences.get(point, 0.0), relative_difference(actual, expected))
    return check_differences(name, differences, tolerance, note)


def check_differences(name: str, differences: dict[str, float], tolerance: float, note: str = "") -> Check:
    """A check from the differences that were measured, point by point."""
    first = next((point for point, difference in differences.items() if difference > tolerance), "")
    largest = max(differences.values(), default=0.0)
    return Check(name, not first, largest, tolerance, first, note, tuple(differences.items()))
