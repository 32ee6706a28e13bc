"""Saves a checkpoint folder atomically: it is written next to its target first and then moved there."""

import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from torch import Tensor

from pellucid.checkpoints import model_files
from pellucid.config.checks import check_bool
from pellucid.errors import Argument, InputError, MessagePart, PellucidError
from pellucid.files import cannot_write, file_errors, sync_to_disk
from pellucid.lock import exclusive_lock

CONFIG_FILES = ("config.json", "adapter_config.json")
"""A folder without any of these is not a checkpoint."""


NEW, OLD = "new", "old"
"""Subfolders for the new files, and for the old ones while they are being replaced."""

OVERWRITE = Argument("overwrite", True)
"""The argument that permits replacing files."""


def check_target(target: Path, *, overwrite: bool, advice: MessagePart = ("pass ", OVERWRITE)) -> None:
    """Refuses a target that is a file, or a folder with files that may not be overwritten.

    advice: the alternative to another folder, for the error.
    """
    check_bool("overwrite", overwrite)
    check_folder_link(_resolved_target(target))
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file, expected a folder to write into")
    if files_in(target) and not overwrite:
        raise InputError(f"{target} already holds files: choose a new folder or ", advice)
    if not overwrite and (old := interrupted_old_files(target)):  # a save that succeeds removes them
        raise InputError(
            f"{target} was being saved into, and its previous content is in {old}: choose a new folder or ", advice
        )


def check_folder_link(path: Path) -> None:
    """Refuses a dangling or circular link, behind which no folder can be made."""
    if path.is_symlink() and not path.exists():
        raise InputError(f"cannot write {path}: it is a link that leads nowhere or in a circle; choose another folder")


def files_in(target: Path) -> list[Path]:
    """The files in a folder, without those that saves in progress or interrupted ones keep there.

    Raises InputError where it may not be read.
    """
    with file_errors(target):
        found = list(target.iterdir()) if target.is_dir() else []
    return [
        path
        for path in found
        if path.name != _lock_name(target) and not _temporary_pattern(target).fullmatch(path.name)
    ]


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A new folder to write into, which becomes `target` at the end; on any error it is removed.

    Files already in `target` stay, except those of the same name and those that belong to another model; on an error,
    Ctrl-C included, these are restored. A second process that saves into the same folder is refused, since the result
    would mix two models. What killed saves left is removed once the new files are in place.
    """
    target = _resolved_target(target)
    temporary_folder = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        parent = temporary_parent(target)
        with ExitStack() as locks:
            for where in sorted({parent, target} if target.is_dir() else {parent}):
                locks.enter_context(_save_lock(target, where))  # also inside: others may have no right to one beside it
            temporary_folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=parent))
            new = temporary_folder / NEW
            new.mkdir()  # with a new folder's default permissions; the one around it is private
            yield new
            _move_into_place(new, target)
            for leftover in _interrupted_saves(target):
                shutil.rmtree(leftover, ignore_errors=True)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        if temporary_folder is not None and not (temporary_folder / OLD).exists():
            shutil.rmtree(temporary_folder, ignore_errors=True)


def _resolved_target(target: Path) -> Path:
    """The real path where the last component is missing ("." or "..") or is a link, perhaps to another disk."""
    return Path(os.path.realpath(target)) if target.name in ("", "..") or target.is_symlink() else target


def temporary_parent(target: Path) -> Path:
    """The folder in which the new files of a save are written before they are moved: the parent of `target`, or an
    existing `target` itself where the parent is not writable or is on another disk, as with a mounted volume.

    Tests this by writing. Raises InputError where `target` cannot be saved into, ResourceError where the disk is full.
    """
    target = _resolved_target(target)
    parent, error = target.parent, _probe_error(target.parent, target)
    if error is not None and target.is_dir():
        parent, error = target, _probe_error(target, target)
    if error is None:
        return parent
    raise cannot_create_error(target, parent, error) from error


def cannot_create_error(target: Path, parent: Path, error: OSError) -> PellucidError:
    """Our error for an OSError on creating the temporary folder of `target` in `parent`."""
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return cannot_write(target, error)
    message = f"cannot write {target}: {error.strerror} in {parent}"
    return InputError(f"{message}: choose another folder, or let this user write there")


def _probe_error(parent: Path, target: Path) -> OSError | None:
    """The error, if any, on creating a folder in `parent` and moving it into `target`."""
    probe = None
    try:
        probe = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=parent))
        if target.is_dir():
            probe = probe.rename(target / probe.name)
        probe.rmdir()
    except OSError as error:
        if probe is not None:
            with suppress(OSError):
                probe.rmdir()
        return error
    return None


def _lock_name(target: Path) -> str:
    """The name of the lock file that lets one process save at a time."""
    return f".{_resolved_target(target).name}.lock"


def _temporary_pattern(target: Path) -> re.Pattern[str]:
    """Matches the names of temporary folders of saves."""
    return re.compile(
        rf"\.{re.escape(_resolved_target(target).name)}-[a-z0-9_]{{8}}"
    )  # as `tempfile` names them; does not match `NAME-else`


@contextmanager
def _save_lock(target: Path, folder: Path) -> Iterator[None]:
    lock = folder / _lock_name(target)
    with exclusive_lock(
        lock, lambda: f"another process saves into {target}: wait until it is done, or choose a new folder"
    ):
        try:
            yield
        finally:
            with suppress(OSError):  # Windows does so itself; while held, nobody else can lock it
                lock.unlink()


def _interrupted_saves(target: Path) -> list[Path]:
    """The temporary folders, beside `target` or in it, of saves that were killed or are in progress."""
    pattern = _temporary_pattern(target)
    candidates = (path for place in (target.parent, target) for path in place.glob(".*-*"))
    found = [path for path in candidates if pattern.fullmatch(path.name) and not path.is_symlink()]
    return [path for path in found if path.is_dir() and set() < _entry_names(path) <= {NEW, OLD}]


def _entry_names(folder: Path) -> set[str]:
    """The names in a folder; none where it cannot be read, such as another user's."""
    with suppress(OSError):
        return {one.name for one in folder.iterdir()}
    return set()


