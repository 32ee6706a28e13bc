"""The messages of an ONNX file, which are protocol buffers: their fields by number.

The numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

import struct
from collections.abc import Iterator

from pellucid.text.protobuf import InvalidMessageError, fields, signed, varint

Message = dict[int, list[int | bytes]]


def parsed_message(data: bytes) -> Message:
    """The values of each field. Raises InvalidMessageError for bytes that are not a message."""
    found: Message = {}
    for number, _, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def bytes_fields(message: Message, number: int) -> Iterator[bytes]:
    """The values of a repeated field of bytes, text or messages."""
    for value in message.get(number, []):
        if not isinstance(value, bytes):
            raise InvalidMessageError(f"field {number} is a number, expected bytes")
        yield value


def last_field(message: Message, number: int) -> bytes:
    """The value of a non-repeated field, of which the last occurrence counts; empty where it is absent."""
    return next(iter(list(bytes_fields(message, number))[-1:]), b"")


def text_field(message: Message, number: int) -> str:
    """The text of a non-repeated field."""
    return last_field(message, number).decode()


def integers(message: Message, number: int) -> list[int]:
    """The integers of a field, single or packed."""
    found = []
    for value in message.get(number, []):
        if isinstance(value, int):
            found.append(signed(value))
            continue
        start = 0
        while start < len(value):
            one, start = varint(value, start, len(value))
            found.append(signed(one))
    return found


def integer(message: Message, number: int) -> int:
    """The integer of a non-repeated field; 0 where it is absent."""
    return next(iter(integers(message, number)), 0)


def reals(message: Message, number: int, code: str = "f") -> list[float]:
    """The floats of a field, single or packed.  code: their `struct` format."""
    found: list[float] = []
    for value in bytes_fields(message, number):
        found += struct.unpack(f"<{len(value) // struct.calcsize(code)}{code}", value)
    return found
