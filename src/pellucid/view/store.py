"""Numbers to bytes: the blocks of a page, and what storing them so costs in exactness.

Queries and keys are stored instead of weights, because they grow with the number of tokens and not with its square; the
browser computes the weights again. What that costs is measured here, from the stored bytes, against the model's own.
"""

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from pellucid.view.arithmetic import DTYPES, scaled
from pellucid.view.subject import Look

MOST_SHARE = 1.001
"""Weights of a softmax are below it; where they are not, somebody edited them."""

MOST_ERROR = {"int16": 3e-3, "float32": 1e-3}
"""Weights that come out further from the model's own than this need more exact queries and keys, or are stored
themselves; the page says how much it is."""

STEPS = 32767
"""Of a number in 16 bits, from zero to the largest of its head. Half precision, in as many bits, has its coarsest steps
where numbers are large, and these decide a score: it errs ten times as much."""

MOST_MEASURED = 20_000_000
"""So many cells of a page are compared; of a larger one, rows at even distances."""


@dataclass(frozen=True)
class Numbers:
    """Numbers as they are stored: float32, or whole numbers of 16 bits with a factor for each head."""

    array: np.ndarray
    scales: list[float] | None = None

    @classmethod
    def of(cls, tensor: Tensor, kind: str) -> "Numbers":
        """tensor: Float[Tensor, "heads ..."], finite where kind is "int16"."""
        if kind == "float32":
            return cls(tensor.float().numpy())
        numbers = tensor.double()
        largest = numbers.abs().flatten(1).amax(dim=1)
        scales = torch.where(largest == 0, 1.0, largest / STEPS)
        codes = (numbers / scales.view(-1, *[1] * (numbers.dim() - 1))).round()
        return cls(codes.to(torch.int16).numpy(), scales.tolist())

    def read(self) -> Tensor:
        """What whoever reads them has: Float32[Tensor, "heads ..."]"""
        if self.scales is None:
            return torch.from_numpy(self.array)
        return torch.from_numpy(scaled(self.array, self.scales))


@dataclass
class Store:
    """Blocks by name, and the facts about them that the manifest tells.

    prefix: stands before every name.  precision: "float32", "int16" or "compact".
    """

    precision: str
    prefix: str = ""
    blocks: dict[str, bytes] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The number type of what is stored as numbers."""
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
        """Stores an array and answers the name of its block.

        coding, scales: what its numbers stand for; scales: a factor for each of its first axis.
        deflate: packed, where that saves a tenth or more.
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

    def look(self, look: Look, share: int) -> dict[str, Any]:
        """Stores one attention; answers what its entry in the manifest says of it.

        share: how many cells of it may be compared with the model's own weights.
        """
        rows = _rows(look, share) if look.sample is None else look.sample.rows
        found = None if self.precision == "compact" and _smaller_as_weights(look) else self._parts(look, rows)
        return found or self._weights(look)

    def _parts(self, look: Look, rows: Tensor) -> dict[str, Any] | None:
        """Query and key in the page's precision, else in float32; None where neither gives the model's own weights."""
        if look.query is None or look.key is None:
            return None
        for kind in dict.fromkeys((self.kind, "float32")):
            if kind == "int16" and not all(bool(part.isfinite().all()) for part in (look.query, look.key)):
                continue
            query, key = (Numbers.of(part, kind) for part in (look.query, look.key))
            error = largest_error(look, rows, query.read(), key.read())
            whole = look.sample is None  # else there are no weights to store in their place
            if error is None or error <= MOST_ERROR[kind] or (kind == "float32" and not whole):
                names = {part: self.add(f"{look.name}.{part}", stored.array, kind, scales=stored.scales)
                         for part, stored in (("query", query), ("key", key))}  # fmt: skip
                some = {"measured_rows": len(rows)} if len(rows) < look.shape[0] else {}
                return {**names, "weights": None, "max_error": error, **some, "recipe": self._recipe(look)}
        return None

    def _recipe(self, look: Look) -> dict[str, Any]:
        recipe = _mask(look)
        for part, table in (("bias", look.bias), ("rotation", look.rotation)):
            if table is not None:
                name = f"{look.side or 'text'}.{part}"
                known = self.prefix + name in self.blocks  # one table for all layers
                recipe[part] = self.prefix + name if known else self.add(name, table.numpy(), "float32")
        return recipe

    def _weights(self, look: Look) -> dict[str, Any]:
        """The weights themselves: in one byte each where the page is compact and they are shares, else as numbers."""
        weights = all_weights(look)
        name = f"{look.name}.weights"
        shares = bool(_are_shares(weights).all())  # edited ones may be anything, which no byte holds
        if self.precision == "compact" and shares:
            coded = _bytes(weights, step=2)
            block = self.add(name, coded, "uint8", coding="sqrt", deflate=True)
            stored = (coded.astype(np.float64) / 255) ** 2
        else:
            kind = self.kind if shares else "float32"  # in 16 bits one large number leaves nothing of the others
            numbers = Numbers.of(weights, kind)
            block = self.add(name, numbers.array, kind, scales=numbers.scales, deflate=True)
            stored = numbers.read().double().numpy()
        error = _difference(torch.from_numpy(stored), weights.double())
        return {"query": None, "key": None, "weights": block, "max_error": error, "recipe": _mask(look)}

    def thumb(self, look: Look, side: int) -> dict[str, Any]:
        """A small picture of every head, at most `side` x `side`: of each part its largest weight. Of heads whose
        weights are beyond a picture (NaN, or of an edited pass and not from 0 to 1) the largest is told, as JavaScript
        writes it where JSON cannot."""
        (queries, keys), sample = look.shape, look.sample
        size = (min(side, queries), min(side, keys))
        picture = adaptive_max_pool2d(all_weights(look)[None], size)[0] if sample is None else sample.picture
        heads = (~_are_shares(picture)).any((1, 2)).nonzero().flatten().tolist()
        beyond = {str(head): _told(float(picture[head].max())) for head in heads}
        name = self.add(f"{look.name}.thumb", _bytes(picture.nan_to_num(nan=1.0)), "uint8", coding="sqrt", deflate=True)
        return {"thumb": name, **({"beyond": beyond} if beyond else {})}


