"""What each kernel is told: the fields that `steps` fills in and `kernels` reads, by the same names.

Addresses (0: there is none) are whole numbers too. A kernel trusts them: who fills them in answers for it that there
is as much memory as they say, that it lies without gaps, and that it lives as long as the call. `__slots__` refuses a
field that there is not.
"""

from ctypes import Structure, c_float, c_int64

FLOAT32, BFLOAT16, INT8 = 0, 1, 2
"""What a table's numbers are."""

GROUP = 32
"""Neighbours in a row of a table of few bits that share a scale, as in GGUF's blocks."""

ROWS, LANES = 6, 16
"""Of a matrix that is multiplied at once; columns of the other one are made a multiple of `LANES`."""


def _int64_fields(names: str) -> list[tuple[str, type]]:
    return [(name, c_int64) for name in names.split()]


class ProductTable(Structure):
    """One table of a product, and where its results stand among those of a row.

    numbers, scale, bias: addresses.  first: of its results.  rows: of the table, each of which gives one result.
    head: width of a head, whose rows c and c + head/2 are to be neighbours; 0 for none.
    """

    __slots__ = ()
    _fields_ = _int64_fields("numbers scale bias first rows head")


class Product(Structure):
    """Few rows of x by several tables of one kind and width, whose results stand side by side.

    kind: of their numbers.  rows: of x.  across: results of a row of x.  x, out, tables: addresses.
    parts: how many tables.
    """

    __slots__ = ()
    _fields_ = _int64_fields("kind rows width across x out tables parts")


class LowBitProduct(Structure):
    """Some rows of x by a table of 4 or 6 bits.

    count: rows of x.  width: of each, a multiple of `GROUP`.  rows: of the table, a multiple of `LANES`.
    x, out: addresses of [count, width] and [count, rows].
    codes, scales, factors: of a table as `pellucid.blocks.grouped.Grouped` says.
    room: of [threads, room_each], for what a thread has at hand: see `scratch_size`.
    """

    __slots__ = ()
    _fields_ = _int64_fields("bits count width rows x out codes scales factors room room_each")

    @staticmethod
    def scratch_size(count: int, width: int) -> int:
        """Numbers of a thread's room: each row with its groups' sums and its unit, and what is multiplied at once."""
        return count * (width + width // GROUP + 1) + 8 * LANES


class Dequantise(Structure):
    """A table of 4 bits, and the real numbers that it stands for.

    width: of each row, a multiple of `GROUP`.  rows: a multiple of `LANES`.  of: rows from one kind of factor to the
    other.  codes, scales, factors: addresses of a table as `pellucid.blocks.grouped.Grouped` says.
    out: of [rows, width], in bfloat16 where `narrow`, and else in float32.
    """

    __slots__ = ()
    _fields_ = _int64_fields("width rows of narrow codes scales factors out")


class Norm(Structure):
    """x, gain, out: addresses of [rows, width], [width] and [rows, width].  floor: added to each sum of squares."""

    __slots__ = ()
    _fields_ = [*_int64_fields("rows width x gain out"), ("floor", c_float)]


class AddNorm(Structure):
    """x, y, gain, bias, out: addresses of [rows, width] twice, [width] twice and [rows, width], all of them bfloat16
    where `narrow`, and else float32.  room: of [threads, width] in float32.  eps: added to each variance.
    """

    __slots__ = ()
    _fields_ = [*_int64_fields("rows width narrow x y gain bias out room"), ("eps", c_float)]


class GatedActivation(Structure):
    """both, out: addresses of [rows, 2*width], gate and input side by side, in bfloat16 where `narrow`, and of [rows,
    width]."""

    __slots__ = ()
    _fields_ = _int64_fields("rows width both narrow out")


class StoreKeyValue(Structure):
    """One new position of each row on its way into the memory.

    heads: of query.  shared: of key.  width: of a head.  slots: of the memory.  slot: the one to be written.
    together: address of the query, key and value of each row, in bfloat16 where `narrow`.
    wide: of room for them in float32.  memory: of [rows, 2*shared, slots, width].
    angles: of cosine and sine of each pair; 0 turns nothing.  angles_differ: whether each row has its own.
    scale: of queries.
    """

    __slots__ = ()
    _fields_ = [
        *_int64_fields("rows heads shared width slots slot together narrow wide memory angles angles_differ"),
        ("scale", c_float),
    ]


class AttendOne(Structure):
    """One position of each row, which looks at what is remembered.

    heads: of query.  shared: of key.  width: of a head.  slots: of the memory.  filled: those of them to be seen.
    wide: address of query, key and value of each row, the query turned and scaled.  memory: of [rows, 2*shared, slots,
    width].  room: of [threads, filled + width], the scores and the sums of each thread.
    mask: of one byte for each slot, 0 where it is hidden; 0 hides none.  mask_differs: whether each row has its own.
    out: of [rows, heads, width].
    """

    __slots__ = ()
    _fields_ = _int64_fields("rows heads shared width slots filled wide memory room mask mask_differs out")


class AttendMany(Structure):
    """Many positions of each row, which look at the same ones, or each at those up to its own.

    heads: of query.  shared: of key and value.  seq: positions that ask.  source: positions that are looked at.
    before: how many of these stand before the first that asks, where none looks at what stands behind it; -1 else.
    width: of a head.  narrow: whether all is bfloat16, and not float32.
    query, key, value: addresses; `_row`, `_head`, `_step`: how many numbers on the next row, head, position begins.
    mask: of one byte for each of [rows, source], 0 where it is hidden; 0 hides none.  mask_differs: whether each row
    has its own.  out: of [rows, seq, heads*width].
    room: of [threads, room_each], for what a thread has at hand: see `scratch_size`.  scale: of scores.
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
        """Numbers of a thread's room: keys, values, and of `ROWS` queries themselves, weights, sums and totals."""
        count, wide = (-(-size // LANES) * LANES for size in (source, width))
        return count * (width + wide + ROWS) + ROWS * (width + wide + 1)
