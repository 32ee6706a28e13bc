"""Products of the codes of low-bit weights with inputs, summed for one group, as vector instructions.

Sixteen rows of a weight are side by side, one per lane of a vector. Where the processor multiplies bytes, inputs are
quantized to two 8-bit integers each: the second holds the remainder of the first. All sums are then exact, up to the
scale of a group. Four products are added by one instruction (VNNI), or two in 16 bits, which hold the sums of a few.

    x = unit x (large + small / 254)    large and small from -127 to 127, unit = the row's greatest |x| / 127

Elsewhere a code becomes a float32 without a conversion, by three instructions: its bits are shifted to the top of the
mantissa and combined with the exponent of 1. So a code q is read as 1 + q/16, or 1 + q/64 for six bits.

Codes are unsigned, so half of their range is subtracted, once per group, by means of the sum of its inputs.
"""

from collections.abc import Iterator
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir

from pellucid.blocks.kernel_arguments import GROUP
from pellucid.blocks.simd import NUMBERS, VECTOR, WHOLES, VectorBuilder, splat

_FEATURES = llvm.get_host_cpu_features()

VNNI = bool(_FEATURES.get("avx512vnni" if VECTOR == 16 else "avxvnni"))
"""Whether the processor adds four byte products in one instruction, for vectors of this length."""

MULTIPLIES_BYTES = VNNI or bool(_FEATURES.get("avx512bw" if VECTOR == 16 else "avx2"))
"""Whether it multiplies bytes at all, and adds two products."""

PAIR_PRODUCTS = {8: ("avx2.pmadd.ub.sw", "avx2.pmadd.wd"), 16: ("avx512.pmaddubs.w.512", "avx512.pmaddw.d.512")}
"""LLVM's names of the instructions that multiply bytes, or 16-bit integers, and add two products, by vector length."""

MAX_INT16 = 2**15 - 1

ONE, POINT = 0x3F800000, 23
"""Bits of 1.0 as float32, and the number of mantissa bits."""

_WORD = ir.IntType(64)
_FOUR_BYTES, _INT16S = ir.VectorType(ir.IntType(8), 4 * VECTOR), ir.VectorType(ir.IntType(16), 2 * VECTOR)


def _shifted(builder: ir.IRBuilder, words: Any, left: int) -> Any:
    """Shifts bits left, or right if `left` is negative."""
    return builder.shl(words, splat(left, WHOLES)) if left >= 0 else builder.lshr(words, splat(-left, WHOLES))


def _masked(builder: ir.IRBuilder, words: Any, mask: int) -> Any:
    return builder.and_(words, splat(mask, WHOLES))


def _bytes_of_codes(builder: ir.IRBuilder, words: list[Any]) -> Iterator[tuple[Any, int, int]]:
    """Codes of a group, four per lane: a vector with one in each byte, its bit offset within the byte, and the column
    of the first, which the others follow.

    words: as many as there are bits. Byte i of the first four has code i of 32 in its low half, and 16 + i in its high
        half; for 6 bits, two more words have the upper two bits, one word per half, shifted to four codes at once.
    """
    for word, half in product(range(4), range(2)):
        four, below = words[word], 4 * half
        if len(words) == 6:
            lower = _masked(builder, _shifted(builder, four, -below), 0x0F0F0F0F)
            upper = _masked(builder, _shifted(builder, words[4 + half], 4 - 2 * word), 0x30303030)
            four, below = builder.or_(lower, upper), 0
        yield four, below, 16 * half + 4 * word


class InputRows(NamedTuple):
    """Rows of x in the layout of `_inputs`: address of the first, stride of rows, and groups per row. Broadcasts one
    number of a group to all lanes."""

    write: VectorBuilder
    address: Any
    step: Any
    groups: Any

    def broadcast(self, row: int, before: int, group: Any, each: int, place: int, kind: Any = WHOLES) -> Any:
        """Broadcasts the number at `place` of this group, where groups have `each` numbers, after `before` numbers per
        group of other kinds."""
        builder = self.write.builder
        first = builder.add(builder.mul(self.groups, _WORD(before)), builder.mul(group, _WORD(each)))
        at = builder.add(builder.add(builder.mul(self.step, _WORD(row)), first), _WORD(place))
        number = builder.load(self.write.pointer(self.address, at, kind.element), align=4)
        return self.write.broadcast(number, kind)


