"""What counts as a whole number."""

from numbers import Integral


def as_integer(value: object) -> int | None:
    """A whole number of Python or NumPy as an int; None for anything else, also for a bool, an array or a tensor."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