def interrupted_old_files(target: Path) -> Path | None:
    """Where the previous files of a folder are that a killed save had moved out; None where there are none."""
    with suppress(OSError, ValueError):  # the latter for a path with a NUL
        return next(
            (path / OLD for path in _interrupted_saves(_resolved_target(target)) if (path / OLD).is_dir()), None
        )
    return None


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes safetensors; every tensor is copied, since the library refuses tensors that share memory.

    metadata: for the file's header.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)  # as for any new file; the library's own are private
    copies = {name: numbers.detach().to("cpu").clone().contiguous() for name, numbers in tensors.items()}
    try:
        save_file(copies, path, metadata={"format": "pt"} | (metadata or {}))
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
    if metadata:
        _sort_metadata(path)
    path.chmod(mode)


def _sort_metadata(path: Path) -> None:
    """Sorts the metadata keys, which the library writes in random order, so that equal contents give equal files."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        file.seek(8)
        file.write(json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(size))


def _move_into_place(new: Path, target: Path) -> None:
    new_files = sorted((path.relative_to(new) for path in new.rglob("*") if path.is_file()), key=_is_config)
    for name in new_files:
        sync_to_disk(new / name)
    if not target.exists():
        new.rename(target)
        return
    old = new.with_name(OLD)
    files_to_remove = _files_to_remove(target, new_files)
    try:
        old.mkdir()
        _move_all(files_to_remove, target, old)
        sync_to_disk(target)
        _move_all(new_files, new, target)
        sync_to_disk(target)
    except BaseException:  # Ctrl-C as well
        _restore(old, target, [name for name in new_files if not (new / name).exists()])
        raise
    shutil.rmtree(old, ignore_errors=True)
    for folder in {name.parent for name in files_to_remove} - {Path()}:
        with suppress(OSError):  # where it is not empty
            (target / folder).rmdir()


def _files_to_remove(target: Path, new_files: list[Path]) -> list[Path]:
    """The files of a folder that may not stay: those with the names of `new_files`, and those of the previous model
    that would be read with the new one. Config files come first, so that an interrupted save does not open."""
    below = (
        path
        for pattern in (model_files.NAMED_TEMPLATES, *model_files.SENTENCE_MODULE_FILES)
        for path in target.glob(pattern)
    )
    present = [path.relative_to(target) for path in (*target.iterdir(), *below)]
    to_remove = {name for name in present if model_files.any_matches([str(name)], model_files.MODEL_FILES)}
    to_remove |= {name for name in new_files if os.path.lexists(target / name)}
    for name in to_remove:
        if (target / name).is_dir() and not (target / name).is_symlink():
            raise IsADirectoryError(errno.EISDIR, f"{name} is a folder there, expected a file", str(target / name))
    return sorted(to_remove, key=lambda name: (not _is_config(name), name))


def _move_all(names: list[Path], source: Path, target: Path) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).replace(target / name)


def _restore(old: Path, target: Path, moved: list[Path]) -> None:
    """Restores the previous files in place of those `moved` in; config files come last."""
    try:
        for name in reversed(moved):
            (target / name).unlink(missing_ok=True)
        old_files = [path.relative_to(old) for path in old.rglob("*") if path.is_symlink() or not path.is_dir()]
        _move_all(sorted(old_files, key=_is_config), old, target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{target} holds no whole model now ({why}): its previous content is in {old}") from error


def _is_config(name: Path) -> bool:
    """Whether this file makes a folder a checkpoint."""
    return str(name) in CONFIG_FILES
