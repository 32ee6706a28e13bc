"""The tensors of an ONNX file: type and shape are checked first, values are read on demand."""

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.graph import TYPES, Initializer
from pellucid.checkpoints.convert.low_bit import unpacked
from pellucid.checkpoints.convert.onnx_message import (
    Message,
    bytes_fields,
    integer,
    integers,
    last_field,
    parsed_message,
    reals,
    text_field,
)
from pellucid.checkpoints.links import check_link
from pellucid.errors import CorruptFileError, NotFoundError, UnsafeFileError

TENSOR = {
    "shape": 1, "type": 2, "segment": 3, "reals": 4, "wholes": 5, "longs": 7, "name": 8, "raw": 9, "doubles": 10,
    "unsigned": 11, "external_data": 13, "location": 14,
}  # fmt: skip
"""Protobuf field numbers by our names."""

_EXTERNAL = 1
_TYPES = TYPES | {
    4: ("UINT16", torch.uint16), 12: ("UINT32", torch.uint32), 13: ("UINT64", torch.uint64),
    21: ("UINT4", torch.uint8), 22: ("INT4", torch.uint8),
}  # fmt: skip
_FOUR_BIT_TYPES = ("UINT4", "INT4")
"""Types of which a byte holds two values."""

_TYPED_FIELDS = {
    torch.float32: "reals", torch.float64: "doubles", torch.int64: "longs", torch.uint32: "unsigned",
    torch.uint64: "unsigned",
}  # fmt: skip
"""The fields that hold numbers one by one, by their dtype; `wholes` for all others."""

_UNREAD_TYPES = {
    0: "UNDEFINED", 8: "STRING", 14: "COMPLEX64", 15: "COMPLEX128", 17: "FLOAT8E4M3FN", 18: "FLOAT8E4M3FNUZ",
    19: "FLOAT8E5M2", 20: "FLOAT8E5M2FNUZ", 23: "FLOAT4E2M1", 24: "FLOAT8E8M0", 25: "UINT2", 26: "INT2",
    27: "FLOAT6E2M3", 28: "FLOAT6E3M2",
}  # fmt: skip


def initializer(path: Path, tensor: Message, name: str) -> Initializer:
    """A tensor of the file: type and shape now, values on demand.  name: for errors."""
    number, shape = integer(tensor, TENSOR["type"]), tuple(integers(tensor, TENSOR["shape"]).tolist())
    kind, dtype = _TYPES.get(number, (_UNREAD_TYPES.get(number, str(number)), None))
    if len(shape) > 8 or any(not 0 <= size < 2**40 for size in shape) or prod(shape) >= 2**40:
        raise CorruptFileError(f"{path}: {name[:80]!r} has shape {list(shape)[:9]}, which no model has")
    is_external = integer(tensor, TENSOR["location"]) == _EXTERNAL
    external_data = _external_data(tensor) if is_external else None
    file = "" if external_data is None else external_data.get("location", "")
    return Initializer(kind, shape, partial(_read, path, tensor, name, kind, dtype, shape, external_data), file)


def constant_value(path: Path, name: str, value: Any) -> Initializer | None:
    """The value of a constant that is given by a scalar or list attribute; None for any other attribute."""
    if name not in ("value_int", "value_ints", "value_float", "value_floats"):
        return None
    kind, dtype = ("INT64", torch.int64) if "int" in name else ("FLOAT", torch.float32)
    try:
        numbers = torch.tensor(value, dtype=dtype, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise CorruptFileError(
            f"{path} is damaged: a constant in it has a {name} that is not a number; fetch it again"
        ) from error
    return Initializer(kind, tuple(numbers.shape), lambda: numbers)


def _read(
    path: Path,
    tensor: Message,
    name: str,
    kind: str,
    dtype: torch.dtype | None,
    shape: tuple[int, ...],
    external_data: dict[str, str] | None,
) -> Tensor:
    if dtype is None:
        raise CorruptFileError(f"{path}: {name[:80]!r} is of type {kind}, which is not understood")
    if TENSOR["segment"] in tensor:
        raise CorruptFileError(f"{path}: {name[:80]!r} is a part of a larger tensor, which is not understood")
    count = prod(shape)
    stored = -(-count // 2) if kind in _FOUR_BIT_TYPES else count
    outside = b"" if external_data is None else _external_bytes(path, external_data, name, stored * dtype.itemsize)
    try:
        raw = outside or last_field(tensor, TENSOR["raw"])
        numbers = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else _typed_numbers(tensor, dtype)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise CorruptFileError(f"{path}: {name[:80]!r} holds no readable numbers; fetch it again") from error
    if numbers.numel() != stored:
        raise CorruptFileError(f"{path}: {name[:80]!r} has fewer or more numbers than its shape {list(shape)} needs")
    if kind in _FOUR_BIT_TYPES:
        numbers = unpacked(numbers, 4)[:count].to(torch.int8)
        numbers = (numbers ^ 8) - 8 if kind == "INT4" else numbers  # the highest of the four bits is the sign
    return numbers.reshape(shape)


def _typed_numbers(tensor: Message, dtype: torch.dtype) -> Tensor:
    """The flat values that are stored in the field of their type instead of raw bytes."""
    field = TENSOR[_TYPED_FIELDS.get(dtype, "wholes")]
    if dtype in (torch.float32, torch.float64):
        return torch.from_numpy(reals(tensor, field, f"<f{dtype.itemsize}"))
    numbers = torch.from_numpy(integers(tensor, field))
    is_half = dtype in (torch.float16, torch.bfloat16)  # these are stored as their bit patterns
    return numbers.to(torch.int16).view(dtype) if is_half else numbers.to(dtype)


# -- data in other files -----------------------------------------------------------------------------------------------


def _external_data(tensor: Message) -> dict[str, str]:
    """The location of a tensor's external data, as ONNX's key-value pairs."""
    entries = (parsed_message(raw) for raw in bytes_fields(tensor, TENSOR["external_data"]))
    return {text_field(entry, 1): text_field(entry, 2) for entry in entries}


def _external_bytes(path: Path, external_data: dict[str, str], name: str, size: int) -> bytes:
    """The bytes of a tensor in another file of the same folder."""
    file = external_file(path, external_data.get("location", ""))
    start, length = _parsed_size(external_data.get("offset", "0")), _parsed_size(external_data.get("length", str(size)))
    if length != size:
        raise CorruptFileError(f"{path}: {name[:80]!r} takes {size:,} bytes, {file.name} gives it {length:,}")
    end, file_size = start + length, file.stat().st_size
    if end > file_size:
        raise CorruptFileError(f"{file} is cut short: {name[:80]!r} ends at {end:,} of {file_size:,} bytes")
    with file.open("rb") as stream:
        stream.seek(start)
        return stream.read(length)


def external_file(path: Path, name: str) -> Path:
    """A file that `path` refers to, in the same folder or below; raises UnsafeFileError for any other."""
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name.replace("\\", "/")).parts:
        raise UnsafeFileError(f"{path} keeps numbers in {name[:80]!r}, expected a file in its own folder")
    found = check_link(path.parent, path.parent / name)
    if not found.is_file():
        raise NotFoundError(f"{found} is missing: {path.name} keeps its numbers there")
    return found


def _parsed_size(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 2**60
