"""A checkpoint that another process overwrites while it is read: what opens is of one save, or nothing opens."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.checkpoints import contents, load
from pellucid.checkpoints.source import locate
from pellucid.errors import CorruptFileError, InputError
from tests.checkpoints.builders import WEIGHTS, split_into_shards, valid_checkpoint
from tests.conftest import tiny_config
from tests.torch_state import make_unopenable

pytestmark = pytest.mark.timeout(60)

READ = {
    "the numbers": (load, "fill"),
    "the tokenizer": (contents, "open_tokenizer"),
    "the names": (contents, "stored_tensors"),
}


def run_before(patch: pytest.MonkeyPatch, module: Any, name: str, action: Callable[[], object]) -> None:
    """Runs `action` just before a part of a checkpoint is read."""
    read = getattr(module, name)

    def run_first(*arguments: Any, **options: Any) -> Any:
        action()
        return read(*arguments, **options)

    patch.setattr(module, name, run_first)


@pytest.mark.parametrize("part", READ)
def test_save_during_loading_is_noticed(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = valid_checkpoint(tmp_path / "model"), pellucid.build(tiny_config(), seed=2)
    run_before(monkeypatch, *READ[part], lambda: other.save(folder, overwrite=True))
    with pytest.raises(CorruptFileError, match=r"was replaced while it was read: load it again"):
        pellucid.load(folder)
    monkeypatch.undo()
    pellucid.load(folder)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_replaced_shard_is_noticed(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    split_into_shards(folder, form)
    first = sorted(folder.glob(f"*-of-*.{form}"))[0]

    def replaced() -> None:
        shutil.copy(first, tmp_path / "new")
        (tmp_path / "new").replace(first)

    run_before(monkeypatch, load, "fill", replaced)
    with pytest.raises(CorruptFileError, match=rf"{first.name} was replaced while it was read: load it again"):
        pellucid.load(folder)


def test_file_deleted_during_loading_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    run_before(monkeypatch, load, "fill", (folder / WEIGHTS).unlink)
    with pytest.raises(CorruptFileError, match=rf"{WEIGHTS} was replaced while it was read"):
        pellucid.load(folder)


def test_overwritten_file_with_a_restored_time_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying tools restore the time of the original, and two models of one shape have files of one size."""
    folder = valid_checkpoint(tmp_path / "model")
    weights = folder / WEIGHTS

    def overwrite() -> None:
        found, content = weights.stat(), weights.read_bytes()
        time.sleep(0.02)  # longer than the resolution of file times
        weights.write_bytes(content[:-4] + bytes(4))
        os.utime(weights, ns=(found.st_atime_ns, found.st_mtime_ns))

    run_before(monkeypatch, load, "fill", overwrite)
    with pytest.raises(CorruptFileError, match=rf"{WEIGHTS} was replaced while it was read"):
        pellucid.load(folder)


def test_unrelated_files_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    run_before(monkeypatch, load, "fill", lambda: (folder / "log.jsonl").write_text("{}"))
    pellucid.load(folder)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_unreadable_file_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    make_unopenable(monkeypatch, folder / name)
    for read in (pellucid.load, load.read_plan, load.read_config):
        if read is load.read_config and name == WEIGHTS:
            continue
        with pytest.raises(InputError) as caught:
            read(folder)
        assert str(caught.value) == f"cannot read {folder / name}: Permission denied"


def test_unreadable_tokenizer_is_named(minilm: pellucid.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    name = minilm.loaded.name
    path = locate(name).folder / "tokenizer.json"
    make_unopenable(monkeypatch, path)
    with pytest.raises(InputError) as caught:
        pellucid.load(name)
    assert str(caught.value) == f"cannot read {path}: Permission denied"


def test_unreadable_trace_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace.safetensors").write_bytes(b"")
    make_unopenable(monkeypatch, tmp_path / "trace.safetensors")
    with pytest.raises(InputError) as caught:
        pellucid.open_trace(tmp_path / "trace.safetensors")
    assert str(caught.value) == f"cannot read {tmp_path / 'trace.safetensors'}: Permission denied"
