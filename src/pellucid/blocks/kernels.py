"""Kernels for one position, compiled for this processor by numba; `pellucid.blocks.kernel_calls` calls them.

PyTorch's overhead per operation is nearly as long as an operation on a few thousand numbers. Here a norm, a gate, or
attention from one position is one call each. Arguments are described in `kernel_arguments`. `product` and `attend_one`
may run in several threads, each of which takes its share of rows or heads.
"""

import math
from typing import Any

from numba import carray

from pellucid.blocks.kernel_arguments import BFLOAT16, FLOAT32, AttendOne, GatedActivation, Norm, Product, StoreKeyValue
from pellucid.blocks.numba_language import (
    bytes_at,
    exponential,
    float32,
    floats_at,
    from_bfloat16,
    int64,
    kernel,
    tables_at,
    thread_count,
    thread_number,
    uint16s_at,
)


@kernel(Product)
def product(call: Any) -> None:
    """x . table^T (x scale) (+ bias) for each weight, whose rows are shared among threads."""
    arguments = carray(call, (1,))[0]
    kind, count, width = arguments.kind, arguments.rows, arguments.width
    x, out = carray(floats_at(arguments.x), (count, width)), carray(floats_at(arguments.out), (count, arguments.across))
    tables = carray(tables_at(arguments.tables), (arguments.parts,))
    thread, threads = int64(thread_number()), int64(thread_count())
    for part in range(arguments.parts):
        table = tables[part]
        first, rows, head, biased = table.first, table.rows, table.head, table.bias != 0
        real, half = carray(floats_at(table.numbers), (rows, width)), carray(uint16s_at(table.numbers), (rows, width))
        integers = carray(bytes_at(table.numbers), (rows, width))
        scale, bias = carray(floats_at(table.scale), (rows,)), carray(floats_at(table.bias), (rows,))
        for row in range(rows * thread // threads, rows * (thread + 1) // threads):
            result_index = first + row
            if head:
                column = row % head
                result_index = first + row - column + column % (head // 2) * 2 + column // (head // 2)
            for i in range(count):
                total = float32(0.0)
                if kind == FLOAT32:
                    for c in range(width):
                        total += real[row, c] * x[i, c]
                elif kind == BFLOAT16:
                    for c in range(width):
                        total += from_bfloat16(half[row, c]) * x[i, c]
                else:
                    for c in range(width):
                        total += float32(integers[row, c]) * x[i, c]
                    total *= scale[row]
                out[i, result_index] = total + bias[row] if biased else total


@kernel(Norm)
def norm(call: Any) -> None:
    """x / sqrt(sum(x^2) + floor) x gain, row by row."""
    arguments = carray(call, (1,))[0]
    rows, width, floor = arguments.rows, arguments.width, arguments.floor
    x, gain = carray(floats_at(arguments.x), (rows, width)), carray(floats_at(arguments.gain), (width,))
    out = carray(floats_at(arguments.out), (rows, width))
    for row in range(rows):
        total = float32(0.0)
        for c in range(width):
            total += x[row, c] * x[row, c]
        inverse_rms = float32(1.0) / math.sqrt(total + floor)
        for c in range(width):
            out[row, c] = x[row, c] * inverse_rms * gain[c]


@kernel(GatedActivation)
def gated_activation(call: Any) -> None:
    """silu(gate) x up."""
    arguments = carray(call, (1,))[0]
    rows, width, narrow = arguments.rows, arguments.width, arguments.narrow
    both = carray(floats_at(arguments.both), (rows, 2 * width))
    halves = carray(uint16s_at(arguments.both), (rows, 2 * width))
    out = carray(floats_at(arguments.out), (rows, width))
    for row in range(rows):
        for c in range(width):
            gate = from_bfloat16(halves[row, c]) if narrow else both[row, c]
            number = from_bfloat16(halves[row, width + c]) if narrow else both[row, width + c]
            out[row, c] = gate / (float32(1.0) + exponential(-gate)) * number


@kernel(StoreKeyValue)
def store_key_value(call: Any) -> None:
    """Rotates queries and keys of one new position per row, scales the queries, and caches keys and values.

    Rotated and scaled, the values of `together` are in `wide` afterwards.
    """
    arguments = carray(call, (1,))[0]
    rows, slot, narrow = arguments.rows, arguments.slot, arguments.narrow
    query_heads, key_value_heads, width = arguments.heads, arguments.shared, arguments.width
    across, turned, angle_step = (
        (query_heads + 2 * key_value_heads) * width,
        arguments.angles != 0,
        arguments.angles_differ,
    )
    projected = carray(floats_at(arguments.together), (rows, across))
    halves = carray(uint16s_at(arguments.together), (rows, across))
    flat = carray(floats_at(arguments.wide), (rows, across))
    heads = carray(floats_at(arguments.wide), (rows, across // width, width))
    memory = carray(floats_at(arguments.memory), (rows, 2 * key_value_heads, arguments.slots, width))
    angles, scale = carray(floats_at(arguments.angles), (rows, width)), arguments.scale
    for row in range(rows):
        for c in range(across):
            flat[row, c] = from_bfloat16(halves[row, c]) if narrow else projected[row, c]
        if turned:
            for head in range(query_heads + key_value_heads):
                for c in range(0, width, 2):
                    left, right = heads[row, head, c], heads[row, head, c + 1]
                    cosine, sine = angles[row * angle_step, c], angles[row * angle_step, c + 1]
                    heads[row, head, c] = left * cosine - right * sine
                    heads[row, head, c + 1] = left * sine + right * cosine
        for c in range(query_heads * width):
            flat[row, c] *= scale
        for head in range(2 * key_value_heads):
            for c in range(width):
                memory[row, head, slot, c] = heads[row, query_heads + head, c]


@kernel(AttendOne)
def attend_one(call: Any) -> None:
    """softmax(query . key) . value for one position per row, whose heads are shared among threads."""
    arguments = carray(call, (1,))[0]
    rows, filled = arguments.rows, arguments.filled
    query_heads, key_value_heads, width = arguments.heads, arguments.shared, arguments.width
    thread, threads = int64(thread_number()), int64(thread_count())
    heads = carray(floats_at(arguments.wide), (rows, query_heads + 2 * key_value_heads, width))
    scratch = carray(floats_at(arguments.room), (threads, filled + width))[thread]
    memory = carray(floats_at(arguments.memory), (rows, 2 * key_value_heads, arguments.slots, width))
    is_unmasked, mask_step = arguments.mask == 0, arguments.mask_differs
    mask = carray(bytes_at(arguments.mask), (rows, filled))
    out = carray(floats_at(arguments.out), (rows, query_heads, width))
    scores, sums = scratch[:filled], scratch[filled:]
    for one in range(rows * query_heads * thread // threads, rows * query_heads * (thread + 1) // threads):
        row, head = one // query_heads, one % query_heads
        query, key_head = heads[row, head], head // (query_heads // key_value_heads)
        top = float32(-3.0e38)
        for slot in range(filled):
            score, key = float32(0.0), memory[row, key_head, slot]
            for c in range(width):
                score += query[c] * key[c]
            scores[slot] = score
            if is_unmasked or mask[row * mask_step, slot]:
                top = max(top, score)
        for c in range(width):
            sums[c] = float32(0.0)
        total = float32(0.0)
        for slot in range(filled):
            if is_unmasked or mask[row * mask_step, slot]:
                # a NaN or infinite score makes the weight NaN
                weight = exponential(scores[slot] - top) + scores[slot] * float32(0.0)
                total += weight
                value = memory[row, key_value_heads + key_head, slot]
                for c in range(width):
                    sums[c] += weight * value[c]
        if total == float32(0.0):  # a row of padding that sees nothing: zeros, as in PyTorch
            total = float32(1.0)
        for c in range(width):
            out[row, head, c] = sums[c] / total
