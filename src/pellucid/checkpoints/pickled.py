"""Tensors in PyTorch's `.bin` files: a pickle of names, and the values beside it in the same zip; in files from before
PyTorch wrote zips, the values follow the pickles. A pickle can run code, so it is only parsed (`unpickled.py`), never
unpickled, and no memory is allocated for values that the file does not hold."""

import io
import math
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from pellucid.checkpoints.tensors import check_name
from pellucid.checkpoints.unpickled import Storage, StridedTensor, read_pickle
from pellucid.errors import CorruptFileError, UnsafeFileError
from pellucid.files import check_regular
from pellucid.machine import memory_errors

LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first pickle of a file in the legacy format, byte for byte."""

_MAX_ENTRIES = 100_000
_MAX_PICKLE_BYTES = 100_000_000
_BYTES_AT_ONCE = 2**24
_MAX_SHARING = 8
"""How often the values of a storage may be used, since each name may become memory of its own. The token table of an
encoder-decoder has four names."""

StorageReader = Callable[[Storage], Tensor]
"""Reads the bytes of a storage: UInt8[Tensor, "bytes"]"""


def read_pickled(path: Path) -> dict[str, Tensor]:
    """Every tensor of a `.bin` file by name."""
    check_regular(path)
    with path.open("rb") as file:
        first = file.read(len(LEGACY_MAGIC))
        if first == LEGACY_MAGIC:
            return _read_legacy(path, file)
    if not first.startswith(b"PK\x03\x04"):
        raise UnsafeFileError(
            f"{path} is not a zip file: damaged, or a bare pickle, which is never opened; save it again with a newer "
            "PyTorch, best as safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_zip(path, archive)
    except (zipfile.BadZipFile, OSError, RuntimeError, EOFError, ValueError) as error:  # RuntimeError: encrypted
        raise CorruptFileError(f"{path} is a damaged zip file ({str(error)[:120]}): fetch it again") from error


# -- the zip format ----------------------------------------------------------------------------------------------------


def _read_zip(path: Path, archive: zipfile.ZipFile) -> dict[str, Tensor]:
    entries = archive.infolist()
    if not _is_uncompressed(entries, path.stat().st_size):
        raise UnsafeFileError(f"{path} holds compressed or overlapping entries, which PyTorch never writes; not opened")
    if any(".." in e.filename or e.filename.startswith(("/", "\\")) for e in entries):
        raise UnsafeFileError(f"{path} holds an entry with a path outside of it; not opened")
    entries_by_name = {entry.filename: entry for entry in entries}
    pickles = [name for name in entries_by_name if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1 or entries_by_name[pickles[0]].file_size > _MAX_PICKLE_BYTES:
        raise CorruptFileError(f"{path} is a damaged PyTorch file: one data.pkl is expected in it")
    root = pickles[0].removesuffix("data.pkl")
    if any(name.endswith("constants.pkl") for name in entries_by_name):
        raise UnsafeFileError(
            f"{path} holds a program (TorchScript), which is never run; ask its author for safetensors"
        )
    byte_order = archive.read(f"{root}byteorder") if f"{root}byteorder" in entries_by_name else sys.byteorder.encode()
    if byte_order not in (b"little", b"big"):
        raise CorruptFileError(
            f"{path} is a damaged PyTorch file: its byteorder is {ascii(byte_order)[2:-1][:60]!r}, expected 'little' "
            "or 'big'"
        )

    def read_storage(storage: Storage) -> Tensor:
        entry = entries_by_name.get(f"{root}data/{storage.key}")
        if entry is None:
            raise CorruptFileError(f"{path} is a damaged PyTorch file: it lacks the numbers {storage.key[:80]!a}")
        _check_claim(path, storage, entry.file_size)
        with archive.open(entry) as file:
            return _read_bytes(path, file, entry.file_size)

    return _fill_tensors(
        _checked_tensors(path, read_pickle(path, io.BytesIO(archive.read(pickles[0])))),
        read_storage,
        byteswapped=byte_order != sys.byteorder.encode(),
    )


def _is_uncompressed(entries: list[zipfile.ZipInfo], size: int) -> bool:
    """Whether all entries are uncompressed, have unique names and do not overlap, as PyTorch writes them."""
    names = {entry.filename for entry in entries}
    all_stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    return (
        all_stored and len(names) == len(entries) <= _MAX_ENTRIES and sum(entry.file_size for entry in entries) <= size
    )


# -- the legacy format -------------------------------------------------------------------------------------------------


def _read_legacy(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    """Four pickles: the version, the machine that wrote it, the tensors, and the storage keys in file order."""
    _, _, found, keys = (read_pickle(path, file) for _ in range(4))
    tensors = _checked_tensors(path, found)
    storages = {one.storage.key: one.storage for one in tensors.values()}
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or set(keys) != set(storages):
        raise CorruptFileError(f"{path} is a damaged PyTorch file: it does not say which numbers follow")
    size, offsets = path.stat().st_size, {}
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        _check_claim(path, storages[key], size - file.tell())
        if count != storages[key].count:
            raise CorruptFileError(
                f"{path} is a damaged PyTorch file: it contradicts itself on how many numbers there are"
            )
        offsets[key] = file.tell()
        file.seek(storages[key].bytes, 1)

    def read_storage(storage: Storage) -> Tensor:
        file.seek(offsets[storage.key])
        return _read_bytes(path, file, storage.bytes)

    return _fill_tensors(tensors, read_storage, byteswapped=sys.byteorder != "little")


# -- both formats ------------------------------------------------------------------------------------------------------


def _check_claim(path: Path, storage: Storage, size: int) -> None:
    if storage.bytes > size:
        raise CorruptFileError(f"{path} claims {storage.bytes:,} bytes of numbers where it has {size:,}: it is damaged")


def _read_bytes(path: Path, file: Any, size: int) -> Tensor:
    """The next `size` bytes of a file: UInt8[Tensor, "size"]"""
    with memory_errors():
        content = torch.empty(size, dtype=torch.uint8, device="cpu")
    memory, offset = content.numpy().data, 0
    while offset < size:
        count = file.readinto(memory[offset : offset + _BYTES_AT_ONCE])
        if not count:
            raise CorruptFileError(f"{path} became shorter while it was read")
        offset += count
    return content


def _checked_tensors(path: Path, found: Any) -> dict[str, StridedTensor]:
    """The tensors by name, checked to be all that the pickle holds."""
    if isinstance(found, dict) and set(found) == {"state_dict"}:
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CorruptFileError(f"{path} holds a {_type_name(found)}, expected names and tensors")
    storages: dict[str, Storage] = {}
    reads: Counter[str] = Counter()
    for name, value in found.items():
        check_name(path, name)
        if not isinstance(value, StridedTensor):
            raise CorruptFileError(f"{path}: {name!r} is a {_type_name(value)}, expected a tensor")
        if storages.setdefault(value.storage.key, value.storage) != value.storage:
            raise CorruptFileError(
                f"{path}: {name!r} and another tensor contradict each other on the numbers that they share"
            )
        _check_bounds(path, name, value)
        reads[value.storage.key] += math.prod(value.shape)
        if reads[value.storage.key] > _MAX_SHARING * value.storage.count:
            raise UnsafeFileError(
                f"{path}: {name!r} and others are the same stored numbers, more than {_MAX_SHARING} times what the "
                "file holds; ask its author for safetensors"
            )
    return found


def _fill_tensors(
    tensors: dict[str, StridedTensor], read_storage: StorageReader, byteswapped: bool
) -> dict[str, Tensor]:
    """The tensors with their values, each storage read once.  byteswapped: whether its byte order is the other one."""
    numbers: dict[str, Tensor] = {}
    for one in tensors.values():
        if one.storage.key not in numbers:
            raw = read_storage(one.storage)
            numbers[one.storage.key] = (
                raw.view(-1, one.storage.dtype.itemsize).flip(1).flatten() if byteswapped else raw
            )
    return {name: _strided_view(one, numbers[one.storage.key]) for name, one in tensors.items()}


def _check_bounds(path: Path, name: str, tensor: StridedTensor) -> None:
    """Refuses a tensor that exceeds its storage."""
    if (count := math.prod(tensor.shape)) > tensor.storage.count:
        raise UnsafeFileError(
            f"{path}: {name!r} has {min(count, 10**15):,} numbers by its shape, and stores fewer: make it contiguous() "
            "and save it again, or ask its author for safetensors"
        )
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides))
    if count and last >= tensor.storage.count:
        raise CorruptFileError(f"{path}: {name!r} reaches beyond the numbers that are stored for it")


def _strided_view(tensor: StridedTensor, raw: Tensor) -> Tensor:
    if not math.prod(tensor.shape):
        return torch.empty(tensor.shape, dtype=tensor.storage.dtype, device="cpu")
    return (
        raw[: tensor.storage.bytes].view(tensor.storage.dtype).as_strided(tensor.shape, tensor.strides, tensor.offset)
    )


def _type_name(value: Any) -> str:
    return "Tensor" if isinstance(value, StridedTensor) else type(value).__name__
