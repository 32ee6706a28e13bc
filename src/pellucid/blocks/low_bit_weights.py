"""Weights of 4 and 6 bits for our own kernel, which reads them at the speed of memory.

A row is divided into groups of 32 consecutive weights. A weight w is stored as an integer q:

    4 bits   w = scale x (q - 8) + zero    q from 0 to 15
    6 bits   w = scale x (q - 32) + zero   q from 0 to 63

A group's scale and zero have 8 bits each, with factors per row in bfloat16: scale = factor x s^2, and zero = factor x z
|z|, which represents small values precisely beside large ones of their row. Inputs and results are float32.

Codes are 32-bit words, 4 or 6 per group, with 16 rows side by side. A group's first four words are a block of GGUF's
Q4: byte i has code i in its low half, and code 16 + i in its high half. The upper two bits of six follow, one word for
each half of the group: byte i has those of codes i, 4 + i, 8 + i and 12 + i.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pellucid.blocks.availability import usable_kernels
from pellucid.blocks.hooks import is_differentiated
from pellucid.blocks.kernel_arguments import GROUP, LANES
from pellucid.blocks.quantized import LowBitLinear, LowBitModule
from pellucid.blocks.rounding import TINY, codes_of_4_bits, pairs_of, scales_of
from pellucid.machine import fastest_dtype, has_int8_products

MAX_KERNEL_ROWS, MIN_FLOAT_ROWS = 64, 96
"""Rows of x that are multiplied at a time, so that they stay in the processor's cache; and the number of rows from
which 4-bit weights are dequantised for one product, where a library multiplies floats faster."""

DEQUANTISED_ROWS = 4096
"""Rows of a weight that are dequantised at a time."""


class Grouped(NamedTuple):
    """A quantized weight.

    codes: Int32[Tensor, "rows/16 groups bits 16"].
    scales: UInt8[Tensor, "rows/16 groups 2 16"], s, and z as Int8.  factors: BFloat16[Tensor, "2 rows"], of s and z.
    """

    codes: Tensor
    scales: Tensor
    factors: Tensor


class GroupedLinear(LowBitLinear):
    """A linear layer with weights of 4 or 6 bits; its output is float32."""

    def __init__(self, codes: Tensor, scales: Tensor, factors: Tensor, bias: Tensor | None = None) -> None:
        """bias: Float[Tensor, "out"]; all others as in `Grouped`."""
        super().__init__()
        self.codes, self.scales, self.factors, self.bias = codes, scales, factors, bias
        self.out_features, self.in_features = factors.shape[1], codes.shape[1] * GROUP
        self.size, self.bits = self.out_features * self.in_features, codes.shape[2]

    def product(self, x: Tensor) -> Tensor:
        x = x.float().contiguous()
        steps, rows = usable_kernels(), x.shape[0]
        if (
            steps is None
            or is_differentiated(x)
            or (rows >= MIN_FLOAT_ROWS and self.bits == 4 and _float_is_faster(x.device))
        ):
            return _dequantised_product(x, Grouped(self.codes, self.scales, self.factors))
        if rows <= MAX_KERNEL_ROWS:
            return steps.low_bit_product(x, self.codes, self.scales, self.factors)
        return torch.cat(
            [steps.low_bit_product(some, self.codes, self.scales, self.factors) for some in x.split(MAX_KERNEL_ROWS)]
        )


class GroupedTable(LowBitModule):
    """An embedding table of 6 bits; a `GroupedLinear` may share it."""

    def __init__(self, codes: Tensor, scales: Tensor, factors: Tensor) -> None:
        """All arguments as in `Grouped`."""
        super().__init__()
        self.codes, self.scales, self.factors = codes, scales, factors
        self.num_embeddings = factors.shape[1]
        self.size = self.num_embeddings * codes.shape[1] * GROUP
        self.like = torch.empty(0, dtype=torch.float32, device=codes.device)
        """A tensor of the dtype and on the device of the output."""

    def forward(self, ids: Tensor) -> Tensor:
        """Int[Tensor, "..."]  ->  Float32[Tensor, "... hidden"]"""
        flat = ids.flatten()
        block, lane = flat // LANES, flat % LANES
        numbers = _dequantised_groups(
            self.codes[block, :, :, lane], self.scales[block, :, :, lane], self.factors[:, flat]
        )
        return numbers.view(*ids.shape, numbers.shape[-1])


def _float_is_faster(device: torch.device) -> bool:
    """Whether many rows are multiplied faster as floats: in bfloat16, or in float32 without int8 products."""
    return fastest_dtype(device) == torch.bfloat16 or not has_int8_products(device)


def _dequantised_product(x: Tensor, table: Grouped) -> Tensor:
    """x . table^T in floats, some rows of the table at a time.

    x: Float[Tensor, "many in"]  ->  Float32[Tensor, "many out"]
    """
    real, out = fastest_dtype(x.device), table.factors.shape[1]
    x, some = x.to(real), [slice(start, start + DEQUANTISED_ROWS) for start in range(0, out, DEQUANTISED_ROWS)]
    parts = [F.linear(x, dequantised(table, rows, real)).float() for rows in some]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def dequantised(table: Grouped, rows: slice = slice(None), dtype: torch.dtype = torch.float32) -> Tensor:
    """Dequantises rows, which begin and end at a block of 16: Float[Tensor, "rows in"]

    dtype: float32 or bfloat16
    """
    blocks = slice(*(None if at is None else at // LANES for at in (rows.start, rows.stop)))
    codes, scales, factors = table.codes[blocks], table.scales[blocks], table.factors[:, rows]
    steps = usable_kernels()
    if steps is not None and codes.shape[2] == 4 and not is_differentiated():
        return steps.dequantised(codes, scales, factors, dtype)
    codes, scales = (one.movedim(-1, 1).flatten(0, 1) for one in (codes, scales))
    return _dequantised_groups(codes, scales, factors).to(dtype)


def _dequantised_groups(codes: Tensor, scales: Tensor, factors: Tensor) -> Tensor:
    """Int32[Tensor, "rows groups bits"], UInt8[Tensor, "rows groups 2"], BFloat16[Tensor, "2 rows"]
    ->  Float32[Tensor, "rows groups*32"]
    """
    rows, groups, bits = codes.shape
    packed = codes.contiguous().view(torch.uint8).view(rows, groups, bits, 4)
    bytes_of_4 = packed[:, :, :4].flatten(2)
    values = torch.cat((bytes_of_4 & 15, bytes_of_4 >> 4), dim=-1)
    if bits == 6:
        shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=codes.device)[:, None]
        values = values | ((packed[:, :, 4:, None] >> shifts & 3) << 4).flatten(2)
    scale, zero = (one[..., None] for one in _dequantised_scales(scales, factors))
    return ((values.float() - (1 << bits - 1)) * scale + zero).flatten(1)


def to_4_bits(rows: int, width: int, blocks: Iterable[Tensor]) -> Grouped:
    """Quantizes to 4 bits; codes stored in 4 bits (`rounding.GRID`) are kept, and values on a grid get theirs back.

    blocks: Float[Tensor, "rows width"] or UInt8[Tensor, "rows width/GROUP*GRID"], a multiple of 16 rows at a time
    """
    table, start = _empty_table(rows, width, 4), 0
    for block in blocks:
        if block.dtype == torch.uint8:
            codes = pairs_of(block)
            scale, zero = (one.numpy() for one in scales_of(block).float().unbind(-1))
            turned = scale < 0  # scale (q - 8) + zero = -scale ((15 - q) - 8) + zero - scale
            codes = np.where(turned[..., None], ~codes, codes)
            scales, factors = _quantised_scales(np.abs(scale), np.where(turned, zero - scale, zero))
        else:
            _, scale, zero = (one.numpy() for one in codes_of_4_bits(block.float()))
            alike = scale <= TINY  # groups of one value, mostly zeros
            scales, factors = _quantised_scales(np.where(alike, 0, scale), np.where(alike, zero - 8 * scale, zero))
            halves = _nearest_codes(block, scales, factors, 4).reshape(*scale.shape, 2, GROUP // 2)
            codes = halves[:, :, 0] | halves[:, :, 1] << 4
        start = _write_rows(table, start, np.ascontiguousarray(codes).view(np.int32), scales, factors)
    return table


def to_6_bits(rows: int, width: int, blocks: Iterable[Tensor]) -> Grouped:
    """Quantizes to 6 bits: each group's least value becomes 0, and its greatest 63.

    blocks: Float[Tensor, "rows width"], a multiple of 16 rows at a time
    """
    table, start = _empty_table(rows, width, 6), 0
    for block in blocks:
        groups = block.float().numpy().reshape(len(block), -1, GROUP)
        minimum, maximum = groups.min(-1), groups.max(-1)
        scale = (maximum - minimum) / 63
        scales, factors = _quantised_scales(scale, minimum + 32 * scale)
        # [rows, groups, half, word, byte]
        halves = _nearest_codes(block, scales, factors, 6).reshape(*scale.shape, 2, 4, 4)
        lower = halves[:, :, 0] & 15 | halves[:, :, 1] << 4
        shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
        upper = np.bitwise_or.reduce(halves >> 4 << shifts, axis=3)
        packed = np.concatenate((lower, upper), axis=2).view(np.int32)[..., 0]
        start = _write_rows(table, start, packed, scales, factors)
    return table


def _empty_table(rows: int, width: int, bits: int) -> Grouped:
    blocks, groups = rows // LANES, width // GROUP
    return Grouped(
        torch.empty(blocks, groups, bits, LANES, dtype=torch.int32, device="cpu"),
        torch.empty(blocks, groups, 2, LANES, dtype=torch.uint8, device="cpu"),
        torch.empty(2, rows, dtype=torch.bfloat16, device="cpu"),
    )


def _quantised_scales(scale: np.ndarray, zero: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """s and z of each group, whose scales are not negative, and the factors of each row.

    Float32[ndarray, "rows groups"]  ->  UInt8[ndarray, "rows groups 2"], Float32[ndarray, "2 rows"]
    """
    largest = np.stack((scale.max(1) / 255**2, np.abs(zero).max(1) / 127**2))
    factors = torch.from_numpy(np.maximum(largest, TINY)).to(torch.bfloat16).float().numpy()
    s = np.rint(np.sqrt(scale / factors[0][:, None])).clip(0, 255).astype(np.uint8)
    z = np.copysign(np.rint(np.sqrt(np.abs(zero) / factors[1][:, None])).clip(0, 127), zero).astype(np.int8)
    return np.stack((s, z.view(np.uint8)), axis=-1), factors


def _dequantised_scales(scales: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Inverts `_quantised_scales`, up to rounding."""
    per_square, per_zero = factors.float()[..., None]
    s, z = scales[..., 0].float(), scales[..., 1].view(torch.int8).float()
    return s * s * per_square, z * z.abs() * per_zero


