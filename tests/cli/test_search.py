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
from tests.cli.command_runner import nobody_reads

COMPANIES = Path(__file__).parents[2] / "examples" / "companies.csv"


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def pellucid(*typed: object, stdin: str = "", stdout: TextIO | None = None) -> Done:
    """Runs a command in this process, without the process's log handlers."""
    out, err, handlers = stdout or io.StringIO(), io.StringIO(), logging.root.handlers[:]
    logging.root.handlers[:] = []
    try:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["pellucid", *map(str, typed)])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            code = run(app)
    finally:
        logging.root.handlers[:] = handlers
        logging.getLogger("pellucid").setLevel(logging.NOTSET)
    return Done(code, out.getvalue() if isinstance(out, io.StringIO) else "", err.getvalue())


def at_a_terminal(*typed: object, columns: int) -> str:
    """The screen of a terminal of this width. Linux and macOS have such terminals."""
    pty = pytest.importorskip("pty")
    main, other = pty.openpty()
    command = [sys.executable, "-m", "pellucid", *map(str, typed)]
    look = os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    look.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=other, stderr=subprocess.DEVNULL, env=look) as running:
        os.close(other)
        shown = b""
        while part := _part(main):
            shown += part
    os.close(main)
    assert running.returncode == 0
    return shown.decode()


def _part(handle: int) -> bytes:
    """The next bytes, or none once the other side has closed, which is an error on Linux."""
    try:
        return os.read(handle, 4096)
    except OSError:
        return b""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "companies.index"
    done = pellucid("index", "build", COMPANIES, "--column", "name", "--id-column", "symbol", "-o", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}\n"
    assert "100 rows, 100 embedded, exact search" in done.stderr
    return folder


def test_one_query_as_json_and_several_as_a_table(index: Path) -> None:
    found = json.loads(pellucid("search", index, "Apple", "-k", "2", "--json").stdout)
    assert found["query"] == "Apple"
    assert found["hits"][0]["id"] == "AAPL"
    assert found["hits"][0]["metadata"]["symbol"] == "AAPL"
    assert 0.3 < found["hits"][0]["similarity"] < 1 < found["hits"][0]["words"]
    words = pellucid("search", index, "Apple", "--mode", "words", "--json", "--why").stdout
    assert json.loads(words, parse_constant=pytest.fail)["hits"][0]["similarity"] is None
    done = pellucid("search", index, "-", "--where", "sector = Financials", stdin="a bank\nMicrosfot\n")
    assert done.stdout.count("score") == 2
    assert "searched for microsoft, too" in done.stderr
    assert "standard input, line 2 is empty" in pellucid("search", index, "-", stdin="a bank\n\n").stderr


def test_why_names_the_words_that_matched_and_writes_a_page(index: Path, tmp_path: Path) -> None:
    done = pellucid(
        "search", index, "coca cola", "Microsfot", "-k", "1", "--why", "--json", "-o", tmp_path / "why.html"
    )
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    best = {mine: theirs for mine, theirs, _ in first["hits"][0]["why"]}
    assert best == {"coca": "Coca", "cola": "Cola"}
    ((mine, theirs, like),) = second["hits"][0]["why"]  # for the corrected word
    assert (mine, theirs) == ("microsoft", "Microsoft") and like > 0.9
    assert done.stderr == f"which words matched: {tmp_path / 'why.html'}\n"
    page = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert page.count("<table ") == 2 and "<script" not in page
    done = pellucid("search", index, "coca", "--where", "sector = none", "--why", "-o", tmp_path / "no.html")
    assert "no.html was not written: no text was found to show" in done.stderr and not (tmp_path / "no.html").exists()
    shown = pellucid("search", index, "coca cola", "-k", "1", "--why").stdout
    assert "coca is like Coca" in shown and "Atlanta, Georgia" in shown


def test_a_person_at_a_terminal_sees_a_table_that_fits(index: Path) -> None:
    shown = at_a_terminal("search", index, "coca cola", "-k", "3", "--why", columns=50)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).splitlines()
    assert all(len(line) <= 50 for line in lines), lines
    assert "KO" in shown and "\x1b[" in shown
    assert "rgb" not in shown and re.search(r"48;2;\d+;\d+;0m", shown)  # words on a coloured background


