"""Quantization to 8 and 4 bits, with the scales described in `pellucid.blocks.quantized`."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from pellucid.blocks.kernel_arguments import GROUP

GRID = 20
"""Bytes of a group stored in 4 bits: its scale and zero in bfloat16, then 32 codes, the first 16 in the low halves of
16 bytes and the others in the high halves."""

BLOCK = 64
"""Rows that are quantized at a time: PyTorch's 4-bit kernel takes 64 rows together."""

TINY = 1e-30
"""The least scale, used for rows and groups of zeros."""


def in_blocks(pieces: Iterable[Tensor], size: int = BLOCK) -> Iterator[Tensor]:
    """The same rows, `size` at a time: processing them block by block needs little additional memory."""
    left: list[Tensor] = []
    for piece in pieces:
        for some in piece.split(size):
            missing = size - sum(map(len, left))
            left.append(some[:missing])
            if sum(map(len, left)) == size:
                yield torch.cat(left) if len(left) > 1 else left[0]
                left = [some[missing:]] if len(some) > missing else []
    if left:
        yield torch.cat(left)


def to_8_bits(rows: int, width: int, blocks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Quantizes to 8 bits: each row's largest absolute value becomes 127 or -127.

    blocks: Float[Tensor, "rows width"], some rows at a time
    ->  codes Int8[Tensor, "rows width"], scale BFloat16[Tensor, "rows"]
    """
    codes = torch.empty(rows, width, dtype=torch.int8, device="cpu")
    scale = torch.empty(rows, dtype=torch.bfloat16, device="cpu")
    start = 0
    for block in blocks:
        rows_slice = slice(start, start := start + len(block))
        numbers = block.float().numpy()
        scale[rows_slice] = torch.from_numpy(np.abs(numbers).max(axis=1) / 127).clamp(min=TINY)
        steps = numbers / scale[rows_slice].float().numpy()[:, None]
        codes.numpy()[rows_slice] = np.rint(steps, out=steps)
    return codes, scale


def to_4_bits(rows: int, width: int, blocks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Quantizes to 4 bits: each group's least value becomes 0 and its greatest 15, or less on a coarser grid.

    Values that were stored in 4 bits before, as in GGUF's Q4_0 and Q4_1, get their old codes back; groups in the layout
    of `GRID` keep theirs.

    blocks: Float[Tensor, "rows width"] or UInt8[Tensor, "rows width/GROUP*GRID"], `BLOCK` rows at a time
    ->  codes as PyTorch packs them UInt8[Tensor, "rows width/2"], scale and zero BFloat16[Tensor, "groups rows 2"]
    """
    codes = torch.empty(rows, width // 2, dtype=torch.uint8, device="cpu")
    pairs = torch.empty(width // GROUP, rows, 2, dtype=torch.bfloat16, device="cpu")
    start = 0
    for block in blocks:
        rows_slice = slice(start, start := start + len(block))
        plain, scale, zero = _unpacked_grids(block) if block.dtype == torch.uint8 else codes_of_4_bits(block.float())
        codes.numpy()[rows_slice] = torch._convert_weight_to_int4pack_for_cpu(plain, 1).numpy()
        pairs[:, rows_slice, 0], pairs[:, rows_slice, 1] = scale.T, zero.T
    return codes, pairs


def scales_of(grids: Tensor) -> Tensor:
    """UInt8[Tensor, "rows groups*GRID"]  ->  scale and zero BFloat16[Tensor, "rows groups 2"]"""
    groups = grids.numpy().reshape(len(grids), -1, GRID)
    return torch.from_numpy(groups[:, :, :4].copy()).view(torch.bfloat16)


def pairs_of(grids: Tensor) -> np.ndarray:
    """UInt8[Tensor, "rows groups*GRID"]  ->  codes UInt8[ndarray, "rows groups 16"], two in each"""
    return grids.numpy().reshape(len(grids), -1, GRID)[:, :, 4:]


def _unpacked_grids(grids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """UInt8[Tensor, "rows groups*GRID"]  ->  as `codes_of_4_bits`, with scale and zero in bfloat16"""
    pairs = pairs_of(grids)
    codes = np.empty((*pairs.shape[:2], 2, GROUP // 2), np.int32)
    np.bitwise_and(pairs, 15, out=codes[:, :, 0])
    np.right_shift(pairs, 4, out=codes[:, :, 1])
    scale, zero = scales_of(grids).unbind(-1)
    return torch.from_numpy(codes).flatten(1), scale, zero


def codes_of_4_bits(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Float32[Tensor, "rows in"]  ->  codes Int32[Tensor, "rows in"], scale and zero Float[Tensor, "rows groups"]"""
    groups = weight.numpy().reshape(len(weight), -1, GROUP)
    groups = np.ascontiguousarray(groups.transpose(2, 0, 1))  # [GROUP, rows, groups]: NumPy is faster along long rows
    minimum, maximum = groups.min(0), groups.max(0)
    scale = np.maximum((maximum - minimum) / 15, TINY)
    off = _off_grid(groups, minimum, scale)
    if off.mean() < 0.99:  # these values do lie on grids: find those with fewer steps
        for steps in range(14, 0, -1):
            tried = np.maximum((maximum - minimum) / steps, TINY)
            fits_tried = off & ~_off_grid(groups, minimum, tried)
            scale = np.where(fits_tried, tried, scale)
            off &= ~fits_tried
            if not off.any():
                break
    steps = (groups - minimum) / scale
    codes = np.rint(steps, out=steps).clip(0, 15, out=steps).astype(np.int32).transpose(1, 2, 0).reshape(weight.shape)
    return torch.from_numpy(codes), torch.from_numpy(scale), torch.from_numpy(minimum + 8 * scale)


def _off_grid(groups: np.ndarray, minimum: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Which groups hold a value that is more than a hundredth of a step off the grid.

    groups: Float[ndarray, "GROUP rows groups"]  ->  Bool[ndarray, "rows groups"]
    """
    steps = (groups - minimum) / scale
    return np.abs(steps - np.rint(steps)).max(0) > 0.01
