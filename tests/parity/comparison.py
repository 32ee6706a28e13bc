"""Whether two answers of a task agree up to rounding."""

import math
from typing import Any

TOLERANCE = 1e-5


def difference(expected: Any, actual: Any, tolerance: float = TOLERANCE, path: str = "answer") -> str:
    """Describes the first difference of two answers; "" if they agree. Tensors are compared as lists."""
    if hasattr(actual, "tolist"):
        actual = actual.tolist()
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
        parts = (difference(expected[key], actual[key], tolerance, f"{path}[{key!r}]") for key in expected)
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual))
        parts = (difference(left, right, tolerance, f"{path}[{i}]") for i, (left, right) in pairs)
    elif isinstance(expected, float) and isinstance(actual, float):
        return (
            "" if _close_enough(expected, actual, tolerance, "score" in path) else f"{path}: {expected!r} != {actual!r}"
        )
    else:
        same = expected == actual and type(expected) is type(actual)
        return "" if same else f"{path}: {expected!r} != {actual!r}"
    return next((part for part in parts if part), "")


def _close_enough(expected: float, actual: float, tolerance: float, is_score: bool) -> bool:
    """A score must also agree to a relative error of a thousandth, which matters if it is small."""
    close = abs(expected - actual) <= tolerance * max(1.0, abs(expected))
    return close and (not is_score or math.isclose(expected, actual, rel_tol=1e-3, abs_tol=1e-30))