def float_totals(inputs: InputRows, rows: int, words: list[Any], group: Any) -> list[tuple[Any, Any]]:
    """sum((q - half) x), half of the range of q, and sum(x), for each row of x."""
    write, builder, bits = inputs.write, inputs.write.builder, len(words)
    num_chains, top = 4 if rows == 1 else 2, POINT - bits
    parts = [[splat(0.0)] * num_chains for _ in range(rows)]  # independent sums, as each waits for its last
    for four, below, first in _bytes_of_codes(builder, words):
        for byte in range(4):
            code = _masked(builder, _shifted(builder, four, top - 8 * byte - below), ((1 << bits) - 1) << top)
            number = builder.bitcast(builder.or_(code, splat(ONE, WHOLES)), NUMBERS)
            for row, sums in enumerate(parts):
                x = inputs.broadcast(row, 0, group, GROUP, first + byte, NUMBERS)
                sums[byte % num_chains] = write.multiply_add(sums[byte % num_chains], number, x)
    totals = []
    for row, sums in enumerate(parts):
        input_sum = inputs.broadcast(row, GROUP, group, 1, 0, NUMBERS)
        total = write.sum(reduce(write.sum, sums), write.product(input_sum, splat(-1.5)))
        totals.append((write.product(total, splat(float(1 << bits))), input_sum))
    return totals


def int8_totals(inputs: InputRows, rows: int, words: list[Any], group: Any) -> list[tuple[Any, Any]]:
    """The same for x in 254ths of its unit: 254 large + small."""
    builder, bits, each = inputs.write.builder, len(words), GROUP // 4
    input_sums = [[inputs.broadcast(row, 2 * each, group, 2, half) for half in range(2)] for row in range(rows)]
    sums = [
        [_ByteProducts(builder, bits, builder.mul(one, splat(-(1 << bits - 1), WHOLES))) for one in row]
        for row in input_sums
    ]
    for four, below, first in _bytes_of_codes(builder, words):
        codes = _masked(builder, _shifted(builder, four, -below), 0x0F0F0F0F) if bits == 4 else four
        for row, halves in enumerate(sums):
            for half, one in enumerate(halves):
                one.add(codes, inputs.broadcast(row, half * each, group, each, first // 4))

    def combine(large: Any, small: Any) -> Any:
        return inputs.write.multiply_add(builder.sitofp(small, NUMBERS), builder.sitofp(large, NUMBERS), splat(254.0))

    return [
        (combine(*(one.total() for one in halves)), combine(*row)) for halves, row in zip(sums, input_sums, strict=True)
    ]


class _ByteProducts:
    """Adds products of codes and signed bytes, four in each lane. All sums are exact."""

    def __init__(self, builder: ir.IRBuilder, bits: int, start: Any) -> None:
        self.builder, self.whole, self.pairs = builder, start, list[Any]()
        self.max_pairs = MAX_INT16 // (2 * 127 * ((1 << bits) - 1))  # products that fit, two in each half of a lane

    def add(self, codes: Any, x: Any) -> None:
        if VNNI:
            self.whole = self._call(f"avx512.vpdpbusd.{32 * VECTOR}", WHOLES, self.whole, codes, x)
            return
        codes, x = (self.builder.bitcast(one, _FOUR_BYTES) for one in (codes, x))
        self.pairs.append(self._call(PAIR_PRODUCTS[VECTOR][0], _INT16S, codes, x))
        if len(self.pairs) == self.max_pairs:
            self.whole = self.total()

    def total(self) -> Any:
        """The sum, as a whole number in each lane."""
        if self.pairs:
            both = reduce(self.builder.add, self.pairs)
            ones = ir.Constant(_INT16S, [1] * 2 * VECTOR)
            self.whole = self.builder.add(self.whole, self._call(PAIR_PRODUCTS[VECTOR][1], WHOLES, both, ones))
            self.pairs = []
        return self.whole

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [one.type for one in arguments])
        return self.builder.call(self.builder.module.declare_intrinsic(f"llvm.x86.{name}", (), kind), arguments)
