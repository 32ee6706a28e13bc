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
from tests.checkpoints.builders import WEIGHTS, good, shards
from tests.conftest import tiny_config
from tests.torch_state import make_unopenable

pytestmark = pytest.mark.timeout(60)

READ = {
    "the numbers": (load, "fill"),
    "the tokenizer": (contents, "open_tokenizer"),
    "the names": (contents, "stored_tensors"),
}


def before(patch: pytest.MonkeyPatch, place: Any, name: str, done: Callable[[], object]) -> None:
    """Runs `done` just before a part of a checkpoint is read."""
    read = getattr(place, name)

    def meanwhile(*given: Any, **said: Any) -> Any:
        done()
        return read(*given, **said)

    patch.setattr(place, name, meanwhile)


@pytest.mark.parametrize("part", READ)
def test_a_save_in_between_is_noticed(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = good(tmp_path / "model"), pellucid.build(tiny_config(), seed=2)
    before(monkeypatch, *READ[part], lambda: other.save(folder, overwrite=True))
    with pytest.raises(CorruptFileError, match=r"was replaced while it was read: load it again"):
        pellucid.load(folder)
    monkeypatch.undo()
    pellucid.load(folder)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_so_is_one_shard(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = good(tmp_path / "model")
    shards(folder, form)
    first = sorted(folder.glob(f"*-of-*.{form}"))[0]

    def replaced() -> None:
        shutil.copy(first, tmp_path / "new")
        (tmp_path / "new").replace(first)

    before(monkeypatch, load, "fill", replaced)
    with pytest.raises(CorruptFileError, match=rf"{first.name} was replaced while it was read: load it again"):
        pellucid.load(folder)


def test_a_file_that_has_gone_meanwhile_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = good(tmp_path / "model")
    before(monkeypatch, load, "fill", (folder / WEIGHTS).unlink)
    with pytest.raises(CorruptFileError, match=rf"{WEIGHTS} was replaced while it was read"):
        pellucid.load(folder)


def test_a_file_that_was_written_over_in_place_is_told_by_more_than_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying tools restore the time of the original, and two models of one shape have files of one size."""
    folder = good(tmp_path / "model")
    weights = folder / WEIGHTS

    def written() -> None:
        found, content = weights.stat(), weights.read_bytes()
        time.sleep(0.02)  # longer than the resolution of file times
        weights.write_bytes(content[:-4] + bytes(4))
        os.utime(weights, ns=(found.st_atime_ns, found.st_mtime_ns))

    before(monkeypatch, load, "fill", written)
    with pytest.raises(CorruptFileError, match=rf"{WEIGHTS} was replaced while it was read"):
        pellucid.load(folder)


def test_files_that_are_no_part_of_it_may_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = good(tmp_path / "model")
    before(monkeypatch, load, "fill", lambda: (folder / "log.jsonl").write_text("{}"))
    pellucid.load(folder)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_a_file_that_may_not_be_read_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = good(tmp_path / "model")
    make_unopenable(monkeypatch, folder / name)
    for read in (pellucid.load, load.read_plan, load.read_config):
        if read is load.read_config and name == WEIGHTS:
            continue
        with pytest.raises(InputError) as caught:
            read(folder)
        assert str(caught.value) == f"cannot read {folder / name}: Permission denied"


def test_so_is_a_tokenizer(minilm: pellucid.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    name = minilm.loaded.name
    path = locate(name).folder / "tokenizer.json"
    make_unopenable(monkeypatch, path)
    with pytest.raises(InputError) as caught:
        pellucid.load(name)
    assert str(caught.value) == f"cannot read {path}: Permission denied"


def test_so_is_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace.safetensors").write_bytes(b"")
    make_unopenable(monkeypatch, tmp_path / "trace.safetensors")
    with pytest.raises(InputError) as caught:
        pellucid.open_trace(tmp_path / "trace.safetensors")
    assert str(caught.value) == f"cannot read {tmp_path / 'trace.safetensors'}: Permission denied"
