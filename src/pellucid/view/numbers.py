"""The numbers of a page, read back in Python: what a browser computes from the blocks, for drawings without one."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.view.arithmetic import DTYPES, Recipe, dequantised, unpack_block, visible_keys
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
    facts = entry["recipe"]
    if entry["weights"] is not None:
        weights = block_numbers(data, entry["weights"])[head].astype(np.float64)
    else:
        tables = {part: _block_tensor(data, facts[part]) for part in ("bias", "rotation") if part in facts}
        recipe = Recipe(_block_tensor(data, entry["query"]), _block_tensor(data, entry["key"]), **(facts | tables))
        weights = recipe.weights(head, torch.arange(recipe.query.shape[1], device="cpu")).numpy()
    queries, keys = weights.shape
    rows = torch.arange(queries, device="cpu")
    return weights, visible_keys(facts["mask"], facts.get("window"), rows, keys).numpy()


def _block_tensor(data: PageData, name: str) -> Tensor:
    return torch.from_numpy(block_numbers(data, name).astype(np.float64))
