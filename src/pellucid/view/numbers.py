"""The numbers of a page, read back in Python: what a browser computes from the blocks, for drawings without one."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.view.arithmetic import DTYPES, attention_weights, dequantised, unpack_block, visible_keys
from pellucid.view.data import PageData


def block_numbers(data: PageData, name: str) -> np.ndarray:
    """The decompressed numbers of a block in its shape; bytes that encode weights are decoded to weights."""
    fact = data.manifest["blocks"][name]
    raw = unpack_block(name, fact, data.blocks[name])
    numbers = np.frombuffer(raw, DTYPES[fact["dtype"]]).reshape(fact["shape"])
    if fact.get("coding") == "sqrt":
        return (numbers / 255.0) ** 2
    return dequantised(numbers, fact["scales"]) if "scales" in fact else numbers


def head_weights(data: PageData, entry: dict[str, Any], head: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights that every query of one head gives to every key, and which keys it may attend to.

    entry: one of `manifest["attentions"]` whose numbers were not left out.
    -> Float[ndarray, "queries keys"], where each row sums to 1 and masked keys are 0, and Bool of that shape.
    """
    if entry["weights"] is not None:
        stored = block_numbers(data, entry["weights"])[head].astype(np.float64)
        return stored, _visible_keys(entry, *stored.shape).numpy()
    query, keys = (_block_tensor(data, entry[part]) for part in ("query", "key"))
    key = keys[head * len(keys) // entry["heads"]]
    recipe = entry["recipe"]
    bias = _block_tensor(data, recipe["bias"])[head] if recipe.get("bias") else None
    rotation = _block_tensor(data, recipe["rotation"]) if recipe.get("rotation") else None
    attention_mask = _visible_keys(entry, query.shape[1], len(key))
    found = attention_weights(
        query[head], key, torch.arange(query.shape[1], device="cpu"), attention_mask, recipe["scale"], bias, rotation
    )
    return found.numpy(), attention_mask.numpy()


def _block_tensor(data: PageData, name: str) -> Tensor:
    return torch.from_numpy(block_numbers(data, name).astype(np.float64))


def _visible_keys(entry: dict[str, Any], queries: int, keys: int) -> Tensor:
    """Which keys each query may attend to: Bool[Tensor, "queries keys"]"""
    recipe = entry["recipe"]
    return visible_keys(recipe["mask"], recipe.get("window"), torch.arange(queries, device="cpu"), keys)
