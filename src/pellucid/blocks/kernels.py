"""The arithmetic of one position, compiled for this processor by numba: what `pellucid.blocks.steps` calls.

What PyTorch has are steps; between them lies nearly as long as they take where a step is a few thousand numbers. Here a
norm, a gate, or the mixing of one position is one call each. What a kernel is told stands in `calls`. Several threads
may work on `product` and `mix`, each takes its share of rows or heads.
"""

import math
from typing import Any

from numba import carray

from pellucid.blocks.calls import BFLOAT16, FLOAT32, Gated, Mix, Norm, Product, Remember
from pellucid.blocks.numba_language import (
    bytes_at,
    exponential,
    float32,
    floats_at,
    halves_at,
    int64,
    kernel,
    tables_at,
    thread_count,
    thread_number,
    widened,
)


@kernel(Product)
def product(call: Any) -> None:
    """x . table^T (x scale) (+ bias) of each table, whose rows the threads share."""
    said = carray(call, (1,))[0]
    kind, count, width = said.kind, said.rows, said.width
    x, out = carray(floats_at(said.x), (count, width)), carray(floats_at(said.out), (count, said.across))
    tables = carray(tables_at(said.tables), (said.parts,))
    me, threads = int64(thread_number()), int64(thread_count())
    for part in range(said.parts):
        table = tables[part]
        first, rows, head, biased = table.first, table.rows, table.head, table.bias != 0
        real, half = carray(floats_at(table.numbers), (rows, width)), carray(halves_at(table.numbers), (rows, width))
        whole = carray(bytes_at(table.numbers), (rows, width))
        scale, bias = carray(floats_at(table.scale), (rows,)), carray(floats_at(table.bias), (rows,))
        for row in range(rows * me // threads, rows * (me + 1) // threads):
            place = first + row
            if head:
                column = row % head
                place = first + row - column + column % (head // 2) * 2 + column // (head // 2)
            for i in range(count):
                total = float32(0.0)
                if kind == FLOAT32:
                    for c in range(width):
                        total += real[row, c] * x[i, c]
                elif kind == BFLOAT16:
                    for c in range(width):
                        total += widened(half[row, c]) * x[i, c]
                else:
                    for c in range(width):
                        total += float32(whole[row, c]) * x[i, c]
                    total *= scale[row]
                out[i, place] = total + bias[row] if biased else total


@kernel(Norm)
def norm(call: Any) -> None:
    """x / sqrt(sum(x^2) + floor) x gain, row by row."""
    said = carray(call, (1,))[0]
    rows, width, floor = said.rows, said.width, said.floor
    x, gain = carray(floats_at(said.x), (rows, width)), carray(floats_at(said.gain), (width,))
    out = carray(floats_at(said.out), (rows, width))
    for row in range(rows):
        total = float32(0.0)
        for c in range(width):
            total += x[row, c] * x[row, c]
        share = float32(1.0) / math.sqrt(total + floor)
        for c in range(width):
            out[row, c] = x[row, c] * share * gain[c]


@kernel(Gated)
def gated(call: Any) -> None:
    """silu(gate) x input."""
    said = carray(call, (1,))[0]
    rows, width, narrow = said.rows, said.width, said.narrow
    both, halves = carray(floats_at(said.both), (rows, 2 * width)), carray(halves_at(said.both), (rows, 2 * width))
    out = carray(floats_at(said.out), (rows, width))
    for row in range(rows):
        for c in range(width):
            gate = widened(halves[row, c]) if narrow else both[row, c]
            given = widened(halves[row, width + c]) if narrow else both[row, width + c]
            out[row, c] = gate / (float32(1.0) + exponential(-gate)) * given


@kernel(Remember)
def remember(call: Any) -> None:
    """Turns the queries, x scale, and the keys of one new position of each row, and writes keys and values into memory.

    What each row had in `together` stands in `wide` afterwards, turned and scaled.
    """
    said = carray(call, (1,))[0]
    rows, asking, shared, width, slot, narrow = said.rows, said.heads, said.shared, said.width, said.slot, said.narrow
    across, turned, apart = (asking + 2 * shared) * width, said.angles != 0, said.angles_differ
    given, halves = carray(floats_at(said.together), (rows, across)), carray(halves_at(said.together), (rows, across))
    flat = carray(floats_at(said.wide), (rows, across))
    heads = carray(floats_at(said.wide), (rows, across // width, width))
    memory = carray(floats_at(said.memory), (rows, 2 * shared, said.slots, width))
    angles, scale = carray(floats_at(said.angles), (rows, width)), said.scale
    for row in range(rows):
        for c in range(across):
            flat[row, c] = widened(halves[row, c]) if narrow else given[row, c]
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


@kernel(Mix)
def mix(call: Any) -> None:
    """softmax(query . key) . value of one position of each row, head by head, which the threads share."""
    said = carray(call, (1,))[0]
    rows, asking, shared, width, filled = said.rows, said.heads, said.shared, said.width, said.filled
    me, threads = int64(thread_number()), int64(thread_count())
    heads = carray(floats_at(said.wide), (rows, asking + 2 * shared, width))
    room = carray(floats_at(said.room), (threads, filled + width))[me]
    memory = carray(floats_at(said.memory), (rows, 2 * shared, said.slots, width))
    mask, all_seen, apart = carray(bytes_at(said.mask), (rows, filled)), said.mask == 0, said.mask_differs
    out = carray(floats_at(said.out), (rows, asking, width))
    scores, sums = room[:filled], room[filled:]
    for one in range(rows * asking * me // threads, rows * asking * (me + 1) // threads):
        row, head = one // asking, one % asking
        query, near = heads[row, head], head // (asking // shared)
        top = float32(-3.0e38)
        for slot in range(filled):
            score, key = float32(0.0), memory[row, near, slot]
            for c in range(width):
                score += query[c] * key[c]
            scores[slot] = score
            if all_seen or mask[row * apart, slot]:
                top = max(top, score)
        for c in range(width):
            sums[c] = float32(0.0)
        total = float32(0.0)
        for slot in range(filled):
            if all_seen or mask[row * apart, slot]:
                # NaN and infinity x 0 make NaN
                weight = exponential(scores[slot] - top) + scores[slot] * float32(0.0)
                total += weight
                value = memory[row, shared + near, slot]
                for c in range(width):
                    sums[c] += weight * value[c]
        if total == float32(0.0):  # padding that may look nowhere: zeros, as PyTorch gives
            total = float32(1.0)
        for c in range(width):
            out[row, head, c] = sums[c] / total
