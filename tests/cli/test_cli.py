"""The command line: answers on stdout, the rest on stderr, one sentence and an exit code where something is wrong."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import rich_click as click

import pellucid
from pellucid.cli.app import app
from pellucid.cli.errors import run as finish
from pellucid.cli.typed import as_typed
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError, PellucidError, ResourceError


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
    assert "strongest links of layer 0, head 3" in done.stderr


def test_quiet_and_standard_input(tmp_path: Path) -> None:
    done = run(tmp_path, "--quiet", "look", "-", "-o", "page.html", stdin="a text from elsewhere\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "page.html\n", "")


def test_embed_in_every_form(tmp_path: Path, minilm: "pellucid.Model") -> None:
    wanted = minilm.embed(["Apple Inc.", "Microsoft Corp"]).numpy()
    done = run(tmp_path, "embed", "Apple Inc.", "Microsoft Corp", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["Apple Inc.", "Microsoft Corp"]
    np.testing.assert_allclose([row["vector"] for row in rows], wanted, rtol=0, atol=1e-6)
    (tmp_path / "names.csv").write_text("id,name\n1,Apple Inc.\n2,Microsoft Corp\n")
    assert run(tmp_path, "embed", "names.csv", "--column", "name", "-o", "v.npy").stdout == "v.npy\n"
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, rtol=0, atol=1e-6)
    piped = run(tmp_path, "embed", "-", stdin="Apple Inc.\nMicrosoft Corp\n").stdout.splitlines()
    np.testing.assert_allclose([[float(x) for x in line.split()] for line in piped], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("command", [["describe", "all-MiniLM-L6-v2"], ["models"], ["doctor"]])
def test_json_is_json(tmp_path: Path, command: list[str]) -> None:
    assert json.loads(run(tmp_path, *command, "--json").stdout)


WRONG = {
    "no such command": (["lok", "x"], 2, "did you mean look"),
    "no text": (["look"], 2, "Missing argument"),
    "no such option": (["embed", "--foo"], 2, "--foo"),
    "no such layer": (["look", "x", "--layer", "9"], 3, "layers 0 to 5"),
    "no such head": (["look", "x", "--head", "12"], 3, "heads 0 to 11"),
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
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence_and_a_code(tmp_path: Path, name: str) -> None:
    arguments, code, fragment = WRONG[name]
    done = run(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert fragment in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


SAID = {
    "run": [
        ("pass long='windows', or long='truncate'", "pass --long windows, or --long truncate"),
        ("pass candidate_labels=['politics', 'sports'], say", "pass --labels politics,sports, say"),
        ("ner has no option 'candidate_labels': it has top_k", "ner has no option --labels: it has top_k"),
        ("pass partial_targets=True", "pass partial_targets=True"),
        ("long='a b' or candidate_labels=['a b', 'c']", "--long 'a b' or --labels 'a b,c'"),
    ],
    "index build": [("or pass on_duplicate='keep-last'", "or pass --on-duplicate keep-last")],
    "train": [("nothing is held out: pass validation", "nothing is held out: pass --validation")],
    "embed": [("pass normalize=False, or normalize=True", "pass --no-normalize, or --normalize")],
    "generate": [
        ("num_beams is 3: stream with num_beams=1", "--beams is 3: stream with --beams 1"),
        ("num_beams=[{{}}]", "--beams [{{}}]"),
        (f"num_beams=[{'(' * 5_000}]", f"--beams [{'(' * 5_000}]"),
    ],
}  # fmt: skip


QUOTED = [
    "/a/max_length=3/b: no 'pair_column' in top_k.csv",
    "/my m/generation_config.json: num_beams is 'x', expected a whole number: pass num_beams=1",
    "recipe.toml: num_beams is 'x'",
    "rows.csv, line 1,000: num_beams is 'x'",
    "there is no file 'my num_beams=small.csv' (did you mean num_beams=3.csv?)",
    'there is no file "it\'s num_beams=small.csv"',
    "cannot read /home/my num_beams=3: Permission denied",
    "cannot write a num_beams/num_beams=3: Permission denied",
    "no column 'pass model', expected 'a num_beams=3' or 'it\\'s num_beams'",
]
"""What names a file, says what one holds, or quotes somebody."""


@pytest.mark.parametrize("said", QUOTED)
def test_what_is_quoted_is_said_as_it_is(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pellucid", "generate", "a text"])
    assert as_typed(said, app) == said


@pytest.mark.parametrize("piece", ["x", "'", '"a ', "a='", "a_", "/", "~/a.", "a=[ "])
def test_a_message_of_any_length_is_read_in_one_go(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pellucid", "generate", "a text"])
    start = time.process_time()
    assert as_typed(piece * 50_000, app) == piece * 50_000
    assert time.process_time() - start < 5


@pytest.mark.parametrize("kind", [InputError, ResourceError, CorruptFileError, CheckpointMismatchError])
def test_an_option_is_told_where_the_asker_erred_and_not_of_a_file(
    kind: type[PellucidError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @click.option("--beams", "num_beams", type=int)
    def command(num_beams: int) -> None:
        raise kind(f"num_beams is {num_beams}")

    monkeypatch.setattr(sys, "argv", ["pellucid", "--beams", "3"])
    assert finish(command) == kind.exit_code
    asked = kind in (InputError, ResourceError)
    assert capsys.readouterr().err == f"pellucid: {'--beams' if asked else 'num_beams'} is 3\n"


@pytest.mark.parametrize("command", SAID)
def test_what_the_library_says_is_said_by_what_is_typed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pellucid", "--quiet", *command.split(), "a text"])
    for said, wanted in SAID[command]:
        assert as_typed(said, app) == wanted


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m pellucid embed a b c | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout and "Traceback" not in done.stderr
