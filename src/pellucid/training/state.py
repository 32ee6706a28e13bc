"""The saved state from which an interrupted run resumes.

    my-model/training/
      manifest.json                  written last: all files that it names are complete
      state-00000120.safetensors     trained parameters, and AdamW's moments of them, after step 120
      best-00000100.safetensors      trained parameters at the best evaluation so far
      log.jsonl                      see `pellucid.training.log`
      recipe.toml                    see `pellucid.training.recipe`
      lock

A state is saved in this order: its file, flushed to the disk and moved into place; the log, flushed; the folder; the
manifest, flushed and moved into place; the folder. Only then are older files deleted. So the manifest names only
complete files, whenever the process is killed. The order of examples and random numbers follow from seed and step.
"""

import contextlib
import errno
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from pellucid.checkpoints.bundle import read_bundle, write_bundle
from pellucid.checkpoints.contents import TRAINING
from pellucid.checkpoints.folder import OVERWRITE, cannot_create_error, check_folder_link, check_target, files_in
from pellucid.errors import Argument, CorruptFileError, InputError, Placeholder, ResourceError
from pellucid.files import FULL, cannot_write, digest_of, file_errors, folder_entries, sync_to_disk
from pellucid.lock import exclusive_lock
from pellucid.machine import no_grad
from pellucid.training.advice import OVERWRITE_ADVICE, RESUME
from pellucid.training.log import Log
from pellucid.training.loop import CheckpointStore, Loop
from pellucid.training.manifest import FILES, NAME, Manifest, TrainingIdentity, read_manifest, write_manifest
from pellucid.training.recipe import RECIPE

LOG, LOCK = "log.jsonl", "lock"

_LEFT = re.compile(rf"\.(state-|best-|{re.escape(NAME)}-|{re.escape(LOG)}-).*")
"""Temporary files that a killed process leaves."""

IN_MEMORY = 2**29
"""The most bytes of best weights that are kept in memory until the next state; more are written at once."""

_NUMBERS, _MOMENTS = "parameters", "moments"


class State(CheckpointStore):
    """The state folder of one training run; also the store of its best weights.

    folder: `training` below the folder of the model.  identity: what must be the same to resume.
    manifest: of the last saved state; None where there is none.
    best_files: the file of the best weights.  pending_best: the future file name of those in memory; "" for none.
    """

    def __init__(self, folder: Path, identity: TrainingIdentity) -> None:
        super().__init__()
        self.folder, self.identity = folder, identity
        self.manifest = read_manifest(folder)
        if self.manifest is not None:
            self.manifest.check(identity, folder)
        self.best_files: dict[str, tuple[int, str]] = self.manifest.files_of_kind("best") if self.manifest else {}
        self.pending_best = ""

    def save(self, loop: Loop, log: Log, *, diverged: bool = False) -> None:
        """Saves what the loop needs to resume; when this returns, it is on the disk.

        Raises ResourceError where the disk is full; the state before is then still there.
        """
        name = f"state-{loop.progress.step:08}.safetensors"
        known = self.manifest.files if self.manifest else {}
        try:
            facts = known.get(name)  # files in a manifest are never rewritten
            facts = facts or self._write(name, _state_tensors(loop))
            if self.pending_best and self.pending_best not in self.best_files:
                self.best_files = {self.pending_best: self._write(self.pending_best, self.numbers)}
            log.flush()
            sync_to_disk(self.folder)
            manifest = Manifest(
                loop.steps, replace(loop.progress), self.identity, {name: facts, **self.best_files}, diverged
            )
            write_manifest(manifest, self.folder)
            sync_to_disk(self.folder)
            self.manifest = manifest
        except OSError as error:
            raise cannot_write(self.folder / NAME, error) from error
        finally:
            self.delete_stale_files()

    @no_grad()
    def restore(self, loop: Loop) -> None:
        """Restores weights, optimizer and progress of the loop. Raises CorruptFileError for a changed file."""
        assert self.manifest is not None
        for best in self.best_files.items():  # else only read at the end
            self._check(*best)
        (name, facts), *_ = self.manifest.files_of_kind("state").items()
        tensors = self._read(name, facts)
        numbers = _tensors_of_kind(tensors, _NUMBERS)
        expected_shapes = {name: p.shape for name, p in loop.parameters.items()}
        if {name: tensor.shape for name, tensor in numbers.items()} != expected_shapes:
            raise CorruptFileError(
                f"{self.folder / name} holds other parameters than those that are trained: start again"
            )
        for one, p in loop.parameters.items():
            p.copy_(numbers[one])
        for place, tensor in _tensors_of_kind(tensors, _MOMENTS).items():
            kind, _, one = place.partition("/")
            if (p := loop.parameters.get(one)) is not None:
                loop.optimizer.state[p][kind] = tensor.to(p.device)
        loop.progress = replace(self.manifest.progress)

    # -- the best weights ---------------------------------------------------------------------------------------------

    def put(self, step: int, numbers: Mapping[str, Tensor]) -> None:
        """Keeps the best weights; the next `save` records them in the manifest, and deletes older ones."""
        name, small = f"best-{step:08}.safetensors", _bytes(numbers) <= IN_MEMORY
        super().put(step, numbers if small else {})
        self.pending_best = name if small else ""
        if not small:
            self.best_files = {name: self._write(name, numbers)}

    def get(self) -> dict[str, Tensor]:
        if self.pending_best:
            return self.numbers
        return next((self._read(name, facts) for name, facts in self.best_files.items()), {})

    # -- files --------------------------------------------------------------------------------------------------------

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
        """Writes one file. ->  its size in bytes, and their SHA-256"""
        path, needed = self.folder / name, _bytes(tensors)
        try:
            write_bundle(dict(tensors), {"pellucid": "training"}, path)
            return path.stat().st_size, digest_of(path)
        except ResourceError as error:
            reason = getattr(error.__cause__, "errno", errno.ENOSPC)
            free = shutil.disk_usage(self.folder).free
            free_space = f", and {free:,} are free there" if reason == errno.ENOSPC and free < needed else ""
            after = f"the state of step {self.manifest.step}" if self.manifest else "what was there before"
            raise ResourceError(
                f"{FULL[reason]} while writing {path}: it takes {needed:,} bytes{free_space}; {after} is still "
                "there: free some space, and continue with ",
                RESUME,
            ) from error
        except OSError as error:
            raise cannot_write(path, error) from error

    def _read(self, name: str, facts: tuple[int, str]) -> dict[str, Tensor]:
        """The tensors of one file, whose size and digest are checked first."""
        return {one: span.read() for one, span in read_bundle(self._check(name, facts))[0].items()}

    def _check(self, name: str, facts: tuple[int, str]) -> Path:
        path = self.folder / name
        with file_errors(path):
            if not path.is_file() or path.is_symlink():
                raise CorruptFileError(f"{path} is missing: restore it, or ", OVERWRITE_ADVICE)
            if (path.stat().st_size, digest_of(path)) != facts:
                raise CorruptFileError(f"{path} was changed since it was written: restore it, or ", OVERWRITE_ADVICE)
        return path

    def delete_stale_files(self) -> None:
        """Deletes files that no manifest names: older states, and those of a killed process. Where a new manifest may
        not be on the disk yet, the files of the one before are kept as well."""
        named = {name for one in (self.manifest, read_manifest(self.folder)) if one for name in one.files}
        for path in folder_entries(self.folder.resolve()):  # it may be a link to a larger disk
            if (FILES.fullmatch(path.name) and path.name not in named) or _LEFT.fullmatch(path.name):
                _delete(path)

    def remove(self) -> None:
        """Deletes the whole state once the model is on the disk, the manifest first. Any other file is kept."""
        _remove_folder(self.folder)


