"""Files that hold texts: which there are behind a name, and one of them as a text."""

import functools
import glob
import itertools
import os
from pathlib import Path

from pellucid.errors import InputError
from pellucid.files import name_of
from pellucid.search.generations import is_index
from pellucid.text.cut import MOST_CHARACTERS
from pellucid.text.lines import lines, size_and_time


def found(name: str | Path) -> tuple[list[Path], list[Path]]:
    """The files of a pattern or of a folder, in order, and the indexes there, whose own files are no texts. Links to
    folders are not followed, they may lead in a circle. What is hidden is left out, unless the pattern says a dot."""
    text = name_of(name)
    try:
        if not text:
            raise ValueError("it is empty")
        path = Path(text).expanduser()
        if glob.has_magic(str(path)) and not os.path.lexists(path):
            start = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), path.parts))
            pattern = path.relative_to(start)
            every = start.glob(str(pattern))
            every = every if _hidden(pattern) else (one for one in every if not _hidden(one.relative_to(start)))
        elif path.is_dir():
            start, every = path, (one for one in path.rglob("*") if not _hidden(one.relative_to(path)))
        else:
            return [path], []
        return _beside_indexes(sorted(every), start)
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{text[:200]!r} is no path, and no pattern of files: {why}") from error


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _beside_indexes(every: list[Path], start: Path) -> tuple[list[Path], list[Path]]:
    """What is no folder and lies in no index, and the indexes, from `start` on."""

    @functools.cache
    def index_of(folder: Path) -> Path | None:
        above = index_of(folder.parent) if folder not in (start, folder.parent) else None
        return above or (folder if is_index(folder) else None)

    paths = {path: index_of(path.parent) for path in every if not path.is_dir()}
    indexes = dict.fromkeys(index for index in paths.values() if index is not None)
    return [path for path, index in paths.items() if index is None], list(indexes)


def whole(path: Path, encoding: str) -> str:
    """A file as one text."""
    size, _ = size_and_time(path)
    if size > 4 * MOST_CHARACTERS:
        raise InputError(f"{path} has {size:,} bytes, expected at most {4 * MOST_CHARACTERS:,} of one text: split it")
    text = "".join(lines(path, encoding))
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{path} has {len(text):,} characters, expected at most {MOST_CHARACTERS:,}: split it first")
    return text
