"""A bounded reader of `.safetensors` files that trusts nothing and reads straight into a tensor's memory.

The format: 8 bytes length of the header, the header as JSON {name: {dtype, shape, data_offsets}}, then the values. The
`safetensors` library writes our files; for reading, the header is checked here completely, so that every damaged or
hostile file gives a clear error before anything is allocated.
"""

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import CorruptFileError, UnsafeFileError, format_count
from pellucid.files import check_regular, unique_keys

MAX_HEADER_BYTES = 10_000_000
MAX_DIMENSIONS = 8
MAX_NUMBER = 2**48
"""Limit of file and tensor sizes: anything larger is refused before it is multiplied or printed."""

_NAME = re.compile(r"[\w./-]{1,200}")

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """Location, dtype and shape of a tensor in a file."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    bytes: int

    def read(self) -> Tensor:
        """The tensor, copied out of the file. Raises CorruptFileError where the file was truncated meanwhile."""
        memory = bytearray(self.bytes)
        with self.path.open("rb") as file:
            file.seek(self.start)
            if file.readinto(memory) != self.bytes:
                raise CorruptFileError(f"{self.path} became shorter while it was read")
        if not memory:
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        return torch.frombuffer(memory, dtype=self.dtype).view(self.shape)

    def rows(self, start: int, stop: int) -> Tensor:
        """Only the rows from `start` to `stop`."""
        rows, row = stop - start, self.bytes // self.shape[0]
        part = replace(self, shape=(rows, *self.shape[1:]), start=self.start + start * row, bytes=rows * row)
        return part.read()


def check_name(path: Path, name: str) -> None:
    """Refuses tensor names that no framework produces: blanks, control characters, ".."."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise UnsafeFileError(f"{path}: {name[:80]!r} is not a valid tensor name")


def tensor_spans(path: Path) -> dict[str, TensorSpan]:
    """Every tensor of a `.safetensors` file by name, after its whole header has been checked."""
    check_regular(path)
    size = path.stat().st_size
    header, body = _header(path, size)
    found = {name: _parse_entry(path, name, entry, body) for name, entry in header.items() if name != "__metadata__"}
    _check_coverage(path, found, body, size)
    return found


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata in the header of a `.safetensors` file; empty where there is none."""
    header, _ = _header(path, path.stat().st_size)
    note = header.get("__metadata__", {})
    if not isinstance(note, dict):
        raise CorruptFileError(f"{path} has a damaged header: its __metadata__ is a {type(note).__name__}")
    return note


def read_metadata_value(path: Path, key: str, default: Any = None) -> Any:
    """One metadata entry, decoded from JSON; `default` where there is none."""
    note = read_metadata(path)
    try:
        return json.loads(note[key], object_pairs_hook=unique_keys) if key in note else default
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} has a damaged note in its header: {str(error)[:120]}") from error


def _header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        first = file.read(512)
        if len(first) < 8:
            raise CorruptFileError(
                f"{path} is {'cut short' if first else 'empty'} ({format_count(size, 'byte')}): an interrupted "
                "download? fetch it again"
            )
        length = int.from_bytes(first[:8], "little")
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise CorruptFileError(f"{path} {_describe_other_file(first, size, length)}")
        file.seek(8)
        raw = file.read(length)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise CorruptFileError(f"{path} has a damaged header: {str(error)[:120]}") from error
    if not isinstance(header, dict):
        raise CorruptFileError(f"{path} has a header that is a {type(header).__name__}, expected an object")
    return header, 8 + length


def _describe_other_file(first: bytes, size: int, length: int) -> str:
    """What a file that is not safetensors may be, for the error."""
    if first.startswith(b"version https://git-lfs"):
        size_match = re.search(rb"size (\d+)", first)
        full_size = f" of {int(size_match.group(1)):,} bytes" if size_match else ""
        return f"is a git-lfs pointer{full_size}, not the weights: run git lfs pull"
    if first.lstrip()[:1] == b"<":
        return "is an HTML or XML page, not weights: the download went wrong"
    if first.startswith(b"PK\x03\x04"):
        return "is a zip file (a PyTorch .bin?) under a wrong name"
    if length > MAX_HEADER_BYTES and length <= size:
        return f"has a header of {length:,} bytes, more than the {MAX_HEADER_BYTES:,} that are read"
    return f"is not a safetensors file, or cut short: its header claims {length:,} bytes and the file has {size:,}"


def _parse_entry(path: Path, name: str, entry: Any, body: int) -> TensorSpan:
    def entry_error(what: str) -> CorruptFileError:
        return CorruptFileError(f"{path}: tensor {name[:80]!r} {what}")

    check_name(path, name)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise entry_error("has a damaged entry, expected dtype, shape and data_offsets")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise entry_error(f"has dtype {str(entry['dtype'])[:20]!r}, expected one of {', '.join(DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_naturals(shape) or len(shape) > MAX_DIMENSIONS:
        raise entry_error(f"has shape {str(shape)[:60]}, expected at most {MAX_DIMENSIONS} whole numbers")
    if not _are_naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise entry_error(f"has data_offsets {str(offsets)[:60]}, expected a beginning and an end")
    dtype = DTYPES[entry["dtype"]]
    expected_bytes, stored_bytes = math.prod(shape) * dtype.itemsize, offsets[1] - offsets[0]
    if expected_bytes != stored_bytes:
        raise entry_error(f"of shape {shape} takes {expected_bytes:,} bytes, its data_offsets give it {stored_bytes:,}")
    return TensorSpan(path, dtype, tuple(shape), body + offsets[0], stored_bytes)


def _check_coverage(path: Path, found: dict[str, TensorSpan], body: int, size: int) -> None:
    """Checks that the tensors cover the rest of the file without gap or overlap, so that nothing else hides in it."""
    end = body
    for name, span in sorted(found.items(), key=lambda item: (item[1].start, item[1].bytes)):
        if span.start != end:
            what = "overlaps the one before it" if span.start < end else "leaves a gap before it"
            raise CorruptFileError(f"{path}: tensor {name!r} {what}")
        end += span.bytes
    if end > size:
        share = 100 * (size - body) / max(end - body, 1)
        raise CorruptFileError(
            f"{path} is cut short: expected {end:,} bytes, have {size:,} ({share:.0f} % of the body); fetch it again"
        )
    if end < size:
        raise CorruptFileError(f"{path} has {format_count(size - end, 'byte')} too many after its last tensor")


def _are_naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < MAX_NUMBER for n in value)
