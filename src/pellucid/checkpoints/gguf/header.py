"""The header of a GGUF file, version 2 or 3, read as if its author meant harm.

The format, little-endian: `GGUF`, the version, the number of tensors, the number of facts; the facts as (key, type,
value); the tensors as (name, dimensions, type, offset); padding; the values. The `gguf` library's reader trusts every
count and hangs on a file of 40 bytes, so here each count is checked against the rest of the file before it is used.
"""

import io
import itertools
import math
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np

from pellucid.checkpoints.gguf.block_types import GGML_TYPES, PackedTensor
from pellucid.checkpoints.tensors import MAX_NUMBER, check_name
from pellucid.errors import CorruptFileError, UnsafeFileError
from pellucid.files import check_regular

MAX_HEADER_BYTES = 2**27
"""Most of a header is vocabulary, which takes 16 MB at most."""

MAX_STRINGS = 2**20
"""Maximum number of strings in all lists of a file. Each takes time, and read all at once six times its bytes; the
largest vocabularies have 0.8 million, merges included."""

MAX_ENTRIES = 2**16
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 2**20

_LENGTH = struct.Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip


class Strings(Sequence[str]):
    """An immutable list of strings in one buffer; each string object is created on access.

    A vocabulary's hundred thousand string objects would fragment Python's memory for as long as the model lives.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        buffer = io.StringIO(newline="")
        self._ends = array("L", itertools.accumulate(map(buffer.write, strings), initial=0))
        self._text = buffer.getvalue()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __repr__(self) -> str:
        return f"{self[:3]}"[:-1] + (f", ... {len(self):,} strings]" if len(self) > 3 else "]")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Strings | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # as of a list

    def __iter__(self) -> Iterator[str]:
        return (self._text[start:end] for start, end in itertools.pairwise(self._ends))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else [self._at(place) for place in places]

    def _at(self, index: int) -> str:
        return self._text[self._ends[index] : self._ends[index + 1]]


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata and tensor entries of a GGUF file. Lists of strings are `Strings`, lists of numbers are arrays."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, PackedTensor]


def read_header(path: Path) -> Header:
    """The header of a GGUF file, checked completely; nothing is read for a count that cannot be true."""
    check_regular(path)
    with path.open("rb") as file:
        cursor = Cursor(path, file, path.stat().st_size)
        _check_magic(cursor)
        tensors = cursor.count("number of tensors", 24)
        facts = cursor.count("number of keys", 13)
        metadata = _metadata(cursor, facts)
        entries = [_tensor(cursor, i) for i in range(tensors)]
    return Header(path, metadata, _absolute_offsets(cursor, entries, _alignment(path, metadata)))


class Cursor:
    """A position in the file that moves forward and never past the end."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.size, self.offset, self.strings = path, size, 0, 0
        self._file = file

    def corrupt_error(self, what: str) -> CorruptFileError:
        return CorruptFileError(f"{self.path}: {what}")

    def read(self, count: int, what: str) -> bytes:
        """The next `count` bytes."""
        if count > self.size - self.offset:
            raise self.corrupt_error(
                f"{what} takes {count:,} bytes and {self.size - self.offset:,} are left; cut short? fetch it again"
            )
        self.offset += count
        if self.offset > MAX_HEADER_BYTES:
            raise UnsafeFileError(f"{self.path}: the header goes past {MAX_HEADER_BYTES:,} bytes at {what}; not read")
        found = self._file.read(count)
        if len(found) != count:
            raise self.corrupt_error("it became shorter while it was read")
        return found

    def number(self, code: str, what: str) -> Any:
        """One number of the `struct` format `code`."""
        return struct.unpack(f"<{code}", self.read(struct.calcsize(code), what))[0]

    def count(self, what: str, min_bytes: int) -> int:
        """The number of entries that follow, of at least `min_bytes` each."""
        count = self.number("Q", what)
        if count > min(MAX_ENTRIES, (self.size - self.offset) // min_bytes):
            raise self.corrupt_error(
                f"the {what} is {count:,}, more than {self.size:,} bytes can hold or {MAX_ENTRIES:,}"
            )
        return count

    def string(self, what: str) -> str:
        """A string: its length, then that many bytes of UTF-8."""
        raw = self.read(_LENGTH.unpack(self.read(8, what))[0], what)  # called a million times: formats no text
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt_error(f"{what} is not UTF-8 text") from error


def _check_magic(cursor: Cursor) -> None:
    first = cursor.read(min(4, cursor.size), "the first word")
    if first != b"GGUF":
        known = {b"vers": "a git-lfs pointer: run git lfs pull", b"ggjt": "in the older format GGML: convert it"}
        hint = known.get(first, "cut short or something else under a wrong name")
        raise cursor.corrupt_error(f"it begins with {first!r}, expected b'GGUF'; it is {hint}")
    version = cursor.number("I", "version")
    if version and version % 2**16 == 0:
        raise cursor.corrupt_error("it is written big-endian, expected little-endian; convert it first")
    if version not in (2, 3):
        raise cursor.corrupt_error(f"version is {version}, expected 2 or 3")


def _metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index in range(count):
        key = cursor.string(f"key {index}")
        if not 1 <= len(key) <= 200 or not key.isprintable():
            raise cursor.corrupt_error(f"key {index} is {key[:40]!r}, expected a name of at most 200 characters")
        if key in found:
            raise cursor.corrupt_error(f"key {key!r} appears twice")
        found[key] = _value(cursor, cursor.number("I", f"the type of {key}"), key)
    return found


def _value(cursor: Cursor, kind: int, key: str) -> Any:
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _array(cursor, key)
    return _numbers(cursor, kind, 1, key)[0].item()


def _array(cursor: Cursor, key: str) -> Any:
    kind, count = cursor.number("I", f"the type of {key}"), cursor.number("Q", f"the length of {key}")
    if kind == _ARRAY:
        raise cursor.corrupt_error(f"{key} is a list of lists, which is not read: write the file without it")
    return _strings(cursor, count, key) if kind == _STRING else _numbers(cursor, kind, count, key)


def _strings(cursor: Cursor, count: int, key: str) -> Strings:
    cursor.strings += count
    if cursor.strings > min(MAX_STRINGS, cursor.size // 8):  # each has a length of 8 bytes
        raise cursor.corrupt_error(
            f"{key} claims {count:,} strings, more than {cursor.size:,} bytes can hold or {MAX_STRINGS:,}"
        )
    return Strings(cursor.string(key) for _ in range(count))


def _numbers(cursor: Cursor, kind: int, count: int, key: str) -> np.ndarray:
    if kind not in _NUMBERS:
        raise cursor.corrupt_error(f"{key} has type {kind}, which GGUF does not know")
    dtype = np.dtype(_NUMBERS[kind])
    found = np.frombuffer(cursor.read(count * dtype.itemsize, key), dtype)
    if kind != _BOOL:
        return found
    if found.size and found.max() > 1:
        raise cursor.corrupt_error(f"{key} is {found.max()}, expected true (1) or false (0)")
    return found.view(np.bool_)


def _tensor(cursor: Cursor, index: int) -> tuple[str, PackedTensor]:
    """A tensor's entry; its `start` is still relative to the start of the values, which is not known yet."""
    name = cursor.string(f"the name of tensor {index}")
    check_name(cursor.path, name)
    sizes = [cursor.number("Q", f"the shape of {name}") for _ in range(_dimensions(cursor, name))]
    if not all(1 <= size < MAX_NUMBER for size in sizes) or math.prod(sizes) >= MAX_NUMBER:
        raise cursor.corrupt_error(
            f"tensor {name} has shape {sizes}, expected numbers from 1 and fewer than 2^48 in all"
        )
    number = cursor.number("I", f"the type of {name}")
    if number not in GGML_TYPES:
        raise cursor.corrupt_error(f"tensor {name} has type {number}, which GGUF does not know")
    kind = GGML_TYPES[number]
    if sizes[0] % kind.block:
        raise cursor.corrupt_error(f"tensor {name} has rows of {sizes[0]} numbers, expected a multiple of {kind.block}")
    return name, PackedTensor(cursor.path, kind, tuple(reversed(sizes)), cursor.number("Q", f"the offset of {name}"))


def _dimensions(cursor: Cursor, name: str) -> int:
    count = cursor.number("I", f"the number of dimensions of {name}")
    if not 1 <= count <= MAX_DIMENSIONS:
        raise cursor.corrupt_error(f"tensor {name} has {count:,} dimensions, expected 1 to {MAX_DIMENSIONS}")
    return count


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    found = metadata.get("general.alignment", 32)
    if type(found) is not int or not 1 <= found <= MAX_ALIGNMENT or found & (found - 1):
        raise CorruptFileError(
            f"{path}: general.alignment is {str(found)[:40]}, expected a power of two up to {MAX_ALIGNMENT:,}"
        )
    return found


def _absolute_offsets(
    cursor: Cursor, entries: list[tuple[str, PackedTensor]], alignment: int
) -> dict[str, PackedTensor]:
    """The tensors with absolute offsets, checked to cover the rest of the file, so that nothing else hides in it."""
    expected_start = body = -(-cursor.offset // alignment) * alignment
    found: dict[str, PackedTensor] = {}
    for name, entry in sorted(entries, key=lambda item: item[1].start):
        if name in found:
            raise cursor.corrupt_error(f"tensor {name} appears twice")
        if entry.start % alignment:
            raise cursor.corrupt_error(f"tensor {name} has offset {entry.start:,}, expected a multiple of {alignment}")
        start, end = body + entry.start, body + entry.start + entry.bytes
        if end > cursor.size:
            raise cursor.corrupt_error(
                f"tensor {name} ends at byte {end:,} of {cursor.size:,}: damaged or cut short, fetch it again"
            )
        if start != expected_start:
            what = "overlaps the one before it" if start < expected_start else "leaves a gap before it"
            raise cursor.corrupt_error(
                f"tensor {name} {what} (offset {entry.start:,}, expected {expected_start - body:,})"
            )
        found[name] = replace(entry, start=start)
        expected_start = -(-end // alignment) * alignment
    if cursor.size > expected_start:
        raise cursor.corrupt_error(f"it has {cursor.size - expected_start:,} bytes at its end that belong to nothing")
    return {name: found[name] for name, _ in entries}
