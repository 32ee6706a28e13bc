"""The arithmetic of one position, compiled for this processor by numba: what `pellucid.blocks.compiled` calls.

What PyTorch has are steps; between them lies nearly as long as they take where a step is a few thousand numbers. Here a
norm, a gate, or the mixing of one position is one call each. All arithmetic is float32.

A kernel is told whole numbers, addresses among them: who calls it answers for them. Several threads may work on
`product` and `mix`, each takes its share.
"""

import math
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

FLOAT32, BFLOAT16, INT8 = 0, 1, 2
"""What a table's numbers are."""

PART = 6
"""Numbers that tell of one table: its address, those of its scale and bias (0: none), the first of its results, its
rows, and the width of a head whose rows c and c + width/2 are to be neighbours (0: none)."""

KERNELS: dict[str, Any] = {}
"""Each by its name: void (int64 *)."""

_FREE = {"reassoc", "contract", "nsz", "arcp"}
"""Sums may be formed in any order, as every library forms them; NaN stays NaN."""

_float, _int = types.float32, types.int64

_thread = types.ExternalFunction("omp_get_thread_num", types.int32())
_threads = types.ExternalFunction("omp_get_num_threads", types.int32())


def _kernel(function: Callable[[Any], None]) -> Callable[[Any], None]:
    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    KERNELS[function.__name__] = njit(types.void(types.CPointer(_int)), fastmath=_FREE, **options)(function)
    return function


def _instruction(name: str, result: Any, given: Any, kind: ir.Type) -> Any:
    """What numba has no word for: an instruction of LLVM that takes a number for another, bit by bit."""

    def typed(context: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, numbers: Any) -> Any:
            return getattr(builder, name)(numbers[0], kind)

        return result(given), generate

    return intrinsic(typed)


_floats = _instruction("inttoptr", types.CPointer(types.float32), _int, ir.FloatType().as_pointer())
_halves = _instruction("inttoptr", types.CPointer(types.uint16), _int, ir.IntType(16).as_pointer())
_bytes = _instruction("inttoptr", types.CPointer(types.int8), _int, ir.IntType(8).as_pointer())
_of_bits = _instruction("bitcast", types.float32, types.int32, ir.FloatType())
_bits = _instruction("bitcast", types.int32, types.float32, ir.IntType(32))


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
    """e^x to the last figures of float32, 2^-126 at least: 2^whole in the exponent, 2^rest as a polynomial."""
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