def clear(folder: Path) -> None:
    """Deletes every file of a state but the lock, the manifest first."""
    _delete(folder / NAME)
    for path in folder_entries(folder.resolve()):
        if FILES.fullmatch(path.name) or _LEFT.fullmatch(path.name) or path.name in (LOG, RECIPE):
            _delete(path)


def _remove_folder(folder: Path) -> None:
    clear(folder)
    _delete(folder / LOCK)
    with contextlib.suppress(OSError):
        folder.rmdir()


def lock_folder(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Creates the folder, and locks it against a second run. Raises InputError where it is locked already."""
    new: list[Path] = []
    try:
        new = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for one in new:
            sync_to_disk(one.parent)
    except OSError as error:
        raise cannot_create_error(folder, (new or [folder])[-1].parent, error) from error
    message = f"another process trains in {folder}: wait until it is done, or choose a new folder"
    return exclusive_lock(folder / LOCK, lambda: message)


def check_folder(out: Path | None, *, resume: bool, overwrite: bool) -> Path | None:
    """The state folder of a run in `out`; None without `out`. Raises InputError where it may not start or resume.

    A resumed run that has ended is refused, once what is left of its state is removed.
    """
    if resume and overwrite:
        raise InputError(RESUME, " continues and ", OVERWRITE, " starts again: leave one of them out")
    if out is None:
        if resume:
            raise InputError(
                "resume needs the folder of a training that was interrupted: pass ",
                Argument("out", Placeholder("FOLDER")),
            )
        return None
    check_folder_link(out)
    folder = out / TRAINING
    manifest = None if overwrite else read_manifest(folder)
    if manifest is not None and not resume:
        raise InputError(
            f"{out} holds a training that is not finished, {manifest.step:,} of {manifest.steps:,} steps are done: "
            "continue with ",
            RESUME,
            ", or ",
            OVERWRITE_ADVICE,
        )
    others = any(path.name != TRAINING for path in files_in(out))
    if resume and others and manifest is None:
        has_ended = (out / LOG).is_file()
        if has_ended and folder.is_dir():  # the run was killed while it removed its state
            with contextlib.suppress(InputError), lock_folder(folder):  # not where another process trains
                _remove_folder(folder)
        ended = "a training that has ended" if has_ended else "files, and no training that was interrupted"
        raise InputError(f"{out} holds {ended}: there is nothing to resume; choose a new folder, or ", OVERWRITE_ADVICE)
    if not out.is_dir() or (others and manifest is None):
        check_target(out, overwrite=overwrite, advice=OVERWRITE_ADVICE)
    return folder


# -- tensors by name --------------------------------------------------------------------------------------------------


def _state_tensors(loop: Loop) -> dict[str, Tensor]:
    names = {id(p): name for name, p in loop.parameters.items()}
    moments = {
        f"{_MOMENTS}/{kind}/{names[id(p)]}": tensor
        for p, values in loop.optimizer.state.items()
        for kind, tensor in values.items()
    }
    return {f"{_NUMBERS}/{name}": p for name, p in loop.parameters.items()} | moments


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors.values())


def _tensors_of_kind(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind}/"): one for name, one in tensors.items() if name.startswith(f"{kind}/")}


def _delete(path: Path) -> None:
    """Deletes a file or folder of ours; one that cannot be deleted does no harm."""
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
