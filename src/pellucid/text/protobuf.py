"""The wire format of protocol buffers, read within limits: no size field of a file causes an allocation.

https://protobuf.dev/programming-guides/encoding: a message is a list of fields, each a key (number, kind) and a value.
"""

import struct
from collections.abc import Iterator

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int | bytes]
"""The number of a field, its kind, and its value; fixed-width numbers are raw bytes."""


class InvalidMessageError(ValueError):  # not a PellucidError: the caller adds the file's name
    """Bytes that are not a valid message; its text is the reason."""


def fields(data: bytes) -> Iterator[Field]:
    """The fields of a message, in the order of the file.

    Raises InvalidMessageError for a field that is truncated, longer than the remaining bytes, or of an obsolete kind.
    """
    start, stop = 0, len(data)
    while start < stop:
        key, start = varint(data, start, stop)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, start = varint(data, start, stop)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, start = varint(data, start, stop)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise InvalidMessageError(f"byte {start} begins a field of kind {kind}, which nothing writes")
        if number == 0 or length > stop - start:
            raise InvalidMessageError(f"field {number} at byte {start} says {length} bytes and {stop - start} are left")
        yield number, kind, data[start : start + length]
        start += length


def varint(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """The varint at `start`, in groups of seven bits, and the offset after it."""
    if start < stop and data[start] < 0x80:  # nearly all numbers in these files have one byte
        return data[start], start + 1
    value = 0
    for group, byte in enumerate(data[start : min(start + 10, stop)]):
        value |= (byte & 0x7F) << (7 * group)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, start + group + 1
    raise InvalidMessageError(f"the number at byte {start} has no end")


def varints(data: bytes) -> np.ndarray:
    """All varints of a packed field: UInt64[ndarray, "count"]"""
    groups = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(groups < 0x80)
    starts = np.concatenate(([0], ends + 1))
    if starts[-1] != len(groups):
        raise InvalidMessageError(f"the number at byte {starts[-1]} has no end")
    lengths, found = np.diff(starts), np.zeros(len(ends), np.uint64)
    if lengths.max(initial=0) > 10:
        raise InvalidMessageError("a number has more than 64 bits")
    for group in range(lengths.max(initial=0)):
        has_group = lengths > group
        bits = groups[starts[:-1][has_group] + group] & 0x7F
        found[has_group] |= bits.astype(np.uint64) << np.uint64(7 * group)
    return found


def signed(value: int) -> int:
    """A varint as the signed 32-bit number it represents; negative numbers are stored in 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def float32(raw: bytes) -> float:
    """Four bytes as a float32."""
    return float(struct.unpack("<f", raw)[0])
