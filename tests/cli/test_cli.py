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
from tests.cli.command_runner import Pellucid, caller
from tests.importing import refuse
from tests.usual import needs_gpu

LONG = "word " * 299 + "word"


def run(folder: Path, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pellucid", *arguments]
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run(
        command, cwd=folder, input=stdin, capture_output=True, text=True, env=environment, timeout=120
    )


def test_look_writes_a_page_and_says_where(tmp_path: Path) -> None:
    done = run(tmp_path, "look", "time flies like an arrow", "--pair", "fruit flies like a banana", "--head", "3")
    assert done.returncode == 0
    assert done.stdout.strip() == "time-flies-like-an-arrow.html"
    assert (tmp_path / done.stdout.strip()).stat().st_size > 100_000
    assert "strongest links between words, layer 0, head 3" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_says_first(name: str) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None and command.name == name
    assert (command.help or "").strip().splitlines()[0] == COMMANDS[name]


def test_at_the_end_python_walks_nothing_that_was_imported() -> None:
    last = "import atexit, gc\natexit.register(lambda: print('to walk:', len(gc.get_objects())))\n"
    counts = []
    for start in ("from pellucid.cli.errors import run as main; main(app)", "from pellucid.cli import main; main()"):
        code = f"{last}from pellucid.cli.app import app\n{start}"
        done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
        counts.append(int(done.stdout.split("to walk:")[1]))
    assert counts[0] > 1000 > 100 > counts[1]


def test_the_list_of_commands_imports_none() -> None:
    code = (
        "import sys\nfrom pellucid.cli.app import COMMANDS, app\napp.main(['--help'], standalone_mode=False)\n"
        "print([name for name in COMMANDS if f'pellucid.cli.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(line in done.stdout for line in COMMANDS.values())
    assert done.stdout.splitlines()[-1] == "[]"


def test_quiet_and_standard_input(tmp_path: Path) -> None:
    done = run(tmp_path, "--quiet", "look", "-", "-o", "page.html", stdin="a text from elsewhere\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "page.html\n", "")


@pytest.mark.slow
def test_vectors_are_written_before_the_last_is_computed(tmp_path: Path) -> None:
    lines = [LONG, *(f"line {i}" for i in range(2 * CHUNK_SIZE - 2)), LONG]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pellucid", "embed", str(tmp_path / "lines.txt"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert process.poll() is None  # many more are still to come
        rows = [first, *map(json.loads, process.stdout)]
        assert process.stderr is not None
        assert f"2 of {2 * CHUNK_SIZE} texts were cut" in process.stderr.read()
    assert [row["text"] for row in rows] == lines


def test_embed_in_every_form(command: Pellucid, tmp_path: Path, minilm: "pellucid.Model") -> None:
    wanted = minilm.embed(["Apple Inc.", "Microsoft Corp"]).numpy()
    rows = [json.loads(line) for line in command("embed", "Apple Inc.", "Microsoft Corp", "--json").out.splitlines()]
    assert [row["text"] for row in rows] == ["Apple Inc.", "Microsoft Corp"]
    np.testing.assert_allclose([row["vector"] for row in rows], wanted, rtol=0, atol=1e-6)
    (tmp_path / "names.csv").write_text("id,name\n1,Apple Inc.\n2,Microsoft Corp\n")
    assert command("embed", "names.csv", "--column", "name", "-o", "v.npy").out == "v.npy\n"
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, rtol=0, atol=1e-6)
    piped = run(tmp_path, "embed", "-", stdin="Apple Inc.\nMicrosoft Corp\n").stdout.splitlines()
    np.testing.assert_allclose([[float(x) for x in line.split()] for line in piped], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("typed", [["describe", "all-MiniLM-L6-v2"], ["models"], ["doctor"]])
def test_json_is_json(command: Pellucid, typed: list[str]) -> None:
    assert json.loads(command(*typed, "--json").out)


@pytest.mark.parametrize("gpu", [True, False])
def test_each_device_has_its_fast_dtype(
    gpu: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU here, the library's answers about one are replaced."""
    devices = {"cpu": torch.device("cpu"), "auto": torch.device("cuda" if gpu else "cpu")}
    dtypes = {"cpu": torch.float32, "cuda": torch.bfloat16}
    monkeypatch.setattr(machine, "choose_device", devices.__getitem__)
    monkeypatch.setattr(machine, "fastest_dtype", lambda device: dtypes[device.type])
    said = json.loads(caller(monkeypatch, capsys)("doctor", "--json").out)
    found = {name: said[name] for name in said if name.startswith("fast dtype")}
    assert found == {"fast dtype on cpu": "float32"} | ({"fast dtype on cuda": "bfloat16"} if gpu else {})


@pytest.mark.parametrize(
    ("installed", "usable", "wanted"),
    [
        (True, True, "ready"),
        (True, False, "none (numba is installed and cannot be used: a warning says why)"),
        (False, False, "none (pip install 'pellucid[fast]')"),
    ],
)
def test_nobody_is_told_to_install_what_is_installed(
    installed: bool, usable: bool, wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(availability, "usable_kernels", lambda: object() if usable else None)
    monkeypatch.setattr(availability, "installed", lambda: installed)
    assert json.loads(caller(monkeypatch, capsys)("doctor", "--json").out)["compiled steps"] == wanted


def test_doctor_has_the_versions_of_what_the_extras_bring() -> None:
    own = tomllib.loads((documents.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [own["optional-dependencies"][name] for name in ("search", "train", "fast", "draw", "onnx")]
    assert {one.partition(">=")[0] for extra in extras for one in extra} <= set(doctor.PACKAGES)


WRONG = {
    "no such command": (["lok", "x"], 2, "did you mean look"),
    "no text": (["look"], 2, "Missing argument"),
    "no such option": (["embed", "--foo"], 2, "--foo"),
    "no such layer": (["look", "x", "--layer", "9"], 3, "--layer 9 does not exist"),
    "no such head": (["look", "x", "--head", "12"], 3, "--head 12 does not exist: this model has heads 0 to 11"),
    "a target of one that has none": (["look", "x", "--target", "y"], 3, "--target was given, and a model of kind"),
    "a lens for no words": (["look", "x", "--lens"], 3, "which this one lacks: name one by --model NAME"),
    "said twice": (["embed", "x", "--normalize", "--no-normalize"], 2, "--normalize or --no-normalize is given twice"),
    "said twice deep within": (["index", "info", "x", "--json", "--json"], 2, "--json is given twice"),
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
    "no name of queries": (["index", "evaluate", "x", ""], 2, "QUERIES is empty, expected the name of a file"),
    "a column of no name": (["embed", "x", "-c", ""], 3, "there is no file 'x'"),
    "columns of no name": (["embed", "x", "y", "-c", ""], 2, "columns are those of one FILE"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence_and_a_code(command: Pellucid, tmp_path: Path, name: str) -> None:
    arguments, code, fragment = WRONG[name]
    done = command(*arguments)
    assert done.code == code, done.err
    assert done.out == ""
    assert fragment in done.err and "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


QA = "question-answering"

IN_VAIN = {
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


@pytest.mark.parametrize("name", IN_VAIN)
def test_no_option_is_passed_over_in_silence(command: Pellucid, name: str) -> None:
    typed, said = IN_VAIN[name]
    done = command(*typed, stdin="a text")
    assert (done.code, done.out) == (2, "") and said in done.err, done.err


@pytest.mark.parametrize(
    ("words", "asked"),
    [("look hi --pair", "look"), ("index build --column", "index build"), ("train classify mine.csv -o", "train")],
)
def test_an_option_without_its_value_is_told_with_the_help_of_its_command(
    command: Pellucid, words: str, asked: str
) -> None:
    done = command(*words.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith(f"requires an argument; see pellucid {asked} --help\n")


def test_an_option_that_says_what_it_is_by_default_is_no_fault(command: Pellucid) -> None:
    asked = ["index", "build", "none.csv", "-o", "i", "--kind", "flat"]
    assert "none.csv" in command(*asked).err and "none.csv" in command(*asked, "--column", "a").err


BEAMS = InputError(Argument("num_beams"), " is 3: pass ", Argument("num_beams", 1))

SAID: dict[str, list[tuple[MessagePart, str]]] = {
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


@pytest.mark.parametrize("command", SAID)
def test_what_the_library_says_is_said_by_what_is_typed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pellucid", "--quiet", *command.split(), "a text"])
    for said, wanted in SAID[command]:
        assert message_as_typed(InputError(said), running_context(app)) == wanted


OF_TASKS = {
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


@pytest.mark.parametrize("typed", OF_TASKS)
def test_an_option_is_offered_by_the_task_that_has_it(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said, wanted = OF_TASKS[typed]
    monkeypatch.setattr(sys, "argv", ["pellucid", "--quiet", *typed.split(), "a text"])
    assert message_as_typed(InputError(said), running_context(app)) == wanted


def test_an_option_of_two_spellings_is_said_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    for typed, wanted in ((["--dtype", "float16"], "--dtype"), (["--dtype=float16"], "--dtype"), ([], "--precision")):
        monkeypatch.setattr(sys, "argv", ["pellucid", "train", *typed])
        assert message_as_typed(InputError(Argument("precision")), running_context(app)) == wanted


def test_a_file_that_is_read_as_a_text_is_told(command: Pellucid, tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("a line", encoding="utf-8")
    done = command("look", "l.txt", "--layer", "9")
    assert "`pellucid look - < l.txt` reads the file" in done.err


QUOTED = ["/a/num_beams=3/b: no 'pair_column' in top_k.csv", f"/my m/generation_config.json: {BEAMS}"]
"""Texts that name a file, or quote its contents."""


@pytest.mark.parametrize("said", QUOTED)
def test_what_is_quoted_is_said_as_it_is(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pellucid", "generate", "a text"])
    assert message_as_typed(InputError(said), running_context(app)) == said


@pytest.mark.parametrize("kind", [InputError, ResourceError, CorruptFileError, Interrupted])
def test_however_a_command_ends_it_speaks_of_options(
    kind: type[StructuredError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @click.option("--beams", "num_beams", type=int)
    def command(num_beams: int) -> None:
        raise kind(Argument("num_beams"), f" is {num_beams}")

    monkeypatch.setattr(sys, "argv", ["pellucid", "--beams", "3"])
    assert finish(command) == getattr(kind, "exit_code", INTERRUPTED)
    assert capsys.readouterr().err.strip() == "pellucid: --beams is 3"


@pytest.mark.parametrize("typed", [["embed", "-"], ["embed", "-", "-o", "old.npy"], ["run", "ner", "-"]])
def test_where_nothing_came_nothing_is_answered_nor_written(
    command: Pellucid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str]
) -> None:
    """The program that should have written the texts may have failed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.npy").write_bytes(b"old")
    done = command(*typed)
    assert (done.code, done.out, (tmp_path / "old.npy").read_bytes()) == (3, "", b"old")
    assert "standard input holds no texts" in done.err


def test_a_column_that_is_called_otherwise(command: Pellucid, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,mood\n" + "good,1\nbad,0\n" * 10)
    done = command("train", "classify", "train.csv", "-m", "all-MiniLM-L6-v2", "-o", "model")
    assert done.code == 3
    assert done.err.endswith("its columns are text, mood: --column label=NAME says which one is meant\n")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (("run", "sentiment-analysis", "-", "-o"), "rows.csv"),
        (("embed", "-", "-o"), "rows.npy"),
        (("look", "-", "-o"), "page.html"),
        (("look", "-", "--svg"), "drawn.svg"),
        (("embed", "rows.npy", "--column", "text", "-o"), "rows.npy"),
    ],
)
def test_what_is_read_is_not_written_over(tmp_path: Path, asked: tuple[str, ...], name: str) -> None:
    """The file that a shell redirects to standard input has only a descriptor, and is recognised under any name."""
    (tmp_path / name).write_text("I love glass\n")
    command = shlex.join([sys.executable, "-m", "pellucid", *asked, name]) + (f" < {name}" if "-" in asked else "")
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and "is the FILE that is read" in done.stderr
    assert (tmp_path / name).read_text() == "I love glass\n"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not show what a process has open")
def test_what_a_process_has_open_is_not_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")
    (tmp_path / "link").symlink_to("/dev/fd/3")
    for place in ("/dev/fd/3", "link"):
        command = f"{shlex.quote(sys.executable)} -m pellucid run sentiment-analysis hi -o {place} 3>>log"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, log.read_text()) == (3, "old\n") and "is a pipe or a device" in done.stderr


@pytest.mark.parametrize("stream", ["1", "2"])
@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("run sentiment-analysis hi", "log.jsonl"),
        ("run sentiment-analysis hi", "/dev/fd/{stream}"),
        ("embed hi", "log.npy"),
        ("look hi", "log.html"),
    ],
)
def test_where_a_stream_goes_no_file_is_put(tmp_path: Path, asked: str, place: str, stream: str) -> None:
    log = tmp_path / (place if place.startswith("log") else "log")
    log.write_text("old\n")
    words = f"-m pellucid {asked} -o {place.format(stream=stream)}"
    with log.open("a") as held:
        kept = {"stdout" if stream == "1" else "stderr": held}
        how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kept
        done = subprocess.run([sys.executable, *words.split()], cwd=tmp_path, text=True, **how)
    said = log.read_text().removeprefix("old\n") if stream == "2" else done.stderr
    name = {"1": "standard output", "2": "standard error"}[stream]
    assert done.returncode == 2 and log.read_text().startswith("old\n")
    assert f"is the file where {name} goes, and would be overwritten: leave --output out" in said


@pytest.mark.parametrize(
    ("line", "offered"),
    [("search --mode ", ["hybrid", "dense", "words"]), ("index build --kind ", ["auto", "flat", "hnsw"])],
)
def test_a_shell_is_offered_what_an_option_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, offered: list[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"pellucid {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) + 1))
    monkeypatch.setenv("_PELLUCID_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit) as end:
        app.main([], prog_name="pellucid")
    said = capsys.readouterr()
    assert (end.value.code, said.err) == (0, "")
    assert said.out.splitlines() == [f"plain,{one}" for one in offered]


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m pellucid embed a b c | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout and "Traceback" not in done.stderr


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The whole command, as a terminal starts it; keyword arguments replace the standard streams of these names."""
    monkeypatch.setattr("pellucid.cli.end_after", lambda *_: None)  # this process goes on

    def ended(*words: str, **streams: Any) -> int:
        monkeypatch.setattr(sys, "argv", ["pellucid", *words])
        for name, stream in streams.items():
            monkeypatch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as end:
            main()
        for name in (name for name in streams if streams[name] is None):
            getattr(sys, name).close()  # opened in place of the missing stream
        return end.value.code  # type: ignore[return-value]

    return ended


@pytest.mark.parametrize("closed", [["stdout"], ["stderr"], ["stdin", "stdout", "stderr"]])
def test_streams_that_a_shell_has_closed(typed: Callable[..., int], closed: list[str]) -> None:
    assert typed("models", **dict.fromkeys(closed)) == 0
    assert typed("describe", "./nowhere", **dict.fromkeys(closed)) == 3


_LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
sys.argv[0] = "pellucid"
runpy.run_module("pellucid", run_name="__main__")
"""


@pytest.mark.skipif(os.name == "nt", reason="this system limits no file")
def test_vectors_without_room_are_a_full_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LIMITED, "embed", "Ada", "-o", "ada.npy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    said = (
        "pellucid: the limit on the size of a file (ulimit -f) is reached while writing ada.npy; what was there before "
    )
    said += "is still there\n"
    assert (done.returncode, done.stderr) == (ResourceError.exit_code, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="this system limits no file")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_an_answer_that_is_cut_is_no_answer(tmp_path: Path, buffered: str) -> None:
    """When unbuffered, Python silently drops what the system did not accept of a write."""
    command, answer = [sys.executable, "-c", _LIMITED, "describe", "all-MiniLM-L6-v2", "--json"], tmp_path / "answer"
    with answer.open("w") as out:
        done = subprocess.run(
            command, env=os.environ | {"PYTHONUNBUFFERED": buffered}, stdout=out, stderr=subprocess.PIPE, text=True,
            check=False, timeout=120,
        )  # fmt: skip
    assert answer.stat().st_size == 1000, "the answer is longer"
    said = "pellucid: the limit on the size of a file (ulimit -f) is reached where the answer is written\n"
    assert (done.returncode, done.stderr) == (6, said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("asked", [["models"], ["--help"], ["look", "--help"]], ids=" ".join)
def test_streams_that_take_no_more(
    typed: Callable[..., int], capsys: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    with Path("/dev/full").open("w") as out:
        assert typed(*asked, stdout=out) == 6
    assert capsys.readouterr().err == "pellucid: no space left where the answer is written\n"
    with contextlib.closing(io.FileIO("/dev/full", "w")) as lost:
        said = io.TextIOWrapper(lost, write_through=True)
        assert typed("models", stdout=sys.stderr, stderr=said) == 0
        assert typed("describe", "./nowhere", stderr=said) == 3


ODD_PLACES = {
    "a pipe": ["run", "ner", "Ada", "-o", "pipe"],
    "a device": ["run", "ner", "Ada", "-o", "device"],
    "vectors into a pipe": ["embed", "Ada", "-o", "pipe.npy"],
    "a page into a pipe": ["look", "Ada", "-o", "pipe.html"],
    "a drawing into a device": ["look", "Ada", "--svg", "device.svg"],
}
"""Commands that would write to an impossible place, by what they write."""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with a name")
@pytest.mark.parametrize("name", ODD_PLACES)
def test_no_file_takes_the_place_of_a_pipe_or_a_device(command: Pellucid, tmp_path: Path, name: str) -> None:
    for pipe in ("pipe", "pipe.npy", "pipe.html"):
        os.mkfifo(tmp_path / pipe)
    for device in ("device", "device.svg"):
        (tmp_path / device).symlink_to(os.devnull)
    before = {path: path.lstat().st_ino for path in tmp_path.iterdir()}
    done = command(*ODD_PLACES[name])
    place = ODD_PLACES[name][-1]
    assert (done.code, done.out) == (3, "")
    assert done.err == f"pellucid: cannot write {place}: it is a pipe or a device, expected the name of a file\n"
    assert {path: path.lstat().st_ino for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("words", [["embed", "Ada", "-o", "link.npy"], ["look", "Ada", "--svg", "link.svg"]])
def test_what_a_link_leads_to_is_written(command: Pellucid, tmp_path: Path, words: list[str]) -> None:
    link = tmp_path / words[-1]
    (tmp_path / "far").mkdir()
    link.symlink_to(Path("far") / words[-1])
    for _ in range(2):  # to a new file, and over an existing one
        assert command(*words).code == 0
        assert link.is_symlink() and [path.name for path in (tmp_path / "far").iterdir()] == [words[-1]]


def test_no_file_takes_the_place_of_a_link_that_leads_to_itself(command: Pellucid, tmp_path: Path) -> None:
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    done = command("embed", "Ada", "-o", "loop.npy")
    assert done.err == "pellucid: cannot write loop.npy: Too many levels of symbolic links\n" and done.code == 3
    assert (tmp_path / "loop.npy").is_symlink()


@pytest.mark.parametrize(
    "words",
    [
        ["train", "classify", "loop.csv", "-m", "all-MiniLM-L6-v2"],
        ["diff", "all-MiniLM-L6-v2", "loop.csv"],
        ["convert", "loop.csv"],
    ],
)
def test_links_in_a_circle_are_not_denied(command: Pellucid, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    done = command(*words, *(() if words[0] == "diff" else ("-o", "made")))
    assert done.err == "pellucid: cannot read loop.csv: Too many levels of symbolic links\n" and done.code == 3


@pytest.mark.parametrize("target", ["nowhere", "link"])
@pytest.mark.parametrize(
    "words", [["train", "classify", "rows.csv", "-m", "all-MiniLM-L6-v2"], ["index", "build", "rows.txt"]]
)
def test_no_folder_is_made_behind_a_link_that_leads_nowhere(
    command: Pellucid, tmp_path: Path, words: list[str], target: str
) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "a,x\nb,y\n" * 20)
    (tmp_path / "rows.txt").write_text("a dog\na cat\n")
    (tmp_path / "link").symlink_to(target)
    done = command(*words, "-o", "link")
    assert "link: it is a link that leads nowhere or in a circle; choose another folder" in done.err and done.code == 3


def test_letters_that_stdout_does_not_have(typed: Callable[..., int], tmp_path: Path) -> None:
    place = tmp_path / "gęś.npy"
    with io.TextIOWrapper(held := io.BytesIO(), encoding="latin-1", write_through=True) as out:
        assert typed("embed", "goose", "-o", str(place), stdout=out) == 0
        assert held.getvalue().decode("latin-1") == f"{place}\n".replace("ęś", "\\u0119\\u015b")
    assert place.exists()


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.TextIOWrapper, _Terminal])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_json_has_the_letters_that_stdout_has(
    typed: Callable[..., int], kind: type[io.TextIOWrapper], encoding: str
) -> None:
    steering, plain, ending = "café \u202e", "café 東京 🎉", "a\u2028b\u2029c\x85d\x7fe"
    with kind(held := io.BytesIO(), encoding=encoding, write_through=True) as out:
        assert typed("embed", steering, plain, ending, "--json", stdout=out) == 0
        first, second, third = held.getvalue().decode(encoding).splitlines()
    assert [json.loads(line)["text"] for line in (first, second, third)] == [steering, plain, ending]
    assert third.isascii() and third.isprintable()
    assert (plain in second) == (encoding == "utf-8")
    assert (steering in first) == (encoding == "utf-8" and kind is not _Terminal)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_has_no_half_of_a_character(typed: Callable[..., int], tmp_path: Path, encoding: str) -> None:
    halves = tmp_path / "halves.jsonl"
    halves.write_text('{"text": "caf\\udce9 é"}\n')
    with io.TextIOWrapper(held := io.BytesIO(), encoding=encoding, write_through=True) as out:
        assert typed("embed", str(halves), "-c", "text", "--json", stdout=out) == 0
        assert json.loads(held.getvalue().decode(encoding))["text"] == "caf\ufffd é"


@pytest.mark.parametrize("words", [["embed", "-"], ["look", "-"], ["run", "ner", "-"]])
def test_bytes_that_are_no_text_are_refused_without_a_locale_too(
    typed: Callable[..., int], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    piped = io.TextIOWrapper(io.BytesIO("Zürich\n".encode("latin-1")), encoding="utf-8", errors="surrogateescape")
    assert typed(*words, stdin=piped) == 3
    said = "pellucid: standard input is not utf-8 text (line 1, byte 0xfc): convert it first\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "words",
    [
        *("embed", "look", "look a --pair", "run ner", "run zero-shot-classification a --labels", "run ner a -O"),
        *("generate", "generate a --stop", "chat", "verify all-MiniLM-L6-v2 --text", "train ner a.csv -o new -s"),
        *("evaluate ner a.csv -m all-MiniLM-L6-v2 -s", "search an.index", "search an.index dog --where"),
        *("index build a.csv -o an.index --prompt", "index delete an.index --where"),
    ],
)
def test_bytes_that_are_no_text_are_refused_as_arguments_too(
    typed: Callable[..., int], capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert typed(*words.split(), os.fsdecode(b"Z\xfcrich is nice")) == 3
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
def test_memory_that_is_missing_is_one_sentence(
    missing: str | Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of PyTorch on a device, of C++, of the loader of shared libraries, of the system and of Python."""
    monkeypatch.setattr(sys, "argv", ["pellucid"])

    @click.command()
    def greedy() -> None:
        if isinstance(missing, Exception):
            raise missing
        torch.empty(2**50, device=missing)

    assert finish(greedy) == 6
    assert capsys.readouterr().err == "pellucid: out of memory; try shorter texts or dtype bfloat16\n"


def test_an_early_interrupt_is_no_traceback(
    typed: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(monkeypatch, "pellucid.cli.errors", KeyboardInterrupt())
    assert typed("--version") == INTERRUPTED
    assert capsys.readouterr().err == "pellucid: interrupted\n"


def test_a_second_interrupt_is_no_traceback(
    typed: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def again(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("pellucid.cli.errors.run", again)  # interrupted again while it handles the first interrupt
    assert typed("--version") == INTERRUPTED
    assert capsys.readouterr().err == "pellucid: interrupted\n"


def test_an_interrupt_on_the_way_out_is_no_traceback(
    typed: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(*_: object) -> None:
        raise KeyboardInterrupt

    def end(*_: object) -> int:
        print("pellucid: interrupted", file=sys.stderr)
        return INTERRUPTED

    heard = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("pellucid.cli.errors.run", end)
    monkeypatch.setattr("pellucid.cli.end_after", late)
    try:
        assert typed("--version") == INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, heard)
    assert capsys.readouterr().err == "pellucid: interrupted\n"


def waiting(folder: Path) -> subprocess.Popen[str]:
    """A command that has begun to write `answers.jsonl` and waits for the next line of its input."""
    command = [sys.executable, "-m", "pellucid", "run", "ner", "-", "-o", "answers.jsonl"]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(folder.iterdir()):
        time.sleep(0.05)
    return process


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_command_that_is_ended_leaves_no_half_file(tmp_path: Path, name: str) -> None:
    with waiting(tmp_path) as process:
        process.send_signal(signal.Signals[name])
        assert process.wait(30) == -signal.Signals[name]  # by that signal, as its parent sees
        assert process.stderr is not None and process.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []


_IMPORTING = """
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
def test_nothing_is_raised_within_an_import_by_which_a_library_could_abort(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _IMPORTING, "embed", "Ada"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
def test_a_terminal_that_goes_away_ends_no_command_behind_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with waiting(tmp_path) as process:
            process.send_signal(signal.SIGHUP)
            process.communicate("Ada came.\n", timeout=60)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (process.returncode, [path.name for path in tmp_path.iterdir()]) == (0, ["answers.jsonl"])


def test_a_folder_that_has_gone_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f'rmdir "$PWD" && exec "{sys.executable}" -m pellucid describe x'
    done = subprocess.run(["sh", "-c", command], cwd=gone, capture_output=True, text=True, timeout=120, check=False)
    said = "pellucid: cannot read the folder that this is run in: No such file or directory; go to another one\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", said)


def test_ctrl_c_while_a_library_is_read_is_not_swallowed(tmp_path: Path) -> None:
    """PyTorch imports NumPy in a block that swallows errors, and would go on with half of it."""
    half = "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(5)\n"
    (tmp_path / "numpy.py").write_text(half + "except KeyboardInterrupt:\n    pass\n")
    code = "import signal\nfrom pellucid.errors import handle_sigint\nsignal.signal(signal.SIGINT, handle_sigint)\n"
    told = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    for more, wanted in (("import numpy\nprint('went on')", 130), ("signal.raise_signal(signal.SIGINT)", -2)):
        done = subprocess.run(
            [sys.executable, "-c", code + more], env=told, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (wanted, "")
        assert ("pellucid: interrupted" in done.stderr) == (wanted == 130)
