"""Dequantisation of 4-bit weights, compiled for this processor: `pellucid.blocks.kernel_calls` calls it for products
of many rows, where a library's float product is faster and dequantising costs little beside it.
"""

from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from pellucid.blocks.kernel_arguments import GROUP, LANES, Dequantise
from pellucid.blocks.numba_language import (
    bytes_at,
    float32,
    from_bfloat16,
    int32,
    int64,
    kernel,
    thread_count,
    thread_number,
    uint16s_at,
)
from pellucid.blocks.simd import NUMBERS, VECTOR, WHOLES, VectorBuilder, splat

_WORD, _HALVES = ir.IntType(64), ir.VectorType(ir.IntType(16), VECTOR)
_FOURS, _BYTES = ir.VectorType(ir.IntType(32), VECTOR // 4), ir.VectorType(ir.IntType(8), VECTOR)


def _halves(builder: ir.IRBuilder, numbers: Any) -> Any:
    """Rounds to bfloat16, to even in a tie. None of the numbers is NaN."""
    bits, shift = builder.bitcast(numbers, WHOLES), splat(16, WHOLES)
    even = builder.and_(builder.lshr(bits, shift), splat(1, WHOLES))
    rounded = builder.add(bits, builder.add(even, splat(0x7FFF, WHOLES)))
    return builder.trunc(builder.lshr(rounded, shift), _HALVES)


def _group_intrinsic(context: Any, words: Any, scale: Any, zero: Any, narrow: Any, out: Any) -> Any:
    """Dequantises a group whose four words are `LANES` apart. Arguments: addresses, scale, zero and output dtype."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        words, scale, zero, narrow, out = arguments
        write, half = VectorBuilder(builder), GROUP // 2
        scales, zeros = write.broadcast(scale), write.broadcast(zero)
        for first in range(0, half, VECTOR):
            four = ir.Constant(_FOURS, ir.Undefined)
            for i in range(VECTOR // 4):
                place = write.pointer(words, _WORD((first // 4 + i) * LANES), ir.IntType(32))
                four = builder.insert_element(four, builder.load(place, align=4), ir.IntType(32)(i))
            both = builder.bitcast(four, _BYTES)
            mask, shift = (ir.Constant(_BYTES, [number] * VECTOR) for number in (15, 4))
            for codes, column in ((builder.and_(both, mask), first), (builder.lshr(both, shift), half + first)):
                steps = builder.fsub(builder.uitofp(codes, NUMBERS), splat(8.0))
                numbers = write.multiply_add(zeros, steps, scales)
                with builder.if_else(cgutils.is_true(builder, narrow)) as (narrowly, widely):
                    with narrowly:
                        at = builder.inttoptr(builder.add(out, _WORD(2 * column)), _HALVES.as_pointer())
                        builder.store(_halves(builder, numbers), at, align=2)
                    with widely:
                        write.write(numbers, out, _WORD(column))
        return context.get_dummy_value()

    return types.void(int64, float32, float32, int64, int64), generate


_dequantise_group: Any = intrinsic(_group_intrinsic)


@kernel(Dequantise)
def dequantise(call: Any) -> None:
    """Dequantises 4-bit weights, whose rows are shared among threads."""
    arguments = carray(call, (1,))[0]
    width, blocks = arguments.width, arguments.rows // LANES
    groups, each = width // GROUP, 2 if arguments.narrow else 4
    thread, threads = int64(thread_number()), int64(thread_count())
    scales = carray(bytes_at(arguments.scales), (blocks, groups, 2, LANES))
    factors = carray(uint16s_at(arguments.factors), (2, arguments.of))
    for row in range(blocks * thread // threads * LANES, blocks * (thread + 1) // threads * LANES):
        block, lane = row // LANES, row % LANES
        per_square, per_zero = from_bfloat16(factors[0, row]), from_bfloat16(factors[1, row])
        for group in range(groups):
            s, z = float32(int32(scales[block, group, 0, lane]) & int32(255)), float32(scales[block, group, 1, lane])
            words = arguments.codes + 4 * ((block * groups + group) * 4 * LANES + lane)
            out = arguments.out + each * (row * width + group * GROUP)
            _dequantise_group(words, s * s * per_square, z * abs(z) * per_zero, arguments.narrow, out)
