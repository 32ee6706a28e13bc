"""The blocks and the arithmetic of a page's recipe in Python, in float64: what `web/attention.js` computes."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.config.checks import check_one_of

DTYPES = {"float32": "<f4", "int16": "<i2", "int32": "<i4", "uint8": "u1"}
"""The dtypes of blocks under NumPy's names: always little-endian."""


def unpack_block(name: str, fact: dict[str, Any], block: bytes) -> bytes:
    """The bytes of a block.  fact: its entry in the manifest.

    Raises ValueError where they cannot be decompressed or do not match its shape, and InputError for a dtype that pages
    do not support.
    """
    check_one_of(f"block {name}: dtype", fact["dtype"], tuple(DTYPES))
    try:
        raw = zlib.decompress(block) if fact.get("deflated") else block
    except zlib.error as error:
        raise ValueError(f"block {name}: it cannot be unpacked") from error
    expected = math.prod(fact["shape"]) * np.dtype(DTYPES[fact["dtype"]]).itemsize
    if len(raw) != expected:
        raise ValueError(f"block {name}: {len(raw)} bytes, its shape needs {expected}")
    return raw


def dequantised(codes: np.ndarray, scales: Sequence[float]) -> np.ndarray:
    """Integers times the factor of each index of their first axis, as a browser decodes them: float32"""
    factors = np.array(scales).reshape(-1, *[1] * (codes.ndim - 1))
    return (codes * factors).astype(np.float32)


@dataclass(frozen=True)
class Recipe:
    """What the weights of an attention are computed from.

    query: Float[Tensor, "heads queries size"] before rotation; key: Float[Tensor, "key_heads keys size"].
    scale, mask, window: as in the manifest.
    bias: Float[Tensor, "heads queries+keys-1"], by distance.  rotation: Float[Tensor, "2 positions size/2"], cosines
        and sines.
    """

    query: Tensor
    key: Tensor
    scale: float
    mask: str
    window: int | None = None
    bias: Tensor | None = None
    rotation: Tensor | None = None

    @property
    def number_count(self) -> int:
        """How many numbers queries and keys are."""
        return self.query.numel() + self.key.numel()

    def weights(self, head: int, rows: Tensor) -> Tensor:
        """The weights that some queries of one head give to every key: Float64[Tensor, "rows keys"]

        rows: Int[Tensor, "rows"], which queries; each may attend to at least one key.
        """
        query, key = self.query[head].double(), self.key[head * len(self.key) // len(self.query)].double()
        if self.rotation is not None:
            query, key = _rotated(query, self.rotation), _rotated(key, self.rotation)
        scores = query[rows] @ key.T * self.scale
        if self.bias is not None:
            distances = torch.arange(len(key), device=rows.device)[None, :] - rows[:, None]
            scores += self.bias[head].double()[distances + len(query) - 1]
        return scores.masked_fill(~visible_keys(self.mask, self.window, rows, len(key)), -torch.inf).softmax(dim=-1)


def visible_keys(mask: str, window: int | None, rows: Tensor, keys: int) -> Tensor:
    """Which keys the queries `rows` may attend to: Bool[Tensor, "rows keys"]. mask: "full", "causal" or "window"."""
    if mask == "full":
        return torch.ones(len(rows), keys, dtype=torch.bool, device=rows.device)
    query_positions, key_positions = rows[:, None], torch.arange(keys, device=rows.device)[None, :]
    is_visible = key_positions <= query_positions
    return is_visible if window is None else is_visible & (key_positions > query_positions - window)


def _rotated(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Pair (c, c + size/2) of row p rotated by the angle of position p (Su et al., 2021, arXiv:2104.09864)."""
    cosine, sine = rotation[:, : len(vectors)].double()
    left, right = vectors.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
