"""Queries, as texts or vectors, prepared for comparison."""

from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from pellucid.config.checks import is_list_like, unwrap_arrow
from pellucid.errors import InputError, Item, format_count
from pellucid.search.manifest import Manifest
from pellucid.search.vectors import prepare_vectors
from pellucid.text.truncation import clean_text


def as_query_list(query: Any) -> Any:
    """Several queries, or the numbers of one vector, as a list; numeric arrays are returned unchanged."""
    numbers = isinstance(query, Tensor) or (isinstance(query, np.ndarray) and query.dtype.kind in "fiub")
    return list(unwrap_arrow(query)) if is_list_like(query) and not numbers else query


def is_single(query: Any) -> bool:
    """Whether the result of `as_query_list` is one query, a text or a vector."""
    if isinstance(query, list):
        return bool(query) and isinstance(query[0], Real)
    return isinstance(query, str) or np.ndim(query) == 1


def prepare_queries(query: Any, manifest: Manifest) -> list[str] | np.ndarray:
    """The result of `as_query_list` as texts, or as vectors, Float32[ndarray, "queries dimension"].

    Raises InputError for an empty text, for anything but texts and vectors, and for vectors that do not fit the index.
    """
    if isinstance(query, str) or (isinstance(query, list) and any(isinstance(one, str) for one in query)):
        several = [query] if isinstance(query, str) else query
        texts = [clean_text(text, i, "query") for i, text in enumerate(several)]
        if empty := [i for i, text in enumerate(texts) if not text.strip()]:
            raise InputError(Item(empty[0], "query"), " is empty")
        return texts
    try:
        vectors = np.asarray(query)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"a query is a text or a vector, and this is neither: {str(error)[:120]}") from error
    if vectors.dtype.kind not in "fiub" or not vectors.ndim:
        raise InputError(f"a query is a text or a vector, and this is neither: {type(query).__name__}")
    vectors = prepare_vectors(vectors[None] if is_single(query) else vectors, manifest.settings.metric, "queries")
    if vectors.shape[1] != manifest.encoder.dimension:
        raise InputError(
            f"queries have {format_count(vectors.shape[1], 'number')}, expected {manifest.encoder.dimension}"
        )
    return vectors
