"""Ids, which are strings."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from sys import float_info
from typing import Any

import numpy as np

from pellucid.errors import InputError
from pellucid.text.rows import base_value, is_missing
from pellucid.text.truncation import replace_surrogates


def id_of(value: Any, has_id: Callable[[str], bool]) -> str:
    """An id as a string; 2.0, to which a data frame converts 2 in a column with gaps, is "2" unless a text has the id
    "2.0"."""
    text = str(base_value(value))
    return replace_surrogates(str(int(value)) if _is_whole(value) and not has_id(text) else text)


def _is_whole(value: Any) -> bool:
    """Whether a number is a whole one, stored as a float or as a decimal within the range of floats."""
    if isinstance(value, Decimal):
        return value.is_finite() and value.adjusted() <= float_info.max_10_exp and value == value.to_integral_value()
    return isinstance(value, float | np.floating) and float(value).is_integer()


def checked_id(value: Any, has_id: Callable[[str], bool], what: str) -> str:
    """`id_of`; raises InputError for anything but strings and numbers, and for missing values."""
    if isinstance(value, bytes | Mapping | list | tuple | set) or (
        hasattr(value, "ndim") and not isinstance(value, np.generic)
    ):
        raise InputError(f"{what} is {type(value).__name__}, expected a text or a number")
    if is_missing(value) or value == "":
        raise InputError(f"{what} is empty")
    try:
        return id_of(value, has_id)
    except ValueError as error:
        raise InputError(f"{what} is a number of more digits than Python writes: give it as a text") from error
