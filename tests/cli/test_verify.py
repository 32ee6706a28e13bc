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
from tests.cli.command_runner import Pellucid, nobody_reads
from tests.conftest import tiny_config

COMMAND = [sys.executable, "-m", "pellucid"]
ENVIRONMENT = os.environ | {"NO_COLOR": "1", "COLUMNS": "100"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pellucid.build(tiny_config(), seed=1).save(tmp_path / "tiny")


def test_a_line_for_each_check_and_a_verdict(command: Pellucid, folder: Path) -> None:
    done = command("verify", "./tiny", "--dtype", "float64")
    assert (done.code, done.err) == (0, "")
    *lines, empty, verdict = done.out.splitlines()
    assert verdict == "./tiny computes what it should: 9 checks hold in float64" and not empty
    assert all(line.startswith("ok     ") for line in lines)
    assert all("<= 1e-09" in line for line in lines if "transformers" in line)


@pytest.mark.slow
def test_json_has_every_place(command: Pellucid, folder: Path) -> None:
    done = command("verify", "./tiny", "--json")
    report = json.loads(done.out)
    assert (done.code, report["holds"], report["dtype"]) == (0, True, "float32")
    whole = next(check for check in report["checks"] if check["name"].startswith("transformers 5"))
    assert list(whole["points"])[:3] == ["embeddings.output", "layers.0.attention.weights", "layers.0.residual.post"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_does_not_hold_ends_with_1(command: Pellucid, folder: Path, form: list[str]) -> None:
    tables = load_file(folder / "model.safetensors")
    tables.pop("encoder.layer.1.output.dense.bias")
    save_file(tables, folder / "model.safetensors")
    done = command("verify", "./tiny", *form)
    assert (done.code, done.err) == (1, "")
    if form:
        assert json.loads(done.out)["holds"] is False
    else:
        assert done.out.startswith("FAILS  every tensor accounted for")
        assert done.out.splitlines()[-1] == "./tiny computes wrong numbers: 1 of 1 checks fail in float32"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_code_is_told_though_nobody_reads_the_lines(
    command: Pellucid, folder: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    tables = load_file(folder / "model.safetensors")
    save_file(tables | {"junk.weight": tables["pooler.dense.weight"].clone()}, folder / "model.safetensors")
    with nobody_reads() as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        done = command("verify", "./tiny", "--tokens", "0", *form)
    assert done.code == 1


def test_without_docstrings_the_reference_is_not_asked(folder: Path) -> None:
    """The reference fails without its own docstrings, which used to be reported as an unexpected error."""
    command = [sys.executable, "-OO", "-m", "pellucid", "verify", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "it reads its own docstrings, which Python leaves out here: run without -OO" in done.stdout


def test_interrupted_it_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    left = tmp_path / "temporary"
    left.mkdir()
    process = subprocess.Popen(
        [*COMMAND, "verify", "all-MiniLM-L6-v2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"TMPDIR": str(left)},
    )
    assert process.stdout is not None and process.stdout.readline().startswith("ok")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said.strip()) == (130, "pellucid: interrupted")
    assert not list(left.iterdir())


@pytest.mark.parametrize("pops", [1, 40])
def test_interrupted_within_a_mode_of_torch_it_says_so(
    command: Pellucid, folder: Path, monkeypatch: pytest.MonkeyPatch, pops: int
) -> None:
    """Ctrl-C just after PyTorch has taken a mode off its stack causes another error, or a wrong verdict."""
    real, count = overrides._pop_mode, iter(range(pops))

    def pop() -> Any:
        mode = real()
        if next(count, None) == pops - 1:
            raise KeyboardInterrupt
        return mode

    monkeypatch.setattr(overrides, "_pop_mode", pop)
    done = command("verify", "./tiny", "--dtype", "float64")
    assert (done.code, done.err) == (130, "pellucid: interrupted\n")
    assert "transformers" not in done.out and not overrides._get_current_function_mode_stack()


def test_diff_shows_what_differs(command: Pellucid) -> None:
    done = command("diff", "bert", "roberta")
    assert done.code == 0
    rows = {line.split()[0]: line.split()[1:] for line in done.out.splitlines()[1:]}
    assert rows["skip_padding"] == ["False", "True"] and rows["vocab_size"] == ["30,522", "50,265"]
    assert "hidden_size" not in rows and "axes differ" in done.err
    everything = command("--quiet", "diff", "bert", "roberta", "--all")
    assert "hidden_size" in everything.out and everything.err == ""


@pytest.mark.slow
def test_diff_for_machines(command: Pellucid) -> None:
    found = json.loads(command("diff", "all-MiniLM-L6-v2", "bert", "--json").out)
    assert {"name": "hidden_size", "left": 384, "right": 768, "differs": True} in found
    assert all(row["differs"] for row in found)
    assert json.loads(command("diff", "bert", "bert", "--json").out) == []


WRONG = {
    "nowhere": (["verify", "./nowhere"], 3, "no folder './nowhere'"),
    "no such dtype": (["verify", "./nowhere", "--dtype", "float8"], 2, "float8"),
    "fewer than no tokens": (["verify", "./nowhere", "--tokens", "-1"], 2, "--tokens"),
    "one side": (["diff", "bert"], 2, "RIGHT"),
    "no such side": (["diff", "bert", "robertta"], 3, "did you mean roberta"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence_and_a_code(command: Pellucid, name: str) -> None:
    arguments, code, fragment = WRONG[name]
    done = command(*arguments)
    assert (done.code, done.out) == (code, "")
    assert fragment in done.err and len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["verify", "diff"])
def test_help_loads_no_torch(name: str) -> None:
    code = f"import sys\nfrom pellucid.cli.app import app\napp.main(['{name}', '--help'], standalone_mode=False)\n"
    done = subprocess.run([*COMMAND[:1], "-c", f"{code}print('torch' in sys.modules)"], capture_output=True, text=True)
    assert done.stdout.strip().endswith("False")
