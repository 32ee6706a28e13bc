"""Writes converted files as a checkpoint folder."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.checkpoints import folder
from pellucid.checkpoints.fill import require_finite
from pellucid.errors import InputError


def check_target(target: Path, source: Path, overwrite: bool) -> None:
    """Refuses a target that is a file, that holds files already, or that is the source itself."""
    if target.is_dir() and target.resolve() in (source.resolve(), source.resolve().parent):
        raise InputError(f"{target} is the folder of the foreign files: choose another folder")
    folder.check_target(target, overwrite=overwrite)


def write_folder(
    target: Path, tensors: dict[str, Tensor], config: dict[str, Any], files: Mapping[str, Path | str]
) -> None:
    """Writes `config.json`, `model.safetensors` and `files`, each copied from a path or given as text, to `target`.

    Raises: CorruptFileError where a value is NaN or infinite; InputError or ResourceError where it cannot be written.
    """
    for name, numbers in tensors.items():
        require_finite(name, numbers)
    with folder.atomic_folder(target) as new:
        folder.write_tensors(tensors, new / "model.safetensors")
        _write_text(new / "config.json", json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
        for name, content in files.items():
            (new / name).parent.mkdir(exist_ok=True)
            _write_text(new / name, content) if isinstance(content, str) else shutil.copyfile(content, new / name)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
