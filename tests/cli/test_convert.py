"""`pellucid convert`: the folder on stdout, notes on stderr, one sentence and an exit code where weights do not fit."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli.command_runner import RunCommand


@pytest.fixture(scope="module")
def transliteration_folder(shared: Callable[[str], Path]) -> str:
    return str(shared("models/aren-transliteration"))


def test_convert_writes_a_folder(command: RunCommand, transliteration_folder: str, tmp_path: Path) -> None:
    result = command("convert", transliteration_folder, "--heads", "8", "-o", "new/aren")
    assert (result.code, result.out) == (0, "new/aren\n")
    assert "260 tensors, 0.18 million numbers" in result.err
    assert json.loads((tmp_path / "new" / "aren" / "config.json").read_text())["num_attention_heads"] == 8
    assert len(load_file(tmp_path / "new" / "aren" / "model.safetensors")) == 260
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["aren"]


def test_quiet_and_overwriting_a_folder(command: RunCommand, transliteration_folder: str, tmp_path: Path) -> None:
    (tmp_path / "old" / "notes").mkdir(parents=True)
    for name in ("pytorch_model.bin", "vocab.txt", "config.json", "mine.txt"):
        (tmp_path / "old" / name).write_text("older")
    result = command("--quiet", "convert", transliteration_folder, "--heads", "8", "-o", "old", "--overwrite")
    assert (result.code, result.out, result.err) == (0, "old\n", "")
    names = {path.name for path in (tmp_path / "old").iterdir()}
    assert {"mine.txt", "notes", "model.safetensors"} <= names  # files that do not belong to the older model stay
    assert not names & {"pytorch_model.bin", "vocab.txt"}
    assert json.loads((tmp_path / "old" / "config.json").read_text())["model_type"] == "transformer"


ERRORS = {
    "no output": (["{aren}", "--heads", "8"], 2, "--output"),
    "no heads": (["{aren}", "-o", "new"], 3, "pass --heads N"),
    "no head at all": (["{aren}", "--heads", "0", "-o", "new"], 2, "--heads"),
    "heads that do not divide": (["{aren}", "--heads", "7", "-o", "new"], 3, "7 heads do not divide a width of 32"),
    "nowhere": (["./nowhere.onnx", "-o", "new"], 3, "./nowhere.onnx"),
    "no such package": (["no-such-package-at-all", "-o", "new"], 3, "no installed package"),
    "a package without a model": (["pytest", "-o", "new"], 3, "holds no .onnx file"),
    "a checkpoint that came as a package": (
        ["sentiment-minilm", "-o", "new"],
        3,
        "is a checkpoint, which opens directly",
    ),
    "a GGUF file": (["taken/model.gguf", "-o", "new"], 3, "is a checkpoint, which opens directly"),
    "another file": (["taken/file.txt", "-o", "new"], 3, "expected an .onnx file"),
    "an empty folder": (["empty", "-o", "new"], 3, "nothing to convert"),
    "an adapter": (["adapter", "-o", "new"], 3, 'pellucid.load("adapter").save("FOLDER") writes the whole model'),
    "a taken folder": (["{aren}", "--heads", "8", "-o", "taken"], 3, "pass --overwrite"),
    "a file as folder": (["{aren}", "--heads", "8", "-o", "taken/file.txt"], 3, "is a file"),
    "into itself": (["{aren}", "--heads", "8", "-o", "{aren}", "--overwrite"], 3, "choose another folder"),
    "no model but a name": (["taken/cut.onnx", "-o", "new"], 3, "config.json"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_sentence_and_an_exit_code(
    command: RunCommand, transliteration_folder: str, tmp_path: Path, name: str
) -> None:
    arguments, code, fragment = ERRORS[name]
    (tmp_path / "taken").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "taken" / "file.txt").write_text("mine")
    (tmp_path / "taken" / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "taken" / "cut.onnx").write_bytes(b"\x08")
    before = sorted(tmp_path.rglob("*"))
    result = command("convert", *(word.format(aren=transliteration_folder) for word in arguments))
    assert result.code == code, result.err
    assert result.out == "" and fragment in result.err and "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_help_shows_an_example_and_does_not_import_torch() -> None:
    code = "import sys\nfrom pellucid.cli.app import app\napp.main(['convert', '--help'], standalone_mode=False)\n"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert "pellucid convert ./downloads/bert-onnx -o bert" in result.stdout and result.stdout.strip().endswith("False")
