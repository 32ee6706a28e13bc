"""Products with weights of 4 and 6 bits, compiled for this processor; `pellucid.blocks.kernel_calls` calls them.

Sixteen rows of a weight are side by side, one per lane of a vector. Where the processor multiplies bytes and adds four
products in one instruction (VNNI), inputs are quantized to two 8-bit integers each: the second holds the remainder of
the first. All sums are then exact, up to the scale of a group.

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
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from pellucid.blocks.kernel_arguments import GROUP, LANES, LowBitProduct
from pellucid.blocks.numba_language import (
    bytes_at,
    float32,
    floats_at,
    from_bfloat16,
    int8,
    int32,
    int32s_at,
    int64,
    kernel,
    kernel_helper,
    thread_count,
    thread_number,
    uint16s_at,
)
from pellucid.blocks.simd import NUMBERS, VECTOR, WHOLES, VectorBuilder, splat

VNNI = bool(llvm.get_host_cpu_features().get("avx512vnni" if VECTOR == 16 else "avxvnni"))
"""Whether the processor adds four byte products in one instruction, for vectors of this length."""

ONE, POINT = 0x3F800000, 23
"""Bits of 1.0 as float32, and the number of mantissa bits."""

MAX_FLOAT32 = np.finfo(np.float32).max

TINY = np.float32(1e-30)
"""The least unit, used for rows of zeros."""

ROWS_PER_READ = 4
"""Rows of x that are multiplied per read of a weight."""

_WORD = ir.IntType(64)
_BYTES = ir.VectorType(ir.IntType(8), VECTOR)


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


class _InputRows(NamedTuple):
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


def _float_totals(inputs: _InputRows, rows: int, words: list[Any], group: Any) -> list[tuple[Any, Any]]:
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


def _int8_totals(inputs: _InputRows, rows: int, words: list[Any], group: Any) -> list[tuple[Any, Any]]:
    """The same for x in 254ths of its unit: 254 large + small."""
    builder, bits, each = inputs.write.builder, len(words), GROUP // 4
    kind = ir.FunctionType(WHOLES, [WHOLES] * 3)
    add = builder.module.declare_intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * VECTOR}", (), kind)
    input_sums = [[inputs.broadcast(row, 2 * each, group, 2, half) for half in range(2)] for row in range(rows)]
    parts = [[builder.mul(one, splat(-(1 << bits - 1), WHOLES)) for one in row] for row in input_sums]
    for four, below, first in _bytes_of_codes(builder, words):
        codes = _masked(builder, _shifted(builder, four, -below), 0x0F0F0F0F) if bits == 4 else four
        for row, halves in enumerate(parts):
            for half in range(2):
                x = inputs.broadcast(row, half * each, group, each, first // 4)
                halves[half] = builder.call(add, [halves[half], codes, x])

    def combine(large: Any, small: Any) -> Any:
        return inputs.write.multiply_add(builder.sitofp(small, NUMBERS), builder.sitofp(large, NUMBERS), splat(254.0))

    return [(combine(*total), combine(*sums)) for total, sums in zip(parts, input_sums, strict=True)]


def _tile(bits: int, rows: int) -> Any:
    """`VECTOR` rows of a weight times some rows of x, without the factors of each."""
    totals = _int8_totals if VNNI else _float_totals

    def typed(context: Any, codes: Any, scales: Any, x: Any, step: Any, groups: Any, out: Any) -> Any:
        return types.void(*[int64] * 6), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        codes, scales, x, step, groups, out = arguments
        write = VectorBuilder(builder)
        inputs = _InputRows(write, x, step, groups)
        scaled = [[cgutils.alloca_once(builder, NUMBERS) for _ in range(2)] for _ in range(rows)]
        for one in [one for row in scaled for one in row]:
            builder.store(splat(0.0), one)

        def load_as_float(kind: str, group: Any, line: int) -> Any:
            place = builder.mul(builder.add(builder.mul(group, _WORD(2)), _WORD(line)), _WORD(LANES))
            found = builder.load(builder.inttoptr(builder.add(scales, place), _BYTES.as_pointer()), align=1)
            return getattr(builder, kind)(found, NUMBERS)

        with cgutils.for_range(builder, groups) as loop:
            first = builder.mul(loop.index, _WORD(bits * LANES))
            places = [builder.add(first, _WORD(word * LANES)) for word in range(bits)]
            words = [builder.load(write.pointer(codes, place, WHOLES), align=4) for place in places]
            scale, zero = load_as_float("uitofp", loop.index, 0), load_as_float("sitofp", loop.index, 1)
            scale_and_zero = write.product(scale, scale), write.product(zero, write.absolute(zero))
            for sums, found in zip(scaled, totals(inputs, rows, words, loop.index), strict=True):
                for one, number, by in zip(sums, found, scale_and_zero, strict=True):
                    builder.store(write.sum(builder.load(one), write.product(number, by)), one)
        for i, one in enumerate([one for row in scaled for one in row]):
            write.write(builder.load(one), out, _WORD(i * VECTOR))
        return context.get_dummy_value()

    return intrinsic(typed)


_one_of_4, _several_of_4, _one_of_6, _several_of_6 = (
    _tile(4, 1),
    _tile(4, ROWS_PER_READ),
    _tile(6, 1),
    _tile(6, ROWS_PER_READ),
)


@kernel_helper
def _float_inputs(x: Any, width: Any, out: Any) -> Any:
    """Copies a row of x and computes the sum of each group; its unit is 1."""
    numbers, groups = carray(floats_at(x), (width,)), width // GROUP
    to, sums = carray(floats_at(out), (width,)), carray(floats_at(out + 4 * width), (groups,))
    for group in range(groups):
        total = float32(0.0)
        for c in range(group * GROUP, group * GROUP + GROUP):
            to[c] = numbers[c]
            total += numbers[c]
        sums[group] = total
    return float32(1.0)


@kernel_helper
def _int8_inputs(x: Any, width: Any, out: Any) -> Any:
    """Quantizes a row of x to large and small, with the sums of each group of both; returns a 254th of its unit, NaN if
    x has a value that is not finite."""
    numbers, groups = carray(floats_at(x), (width,)), width // GROUP
    large, small = carray(bytes_at(out), (width,)), carray(bytes_at(out + width), (width,))
    sums = carray(int32s_at(out + 2 * width), (groups, 2))
    max_abs, num_non_finite = TINY, int32(0)
    for c in range(width):
        max_abs = max(max_abs, abs(numbers[c]))
        num_non_finite += int32(not abs(numbers[c]) <= MAX_FLOAT32)
    unit = max_abs / float32(127.0)
    inverse_unit = float32(1.0) / unit
    for group in range(groups):
        large_sum, small_sum = int32(0), int32(0)
        for c in range(group * GROUP, group * GROUP + GROUP):
            steps = min(max(numbers[c] * inverse_unit, float32(-127.0)), float32(127.0))
            rounded = np.rint(steps)
            rest = np.rint((steps - rounded) * float32(254.0))
            large[c], small[c] = int8(int32(rounded)), int8(int32(rest))
            large_sum += int32(rounded)
            small_sum += int32(rest)
        sums[group, 0], sums[group, 1] = large_sum, small_sum
    return float32(np.nan) if num_non_finite else unit / float32(254.0)


_inputs = _int8_inputs if VNNI else _float_inputs


@kernel_helper
def _store_tile(tile: Any, some: Any, units: Any, factors: Any, rows: Any, row: Any, out: Any) -> None:
    """Writes a tile of `some` rows of x to the output, times the factors of the weight's rows and the units of x."""
    sums, to = carray(floats_at(tile), (some, 2, VECTOR)), carray(floats_at(out), (some, rows))
    factor, unit = carray(uint16s_at(factors), (2, rows)), carray(floats_at(units), (some,))
    for i in range(some):
        for lane in range(VECTOR):
            scaled = sums[i, 0, lane] * from_bfloat16(factor[0, row + lane])
            zeros = sums[i, 1, lane] * from_bfloat16(factor[1, row + lane])
            to[i, row + lane] = (scaled + zeros) * unit[i]


