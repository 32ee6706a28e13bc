"""Products with weights of 4 and 6 bits, compiled for this processor; `pellucid.blocks.kernel_calls` calls them.

`low_bit_sums` tells how a group of a weight is multiplied.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from pellucid.blocks.kernel_arguments import GROUP, LANES, LowBitProduct
from pellucid.blocks.low_bit_sums import MULTIPLIES_BYTES, InputRows, float_totals, int8_totals
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

MAX_FLOAT32 = np.finfo(np.float32).max

TINY = np.float32(1e-30)
"""The least unit, used for rows of zeros."""

ROWS_PER_READ = 4
"""Rows of x that are multiplied per read of a weight."""

_WORD = ir.IntType(64)
_BYTES = ir.VectorType(ir.IntType(8), VECTOR)


def _tile(bits: int, rows: int) -> Any:
    """`VECTOR` rows of a weight times some rows of x, without the factors of each."""
    totals = int8_totals if MULTIPLIES_BYTES else float_totals

    def typed(context: Any, codes: Any, scales: Any, x: Any, step: Any, groups: Any, out: Any) -> Any:
        return types.void(*[int64] * 6), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        codes, scales, x, step, groups, out = arguments
        write = VectorBuilder(builder)
        inputs = InputRows(write, x, step, groups)
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
            if VECTOR < LANES:  # the other rows of a block are in the cache already: use the time to read the next
                for place in places:
                    write.prefetch(codes, builder.add(place, builder.mul(groups, _WORD(bits * LANES))))
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


_inputs = _int8_inputs if MULTIPLIES_BYTES else _float_inputs


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