@_kernel
def product(args: Any) -> None:
    """x . table^T (x scale) (+ bias) of few rows of x and several tables, whose results stand side by side.

    args: kind of number, rows of x, width, results of a row, addresses of x and of the results, how many tables, and
    `PART` numbers of each.
    """
    said = carray(args, (7,))
    kind, many, width, across = said[0], said[1], said[2], said[3]
    x, out = carray(_floats(said[4]), (many, width)), carray(_floats(said[5]), (many, across))
    parts = carray(args, (7 + said[6] * PART,))
    me, threads = _int(_thread()), _int(_threads())
    for part in range(said[6]):
        at = 7 + part * PART
        table, scale, bias = parts[at], parts[at + 1], parts[at + 2]
        first, rows, head = parts[at + 3], parts[at + 4], parts[at + 5]
        real, half = carray(_floats(table), (rows, width)), carray(_halves(table), (rows, width))
        whole = carray(_bytes(table), (rows, width))
        scales, biases = carray(_floats(scale), (rows,)), carray(_floats(bias), (rows,))
        for row in range(rows * me // threads, rows * (me + 1) // threads):
            place = first + row
            if head:
                column = row % head
                place = first + row - column + column % (head // 2) * 2 + column // (head // 2)
            for i in range(many):
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
                    total *= scales[row]
                out[i, place] = total + biases[row] if bias else total


@_kernel
def norm(args: Any) -> None:
    """x / sqrt(sum(x^2) + floor) x gain, row by row.

    args: rows, width, addresses of x, gain and the result, and the bits of the floor.
    """
    said = carray(args, (6,))
    rows, width, floor = said[0], said[1], _of_bits(np.int32(said[5]))
    x, gain = carray(_floats(said[2]), (rows, width)), carray(_floats(said[3]), (width,))
    out = carray(_floats(said[4]), (rows, width))
    for row in range(rows):
        total = _float(0.0)
        for c in range(width):
            total += x[row, c] * x[row, c]
        share = _float(1.0) / math.sqrt(total + floor)
        for c in range(width):
            out[row, c] = x[row, c] * share * gain[c]


@_kernel
def gated(args: Any) -> None:
    """silu(gate) x input, where both stand side by side: [rows, 2*width]  ->  [rows, width]

    args: rows, width, addresses of both and of the result, and whether each is bfloat16.
    """
    said = carray(args, (6,))
    rows, width = said[0], said[1]
    both, both_narrow = carray(_floats(said[2]), (rows, 2 * width)), carray(_halves(said[2]), (rows, 2 * width))
    out, out_narrow = carray(_floats(said[3]), (rows, width)), carray(_halves(said[3]), (rows, width))
    for row in range(rows):
        for c in range(width):
            gate = _wide(both_narrow[row, c]) if said[4] else both[row, c]
            given = _wide(both_narrow[row, width + c]) if said[4] else both[row, width + c]
            hidden = gate / (_float(1.0) + _exp(-gate)) * given
            if said[5]:
                out_narrow[row, c] = _narrow(hidden)
            else:
                out[row, c] = hidden


@_kernel
def remember(args: Any) -> None:
    """Turns the queries, x scale, and the keys of one new position of each row, and writes keys and values into memory.

    args: rows, heads of query, heads of key, width of a head, slots of the memory, the slot to be written; addresses
    of [query, key, value] of each row, of room for them in float32, and of the memory [rows, 2*heads of key, slots,
    width]; whether the first is bfloat16; the address of the angles (cosine and sine of each pair; 0: no rotation), and
    whether each row has its own; the bits of the scale.
    """
    said = carray(args, (13,))
    scale = _of_bits(np.int32(said[12]))
    rows, asking, shared, width, slots, slot = said[0], said[1], said[2], said[3], said[4], said[5]
    across = (asking + 2 * shared) * width
    given, narrow = carray(_floats(said[6]), (rows, across)), carray(_halves(said[6]), (rows, across))
    flat, heads = carray(_floats(said[7]), (rows, across)), carray(_floats(said[7]), (rows, across // width, width))
    memory = carray(_floats(said[8]), (rows, 2 * shared, slots, width))
    angles = carray(_floats(said[10]), (rows, width))
    for row in range(rows):
        for c in range(across):
            flat[row, c] = _wide(narrow[row, c]) if said[9] else given[row, c]
        if said[10]:
            for head in range(asking + shared):
                for c in range(0, width, 2):
                    left, right = heads[row, head, c], heads[row, head, c + 1]
                    cosine, sine = angles[row * said[11], c], angles[row * said[11], c + 1]
                    heads[row, head, c] = left * cosine - right * sine
                    heads[row, head, c + 1] = left * sine + right * cosine
        for c in range(asking * width):
            flat[row, c] *= scale
        for head in range(2 * shared):
            for c in range(width):
                memory[row, head, slot, c] = heads[row, asking + head, c]


@_kernel
def mix(args: Any) -> None:
    """softmax(query . key) . value of one position of each row, head by head.

    args: rows, heads of query, heads of key, width of a head, slots of the memory, how many are filled; addresses of
    [query, key, value] of each row, of room for each thread (as many scores as slots are filled, and a head), and of
    the memory; whether the result is to be bfloat16; the address of the mask (one byte a slot; 0: all are seen),
    whether each row has its own, and the address of the result [rows, heads of query, width].
    """
    said = carray(args, (13,))
    rows, asking, shared, width, slots, filled = said[0], said[1], said[2], said[3], said[4], said[5]
    me, threads = _int(_thread()), _int(_threads())
    heads = carray(_floats(said[6]), (rows, asking + 2 * shared, width))
    room = carray(_floats(said[7]), (threads, filled + width))[me]
    memory = carray(_floats(said[8]), (rows, 2 * shared, slots, width))
    mask = carray(_bytes(said[10]), (rows, filled))
    out, narrow = carray(_floats(said[12]), (rows, asking, width)), carray(_halves(said[12]), (rows, asking, width))
    scores, sums = room[:filled], room[filled:]
    for one in range(rows * asking * me // threads, rows * asking * (me + 1) // threads):
        row, head = one // asking, one % asking
        query, near = heads[row, head], head // (asking // shared)
        top = _float(-3.0e38)
        for slot in range(filled):
            score, key = _float(0.0), memory[row, near, slot]
            for c in range(width):
                score += query[c] * key[c]
            scores[slot] = score
            if not said[10] or mask[row * said[11], slot]:
                top = max(top, score)
        for c in range(width):
            sums[c] = _float(0.0)
        total = _float(0.0)
        for slot in range(filled):
            if not said[10] or mask[row * said[11], slot]:
                weight = _exp(scores[slot] - top) + scores[slot] * _float(0.0)  # which NaN and infinity make NaN
                total += weight
                value = memory[row, shared + near, slot]
                for c in range(width):
                    sums[c] += weight * value[c]
        for c in range(width):
            if said[9]:
                narrow[row, head, c] = _narrow(sums[c] / total)
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
    return machine.emit_object(whole)
