"""Argument records of the kernels: `kernel_calls` fills them in and `kernels` reads them, by the same names.

Addresses are integers too; 0 stands for none. A kernel trusts them: the caller guarantees that the memory is contiguous
and as large as the sizes say, and that it lives as long as the call. `__slots__` refuses a field that does not exist.
"""

from ctypes import Structure, c_float, c_int64

FLOAT32, BFLOAT16, INT8 = 0, 1, 2
"""Codes of the dtypes of weights."""

GROUP = 32
"""Consecutive weights of a row that share a scale in quantized weights, as in GGUF's blocks."""

ROWS, LANES = 6, 16
"""Rows of a matrix that are multiplied at once; columns of the other one are padded to a multiple of `LANES`."""


def _int64_fields(names: str) -> list[tuple[str, type]]:
    return [(name, c_int64) for name in names.split()]


class ProductTable(Structure):
    """One weight of a product, and where its results are placed within a row.

    numbers, scale, bias: addresses.  first: index of its first result.  rows: rows of the weight, each of one result.
    head: width of a head, whose rows c and c + head/2 are to be adjacent; 0 for none.
    """

    __slots__ = ()
    _fields_ = _int64_fields("numbers scale bias first rows head")


class Product(Structure):
    """Few rows of x times several weights of one dtype and width, with concatenated results.

    kind: dtype of the weights.  rows: of x.  across: results per row of x.  x, out, tables: addresses.
    parts: number of weights.
    """

    __slots__ = ()
    _fields_ = _int64_fields("kind rows width across x out tables parts")


class LowBitProduct(Structure):
    """Some rows of x times a weight of 4 or 6 bits.

    count: rows of x.  width: of each, a multiple of `GROUP`.  rows: of the weight, a multiple of `LANES`.
    x, out: addresses of [count, width] and [count, rows].
    codes, scales, factors: addresses, as in `pellucid.blocks.low_bit_weights.Grouped`.
    room: address of [threads, room_each], scratch memory: see `scratch_size`.
    """

    __slots__ = ()
    _fields_ = _int64_fields("bits count width rows x out codes scales factors room room_each")

    @staticmethod
    def scratch_size(count: int, width: int) -> int:
        """Floats of scratch memory per thread: each row with its groups' sums and its unit, and a block of results."""
        return count * (width + width // GROUP + 1) + 8 * LANES


class Dequantise(Structure):
    """Dequantisation of a 4-bit weight.

    width: of each row, a multiple of `GROUP`.  rows: a multiple of `LANES`.
    of: number of elements from the first row of factors to the second.
    codes, scales, factors: addresses, as in `pellucid.blocks.low_bit_weights.Grouped`.
    out: address of [rows, width], bfloat16 if `narrow`, else float32.
    """

    __slots__ = ()
    _fields_ = _int64_fields("width rows of narrow codes scales factors out")


class Norm(Structure):
    """x, gain, out: addresses of [rows, width], [width] and [rows, width].  floor: added to each sum of squares."""

    __slots__ = ()
    _fields_ = [*_int64_fields("rows width x gain out"), ("floor", c_float)]


class AddNorm(Structure):
    """x, y, gain, bias, out: addresses of [rows, width] twice, [width] twice and [rows, width], all bfloat16 if
    `narrow`, else float32.  room: address of [threads, width] in float32.  eps: added to each variance.
    """

    __slots__ = ()
    _fields_ = [*_int64_fields("rows width narrow x y gain bias out room"), ("eps", c_float)]


class GatedActivation(Structure):
    """both, out: addresses of [rows, 2*width], gate and up concatenated, bfloat16 if `narrow`, and of [rows, width]."""

    __slots__ = ()
    _fields_ = _int64_fields("rows width both narrow out")


class StoreKeyValue(Structure):
    """One new position of each row, to be stored in the cache.

    heads: number of query heads.  shared: of key heads.  width: of a head.  slots: of the cache.  slot: to write to.
    together: address of the query, key and value of each row, bfloat16 if `narrow`.
    wide: address of memory for them in float32.  memory: address of [rows, 2*shared, slots, width].
    angles: address of cosine and sine of each pair; 0 for no rotation.  angles_differ: whether each row has its own.
    scale: factor of the queries.
    """

    __slots__ = ()
    _fields_ = [
        *_int64_fields("rows heads shared width slots slot together narrow wide memory angles angles_differ"),
        ("scale", c_float),
    ]


class AttendOne(Structure):
    """Attention from one position of each row to its cache.

    heads: number of query heads.  shared: of key heads.  width: of a head.  slots: of the cache.  filled: those in use.
    wide: address of query, key and value of each row, the query rotated and scaled.
    memory: address of [rows, 2*shared, slots, width].  out: address of [rows, heads, width].
    room: address of [threads, filled + width], the scores and the sums of each thread.
    mask: address of one byte per slot, 0 where hidden; address 0 hides none.  mask_differs: whether one per row.
    """

    __slots__ = ()
    _fields_ = _int64_fields("rows heads shared width slots filled wide memory room mask mask_differs out")


class AttendMany(Structure):
    """Attention of many positions, where all queries of a row see the same keys, or each those up to its own position.

    heads: number of query heads.  shared: of key and value heads.  seq: of queries.  source: of keys.
    before: if causal, the number of keys before the first query's own; else -1.
    width: of a head.  narrow: whether all is bfloat16, not float32.
    query, key, value: addresses; `_row`, `_head`, `_step`: strides of rows, heads and positions, in elements.
    mask: address of one byte for each of [rows, source], 0 where hidden; address 0 hides none.
    mask_differs: whether each row has its own.  out: address of [rows, seq, heads*width].
    room: address of [threads, room_each], scratch memory: see `scratch_size`.  scale: factor of the scores.
    """

    __slots__ = ()
    _fields_ = [
        *_int64_fields("rows heads shared seq source before width narrow query query_row query_head query_step"),
        *_int64_fields("key key_row key_head key_step value value_row value_head value_step"),
        *_int64_fields("mask mask_differs out room room_each"),
        ("scale", c_float),
    ]

    @staticmethod
    def scratch_size(source: int, width: int) -> int:
        """Floats of scratch memory per thread: keys, values, and `ROWS` queries with their weights, sums and totals."""
        count, wide = (-(-size // LANES) * LANES for size in (source, width))
        return count * (width + wide + ROWS) + ROWS * (width + wide + 1)
