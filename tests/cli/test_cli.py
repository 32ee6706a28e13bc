"""The command line: answers on stdout, the rest on stderr, and for errors one sentence and an exit code."""

import contextlib
import io
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich_click as click
import torch

import pellucid
from pellucid import machine
from pellucid.blocks import availability
from pellucid.cli import doctor, main
from pellucid.cli.app import COMMANDS, app
from pellucid.cli.embed import CHUNK_SIZE
from pellucid.cli.errors import INTERRUPTED
from pellucid.cli.errors import run as finish
from pellucid.cli.options import message_as_typed, running_context
from pellucid.errors import (
    Argument,
    CorruptFileError,
    InputError,
    Interrupted,
    MessagePart,
    Placeholder,
    ResourceError,
    StructuredError,
)
from tests import documents
from tests.cli.command_runner import RunCommand, command_runner
from tests.failing_imports import fail_import
from tests.tasks.task_models import saved_folder
from tests.torch_state import needs_gpu

LONG = "word " * 299 + "word"


def run(folder: Path, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pellucid", *arguments]
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run(
        command, cwd=folder, input=stdin, capture_output=True, text=True, env=environment, timeout=120
    )


def test_look_writes_a_page_and_prints_its_path(tmp_path: Path) -> None:
    result = run(tmp_path, "look", "time flies like an arrow", "--pair", "fruit flies like a banana", "--head", "3")
    assert result.returncode == 0
    assert result.stdout.strip() == "time-flies-like-an-arrow.html"
    assert (tmp_path / result.stdout.strip()).stat().st_size > 100_000
    assert "strongest links between words, layer 0, head 3" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_list_of_commands_has_the_first_line_of_each_help(name: str) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None and command.name == name
    assert (command.help or "").strip().splitlines()[0] == COMMANDS[name]


def test_garbage_collection_at_exit_skips_imported_objects() -> None:
    at_exit = "import atexit, gc\natexit.register(lambda: print('to walk:', len(gc.get_objects())))\n"
    counts = []
    for start in ("from pellucid.cli.errors import run as main; main(app)", "from pellucid.cli import main; main()"):
        code = f"{at_exit}from pellucid.cli.app import app\n{start}"
        result = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
        counts.append(int(result.stdout.split("to walk:")[1]))
    assert counts[0] > 1000 > 100 > counts[1]


def test_list_of_commands_imports_no_command() -> None:
    code = (
        "import sys\nfrom pellucid.cli.app import COMMANDS, app\napp.main(['--help'], standalone_mode=False)\n"
        "print([name for name in COMMANDS if f'pellucid.cli.{name}' in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(line in result.stdout for line in COMMANDS.values())
    assert result.stdout.splitlines()[-1] == "[]"


def test_quiet_look_at_standard_input(tmp_path: Path) -> None:
    result = run(tmp_path, "--quiet", "look", "-", "-o", "page.html", stdin="a text from elsewhere\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "page.html\n", "")


@pytest.mark.slow
def test_embed_writes_vectors_while_computing(tmp_path: Path) -> None:
    lines = [LONG, *(f"line {i}" for i in range(2 * CHUNK_SIZE - 2)), LONG]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pellucid", "embed", str(tmp_path / "lines.txt"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert process.poll() is None  # many more are still to come
        rows = [first, *map(json.loads, process.stdout)]
        assert process.stderr is not None
        assert f"2 of {2 * CHUNK_SIZE:,} texts were cut" in process.stderr.read()
    assert [row["text"] for row in rows] == lines


def test_embed_writes_json_npy_and_text(command: RunCommand, tmp_path: Path, minilm: "pellucid.Model") -> None:
    expected = minilm.embed(["Apple Inc.", "Microsoft Corp"]).numpy()
    rows = [json.loads(line) for line in command("embed", "Apple Inc.", "Microsoft Corp", "--json").out.splitlines()]
    assert [row["text"] for row in rows] == ["Apple Inc.", "Microsoft Corp"]
    np.testing.assert_allclose([row["vector"] for row in rows], expected, rtol=0, atol=1e-6)
    (tmp_path / "names.csv").write_text("id,name\n1,Apple Inc.\n2,Microsoft Corp\n")
    assert command("embed", "names.csv", "--column", "name", "-o", "v.npy").out == "v.npy\n"
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, rtol=0, atol=1e-6)
    piped = run(tmp_path, "embed", "-", stdin="Apple Inc.\nMicrosoft Corp\n").stdout.splitlines()
    np.testing.assert_allclose([[float(x) for x in line.split()] for line in piped], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("arguments", [["describe", "all-MiniLM-L6-v2"], ["models"], ["doctor"]])
def test_output_is_json_only_with_its_option(command: RunCommand, arguments: list[str]) -> None:
    assert json.loads(command(*arguments, "--json").out)
    with pytest.raises(json.JSONDecodeError):
        json.loads(command(*arguments).out)


def test_describe_gives_the_lengths_that_are_read(command: RunCommand, minilm: pellucid.Model, tmp_path: Path) -> None:
    found = json.loads(command("describe", "all-MiniLM-L6-v2", "--json").out)
    assert found["words"] == {"tokens": "30,522", "longest text": "512 tokens"}
    assert found["text to vector"]["longest text"] == "256 tokens"
    pair = saved_folder("pair", tmp_path, minilm)
    assert json.loads(command("describe", pair, "--json").out)["words"]["longest text"] == "no limit of its own"


@pytest.mark.parametrize("gpu", [True, False])
def test_doctor_lists_the_fast_dtype_of_each_device(
    gpu: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library's functions that detect a GPU are replaced."""
    devices = {"cpu": torch.device("cpu"), "auto": torch.device("cuda" if gpu else "cpu")}
    dtypes = {"cpu": torch.float32, "cuda": torch.bfloat16}
    monkeypatch.setattr(machine, "choose_device", devices.__getitem__)
    monkeypatch.setattr(machine, "fastest_dtype", lambda device: dtypes[device.type])
    report = json.loads(command_runner(monkeypatch, capsys)("doctor", "--json").out)
    found = {name: report[name] for name in report if name.startswith("fast dtype")}
    assert found == {"fast dtype on cpu": "float32"} | ({"fast dtype on cuda": "bfloat16"} if gpu else {})


@pytest.mark.parametrize(
    ("installed", "usable", "expected"),
    [
        (True, True, "ready"),
        (True, False, "none (numba is installed and cannot be used: a warning says why)"),
        (False, False, "none (pip install 'pellucid[fast]')"),
    ],
)
def test_doctor_suggests_installing_only_what_is_missing(
    installed: bool, usable: bool, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(availability, "usable_kernels", lambda: object() if usable else None)
    monkeypatch.setattr(availability, "installed", lambda: installed)
    assert json.loads(command_runner(monkeypatch, capsys)("doctor", "--json").out)["compiled steps"] == expected


def test_doctor_lists_the_versions_of_all_optional_dependencies() -> None:
    project = tomllib.loads((documents.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [project["optional-dependencies"][name] for name in ("search", "train", "fast", "draw", "onnx")]
    assert {one.partition(">=")[0] for extra in extras for one in extra} <= set(doctor.PACKAGES)


ERRORS = {
    "no such command": (["lok", "x"], 2, "did you mean look"),
    "no text": (["look"], 2, "Missing argument"),
    "no such option": (["embed", "--foo"], 2, "--foo"),
    "no such layer": (["look", "x", "--layer", "9"], 3, "--layer 9 does not exist"),
    "no such head": (["look", "x", "--head", "12"], 3, "--head 12 does not exist: this model has heads 0 to 11"),
    "a target of one that has none": (["look", "x", "--target", "y"], 3, "--target was given, and a model of kind"),
    "a lens for no words": (["look", "x", "--lens"], 3, "which this one lacks: name one by --model NAME"),
    "given twice": (["embed", "x", "--normalize", "--no-normalize"], 2, "--normalize or --no-normalize is given twice"),
    "given twice to a subcommand": (["index", "info", "x", "--json", "--json"], 2, "--json is given twice"),
    "no such folder": (["describe", "./nowhere"], 3, "no folder './nowhere'"),
    "unknown and offline": (["describe", "nobody/nothing"], 3, "nobody/nothing"),
    "no such file": (["embed", "none.csv", "--column", "a"], 3, "none.csv"),
    "a file that is not there": (["embed", "none.txt"], 3, "there is no file 'none.txt'"),
    "a folder": (["generate", "."], 3, "'.' is a folder"),
    "an ending of another kind": (["look", "x", "--svg", "x.png"], 3, "--svg is x.png, expected a name that ends"),
    "vectors as text": (["embed", "x", "-o", "x.txt"], 3, "--output is x.txt, expected a name that ends in .npy"),
    "vectors in two forms": (["embed", "x", "-o", "x.npy", "--json"], 2, "leave one of them out"),
    "a view that is not drawn": (["look", "x", "--view", "lens", "--svg", "x.svg"], 2, "--view lens is for a page"),
    "no such pooling": (["embed", "x", "--pooling", "meen"], 3, "did you mean mean"),
    "no such place": (["look", "x", "-o", "no/such/page.html"], 3, "cannot write"),
    "no name of a file": (["embed", "x", "-o", ""], 2, "--output is empty, expected the name of a file"),
    "no name of a drawing": (["look", "x", "--svg", ""], 2, "--svg is empty, expected the name of a file"),
    "no name of a model": (["convert", "x", "-o", ""], 2, "--output is empty, expected the name of a folder"),
    "no name of a training": (["train", "tag", "x", "-m", "y", "-o", ""], 2, "--output is empty, expected the name"),
    "no name of an index": (["index", "info", ""], 2, "INDEX is empty, expected the name of a folder"),
    "a file as an index": (["search", __file__, "x"], 2, "is a file, expected a folder"),
    "a folder as a page": (["look", "x", "-o", "."], 2, "'.' is a folder, expected a file"),
    "no name of queries": (["index", "evaluate", "x", ""], 2, "QUERIES is empty, expected the name of a file"),
    "a column of no name": (["embed", "x", "-c", ""], 3, "there is no file 'x'"),
    "columns of no name": (["embed", "x", "y", "-c", ""], 2, "columns are those of one FILE"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_sentence_and_an_exit_code(command: RunCommand, tmp_path: Path, name: str) -> None:
    arguments, code, fragment = ERRORS[name]
    result = command(*arguments)
    assert result.code == code, result.err
    assert result.out == ""
    assert fragment in result.err and "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


QA = "question-answering"

INEFFECTIVE_OPTIONS = {
    "the encoding of an argument": (["embed", "a", "--encoding", "latin-1"], "--encoding is for a FILE"),
    "the encoding of what is piped": (["run", "ner", "-", "--encoding", "utf-16"], "--encoding is for a FILE"),
    "the encoding of a piped prompt": (["generate", "-", "--encoding", "latin-1"], "--encoding is for a FILE"),
    "the column of a piped prompt": (["generate", "-", "--column", "a"], "columns are those of one FILE"),
    "a pair read whole": (["run", QA, "--question", "a", "--pair", "b", "--whole"], "both texts are given"),
    "rows of a pair": (["run", QA, "--question", "a", "--pair", "b", "--skip-bad-rows"], "both texts are given"),
    "a lens in a drawing": (["look", "a", "--lens", "--svg", "a.svg"], "--lens is for a page"),
    "a graph of none": (["index", "build", "a.csv", "-o", "i", "--kind", "flat", "--M", "9"], "--M is for a graph"),
    "grades of no queries": (["index", "evaluate", "i", "--grade-column", "g"], "--grade-column is for QUERIES"),
    "the mode of no queries": (["index", "evaluate", "i", "--mode", "words"], "--mode is for QUERIES"),
    "queries left out": (["index", "evaluate", "i", "--skip-unlisted"], "--skip-unlisted is for QUERIES"),
    "the theme of nothing": (["index", "evaluate", "i", "--theme", "dark"], "--theme is for --plot"),
}
"""Options that would have no effect with the others, and the error."""


@pytest.mark.parametrize("name", INEFFECTIVE_OPTIONS)
def test_options_without_effect_are_refused(command: RunCommand, name: str) -> None:
    arguments, message = INEFFECTIVE_OPTIONS[name]
    result = command(*arguments, stdin="a text")
    assert (result.code, result.out) == (2, "") and message in result.err, result.err


@pytest.mark.parametrize(
    ("arguments", "command_name"),
    [("look hi --pair", "look"), ("index build --column", "index build"), ("train classify mine.csv -o", "train")],
)
def test_option_without_a_value_refers_to_the_help_of_its_command(
    command: RunCommand, arguments: str, command_name: str
) -> None:
    result = command(*arguments.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith(f"requires an argument; see pellucid {command_name} --help\n")


def test_option_with_its_default_value_is_accepted(command: RunCommand) -> None:
    arguments = ["index", "build", "none.csv", "-o", "i", "--kind", "flat"]
    assert "none.csv" in command(*arguments).err and "none.csv" in command(*arguments, "--column", "a").err


BEAMS = InputError(Argument("num_beams"), " is 3: pass ", Argument("num_beams", 1))

MESSAGES: dict[str, list[tuple[MessagePart, str]]] = {
    "run": [
        (
            ("pass ", Argument("long", "windows"), ", or ", Argument("long", "truncate")),
            "pass --long windows, or --long truncate",
        ),
        (("pass ", Argument("candidate_labels", ["a b", "c"]), ", say"), "pass --labels 'a b,c', say"),
        (("no option '", Argument("candidate_labels"), "': it has top_k"), "no option '--labels': it has top_k"),
        (("leave ", Argument("explain"), " out"), "leave --why out"),
        (("pass ", Argument("partial_targets", True)), "pass -O partial_targets=true"),
        (Argument("hypothesis_template", "It is {}."), "-O 'hypothesis_template=It is {}.'"),
        (Argument("do_sample", True), "-O do_sample=true"),
        (Argument("revision", "main"), "revision='main'"),
        (Argument("top_k"), "--top-k"),
        ((Argument("max_length"), " is 0"), "--max-length is 0"),
        (Argument("whole", False), "whole=False"),
    ],
    "index build": [
        (("or pass ", Argument("on_duplicate", "keep-last")), "or pass --on-duplicate keep-last"),
        ((Argument("efSearch"), " is 0"), "--ef-search is 0"),
    ],
    "index evaluate": [
        (("with ", Argument("unlisted", "skip")), "with --skip-unlisted"),
        (Argument("unlisted", "error"), "unlisted='error'"),
        ((Argument("k"), " is 0"), "-k is 0"),
    ],
    "train": [
        (("pass ", Argument("validation", Placeholder("FILE"))), "pass --validation FILE"),
        (
            Argument("columns", {"label": Placeholder("NAME"), "text": "my text"}),
            "--column label=NAME --column 'text=my text'",
        ),
        (("or choose ", Argument("criterion", "cosent")), "or choose --set criterion=cosent"),
        (("or ", Argument("warmup", 0.1)), "or --set warmup=0.1"),
        (("or ", Argument("impossible", True)), "or --set impossible=true"),
        (Argument("revision", "main"), "revision='main'"),
    ],
    "evaluate": [(Argument("criterion", "cosent"), "--set criterion=cosent"), (Argument("warmup", 0.1), "warmup=0.1")],
    "embed": [
        (("try ", Argument("dtype", "bfloat16")), "try --dtype bfloat16"),
        (("try ", Argument("dtype", "int8")), "try dtype='int8'"),  # not a choice of this command
        (
            ("pass ", Argument("normalize", False), ", or ", Argument("normalize", True)),
            "pass --no-normalize, or --normalize",
        ),
    ],
    "generate": [
        (
            (Argument("num_beams"), " is 3: stream with ", Argument("num_beams", 1)),
            "--beams is 3: stream with --beams 1",
        ),
        (Argument("stop", ["a", "b c"]), "--stop a --stop 'b c'"),
        (InputError("item 3: ", BEAMS), "item 3: --beams is 3: pass --beams 1"),
    ],
}


@pytest.mark.parametrize("command", MESSAGES)
def test_arguments_in_messages_are_spelled_as_options(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pellucid", "--quiet", *command.split(), "a text"])
    for parts, expected in MESSAGES[command]:
        assert message_as_typed(InputError(parts), running_context(app)) == expected


SPELLINGS_BY_TASK = {
    "run text-generation": (Argument("do_sample", True), "-O do_sample=true"),
    "run -m tags ner": (Argument("do_sample", True), "do_sample=True"),
    "run translation_en_to_de": (Argument("src_lang", Placeholder("CODE")), "-O src_lang=CODE"),
    "evaluate embed": (Argument("criterion", "cosent"), "--set criterion=cosent"),
    "evaluate classify": (Argument("criterion", "cosent"), "criterion='cosent'"),
    "evaluate auto": (Argument("criterion", "cosent"), "--set criterion=cosent"),
    "train -o out classify": (Argument("criterion", "cosent"), "criterion='cosent'"),
    "train classify -o out": (Argument("warmup", 0.1), "--set warmup=0.1"),
}
"""What was typed, an argument, and how the command spells it."""


@pytest.mark.parametrize("arguments", SPELLINGS_BY_TASK)
def test_options_in_messages_depend_on_the_task(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    argument, expected = SPELLINGS_BY_TASK[arguments]
    monkeypatch.setattr(sys, "argv", ["pellucid", "--quiet", *arguments.split(), "a text"])
    assert message_as_typed(InputError(argument), running_context(app)) == expected


def test_option_with_two_spellings_is_named_as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, expected in (
        (["--dtype", "float16"], "--dtype"),
        (["--dtype=float16"], "--dtype"),
        ([], "--precision"),
    ):
        monkeypatch.setattr(sys, "argv", ["pellucid", "train", *arguments])
        assert message_as_typed(InputError(Argument("precision")), running_context(app)) == expected


def test_file_name_read_as_text_is_reported(command: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("a line", encoding="utf-8")
    result = command("look", "l.txt", "--layer", "9")
    assert "`pellucid look - < l.txt` reads the file" in result.err


QUOTED_TEXTS = ["/a/num_beams=3/b: no 'pair_column' in top_k.csv", f"/my m/generation_config.json: {BEAMS}"]
"""Texts that name a file, or quote its contents."""


@pytest.mark.parametrize("message", QUOTED_TEXTS)
def test_quoted_texts_are_not_translated_to_options(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pellucid", "generate", "a text"])
    assert message_as_typed(InputError(message), running_context(app)) == message


@pytest.mark.parametrize("kind", [InputError, ResourceError, CorruptFileError, Interrupted])
def test_every_kind_of_error_names_options(
    kind: type[StructuredError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @click.option("--beams", "num_beams", type=int)
    def command(num_beams: int) -> None:
        raise kind(Argument("num_beams"), f" is {num_beams}")

    monkeypatch.setattr(sys, "argv", ["pellucid", "--beams", "3"])
    assert finish(command) == getattr(kind, "exit_code", INTERRUPTED)
    assert capsys.readouterr().err.strip() == "pellucid: --beams is 3"


@pytest.mark.parametrize("arguments", [["embed", "-"], ["embed", "-", "-o", "old.npy"], ["run", "ner", "-"]])
def test_empty_standard_input_is_an_error(
    command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """The program that should have written the texts may have failed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.npy").write_bytes(b"old")
    result = command(*arguments)
    assert (result.code, result.out, (tmp_path / "old.npy").read_bytes()) == (3, "", b"old")
    assert "standard input holds no texts" in result.err


def test_missing_column_suggests_the_column_option(command: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,mood\n" + "good,1\nbad,0\n" * 10)
    result = command("train", "classify", "train.csv", "-m", "all-MiniLM-L6-v2", "-o", "model")
    assert result.code == 3
    assert result.err.endswith("its columns are text, mood: --column label=NAME says which one is meant\n")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("run", "sentiment-analysis", "-", "-o"), "rows.csv"),
        (("embed", "-", "-o"), "rows.npy"),
        (("look", "-", "-o"), "page.html"),
        (("look", "-", "--svg"), "drawn.svg"),
        (("embed", "rows.npy", "--column", "text", "-o"), "rows.npy"),
    ],
)
def test_input_file_is_not_overwritten(tmp_path: Path, arguments: tuple[str, ...], name: str) -> None:
    """The file that a shell redirects to standard input has only a descriptor, and is recognised under any name."""
    (tmp_path / name).write_text("I love glass\n")
    command = shlex.join([sys.executable, "-m", "pellucid", *arguments, name]) + (
        f" < {name}" if "-" in arguments else ""
    )
    result = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "") and "is the FILE that is read" in result.stderr
    assert (tmp_path / name).read_text() == "I love glass\n"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not show what a process has open")
def test_open_file_descriptor_is_not_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")
    (tmp_path / "link").symlink_to("/dev/fd/3")
    for output in ("/dev/fd/3", "link"):
        command = f"{shlex.quote(sys.executable)} -m pellucid run sentiment-analysis hi -o {output} 3>>log"
        result = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
        assert (result.returncode, log.read_text()) == (3, "old\n") and "is a pipe or a device" in result.stderr


@pytest.mark.parametrize("stream", ["1", "2"])
@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("run sentiment-analysis hi", "log.jsonl"),
        ("run sentiment-analysis hi", "/dev/fd/{stream}"),
        ("embed hi", "log.npy"),
        ("look hi", "log.html"),
    ],
)
def test_file_of_a_standard_stream_is_not_overwritten(tmp_path: Path, command: str, output: str, stream: str) -> None:
    log = tmp_path / (output if output.startswith("log") else "log")
    log.write_text("old\n")
    arguments = f"-m pellucid {command} -o {output.format(stream=stream)}"
    with log.open("a") as log_file:
        redirected = {"stdout" if stream == "1" else "stderr": log_file}
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | redirected
        result = subprocess.run([sys.executable, *arguments.split()], cwd=tmp_path, text=True, **streams)
    message = log.read_text().removeprefix("old\n") if stream == "2" else result.stderr
    name = {"1": "standard output", "2": "standard error"}[stream]
    assert result.returncode == 2 and log.read_text().startswith("old\n")
    assert f"is the file where {name} goes, and would be overwritten: leave --output out" in message


@pytest.mark.parametrize(
    ("line", "offered"),
    [("search --mode ", ["hybrid", "dense", "words"]), ("index build --kind ", ["auto", "flat", "hnsw"])],
)
def test_shell_completion_of_option_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, offered: list[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"pellucid {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) + 1))
    monkeypatch.setenv("_PELLUCID_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit) as exit_info:
        app.main([], prog_name="pellucid")
    output = capsys.readouterr()
    assert (exit_info.value.code, output.err) == (0, "")
    assert output.out.splitlines() == [f"plain,{one}" for one in offered]


def test_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m pellucid embed a b c | head -n 1"
    result = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout and "Traceback" not in result.stderr


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The whole command, as a terminal starts it; keyword arguments replace the standard streams of these names."""
    monkeypatch.setattr("pellucid.cli.end_after", lambda *_: None)  # this process goes on

    def run_with_streams(*arguments: str, **streams: Any) -> int:
        monkeypatch.setattr(sys, "argv", ["pellucid", *arguments])
        for name, stream in streams.items():
            monkeypatch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as ended:
            main()
        for name in (name for name in streams if streams[name] is None):
            getattr(sys, name).close()  # opened in place of the missing stream
        return ended.value.code  # type: ignore[return-value]

    return run_with_streams


@pytest.mark.parametrize("closed", [["stdout"], ["stderr"], ["stdin", "stdout", "stderr"]])
def test_closed_standard_streams(run_main: Callable[..., int], closed: list[str]) -> None:
    assert run_main("models", **dict.fromkeys(closed)) == 0
    assert run_main("describe", "./nowhere", **dict.fromkeys(closed)) == 3


_WITH_FILE_SIZE_LIMIT = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
sys.argv[0] = "pellucid"
runpy.run_module("pellucid", run_name="__main__")
"""


@pytest.mark.skipif(os.name == "nt", reason="this system limits no file")
def test_file_size_limit_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WITH_FILE_SIZE_LIMIT, "embed", "Ada", "-o", "ada.npy"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    message = (
        "pellucid: the limit on the size of a file (ulimit -f) is reached while writing ada.npy; what was there before "
    )
    message += "is still there: free some space or raise the limit, and try again\n"
    assert (result.returncode, result.stderr) == (ResourceError.exit_code, message)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="this system limits no file")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_truncated_stdout_is_an_error(tmp_path: Path, buffered: str) -> None:
    """When unbuffered, Python silently drops what the system did not accept of a write."""
    command, answer = (
        [sys.executable, "-c", _WITH_FILE_SIZE_LIMIT, "describe", "all-MiniLM-L6-v2", "--json"],
        tmp_path / "answer",
    )
    with answer.open("w") as out:
        result = subprocess.run(
            command, env=os.environ | {"PYTHONUNBUFFERED": buffered}, stdout=out, stderr=subprocess.PIPE, text=True,
            check=False, timeout=120,
        )  # fmt: skip
    assert answer.stat().st_size == 1000, "the answer is longer"
    message = "pellucid: the limit on the size of a file (ulimit -f) is reached where the answer is written\n"
    assert (result.returncode, result.stderr) == (6, message)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("arguments", [["models"], ["--help"], ["look", "--help"]], ids=" ".join)
def test_full_standard_streams(
    run_main: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with Path("/dev/full").open("w") as out:
        assert run_main(*arguments, stdout=out) == 6
    assert capsys.readouterr().err == "pellucid: no space left where the answer is written\n"
    with contextlib.closing(io.FileIO("/dev/full", "w")) as full_device:
        stderr = io.TextIOWrapper(full_device, write_through=True)
        assert run_main("models", stdout=sys.stderr, stderr=stderr) == 0
        assert run_main("describe", "./nowhere", stderr=stderr) == 3


UNWRITABLE_OUTPUTS = {
    "a pipe": ["run", "ner", "Ada", "-o", "pipe"],
    "a device": ["run", "ner", "Ada", "-o", "device"],
    "vectors into a pipe": ["embed", "Ada", "-o", "pipe.npy"],
    "a page into a pipe": ["look", "Ada", "-o", "pipe.html"],
    "a drawing into a device": ["look", "Ada", "--svg", "device.svg"],
}
"""Commands that would write to an impossible place, by what they write."""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with a name")
@pytest.mark.parametrize("name", UNWRITABLE_OUTPUTS)
def test_pipes_and_devices_are_not_replaced(command: RunCommand, tmp_path: Path, name: str) -> None:
    for pipe in ("pipe", "pipe.npy", "pipe.html"):
        os.mkfifo(tmp_path / pipe)
    for device in ("device", "device.svg"):
        (tmp_path / device).symlink_to(os.devnull)
    before = {path: path.lstat().st_ino for path in tmp_path.iterdir()}
    result = command(*UNWRITABLE_OUTPUTS[name])
    output = UNWRITABLE_OUTPUTS[name][-1]
    assert (result.code, result.out) == (3, "")
    assert result.err == f"pellucid: cannot write {output}: it is a pipe or a device, expected the name of a file\n"
    assert {path: path.lstat().st_ino for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("arguments", [["embed", "Ada", "-o", "link.npy"], ["look", "Ada", "--svg", "link.svg"]])
def test_target_of_a_link_is_written(command: RunCommand, tmp_path: Path, arguments: list[str]) -> None:
    link = tmp_path / arguments[-1]
    (tmp_path / "far").mkdir()
    link.symlink_to(Path("far") / arguments[-1])
    for _ in range(2):  # to a new file, and over an existing one
        assert command(*arguments).code == 0
        assert link.is_symlink() and [path.name for path in (tmp_path / "far").iterdir()] == [arguments[-1]]


def test_circular_link_is_not_replaced(command: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    result = command("embed", "Ada", "-o", "loop.npy")
    assert result.err == "pellucid: cannot write loop.npy: Too many levels of symbolic links\n" and result.code == 3
    assert (tmp_path / "loop.npy").is_symlink()


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "classify", "loop.csv", "-m", "all-MiniLM-L6-v2"],
        ["diff", "all-MiniLM-L6-v2", "loop.csv"],
        ["convert", "loop.csv"],
    ],
)
def test_circular_links_are_reported(command: RunCommand, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    result = command(*arguments, *(() if arguments[0] == "diff" else ("-o", "made")))
    assert result.err == "pellucid: cannot read loop.csv: Too many levels of symbolic links\n" and result.code == 3


@pytest.mark.parametrize("target", ["nowhere", "link"])
@pytest.mark.parametrize(
    "arguments", [["train", "classify", "rows.csv", "-m", "all-MiniLM-L6-v2"], ["index", "build", "rows.txt"]]
)
def test_dangling_link_is_refused_as_an_output_folder(
    command: RunCommand, tmp_path: Path, arguments: list[str], target: str
) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "a,x\nb,y\n" * 20)
    (tmp_path / "rows.txt").write_text("a dog\na cat\n")
    (tmp_path / "link").symlink_to(target)
    result = command(*arguments, "-o", "link")
    assert (
        "link: it is a link that leads nowhere or in a circle; choose another folder" in result.err and result.code == 3
    )


def test_characters_outside_the_encoding_of_stdout_are_escaped(run_main: Callable[..., int], tmp_path: Path) -> None:
    path = tmp_path / "gęś.npy"
    with io.TextIOWrapper(buffer := io.BytesIO(), encoding="latin-1", write_through=True) as out:
        assert run_main("embed", "goose", "-o", str(path), stdout=out) == 0
        assert buffer.getvalue().decode("latin-1") == f"{path}\n".replace("ęś", "\\u0119\\u015b")
    assert path.exists()


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.TextIOWrapper, _Terminal])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_json_has_the_characters_of_the_encoding_of_stdout(
    run_main: Callable[..., int], kind: type[io.TextIOWrapper], encoding: str
) -> None:
    steering, plain, ending = "café \u202e", "café 東京 🎉", "a\u2028b\u2029c\x85d\x7fe"
    with kind(buffer := io.BytesIO(), encoding=encoding, write_through=True) as out:
        assert run_main("embed", steering, plain, ending, "--json", stdout=out) == 0
        first, second, third = buffer.getvalue().decode(encoding).splitlines()
    assert [json.loads(line)["text"] for line in (first, second, third)] == [steering, plain, ending]
    assert third.isascii() and third.isprintable()
    assert (plain in second) == (encoding == "utf-8")
    assert (steering in first) == (encoding == "utf-8" and kind is not _Terminal)


def test_name_of_a_written_file_does_not_control_a_terminal(run_main: Callable[..., int], tmp_path: Path) -> None:
    with _Terminal(buffer := io.BytesIO(), encoding="utf-8", write_through=True) as out:
        assert run_main("embed", "x", "-o", str(tmp_path / "a\x1b[2J.npy"), stdout=out) == 0
        assert buffer.getvalue().decode() == f"{tmp_path}/a\ufffd[2J.npy\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_has_no_lone_surrogates(run_main: Callable[..., int], tmp_path: Path, encoding: str) -> None:
    halves = tmp_path / "halves.jsonl"
    halves.write_text('{"text": "caf\\udce9 é"}\n')
    with io.TextIOWrapper(buffer := io.BytesIO(), encoding=encoding, write_through=True) as out:
        assert run_main("embed", str(halves), "-c", "text", "--json", stdout=out) == 0
        assert json.loads(buffer.getvalue().decode(encoding))["text"] == "caf\ufffd é"


@pytest.mark.parametrize("arguments", [["embed", "-"], ["look", "-"], ["run", "ner", "-"]])
def test_invalid_utf8_on_stdin_is_refused_without_a_locale(
    run_main: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    piped = io.TextIOWrapper(io.BytesIO("Zürich\n".encode("latin-1")), encoding="utf-8", errors="surrogateescape")
    assert run_main(*arguments, stdin=piped) == 3
    message = "pellucid: standard input is not utf-8 text (line 1, byte 0xfc): convert it first\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    "arguments",
    [
        *("embed", "look", "look a --pair", "run ner", "run zero-shot-classification a --labels", "run ner a -O"),
        *("generate", "generate a --stop", "chat", "verify all-MiniLM-L6-v2 --text", "train ner a.csv -o new -s"),
        *("evaluate ner a.csv -m all-MiniLM-L6-v2 -s", "search an.index", "search an.index dog --where"),
        *("index build a.csv -o an.index --prompt", "index delete an.index --where"),
    ],
)
def test_invalid_utf8_in_arguments_is_refused(
    run_main: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    assert run_main(*arguments.split(), os.fsdecode(b"Z\xfcrich is nice")) == 3
    assert capsys.readouterr().err == "pellucid: 'Z?rich is nice' is not utf-8 text (byte 0xfc): convert it first\n"


@pytest.mark.parametrize(
    "missing",
    [
        "cpu",
        pytest.param("cuda", marks=needs_gpu),
        RuntimeError("std::bad_alloc"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
        MemoryError(),
    ],
    ids=repr,
)
def test_out_of_memory_is_one_sentence(
    missing: str | Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors of PyTorch on a device, of C++, of the loader of shared libraries, of the system and of Python."""
    monkeypatch.setattr(sys, "argv", ["pellucid"])

    @click.command()
    def allocate() -> None:
        if isinstance(missing, Exception):
            raise missing
        torch.empty(2**50, device=missing)

    assert finish(allocate) == 6
    assert capsys.readouterr().err == "pellucid: out of memory; try shorter texts or dtype bfloat16\n"


def test_interrupt_within_imports_prints_no_traceback(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_import(monkeypatch, "pellucid.cli.errors", KeyboardInterrupt())
    assert run_main("--version") == INTERRUPTED
    assert capsys.readouterr().err == "pellucid: interrupted\n"


def test_second_interrupt_prints_no_traceback(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("pellucid.cli.errors.run", interrupt)  # interrupted again while it handles the first interrupt
    assert run_main("--version") == INTERRUPTED
    assert capsys.readouterr().err == "pellucid: interrupted\n"


def test_interrupt_at_exit_prints_no_traceback(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def end(*_: object) -> int:
        print("pellucid: interrupted", file=sys.stderr)
        return INTERRUPTED

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("pellucid.cli.errors.run", end)
    monkeypatch.setattr("pellucid.cli.end_after", interrupt)
    try:
        assert run_main("--version") == INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err == "pellucid: interrupted\n"


def waiting_process(folder: Path) -> subprocess.Popen[str]:
    """A command that has begun to write `answers.jsonl` and waits for the next line of its input."""
    command = [sys.executable, "-m", "pellucid", "run", "ner", "-", "-o", "answers.jsonl"]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(folder.iterdir()):
        time.sleep(0.05)
    return process


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_terminated_command_leaves_no_partial_file(tmp_path: Path, name: str) -> None:
    with waiting_process(tmp_path) as process:
        process.send_signal(signal.Signals[name])
        assert process.wait(30) == -signal.Signals[name]  # by that signal, as its parent sees
        assert process.stderr is not None and process.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []


_TERMINATED_WITHIN_AN_IMPORT = """
import os, runpy, signal, sys
class Ends:
    def find_spec(self, name, *_):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except SystemExit:
                print("raised within the import of", name)
sys.meta_path.insert(0, Ends())
sys.argv[0] = "pellucid"
runpy.run_module("pellucid", run_name="__main__")
"""


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
def test_signal_within_an_import_raises_no_exception(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _TERMINATED_WITHIN_AN_IMPORT, "embed", "Ada"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGTERM, "", "")


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_during_the_exit_prints_no_traceback(tmp_path: Path, name: str) -> None:
    program = (
        "import atexit, os, runpy, signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores\n"
        f"atexit.register(os.kill, os.getpid(), signal.{name})\n"
        "sys.argv = ['pellucid', '--version']\n"
        "runpy.run_module('pellucid', run_name='__main__')"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (result.returncode, result.stderr) == (-getattr(signal, name), "")


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
def test_hangup_does_not_end_a_command_under_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with waiting_process(tmp_path) as process:
            process.send_signal(signal.SIGHUP)
            process.communicate("Ada came.\n", timeout=60)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (process.returncode, [path.name for path in tmp_path.iterdir()]) == (0, ["answers.jsonl"])


def test_deleted_working_folder_is_reported(tmp_path: Path) -> None:
    deleted = tmp_path / "gone"
    deleted.mkdir()
    command = f'rmdir "$PWD" && exec "{sys.executable}" -m pellucid describe x'
    result = subprocess.run(
        ["sh", "-c", command], cwd=deleted, capture_output=True, text=True, timeout=120, check=False
    )
    message = "pellucid: cannot read the folder that this is run in: No such file or directory; go to another one\n"
    assert (result.returncode, result.stdout, result.stderr) == (3, "", message)


def test_ctrl_c_within_an_import_is_not_swallowed(tmp_path: Path) -> None:
    """PyTorch imports NumPy in a block that swallows errors, and would go on with half of it."""
    module = "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(5)\n"
    (tmp_path / "numpy.py").write_text(module + "except KeyboardInterrupt:\n    pass\n")
    code = "import signal\nfrom pellucid.errors import handle_sigint\nsignal.signal(signal.SIGINT, handle_sigint)\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    for more, expected in (("import numpy\nprint('went on')", 130), ("signal.raise_signal(signal.SIGINT)", -2)):
        result = subprocess.run(
            [sys.executable, "-c", code + more], env=environment, capture_output=True, text=True, check=False
        )
        assert (result.returncode, result.stdout) == (expected, "")
        assert ("pellucid: interrupted" in result.stderr) == (expected == 130)
