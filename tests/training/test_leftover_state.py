"""A run that was killed after its model was saved, while it removed its state."""

from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.errors import InputError
from pellucid.training.manifest import NAME
from pellucid.training.state import State, lock_folder

ROWS = [{"text": f"{word} story", "label": label} for word, label in (("good", "a"), ("bad", "b"))] * 4
OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 4, "save_every": 1, "progress": False}


@pytest.fixture
def out(scratch: "pellucid.Model", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a trained model, and all of its state but the manifest, which is deleted first."""
    with monkeypatch.context() as patch:
        patch.setattr(State, "remove", lambda state: (state.folder / NAME).unlink())
        pellucid.train(scratch, ROWS, "text-classification", out=tmp_path / "out", **OPTIONS)
    assert {"lock", "log.jsonl", "recipe.toml"} < {path.name for path in (tmp_path / "out" / "training").iterdir()}
    return tmp_path / "out"


def resume(scratch: "pellucid.Model", out: Path) -> None:
    with pytest.raises(InputError, match="holds a training that has ended: there is nothing to resume"):
        pellucid.train(scratch, ROWS, "text-classification", out=out, resume=True, **OPTIONS)


def test_resuming_removes_the_rest_of_the_state_and_keeps_the_model(scratch: "pellucid.Model", out: Path) -> None:
    model = (out / "model.safetensors").read_bytes()
    (out / "training" / "notes.txt").write_text("mine", encoding="utf-8")
    resume(scratch, out)
    assert [path.name for path in (out / "training").iterdir()] == ["notes.txt"]
    (out / "training" / "notes.txt").unlink()
    resume(scratch, out)
    assert not (out / "training").exists() and (out / "model.safetensors").read_bytes() == model


def test_the_state_of_a_process_that_trains_there_is_kept(scratch: "pellucid.Model", out: Path) -> None:
    before = {path.name for path in (out / "training").iterdir()}
    with lock_folder(out / "training"):
        resume(scratch, out)
    assert {path.name for path in (out / "training").iterdir()} == before
