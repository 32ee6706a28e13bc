"""Links in the folder of a checkpoint: those that may be followed, and those that lead out of it."""

import contextlib
import os
import re
from pathlib import Path

from pellucid.checkpoints.model_files import NAMED_TEMPLATES
from pellucid.errors import UnsafeFileError
from pellucid.files import file_errors

READ_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".safetensors", ".bin", ".gguf", ".onnx")
"""How the files of a checkpoint end that are ever opened."""


def check_no_loop(path: Path) -> None:
    """Refuses links in a circle, of which `exists` and `is_file` say that nothing is there; what is not there, or can
    be no path, passes."""
    with file_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
        path.stat()


def path_inside(folder: Path, name: object) -> Path:
    """A file of the checkpoint by its plain name; one that leads outside the folder is refused.

    The hub's cache holds links into the `blobs` of the same repository; those, and no others, may be followed.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w][\w.-]{0,254}", name):
        raise UnsafeFileError(
            f"{folder} names a file {str(name)[:80]!r}, expected a plain file name in the same folder"
        )
    return check_link(folder, folder / name)


def refuse_links_of_folder(folder: Path) -> None:
    """Refuses a checkpoint in which a file that may be opened is a link out of its folder, or one in the folders in it,
    for the modules of sentence-transformers have theirs."""
    for path in folder.glob("*"):
        module_config = path / "config.json"
        if path.is_symlink() and path.suffix in READ_SUFFIXES:
            check_link(folder, path)
        elif module_config.is_symlink() and not path.is_symlink():
            check_link(folder, module_config)
    for path in folder.glob(NAMED_TEMPLATES):
        check_link(folder, path)


def check_link(folder: Path, path: Path) -> Path:
    """The path of a file of a checkpoint; refused where it is a link out of the folder, as `path_inside` says."""
    real, root = Path(os.path.realpath(path)), folder.resolve()  # resolve() fails at links in a circle
    blobs = _blobs_folder(root)
    if real.is_relative_to(root) or (blobs is not None and real.is_relative_to(blobs)):
        return path
    raise UnsafeFileError(f"{path} is a link to {real}, outside the checkpoint; copy the file in if it belongs there")


def _blobs_folder(root: Path) -> Path | None:
    """Where the files of a snapshot in the hub's cache lie, or of a folder below one; None for any other folder."""
    repository = next((one.parent.parent for one in (root, *root.parents) if one.parent.name == "snapshots"), None)
    if repository is None or not (root.parent.parent == repository or repository.name.startswith("models--")):
        return None
    return repository / "blobs"
