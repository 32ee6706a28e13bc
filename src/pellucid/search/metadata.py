"""The metadata of a text as JSON."""

import datetime
import json
import math
import os
from decimal import Decimal
from typing import Any
from uuid import UUID

from pellucid.errors import InputError, shorten
from pellucid.text.rows import base_value, is_missing
from pellucid.text.truncation import replace_surrogates

MAX_DIGITS = 4_300
"""The most digits of an integer that Python reads."""

_FAULTS = (TypeError, ValueError, RecursionError)


def metadata_json(id_: str, metadata: dict[str, Any]) -> str:
    """Metadata as JSON: missing values are null, dates and paths are strings. Raises InputError, naming the column, for
    values that JSON does not have, such as infinity."""
    try:
        return _to_json(metadata)
    except _FAULTS as error:
        name = next((name for name, value in metadata.items() if not _writes(value)), "all")
        why = "it is too deep" if isinstance(error, RecursionError) else error
        raise InputError(
            f"{shorten(repr(str(name)))} of {shorten(repr(id_))} cannot be written as JSON: {why}"
        ) from error


def _to_json(value: Any) -> str:
    return replace_surrogates(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=to_json_value))


def _writes(value: Any) -> bool:
    try:
        return bool(_to_json(value))
    except _FAULTS:
        return False


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {replace_surrogates(str(base_value(name))): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(f"{value} is not a JSON number: leave it empty, or give it as a text")
    return None if isinstance(value, float) and math.isnan(value) else value


def to_json_value(value: Any) -> Any:
    """Numbers of NumPy and `decimal`, dates, paths and UUIDs as JSON values. Raises TypeError for other types."""
    if is_missing(value):
        return None
    if isinstance(value, Decimal):
        text, near = str(value), float(value)
        whole = text.lstrip("-").isdigit() and len(text) <= MAX_DIGITS
        exact = value.is_finite() and Decimal(repr(near)) == value
        return _finite(near) if value.is_infinite() else int(text) if whole else near if exact else text
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "isoformat") and not isinstance(value, datetime.timedelta):  # pandas writes P10DT0H0M0S
        return str(value.isoformat())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind == "M":
        return list(value) if value.ndim else _date(value)
    if hasattr(value, "tolist") and kind != "m":
        return _finite(value.tolist())
    raise TypeError(f"{type(value).__name__} is neither text nor number: leave it out, or give it as a text")


def _date(value: Any) -> str:
    """A date of NumPy as Python writes it, where Python's precision suffices."""
    found = value.tolist()
    if isinstance(found, int):  # nanoseconds, or a year beyond Python's
        rounded = value.astype("datetime64[us]")
        found = rounded.tolist() if rounded == value else value
    return found.isoformat() if isinstance(found, datetime.date) else str(value)
