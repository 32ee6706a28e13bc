"""Vector instructions, generated one by one: numba does not use them this way.

A tile is a product of some rows by two vectors, whose sums stay in registers: each step reads two vectors, and
multiplies both by one number of each row. Such a loop runs at the processor's peak speed.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pellucid.blocks.kernel_arguments import ROWS
from pellucid.blocks.numba_language import FAST_MATH, LOG_2_E, SERIES, float32, int64, kernel_helper

VECTOR = 16 if llvm.get_host_cpu_features().get("avx512f") else 8
"""Floats per vector of the processor, a divisor of `kernel_arguments.LANES`."""

_WORD, _NUMBER = ir.IntType(64), ir.FloatType()
NUMBERS, WHOLES = ir.VectorType(_NUMBER, VECTOR), ir.VectorType(ir.IntType(32), VECTOR)
_FAST_MATH_FLAGS = tuple(FAST_MATH)


def splat(number: float, kind: Any = NUMBERS) -> ir.Constant:
    """A constant vector of equal numbers."""
    return ir.Constant(kind, [number] * VECTOR)


class VectorBuilder:
    """Generates vector instructions."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def pointer(self, address: Any, number: Any, kind: Any = NUMBERS) -> Any:
        """Pointer to the element `number` of the floats at an address."""
        first = self.builder.inttoptr(address, _NUMBER.as_pointer())
        return self.builder.bitcast(self.builder.gep(first, [number]), kind.as_pointer())

    def read(self, address: Any, number: Any) -> Any:
        return self.builder.load(self.pointer(address, number), align=4)

    def write(self, numbers: Any, address: Any, number: Any) -> None:
        self.builder.store(numbers, self.pointer(address, number), align=4)

    def broadcast(self, number: Any, kind: Any = NUMBERS) -> Any:
        """A vector of equal numbers, of a runtime value."""
        anything = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(anything, number, ir.IntType(32)(0))
        return self.builder.shuffle_vector(one, anything, splat(0, WHOLES))

    def prefetch(self, address: Any, number: Any) -> None:
        """Prefetches the cache line of the element `number` of the floats at an address."""
        place, word = self.pointer(address, number, ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        prefetch = self.builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
        self.builder.call(prefetch, [place, word(0), word(3), word(1)])

    def sum(self, x: Any, y: Any) -> Any:
        return self.builder.fadd(x, y, flags=_FAST_MATH_FLAGS)

    def product(self, x: Any, y: Any) -> Any:
        return self.builder.fmul(x, y, flags=_FAST_MATH_FLAGS)

    def multiply_add(self, total: Any, x: Any, y: Any) -> Any:
        """total + x y, in this order even under `FAST_MATH`: independent sums are not merged."""
        kind = ir.FunctionType(NUMBERS, [NUMBERS] * 3)
        multiply = self.builder.module.declare_intrinsic(f"llvm.fmuladd.v{VECTOR}f32", (), kind)
        return self.builder.call(multiply, [x, y, total])

    def maximum(self, x: Any, y: Any) -> Any:
        """The maximum; y if x is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", x, y), x, y)

    def absolute(self, x: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", x, splat(0.0)), self.builder.fneg(x), x)

    def reduce(self, join: Callable[[Any, Any], Any], x: Any) -> Any:
        """Reduces a vector to one number by halves."""
        size = VECTOR
        while size > 1:
            size //= 2
            upper = [size + i for i in range(size)] + [0] * (VECTOR - size)
            x = join(x, self.builder.shuffle_vector(x, x, ir.Constant(WHOLES, upper)))
        return self.builder.extract_element(x, ir.IntType(32)(0))

    def exponential(self, x: Any) -> Any:
        """As `numba_language.exponential`; NaN gives the least value."""
        builder = self.builder
        y = self.maximum(self.product(x, splat(LOG_2_E)), splat(-126.0))
        y = builder.select(builder.fcmp_ordered("<", y, splat(128.0)), y, splat(128.0))
        rint = builder.module.declare_intrinsic(f"llvm.rint.v{VECTOR}f32", (), ir.FunctionType(NUMBERS, [NUMBERS]))
        rounded = builder.call(rint, [y])
        rest, power = builder.fsub(y, rounded), splat(SERIES[0])
        for term in SERIES[1:]:
            power = self.sum(self.product(power, rest), splat(term))
        exponent = builder.add(builder.fptosi(rounded, WHOLES), splat(127, WHOLES))
        return self.product(power, builder.bitcast(builder.shl(exponent, splat(23, WHOLES)), NUMBERS))


def _tile(vectors: int) -> Any:
    """a . b for `ROWS` rows and some vectors. Arguments: addresses, and strides between rows in elements."""

    def typed(context: Any, a: Any, a_step: Any, b: Any, b_step: Any, columns: Any, out: Any, out_step: Any) -> Any:
        return types.void(*[int64] * 7), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        a, a_step, b, b_step, columns, out, out_step = arguments
        write = VectorBuilder(builder)

        def at(step: Any, row: Any, column: Any) -> Any:
            return builder.add(builder.mul(step, row), column)

        sums = [[cgutils.alloca_once(builder, NUMBERS) for _ in range(vectors)] for _ in range(ROWS)]
        for one in [one for row in sums for one in row]:
            builder.store(splat(0.0), one)
        with cgutils.for_range(builder, columns) as loop:
            b_vectors = [write.read(b, at(b_step, loop.index, _WORD(i * VECTOR))) for i in range(vectors)]
            for r, row in enumerate(sums):
                number = builder.load(write.pointer(a, at(a_step, _WORD(r), loop.index), _NUMBER))
                for one, numbers in zip(row, b_vectors, strict=True):
                    product = write.product(write.broadcast(number), numbers)
                    builder.store(write.sum(builder.load(one), product), one)
        for r, row in enumerate(sums):
            for i, one in enumerate(row):
                write.write(builder.load(one), out, at(out_step, _WORD(r), _WORD(i * VECTOR)))
        return context.get_dummy_value()

    return intrinsic(typed)


_two_vectors, _one_vector = _tile(2), _tile(1)


@kernel_helper
def multiply_tile(a: Any, step: Any, b: Any, depth: Any, width: Any, some: Any, out: Any) -> None:
    """out = a . b, for addresses.

    a: Float32[ROWS, depth], with `step` elements from row to row.  b: Float32[depth, width].
    out: Float32[ROWS, width], of which the first `some` columns are written.  width, some: multiples of `VECTOR`.
    """
    column = int64(0)
    while column + 2 * VECTOR <= some:
        _two_vectors(a, step, b + 4 * column, width, depth, out + 4 * column, width)
        column += 2 * VECTOR
    if column < some:
        _one_vector(a, step, b + 4 * column, width, depth, out + 4 * column, width)


def _exponentiate(context: Any, scores: Any, num_visible: Any, count: Any) -> Any:
    """Replaces each score by e^(score - maximum), in place; returns the sum of the first `num_visible` (at least one).
    NaN and infinity give NaN.

    count: number of scores, a multiple of `VECTOR`; those beyond `num_visible` must not exceed the others.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        scores, num_visible, count = arguments
        write, vectors = VectorBuilder(builder), builder.udiv(count, _WORD(VECTOR))
        maxima = cgutils.alloca_once(builder, NUMBERS)
        builder.store(write.read(scores, _WORD(0)), maxima)
        with cgutils.for_range(builder, vectors) as loop:
            numbers = write.read(scores, builder.mul(loop.index, _WORD(VECTOR)))
            builder.store(write.maximum(numbers, builder.load(maxima)), maxima)
        top = write.broadcast(write.reduce(write.maximum, builder.load(maxima)))
        total = cgutils.alloca_once(builder, NUMBERS)
        builder.store(splat(0.0), total)
        lanes = ir.Constant(WHOLES, list(range(VECTOR)))
        with cgutils.for_range(builder, vectors) as loop:
            first = builder.mul(loop.index, _WORD(VECTOR))
            numbers = write.read(scores, first)
            weights = write.exponential(builder.fsub(numbers, top))
            weights = write.sum(weights, write.product(numbers, splat(0.0)))
            write.write(weights, scores, first)
            remaining = builder.trunc(builder.sub(num_visible, first), ir.IntType(32))
            within = builder.icmp_signed("<", lanes, write.broadcast(remaining, WHOLES))
            builder.store(write.sum(builder.load(total), builder.select(within, weights, splat(0.0))), total)
        return write.reduce(write.sum, builder.load(total))

    return float32(int64, int64, int64), generate


exponentiate: Any = intrinsic(_exponentiate)


def _fetch(context: Any, address: Any) -> Any:
    """Prefetches the cache line at an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        VectorBuilder(builder).prefetch(arguments[0], _WORD(0))
        return context.get_dummy_value()

    return types.void(int64), generate


fetch: Any = intrinsic(_fetch)
