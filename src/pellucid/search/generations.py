"""A folder of generations: one writer at a time, readers who see the old or the new one, and nothing in between.

    companies.index/
      generation-000007.json        the newest is what opens
      segments/000007/              files that are written once
      building/                     what an unfinished build has embedded so far
      lock

A generation is written in this order: the files of its new segments, each flushed to the disk; their folders; its
manifest beside its place, flushed, moved there; the folder. Killed at any moment, the newest manifest names only what
is whole. What no manifest names is taken away by the next writer.
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
PATIENCE = 10.0
"""Seconds that a second writer waits for the first."""

STAGED, _GENERATION = re.compile(r"[0-9a-f]{32}\.npz"), re.compile(r"generation-([0-9]{6,12})\.json")
_PROCESS = secrets.token_hex(8)
"""Which process this is: within a container others may have its number. A fork has it too, and a number of its own."""

_OWN_NAMES = {
    ".": re.compile(
        rf"{_GENERATION.pattern}|{SEGMENTS}|{BUILDING}|{LOCK}|{LOCK}\.json|\.(generation-|{LOCK}\.json-).*"
    ),
    SEGMENTS: re.compile(r"\.?[0-9]{6,12}"),
    BUILDING: re.compile(rf"{STAGED.pattern}|\.{STAGED.pattern}-.*"),
}
"""The names that an index gives, by folder. Nothing else is ever taken away."""


def newest_manifest(folder: Path) -> Manifest:
    """The generation that opens. Raises NotFoundError where there is no index, CorruptFileError where it is damaged."""
    while True:
        path = _newest_path(folder)
        try:
            return read_manifest(path)
        except FileNotFoundError as error:  # a writer has just taken it away, and put a newer one there
            if path == _newest_path(folder):
                raise CorruptFileError(f"{path} is a broken link: restore it, or build the index again") from error
        except OSError as error:
            raise cannot_read(path, error) from error


def _newest_path(folder: Path) -> Path:
    with file_errors(folder):  # a name that is too long, or within a folder of somebody else
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
    """Whether a folder is an index, or is being made one."""
    named = any(_GENERATION.fullmatch(path.name) for path in folder.glob("generation-*.json"))
    return (folder / SEGMENTS).is_dir() and (named or (folder / LOCK).is_file())


def checked_path(folder: Path, segment: Segment, name: str) -> Path:
    """The path of a segment's file, once its bytes are the ones that were written."""
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
    """The one writer of an index. Another one waits, and is told who writes; the lock of a dead process is none.

    new: the folder is made where it is not there, and taken away again where nothing came of it.
    Raises InputError for a folder that holds something else: what is not ours is not written over.
    """
    note = folder / f"{LOCK}.json"
    with contextlib.ExitStack() as locks:
        made = _acquire_lock(folder, note, locks, new=new)
        try:
            owner = {"pid": os.getpid(), "process": _PROCESS, "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            write_atomically(note, lambda file: file.write(json.dumps(owner).encode()))
            yield
        except BaseException:
            with contextlib.suppress(PellucidError, OSError):
                remove_unnamed(folder, newest_manifest(folder) if manifest_paths(folder) else None)
            raise
        finally:
            with contextlib.suppress(OSError):  # where somebody took the folder away, what happened within says more
                note.unlink(missing_ok=True)
                if made and {path.name for path in folder.iterdir()} <= {LOCK, SEGMENTS}:
                    shutil.rmtree(folder, ignore_errors=True)


def _acquire_lock(folder: Path, note: Path, locks: contextlib.ExitStack, *, new: bool) -> bool:
    """Holds the lock of an index until `locks` ends; whether its folder was not there before. Who waits for a build
    that comes to nothing sees the folder taken away, and makes it anew."""
    while True:
        made = _create_folder(folder) if new else not _newest_path(folder)  # without an index, no lock is left behind
        try:
            locks.enter_context(exclusive_lock(folder / LOCK, partial(_busy_message, folder, note), PATIENCE))
        except InputError:
            if not new or folder.is_dir():
                raise
        else:
            return made


@contextlib.contextmanager
def change_lock(folder: Path, reload: Callable[[], object]) -> Iterator[None]:
    """The one writer of a change.

    reload: reads what opens; before the change, and where somebody breaks it off once it is made.
    """
    made = False
    try:
        with writer_lock(folder):
            reload()
            before = _newest_number(folder)
            try:
                yield
                close_dropped()  # of the generation before, whose files are gone
            finally:
                made = _newest_number(folder) not in (before, None)
    except KeyboardInterrupt as stop:  # while the lock is given back, too
        if not made:
            raise
        reload()
        done = f"interrupted after {folder} was changed as requested: do not run the same again"
        raise Interrupted(done) from stop


def _newest_number(folder: Path) -> int | None:
    """The newest generation by its number; None where the folder is gone."""
    with contextlib.suppress(PellucidError):
        return max(manifest_paths(folder), default=None)


def _create_folder(folder: Path) -> bool:
    """Makes the folder of a new index; whether it was not there before."""
    check_folder_link(folder)
    try:
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        entries = [(path, ours) for part, ours in _OWN_NAMES.items() for path in folder_entries(folder / part)]
        strange = [path for path, ours in entries if not ours.fullmatch(path.name)]
    except OSError as error:
        raise cannot_write(folder, error) from error
    if strange:
        raise InputError(f"{folder} holds {strange[0].name!r}, which is not part of an index: give a new folder's name")
    if made:
        sync_to_disk(folder.parent)
    return made


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
    """Writes a segment beside its place, waits until all of it is on the disk, and moves it there.

    number: of the generation that it comes with.
    write: puts files into an empty folder, and says how many rows they hold, what was settled on, and the vectors where
        they need not be read again.
    """
    name = f"{number:06}"
    place, staging = folder / SEGMENTS / name, folder / SEGMENTS / f".{name}"
    try:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)  # of a writer that was killed before its manifest
        staging.mkdir(parents=True)
        rows, settings, made = write(staging)
        for path in (*sorted(staging.iterdir()), staging):
            sync_to_disk(path)
        staging.replace(place)
        for path in (place.parent, folder):
            sync_to_disk(path)
        files = {path.name: (path.stat().st_size, digest_of(path)) for path in sorted(place.iterdir())}
        return Segment(name, rows, settings.kind, files), settings, made
    except NotFoundError:
        raise  # a file of the corpus, which is nothing that could not be written
    except (OSError, sqlite3.OperationalError) as error:
        raise _write_error(place, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_error(place: Path, error: OSError | sqlite3.OperationalError) -> PellucidError:
    """Why a segment could not be written; where there was no room, how much there is."""
    if isinstance(error, OSError) and error.errno != errno.ENOSPC:
        return cannot_write(place, error)
    why = cannot_write(place, error) if isinstance(error, OSError) else f"cannot write {place}: {error}{_size_limit()}"
    return ResourceError(f"{why} ({shutil.disk_usage(place.parents[1]).free:,} bytes are free there)")


def _size_limit() -> str:
    """SQLite does not say that this is the reason: the most that a file may hold, where there is such a limit."""
    with contextlib.suppress(ImportError):  # another system
        import resource

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return "" if limit == resource.RLIM_INFINITY else f"; a file may have {limit:,} bytes (ulimit -f)"
    return ""


def commit(folder: Path, manifest: Manifest) -> None:
    """Makes a generation the newest, and then takes away what no generation names any more."""
    write_manifest(manifest, folder)
    sync_to_disk(folder)
    remove_unnamed(folder, manifest)


def remove_unnamed(folder: Path, manifest: Manifest | None) -> None:
    """Takes away what this generation does not name: older ones, and what writers that were killed have left. None, an
    index whose build was not finished, has only its `building` to keep."""
    number = 0 if manifest is None else manifest.generation
    older = [path for generation, path in manifest_paths(folder).items() if generation < number]
    for path in (*older, *folder.glob(".generation-*"), *folder.glob(f".{LOCK}.json-*")):
        with contextlib.suppress(OSError):  # it was said to be done, and is
            path.unlink(missing_ok=True)
    named = {segment.folder for segment in manifest.segments} if manifest else set()
    for place in folder_entries(folder / SEGMENTS):
        if place.name not in named and _OWN_NAMES[SEGMENTS].fullmatch(place.name):
            shutil.rmtree(place, ignore_errors=True)


def remove_staged(folder: Path) -> None:
    """Takes away what a build had kept of its work, once it is done."""
    for path in folder_entries(folder / BUILDING):
        if _OWN_NAMES[BUILDING].fullmatch(path.name):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody else's files are in it, or it was never there
        (folder / BUILDING).rmdir()
