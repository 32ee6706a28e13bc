"""Reading and writing files: atomic writes, so that no reader sees a partial file, and JSON without duplicate keys."""

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pellucid.errors import (
    CorruptFileError,
    InputError,
    MessagePart,
    NotFoundError,
    PellucidError,
    ResourceError,
)

MAX_BYTES = 20_000_000
"""Maximum size of a checkpoint's JSON file."""

FULL = {
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "this user's quota is used up",
    errno.EFBIG: "the limit on the size of a file (ulimit -f) is reached",
}
"""The system's errors where there is no room to write, with what they mean."""

MAX_NAME_BYTES = 200
"""Bytes of a file name to which a suffix is added, such as a number; systems allow 255."""


def write_atomically(
    target: Path,
    write: Callable[[IO[bytes]], object],
    mode: int | None = None,
    *,
    only_writer: bool = False,
    must_be_new: bool = False,
) -> Path:
    """Calls `write` with an open file that replaces `target` only when all of it is on the disk.

    mode: mode of the file from its creation, less the umask; by default that of the file it replaces, or the usual
        one of a new file, which `tempfile` does not give
    only_writer: whether no other process writes there now, so that leftovers of a killed process are removed, too
    must_be_new: whether nothing is replaced: FileExistsError where something exists by then
    """
    name = os.fsdecode(os.fsencode(target.name)[:MAX_NAME_BYTES])
    temporary_path = target.parent / f".{name}-{secrets.token_hex(4)}"
    try:
        existing_mode = 0o777 & target.stat().st_mode if mode is None and target.is_file() else None
        first = mode if mode is not None else 0o666 if existing_mode is None else existing_mode
        with open(temporary_path, "xb", opener=functools.partial(os.open, mode=first)) as file:
            if existing_mode is not None and hasattr(os, "fchmod"):
                with contextlib.suppress(OSError):  # a file system without modes
                    os.fchmod(file.fileno(), existing_mode)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        _link(temporary_path, target) if must_be_new else temporary_path.replace(target)
    except OSError as error:
        if must_be_new and isinstance(error, FileExistsError):
            raise
        raise cannot_write(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary_path.unlink(missing_ok=True)
    for leftover in folder_entries(target.parent) if only_writer else ():
        if re.fullmatch(rf"\.{re.escape(name)}-[0-9a-f]{{8}}", leftover.name):
            with contextlib.suppress(OSError):  # harmless
                leftover.unlink()
    return target


def _link(source: Path, target: Path) -> None:
    """Gives a file another name, which must not exist yet."""
    try:
        os.link(source, target)
    except OSError:  # it exists, or the file system has no hard links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        source.replace(target)


def sync_to_disk(path: Path) -> None:
    """Waits until a file, or a folder's list of files, is on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_own(file_stat: os.stat_result, *trusted: int) -> bool:
    """Whether no other user can have written a file, or into a folder, by its owner and its mode.

    trusted: ids of other users who may own it. Always true on systems without such ids.
    """
    if os.name != "posix":
        return True
    return file_stat.st_uid in (os.getuid(), *trusted) and not file_stat.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def no_folder_error(path: Path) -> InputError:
    """The error for a file to write in a folder that does not exist."""
    return InputError(f"cannot write {path}: there is no folder {str(path.parent)!r}")


def cannot_write(target: Path, error: OSError) -> PellucidError:
    """A system error while writing, as one of ours."""
    if error.errno in FULL:
        kept = "what was there before is still there: free some space or raise the limit, and try again"
        return ResourceError(f"{FULL[error.errno]} while writing {target}; {kept}")
    if error.errno == errno.ENOENT and not target.parent.is_dir():
        return no_folder_error(target)
    return InputError(f"cannot write {target}: {error.strerror or error}")


def cannot_read(path: str | os.PathLike[str], error: OSError | ValueError) -> InputError:
    """A system error while reading, or for a name that Python refuses, as one of ours."""
    return InputError(f"cannot read {os.fspath(path)}: {getattr(error, 'strerror', None) or error}")


@contextlib.contextmanager
def file_errors(path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Turns the system's errors about files within the block into ours.

    path: the file, where the system names none; without it such an error comes from the network, and is not changed.
    """
    try:
        yield
    except PellucidError:  # some are OSErrors too
        raise
    except OSError as error:
        if (named := error.filename or path) is None:
            raise
        raise cannot_read(named, error) from error


def check_regular(path: Path) -> None:
    """Refuses a missing file, and a pipe or a device, which would block for ever."""
    if not path.is_file():
        raise CorruptFileError(f"{path} is not a regular file")


def check_byte_count(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Refuses a file of more than `max_bytes` bytes, before it is read."""
    if (size := path.stat().st_size) > max_bytes:
        raise CorruptFileError(f"{path} has {size:,} bytes, expected at most {max_bytes:,}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; refused where it is too large, damaged, or has a key twice."""
    found = read_json_value(path)
    if not isinstance(found, dict):
        raise CorruptFileError(f"{path} holds a {type(found).__name__}, expected an object")
    return found


def read_json_value(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Any JSON value from a file of at most `max_bytes` bytes, with the same checks."""
    if not path.exists():
        raise NotFoundError(f"{path} is missing: a checkpoint folder holds one")
    check_regular(path)
    check_byte_count(path, max_bytes)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique_keys)
    except OSError as error:
        raise cannot_read(path, error) from error
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not JSON: {error}") from error


def json_error_text(error: ValueError | RecursionError) -> str:
    """Why a line is not JSON."""
    if isinstance(error, RecursionError):
        return "lists or objects nested too deeply: write them as a string"
    if "set_int_max_str_digits" in str(error):
        return f"a number of more than {sys.get_int_max_str_digits():,} digits: write it as a string"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg.removesuffix(' at')} (character {error.pos + 1})"
    return f"not JSON: {error}"


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """A checkpoint's UTF-8 text of at most `max_bytes` bytes; refused where it is too large or damaged."""
    check_regular(path)
    check_byte_count(path, max_bytes)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} is not UTF-8 text: {error}") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The `object_pairs_hook` for `json.loads` that refuses a key that appears twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:80]!r} appears twice")
        found[name] = value
    return found


def folder_entries(folder: Path) -> list[Path]:
    """The paths in a folder, sorted; [] where there is none, or it is a link."""
    return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []


def make_temporary_folder(prefix: str, *otherwise: MessagePart) -> Path:
    """A new temporary folder.  otherwise: further advice for the error.  Raises InputError where none can be made."""
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        wrong = f"cannot make a temporary folder ({error.strerror})"
        raise InputError(f"{wrong}: set TMPDIR to a folder that can be written", *otherwise) from error


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A temporary folder that is deleted at the end of the block."""
    folder = make_temporary_folder("pellucid-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
