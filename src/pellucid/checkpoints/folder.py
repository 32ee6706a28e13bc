"""A checkpoint folder is written beside its place first, then moved there; nothing is half written."""

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
"""Without one of these a folder is no checkpoint."""


NEW, OLD = "new", "old"
"""Where files are written, and where those of a folder are while others take their place."""

OVERWRITE = Argument("overwrite", True)
"""By which a place that holds files may be written over."""


def check_target(target: Path, *, overwrite: bool, advice: MessagePart = ("pass ", OVERWRITE)) -> None:
    """Refuses a place that is a file, or that holds files already and may not be written over.

    advice: what helps, besides another folder.
    """
    check_bool("overwrite", overwrite)
    check_folder_link(_resolved_target(target))
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file, expected a folder to write into")
    if files_in(target) and not overwrite:
        raise InputError(f"{target} already holds files: choose a new folder or ", advice)
    if not overwrite and (old := interrupted_old_files(target)):  # which a save that succeeds takes away
        raise InputError(
            f"{target} was being saved into, and its previous content is in {old}: choose a new folder or ", advice
        )


def check_folder_link(path: Path) -> None:
    """Refuses a link behind which no folder can be made, since it leads nowhere or in a circle."""
    if path.is_symlink() and not path.exists():
        raise InputError(f"cannot write {path}: it is a link that leads nowhere or in a circle; choose another folder")


def files_in(target: Path) -> list[Path]:
    """What a folder holds, but for what saves into it keep there while they are going on, or have left.

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
    """A new folder to write into, which becomes `target` at the end; where anything goes wrong, it is gone.

    What a folder held before stays, but for files of the same name and those that would speak for another model; these
    come back where anything goes wrong, Ctrl-C included. Of two processes that write into one folder the second is
    refused: both would leave a part of each model. What killed ones have left goes once the new files are in place.
    """
    target = _resolved_target(target)
    temporary_folder = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        parent = temporary_parent(target)
        with ExitStack() as locks:
            for where in sorted({parent, target} if target.is_dir() else {parent}):
                locks.enter_context(_save_lock(target, where))  # within, too: others may have no right to one beside it
            temporary_folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=parent))
            new = temporary_folder / NEW
            new.mkdir()  # with the rights of any new folder; the one around it is nobody else's business
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
    """A folder by the name beside which its new files lie: "." has none, and a link may lead to another disk."""
    return Path(os.path.realpath(target)) if target.name in ("", "..") or target.is_symlink() else target


def temporary_parent(target: Path) -> Path:
    """The folder in which the new files of a save lie until they are moved: the one that holds `target`, or `target`
    itself where it is there and the other may not be written, or is on another disk, as around a volume.

    It is tried. Raises InputError where `target` could not be saved into, and ResourceError where there is no room.
    """
    target = _resolved_target(target)
    parent, error = target.parent, _probe_error(target.parent, target)
    if error is not None and target.is_dir():
        parent, error = target, _probe_error(target, target)
    if error is None:
        return parent
    raise cannot_create_error(target, parent, error) from error


def cannot_create_error(target: Path, parent: Path, error: OSError) -> PellucidError:
    """The error of the system for a `target` for which nothing could be made in the folder `parent`, as one of ours."""
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return cannot_write(target, error)
    message = f"cannot write {target}: {error.strerror} in {parent}"
    return InputError(f"{message}: choose another folder, or let this user write there")


def _probe_error(parent: Path, target: Path) -> OSError | None:
    """What hinders a folder that is made in `parent` and moved into `target`, if anything does."""
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
    """The name of the file by which one process saves at a time."""
    return f".{_resolved_target(target).name}.lock"


def _temporary_pattern(target: Path) -> re.Pattern[str]:
    """What the folders are called in which new files lie until they are moved."""
    return re.compile(
        rf"\.{re.escape(_resolved_target(target).name)}-[a-z0-9_]{{8}}"
    )  # as `tempfile` has it, and no `NAME-else`


@contextmanager
def _save_lock(target: Path, folder: Path) -> Iterator[None]:
    lock = folder / _lock_name(target)
    with exclusive_lock(
        lock, lambda: f"another process saves into {target}: wait until it is done, or choose a new folder"
    ):
        try:
            yield
        finally:
            with suppress(OSError):  # Windows does so by itself; while it is held, nobody else takes the file for his
                lock.unlink()


def _interrupted_saves(target: Path) -> list[Path]:
    """The folders beside `target`, or within it, of saves that were broken off by force, or are going on."""
    pattern = _temporary_pattern(target)
    candidates = (path for place in (target.parent, target) for path in place.glob(".*-*"))
    found = [path for path in candidates if pattern.fullmatch(path.name) and not path.is_symlink()]
    return [path for path in found if path.is_dir() and set() < _entry_names(path) <= {NEW, OLD}]


def _entry_names(folder: Path) -> set[str]:
    """What lies in a folder; nothing in one that may not be looked into, such as another user's."""
    with suppress(OSError):
        return {one.name for one in folder.iterdir()}
    return set()


def interrupted_old_files(target: Path) -> Path | None:
    """Where the files lie that a folder held before such a save took them out."""
    with suppress(OSError):
        return next(
            (path / OLD for path in _interrupted_saves(_resolved_target(target)) if (path / OLD).is_dir()), None
        )
    return None


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes safetensors, each tensor with memory of its own: the library refuses two that share some.

    metadata: what the header says beside the tensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    rights = stat.S_IMODE(path.stat().st_mode)  # of any new file: the library's own is private
    copies = {name: numbers.detach().to("cpu").clone().contiguous() for name, numbers in tensors.items()}
    try:
        save_file(copies, path, metadata={"format": "pt"} | (metadata or {}))
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
    if metadata:
        _sort_metadata(path)
    path.chmod(rights)


def _sort_metadata(path: Path) -> None:
    """Puts the keys of a note in order, in which the library leaves them to chance: the same is written as the same."""
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
        with suppress(OSError):  # which something else lies in
            (target / folder).rmdir()


def _files_to_remove(target: Path, new_files: list[Path]) -> list[Path]:
    """The files of a folder that may not stay: those of the names of `new_files`, and those of the model that was there
    before and would be read with this one. The facts go first, so that what is interrupted half-way does not open."""
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
    """What a folder held before, in place of what was `moved` into it; the facts come last."""
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
    """Whether this file makes a folder one that opens."""
    return str(name) in CONFIG_FILES
