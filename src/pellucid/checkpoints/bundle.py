"""Tensors with a note beside them, as one file of safetensors: no checkpoint, and read with the same care as one."""

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
"""Bytes of a header that are left for the names and places of the tensors."""


def write_bundle(tensors: dict[str, Tensor], metadata: dict[str, str], target: Path) -> Path:
    """Writes one file beside its place, then moves it there; what was there before is replaced whole or not at all.

    Raises InputError where the place cannot be written, or the note is too long for a header.
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
    """Every tensor of a file, none read yet, and the note beside them."""
    with file_errors(path):
        if not path.exists():
            raise NotFoundError(f"{path} does not exist")
        if path.is_dir():
            raise InputError(f"{path} is a folder, expected a file")
        return tensor_spans(path), read_metadata(path)
