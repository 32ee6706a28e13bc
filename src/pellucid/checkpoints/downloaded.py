"""Verifies downloaded files against the hub's listing, and coordinates concurrent downloads."""

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pellucid.checkpoints.location import hub_client
from pellucid.files import digest_of

log = logging.getLogger("pellucid")

_SILENT_WAIT = 10.0
"""Seconds to wait for another process before a warning."""

_STALE_AFTER = 60.0
"""Seconds since the last byte of a download after which it may be abandoned."""


@contextlib.contextmanager
def commit_lock(name: str, repository: Path, commit: str, missing: Iterable[Any]) -> Iterator[None]:
    """Locks a commit of a repository in the hub's cache for the block, against other processes that fetch it through
    pellucid; warns once while waiting.

    missing: the hub client's record of each file to fetch. Other tools that are fetching one of them are waited for
        first, since the client would wait without a message.
    """
    locks = _locks(repository)
    locks.mkdir(parents=True, exist_ok=True)
    with _file_lock(name, locks / f"commit-{commit}.lock"):
        for blob_name in {_blob_name(listed) for listed in missing}:
            if blob_name.isalnum():  # other names could lead out of the folder
                with _file_lock(name, locks / f"{blob_name}.lock"):
                    pass
        yield


@contextlib.contextmanager
def _file_lock(name: str, lock: Path) -> Iterator[None]:
    lock_class = hub_client().utils.WeakFileLock
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_class(lock, timeout=_SILENT_WAIT))
        except TimeoutError:
            notice = "another process is fetching %s: waiting until it is done; if it has stopped, end it (it holds %s)"
            log.warning(notice, name, lock)
            stack.enter_context(lock_class(lock))
        yield


def _locks(repository: Path) -> Path:
    """Where the hub's client keeps the locks of a repository."""
    return repository.parent / ".locks" / repository.name


def listing_mismatch(path: Path, listed: Any) -> str | None:
    """How a file differs from the hub's listing, as the end of a sentence; None where it does not.

    listed: the hub client's record of the file: `size`, `lfs` with its sha256 or `blob_id`, git's own sha1; each of
        them None where the hub does not give it
    """
    size = path.stat().st_size
    if listed.size is not None and size != listed.size:
        return f"{size:,} bytes, where the hub lists {listed.size:,}"
    if listed.lfs is not None:
        algorithm, expected, found = "sha256", listed.lfs.sha256, digest_of(path)
    elif listed.blob_id is not None:
        blob = b"blob %d\0" % size + path.read_bytes()
        algorithm, expected, found = "sha1", listed.blob_id, hashlib.sha1(blob, usedforsecurity=False).hexdigest()
    else:
        return None
    return None if found == expected else f"the {algorithm} {found[:12]}…, where the hub lists {expected[:12]}…"


def remove_from_snapshot(path: Path) -> None:
    """Deletes a file of a snapshot together with its blob, so that it is fetched again."""
    for one in _with_blob(path):
        one.unlink(missing_ok=True)


def _with_blob(path: Path) -> list[Path]:
    """A file of a snapshot, and the blob that it links to in the same repository."""
    if ".." in path.parts:  # the hub may have listed such a name; no snapshot holds one
        return []
    found = [path]
    if path.is_symlink():
        blob = Path(os.path.normpath(path.parent / path.readlink()))
        if blob.parent.name == "blobs" and blob.parents[1] in path.parents:
            found.append(blob)
    return found


@contextlib.contextmanager
def set_aside(folder: Path, listed: Mapping[str, Any]) -> Iterator[None]:
    """Moves files of a snapshot aside for the block, and blobs of other commits that the hub's client would reuse for
    them. On success they are deleted, on an error put back.

    listed: the hub client's record of each of these files.
    """
    moved: list[tuple[Path, Path]] = []
    try:
        for path in (one for file, about in listed.items() for one in _conflicting_files(folder, file, about)):
            if os.path.lexists(path):
                moved.append((path, path.with_name(f"{path.name}.aside")))
                path.rename(moved[-1][1])
        yield
    except BaseException:
        for path, moved_path in reversed(moved):
            if os.path.lexists(moved_path):
                moved_path.replace(path)
        raise
    for _, moved_path in moved:
        moved_path.unlink()


def _conflicting_files(folder: Path, file: str, listed: Any) -> Iterator[Path]:
    yield from _with_blob(folder / file)
    blob = folder.parent.parent / "blobs" / _blob_name(listed)
    if listed.size is not None and blob.is_file() and blob.stat().st_size != listed.size:
        yield blob


def _blob_name(listed: Any) -> str:
    """The name of a file's blob in the hub's cache, and of the lock under which it is fetched."""
    return str(listed.lfs.sha256 if listed.lfs is not None else listed.blob_id)


def remove_stale_downloads(repository: Path) -> None:
    """Deletes the remains of killed downloads: those that are not locked and have not been written to for a minute,
    since on some file systems locks have no effect."""
    for path in (repository / "blobs").glob("*.incomplete"):
        lock = _locks(repository) / f"{path.name.partition('.')[0]}.lock"
        with contextlib.suppress(OSError):  # locked, already deleted, or of another user
            if time.time() - path.stat().st_mtime > _STALE_AFTER:
                with hub_client().utils.WeakFileLock(lock, timeout=0.1):
                    path.unlink()