def all_weights(look: Look) -> Tensor:
    """The model's own weights, or where none were kept those that query and key give: [heads, queries, keys]"""
    if look.weights is not None:
        return look.weights
    assert look.query is not None and look.key is not None  # a look has one or the other
    rows = torch.arange(look.shape[0], device="cpu")
    return torch.stack([look.computed(head, rows, look.query, look.key).float() for head in range(look.heads)])


def largest_error(look: Look, rows: Tensor, query: Tensor, key: Tensor) -> float | None:
    """The largest difference between the weights that the browser will compute and the model's own; None unknown."""
    true, measured = (look.weights, rows) if look.sample is None else (look.sample.weights, slice(None))
    if true is None:
        return None
    heads = range(look.heads)
    return max(_difference(look.computed(head, rows, query, key), true[head, measured].double()) for head in heads)


def _difference(found: Tensor, wanted: Tensor) -> float:
    """The largest; two that are both no number agree, and one alone is further off than anything."""
    apart = torch.where((found == wanted) | (found.isnan() & wanted.isnan()), 0.0, (found - wanted).abs())
    return float(apart.nan_to_num(nan=2.0).max()) if apart.numel() else 0.0


def _rows(look: Look, share: int) -> Tensor:
    queries, keys = look.shape
    count = min(queries, max(1, share // (keys * look.heads)))
    return torch.linspace(0, queries - 1, count, device="cpu").round().long()


def _smaller_as_weights(look: Look) -> bool:
    """Whether a byte for each weight, of which packing leaves about 0.6, is less than query and key in two bytes."""
    if look.query is None or look.key is None:
        return True
    return 0.6 * look.cells <= 2 * (look.query.numel() + look.key.numel())


def _told(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def _are_shares(weights: Tensor) -> Tensor:
    return (weights >= 0) & (weights < MOST_SHARE)


def _bytes(weights: Tensor, step: int = 1) -> np.ndarray:
    """A byte each, in steps of the square root, so that small weights stay apart. step: 2 packs into a fifth less."""
    coded = (weights.clamp(0, 1).sqrt() * 255 / step).round() * step
    return coded.clamp(max=255).to(torch.uint8).numpy()


def _mask(look: Look) -> dict[str, Any]:
    window = {} if look.window is None else {"window": look.window}
    return {"scale": look.scale, "mask": look.mask, **window}
