"""Encodes numbers as the blocks of a page, and measures the error of storing them this way.

Queries and keys are stored instead of weights, because they grow linearly with the number of tokens, not with its
square; the browser recomputes the weights. The error is measured here, from the stored bytes, against the model's own.
"""

import math
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from pellucid.view.arithmetic import DTYPES, Recipe, dequantised
from pellucid.view.subject import AttentionData

MAX_WEIGHT = 1.001
"""Softmax weights are below this; larger ones come from an edit."""

MAX_ERROR = {"int16": 3e-3, "float32": 1e-3}
"""The largest accepted error of recomputed weights; above it queries and keys are stored more exactly, or the weights
themselves; the page shows the error."""

INT16_STEPS = 32767
"""Steps from zero to the largest number of a head in int16. Half precision, in as many bits, is coarsest where numbers
are large, and these decide a score: its error is ten times as large."""

MAX_MEASURED_CELLS = 20_000_000
"""The most weights of a page that are compared; of a larger page, evenly spaced rows."""


@dataclass(frozen=True)
class EncodedNumbers:
    """Numbers as they are stored: float32, or int16 with a factor for each head."""

    array: np.ndarray
    scales: list[float] | None = None

    @classmethod
    def encode(cls, tensor: Tensor, kind: str) -> "EncodedNumbers":
        """tensor: Float[Tensor, "heads ..."], finite where kind is "int16"."""
        if kind == "float32":
            return cls(tensor.float().numpy())
        numbers = tensor.double()
        largest = numbers.abs().flatten(1).amax(dim=1)
        scales = torch.where(largest == 0, 1.0, largest / INT16_STEPS)
        codes = (numbers / scales.view(-1, *[1] * (numbers.dim() - 1))).round()
        return cls(codes.to(torch.int16).numpy(), scales.tolist())

    def decode(self) -> Tensor:
        """The numbers as a reader decodes them: Float32[Tensor, "heads ..."]"""
        if self.scales is None:
            return torch.from_numpy(self.array)
        return torch.from_numpy(dequantised(self.array, self.scales))


@dataclass
class BlockStore:
    """Blocks by name, and their entries in the manifest.

    prefix: prepended to every name.  precision: "float32", "int16" or "compact".
    """

    precision: str
    prefix: str = ""
    blocks: dict[str, bytes] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def number_dtype(self) -> str:
        """The dtype in which numbers are stored."""
        return "float32" if self.precision == "float32" else "int16"

    def add(
        self,
        name: str,
        array: np.ndarray,
        dtype: str,
        *,
        coding: str | None = None,
        scales: list[float] | None = None,
        deflate: bool = False,
    ) -> str:
        """Stores an array and returns the name of its block.

        coding, scales: the encoding of its numbers; scales: a factor for each index of its first axis.
        deflate: compresses it, where that saves a tenth or more.
        """
        name = self.prefix + name
        raw = np.ascontiguousarray(array).astype(DTYPES[dtype]).tobytes()
        packed = zlib.compress(raw, 6) if deflate else raw
        fact: dict[str, Any] = {"dtype": dtype, "shape": list(array.shape)}
        fact |= {} if coding is None else {"coding": coding}
        fact |= {} if scales is None else {"scales": scales}
        if len(packed) < 0.9 * len(raw):
            raw, fact["deflated"] = packed, True
        self.blocks[name], self.facts[name] = raw, fact
        return name

    def add_attention(self, attention: AttentionData, max_measured_cells: int) -> dict[str, Any]:
        """Stores one attention and returns the part of its manifest entry that describes its numbers.

        max_measured_cells: how many of its weights may be compared with the model's own.
        """
        recipe = attention.recipe
        if recipe is not None and not (self.precision == "compact" and _smaller_as_weights(recipe, attention.cells)):
            rows = _measured_rows(attention, max_measured_cells) if attention.sample is None else attention.sample.rows
            if stored := self._add_query_and_key(attention, recipe, rows):
                return stored
        return self._add_weights(attention)

    def _add_query_and_key(self, attention: AttentionData, recipe: Recipe, rows: Tensor) -> dict[str, Any] | None:
        """Stores query and key at the page's precision, else in float32; None if neither reproduces the weights."""
        for kind in dict.fromkeys((self.number_dtype, "float32")):
            if kind == "int16" and not all(bool(part.isfinite().all()) for part in (recipe.query, recipe.key)):
                continue
            query, key = (EncodedNumbers.encode(part, kind) for part in (recipe.query, recipe.key))
            error = largest_error(attention, replace(recipe, query=query.decode(), key=key.decode()), rows)
            is_last_resort = kind == "float32" and attention.sample is not None  # no weights to store instead
            if error is None or error <= MAX_ERROR[kind] or is_last_resort:
                names = {part: self.add(f"{attention.name}.{part}", stored.array, kind, scales=stored.scales)
                         for part, stored in (("query", query), ("key", key))}  # fmt: skip
                some = {"measured_rows": len(rows)} if len(rows) < attention.shape[1] else {}
                facts = self._add_recipe(attention.side, recipe)
                return {**names, "weights": None, "max_error": error, **some, "recipe": facts}
        return None

    def _add_recipe(self, side: str, recipe: Recipe) -> dict[str, Any]:
        facts = _mask_facts(recipe)
        for part, table in (("bias", recipe.bias), ("rotation", recipe.rotation)):
            if table is not None:
                name = f"{side or 'text'}.{part}"
                known = self.prefix + name in self.blocks  # shared by all layers
                facts[part] = self.prefix + name if known else self.add(name, table.numpy(), "float32")
        return facts

    def _add_weights(self, attention: AttentionData) -> dict[str, Any]:
        """Stores the weights: in one byte each if the page is compact and they lie within 0 to 1, else as numbers."""
        weights = all_weights(attention)
        name = f"{attention.name}.weights"
        shares = bool(_is_in_weight_range(weights).all())  # edited weights may have any value, which a byte cannot hold
        if self.precision == "compact" and shares:
            encoded = _square_root_bytes(weights, step=2)
            block = self.add(name, encoded, "uint8", coding="sqrt", deflate=True)
            stored = (encoded.astype(np.float64) / 255) ** 2
        else:
            kind = (
                self.number_dtype if shares else "float32"
            )  # in int16 one large number would round the others to zero
            numbers = EncodedNumbers.encode(weights, kind)
            block = self.add(name, numbers.array, kind, scales=numbers.scales, deflate=True)
            stored = numbers.decode().double().numpy()
        error = _max_difference(torch.from_numpy(stored), weights.double())
        facts = _mask_facts(attention.recipe)
        return {"query": None, "key": None, "weights": block, "max_error": error, "recipe": facts}

    def add_thumbnail(self, attention: AttentionData, side: int) -> dict[str, Any]:
        """Stores a thumbnail of every head, max-pooled to at most `side` x `side`. Heads with weights that it cannot
        show (NaN, or outside 0 to 1 in an edited pass) are listed with their largest, spelled as in JavaScript where
        JSON has no number for it."""
        (_, queries, keys), sample = attention.shape, attention.sample
        size = (min(side, queries), min(side, keys))
        picture = adaptive_max_pool2d(all_weights(attention)[None], size)[0] if sample is None else sample.picture
        heads = (~_is_in_weight_range(picture)).any((1, 2)).nonzero().flatten().tolist()
        beyond = {str(head): _json_number(float(picture[head].max())) for head in heads}
        name = self.add(
            f"{attention.name}.thumb",
            _square_root_bytes(picture.nan_to_num(nan=1.0)),
            "uint8",
            coding="sqrt",
            deflate=True,
        )
        return {"thumb": name, **({"beyond": beyond} if beyond else {})}


