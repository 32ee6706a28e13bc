"""Kernels for attention of many positions and for sums with norms, compiled for this processor.

The visible keys and values of a head are copied to float32; then a few queries at a time are multiplied by all of them,
so that working memory stays in the processor's cache. Sums and softmax are float32, whatever the inputs are.
"""

import math
from typing import Any

from numba import carray

from pellucid.blocks.kernel_arguments import LANES, ROWS, AddNorm, AttendMany
from pellucid.blocks.numba_language import (
    bytes_at,
    float32,
    floats_at,
    from_bfloat16,
    int64,
    kernel,
    kernel_helper,
    thread_count,
    thread_number,
    to_bfloat16,
    uint16s_at,
)
from pellucid.blocks.simd import exponentiate, fetch, multiply_tile

CACHE_LINE, PREFETCH_DISTANCE = 64, 12
"""Bytes of a cache line, and how many positions ahead to prefetch: consecutive positions of a head are a page apart,
which the processor does not predict. Addresses beyond the end are only prefetched, not read."""


@kernel_helper
def _padded(count: Any) -> Any:
    """The next multiple of `LANES`."""
    return (count + LANES - 1) // LANES * LANES


@kernel_helper
def _read(address: Any, narrow: Any, scale: Any, count: Any, out: Any) -> None:
    """Copies numbers x scale from `address` to `out`, in float32."""
    real, half = carray(floats_at(address), (count,)), carray(uint16s_at(address), (count,))
    wide = carray(floats_at(out), (count,))
    if narrow:
        for c in range(count):
            wide[c] = from_bfloat16(half[c]) * scale
    else:
        for c in range(count):
            wide[c] = real[c] * scale


@kernel_helper
def _read_strided(address: Any, narrow: Any, count: Any, out: Any, step: Any) -> None:
    """Copies numbers from `address` to `out`, in float32 and `step` elements apart."""
    real, half = carray(floats_at(address), (count,)), carray(uint16s_at(address), (count,))
    wide = carray(floats_at(out), (count * step,))
    if narrow:
        for c in range(count):
            wide[c * step] = from_bfloat16(half[c])
    else:
        for c in range(count):
            wide[c * step] = real[c]


@kernel_helper
def _write(address: Any, factor: Any, narrow: Any, count: Any, out: Any) -> None:
    """Writes numbers x share from `address` to `out`."""
    wide = carray(floats_at(address), (count,))
    real, half = carray(floats_at(out), (count,)), carray(uint16s_at(out), (count,))
    if narrow:
        for c in range(count):
            half[c] = to_bfloat16(wide[c] * factor)
    else:
        for c in range(count):
            real[c] = wide[c] * factor


@kernel_helper
def _fetch(address: Any, size: Any) -> None:
    for line in range(0, size, CACHE_LINE):
        fetch(address + line)


@kernel_helper
def _count_visible(mask: Any, is_unmasked: Any, row: Any, first: Any, end: Any) -> Any:
    """How many positions from `first` to `end` are visible."""
    if is_unmasked:
        return end - first
    count = int64(0)
    for j in range(first, end):
        count += int64(mask[row, j] != 0)
    return count


@kernel_helper
def _fill(address: Any, first: Any, end: Any, number: Any) -> None:
    numbers = carray(floats_at(address), (end,))
    for c in range(first, end):
        numbers[c] = number


