"""What somebody asks: texts, or vectors, as they can be compared."""

from typing import Any

import numpy as np

from pellucid.errors import InputError, Item
from pellucid.search.manifest import Manifest
from pellucid.search.vectors import prepared
from pellucid.text.cut import clean_text


def is_single(query: Any) -> bool:
    """Whether this is one query, a text or a vector, and not several."""
    return isinstance(query, str) or (not isinstance(query, list | tuple) and np.ndim(query) == 1)


def understood(query: Any, manifest: Manifest) -> tuple[list[str] | None, np.ndarray | None]:
    """Queries as texts, or as vectors, Float32[ndarray, "queries dimension"]; the other is None.

    Raises InputError for a text that is empty or none, and for vectors that an index of this kind cannot compare.
    """
    if isinstance(query, str) or (isinstance(query, list | tuple) and any(isinstance(one, str) for one in query)):
        given = [query] if isinstance(query, str) else query
        texts = [clean_text(text, i, "query") for i, text in enumerate(given)]
        if empty := [i for i, text in enumerate(texts) if not text.strip()]:
            raise InputError(Item(empty[0], "query"), " is empty")
        return texts, None
    try:
        vectors = np.asarray(query)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"a query is a text or a vector, and this is neither: {str(error)[:120]}") from error
    if vectors.dtype.kind not in "fiub":
        raise InputError(f"a query is a text or a vector, and this is neither: {type(query).__name__}")
    vectors = prepared(vectors[None] if is_single(query) else vectors, manifest.settings.metric, "queries")
    if vectors.shape[1] != manifest.encoder.dimension:
        raise InputError(f"queries have {vectors.shape[1]} numbers, expected {manifest.encoder.dimension}")
    return None, vectors
