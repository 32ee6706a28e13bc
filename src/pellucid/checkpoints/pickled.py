"""Tensors in PyTorch's `.bin` files: a zip around a pickle, and a pickle can run code. So the zip is looked at first,
and only the restricted unpickler of PyTorch reads it; where that refuses, there is no second attempt."""

import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from pellucid.errors import CorruptFileError, UnsafeFileError


def read_pickled(path: Path) -> dict[str, Tensor]:
    """Every tensor of a `.bin` file by name."""
    if not path.is_file():
        raise CorruptFileError(f"{path} is not a regular file")
    _check_zip(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    except pickle.UnpicklingError as error:
        raise UnsafeFileError(
            f"{path} asks for more than tensors when it is opened, so it was not opened; ask its author for safetensors"
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError, TypeError, IndexError, AttributeError, OSError) as error:
        raise CorruptFileError(f"{path} is a damaged PyTorch file: {str(error).splitlines()[0][:120]}") from error
    return _only_tensors(path, found)


def _check_zip(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"PK\x03\x04":
        raise UnsafeFileError(
            f"{path} is no zip file: damaged, or in PyTorch's oldest format (a bare pickle), which is never opened; "
            "save it again with a newer PyTorch, best as safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            plain = len(entries) <= 100_000 and all(e.compress_type == 0 for e in entries)
            broken = archive.testzip() if plain else None
    except (zipfile.BadZipFile, OSError, NotImplementedError, EOFError, ValueError) as error:
        raise CorruptFileError(f"{path} is a damaged zip file ({str(error)[:80]}): fetch it again") from error
    if not plain or sum(e.file_size for e in entries) > size:
        raise UnsafeFileError(f"{path} holds compressed or overlapping entries, which PyTorch never writes; not opened")
    if any(".." in e.filename or e.filename.startswith(("/", "\\")) for e in entries):
        raise UnsafeFileError(f"{path} holds an entry that leads outside of it; not opened")
    if broken is not None:
        raise CorruptFileError(f"{path} is damaged: the checksum of {broken!r} in it is wrong; fetch it again")


def _only_tensors(path: Path, found: object) -> dict[str, Tensor]:
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CorruptFileError(f"{path} holds a {type(found).__name__}, expected names and tensors")
    if set(found) == {"state_dict"} and isinstance(found["state_dict"], dict):
        found = found["state_dict"]
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise CorruptFileError(f"{path}: {name!r} is a {type(value).__name__}, expected a tensor")
        if value.numel() > value.untyped_storage().nbytes() // max(value.element_size(), 1):
            raise UnsafeFileError(f"{path}: {name!r} claims {value.numel():,} numbers and stores fewer")
    return found
