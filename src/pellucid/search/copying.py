"""Copies one generation of an index to a new folder."""

import shutil
import tempfile
from pathlib import Path

from pellucid.checkpoints.folder import check_folder_link
from pellucid.errors import CorruptFileError, InputError
from pellucid.files import cannot_write, sync_to_disk
from pellucid.search.generations import SEGMENTS, checked_path, newest_manifest
from pellucid.search.manifest import Manifest, write_manifest


def copy_generation(folder: Path, manifest: Manifest, target: Path) -> Path:
    """Copies one generation to a new folder, which appears once everything is on disk."""
    temporary = None
    try:
        check_folder_link(target)
        if target.exists():
            raise InputError(f"{target} exists already: give the name of a new folder")
        if target.parent.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{target} lies within the index itself, which removes files that are not its own")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))  # an unpredictable name
        staging = temporary / "new"
        for segment in manifest.segments:
            segment_folder = staging / SEGMENTS / segment.folder
            segment_folder.mkdir(parents=True)
            for name in segment.files:
                shutil.copyfile(checked_path(folder, segment, name), segment_folder / name)
                sync_to_disk(checked_path(staging, segment, name))
            sync_to_disk(segment_folder)
        (staging / SEGMENTS).mkdir(parents=True, exist_ok=True)
        sync_to_disk(staging / SEGMENTS)
        write_manifest(manifest, staging)
        sync_to_disk(staging)
        staging.replace(target)
        sync_to_disk(target.parent)
    except (CorruptFileError, OSError) as error:
        if isinstance(error, CorruptFileError | FileNotFoundError) and newest_manifest(folder) != manifest:
            raise InputError(f"{folder} was changed meanwhile: open it again, and save again") from error
        if isinstance(error, OSError):
            raise cannot_write(target, error) from error
        raise
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return target