def all_weights(attention: AttentionData) -> Tensor:
    """The model's own weights, or if none were kept those recomputed from query and key: [heads, queries, keys]"""
    if attention.weights is not None:
        return attention.weights
    recipe = attention.recipe
    assert recipe is not None  # an attention has weights or a recipe
    rows = torch.arange(attention.shape[1], device="cpu")
    return torch.stack([recipe.weights(head, rows).float() for head in range(attention.heads)])


def largest_error(attention: AttentionData, decoded: Recipe, rows: Tensor) -> float | None:
    """The largest difference between the weights that the browser will compute and the model's own; None if unknown.

    decoded: the recipe with queries and keys as the browser reads them.
    """
    true, measured = (attention.weights, rows) if attention.sample is None else (attention.sample.weights, slice(None))
    if true is None:
        return None
    heads = range(attention.heads)
    return max(_max_difference(decoded.weights(head, rows), true[head, measured].double()) for head in heads)


def _max_difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference; two NaNs are equal, and a single NaN counts as more than any possible difference."""
    differences = torch.where(
        (actual == expected) | (actual.isnan() & expected.isnan()), 0.0, (actual - expected).abs()
    )
    return float(differences.nan_to_num(nan=2.0).max()) if differences.numel() else 0.0


def _measured_rows(attention: AttentionData, max_measured_cells: int) -> Tensor:
    heads, queries, keys = attention.shape
    count = min(queries, max(1, max_measured_cells // (keys * heads)))
    return torch.linspace(0, queries - 1, count, device="cpu").round().long()


def _smaller_as_weights(recipe: Recipe, cells: int) -> bool:
    """Whether a byte for each weight, compressed to about 0.6, takes less than queries and keys in int16."""
    return 0.6 * cells <= 2 * recipe.number_count


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def _is_in_weight_range(weights: Tensor) -> Tensor:
    return (weights >= 0) & (weights < MAX_WEIGHT)


def _square_root_bytes(weights: Tensor, step: int = 1) -> np.ndarray:
    """A byte for each weight, in steps of its square root, to keep small ones apart. step: 2 compresses better by a
    fifth."""
    encoded = (weights.clamp(0, 1).sqrt() * 255 / step).round() * step
    return encoded.clamp(max=255).to(torch.uint8).numpy()


def _mask_facts(recipe: Recipe | None) -> dict[str, Any]:
    """How scores are scaled and masked; weights without a recipe have no mask."""
    if recipe is None:
        return {"scale": 1.0, "mask": "full"}
    window = {} if recipe.window is None else {"window": recipe.window}
    return {"scale": recipe.scale, "mask": recipe.mask, **window}
