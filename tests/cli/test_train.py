"""`pellucid train` and `pellucid evaluate`: arguments, messages on stderr, results on stdout."""

import inspect
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.cli.options import NameValueOption
from pellucid.cli.train import command as train
from tests.cli.command_runner import RunCommand, command_runner
from tests.training.conftest import *  # noqa: F403 - the same tiny checkpoints and rows

Sentiments = Callable[..., list[dict[str, Any]]]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[RunCommand]:
    """Runs `pellucid ...` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    level = logging.getLogger("pellucid").level
    yield command_runner(monkeypatch, capsys)
    logging.getLogger("pellucid").setLevel(level)


@pytest.fixture
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("bert-body")


@pytest.fixture
def table(tmp_path: Path, sentiments: Sentiments) -> Path:
    path = tmp_path / "train.csv"
    path.write_text(
        "".join(["text,label\n", *(f"{r['text']},{r['label']}\n" for r in sentiments(40))]), encoding="utf-8"
    )
    return path


QUICK = ("--set", "max_steps=2", "--batch-size", "8", "--precision", "float32")


def test_validation_share_of_a_small_table(
    command: RunCommand, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "few.csv").write_text("text,label\ngood,a\nbad,b\nfine,a\nill,b\n", encoding="utf-8")
    assert command("train", "classify", "few.csv", "--model", model, "-o", "few", *QUICK).code == 0
    rows = next(one for one in caplog.messages if "held out" in one)
    assert rows.startswith("text-classification: 3 rows of few.csv to learn from, 1 held out (25%); labels: a ")


@pytest.mark.usefixtures("table")
def test_train_writes_a_folder_that_run_and_evaluate_load(
    command: RunCommand, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = command("train", "classify", "train.csv", "--model", model, "-o", "my-model", *QUICK)
    assert (result.code, result.out) == (0, "my-model\n"), result.err
    rows, steps = caplog.messages
    assert rows == (
        "text-classification: 36 rows of train.csv to learn from, 4 held out (10%); labels: negative 50%, positive 50%"
    )
    assert steps.startswith(f"2 steps (2 at most), from {model}; 40,") and steps.endswith("; float32, 1 thread")
    assert " parameters are trainable; " in steps
    progress = result.err.splitlines()
    assert [line.split()[0] for line in progress][:3] == ["score", "loss", "accuracy"]
    assert (
        "baseline" in progress[0]
        and progress[-2].startswith("baseline: the commonest label")
        and "2 steps in" in progress[-1]
        and "were the best and are kept" in progress[-1]
    )
    answers = command("run", "sentiment-analysis", "-m", "my-model", "good people", "--json")
    assert json.loads(answers.out)["label"] in ("negative", "positive")
    scores = command("evaluate", "auto", "train.csv", "--model", "my-model", "--json")
    assert scores.code == 0 and set(json.loads(scores.out)) >= {"loss", "accuracy", "f1"}
    scores_table = command("evaluate", "classify", "train.csv", "--model", "my-model")
    assert [line.split()[0] for line in scores_table.out.splitlines()][:3] == ["score", "loss", "accuracy"]
    assert scores_table.err == "my-model on train.csv\n"


def test_last_scores_are_not_called_the_best(command: RunCommand, model: Path, table: Path) -> None:
    result = command("train", "classify", table, "-m", model, "-o", "out", "--set", "keep_best=false", *QUICK)
    assert result.code == 0 and "2 steps in" in result.err and "best" not in result.err.splitlines()[-1]


def test_stdout_has_only_json(command: RunCommand, model: Path, table: Path) -> None:
    result = command("--quiet", "train", "classify", table, "-m", model, "-o", "out", "--json", *QUICK)
    report = json.loads(result.out)
    assert result.err == "" and report["folder"] == "out" and report["steps"] == 2 and report["rows"] == 36
    assert set(report["scores"]) >= {"accuracy", "loss"} and report["baseline"] == {"accuracy": 0.5}


def test_options_are_applied_and_recorded(
    command: RunCommand, model: Path, table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table.write_text(table.read_text(encoding="utf-8").replace("text,label", "words,mood"), encoding="utf-8")
    (tmp_path / "dev.csv").write_bytes(table.read_bytes())
    arguments = [
        "--column",
        "text=words",
        "-c",
        "label=mood",
        "--validation",
        "dev.csv",
        "--epochs",
        "2",
        "--lora",
        "2",
    ]
    arguments += ["--learning-rate", "1e-3", "--seed", "7", "--set", "max-length=16", "--set", "freeze=embeddings.*"]
    result = command("train", "classify", table, "-m", model, "-o", "out", "--batch-size", "20", *arguments)
    assert result.code == 0, result.err
    recipe = (tmp_path / "out" / "recipe.toml").read_text(encoding="utf-8")
    for line in ("epochs = 2", "learning_rate = 0.001", "seed = 7", "max_length = 16", "lora = 2", "batch_size = 20"):
        assert f"\n{line}\n" in recipe
    assert '"embeddings.*"' in recipe and "mood" in recipe and 'file = "dev.csv"' in recipe
    assert "40 held out of dev.csv" in caplog.text

    again = command("train", "--recipe", "out/recipe.toml", "-o", "again")
    assert again.code == 0, again.err
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again")]
    assert files[0] == files[1]
    other = command("train", table, "--recipe", "out/recipe.toml", "-o", "other", "--epochs", "1", "--json")
    assert json.loads(other.out)["steps"] == 2


def test_trailing_space_of_a_setting_is_preserved(
    command: RunCommand, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "pairs.csv").write_text("text,target\n" + "one two,two\n" * 10, encoding="utf-8")
    settings = "--set", "prefix=shorten: ", "--set", "generate=false"
    result = command("train", "summarization", "pairs.csv", "-m", checkpoint("t5-tied"), "-o", "out", *settings, *QUICK)
    assert result.code == 0, result.err
    assert json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["prefix"] == "shorten: "
    scores = [
        command(
            "evaluate", "summarization", "pairs.csv", "-m", "out", "--json", "--set", f"prefix={one}", *settings[2:]
        ).out
        for one in ("shorten: ", '"shorten: "', "shorten:")
    ]
    assert scores[0] == scores[1] != scores[2]


def test_table_in_another_encoding_is_read(command: RunCommand, model: Path, table: Path, tmp_path: Path) -> None:
    table.write_text(table.read_text(encoding="utf-8").replace("good", "gôod"), encoding="latin-1")
    result = command("train", "classify", table, "-m", model, "-o", "out", *QUICK)
    assert result.code == 3 and "try --encoding" in result.err
    result = command("train", "classify", table, "-m", model, "-o", "out", "--encoding", "latin-1", *QUICK)
    assert result.code == 0, result.err
    assert 'encoding = "latin-1"' in (tmp_path / "out" / "recipe.toml").read_text(encoding="utf-8")
    assert command("train", "--recipe", "out/recipe.toml", "-o", "again").code == 0
    assert command("evaluate", "auto", table, "-m", "out", "--encoding", "latin-1", "--json").code == 0
    assert command("evaluate", "auto", table, "-m", "out").code == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("clasify", "train.csv", "-m", "M", "-o", "out"), 2, "unknown task 'clasify' (did you mean classify"),
        (("classify", "train.csv", "-o", "out"), 2, "Missing --model"),
        (("classify", "-m", "M", "-o", "out"), 2, "Missing DATA"),
        (("-m", "M", "-o", "out"), 2, "Missing TASK"),
        (("classify", "train.csv", "-m", "M"), 2, "Missing option '--output'"),
        (("classify", "train.csv", "-m", "M", "-o", "out", "--set", "epochs"), 2, "--set epochs gives no value"),
        (("classify", "train.csv", "-m", "M", "-o", "out", "--column", "text"), 2, "--column text gives no column"),
        (
            ("classify", "train.csv", "-m", "M", "-o", "out", "--column", "text=a", "--column", "label"),
            2,
            "--column label gives no column: write --column NAME=COLUMN",
        ),
        (("classify", "train.csv", "-m", "M", "-o", "o", "--seed", "1", "-s", "seed=2"), 2, "seed is given twice"),
        (
            ("classify", "train.csv", "-m", "M", "-o", "o", "-c", "label=A", "-c", "label=B"),
            2,
            "--column label is given twice, as A and as B: give it once",
        ),
        (("classify", "train.csv", "-m", "M", "-o", "out", "--epochs", "two"), 3, "epochs is 'two', expected a whole"),
        (("classify", "train.csv", "-m", "M", "-o", "out", "--set", "epoch=2"), 3, "'epoch' (did you mean epochs"),
        (("classify", "train.csv", "-m", "M", "-o", "out", "--validation", "2"), 3, "--validation is 2, expected"),
        (("classify", "train.csv", "-m", "M", "-o", "out", "--validation", "no.csv"), 3, "there is no file 'no.csv'"),
        (("classify", "no.csv", "-m", "M", "-o", "out"), 3, "there is no file 'no.csv'"),
        (("classify", "train.csv", "-m", "M", "-o", "out", "-c", "label=mood"), 3, "mood"),
        (
            ("classify", "train.csv", "-m", "M", "-o", "out", "-c", "labell=label"),
            3,
            "--column: the task has no column 'lab",
        ),
        (("classify", "train.csv", "-m", "M", "-o", "out", "-s", "lr=1"), 3, "'lr' (did you mean learning_rate?)"),
        (
            ("classify", "train.csv", "-m", "M", "-o", "out", "--lora", "4", "--from-scratch"),
            3,
            "--lora 4 adapts trained weights",
        ),
        (("classify", "train.csv", "-m", "nowhere", "-o", "out"), 3, "nowhere"),
        (("classify", "train.csv", "-m", "M", "-o", "train.csv"), 2, "is a file, expected a folder"),
        (("--recipe", "no.toml", "-o", "out"), 3, "there is no recipe 'no.toml'"),
        (("classify", "train.csv", "-m", "M", "-o", "out", "--resume", "--overwrite"), 3, "leave one of them out"),
    ],
)
@pytest.mark.usefixtures("table")
def test_errors_are_one_sentence_and_an_exit_code(
    command: RunCommand, model: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = command("train", *(str(model) if one == "M" else one for one in arguments))
    assert (result.code, result.out) == (code, ""), result.err
    assert message in result.err and result.err.count("\n") == 1 and not (tmp_path / "out" / "config.json").exists()


OWN_OPTIONS = {
    "overwrite": "--overwrite",
    "columns": "--column",
    "validation": "--validation",
    "encoding": "--encoding",
    "recipe": "--recipe",
    "resume": "--resume",
    "model": "--model",
    "from-scratch": "--from-scratch",
    "json": "--json",
    "out": "--output",
    "output": "--output",
    "task": "TASK",
    "data": "DATA",
    "progress": "pellucid --quiet train",
}
"""Arguments that --set does not take, and what to type instead."""


@pytest.mark.parametrize("name", OWN_OPTIONS)
def test_arguments_with_their_own_option_are_refused_by_set(command: RunCommand, name: str) -> None:
    result = command("train", "classify", "train.csv", "-m", "nowhere", "-o", "out", "--set", f"{name}=true")
    expected = f"{name.replace('-', '_')} is not set by --set: write {OWN_OPTIONS[name]};"
    assert result.code == 2 and expected in result.err, result.err


def test_set_accepts_no_argument_of_train() -> None:
    """Every named parameter of `pellucid.train` is a setting, or has an option or argument of its own."""
    setting_option = next(one for one in train.params if isinstance(one, NameValueOption))
    arguments = [
        name for name, one in inspect.signature(pellucid.train).parameters.items() if one.kind != one.VAR_KEYWORD
    ]
    assert [name for name in arguments if setting_option.own_spelling(name, train) is None] == []


def test_wrong_arguments_are_reported_before_an_existing_folder(
    command: RunCommand, model: Path, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine", encoding="utf-8")
    for arguments, message in [
        (("--validation", "2"), "--validation is 2"),
        (("--validation", "no.csv"), "there is no file 'no.csv'"),
        (("--column", "labell=label"), "--column: the task has no column"),
        (("--encoding", "zzz"), "encoding is 'zzz'"),
        (("--lora", "4", "--from-scratch"), "leave one of them out"),
        ((), "already holds files"),
    ]:
        result = command("train", "classify", table, "-m", model, "-o", "out", *QUICK, *arguments)
        assert result.code == 3 and message in result.err, result.err


def test_finished_training_is_not_resumed(command: RunCommand, model: Path, table: Path, tmp_path: Path) -> None:
    command_line = "train", "classify", table, "-m", model, "-o", "out", *QUICK
    assert command(*command_line).code == 0
    result = command(*command_line, "--resume")
    assert result.code == 3 and "out holds a training that has ended: there is nothing to resume" in result.err
    (tmp_path / "out" / "log.jsonl").unlink()
    assert "out holds files, and no training that was interrupted" in command(*command_line, "--resume").err


def test_errors_of_evaluate(command: RunCommand, model: Path, table: Path) -> None:
    result = command("evaluate", "classify", table, "-m", model, "--set", "encoding=utf-8")
    assert result.code == 2 and "encoding is not set by --set: write --encoding" in result.err
    result = command("evaluate", "tagg", table, "-m", model)
    assert result.code == 2 and "did you mean tag" in result.err
    result = command("evaluate", "classify", table, "-m", model)
    assert result.code == 3 and "needs a head" in result.err
    assert command("evaluate", "auto", "no.csv", "-m", model).code == 3


def test_existing_folder_is_not_overwritten(command: RunCommand, model: Path, table: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine", encoding="utf-8")
    result = command("train", "classify", table, "-m", model, "-o", "out", *QUICK)
    assert result.code == 3 and "--overwrite" in result.err
    result = command("train", "classify", table, "-m", model, "-o", "out", "--overwrite", *QUICK)
    assert result.code == 0 and (tmp_path / "out" / "mine.txt").read_text(encoding="utf-8") == "mine"


def test_ctrl_c_saves_the_weights(
    command: RunCommand, model: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [
        "train",
        "classify",
        str(table),
        "-m",
        str(model),
        "-o",
        "out",
        "--set",
        "max_steps=4000",
        "--batch-size",
        "8",
    ]
    arguments += ["--set", "save_every=2"]
    line = [sys.executable, "-m", "pellucid", *arguments]
    process = subprocess.Popen(
        line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "out" / "training" / "manifest.json").exists() and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "interrupted" in err.splitlines()[-1] and "--resume" in err.splitlines()[-1]
    monkeypatch.chdir(tmp_path)
    again = command(*arguments)
    assert again.code == 3 and "--resume" in again.err
    other = command(*[one.replace("4000", "4001") for one in arguments], "--resume")
    assert other.code == 3 and "max_steps" in other.err


def test_help_lists_every_task_without_importing_torch() -> None:
    code = (
        "import sys\nfrom pellucid.cli.app import app\n"
        "app.main(['{}', '--help'], standalone_mode=False)\nsys.exit('torch' in sys.modules)"
    )
    for name in ("train", "evaluate"):
        shown = subprocess.run(
            [sys.executable, "-c", code.format(name)], capture_output=True, text=True, check=True,
            env=os.environ | {"COLUMNS": "200"},
        )  # fmt: skip
        from pellucid.training.names import OBJECTIVES

        assert all(one.name in shown.stdout for one in OBJECTIVES)
    assert pellucid.train.__doc__ and "recipe" in pellucid.train.__doc__
