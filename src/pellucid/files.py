"""Files are written beside their place and then moved there: nobody ever meets half a file. And what a
JSON file says, it says once."""

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from pellucid.errors import InputError, PellucidError, ResourceError


def write_whole(target: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Calls `write` with an open file that takes the place of `target` only when all of it is on the disk."""
    beside = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        beside = Path(name)
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.chmod(0o644)
        beside.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)
    return target


def to_disk(path: Path) -> None:
    """Waits until a file, or the list of a folder's files, is on the disk."""
    if path.is_dir() and os.name == "nt":  # where a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest_of(path: Path) -> str:
    """sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cannot_write(target: Path, error: OSError) -> PellucidError:
    """The error of the system as one of ours."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ResourceError(f"no space left while writing {target}; what was there before is still there")
    return InputError(f"cannot write {target}: {error.strerror or error}")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What `json.loads` takes as its `object_pairs_hook`, so that no key hides behind another of the same name."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:80]!r} stands there twice")
        found[name] = value
    return found