@kernel(LowBitProduct)
def low_bit_product(call: Any) -> None:
    """x . table^T for weights of 4 or 6 bits, whose rows are shared among threads."""
    arguments = carray(call, (1,))[0]
    count, width, rows, bits = arguments.count, arguments.width, arguments.rows, arguments.bits
    thread, threads, groups, step = (
        int64(thread_number()),
        int64(thread_count()),
        width // GROUP,
        width + width // GROUP,
    )
    inputs = arguments.room + 4 * thread * arguments.room_each
    units = inputs + 4 * count * step
    tile, unit = units + 4 * count, carray(floats_at(units), (count,))
    for i in range(count):
        unit[i] = _inputs(arguments.x + 4 * i * width, width, inputs + 4 * i * step)
    blocks = rows // LANES
    for block in range(blocks * thread // threads, blocks * (thread + 1) // threads):
        for lane in range(0, LANES, VECTOR):
            codes = arguments.codes + 4 * (block * groups * bits * LANES + lane)
            scales = arguments.scales + 2 * block * groups * LANES + lane
            i = int64(0)
            while i < count:
                some, x = int64(ROWS_PER_READ) if i + ROWS_PER_READ <= count else int64(1), inputs + 4 * i * step
                if some == 1 and bits == 4:
                    _one_of_4(codes, scales, x, step, groups, tile)
                elif some == 1:
                    _one_of_6(codes, scales, x, step, groups, tile)
                elif bits == 4:
                    _several_of_4(codes, scales, x, step, groups, tile)
                else:
                    _several_of_6(codes, scales, x, step, groups, tile)
                row, out = block * LANES + lane, arguments.out + 4 * i * rows
                _store_tile(tile, some, units + 4 * i, arguments.factors, rows, row, out)
                i += some
