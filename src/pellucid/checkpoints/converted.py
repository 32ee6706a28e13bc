"""Packaged checkpoints in a foreign format: converted once into the user's cache and then opened from there.

$PELLUCID_CACHE/converted/rampart-9f27d24949b0/     named after its source and the digest of that
    config.json, model.safetensors, tokenizer, licences
    converted.json                                  digest of each file; written last

Whoever can write a model controls its answers, so only files that no other user but root could have written are used.
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
from pellucid.files import cannot_write, digest_of, is_own
from pellucid.paths import cache_folder

log = logging.getLogger("pellucid")

VERSION = 1
"""Version of the conversion: folders written by an older one are converted again."""

MANIFEST = "converted.json"
LOCK_TIMEOUT = 300
"""Seconds to wait for another process that converts the same package."""

ROOT = 0
"""User id of root, who can write everywhere and often fills the cache of a container image."""

_OWNER_WRITES = 0o755
"""Permissions with which only the owner writes."""


def converted_path(package: Packaged) -> Path:
    """The folder of a converted package, whether it exists or not."""
    return (
        Path(os.path.realpath(cache_folder() / "converted")) / f"{package.short_name}-{(package.digest or 'any')[:12]}"
    )


def is_available(package: Packaged) -> bool:
    """Whether the package is converted, or could be: its cache folder is writable and safe."""
    try:
        folder = converted_path(package)
        if _is_intact(folder):
            return True
        _check_owner(folder.parent)
        with tempfile.TemporaryFile(dir=next(one for one in folder.parents if one.exists())):
            return True  # permissions are not enough: on a read-only disk root has them too
    except (InputError, OSError):
        return False


def convert_once(package: Packaged, package_folder: Path) -> Path:
    """The folder with the converted checkpoint, converted from `package_folder` where it is absent or damaged.

    Of two concurrent processes one converts. Raises what `convert` raises, InputError where the cache cannot be written
    or other users may write there, and ResourceError where the disk is full.
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
    except (InputError, ResourceError) as error:  # including those made of the system's missing files
        reason = error.__cause__  # the cache is not to blame for a file of the package
        if isinstance(reason, OSError) and not Path(reason.filename or "").is_relative_to(package_folder):
            raise _cache_error(error) from error
        raise
    except OSError as error:
        raise _cache_error(cannot_write(folder, error)) from error
    return folder


def _convert(package: Packaged, package_folder: Path, folder: Path) -> None:
    from pellucid.checkpoints.convert import convert

    log.info("converting %s into %s, once", package.name, folder)
    new = folder.with_name(f".{folder.name}-new")  # no other process: the lock is held
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
    """Whether all files of the manifest are present with their digests, and only this user or root could write them."""
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
    """Refuses a folder in which another user could replace our model."""
    if folder.exists() and not is_own(folder.stat(), ROOT):
        is_ours = folder.stat().st_uid == os.getuid()
        message = f"others may write in {folder}: run chmod go-w on it" if is_ours else f"{folder} is not yours"
        raise _cache_error(InputError(message))


def _cache_error(error: PellucidError) -> PellucidError:
    return type(error)(error, "; PELLUCID_CACHE names another folder for converted models")
