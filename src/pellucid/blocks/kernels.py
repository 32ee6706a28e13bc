"""The arithmetic of one position, compiled for this processor by numba: what `pellucid.blocks.steps` calls.

What PyTorch has are steps; between them lies nearly as long as they take where a step is a few thousand numbers. Here a
norm, a gate, or the mixing of one position is one call each. All arithmetic is float32.

What a kernel is told stands in `calls`. `carray(_floats(address), shape)` is the memory there as an array; where it may
hold numbers of another kind, it has a second name, by which these are read. Several threads may work on `product` and
`mix`, each takes its share of rows or heads.
"""

import math
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import carray, from_dtype, njit, types
from numba.extending import intrinsic

from pellucid.blocks.calls import BFLOAT16, FLOAT32, Gated, Mix, Norm, Product, ProductTable, Remember

OUTSIDE = {"omp_get_thread_num", "omp_get_num_threads", "sqrtf", "memset", "memcpy", "memmove"}
"""What the kernels may call: it is in every process that has PyTorch."""

KERNELS: dict[str, Any] = {}
"""Each by its name: void (call *), where `call` is of the kind that it was declared with."""

_FREE = {"reassoc", "contract", "nsz", "arcp"}
"""Sums may be formed in any order, as every library forms them; NaN stays NaN."""

_float, _int = types.float32, types.int64

_thread = types.ExternalFunction("omp_get_thread_num", types.int32())
_threads = types.ExternalFunction("omp_get_num_threads", types.int32())


def _at(kind: Any) -> Any:
    """The address of some of these structures."""
    return types.CPointer(from_dtype(np.dtype(kind)))


def _kernel(call: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

    def kept(function: Callable[[Any], None]) -> Callable[[Any], None]:
        KERNELS[function.__name__] = njit(types.void(_at(call)), fastmath=_FREE, **options)(function)
        return function

    return kept


def _instruction(name: str, result: Any, given: Any) -> Any:
    """What numba has no word for: an instruction of LLVM that takes a number for another, bit by bit."""

    def typed(context: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, numbers: Any) -> Any:
            return getattr(builder, name)(numbers[0], context.get_value_type(result))

        return result(given), generate

    return intrinsic(typed)


_floats = _instruction("inttoptr", types.CPointer(types.float32), _int)
_halves = _instruction("inttoptr", types.CPointer(types.uint16), _int)
_bytes = _instruction("inttoptr", types.CPointer(types.int8), _int)
_tables = _instruction("inttoptr", _at(ProductTable), _int)
_of_bits = _instruction("bitcast", types.float32, types.int32)
_bits = _instruction("bitcast", types.int32, types.float32)


@njit(fastmath=_FREE)
def _wide(half: Any) -> Any:
    """A number of bfloat16, which is the upper half of a float32."""
    return _of_bits(np.int32(np.uint32(half) << np.uint32(16)))


@njit(fastmath=_FREE)
def _narrow(number: Any) -> Any:
    """The nearest number of bfloat16, of two as near the even one; NaN stays NaN."""
    bits = np.uint32(_bits(number))
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(rounded if number == number else np.uint32(0x7FC0))


@njit(fastmath=_FREE)
def _exp(x: Any) -> Any:
    """e^x to the last figures of float32, 2^-126 at least: 2^whole in the exponent, and 2^rest, where |rest| <= 1/2, by
    its series: (rest ln 2)^n / n! up to n = 6."""
    y = min(max(x * np.float32(1.4426950408889634), np.float32(-126.0)), np.float32(128.0))
    whole = np.rint(y)
    rest = y - whole
    power = np.float32(0.00015403530393381608)
    power = power * rest + np.float32(0.0013333558146428443)
    power = power * rest + np.float32(0.009618129107628477)
    power = power * rest + np.float32(0.05550410866482158)
    power = power * rest + np.float32(0.24022650695910072)
    power = power * rest + np.float32(0.6931471805599453)
    power = power * rest + np.float32(1.0)
    return power * _of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))


