"""CTranslate2's own file of numbers, `model.bin`: where each variable lies. Nothing is allocated for what is not there.

    version: u32 | kind of model: text | revision: u32 | how many variables: u32, and each of them:
        name: text | how many dimensions: u8 | each: u32 | from version 4 on: type: u8, bytes: u32; before: bytes of one
        number: u8, how many: u32 | its numbers
    from version 3 on: how many other names: u32, and each of them: text | the variable that it stands for: text

A text has its length before it, as u16, and a zero at its end, which counts. Source: `specs/model_spec.py` and
`models/model.cc` of CTranslate2 4.8.
"""

import math
import struct
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch

from pellucid.checkpoints.tensors import MOST_DIMENSIONS, Span, check_name
from pellucid.errors import CheckpointMismatchError, CorruptFileError

NEWEST, _MOST = 6, 1_000
_TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
_BY_SIZE = {4: torch.float32, 2: torch.int16, 1: torch.int8}


@dataclass
class _Reader:
    """Reads one thing after the other, as far as the file goes."""

    path: Path
    file: BufferedReader
    left: int

    def plain(self, layout: str) -> Any:
        return struct.unpack("<" + layout, self.some(struct.calcsize("<" + layout)))[0]

    def some(self, size: int) -> bytes:
        self.skip(size, move=False)
        return self.file.read(size)

    def skip(self, size: int, *, move: bool = True) -> None:
        if size > self.left:
            raise CorruptFileError(f"{self.path} ends in the middle of its numbers: fetch or convert it again")
        self.left -= size
        if move:
            self.file.seek(size, 1)

    def text(self) -> str:
        said = self.some(self.plain("H"))
        if said[-1:] != b"\0" or not said[:-1].isascii():
            raise CorruptFileError(f"{self.path} is no model of CTranslate2: {said[:40]!r} is no name")
        return said[:-1].decode()

    def name(self) -> str:
        check_name(self.path, name := self.text())
        return name


def variables(path: Path) -> tuple[str, dict[str, Span]]:
    """The kind of model, and every variable by name, those among them that are others by a second name.

    Raises: CorruptFileError for a file that is not whole; CheckpointMismatchError for one of a newer version.
    """
    with path.open("rb") as file:
        read = _Reader(path, file, path.stat().st_size)
        version = read.plain("I")
        if version > _MOST:
            raise CorruptFileError(f"{path} is no model of CTranslate2: it begins with no number of a version")
        if not 2 <= version <= NEWEST:
            raise CheckpointMismatchError(
                f"{path} is of version {version} of CTranslate2's, expected 2 to {NEWEST}: make it with CTranslate2 4"
            )
        kind, _ = read.text(), read.plain("I")
        found: dict[str, Span] = {}
        for _ in range(read.plain("I")):
            name = read.name()
            if name in found:
                raise CorruptFileError(f"{path} holds {name} twice")
            found[name] = _variable(read, name, version)
        for _ in range(read.plain("I") if version >= 3 else 0):
            other, name = read.name(), read.name()
            if other in found or name not in found:
                raise CorruptFileError(f"{path}: {other} stands for {name}, which is not there, or stands there itself")
            found[other] = found[name]
        if read.left:
            raise CorruptFileError(f"{path} has {read.left:,} bytes behind its last variable")
    return kind, found


def _variable(read: _Reader, name: str, version: int) -> Span:
    dimensions = read.plain("B")
    if dimensions > MOST_DIMENSIONS:
        raise CorruptFileError(f"{read.path}: {name} has {dimensions} dimensions, expected at most {MOST_DIMENSIONS}")
    shape = tuple(read.plain("I") for _ in range(dimensions))
    kind, size = read.plain("B"), read.plain("I")
    if version < 4:
        dtype, size = _BY_SIZE.get(kind), size * kind
    else:
        dtype = _TYPES[kind] if kind < len(_TYPES) else None
    if dtype is None:
        raise CheckpointMismatchError(f"{read.path}: {name} is of type {kind}, which is not understood")
    if size != math.prod(shape) * dtype.itemsize:
        raise CorruptFileError(f"{read.path}: {name} has {size:,} bytes, which is not what its shape {shape} takes")
    span = Span(read.path, dtype, shape, read.file.tell(), size)
    read.skip(size)
    return span
