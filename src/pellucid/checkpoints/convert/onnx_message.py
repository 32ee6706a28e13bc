"""The messages of an ONNX file, which are protocol buffers: their fields by number.

The numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from collections.abc import Iterator

import numpy as np

from pellucid.text.protobuf import InvalidMessageError, fields, signed, varints

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


def integers(message: Message, number: int) -> np.ndarray:
    """The integers of a field, single or packed: Int64[ndarray, "count"]"""
    values = message.get(number, [])
    parts = [np.array([value], np.uint64) if isinstance(value, int) else varints(value) for value in values]
    return np.concatenate([np.empty(0, np.uint64), *parts]).view(np.int64)


def integer(message: Message, number: int) -> int:
    """The integer of a non-repeated field, of which the last occurrence counts; 0 where it is absent."""
    value = message.get(number, [0])[-1]
    if not isinstance(value, int):
        raise InvalidMessageError(f"field {number} is bytes, expected a number")
    return signed(value)


def real(message: Message, number: int) -> float:
    """The float of a non-repeated field, of which the last occurrence counts; 0 where it is absent."""
    return float(next(iter(reals(message, number)[-1:]), 0.0))


def reals(message: Message, number: int, dtype: str = "<f4") -> np.ndarray:
    """The floats of a field, single or packed: Float32[ndarray, "count"], or of another dtype."""
    parts = list(bytes_fields(message, number))
    if any(len(part) % np.dtype(dtype).itemsize for part in parts):
        raise InvalidMessageError(f"field {number} is no list of whole floats")
    return np.concatenate([np.frombuffer(part, dtype) for part in (b"", *parts)])
