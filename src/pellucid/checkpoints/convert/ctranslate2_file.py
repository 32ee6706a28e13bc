"""CTranslate2's own weight file, `model.bin`: finds where each variable is stored, and allocates nothing.

    version: u32 | kind of model: string | revision: u32 | number of variables: u32, then each variable:
        name: string | number of dimensions: u8 | sizes: u32 each | since version 4 dtype: u8, bytes: u32; before that
        bytes per value: u8, number of values: u32 | values
    since version 3 number of aliases: u32, then each: alias: string | name of the variable: string

A string is preceded by its length as u16, which includes the final zero byte. Source: `specs/model_spec.py` and
`models/model.cc` of CTranslate2 4.8.
"""

import math
import struct
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch

from pellucid.checkpoints.tensors import MAX_DIMENSIONS, TensorSpan, check_name
from pellucid.errors import CheckpointMismatchError, CorruptFileError

NEWEST, _MAX_PLAUSIBLE_VERSION = 6, 1_000
_TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
_TYPES_BY_SIZE = {4: torch.float32, 2: torch.int16, 1: torch.int8}


@dataclass
class _Reader:
    """Reads consecutive fields of a file, never beyond its end."""

    path: Path
    file: BufferedReader
    bytes_left: int

    def unpack(self, layout: str) -> Any:
        return struct.unpack("<" + layout, self.read_bytes(struct.calcsize("<" + layout)))[0]

    def read_bytes(self, size: int) -> bytes:
        self.skip(size, move=False)
        return self.file.read(size)

    def skip(self, size: int, *, move: bool = True) -> None:
        if size > self.bytes_left:
            raise CorruptFileError(f"{self.path} ends in the middle of its numbers: fetch or convert it again")
        self.bytes_left -= size
        if move:
            self.file.seek(size, 1)

    def text(self) -> str:
        raw = self.read_bytes(self.unpack("H"))
        if raw[-1:] != b"\0" or not raw[:-1].isascii():
            raise CorruptFileError(f"{self.path} is not a model of CTranslate2: {raw[:40]!r} is not a name")
        return raw[:-1].decode()

    def name(self) -> str:
        check_name(self.path, name := self.text())
        return name


def read_variables(path: Path) -> tuple[str, dict[str, TensorSpan]]:
    """The kind of model, and every variable by name, aliases included.

    Raises: CorruptFileError for an incomplete file; CheckpointMismatchError for an unsupported version.
    """
    with path.open("rb") as file:
        reader = _Reader(path, file, path.stat().st_size)
        version = reader.unpack("I")
        if version > _MAX_PLAUSIBLE_VERSION:
            raise CorruptFileError(f"{path} is not a model of CTranslate2: it does not begin with a version number")
        if not 2 <= version <= NEWEST:
            raise CheckpointMismatchError(
                f"{path} is of version {version} of CTranslate2's, expected 2 to {NEWEST}: make it with CTranslate2 4"
            )
        kind, _ = reader.text(), reader.unpack("I")
        found: dict[str, TensorSpan] = {}
        for _ in range(reader.unpack("I")):
            name = reader.name()
            if name in found:
                raise CorruptFileError(f"{path} holds {name} twice")
            found[name] = _read_variable(reader, name, version)
        for _ in range(reader.unpack("I") if version >= 3 else 0):
            alias, name = reader.name(), reader.name()
            if alias in found or name not in found:
                raise CorruptFileError(
                    f"{path}: the alias {alias} names {name}, which is missing, or is a variable itself"
                )
            found[alias] = found[name]
        if reader.bytes_left:
            raise CorruptFileError(f"{path} has {reader.bytes_left:,} bytes after its last variable")
    return kind, found


def _read_variable(reader: _Reader, name: str, version: int) -> TensorSpan:
    dimensions = reader.unpack("B")
    if dimensions > MAX_DIMENSIONS:
        raise CorruptFileError(f"{reader.path}: {name} has {dimensions} dimensions, expected at most {MAX_DIMENSIONS}")
    shape = tuple(reader.unpack("I") for _ in range(dimensions))
    kind, size = reader.unpack("B"), reader.unpack("I")
    if version < 4:
        dtype, size = _TYPES_BY_SIZE.get(kind), size * kind
    else:
        dtype = _TYPES[kind] if kind < len(_TYPES) else None
    if dtype is None:
        raise CheckpointMismatchError(f"{reader.path}: {name} is of type {kind}, which is not understood")
    if size != math.prod(shape) * dtype.itemsize:
        raise CorruptFileError(f"{reader.path}: {name} has {size:,} bytes, which is not what its shape {shape} takes")
    span = TensorSpan(reader.path, dtype, shape, reader.file.tell(), size)
    reader.skip(size)
    return span
