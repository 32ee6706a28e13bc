"""`pellucid index` and `pellucid search` as typed."""

import io
import json
import logging
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest

from pellucid import load
from pellucid.cli.app import app
from pellucid.cli.errors import run
from tests.cli.command_runner import closed_pipe

COMPANIES = Path(__file__).parents[2] / "examples" / "companies.csv"


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_pellucid(*arguments: object, stdin: str = "", stdout: TextIO | None = None) -> CommandResult:
    """Runs a command in this process, without the process's log handlers."""
    out, err, handlers = stdout or io.StringIO(), io.StringIO(), logging.root.handlers[:]
    logging.root.handlers[:] = []
    try:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["pellucid", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            code = run(app)
    finally:
        logging.root.handlers[:] = handlers
        logging.getLogger("pellucid").setLevel(logging.NOTSET)
    return CommandResult(code, out.getvalue() if isinstance(out, io.StringIO) else "", err.getvalue())


def terminal_output(*arguments: object, columns: int) -> str:
    """The screen of a terminal of this width. Linux and macOS have such terminals."""
    pty = pytest.importorskip("pty")
    main, other = pty.openpty()
    command = [sys.executable, "-m", "pellucid", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=other, stderr=subprocess.DEVNULL, env=environment) as running:
        os.close(other)
        output = b""
        while part := _read_part(main):
            output += part
    os.close(main)
    assert running.returncode == 0
    return output.decode()


def _read_part(handle: int) -> bytes:
    """The next bytes, or none once the other side has closed, which is an error on Linux."""
    try:
        return os.read(handle, 4096)
    except OSError:
        return b""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "companies.index"
    result = run_pellucid("index", "build", COMPANIES, "--column", "name", "--id-column", "symbol", "-o", folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{folder}\n"
    assert "100 rows, 100 embedded, exact search" in result.stderr
    return folder


def test_one_query_as_json_and_several_as_a_table(index: Path) -> None:
    found = json.loads(run_pellucid("search", index, "Apple", "-k", "2", "--json").stdout)
    assert found["query"] == "Apple"
    assert found["hits"][0]["id"] == "AAPL"
    assert found["hits"][0]["metadata"]["symbol"] == "AAPL"
    assert 0.3 < found["hits"][0]["similarity"] < 1 < found["hits"][0]["words"]
    words = run_pellucid("search", index, "Apple", "--mode", "words", "--json", "--why").stdout
    assert json.loads(words, parse_constant=pytest.fail)["hits"][0]["similarity"] is None
    result = run_pellucid("search", index, "-", "--where", "sector = Financials", stdin="a bank\nMicrosfot\n")
    assert result.stdout.count("score") == 2
    assert "searched for microsoft, too" in result.stderr
    assert "standard input, line 2 is empty" in run_pellucid("search", index, "-", stdin="a bank\n\n").stderr


def test_why_names_the_words_that_matched_and_writes_a_page(index: Path, tmp_path: Path) -> None:
    result = run_pellucid(
        "search", index, "coca cola", "Microsfot", "-k", "1", "--why", "--json", "-o", tmp_path / "why.html"
    )
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    best = {query_word: text_word for query_word, text_word, _ in first["hits"][0]["why"]}
    assert best == {"coca": "Coca", "cola": "Cola"}
    ((query_word, text_word, similarity),) = second["hits"][0]["why"]  # for the corrected word
    assert (query_word, text_word) == ("microsoft", "Microsoft") and similarity > 0.9
    assert result.stderr == f"which words matched: {tmp_path / 'why.html'}\n"
    page = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert page.count("<table ") == 2 and "<script" not in page
    result = run_pellucid("search", index, "coca", "--where", "sector = none", "--why", "-o", tmp_path / "no.html")
    assert "no.html was not written: no text was found to show" in result.stderr and not (tmp_path / "no.html").exists()
    shown = run_pellucid("search", index, "coca cola", "-k", "1", "--why").stdout
    assert "coca is like Coca" in shown and "Atlanta, Georgia" in shown


def test_table_fits_the_width_of_the_terminal(index: Path) -> None:
    shown = terminal_output("search", index, "coca cola", "-k", "3", "--why", columns=50)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).splitlines()
    assert all(len(line) <= 50 for line in lines), lines
    assert "KO" in shown and "\x1b[" in shown
    assert "rgb" not in shown and re.search(r"48;2;\d+;\d+;0m", shown)  # words on a coloured background


def test_errors_are_one_line(index: Path, tmp_path: Path) -> None:
    name_columns, plot = ("-q", "name", "-i", "symbol"), ("--plot", tmp_path / "a.svg")
    for arguments, code, message in [
        (("search", tmp_path / "none", "x"), 3, "there is no index"),
        (("search", index, "x", "--where", "sectr = 1"), 3, "--where: no row has 'sectr' (did you mean sector"),
        (("search", index, "x", "--where", "sector == Energy"), 3, "== is not an operator"),
        (("search", index, "x", "--where", "founded => 1900"), 3, "=> is not an operator"),
        (("search", index, "x", "--where", "sector"), 3, "cannot read the condition 'sector'"),
        (("search", index, "x", "-o", tmp_path / "why.html"), 2, "--output writes the page of --why"),
        (("search", index, "x", "--why", "-o", tmp_path / "no" / "why.html"), 3, "there is no folder"),
        (("search", index, "x", "--mode", "dens"), 2, "'dens' is not one of"),
        (("search", index), 2, "Missing argument"),
        (("search", index, "-"), 3, "standard input holds no texts"),
        (("search", index, ""), 3, "the query is empty"),
        (("search", index, "x", ""), 3, "query 2 of 2 is empty"),
        (("search", index, "x", "-k", "0"), 3, "-k is 0"),
        (("index", "build", COMPANIES, "-o", tmp_path / "a"), 3, "name the column"),
        (("index", "build", "no.csv", "-c", "name", "-o", tmp_path / "a"), 3, "pellucid: there is no file 'no.csv'"),
        (("index", "build", "no.txt", "-o", tmp_path / "a"), 3, "pellucid: there is no file 'no.txt'"),
        (("index", "build", COMPANIES, "-c", "nam", "-o", tmp_path / "a"), 3, "did you mean name"),
        (("index", "build", COMPANIES, "-c", "name", "-o", index), 3, "holds an index already"),
        (("index", "delete", index, "NOPE"), 3, "no text has the id 'NOPE'"),
        (("index", "delete", index, ""), 3, "no text has the id ''"),
        (("index", "delete", index), 3, "say what to delete: ids, or --where, and not both"),
        (("index", "delete", index, "--where", "sectr = 1"), 3, "--where: no row has 'sectr' (did you mean sector"),
        (("index", "build", COMPANIES, "-c", "name", "-o", ""), 2, "--output is empty, expected the name of a folder"),
        (
            ("index", "build", COMPANIES, "-c", "name", "-o", tmp_path / "a", "--passage-tokens", "2"),
            3,
            "--passage-tokens 2 leaves no room beside 2 special tokens",
        ),
        (("index", "bild", COMPANIES), 2, "Did you mean 'build'"),
        (("index", "evaluate", index, COMPANIES), 2, "name --query-column"),
        (("index", "evaluate", index, "--query-column", "name"), 2, "--query-column is for QUERIES"),
        (("index", "evaluate", index, tmp_path / "no.csv", "-q", "a", "-i", "b"), 3, "there is no file"),
        (("index", "evaluate", index, COMPANIES, "-q", "nam", "-i", "symbol"), 3, "did you mean name"),
        (("index", "evaluate", index, COMPANIES, "-q", "", "-i", "symbol"), 3, "has no column ''; its columns: "),
        (("index", "evaluate", index, COMPANIES, "-q", "name", "-i", ""), 3, "has no column ''; its columns: "),
        (
            ("index", "evaluate", index, COMPANIES, *name_columns, "--grade-column", ""),
            3,
            "has no column ''; its columns: ",
        ),
        (("index", "evaluate", index, "--plot", ""), 2, "--plot is empty, expected the name of a file"),
        (("index", "evaluate", index, COMPANIES, "-q", "name", "-i", "name"), 3, "99 of 100 queries"),
        (("index", "evaluate", index, "--plot", tmp_path / "a.pdf"), 3, "ends in .svg or .png"),
        (("index", "evaluate", index, "-k", "0"), 3, "-k is 0"),
        (("index", "evaluate", index, "-k", "1", "-k", "3"), 2, "without QUERIES: -k is the number of neighbours"),
        (
            ("index", "evaluate", index, COMPANIES, *name_columns, "-k", "1", "-k", "3", *plot),
            2,
            "--plot: -k is the number of neighbours",
        ),
    ]:
        result = run_pellucid(*arguments)
        assert (result.returncode, result.stdout) == (code, ""), (arguments, result.stderr)
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_files_omitted_from_a_folder_are_reported(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a house")
    (tmp_path / "two.txt").write_bytes("München".encode("latin-1"))
    result = run_pellucid("index", "build", tmp_path, "-o", tmp_path.parent / "left.index")
    assert result.returncode == 0
    assert "two.txt is not UTF-8 text" in result.stderr and "try --encoding latin-1" in result.stderr
    (tmp_path / "one.txt").write_bytes("Köln".encode("latin-1"))
    result = run_pellucid("index", "build", tmp_path, "-o", tmp_path.parent / "none.index")
    assert result.returncode == 3 and "try --encoding latin-1 and 1 more): there is nothing to put" in result.stderr


def test_index_finds_its_model_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("all-MiniLM-L6-v2").save(tmp_path / "mine")
    (tmp_path / "texts.csv").write_text("text\na house\na tree\n")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    built = run_pellucid("index", "build", "texts.csv", "-c", "text", "-m", "mine", "-o", "an.index")
    assert built.returncode == 0, built.stderr
    monkeypatch.chdir("other")
    assert run_pellucid("search", "../an.index", "a tree").returncode == 0
    (tmp_path / "mine").rename(tmp_path / "moved")
    for arguments in (("search", "../an.index", "a tree"), ("index", "add", "../an.index", "../texts.csv", "--update")):
        failed = run_pellucid(*arguments)
        assert failed.returncode == 3
        message = "the model of this index was not found (--model FOLDER gives its present path): there is no folder "
        assert f"{message}'{tmp_path / 'mine'}'" in failed.stderr
        assert run_pellucid(*arguments, "--model", "../moved").returncode == 0


def test_index_is_built_extended_and_compacted(index: Path, tmp_path: Path) -> None:
    rows = COMPANIES.read_text(encoding="utf-8").splitlines()
    small, more = tmp_path / "small.csv", tmp_path / "more.csv"
    small.write_text("\n".join(rows[:11]) + "\n", encoding="utf-8")
    more.write_text("\n".join([rows[0], *rows[11:21]]) + "\n", encoding="utf-8")
    own = tmp_path / "own.index"
    assert run_pellucid("index", "build", small, "-c", "name", "--id-column", "symbol", "-o", own).returncode == 0
    message = run_pellucid("index", "add", own, more).stderr
    assert "10 rows, 10 embedded" in message and "+10 rows; 20 rows" in message
    again = run_pellucid("index", "add", own, more, "--update").stderr
    assert "10 rows, 0 embedded, 10 rows replaced, exact search" in again and "+0 rows; 20 rows" in again
    assert run_pellucid("--quiet", "index", "add", own, more, "--update").stderr == ""
    first = rows[1].split(",")[0]
    assert "1 row deleted" in run_pellucid("index", "delete", own, first).stderr
    assert run_pellucid("index", "compact", own).returncode == 0
    info = json.loads(run_pellucid("index", "info", own, "--json").stdout)
    assert (info["rows"], len(info["segments"]), info["corpus"]["column"]) == (19, 1, "name")
    shown = {line.partition("  ")[0] for line in run_pellucid("index", "info", own).stdout.splitlines()}
    assert {"rows", "numbered", "encoder name", "encoder digest", "encoder reading", "encoder bits", "metric"} <= shown
    assert not {"name", "digest", "reading", "bits"} & shown  # each is shown with its owner
    assert run_pellucid("index", "verify", own).stdout == "ok\n"


def test_unknown_value_in_a_filter_lists_similar_ones(index: Path) -> None:
    result = run_pellucid("search", index, "a bank", "--where", "sector = Financial", "--json")
    assert json.loads(result.stdout) == {"query": "a bank", "hits": []}
    assert result.stderr.startswith("no row has sector = Financial (did you mean Financials")
    assert run_pellucid(
        "search", index, "a bank", "--where", "sector = Financials", "--where", "founded < 1"
    ).stderr == ("nothing was found for a bank\n")


def test_files_are_written_if_stdout_is_closed(index: Path, tmp_path: Path) -> None:
    page, drawn = tmp_path / "why.html", tmp_path / "recall.svg"
    for command in (("search", index, "Apple", "--why", "-o", page), ("index", "evaluate", index, "--plot", drawn)):
        with closed_pipe() as out:
            result = run_pellucid(*command, stdout=out)
        assert result.returncode == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype") and drawn.read_text(encoding="utf-8")[:4] == "<svg"


def test_delimiter_of_a_table_is_reported(tmp_path: Path) -> None:
    table = tmp_path / "odd.csv"
    table.write_text("id;name\n1;Apple\n2;Pear, green\n", encoding="utf-8")
    result = run_pellucid("index", "build", table, "-c", "name", "-o", tmp_path / "odd.index")
    assert "2 rows, 2 embedded" in result.stderr and "';'" in result.stderr, result.stderr


def test_evaluation_of_an_index(index: Path, tmp_path: Path) -> None:
    table = tmp_path / "queries.csv"
    rows = ["query,symbol,grade", "Apple,AAPL,1", "soft drinks,KO,2", "soft drinks,PEP,1", "burgers,MCD,1", "x,NOPE,1"]
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    command = ("index", "evaluate", index, table, "-q", "query", "-i", "symbol", "--grade-column", "grade")
    assert "the right answers of 1 of 4 queries" in run_pellucid(*command).stderr
    result = run_pellucid(*command, "--skip-unlisted", "-k", "10", "--json", "--plot", tmp_path / "recall.svg")
    found = json.loads(result.stdout)
    assert (found["labelled"]["queries"], found["labelled"]["unlisted"]) == (3, 1)
    assert found["labelled"]["recall"]["10"] == 1.0
    assert found["curve"]["points"][0]["recall"] == 1.0
    assert (tmp_path / "recall.svg").read_text(encoding="utf-8").startswith("<svg")
    several = run_pellucid(*command, "--skip-unlisted", "-k", "1", "-k", "10", "--json")
    assert list(json.loads(several.stdout)["labelled"]["recall"]) == ["1", "10"]
    words_only = run_pellucid(*command, "--skip-unlisted", "--mode", "words")
    assert "soft drinks: KO, PEP was not found, nothing was" in words_only.stdout
    shown = run_pellucid(*command, "--skip-unlisted")
    assert shown.stdout.splitlines()[0].split() == ["k", "recall", "MRR", "nDCG"]
    assert "3 queries" in shown.stderr and "1 left out" in shown.stderr
    table.write_text("query,symbol,grade\nApple,AAPL,good\n", encoding="utf-8")
    assert "line 2: the grade is 'good', expected a number" in run_pellucid(*command).stderr
    table.write_text("query,symbol,grade\nApple,AAPL,1\nPear,AAPL,nan\nPear,AAPL,nan\n", encoding="utf-8")
    assert f"{table}, line 3: the grade is 'nan', expected a number from 0" in run_pellucid(*command).stderr
    for row, message in (
        (" ,AAPL,1", "holds nothing to look for"),
        ("Pear,AAPL,0", "has no right answer"),
        ("Pear,KO,1e31", ": the grade is '1e31'"),
    ):
        table.write_text(f"query,symbol,grade\nApple,AAPL,1\nApple,KO,1\n{row}\n", encoding="utf-8")
        assert f"{table}, line 4{message if message[0] == ':' else f' {message}'}" in run_pellucid(*command).stderr
    table.write_text("query,symbol,grade\nApple,AAPL,3\nApple,AAPL,3.0\nApple,AAPL,0\n", encoding="utf-8")
    assert "lines 2 and 4: 'AAPL' is graded 3 and 0 for 'Apple': leave one" in run_pellucid(*command).stderr
    lines = tmp_path / "queries.jsonl"
    lines.write_text(
        '{"query": "Apple", "symbol": "AAPL", "grade": 3}\n{"query": "burg\\ners", "symbol": 1, "grade": 2.5}\n'
    )
    result = run_pellucid(*command[:3], lines, *command[4:], "--skip-unlisted")
    assert "1 query, " in result.stderr and "1 left out" in result.stderr, result.stderr
    lines.write_text('{"query": "Pear\\nPear", "symbol": "AAPL", "grade": 1}\n')
    assert r"  Pear\nPear: AAPL " in run_pellucid(*command[:3], lines, *command[4:]).stdout
    for grade, message in ((10**400, "the grade is 1000"), ([1], "'grade' is list, expected a number or a string")):
        lines.write_text(json.dumps({"query": "Pear", "symbol": "AAPL", "grade": grade}) + "\n")
        assert message in run_pellucid(*command[:3], lines, *command[4:]).stderr
    lines.write_text(
        "".join(f'{{"query": "Pear", "symbol": {one}, "grade": {2 - i}}}\n\n' for i, one in enumerate((1, '"1"')))
    )
    assert (
        f"{lines}, line 1: the answer '1' is graded 2 and 1" in run_pellucid(*command[:3], lines, *command[4:]).stderr
    )
    lines.write_text('{"query": "Pear", "symbol": true, "grade": 1}\n')
    assert "'symbol' is bool, expected a number or a string" in run_pellucid(*command[:3], lines, *command[4:]).stderr
    assert "efSearch" in run_pellucid("index", "evaluate", index).stdout
