"""`pellucid verify` and `pellucid diff`: lines for people, JSON for programs, exit codes for scripts."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import overrides

import pellucid
from tests.cli.command_runner import RunCommand, closed_pipe
from tests.conftest import tiny_config

COMMAND = [sys.executable, "-m", "pellucid"]
ENVIRONMENT = os.environ | {"NO_COLOR": "1", "COLUMNS": "100"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pellucid.build(tiny_config(), seed=1).save(tmp_path / "tiny")


def test_verify_prints_a_line_for_each_check_and_a_verdict(command: RunCommand, folder: Path) -> None:
    result = command("verify", "./tiny", "--dtype", "float64")
    assert (result.code, result.err) == (0, "")
    *lines, empty, verdict = result.out.splitlines()
    assert verdict == "./tiny computes what it should: 9 checks hold in float64" and not empty
    assert all(line.startswith("ok     ") for line in lines)
    assert all("<= 1e-09" in line for line in lines if "transformers" in line)


@pytest.mark.slow
def test_json_has_every_compared_point(command: RunCommand, folder: Path) -> None:
    result = command("verify", "./tiny", "--json")
    report = json.loads(result.out)
    assert (result.code, report["passed"], report["dtype"]) == (0, True, "float32")
    reference_check = next(check for check in report["checks"] if check["name"].startswith("transformers 5"))
    assert list(reference_check["points"])[:3] == [
        "embeddings.output",
        "layers.0.attention.weights",
        "layers.0.residual.post",
    ]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_failed_check_exits_with_1(command: RunCommand, folder: Path, form: list[str]) -> None:
    tables = load_file(folder / "model.safetensors")
    tables.pop("encoder.layer.1.output.dense.bias")
    save_file(tables, folder / "model.safetensors")
    result = command("verify", "./tiny", *form)
    assert (result.code, result.err) == (1, "")
    if form:
        assert json.loads(result.out)["passed"] is False
    else:
        assert result.out.startswith("FAILS  every tensor accounted for")
        assert result.out.splitlines()[-1] == "./tiny computes wrong numbers: 1 of 1 checks fail in float32"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_exit_code_is_right_if_the_output_is_closed(
    command: RunCommand, folder: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    tables = load_file(folder / "model.safetensors")
    save_file(tables | {"junk.weight": tables["pooler.dense.weight"].clone()}, folder / "model.safetensors")
    with closed_pipe() as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        result = command("verify", "./tiny", "--tokens", "0", *form)
    assert result.code == 1


def test_reference_is_skipped_without_docstrings(folder: Path) -> None:
    """The reference fails without its own docstrings, which used to be reported as an unexpected error."""
    command = [sys.executable, "-OO", "-m", "pellucid", "verify", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "it reads its own docstrings, which Python leaves out here: run without -OO" in result.stdout


def test_interrupt_leaves_no_temporary_files(folder: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [*COMMAND, "verify", "all-MiniLM-L6-v2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"TMPDIR": str(temporary)},
    )
    assert process.stdout is not None and process.stdout.readline().startswith("ok")
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert (process.returncode, message.strip()) == (130, "pellucid: interrupted")
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("pops", [1, 40])
def test_interrupt_within_a_torch_function_mode_is_reported(
    command: RunCommand, folder: Path, monkeypatch: pytest.MonkeyPatch, pops: int
) -> None:
    """Ctrl-C just after PyTorch has taken a mode off its stack causes another error, or a wrong verdict."""
    original, count = overrides._pop_mode, iter(range(pops))

    def pop() -> Any:
        mode = original()
        if next(count, None) == pops - 1:
            raise KeyboardInterrupt
        return mode

    monkeypatch.setattr(overrides, "_pop_mode", pop)
    result = command("verify", "./tiny", "--dtype", "float64")
    assert (result.code, result.err) == (130, "pellucid: interrupted\n")
    assert "transformers" not in result.out and not overrides._get_current_function_mode_stack()


def test_diff_prints_the_differences(command: RunCommand) -> None:
    result = command("diff", "bert", "roberta")
    assert result.code == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.out.splitlines()[1:]}
    assert rows["skip_padding"] == ["False", "True"] and rows["vocab_size"] == ["30,522", "50,265"]
    assert "hidden_size" not in rows and "axes differ" in result.err
    everything = command("--quiet", "diff", "bert", "roberta", "--all")
    assert "hidden_size" in everything.out and everything.err == ""


@pytest.mark.slow
def test_diff_as_json(command: RunCommand) -> None:
    found = json.loads(command("diff", "all-MiniLM-L6-v2", "bert", "--json").out)
    assert {"name": "hidden_size", "left": 384, "right": 768, "differs": True} in found
    assert all(row["differs"] for row in found)
    assert json.loads(command("diff", "bert", "bert", "--json").out) == []


ERRORS = {
    "nowhere": (["verify", "./nowhere"], 3, "no folder './nowhere'"),
    "no such dtype": (["verify", "./nowhere", "--dtype", "float8"], 2, "float8"),
    "fewer than no tokens": (["verify", "./nowhere", "--tokens", "-1"], 2, "--tokens"),
    "one side": (["diff", "bert"], 2, "RIGHT"),
    "no such side": (["diff", "bert", "robertta"], 3, "did you mean roberta"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_sentence_and_an_exit_code(command: RunCommand, name: str) -> None:
    arguments, code, fragment = ERRORS[name]
    result = command(*arguments)
    assert (result.code, result.out) == (code, "")
    assert fragment in result.err and len(result.err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["verify", "diff"])
def test_help_does_not_import_torch(name: str) -> None:
    code = f"import sys\nfrom pellucid.cli.app import app\napp.main(['{name}', '--help'], standalone_mode=False)\n"
    result = subprocess.run(
        [*COMMAND[:1], "-c", f"{code}print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert result.stdout.strip().endswith("False")
