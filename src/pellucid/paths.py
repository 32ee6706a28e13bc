"""Paths that a caller names: checked, expanded and followed, before any file is opened."""

import contextlib
import os
import re
from pathlib import Path

from pellucid.errors import InputError, shorten
from pellucid.files import cannot_write

MAX_LINKS = 40
"""The length of a chain of links that a system follows."""

_DESCRIPTORS = re.compile(r"/proc/\d+(/task/\d+)?/fd")
"""Where Linux lists a process's open files."""


def path_text(name: str | os.PathLike[str]) -> str:
    """A path as plain text: the value of a string Enum, the decoded bytes of an `os.PathLike`. Raises InputError for
    anything that is not a path."""
    try:
        if isinstance(name, str | os.PathLike):
            return str.__str__(os.fsdecode(os.fspath(name)))
    except (TypeError, ValueError) as error:  # neither text nor bytes, or bytes that cannot be decoded
        raise InputError(f"{shorten(repr(name))} is a path that cannot be made a text: {error}") from error
    raise InputError(f"{shorten(repr(name))} is {type(name).__name__}, expected the path of a file or folder")


def path_of(name: str | os.PathLike[str]) -> Path:
    """The path of a name, with `~` expanded. Raises InputError for anything that is not a path, and where no file can
    exist: a name that is empty, is too long or holds a NUL, an unknown user's home, a folder without access."""
    if (text := path_text(name)) == "":  # which Python takes for the current folder
        raise InputError("the name is empty, expected the path of a file or folder")
    try:
        path = Path(text).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{text[:80]!r} is not a valid path here: {reason}; choose another one") from error
    return path


def target_of(name: str | os.PathLike[str]) -> Path:
    """The file to write, existing or not, for a name from the caller: a link is followed to its target.

    Raises InputError as `path_of` does, for a pipe or a device, which a file would replace, and for a link whose target
    cannot be determined.
    """
    path = path_of(name)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except OSError as error:  # a link to itself, or into a folder without access
        raise cannot_write(path, error) from error
    if (path.exists() and not path.is_file() and not path.is_dir()) or _is_descriptor(path):
        raise InputError(f"cannot write {path}: it is a pipe or a device, expected the name of a file")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _is_descriptor(path: Path) -> bool:
    """Whether this names a process's open file, such as /dev/fd/3, into which it may be writing."""
    for _ in range(MAX_LINKS):
        if not path.is_symlink():
            break
        if _DESCRIPTORS.fullmatch(os.path.realpath(path.parent)):
            return True
        path = path.parent / path.readlink()
    return False


def check_suffix(name: str, path: str | os.PathLike[str], *endings: str) -> None:
    """Raises InputError for a file name with none of these endings."""
    if path_of(path).suffix.lower() not in endings:
        raise InputError(f"{name} is {path_text(path)}, expected a name that ends in {' or '.join(endings)}")


def cache_folder() -> Path:
    """The folder for rebuildable files: `PELLUCID_CACHE`, else `pellucid` in `XDG_CACHE_HOME` or ~/.cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "pellucid")
    folder = Path(os.environ.get("PELLUCID_CACHE") or usual)
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise InputError(f"{shorten(str(folder))} names an unknown user: set PELLUCID_CACHE to a folder") from error
