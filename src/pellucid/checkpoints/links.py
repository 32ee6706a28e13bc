"""Symbolic links in a checkpoint folder: which may be followed, and which lead out of it."""

import contextlib
import os
import re
from pathlib import Path

from pellucid.checkpoints.model_files import NAMED_TEMPLATES
from pellucid.errors import UnsafeFileError
from pellucid.files import file_errors

READ_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".safetensors", ".bin", ".gguf", ".onnx")
"""Suffixes of the checkpoint files that are ever opened."""


def check_no_loop(path: Path) -> None:
    """Refuses circular links, which `exists` and `is_file` report as absent; paths that are absent or impossible
    pass."""
    with file_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
        path.stat()


def path_inside(folder: Path, name: object) -> Path:
    """A file of the checkpoint by its plain name. Raises UnsafeFileError where it leads outside the folder.

    Snapshots in the hub's cache link into the `blobs` of the same repository; only those links may be followed.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w][\w.-]{0,254}", name):
        raise UnsafeFileError(
            f"{folder} names a file {str(name)[:80]!r}, expected a plain file name in the same folder"
        )
    return check_link(folder, folder / name)


def refuse_links_of_folder(folder: Path) -> None:
    """Refuses a checkpoint in which a file that may be opened links out of the folder, including files in subfolders,
    where sentence-transformers keeps its modules."""
    for path in folder.glob("*"):
        module_config = path / "config.json"
        if path.is_symlink() and path.suffix in READ_SUFFIXES:
            check_link(folder, path)
        elif module_config.is_symlink() and not path.is_symlink():
            check_link(folder, module_config)
    for path in folder.glob(NAMED_TEMPLATES):
        check_link(folder, path)


def check_link(folder: Path, path: Path) -> Path:
    """Returns the path of a checkpoint file. Raises UnsafeFileError for a link out of the folder, see `path_inside`."""
    real, root = Path(os.path.realpath(path)), folder.resolve()  # resolve() fails on circular links
    blobs = _blobs_folder(root)
    if real.is_relative_to(root) or (blobs is not None and real.is_relative_to(blobs)):
        return path
    raise UnsafeFileError(f"{path} is a link to {real}, outside the checkpoint; copy the file in if it belongs there")


def _blobs_folder(root: Path) -> Path | None:
    """The blobs folder of a snapshot in the hub's cache, or of a folder within one; None for any other folder."""
    repository = next((one.parent.parent for one in (root, *root.parents) if one.parent.name == "snapshots"), None)
    if repository is None or not (root.parent.parent == repository or repository.name.startswith("models--")):
        return None
    return repository / "blobs"
