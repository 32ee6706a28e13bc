"""An index folder of generations: one writer at a time, and readers that see the old or the new one, never a mixture.

    companies.index/
      generation-000007.json        the newest is the one that opens
      segments/000007/              files that are written once
      building/                     what an unfinished build has embedded so far
      lock

A generation is written in this order: the files of its new segments, each flushed to disk; their folders; its manifest
under a temporary name, flushed, then renamed; the folder. Whenever the writer is killed, the newest manifest names only
complete files. The next writer removes what no manifest names.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shlex
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pellucid.checkpoints.folder import check_folder_link
from pellucid.errors import (
    CorruptFileError,
    InputError,
    Interrupted,
    NotFoundError,
    PellucidError,
    ResourceError,
    UnsafeFileError,
)
from pellucid.files import (
    cannot_read,
    cannot_write,
    digest_of,
    file_errors,
    folder_entries,
    sync_to_disk,
    write_atomically,
)
from pellucid.lock import exclusive_lock
from pellucid.search.connections import close_dropped
from pellucid.search.manifest import Manifest, Segment, Settings, read_manifest, write_manifest
from pellucid.search.vectors import Vectors

SEGMENTS, BUILDING, LOCK = "segments", "building", "lock"
TIMEOUT = 10.0
"""Seconds that a second writer waits for the first."""

STAGED, _GENERATION = re.compile(r"[0-9a-f]{32}\.npz"), re.compile(r"generation-([0-9]{6,12})\.json")
_PROCESS = secrets.token_hex(8)
"""Identifies this process: in another container a process may have the same pid. A fork shares it, but not the pid."""

_OWN_NAMES = {
    ".": re.compile(
        rf"{_GENERATION.pattern}|{SEGMENTS}|{BUILDING}|{LOCK}|{LOCK}\.json|\.(generation-|{LOCK}\.json-).*"
    ),
    SEGMENTS: re.compile(r"\.?[0-9]{6,12}"),
    BUILDING: re.compile(rf"{STAGED.pattern}|\.{STAGED.pattern}-.*"),
}
"""The names that an index uses, by folder. Nothing else is ever removed."""


def newest_manifest(folder: Path) -> Manifest:
    """The manifest of the newest generation. Raises NotFoundError for no index, CorruptFileError for a damaged one."""
    while True:
        path = _newest_path(folder)
        try:
            return read_manifest(path)
        except FileNotFoundError as error:  # a writer has just replaced it with a newer one
            if path == _newest_path(folder):
                raise CorruptFileError(f"{path} is a broken link: restore it, or build the index again") from error
        except OSError as error:
            raise cannot_read(path, error) from error


def _newest_path(folder: Path) -> Path:
    with file_errors(folder):  # a name that is too long, or in an inaccessible folder
        there = folder.is_dir()
    if not there:
        build = f"pellucid index build FILE -o {shlex.quote(str(folder))}"
        raise NotFoundError(f"there is no index {str(folder)!r}: build one with {build}")
    found = manifest_paths(folder)
    if not found:
        unfinished = (folder / BUILDING).is_dir()
        advice = "its build was not finished: run the same build again to continue" if unfinished else "no generation"
        raise NotFoundError(f"{folder} holds no index ({advice})")
    return found[max(found)]


def manifest_paths(folder: Path) -> dict[int, Path]:
    """The manifests of a folder, by their numbers."""
    with file_errors(folder):
        named = {path: _GENERATION.fullmatch(path.name) for path in folder.iterdir()}
    return {int(found[1]): path for path, found in named.items() if found}


def is_index(folder: Path) -> bool:
    """Whether a folder is an index, or is being built as one."""
    named = any(_GENERATION.fullmatch(path.name) for path in folder.glob("generation-*.json"))
    return (folder / SEGMENTS).is_dir() and (named or (folder / LOCK).is_file())


def checked_path(folder: Path, segment: Segment, name: str) -> Path:
    """The path of a segment's file, after checking its size and digest."""
    path = folder / SEGMENTS / segment.folder / name
    size, digest = segment.files[name]
    try:
        if any(one.is_symlink() for one in (path.parents[1], path.parent, path)):
            raise UnsafeFileError(f"{path} is reached by a link, which may lead outside: put the file itself there")
        if not path.is_file() and path.exists():
            raise CorruptFileError(f"{path} is not a regular file: put the file itself there")
        fits = path.stat().st_size == size and digest_of(path) == digest
    except FileNotFoundError as error:
        raise CorruptFileError(f"{path} is missing: restore it, or build the index again") from error
    except OSError as error:
        raise cannot_read(path, error) from error
    if not fits:
        raise CorruptFileError(f"{path} was changed since it was written: restore it, or build the index again")
    return path


