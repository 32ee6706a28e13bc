"""The numbers of a page, read back in Python: what a browser computes from the blocks, for drawings without one."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.view.arithmetic import DTYPES, scaled, seen_by, unpacked, weights
from pellucid.view.data import Data


def numbers_of(data: Data, name: str) -> np.ndarray:
    """One block as numbers: unpacked, in its shape; bytes that stand for shares as shares."""
    fact = data.manifest["blocks"][name]
    raw = unpacked(name, fact, data.blocks[name])
    numbers = np.frombuffer(raw, DTYPES[fact["dtype"]]).reshape(fact["shape"])
    if fact.get("coding") == "sqrt":
        return (numbers / 255.0) ** 2
    return scaled(numbers, fact["scales"]) if "scales" in fact else numbers


def weights_of(data: Data, entry: dict[str, Any], head: int) -> tuple[np.ndarray, np.ndarray]:
    """What every query of one head gives to every key, and which keys it may see.

    entry: one of `manifest["attentions"]` whose numbers were not left out.
    -> Float[ndarray, "queries keys"], where each row adds up to 1 and what is not seen is 0, and Bool of that shape.
    """
    if entry["weights"] is not None:
        stored = numbers_of(data, entry["weights"])[head].astype(np.float64)
        return stored, _seen(entry, *stored.shape).numpy()
    query, keys = (_tensor(data, entry[part]) for part in ("query", "key"))
    key = keys[head * len(keys) // entry["heads"]]
    recipe = entry["recipe"]
    bias = _tensor(data, recipe["bias"])[head] if recipe.get("bias") else None
    rotation = _tensor(data, recipe["rotation"]) if recipe.get("rotation") else None
    seen = _seen(entry, query.shape[1], len(key))
    found = weights(query[head], key, torch.arange(query.shape[1], device="cpu"), seen, recipe["scale"], bias, rotation)
    return found.numpy(), seen.numpy()


def _tensor(data: Data, name: str) -> Tensor:
    return torch.from_numpy(numbers_of(data, name).astype(np.float64))


def _seen(entry: dict[str, Any], queries: int, keys: int) -> Tensor:
    """Which keys each query may look at: Bool[Tensor, "queries keys"]"""
    recipe = entry["recipe"]
    return seen_by(recipe["mask"], recipe.get("window"), torch.arange(queries, device="cpu"), keys)