def test_what_cannot_be_is_said_in_one_line(index: Path, tmp_path: Path) -> None:
    named, plot = ("-q", "name", "-i", "symbol"), ("--plot", tmp_path / "a.svg")
    for typed, code, said in [
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
        (("index", "evaluate", index, COMPANIES, *named, "--grade-column", ""), 3, "has no column ''; its columns: "),
        (("index", "evaluate", index, "--plot", ""), 2, "--plot is empty, expected the name of a file"),
        (("index", "evaluate", index, COMPANIES, "-q", "name", "-i", "name"), 3, "99 of 100 queries"),
        (("index", "evaluate", index, "--plot", tmp_path / "a.pdf"), 3, "ends in .svg or .png"),
        (("index", "evaluate", index, "-k", "0"), 3, "-k is 0"),
        (("index", "evaluate", index, "-k", "1", "-k", "3"), 2, "without QUERIES: -k is the number of neighbours"),
        (
            ("index", "evaluate", index, COMPANIES, *named, "-k", "1", "-k", "3", *plot),
            2,
            "--plot: -k is the number of neighbours",
        ),
    ]:
        done = pellucid(*typed)
        assert (done.returncode, done.stdout) == (code, ""), (typed, done.stderr)
        assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_what_a_folder_leaves_out_is_told_as_it_is_typed(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a house")
    (tmp_path / "two.txt").write_bytes("München".encode("latin-1"))
    done = pellucid("index", "build", tmp_path, "-o", tmp_path.parent / "left.index")
    assert done.returncode == 0
    assert "two.txt is not UTF-8 text" in done.stderr and "try --encoding latin-1" in done.stderr
    (tmp_path / "one.txt").write_bytes("Köln".encode("latin-1"))
    done = pellucid("index", "build", tmp_path, "-o", tmp_path.parent / "none.index")
    assert done.returncode == 3 and "try --encoding latin-1 and 1 more): there is nothing to put" in done.stderr


def test_an_index_finds_its_model_from_another_folder_and_is_told_where_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("all-MiniLM-L6-v2").save(tmp_path / "mine")
    (tmp_path / "texts.csv").write_text("text\na house\na tree\n")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    built = pellucid("index", "build", "texts.csv", "-c", "text", "-m", "mine", "-o", "an.index")
    assert built.returncode == 0, built.stderr
    monkeypatch.chdir("other")
    assert pellucid("search", "../an.index", "a tree").returncode == 0
    (tmp_path / "mine").rename(tmp_path / "moved")
    for typed in (("search", "../an.index", "a tree"), ("index", "add", "../an.index", "../texts.csv", "--update")):
        gone = pellucid(*typed)
        assert gone.returncode == 3
        told = "the model of this index was not found (--model FOLDER gives its present path): there is no folder "
        assert f"{told}'{tmp_path / 'mine'}'" in gone.stderr
        assert pellucid(*typed, "--model", "../moved").returncode == 0


def test_the_life_of_an_index(index: Path, tmp_path: Path) -> None:
    rows = COMPANIES.read_text(encoding="utf-8").splitlines()
    small, more = tmp_path / "small.csv", tmp_path / "more.csv"
    small.write_text("\n".join(rows[:11]) + "\n", encoding="utf-8")
    more.write_text("\n".join([rows[0], *rows[11:21]]) + "\n", encoding="utf-8")
    own = tmp_path / "own.index"
    assert pellucid("index", "build", small, "-c", "name", "--id-column", "symbol", "-o", own).returncode == 0
    told = pellucid("index", "add", own, more).stderr
    assert "10 rows, 10 embedded" in told and "+10 rows; 20 rows" in told
    again = pellucid("index", "add", own, more, "--update").stderr
    assert "10 rows, 0 embedded, 10 rows replaced, exact search" in again and "+0 rows; 20 rows" in again
    assert pellucid("--quiet", "index", "add", own, more, "--update").stderr == ""
    first = rows[1].split(",")[0]
    assert "1 row deleted" in pellucid("index", "delete", own, first).stderr
    assert pellucid("index", "compact", own).returncode == 0
    told = json.loads(pellucid("index", "info", own, "--json").stdout)
    assert (told["rows"], len(told["segments"]), told["corpus"]["column"]) == (19, 1, "name")
    shown = {line.partition("  ")[0] for line in pellucid("index", "info", own).stdout.splitlines()}
    assert {"rows", "numbered", "encoder name", "encoder digest", "encoder reading", "encoder bits", "metric"} <= shown
    assert not {"name", "digest", "reading", "bits"} & shown  # each is shown with its owner
    assert pellucid("index", "verify", own).stdout == "ok\n"


def test_a_value_that_no_row_has_names_near_ones(index: Path) -> None:
    done = pellucid("search", index, "a bank", "--where", "sector = Financial", "--json")
    assert json.loads(done.stdout) == {"query": "a bank", "hits": []}
    assert done.stderr.startswith("no row has sector = Financial (did you mean Financials")
    assert pellucid("search", index, "a bank", "--where", "sector = Financials", "--where", "founded < 1").stderr == (
        "nothing was found for a bank\n"
    )


def test_what_is_to_be_written_is_written_though_nobody_reads_the_rest(index: Path, tmp_path: Path) -> None:
    page, drawn = tmp_path / "why.html", tmp_path / "recall.svg"
    for asked in (("search", index, "Apple", "--why", "-o", page), ("index", "evaluate", index, "--plot", drawn)):
        with nobody_reads() as out:
            done = pellucid(*asked, stdout=out)
        assert done.returncode == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype") and drawn.read_text(encoding="utf-8")[:4] == "<svg"


def test_what_stands_between_the_fields_is_told(tmp_path: Path) -> None:
    table = tmp_path / "odd.csv"
    table.write_text("id;name\n1;Apple\n2;Pear, green\n", encoding="utf-8")
    done = pellucid("index", "build", table, "-c", "name", "-o", tmp_path / "odd.index")
    assert "2 rows, 2 embedded" in done.stderr and "';'" in done.stderr, done.stderr


def test_an_index_is_evaluated_by_hand(index: Path, tmp_path: Path) -> None:
    table = tmp_path / "queries.csv"
    rows = ["query,symbol,grade", "Apple,AAPL,1", "soft drinks,KO,2", "soft drinks,PEP,1", "burgers,MCD,1", "x,NOPE,1"]
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    asked = ("index", "evaluate", index, table, "-q", "query", "-i", "symbol", "--grade-column", "grade")
    assert "the right answers of 1 of 4 queries" in pellucid(*asked).stderr
    done = pellucid(*asked, "--skip-unlisted", "-k", "10", "--json", "--plot", tmp_path / "recall.svg")
    found = json.loads(done.stdout)
    assert (found["labelled"]["queries"], found["labelled"]["unlisted"]) == (3, 1)
    assert found["labelled"]["recall"]["10"] == 1.0
    assert found["curve"]["points"][0]["recall"] == 1.0
    assert (tmp_path / "recall.svg").read_text(encoding="utf-8").startswith("<svg")
    several = pellucid(*asked, "--skip-unlisted", "-k", "1", "-k", "10", "--json")
    assert list(json.loads(several.stdout)["labelled"]["recall"]) == ["1", "10"]
    nothing = pellucid(*asked, "--skip-unlisted", "--mode", "words")
    assert "soft drinks: KO, PEP was not found, nothing was" in nothing.stdout
    shown = pellucid(*asked, "--skip-unlisted")
    assert shown.stdout.splitlines()[0].split() == ["k", "recall", "MRR", "nDCG"]
    assert "3 queries" in shown.stderr and "1 left out" in shown.stderr
    table.write_text("query,symbol,grade\nApple,AAPL,good\n", encoding="utf-8")
    assert "line 2: the grade is 'good', expected a number" in pellucid(*asked).stderr
    table.write_text("query,symbol,grade\nApple,AAPL,1\nPear,AAPL,nan\nPear,AAPL,nan\n", encoding="utf-8")
    assert f"{table}, line 3: the grade is 'nan', expected a number from 0" in pellucid(*asked).stderr
    for odd, told in (
        (" ,AAPL,1", "holds nothing to look for"),
        ("Pear,AAPL,0", "has no right answer"),
        ("Pear,KO,1e31", ": the grade is '1e31'"),
    ):
        table.write_text(f"query,symbol,grade\nApple,AAPL,1\nApple,KO,1\n{odd}\n", encoding="utf-8")
        assert f"{table}, line 4{told if told[0] == ':' else f' {told}'}" in pellucid(*asked).stderr
    table.write_text("query,symbol,grade\nApple,AAPL,3\nApple,AAPL,3.0\nApple,AAPL,0\n", encoding="utf-8")
    assert "lines 2 and 4: 'AAPL' is graded 3 and 0 for 'Apple': leave one" in pellucid(*asked).stderr
    lines = tmp_path / "queries.jsonl"
    lines.write_text(
        '{"query": "Apple", "symbol": "AAPL", "grade": 3}\n{"query": "burg\\ners", "symbol": 1, "grade": 2.5}\n'
    )
    done = pellucid(*asked[:3], lines, *asked[4:], "--skip-unlisted")
    assert "1 query, " in done.stderr and "1 left out" in done.stderr, done.stderr
    lines.write_text('{"query": "Pear\\nPear", "symbol": "AAPL", "grade": 1}\n')
    assert r"  Pear\nPear: AAPL " in pellucid(*asked[:3], lines, *asked[4:]).stdout
    for grade, told in ((10**400, "the grade is 1000"), ([1], "'grade' is list, expected a number or a string")):
        lines.write_text(json.dumps({"query": "Pear", "symbol": "AAPL", "grade": grade}) + "\n")
        assert told in pellucid(*asked[:3], lines, *asked[4:]).stderr
    lines.write_text(
        "".join(f'{{"query": "Pear", "symbol": {one}, "grade": {2 - i}}}\n\n' for i, one in enumerate((1, '"1"')))
    )
    assert f"{lines}, line 1: the answer '1' is graded 2 and 1" in pellucid(*asked[:3], lines, *asked[4:]).stderr
    lines.write_text('{"query": "Pear", "symbol": true, "grade": 1}\n')
    assert "'symbol' is bool, expected a number or a string" in pellucid(*asked[:3], lines, *asked[4:]).stderr
    assert "efSearch" in pellucid("index", "evaluate", index).stdout