def _nearest_codes(block: Tensor, scales: np.ndarray, factors: np.ndarray, bits: int) -> np.ndarray:
    """The nearest ones: Float[Tensor, "rows in"], and as `_quantised_scales` gives them
    ->  UInt8[ndarray, "rows groups 32"]
    """
    dequantised_scales = _dequantised_scales(torch.from_numpy(scales), torch.from_numpy(factors))
    scale, zero = (one.numpy()[..., None] for one in dequantised_scales)
    groups = block.float().numpy().reshape(len(block), -1, GROUP)
    steps = (groups - zero) / np.maximum(scale, TINY) + (1 << bits - 1)
    return np.rint(steps, out=steps).clip(0, (1 << bits) - 1).astype(np.uint8)


def _write_rows(table: Grouped, start: int, packed: np.ndarray, scales: np.ndarray, factors: np.ndarray) -> int:
    """Writes rows from row `start` on; returns the end.

    packed: Int32[ndarray, "rows groups bits"]; scales, factors: as returned by `_quantised_scales`
    """
    end = start + len(packed)
    for to, numbers in ((table.codes, packed), (table.scales, scales)):
        blocks = numbers.reshape(-1, LANES, *numbers.shape[1:])
        to.numpy()[start // LANES : end // LANES] = np.moveaxis(blocks, 1, -1)
    table.factors[:, start:end] = torch.from_numpy(factors)
    return end
