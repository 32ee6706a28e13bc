"""Dequantises packed tensors, straight into the result's memory, half a megabyte at a time.

A block of 32 values shares one 16-bit scale (and in Q4_1 one 16-bit minimum); each value is an integer of 8 or 4 bits.
In Q6_K, 16 values of 6 bits share an 8-bit scale, and 256 values a 16-bit factor. Every result equals that of the
`gguf` library's `dequantize` bit for bit, without a second copy of the tensor: that library works in groups of 16 rows
and concatenates them at the end.

NumPy does the work, on one thread: PyTorch's threads busy-wait for each other at each of these small steps, which took
up to thirty times as long on a processor with other load.
"""

from collections.abc import Callable
from functools import partial
from io import BufferedReader

import numpy as np
import torch
from torch import Tensor

from pellucid.blocks.rounding import GRID
from pellucid.checkpoints.gguf.block_types import PackedTensor
from pellucid.errors import CheckpointMismatchError, CorruptFileError

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_IN_4_BITS = ("Q4_0", "Q4_1")
_NUMBERS_AT_ONCE = 4096 * 32
"""Values: half a megabyte of float32, so that the passes over them stay in the processor's cache."""


def dtype_of(packed: PackedTensor, name: str) -> torch.dtype:
    """The dtype that `unpack` returns: float32 for quantised types. Raises CheckpointMismatchError for others."""
    kind = packed.ggml_type.name
    if kind not in PLAIN and kind not in _UNPACK:
        raise CheckpointMismatchError(
            f"{packed.path}: {name} is packed as {kind}, which pellucid does not unpack; "
            f"it reads {', '.join((*PLAIN, *_UNPACK))}"
        )
    return PLAIN.get(kind, torch.float32)


def unpack(packed: PackedTensor) -> Tensor:
    """The values of a tensor, in its shape."""
    numbers = torch.empty(packed.shape, dtype=PLAIN.get(packed.ggml_type.name, torch.float32), device="cpu")
    with packed.path.open("rb") as file:
        file.seek(packed.start)
        if packed.ggml_type.name in PLAIN:
            _fill(packed, file, numbers.view(-1).view(torch.uint8).numpy())
        else:
            _unpack_blocks(packed, file, numbers.view(-1, packed.ggml_type.block).numpy())
    return numbers


def grids_of(packed: PackedTensor) -> Callable[[], Tensor] | None:
    """A function that reads a 4-bit matrix in its packed form; None for any other tensor."""
    return partial(_grids, packed) if packed.ggml_type.name in _IN_4_BITS and len(packed.shape) == 2 else None


def _grids(packed: PackedTensor) -> Tensor:
    """UInt8[Tensor, "rows groups*GRID"], in the form of `pellucid.blocks.rounding`."""
    rows = packed.shape[0]
    blocks = np.empty((packed.bytes // packed.ggml_type.bytes, packed.ggml_type.bytes), np.uint8)
    with packed.path.open("rb") as file:
        file.seek(packed.start)
        _fill(packed, file, blocks)
    with np.errstate(all="ignore"):
        scale = _float16_at(blocks, 0)
        zero = _float16_at(blocks, 2) + 8 * scale if packed.ggml_type.name == "Q4_1" else np.zeros_like(scale)
    grids = np.empty((len(blocks), GRID), np.uint8)
    grids[:, :4] = torch.from_numpy(np.hstack((scale, zero))).to(torch.bfloat16).view(torch.uint8).numpy()
    grids[:, 4:] = blocks[:, -16:]
    return torch.from_numpy(grids).view(rows, -1)


def _unpack_blocks(packed: PackedTensor, file: BufferedReader, rows: np.ndarray) -> None:
    """rows: Float[ndarray, "blocks block"], filled in place."""
    max_blocks = _NUMBERS_AT_ONCE // packed.ggml_type.block
    memory = np.empty((min(max_blocks, len(rows)), packed.ggml_type.bytes), np.uint8)
    for start in range(0, len(rows), max_blocks):
        chunk = rows[start : start + max_blocks]
        blocks = memory[: len(chunk)]
        _fill(packed, file, blocks)
        with np.errstate(all="ignore"):  # an infinite or NaN scale shows in the values, which the caller checks
            _UNPACK[packed.ggml_type.name](blocks, chunk)


def _fill(packed: PackedTensor, file: BufferedReader, memory: np.ndarray) -> None:
    if file.readinto(memory.data) != memory.nbytes:
        raise CorruptFileError(f"{packed.path} became shorter while it was read")


def _float16_at(blocks: np.ndarray, at: int) -> np.ndarray:
    """The 16-bit float at byte `at` of every block, as Float[ndarray, "blocks 1"]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _q8_0(blocks: np.ndarray, numbers: np.ndarray) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _float16_at(blocks, 0), out=numbers)


def _q4_0(blocks: np.ndarray, numbers: np.ndarray) -> None:
    _nibbles(blocks[:, 2:], numbers)
    numbers -= 8
    numbers *= _float16_at(blocks, 0)


def _q4_1(blocks: np.ndarray, numbers: np.ndarray) -> None:
    _nibbles(blocks[:, 4:], numbers)
    numbers *= _float16_at(blocks, 0)
    numbers += _float16_at(blocks, 2)


def _q6_k(blocks: np.ndarray, numbers: np.ndarray) -> None:
    """128 bytes of low 4 bits, 64 of high 2 bits, 16 scales and their factor; half of each for half of the values."""
    low, high = blocks[:, :128].reshape(-1, 2, 2, 32), blocks[:, 128:192].reshape(-1, 2, 32)
    quarters, groups = numbers.reshape(-1, 2, 4, 32), numbers.reshape(-1, 16, 16)  # both are views of the same memory
    for i in range(4):
        quarters[:, :, i] = (low[:, :, i % 2] >> 4 * (i // 2) & 15) | (high >> 2 * i & 3) << 4
    numbers -= 32
    groups *= (_float16_at(blocks, 208) * blocks[:, 192:208].view(np.int8))[:, :, None]


def _nibbles(packed: np.ndarray, numbers: np.ndarray) -> None:
    """16 bytes to 32 values: the low halves of the bytes come first, then the high ones."""
    numbers[:, :16] = packed & 15
    numbers[:, 16:] = packed >> 4


_UNPACK: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q6_K": _q6_k,
}
