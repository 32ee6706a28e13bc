"""What is computed once, when it is first asked for."""

import contextlib
import functools
from typing import Any, TypeVar

Value = TypeVar("Value")


class cached_property(functools.cached_property[Value]):  # noqa: N801 - as the library's own, whose place it takes
    """Without the lock that Python 3.11 has for all objects of a class: a fork copies it, and where another thread was
    computing nobody in the child opens it again. Two threads may compute the same value, as in later versions."""

    def __init__(self, func: Any) -> None:
        super().__init__(func)
        self.lock = contextlib.nullcontext()
