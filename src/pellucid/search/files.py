"""Files of texts: those that a path or pattern matches, and one of them read as a text."""

import errno
import functools
import glob
import itertools
import os
from pathlib import Path

from pellucid.errors import InputError
from pellucid.files import cannot_read
from pellucid.paths import path_text
from pellucid.search.generations import is_index
from pellucid.text.lines import lines, size_and_time
from pellucid.text.truncation import MAX_CHARACTERS


def find_files(name: str | Path) -> tuple[list[Path], list[Path], list[InputError]]:
    """The files of a pattern or a folder, in order; the indexes found, whose own files are not texts; and errors for
    what is not readable. Links to folders are not followed, since they may form a circle. Hidden files are skipped,
    unless a part of the pattern begins with a dot.

    Raises InputError for an invalid path, and for a single file or folder that is not readable.
    """
    text = path_text(name)
    try:
        if not text:
            raise ValueError("it is empty")
        path = Path(text).expanduser()
        if glob.has_magic(str(path)) and not os.path.lexists(path):
            start = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), path.parts))
            pattern = path.relative_to(start)
        elif path.is_dir():
            start, pattern = path, Path("**", "*")
        else:
            return [path], [], []
        if start.is_dir() and not _is_accessible(start):
            raise _forbidden(start)
        every, closed = _matching(start, pattern)
        return *_outside_indexes(every, start), closed
    except PermissionError as error:
        raise cannot_read(error.filename or text, error) from error
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{text[:200]!r} is neither a path nor a pattern of files: {why}") from error


def _matching(start: Path, pattern: Path) -> tuple[list[Path], list[InputError]]:
    """The matches of a pattern, in order, and errors for unreadable folders, which `glob` ignores silently."""
    all_shown, parts = _is_hidden(pattern), pattern.parts

    def matches(several: tuple[str, ...]) -> set[Path]:
        found = start.glob(str(Path(*several)))
        return {one for one in found if all_shown or not _is_hidden(one.relative_to(start))}

    closed = set[Path]()
    for end in range(1, len(parts)):
        listed = parts[end - 1] == "**" or glob.has_magic(parts[end])  # else only one name is looked up in it
        closed |= {one for one in matches(parts[:end]) if not _is_accessible(one, listed=listed)}
    every, first = (
        sorted(one for one in several if closed.isdisjoint(one.parents)) for several in (matches(parts), closed)
    )
    return every, [cannot_read(one, _forbidden(one)) for one in first]


def _is_accessible(path: Path, *, listed: bool = True) -> bool:
    """Whether a folder can be entered, and listed where necessary; True for anything else."""
    rights = os.R_OK | os.X_OK if listed else os.X_OK
    return not os.path.isdir(path) or os.access(path, rights)  # noqa: PTH112 - Path raises where it is not accessible


def _forbidden(path: Path) -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") and part != ".." for part in path.parts)


def _outside_indexes(every: list[Path], start: Path) -> tuple[list[Path], list[Path]]:
    """The files that are in no index, and the indexes, from `start` on."""

    @functools.cache
    def index_of(folder: Path) -> Path | None:
        above = index_of(folder.parent) if folder not in (start, folder.parent) else None
        return above or (folder if is_index(folder) else None)

    paths = {path: index_of(path.parent) for path in every if not os.path.isdir(path)}  # noqa: PTH112 - as above
    indexes = dict.fromkeys(index for index in paths.values() if index is not None)
    return [path for path, index in paths.items() if index is None], list(indexes)


def read_text(path: Path, encoding: str) -> str:
    """A file as one text."""
    size, _ = size_and_time(path)
    if size > 4 * MAX_CHARACTERS:
        raise InputError(f"{path} has {size:,} bytes, expected at most {4 * MAX_CHARACTERS:,} of one text: split it")
    text = "".join(lines(path, encoding))
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{path} has {len(text):,} characters, expected at most {MAX_CHARACTERS:,}: split it first")
    return text