@contextlib.contextmanager
def writer_lock(folder: Path, *, new: bool = False) -> Iterator[None]:
    """Locks an index for one writer. Another waits, then gets an error naming this one; a dead process holds no lock.

    new: creates the folder if it does not exist, and removes it where nothing was written.
    Raises InputError for a folder that contains anything else, which is never overwritten.
    """
    note = folder / f"{LOCK}.json"
    with contextlib.ExitStack() as locks:
        is_new = _acquire_lock(folder, note, locks, new=new)
        try:
            owner = {"pid": os.getpid(), "process": _PROCESS, "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            write_atomically(note, lambda file: file.write(json.dumps(owner).encode()))
            yield
        except BaseException:
            with contextlib.suppress(PellucidError, OSError):
                remove_unnamed(folder, newest_manifest(folder) if manifest_paths(folder) else None)
            raise
        finally:
            with contextlib.suppress(OSError):  # if the folder was removed, the error inside says more
                note.unlink(missing_ok=True)
                if is_new and {path.name for path in folder.iterdir()} <= {LOCK, SEGMENTS}:
                    shutil.rmtree(folder, ignore_errors=True)


def _acquire_lock(folder: Path, note: Path, locks: contextlib.ExitStack, *, new: bool) -> bool:
    """Holds the lock of an index until `locks` closes; returns whether its folder was created. A writer that waits for
    a build that fails finds the folder removed, and creates it anew."""
    while True:
        is_new = _create_folder(folder) if new else not _newest_path(folder)  # raises where there is no index
        try:
            locks.enter_context(exclusive_lock(folder / LOCK, partial(_busy_message, folder, note), TIMEOUT))
        except InputError:
            if not new or folder.is_dir():
                raise
        else:
            return is_new


@contextlib.contextmanager
def change_lock(folder: Path, reload: Callable[[], object]) -> Iterator[None]:
    """Locks an index for a change.

    reload: reads the newest generation; before the change, and where it is interrupted after the commit.
    """
    is_new = False
    try:
        with writer_lock(folder):
            reload()
            before = _newest_number(folder)
            try:
                yield
                close_dropped()  # of the previous generation, whose files are gone
            finally:
                is_new = _newest_number(folder) not in (before, None)
    except KeyboardInterrupt as stop:  # also while the lock is released
        if not is_new:
            raise
        reload()
        done = f"interrupted after {folder} was changed as requested: do not run the same again"
        raise Interrupted(done) from stop


def _newest_number(folder: Path) -> int | None:
    """The number of the newest generation; None where the folder is gone."""
    with contextlib.suppress(PellucidError):
        return max(manifest_paths(folder), default=None)


def _create_folder(folder: Path) -> bool:
    """Creates the folder of a new index; returns whether it did not exist."""
    check_folder_link(folder)
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        entries = [(path, own_name) for part, own_name in _OWN_NAMES.items() for path in folder_entries(folder / part)]
        strange = [path for path, own_name in entries if not own_name.fullmatch(path.name)]
    except OSError as error:
        raise cannot_write(folder, error) from error
    if strange:
        raise InputError(f"{folder} holds {strange[0].name!r}, which is not part of an index: give a new folder's name")
    if is_new:
        sync_to_disk(folder.parent)
    return is_new


def _busy_message(folder: Path, note: Path) -> str:
    name = "another process"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        owner = json.loads(note.read_text())
        mine = (owner["pid"], owner.get("process")) == (os.getpid(), _PROCESS)
        name = f"{'this process itself' if mine else 'process ' + str(owner['pid'])} since {owner['since']}"
    return f"{folder} is being written by {name}: wait until that is done"


def write_segment(
    folder: Path, number: int, write: Callable[[Path], tuple[int, Settings, Vectors | None]]
) -> tuple[Segment, Settings, Vectors | None]:
    """Writes a segment in a temporary folder, flushes it to disk, and renames it.

    number: of the new generation.
    write: writes files into an empty folder, and returns their number of rows, the settings with `kind` and `efSearch`
        decided, and the vectors where they need not be read again.
    """
    name = f"{number:06}"
    target, staging = folder / SEGMENTS / name, folder / SEGMENTS / f".{name}"
    try:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)  # of a writer that was killed before writing its manifest
        staging.mkdir(parents=True)
        rows, settings, vectors = write(staging)
        for path in (*sorted(staging.iterdir()), staging):
            sync_to_disk(path)
        staging.replace(target)
        for path in (target.parent, folder):
            sync_to_disk(path)
        files = {path.name: (path.stat().st_size, digest_of(path)) for path in sorted(target.iterdir())}
        return Segment(name, rows, settings.kind, files), settings, vectors
    except NotFoundError:
        raise  # a missing file of the corpus, not a failure to write
    except (OSError, sqlite3.OperationalError) as error:
        raise _write_error(target, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_error(path: Path, error: OSError | sqlite3.OperationalError) -> PellucidError:
    """The error for a segment that could not be written; on a full disk with the space left."""
    if isinstance(error, OSError) and error.errno != errno.ENOSPC:
        return cannot_write(path, error)
    why = cannot_write(path, error) if isinstance(error, OSError) else f"cannot write {path}: {error}{_size_limit()}"
    return ResourceError(f"{why} ({shutil.disk_usage(path.parents[1]).free:,} bytes are free there)")


def _size_limit() -> str:
    """The limit of a file's size, where there is one; SQLite does not report it as the cause."""
    with contextlib.suppress(ImportError):  # another system
        import resource

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return "" if limit == resource.RLIM_INFINITY else f"; a file may have {limit:,} bytes (ulimit -f)"
    return ""


def commit(folder: Path, manifest: Manifest) -> None:
    """Makes a generation the newest, then removes what no generation names any more."""
    write_manifest(manifest, folder)
    sync_to_disk(folder)
    remove_unnamed(folder, manifest)


def remove_unnamed(folder: Path, manifest: Manifest | None) -> None:
    """Removes what this generation does not name: older ones, and what killed writers have left. For None, an index
    whose first build is unfinished, only `building` is kept."""
    number = 0 if manifest is None else manifest.generation
    older = [path for generation, path in manifest_paths(folder).items() if generation < number]
    for path in (*older, *folder.glob(".generation-*"), *folder.glob(f".{LOCK}.json-*")):
        with contextlib.suppress(OSError):  # the generation is committed already
            path.unlink(missing_ok=True)
    named = {segment.folder for segment in manifest.segments} if manifest else set()
    for segment_folder in folder_entries(folder / SEGMENTS):
        if segment_folder.name not in named and _OWN_NAMES[SEGMENTS].fullmatch(segment_folder.name):
            shutil.rmtree(segment_folder, ignore_errors=True)


def remove_staged(folder: Path) -> None:
    """Removes the vectors that a build has stored, once it is done."""
    for path in folder_entries(folder / BUILDING):
        if _OWN_NAMES[BUILDING].fullmatch(path.name):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it holds foreign files, or does not exist
        (folder / BUILDING).rmdir()
