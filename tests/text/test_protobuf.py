"""The wire format of protocol buffers."""

import random

import pytest

from pellucid.text.protobuf import InvalidMessageError, varint, varints


def encoded(number: int) -> bytes:
    """A varint: groups of seven bits, the lowest first, each but the last with its highest bit set."""
    groups = [number >> start & 0x7F for start in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def test_packed_varints_are_read_as_one_by_one() -> None:
    draw = random.Random(0)
    numbers = [0, 127, 128, 2**32 - 1, 2**63, 2**64 - 1, *(draw.getrandbits(draw.randint(1, 64)) for _ in range(1000))]
    data, start, found = b"".join(map(encoded, numbers)), 0, []
    while start < len(data):
        number, start = varint(data, start, len(data))
        found.append(number)
    assert varints(data).tolist() == found == numbers


def test_no_bytes_are_no_varints() -> None:
    assert varints(b"").tolist() == []


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\xff" * 10 + b"\x01"], ids=["alone", "last", "too long"])
def test_varint_without_an_end_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        varints(data)
