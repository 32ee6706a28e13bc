"""Whether two answers of a task agree up to rounding."""

import math
from typing import Any

CLOSE = 1e-5


def difference(wanted: Any, found: Any, close: float = CLOSE, place: str = "answer") -> str:
    """The first difference of two answers, in words, or "" if they agree. Tensors are compared as lists."""
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        parts = (difference(wanted[key], found[key], close, f"{place}[{key!r}]") for key in wanted)
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found))
        parts = (difference(one, other, close, f"{place}[{i}]") for i, (one, other) in pairs)
    elif isinstance(wanted, float) and isinstance(found, float):
        return "" if _alike(wanted, found, close, "score" in place) else f"{place}: {wanted!r} != {found!r}"
    else:
        same = wanted == found and type(wanted) is type(found)
        return "" if same else f"{place}: {wanted!r} != {found!r}"
    return next((part for part in parts if part), "")


def _alike(wanted: float, found: float, close: float, score: bool) -> bool:
    """A score must also agree to a relative error of a thousandth, which matters if it is small."""
    near_enough = abs(wanted - found) <= close * max(1.0, abs(wanted))
    return near_enough and (not score or math.isclose(wanted, found, rel_tol=1e-3, abs_tol=1e-30))