@_kernel(Product)
def product(call: Any) -> None:
    """x . table^T (x scale) (+ bias) of each table, whose rows the threads share."""
    said = carray(call, (1,))[0]
    kind, count, width = said.kind, said.rows, said.width
    x, out = carray(_floats(said.x), (count, width)), carray(_floats(said.out), (count, said.across))
    tables = carray(_tables(said.tables), (said.parts,))
    me, threads = _int(_thread()), _int(_threads())
    for part in range(said.parts):
        table = tables[part]
        first, rows, head, biased = table.first, table.rows, table.head, table.bias != 0
        real, half = carray(_floats(table.numbers), (rows, width)), carray(_halves(table.numbers), (rows, width))
        whole = carray(_bytes(table.numbers), (rows, width))
        scale, bias = carray(_floats(table.scale), (rows,)), carray(_floats(table.bias), (rows,))
        for row in range(rows * me // threads, rows * (me + 1) // threads):
            place = first + row
            if head:
                column = row % head
                place = first + row - column + column % (head // 2) * 2 + column // (head // 2)
            for i in range(count):
                total = _float(0.0)
                if kind == FLOAT32:
                    for c in range(width):
                        total += real[row, c] * x[i, c]
                elif kind == BFLOAT16:
                    for c in range(width):
                        total += _wide(half[row, c]) * x[i, c]
                else:
                    for c in range(width):
                        total += _float(whole[row, c]) * x[i, c]
                    total *= scale[row]
                out[i, place] = total + bias[row] if biased else total


@_kernel(Norm)
def norm(call: Any) -> None:
    """x / sqrt(sum(x^2) + floor) x gain, row by row."""
    said = carray(call, (1,))[0]
    rows, width, floor = said.rows, said.width, said.floor
    x, gain = carray(_floats(said.x), (rows, width)), carray(_floats(said.gain), (width,))
    out = carray(_floats(said.out), (rows, width))
    for row in range(rows):
        total = _float(0.0)
        for c in range(width):
            total += x[row, c] * x[row, c]
        share = _float(1.0) / math.sqrt(total + floor)
        for c in range(width):
            out[row, c] = x[row, c] * share * gain[c]


@_kernel(Gated)
def gated(call: Any) -> None:
    """silu(gate) x input."""
    said = carray(call, (1,))[0]
    rows, width, both_narrow, out_narrow = said.rows, said.width, said.both_narrow, said.out_narrow
    both, halves = carray(_floats(said.both), (rows, 2 * width)), carray(_halves(said.both), (rows, 2 * width))
    out, out_halves = carray(_floats(said.out), (rows, width)), carray(_halves(said.out), (rows, width))
    for row in range(rows):
        for c in range(width):
            gate = _wide(halves[row, c]) if both_narrow else both[row, c]
            given = _wide(halves[row, width + c]) if both_narrow else both[row, width + c]
            hidden = gate / (_float(1.0) + _exp(-gate)) * given
            if out_narrow:
                out_halves[row, c] = _narrow(hidden)
            else:
                out[row, c] = hidden


@_kernel(Remember)
def remember(call: Any) -> None:
    """Turns the queries, x scale, and the keys of one new position of each row, and writes keys and values into memory.

    What each row had in `together` stands in `wide` afterwards, turned and scaled.
    """
    said = carray(call, (1,))[0]
    rows, asking, shared, width, slot, narrow = said.rows, said.heads, said.shared, said.width, said.slot, said.narrow
    across, turned, apart = (asking + 2 * shared) * width, said.angles != 0, said.angles_differ
    given, halves = carray(_floats(said.together), (rows, across)), carray(_halves(said.together), (rows, across))
    flat, heads = carray(_floats(said.wide), (rows, across)), carray(_floats(said.wide), (rows, across // width, width))
    memory = carray(_floats(said.memory), (rows, 2 * shared, said.slots, width))
    angles, scale = carray(_floats(said.angles), (rows, width)), said.scale
    for row in range(rows):
        for c in range(across):
            flat[row, c] = _wide(halves[row, c]) if narrow else given[row, c]
        if turned:
            for head in range(asking + shared):
                for c in range(0, width, 2):
                    left, right = heads[row, head, c], heads[row, head, c + 1]
                    cosine, sine = angles[row * apart, c], angles[row * apart, c + 1]
                    heads[row, head, c] = left * cosine - right * sine
                    heads[row, head, c + 1] = left * sine + right * cosine
        for c in range(asking * width):
            flat[row, c] *= scale
        for head in range(2 * shared):
            for c in range(width):
                memory[row, head, slot, c] = heads[row, asking + head, c]


@_kernel(Mix)
def mix(call: Any) -> None:
    """softmax(query . key) . value of one position of each row, head by head, which the threads share."""
    said = carray(call, (1,))[0]
    rows, asking, shared, width, filled = said.rows, said.heads, said.shared, said.width, said.filled
    me, threads = _int(_thread()), _int(_threads())
    heads = carray(_floats(said.wide), (rows, asking + 2 * shared, width))
    room = carray(_floats(said.room), (threads, filled + width))[me]
    memory = carray(_floats(said.memory), (rows, 2 * shared, said.slots, width))
    mask, all_seen, apart = carray(_bytes(said.mask), (rows, filled)), said.mask == 0, said.mask_differs
    out, halves = carray(_floats(said.out), (rows, asking, width)), carray(_halves(said.out), (rows, asking, width))
    scores, sums, narrow = room[:filled], room[filled:], said.narrow
    for one in range(rows * asking * me // threads, rows * asking * (me + 1) // threads):
        row, head = one // asking, one % asking
        query, near = heads[row, head], head // (asking // shared)
        top = _float(-3.0e38)
        for slot in range(filled):
            score, key = _float(0.0), memory[row, near, slot]
            for c in range(width):
                score += query[c] * key[c]
            scores[slot] = score
            if all_seen or mask[row * apart, slot]:
                top = max(top, score)
        for c in range(width):
            sums[c] = _float(0.0)
        total = _float(0.0)
        for slot in range(filled):
            if all_seen or mask[row * apart, slot]:
                weight = _exp(scores[slot] - top) + scores[slot] * _float(0.0)  # which NaN and infinity make NaN
                total += weight
                value = memory[row, shared + near, slot]
                for c in range(width):
                    sums[c] += weight * value[c]
        if total == _float(0.0):  # padding that may look nowhere: zeros, as PyTorch gives
            total = _float(1.0)
        for c in range(width):
            if narrow:
                halves[row, head, c] = _narrow(sums[c] / total)
            else:
                out[row, head, c] = sums[c] / total


def object_code(machine: llvm.TargetMachine) -> bytes:
    """All kernels as one file of machine code, each to be called by its name."""
    whole = llvm.parse_assembly("")
    for name, kernel in KERNELS.items():
        module = llvm.parse_assembly(kernel.inspect_llvm(kernel.signatures[0]))
        inner = next(one.name for one in module.functions if not one.is_declaration and not one.name.startswith("NRT"))
        whole.link_in(module)
        # numba's own way of calling: where the result goes, where an error goes, and what is given
        whole.link_in(
            llvm.parse_assembly(f"""
            declare i32 @"{inner}"(ptr, ptr, ptr)
            define void @{name}(ptr %args) {{
              %result = alloca ptr
              %error = alloca ptr
              %done = call i32 @"{inner}"(ptr %result, ptr %error, ptr %args)
              ret void
            }}""")
        )
    for one in [*whole.functions, *whole.global_variables]:
        if not one.is_declaration and one.name not in KERNELS:
            one.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(whole, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    _check_stands_alone(whole)
    return machine.emit_object(whole)


def _check_stands_alone(whole: llvm.ModuleRef) -> None:
    """Raises RuntimeError where the code calls what numba alone has: a later process, which does without numba, would
    call nothing there is."""
    declared = [one.name for one in [*whole.functions, *whole.global_variables] if one.is_declaration]
    strange = [name for name in declared if name not in OUTSIDE and not name.startswith("llvm.")]
    if strange:
        raise RuntimeError(
            f"they call {', '.join(strange)}, so numba was told not to optimize: take NUMBA_OPT, NUMBA_DEBUGINFO and "
            "the like out of the environment"
        )