@kernel(AttendMany)
def attend_many(call: Any) -> None:
    """softmax(query . key x scale) . value, with the heads shared among threads."""
    arguments = carray(call, (1,))[0]
    heads, source, width, narrow = arguments.heads, arguments.source, arguments.width, arguments.narrow
    size, wide, heads_of_one, one = int64(2 if narrow else 4), _padded(width), heads // arguments.shared, float32(1.0)
    is_unmasked, mask_step = arguments.mask == 0, arguments.mask_differs
    mask = carray(bytes_at(arguments.mask), (arguments.rows, source))
    thread, threads = int64(thread_number()), int64(thread_count())
    for unit in range(arguments.rows * heads * thread // threads, arguments.rows * heads * (thread + 1) // threads):
        row, head = unit // heads, unit % heads
        key = arguments.key + size * (row * arguments.key_row + head // heads_of_one * arguments.key_head)
        value = arguments.value + size * (row * arguments.value_row + head // heads_of_one * arguments.value_head)
        query = arguments.query + size * (row * arguments.query_row + head * arguments.query_head)
        out = arguments.out + size * (row * arguments.seq * heads + head) * width
        num_visible = _count_visible(mask, is_unmasked, row * mask_step, int64(0), source)
        count = _padded(num_visible)
        keys = arguments.room + 4 * thread * arguments.room_each  # [width, count]
        values = keys + 4 * width * count  # [seen, wide]
        queries = values + 4 * count * wide  # [ROWS, width]
        weights = queries + 4 * ROWS * width  # [ROWS, count]
        sums = weights + 4 * ROWS * count  # [ROWS, wide]
        totals = carray(floats_at(sums + 4 * ROWS * wide), (ROWS,))
        i, last = int64(0), int64(0)
        for j in range(source):
            if is_unmasked or mask[row * mask_step, j] != 0:
                _fetch(key + size * (j + PREFETCH_DISTANCE) * arguments.key_step, size * width)
                _fetch(value + size * (j + PREFETCH_DISTANCE) * arguments.value_step, size * width)
                _read_strided(key + size * j * arguments.key_step, narrow, width, keys + 4 * i, count)
                _read(value + size * j * arguments.value_step, narrow, one, width, values + 4 * i * wide)
                _fill(values + 4 * i * wide, width, wide, float32(0.0))
                i, last = i + 1, j
        for i in range(num_visible, count):  # padding repeats the last key, which does not change the maximum
            _read_strided(key + size * last * arguments.key_step, narrow, width, keys + 4 * i, count)
        num_counted, visible_so_far, end = int64(0), int64(0), num_visible
        for first in range(0, arguments.seq, ROWS):
            some = min(ROWS, arguments.seq - first)
            if arguments.before >= 0:
                end = visible_so_far + _count_visible(
                    mask, is_unmasked, row * mask_step, num_counted, arguments.before + first + some
                )
            for i in range(some):
                address = query + size * (first + i) * arguments.query_step
                _read(address, narrow, arguments.scale, width, queries + 4 * i * width)
            _fill(queries, some * width, ROWS * width, float32(0.0))
            multiply_tile(queries, width, keys, width, count, _padded(end), weights)
            for i in range(some):
                visible, scores = end, weights + 4 * i * count
                if arguments.before >= 0:
                    stop = arguments.before + first + i + 1
                    visible, num_counted = (
                        visible_so_far + _count_visible(mask, is_unmasked, row * mask_step, num_counted, stop),
                        stop,
                    )
                    visible_so_far = visible
                    _fill(scores, visible, _padded(visible), carray(floats_at(scores), (1,))[0])
                # a row of padding that sees nothing: zeros, as in PyTorch
                totals[i] = exponentiate(scores, visible, _padded(visible)) if visible else one
                _fill(scores, visible, end, float32(0.0))
            multiply_tile(weights, count, values, end, wide, wide, sums)
            for i in range(some):
                address = out + size * (first + i) * heads * width
                _write(sums + 4 * i * wide, one / totals[i], narrow, width, address)


@kernel(AddNorm)
def add_norm(call: Any) -> None:
    """Layer norm of x + y, row by row, with the rows shared among threads."""
    arguments = carray(call, (1,))[0]
    rows, width, narrow = arguments.rows, arguments.width, arguments.narrow
    thread, threads = int64(thread_number()), int64(thread_count())
    x, y = carray(floats_at(arguments.x), (rows, width)), carray(floats_at(arguments.y), (rows, width))
    gain, bias = carray(floats_at(arguments.gain), (width,)), carray(floats_at(arguments.bias), (width,))
    out, wide = (
        carray(floats_at(arguments.out), (rows, width)),
        carray(floats_at(arguments.room), (threads, width))[thread],
    )
    half_x, half_y = carray(uint16s_at(arguments.x), (rows, width)), carray(uint16s_at(arguments.y), (rows, width))
    half_gain, half_bias = carray(uint16s_at(arguments.gain), (width,)), carray(uint16s_at(arguments.bias), (width,))
    half_out = carray(uint16s_at(arguments.out), (rows, width))
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        total, squares = float32(0.0), float32(0.0)
        if narrow:
            for c in range(width):
                wide[c] = from_bfloat16(half_x[row, c]) + from_bfloat16(half_y[row, c])
        else:
            for c in range(width):
                wide[c] = x[row, c] + y[row, c]
        for c in range(width):
            total += wide[c]
        mean = total / float32(width)
        for c in range(width):
            squares += (wide[c] - mean) * (wide[c] - mean)
        inverse_deviation = float32(1.0) / math.sqrt(squares / float32(width) + arguments.eps)
        if narrow:
            for c in range(width):
                normed = (wide[c] - mean) * inverse_deviation
                half_out[row, c] = to_bfloat16(normed * from_bfloat16(half_gain[c]) + from_bfloat16(half_bias[c]))
        else:
            for c in range(width):
                out[row, c] = (wide[c] - mean) * inverse_deviation * gain[c] + bias[c]
