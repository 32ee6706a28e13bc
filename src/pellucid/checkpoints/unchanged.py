"""Guards a checkpoint while it is read: complete, from one save, and with the system's errors translated into ours."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pellucid.checkpoints.folder import CONFIG_FILES, interrupted_old_files
from pellucid.checkpoints.links import READ_SUFFIXES
from pellucid.checkpoints.location import DEFAULT_OPTIONS, HubOptions
from pellucid.checkpoints.source import FileStamp, Source, locate
from pellucid.errors import CorruptFileError, NotFoundError, PellucidError
from pellucid.files import file_errors
from pellucid.paths import path_text


@contextmanager
def unchanged_source(
    name: str | os.PathLike[str] | Source, hub_options: HubOptions = DEFAULT_OPTIONS
) -> Iterator[Source]:
    """The source of a checkpoint, watched for changes while the block runs: files and tensors are read one by one, and
    another process may replace some in between, which would mix two models.

    Raises CorruptFileError where that has happened, and InputError for a file that this user may not read.
    """
    source = None
    try:
        with file_errors():
            yield (source := with_stamps(name if isinstance(name, Source) else locate(name, hub_options)))
    except (PellucidError, OSError) as error:
        _check_unchanged(source, error)
        if source is not None:
            _check_interrupted_save(source.folder, error)
        elif isinstance(name, str | os.PathLike):
            _check_interrupted_save(Path(path_text(name)), error)
        raise
    _check_unchanged(source)


def with_stamps(source: Source) -> Source:
    """The source with the current stamps of its files; stamps that its base already has are kept."""
    return replace(source, file_stamps=_file_stamps(source) | (source.base.file_stamps if source.base else {}))


def changed_files(source: Source) -> list[Path]:
    """The files of a checkpoint that changed since it was stamped."""
    after = _file_stamps(source)
    return [path for path in {**source.file_stamps, **after} if source.file_stamps.get(path) != after.get(path)]


def _check_unchanged(source: Source | None, reason: Exception | None = None) -> None:
    for path in [] if source is None else changed_files(source):
        raise CorruptFileError(f"{path} was replaced while it was read: load it again") from reason


def _check_interrupted_save(folder: Path, reason: Exception) -> None:
    """Raises NotFoundError where an interrupted save moved a folder's files out and put none in."""
    if not any(os.path.lexists(folder / name) for name in CONFIG_FILES) and (old := interrupted_old_files(folder)):
        raise NotFoundError(
            f"{folder} holds no whole model: a save into it was interrupted, or is still running; wait for it, or "
            f"move the files in {old} back"
        ) from reason


def _file_stamps(source: Source) -> dict[Path, FileStamp]:
    """The current stamps of a checkpoint's files, and of an adapter's base."""
    found: dict[Path, FileStamp] = {}
    for one in (source, source.base):
        with suppress(OSError):  # reading it raises the proper error
            paths = () if one is None else (one.file,) if one.kind == "file" else tuple(one.folder.iterdir())
            found |= {
                path: stamp for path in paths if path and path.suffix in READ_SUFFIXES and (stamp := _file_stamp(path))
            }
    return found


def _file_stamp(path: Path) -> FileStamp | None:
    """The stamp of a file; None for a dangling link or a file that is gone."""
    with suppress(OSError):
        info = path.stat()
        return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns  # ctime cannot be reset
    return None
