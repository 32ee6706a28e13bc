"""GGUF's types: how many values a block has, and its size in bytes."""

import math
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A type of packed values: a block of `block` values in a row takes `bytes` bytes."""

    name: str
    block: int
    bytes: int


GGML_TYPES = {
    number: GgmlType(name, block, size)
    for number, name, block, size in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18),
    )
}  # fmt: skip
"""Every type of the format, whether pellucid unpacks it or not: sizes are checked for all."""


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor in the file, stored row by row from byte `start` on. shape: the outermost dimension first."""

    path: Path
    ggml_type: GgmlType
    shape: tuple[int, ...]
    start: int

    @property
    def bytes(self) -> int:
        """Size in the file, in bytes."""
        return math.prod(self.shape) // self.ggml_type.block * self.ggml_type.bytes

    def rows(self, start: int, stop: int) -> "PackedTensor":
        """Only the rows from `start` to `stop`; blocks do not cross rows."""
        row = self.bytes // self.shape[0]
        return replace(self, shape=(stop - start, *self.shape[1:]), start=self.start + start * row)
