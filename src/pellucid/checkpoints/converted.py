"""Packaged checkpoints in a foreign format: converted once into the user's cache, and then opened from there.

$PELLUCID_CACHE/converted/rampart-9f27d24949b0/     named by what it was made from
    config.json, model.safetensors, tokenizer, licences
    converted.json                                  what was written, file by file; written last
"""

import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pellucid.checkpoints.installed import Packaged
from pellucid.errors import InputError, PellucidError, ResourceError
from pellucid.files import cache, cannot_write, digest_of

log = logging.getLogger("pellucid")

VERSION = 1
"""Of the conversion: a folder that an older one wrote is made again."""

ACCOUNT = "converted.json"
PATIENCE = 300
"""Seconds to wait for another process that converts the same."""


def place_of(package: Packaged) -> Path:
    """The folder of a converted package, whether it is there or not."""
    return cache() / "converted" / f"{package.short}-{(package.digest or 'any')[:12]}"


def at_hand(package: Packaged) -> bool:
    """Whether it was converted, or there is where to."""
    try:
        folder = place_of(package)
        if _whole(folder):
            return True
        with tempfile.TemporaryFile(dir=next(one for one in folder.parents if one.exists())):
            return True  # rights alone do not say it: root has them where a disk is read alone
    except (InputError, OSError):
        return False


def converted(package: Packaged, home: Path) -> Path:
    """The folder with the checkpoint, made from the package's files in `home` where it is not there, or broken.

    Two processes at once make it once. Raises what `convert` raises, InputError where the cache cannot be written, and
    ResourceError where it is full.
    """
    folder = place_of(package)
    if _whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            if not _whole(folder):
                _make(package, home, folder)
    except OSError as error:
        raise _unwritable(cannot_write(folder, error)) from error
    except (InputError, ResourceError) as error:
        reason = error.__cause__  # of a file of the package the cache is not to blame
        written = isinstance(reason, OSError) and not Path(reason.filename or "").is_relative_to(home)
        raise (_unwritable(error) if written else error) from error
    return folder


def _make(package: Packaged, home: Path, folder: Path) -> None:
    from pellucid.checkpoints.convert import convert

    log.info("converting %s into %s, once", package.name, folder)
    new = folder.with_name(f".{folder.name}-new")  # nobody else is here: the lock is ours
    try:
        shutil.rmtree(new, ignore_errors=True)
        convert(home / package.weights, new, progress=False)
        files = {path.name: digest_of(path) for path in sorted(new.iterdir())}
        (new / ACCOUNT).write_text(json.dumps({"version": VERSION, "files": files}, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _whole(folder: Path) -> bool:
    """Whether everything that the account lists is there, bit for bit."""
    try:
        said: Any = json.loads((folder / ACCOUNT).read_text(encoding="utf-8"))
        if said["version"] != VERSION or "model.safetensors" not in said["files"]:
            return False
        return all(digest_of(folder / name) == wanted for name, wanted in said["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _lock(folder: Path) -> Any:
    from huggingface_hub.utils import WeakFileLock

    return WeakFileLock(folder.with_name(f"{folder.name}.lock"), timeout=PATIENCE)


def _unwritable(said: PellucidError) -> PellucidError:
    kind = ResourceError if isinstance(said, ResourceError) else InputError
    return kind(said, "; PELLUCID_CACHE names another place for what is converted once")
