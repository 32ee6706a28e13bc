"""What a training that is broken off goes on from, on the disk.

    my-model/training/
      manifest.json                  written last: what it names is whole
      state-00000120.safetensors     what learns, and AdamW's moments of it, after step 120
      best-00000100.safetensors      what learns, at the best evaluation so far
      log.jsonl                      see `pellucid.training.log`
      lock

A state is kept in this order: its file, flushed to the disk and moved into place; the log, flushed; the folder; the
manifest, flushed and moved into place; the folder. Only then are older files taken away. Killed at any moment, the
manifest names only what is whole. Order and chance need no file: they follow from the seed and the step.
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

LOG, LOCK = "log.jsonl", "lock"

_LEFT = re.compile(rf"\.(state-|best-|{re.escape(NAME)}-|{re.escape(LOG)}-).*")
"""What a process that was killed leaves beside the places of its files."""

IN_MEMORY = 2**29
"""Bytes up to which the best numbers wait in memory for the next state; larger ones go to the disk at once."""

_NUMBERS, _MOMENTS = "parameters", "moments"


class State(CheckpointStore):
    """The folder of one training; also the store of its best numbers.

    folder: `training` below the folder of the model.  identity: what this training is made of.
    manifest: the state that it goes on from; None where it begins.
    best_files: the file of the best numbers.  pending_best: the name of the file that those in memory will have; "" for
        none.
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
        """Keeps what the loop needs to go on; when this returns, it is on the disk.

        Raises ResourceError where there is no room, and what was kept before is still there.
        """
        name = f"state-{loop.progress.step:08}.safetensors"
        known = self.manifest.files if self.manifest else {}
        try:
            facts = known.get(name)  # what a manifest names is never written again
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
        """Puts the loop where it was. Raises CorruptFileError for a file that was changed since."""
        assert self.manifest is not None
        for best in self.best_files.items():  # which nobody else reads before the end
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

    # -- the best numbers ---------------------------------------------------------------------------------------------

    def put(self, step: int, numbers: Mapping[str, Tensor]) -> None:
        """Keeps the best numbers; the next `save` names them, and lets the older ones go."""
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
        """Writes one file. ->  its bytes, and their sha256"""
        path, needed = self.folder / name, _bytes(tensors)
        try:
            write_bundle(dict(tensors), {"pellucid": "training"}, path)
            return path.stat().st_size, digest_of(path)
        except ResourceError as error:
            reason = getattr(error.__cause__, "errno", errno.ENOSPC)
            free = shutil.disk_usage(self.folder).free
            free_space = f", and {free:,} are free there" if reason == errno.ENOSPC else ""
            after = f"the state of step {self.manifest.step}" if self.manifest else "what was there before"
            raise ResourceError(
                f"{FULL[reason]} while writing {path}: it takes {needed:,} bytes{free_space}; {after} is still "
                "there: free some space, and continue with ",
                RESUME,
            ) from error
        except OSError as error:
            raise cannot_write(path, error) from error

    def _read(self, name: str, facts: tuple[int, str]) -> dict[str, Tensor]:
        """The tensors of one file, once its bytes are the ones that were written."""
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
        """Takes away what no manifest names: older states, and what a process that was killed has left. Where one was
        just put in place and may not be on the disk yet, the files of the one before stay as well."""
        named = {name for one in (self.manifest, read_manifest(self.folder)) if one for name in one.files}
        for path in folder_entries(self.folder.resolve()):  # it may be a link to a larger disk
            if (FILES.fullmatch(path.name) and path.name not in named) or _LEFT.fullmatch(path.name):
                _delete(path)

    def remove(self, *others: str) -> None:
        """Takes the whole state away, once the model itself is on the disk; the manifest goes first.

        others: names of files beside it that go as well. What somebody else has put there stays.
        """
        clear(self.folder, (LOCK, *others))
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def clear(folder: Path, others: tuple[str, ...] = ()) -> None:
    """Takes away every file that a training keeps, but the one by which it is held."""
    _delete(folder / NAME)
    for path in folder_entries(folder.resolve()):
        if FILES.fullmatch(path.name) or _LEFT.fullmatch(path.name) or path.name in (LOG, *others):
            _delete(path)


def lock_folder(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Makes the folder, and holds it against a second training. Raises InputError where there is one already."""
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
    """Where the state of a training in `out` is kept. Raises InputError where it may not begin or go on there."""
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
        ended = "a training that has ended" if (out / LOG).is_file() else "files, and no training that was interrupted"
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
    """Takes a file of ours away; one that cannot be taken away harms nobody."""
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
