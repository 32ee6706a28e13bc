"""Writes converted files as a checkpoint folder: beside its place first, then moved there; nothing is half written."""

import errno
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints import hub
from pellucid.errors import CorruptFileError, InputError
from pellucid.files import cannot_write


def check_target(target: Path, source: Path, overwrite: bool) -> None:
    """Refuses a place that is a file, that holds files already, or that is the source itself."""
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file, expected a folder to write into")
    if target.is_dir() and target.resolve() in (source.resolve(), source.resolve().parent):
        raise InputError(f"{target} is where the foreign files lie: choose another folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise InputError(f"{target} already holds files: choose a new folder or add --overwrite")


def write_folder(
    target: Path, tensors: dict[str, Tensor], config: dict[str, Any], files: Mapping[str, Path | str]
) -> Path:
    """`config.json`, `model.safetensors` and `files`, which are copied from a path or hold a text, as `target`.

    Raises: CorruptFileError where a number is NaN or infinite; InputError or ResourceError where it cannot be written.
    """
    with _beside(target) as beside:
        _write_numbers(tensors, beside / "model.safetensors")
        _write_text(beside / "config.json", json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
        for name, content in files.items():
            (beside / name).parent.mkdir(exist_ok=True)
            _write_text(beside / name, content) if isinstance(content, str) else shutil.copyfile(content, beside / name)
        (beside / "model.safetensors").chmod((beside / "config.json").stat().st_mode)  # the library makes it private
        _move(beside, target)
    return target


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A new folder that is gone afterwards, unless it was moved."""
    around = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        around = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        (around / "new").mkdir()  # with the rights of any new folder; the one around it is nobody else's business
        yield around / "new"
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        if around is not None:
            shutil.rmtree(around, ignore_errors=True)


def _write_numbers(tensors: dict[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    for name, numbers in tensors.items():
        if not math.isfinite(numbers.sum(dtype=torch.float64)):
            raise CorruptFileError(f"{name} holds NaN or infinite numbers: the file is damaged or training failed")
    try:
        save_file({name: _own(numbers) for name, numbers in tensors.items()}, path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error


def _own(numbers: Tensor) -> Tensor:
    """The tensor with memory of its own: the library refuses two that share some."""
    return numbers.detach().clone(memory_format=torch.contiguous_format)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _move(beside: Path, target: Path) -> None:
    named = {path.relative_to(beside) for path in beside.rglob("*") if path.is_file()}
    for name in named:
        with (beside / name).open("rb") as file:
            os.fsync(file.fileno())
    if not target.exists():
        beside.rename(target)
        return
    for name in named:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (beside / name).replace(target / name)
    for path in target.iterdir():
        if path.name not in map(str, named) and hub.any_of([path.name], hub.SPEAKING):
            path.unlink()  # of the model that was there before, and would speak for this one
