"""Tensors in PyTorch's `.bin` files: a zip around a pickle, and a pickle can run code. So the zip is looked at first,
and only the restricted unpickler of PyTorch reads it; where that refuses, there is no second attempt."""

import pickle
import struct
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from pellucid.checkpoints.oldest import MAGIC, check_oldest
from pellucid.checkpoints.tensors import DTYPES, check_name
from pellucid.errors import CorruptFileError, UnsafeFileError

_LOOSE = (LookupError, ValueError, TypeError, AttributeError, AssertionError, struct.error)
_DAMAGE = (RuntimeError, EOFError, OSError, *_LOOSE)
"""What PyTorch's reader is known to raise where a byte is wrong."""


def read_pickled(path: Path) -> dict[str, Tensor]:
    """Every tensor of a `.bin` file by name."""
    if not path.is_file():
        raise CorruptFileError(f"{path} is not a regular file")
    if _begins(path, len(MAGIC)) == MAGIC:
        check_oldest(path)
    else:
        _check_zip(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    except pickle.UnpicklingError as error:
        raise UnsafeFileError(
            f"{path} asks for more than tensors when it is opened, so it was not opened; ask its author for safetensors"
        ) from error
    except _DAMAGE as error:
        what = ascii((str(error).splitlines() or [type(error).__name__])[0])[1:-1][:120]  # it may quote the file
        raise CorruptFileError(f"{path} is a damaged PyTorch file: {what}") from error
    return _only_tensors(path, found)


def _begins(path: Path, length: int) -> bytes:
    with path.open("rb") as file:
        return file.read(length)


def _check_zip(path: Path) -> None:
    size = path.stat().st_size
    if _begins(path, 4) != b"PK\x03\x04":
        raise UnsafeFileError(
            f"{path} is no zip file: damaged, or a bare pickle, which is never opened; save it again with a newer "
            "PyTorch, best as safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            plain = _plain(entries, size)  # asked first: the checksums below read every entry
            broken = archive.testzip() if plain else None
    except (zipfile.BadZipFile, OSError, RuntimeError, EOFError, ValueError) as error:  # RuntimeError: encrypted
        raise CorruptFileError(f"{path} is a damaged zip file ({str(error)[:80]}): fetch it again") from error
    if not plain:
        raise UnsafeFileError(f"{path} holds compressed or overlapping entries, which PyTorch never writes; not opened")
    if any(".." in e.filename or e.filename.startswith(("/", "\\")) for e in entries):
        raise UnsafeFileError(f"{path} holds an entry that leads outside of it; not opened")
    if broken is not None:
        raise CorruptFileError(f"{path} is damaged: the checksum of {broken!r} in it is wrong; fetch it again")


def _plain(entries: list[zipfile.ZipInfo], size: int) -> bool:
    """Whether every entry is stored as it is, once, in a place of its own, as PyTorch writes them."""
    named = {entry.filename for entry in entries}
    stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    return stored and len(named) == len(entries) <= 100_000 and sum(entry.file_size for entry in entries) <= size


def _only_tensors(path: Path, found: object) -> dict[str, Tensor]:
    if isinstance(found, dict) and set(found) == {"state_dict"}:
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CorruptFileError(f"{path} holds a {type(found).__name__}, expected names and tensors")
    for name, value in found.items():
        check_name(path, name)
        if not isinstance(value, Tensor):
            raise CorruptFileError(f"{path}: {name!r} is a {type(value).__name__}, expected a tensor")
        if value.layout != torch.strided or value.device.type != "cpu" or value.dtype not in DTYPES.values():
            raise CorruptFileError(f"{path}: {name!r} is no plain tensor but {value.dtype} on {value.device}")
        if value.numel() > value.untyped_storage().nbytes() // max(value.element_size(), 1):
            raise UnsafeFileError(f"{path}: {name!r} claims {value.numel():,} numbers and stores fewer")
    return found
