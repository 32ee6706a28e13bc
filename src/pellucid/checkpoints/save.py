"""Writes a checkpoint that the reference opens: beside its place first, then moved there; nothing is half written."""

import errno
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from torch import Tensor

from pellucid.checkpoints import hub
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.moves import Move
from pellucid.checkpoints.names import Names, Rows
from pellucid.checkpoints.sentence import write_pooling
from pellucid.errors import InputError
from pellucid.files import cannot_write
from pellucid.models import ties
from pellucid.text.files import write_target_tokenizer, write_tokenizer


def save_checkpoint(loaded: Loaded, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Weights, config, tokenizer and pooling as `folder`.

    overwrite: replace the files of a folder that already holds some; without it such a folder is refused.
    """
    target = Path(folder).expanduser()
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file, expected a folder to save into")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise InputError(f"{target} already holds files: choose a new folder or pass overwrite=True")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise cannot_write(target, error) from error
    try:
        (beside / "new").mkdir()  # with the rights of any new folder; the one around it is nobody else's business
        _write(loaded, beside / "new")
        _move(beside / "new", target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _write(loaded: Loaded, folder: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    config, family = loaded.config, loaded.family
    page = family.page(config.head)
    tensors = _tensors(loaded, family.names_with(page, config), page.rows)
    try:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
    facts = family.write(config)
    facts["dtype"] = facts["torch_dtype"] = str(next(loaded.module.parameters()).dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)  # the library makes it private
    if loaded.tokenizer is not None:
        write_tokenizer(loaded.tokenizer, folder)
    if loaded.target_tokenizer is not None:
        write_target_tokenizer(loaded.target_tokenizer, folder)
    if loaded.pooling is not None:
        write_pooling(loaded.pooling, config.hidden_size * len(loaded.pooling.modes), folder)


def _tensors(loaded: Loaded, names: Names, rows: Rows) -> dict[str, Tensor]:
    """Every tensor of the file by the reference's name; what is one table under two names comes once."""
    module, same = loaded.module, ties(loaded.config)
    groups: dict[str, dict[int, Tensor]] = {}
    moves: dict[str, Move] = {}
    for ours, value in module.state_dict().items():
        if ours in same and module.get_parameter(same[ours]) is module.get_parameter(ours):
            continue
        place = names.theirs(ours, rows, prefixed=loaded.config.head is not None)
        groups.setdefault(place.theirs, {})[place.part] = value.detach().to("cpu")
        moves[place.theirs] = place.move
    return {
        theirs: moves[theirs].give([parts[i] for i in sorted(parts)]).clone().contiguous()
        for theirs, parts in groups.items()
    }


def _move(beside: Path, target: Path) -> None:
    files = [path for path in beside.rglob("*") if path.is_file()]
    for path in files:
        _to_disk(path)
    if not target.exists():
        beside.rename(target)
        return
    named = {path.relative_to(beside) for path in files}
    for name in named:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (beside / name).replace(target / name)
    for path in target.iterdir():
        if path.name not in map(str, named) and hub.any_of([path.name], hub.SPEAKING):
            path.unlink()  # of the model that was there before, and would speak for this one


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
