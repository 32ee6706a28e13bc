"""The numbers of a page, read back in Python: what a browser computes from the blocks, for drawings without one."""

import zlib
from typing import Any

import numpy as np

from pellucid.errors import CorruptFileError, InputError
from pellucid.view.data import Data

_DTYPES = {"float32": "<f4", "float16": "<f2", "int32": "<i4", "uint8": "u1"}


def numbers_of(data: Data, name: str) -> np.ndarray:
    """One block as numbers: unpacked, in its shape; bytes that stand for shares as shares."""
    fact = data.manifest["blocks"][name]
    raw = zlib.decompress(data.blocks[name]) if fact.get("deflated") else data.blocks[name]
    kind = np.dtype(_DTYPES[fact["dtype"]])
    if len(raw) != kind.itemsize * int(np.prod(fact["shape"])):
        raise CorruptFileError(
            f"the block {name} has {len(raw)} bytes, and its shape {fact['shape']} needs another size"
        )
    numbers = np.frombuffer(raw, kind).reshape(fact["shape"])
    coding = fact.get("coding")
    if coding is None:
        return numbers
    return (numbers / 255.0) ** 2 if coding == "sqrt" else numbers / 255.0


def weights_of(data: Data, entry: dict[str, Any], head: int) -> tuple[np.ndarray, np.ndarray]:
    """What every query of one head gives to every key, and which keys it may see.

    entry: one of `manifest["attentions"]`.
    -> Float[ndarray, "queries keys"], where each row adds up to 1 and what is not seen is 0, and Bool of that shape.
    """
    if entry["weights"] is None and entry["query"] is None:
        raise InputError(f"the numbers of {entry['name']} were left out of this page, to fit its budget_mb")
    if entry["weights"] is not None:
        weights = numbers_of(data, entry["weights"])[head].astype(np.float64)
        return weights, seen_by(entry, *weights.shape)
    query = numbers_of(data, entry["query"])[head].astype(np.float64)
    keys = numbers_of(data, entry["key"])
    key = keys[head * len(keys) // entry["heads"]].astype(np.float64)
    recipe = entry["recipe"]
    if recipe.get("rotation"):
        turn = numbers_of(data, recipe["rotation"]).astype(np.float64)
        query, key = _turned(query, turn), _turned(key, turn)
    scores = query @ key.T * recipe["scale"]
    if recipe.get("bias"):
        by_distance = numbers_of(data, recipe["bias"])[head]
        places = np.arange(len(key))[None, :] - np.arange(len(query))[:, None] + len(query) - 1
        scores += by_distance[places]
    seen = seen_by(entry, *scores.shape)
    return _softmax(scores, seen), seen


def seen_by(entry: dict[str, Any], queries: int, keys: int) -> np.ndarray:
    """Bool[ndarray, "queries keys"]: which keys each query may look at."""
    recipe = entry["recipe"]
    query, key = np.arange(queries)[:, None], np.arange(keys)[None, :]
    seen = np.ones((queries, keys), bool)
    if recipe["mask"] not in ("full", "causal", "window"):
        raise InputError(f"the mask {recipe['mask']!r} of {entry['name']} is none of full, causal and window")
    if recipe["mask"] != "full":
        seen &= key <= query
    if recipe["mask"] == "window":
        seen &= key > query - recipe["window"]
    if recipe.get("padding"):
        seen &= ~np.array(recipe["padding"], bool)[None, :]
    return seen


def _turned(vectors: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Rotary positions (Su et al. 2021): row p is turned by the angles of place p, in pairs half a vector apart."""
    cosines, sines = turn[0, : len(vectors)], turn[1, : len(vectors)]
    first, second = np.split(vectors, 2, axis=1)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=1)


def _softmax(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Each row's shares; a query that may see nothing gives nothing."""
    scores = np.where(seen, scores, -np.inf)
    largest = scores.max(axis=1, keepdims=True)
    shares = np.exp(scores - np.where(np.isneginf(largest), 0.0, largest))
    total = shares.sum(axis=1, keepdims=True)
    return shares / np.where(total == 0, 1.0, total)
