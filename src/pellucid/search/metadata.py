"""What else is known of a text, as JSON."""

import json
import math
import os
from typing import Any

from pellucid.errors import InputError
from pellucid.text.cut import whole_characters


def packed(id_: str, metadata: dict[str, Any]) -> str:
    """Metadata as JSON: NaN is null, dates and paths are texts. Raises InputError for what JSON does not know."""
    try:
        return whole_characters(json.dumps(_finite(metadata), ensure_ascii=False, allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"what else is known of {id_!r} cannot be written as JSON: {error}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {whole_characters(str(name)): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """Numbers of NumPy, dates and paths, as JSON knows them."""
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    raise TypeError(f"{type(value).__name__} is neither text nor number")
