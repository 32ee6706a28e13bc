"""Packaged checkpoints in a foreign format: converted once into the user's cache, and then opened from there.

$PELLUCID_CACHE/converted/rampart-9f27d24949b0/     named by what it was made from
    config.json, model.safetensors, tokenizer, licences
    converted.json                                  what was written, file by file; written last

A model says what its maker likes, so nothing is taken that somebody else could have written, but for root.
"""

import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pellucid.checkpoints.installed import Packaged
from pellucid.errors import InputError, PellucidError, ResourceError
from pellucid.files import cache_folder, cannot_write, digest_of, is_own

log = logging.getLogger("pellucid")

VERSION = 1
"""Of the conversion: a folder that an older one wrote is made again."""

MANIFEST = "converted.json"
LOCK_TIMEOUT = 300
"""Seconds to wait for another process that converts the same."""

ROOT = 0
"""The user who can write everywhere, and often fills the cache of an image that others run."""

_OWNER_WRITES = 0o755
"""Rights by which only the owner writes."""


def converted_path(package: Packaged) -> Path:
    """The folder of a converted package, whether it is there or not."""
    return (
        Path(os.path.realpath(cache_folder() / "converted")) / f"{package.short_name}-{(package.digest or 'any')[:12]}"
    )


def is_available(package: Packaged) -> bool:
    """Whether it was converted, or there is where to."""
    try:
        folder = converted_path(package)
        if _is_intact(folder):
            return True
        _check_owner(folder.parent)
        with tempfile.TemporaryFile(dir=next(one for one in folder.parents if one.exists())):
            return True  # rights alone do not say it: root has them where a disk is read alone
    except (InputError, OSError):
        return False


def convert_once(package: Packaged, package_folder: Path) -> Path:
    """The folder with the checkpoint, made from the files in `package_folder` where it is not there, or broken.

    Two processes at once make it once. Raises what `convert` raises, InputError where the cache cannot be written
    or others may write there, and ResourceError where it is full.
    """
    folder = converted_path(package)
    if _is_intact(folder):
        return folder
    from huggingface_hub.utils import WeakFileLock

    try:
        folder.parent.mkdir(mode=_OWNER_WRITES, parents=True, exist_ok=True)
        _check_owner(folder.parent)
        with WeakFileLock(folder.with_name(f"{folder.name}.lock"), timeout=LOCK_TIMEOUT):
            if not _is_intact(folder):
                _convert(package, package_folder, folder)
    except (InputError, ResourceError) as error:  # of which those of a missing file are the system's too
        reason = error.__cause__  # of a file of the package the cache is not to blame
        if isinstance(reason, OSError) and not Path(reason.filename or "").is_relative_to(package_folder):
            raise _cache_error(error) from error
        raise
    except OSError as error:
        raise _cache_error(cannot_write(folder, error)) from error
    return folder


def _convert(package: Packaged, package_folder: Path, folder: Path) -> None:
    from pellucid.checkpoints.convert import convert

    log.info("converting %s into %s, once", package.name, folder)
    new = folder.with_name(f".{folder.name}-new")  # nobody else is here: the lock is ours
    try:
        shutil.rmtree(new, ignore_errors=True)
        convert(package_folder / package.weights, new, progress=False)
        files = {path.name: digest_of(path) for path in sorted(new.iterdir())}
        (new / MANIFEST).write_text(json.dumps({"version": VERSION, "files": files}, indent=2) + "\n", encoding="utf-8")
        for path in (new, *new.iterdir()):
            path.chmod(path.stat().st_mode & _OWNER_WRITES)  # whatever the umask lets others write
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _is_intact(folder: Path) -> bool:
    """Whether everything that the account lists is there, bit for bit, and nobody else can have written it."""
    try:
        if not all(is_own(path.lstat(), ROOT) for path in (folder.parent, folder, *folder.iterdir())):
            return False
        manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["version"] != VERSION or "model.safetensors" not in manifest["files"]:
            return False
        return all(digest_of(folder / name) == digest for name, digest in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _check_owner(folder: Path) -> None:
    """Refuses a folder in which somebody else could put a model in the place of ours."""
    if folder.exists() and not is_own(folder.stat(), ROOT):
        is_ours = folder.stat().st_uid == os.getuid()
        message = f"others may write in {folder}: run chmod go-w on it" if is_ours else f"{folder} is not yours"
        raise _cache_error(InputError(message))


def _cache_error(error: PellucidError) -> PellucidError:
    return type(error)(error, "; PELLUCID_CACHE names another folder for converted models")
