"""Tensors with metadata in one safetensors file that is not a checkpoint, and is read with the same care."""

import json
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.checkpoints.folder import write_tensors
from pellucid.checkpoints.tensors import MAX_HEADER_BYTES, TensorSpan, read_metadata, tensor_spans
from pellucid.errors import InputError, NotFoundError
from pellucid.files import cannot_write, file_errors, sync_to_disk

_RESERVED_HEADER_BYTES = 2_000_000
"""Bytes of the header that are reserved for the names and offsets of the tensors."""


def write_bundle(tensors: dict[str, Tensor], metadata: dict[str, str], target: Path) -> Path:
    """Writes a temporary file and moves it to `target`, which is replaced either completely or not at all.

    Raises InputError where the target cannot be written, or the metadata is too long for a header.
    """
    size = sum(len(json.dumps(text)) for text in metadata.values())
    if size > MAX_HEADER_BYTES - _RESERVED_HEADER_BYTES:
        raise InputError(f"the metadata of {target} takes {size:,} bytes, too many for the header of a file")
    if target.is_dir():
        raise InputError(f"{target} is a folder, expected the name of a file to write")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary_folder:
            new = Path(temporary_folder) / "new"
            write_tensors(tensors, new, metadata)
            sync_to_disk(new)
            new.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    return target


def read_bundle(path: Path) -> tuple[dict[str, TensorSpan], dict[str, Any]]:
    """The tensors of a file, not read yet, and its metadata."""
    with file_errors(path):
        if not path.exists():
            raise NotFoundError(f"{path} does not exist")
        if path.is_dir():
            raise InputError(f"{path} is a folder, expected a file")
        return tensor_spans(path), read_metadata(path)
