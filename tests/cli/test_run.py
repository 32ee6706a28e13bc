"""`pellucid run`: answers on stdout as they are found, the rest on stderr, and every form of input."""

import functools
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.tasks.names import TASKS
from tests.cli.command_runner import Done, Pellucid, caller
from tests.generation.writers import one_thread
from tests.tasks.answerers import HEADS, saved


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, minilm: pellucid.Model) -> Path:
    """A folder of small models with each head, which answer nonsense with a real tokenizer."""
    place = tmp_path_factory.mktemp("models")
    for name in HEADS:
        saved(name, place, minilm)
    return place


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], models: Path) -> Pellucid:
    """Runs `pellucid run` in this process; models of `HEADS` are named by their short names."""
    monkeypatch.chdir(models)
    return functools.partial(caller(monkeypatch, capsys), "run")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text('id;text;more\n1;I love glass;NA\n2;"two\nlines";x\n', encoding="utf-8")
    return path


def rows(done: Done) -> list[Any]:
    """The JSON lines, rounded, since the last digits of a number depend on its batch."""
    assert done.code == 0, done.err
    return [rounded(json.loads(line)) for line in done.out.splitlines()]


def rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [rounded(value) for value in found]
    return pytest.approx(found, abs=1e-5) if isinstance(found, float) else found


# -- what is typed -----------------------------------------------------------------------------------------------------


def test_texts_come_from_everywhere(command: Pellucid, models: Path, table: Path, tmp_path: Path) -> None:
    pipe = pellucid.pipeline("sentiment-analysis", models / "feel")
    wanted = [answer.whole() for answer in pipe(["I love glass", "two\nlines"])]
    asked = ("sentiment-analysis", "-m", "feel", "--json")
    assert rows(command(*asked, "I love glass", "two\nlines")) == wanted
    done = command(*asked, str(table), "--column", "text")
    assert rows(done) == wanted
    assert done.err == "rows.csv: its fields are separated by a semicolon\n"
    lines = tmp_path / "lines.txt"
    lines.write_text("I love glass\r\nhate\n")
    wanted[1:] = [pipe("hate").whole()]
    assert rows(command(*asked, str(lines))) == wanted
    assert rows(command(*asked, "-", stdin="I love glass\nhate\n")) == wanted
    objects = tmp_path / "rows.jsonl"
    objects.write_text('{"text": "I love glass"}\n{"text": "hate", "id": 5}\n')
    assert rows(command(*asked, str(objects), "-c", "text")) == wanted
    assert rows(command(*asked, str(lines), "--whole")) == [pipe("I love glass\r\nhate").whole()]
    assert rows(command(*asked, "-", "--whole", stdin="a\nb\n")) == [pipe("a\nb").whole()]


def test_a_file_of_another_encoding(command: Pellucid, models: Path, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_bytes("naïve\n".encode("latin-1"))
    asked = ("sentiment-analysis", "-m", "feel", str(tmp_path / "old.txt"), "--json")
    done = command(*asked)
    assert (done.code, done.out) == (3, "") and "line 1, byte 0xef): try --encoding latin-1" in done.err
    pipe = pellucid.pipeline("sentiment-analysis", models / "feel")
    assert rows(command(*asked, "--encoding", "latin-1")) == [pipe("naïve").whole()]
    assert command("sentiment-analysis", "-m", "feel", "-", stdin="").out == ""


@pytest.mark.parametrize("named", [["--column", "text"], ["--whole"]])
def test_the_file_that_is_read_is_not_written_over(command: Pellucid, tmp_path: Path, named: list[str]) -> None:
    (tmp_path / "rows.csv").write_text("text\nI love glass\n")
    (tmp_path / "link").symlink_to("rows.csv")
    for place in ("rows.csv", "link"):
        done = command("ner", str(tmp_path / "rows.csv"), *named, "-o", str(tmp_path / place))
        assert (done.code, done.out) == (2, "") and "is the FILE that is read" in done.err
    assert (tmp_path / "rows.csv").read_text() == "text\nI love glass\n"


def test_what_stdout_cannot_hold_is_written_by_its_number(command: Pellucid, tmp_path: Path) -> None:
    halves = tmp_path / "halves.jsonl"
    halves.write_text('{"text": "caf\\udce9"}\n{"text": "Ada"}\n')
    done = command("sentiment-analysis", "-m", "feel", str(halves), "--column", "text")
    assert (done.code, done.err) == (0, "") and "caf\\udce9" in done.out and "Ada" in done.out


def test_pairs_and_questions(command: Pellucid, models: Path, table: Path) -> None:
    feel, spans = pellucid.pipeline("text-classification", models / "feel"), ("question-answering", "-m", "spans")
    pairs = [feel(("I love glass", "NA")).whole(), feel(("two\nlines", "x")).whole()]
    asked = ("text-classification", "-m", "feel", "--json")
    assert rows(command(*asked, str(table), "--column", "text", "--pair-column", "more")) == pairs
    assert rows(command(*asked, "I love glass", "--pair", "NA")) == pairs[:1]
    pipe = pellucid.pipeline("question-answering", models / "spans")
    wanted = pipe(question="Who came?", context="Ada came at five.").whole()
    for typed in (
        ("Who came?", "--context", "Ada came at five."),
        ("--question", "Who came?", "Ada came at five."),
        ("--question", "Who came?", "--context", "Ada came at five."),
    ):
        assert rows(command(*spans, *typed, "--json")) == [wanted]
    table.write_text("question,context\nWho came?,Ada came at five.\n")
    columns = ("--column", "question", "--context-column", "context")
    assert rows(command(*spans, str(table), *columns, "--json")) == [wanted]
    assert rows(command(*spans, str(table), "--question", "Who came?", "--context-column", "context", "--json")) == [
        wanted
    ]


def test_empty_texts_are_counted(command: Pellucid, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("It ended 2:1.\n\n   \nart\n")
    for how in ((), ("--json",)):
        done = command("ner", "-m", "tags", str(tmp_path / "a.txt"), *how)
        assert (done.code, done.err) == (0, "empty texts: 2 of 4 (the first is text 2)\n")


def test_options_by_name(command: Pellucid, models: Path) -> None:
    labels = pellucid.pipeline("zero-shot-classification", models / "nli")
    asked = ("zero-shot-classification", "-m", "nli", "It ended 2:1.", "--labels", "sport, art", "--json")
    assert rows(command(*asked)) == [labels("It ended 2:1.", candidate_labels=["sport", "art"]).whole()]
    given = {"multi_label": True, "hypothesis_template": "About {}."}
    typed = ("-O", "multi_label=true", "-O", "hypothesis-template=About {}.")
    assert rows(command(*asked, *typed)) == [
        labels("It ended 2:1.", candidate_labels=["sport", "art"], **given).whole()
    ]
    deep = "[" * 60_000 + "{}"  # not valid JSON, so a text
    told = command(*asked, "-O", f"hypothesis-template={deep}")
    assert told.code == 3 and "leaves no room" in told.err
    pipe = pellucid.pipeline("token-classification", models / "tags")
    cut = rows(command("ner", "-m", "tags", "a " * 90, "--long", "truncate", "--max-length", "9", "--json"))
    assert cut == [pipe("a " * 90, long="truncate", max_length=9).whole()]
    stretches = ("--long", "windows", "--max-length", "9", "--stride", "2")
    assert rows(command("ner", "-m", "tags", "a " * 90, *stretches, "--json")) == [
        pipe("a " * 90, long="windows", max_length=9, stride=2).whole()
    ]


def test_the_default_of_long_is_what_the_help_says(command: Pellucid) -> None:
    assert {name.task_class().long for name in TASKS} == {"error"}
    said = " ".join(command("run", "--help").out.replace("│", " ").split())
    assert "[default: error]" in said and "question-answering: windows" not in said


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_a_person_reads_lines(command: Pellucid, models: Path) -> None:
    found = pellucid.pipeline("sentiment-analysis", models / "feel")("glass")
    share = f"{found['score']:.1%}"
    assert command("sentiment-analysis", "-m", "feel", "glass").out == f"{found['label']}  {share}\n"
    logits = ("sentiment-analysis", "-m", "feel", "I love glass", "-O", "function_to_apply=none")
    raw = pellucid.pipeline("sentiment-analysis", models / "feel")("I love glass", function_to_apply="none").all
    every = command(*logits, "--top-k", "3").out.splitlines()
    assert [line.split()[-1] for line in every] == [f"{one['score']:.4f}" for one in raw]
    assert all(0 <= one["score"] <= 1 for one in raw) and command(*logits).out.split()[-1] == f"{raw[0]['score']:.4f}"
    several = command("sentiment-analysis", "-m", "feel", "glass", "a\nb").out.splitlines()
    assert several[0] == f"{found['label']}  {share}  glass" and several[1].endswith("  a b")
    every = command("sentiment-analysis", "-m", "feel", "glass", "--top-k", "3").out.splitlines()
    assert [line.split("  ")[0] for line in every] == [one["label"] for one in found.all]
    span = pellucid.pipeline("question-answering", models / "spans")(question="Who?", context="Ada came")
    line = command("question-answering", "-m", "spans", "Who?", "--context", "Ada came").out
    assert line == f"{span['answer']}  {span['score']:.1%}  {span['start']}-{span['end']}\n"
    words = pellucid.pipeline("fill-mask", models / "mask", top_k=2)("a [MASK] of glass")
    lines = command("fill-mask", "-m", "mask", "a [MASK] of glass", "--top-k", "2").out.splitlines()
    assert [line.split()[0] for line in lines] == [one["token_str"] for one in words]
    assert lines[0].endswith(words[0]["sequence"])


def test_entities_stand_with_their_places(command: Pellucid, models: Path) -> None:
    text = "Ada Lovelace met Charles Babbage in London"
    found = pellucid.pipeline("ner", models / "tags")(text)
    lines = command("ner", "-m", "tags", text).out.splitlines()
    assert found and len(lines) == len(found)
    for line, one in zip(lines, found):
        assert line.split() == [
            one["entity_group"],
            *one["word"].split(),
            f"{one['score']:.1%}",
            f"{one['start']}-{one['end']}",
        ]
    assert command("ner", "-m", "tags", "").out == "nothing found\n"


def test_why_names_the_tokens(command: Pellucid, models: Path) -> None:
    found = pellucid.pipeline("sentiment-analysis", models / "feel")("I love glass", explain=True)
    said = command("sentiment-analysis", "-m", "feel", "I love glass", "--why").out.splitlines()
    assert said[1].startswith(f"why: {found.why.said}  ({found.why.method}: ")
    strongest = max(range(len(found.why.tokens)), key=lambda i: abs(found.why.scores[i]))
    assert said[2].startswith(f"{found.why.tokens[strongest]} {found.why.scores[strongest]:+.2g}   ")
    (whole,) = rows(command("sentiment-analysis", "-m", "feel", "I love glass", "--why", "--json"))
    assert [token for token, _ in whole["why"]["tokens"]] == list(found.why.tokens)


@pytest.mark.parametrize("plain", [True, False])
def test_a_terminal_gets_colours_and_nothing_that_steers_it(models: Path, plain: bool) -> None:
    """On a real terminal; control characters in a text are displayed and have no effect."""
    pty = pytest.importorskip("pty")
    above, below = pty.openpty()
    colours = {"NO_COLOR": "1"} if plain else {}
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm"} | colours
    command = [
        sys.executable,
        "-m",
        "pellucid",
        "run",
        "sentiment-analysis",
        "-m",
        "feel",
        "a\x1b[2Jb\u202ec",
        "glass",
        "--why",
    ]
    with subprocess.Popen(command, cwd=models, stdout=below, stderr=below, env=environment) as running:
        os.close(below)
        said = b""
        try:
            while block := os.read(above, 4096):
                said += block
        except OSError:  # the end of a terminal on Linux
            running.wait(60)
    os.close(above)
    assert running.returncode == 0, said
    assert b"\x1b[2J" not in said and "a\ufffd[2Jb\ufffdc".encode() in said
    assert (b"\x1b[32m" in said or b"\x1b[33m" in said or b"\x1b[37;4" in said) != plain


# -- files and streams -------------------------------------------------------------------------------------------------


def test_a_file_of_answers_is_written_whole(command: Pellucid, table: Path, tmp_path: Path) -> None:
    target = tmp_path / "answers.jsonl"
    asked = ("sentiment-analysis", "-m", "feel", str(table), "--column", "text", "-o", str(target))
    done = command(*asked)
    assert (done.code, done.out) == (0, f"{target}\n")
    before = target.read_bytes()
    assert [json.loads(line)["label"] for line in before.splitlines()]
    table.write_text(table.read_text() + "3;too;many;fields\n")
    done = command(*asked)
    assert done.code == 3 and "line 5: 4 fields, expected 3" in done.err
    assert target.read_bytes() == before and sorted(tmp_path.iterdir()) == [target, table]
    done = command(*asked, "--skip-bad-rows")
    assert done.code == 0 and done.err.endswith("rows left out: 1 (line 5: 4 fields, expected 3)\n")
    assert target.read_bytes() == before


def test_rows_without_a_text_are_left_out_and_listed(command: Pellucid, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "glass"}\n{"txt": "house"}\n{"text": null}\n{"text": "hate", "id": 5}\n')
    asked = ("sentiment-analysis", "-m", "feel", path, "-c", "text")
    done = command(*asked)
    assert done.code == 3 and "line 2: no 'text' (did you mean txt?)" in done.err
    done = command(*asked, "--skip-bad-rows")
    assert (done.code, [line.split()[-1] for line in done.out.splitlines()]) == (0, ["glass", "hate"])
    left_out = "line 2: no 'text' (did you mean txt?); line 3: 'text' is NoneType, expected a string"
    assert done.err == f"rows left out: 2 ({left_out})\n"


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("rows.csv", 'id,text\n1,"a\nb"\n2,{long}\n', "line 4"),
        ("rows.jsonl", '{{"text": "a"}}\n\n{{"text": "{long}"}}\n', "line 3"),
        ("rows.txt", "a\n{long}\nb\n", "line 2"),
    ],
)
def test_a_row_that_is_no_question_is_named_by_its_line(
    command: Pellucid, tmp_path: Path, name: str, text: str, place: str
) -> None:
    path = tmp_path / name
    path.write_text(text.format(long="glass " * 90), encoding="utf-8")
    column = [] if name.endswith("txt") else ["-c", "text"]
    done = command("ner", "-m", "tags", path, *column)
    assert (done.code, done.out) == (3, "") and f"{path}, {place} has " in done.err, done.err


def test_a_text_that_could_be_the_name_of_a_file(
    command: Pellucid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reviews.txt").write_text("glass\n")
    asked = ("sentiment-analysis", "-m", "feel")
    assert "'reviews.text' (did you mean reviews.txt?)" in command(*asked, tmp_path / "reviews.text").err.replace(
        str(tmp_path) + os.sep, ""
    )
    for text in ("amazon.com", "reviews.cvs", "/no/such/path", "./notes"):
        done = command(*asked, text)
        assert (done.code, done.err) == (0, f"read as text, for there is no such file: {text}\n") and done.out
    for option, task in (("--pair", "sentence-similarity"), ("--query", "text-ranking")):
        said = "read as text, and not as the name of a file: notes.txt\n"
        assert command(task, "-m", "all-MiniLM-L6-v2", option, "notes.txt", "a", "b").err == said
    told = command("sentence-similarity", "-m", "./nowhere", "--pair", "notes.txt", "a").err
    assert told.count("not as the name of a file") == 1  # and not again with the error
    for text in ("3.14", "and/or", "ada@example.org", "https://example.org/robots.txt", "I wrote notes.txt"):
        assert command(*asked, text).err == ""
    (tmp_path / "reviews").write_text("glass\n")
    said = f"read as text, though a file is called so: {tmp_path / 'reviews'}; its lines: on standard input (-)\n"
    assert command(*asked, tmp_path / "reviews").err == said


def test_a_column_of_no_name_is_none_of_a_file(command: Pellucid, table: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("a\nb\n")
    said = {table: "has no column ''; its columns: id, text, more\n", tmp_path / "plain.txt": "so it has no column ''"}
    for path, sentence in said.items():
        done = command("sentiment-analysis", "-m", "feel", path, "-c", "")
        assert (done.code, done.out) == (3, "") and path.name in done.err and sentence in done.err


def test_the_lines_of_json_are_no_texts(command: Pellucid, tmp_path: Path) -> None:
    """Each line used to be answered as a text: `[`, `{`, `"text": ...`."""
    path = tmp_path / "reviews.json"
    path.write_text('[\n {"text": "glass"}\n]\n')
    done = command("sentiment-analysis", "-m", "feel", path)
    assert done.code and not done.out
    assert done.err.endswith(
        "is JSON, whose lines are not texts: write it as .jsonl, one object with its text a line\n"
    )


def long_file(folder: Path) -> Path:
    path = folder / "long.txt"
    path.write_text("".join(f"line {i} of a long file\n" for i in range(20_000)))
    return path


def test_answers_come_before_the_end_and_ctrl_c_leaves_them(models: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pellucid", "run", "sentiment-analysis", "-m", "feel", str(long_file(tmp_path))]
    with subprocess.Popen(command, cwd=models, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        first = running.stdout.readline()
        assert running.poll() is None, "the first answer came while the rest was read"
        running.send_signal(signal.SIGINT)
        rest, said = running.communicate(timeout=60)
    assert first.endswith("line 0 of a long file\n")
    assert running.returncode == 130 and said.splitlines()[-1] == "pellucid: interrupted"
    assert rest.count("\n") < 20_000


def test_a_line_that_is_typed_is_answered_before_the_next(models: Path) -> None:
    pty = pytest.importorskip("pty")
    above, below = pty.openpty()
    command = [sys.executable, "-m", "pellucid", "run", "sentiment-analysis", "-m", "feel", "-"]
    with subprocess.Popen(command, cwd=models, stdin=below, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        os.close(below)
        assert running.stdout is not None
        for word in (b"glass", b"house"):
            os.write(above, word + b"\n")
            assert running.stdout.readline().rstrip().endswith(b"%  " + word)
        os.write(above, b"\x04")
        assert running.wait(60) == 0
    os.close(above)


class _Typed(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_line_that_is_typed_and_cannot_be_read_is_told_by_its_number(
    command: Pellucid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "TextIOWrapper", _Typed)
    done = command("ner", "-m", "tags", "-", "--json", stdin="glass\n" + "a " * 90 + "\n")
    assert done.code == 3 and len(done.out.splitlines()) == 1
    assert "pellucid: standard input, line 2 has " in done.err


def test_what_goes_wrong_does_not_steer_a_terminal(models: Path, tmp_path: Path) -> None:
    """Error messages quote files, and so do the lines about skipped rows."""
    pty = pytest.importorskip("pty")
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "glass"}\n{"text\\u001b\\u0007": "b"}\n')
    for more in ((), ("--skip-bad-rows",)):
        above, below = pty.openpty()
        typed = [sys.executable, "-m", "pellucid", "run", "sentiment-analysis", "-m", "feel", path, "-c", "text", *more]
        with subprocess.Popen(typed, cwd=models, stdout=subprocess.DEVNULL, stderr=below) as running:
            os.close(below)
            said = os.read(above, 4096)
            running.wait(60)
        os.close(above)
        assert b"\x1b" not in said and b"\x07" not in said and "did you mean text\ufffd\ufffd".encode() in said


def test_what_goes_wrong_does_not_steer_the_terminal_of_who_reads_it_from_a_pipe_either(command: Pellucid) -> None:
    done = command("ner", "a", "-o", "no\x1b[2J\u202e/there")
    assert done.code == 3 and "cannot write no\ufffd[2J\ufffd/there: " in done.err and "\x1b" not in done.err


def test_what_was_not_read_is_told(command: Pellucid) -> None:
    done = command("ner", "-m", "tags", "a " * 90, "b", "--long", "truncate", "--max-length", "9")
    assert (done.code, done.err) == (0, "not read: 83 tokens (texts that were cut: 1)\n")


def test_a_reader_that_goes_away_is_no_error(models: Path, tmp_path: Path) -> None:
    asked = f"{sys.executable} -m pellucid run sentiment-analysis -m feel {long_file(tmp_path)}"
    line = f"set -o pipefail; {asked} | head -n 2"
    done = subprocess.run(["bash", "-c", line], cwd=models, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 2)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_task_by_the_name_that_training_has_for_it_is_told_the_right_one(command: Pellucid) -> None:
    done = command("classify", "hi")
    assert done.code == 2 and "unknown task 'classify' (did you mean text-classification?)" in done.err


def test_without_a_task_all_are_listed(command: Pellucid) -> None:
    listed = command().out.splitlines()
    assert [line.split()[0] for line in listed] == [one.name for one in TASKS]
    wrong = command("nr", "x")
    assert wrong.code == 2 and wrong.out == ""
    assert wrong.err.splitlines()[-1].startswith("pellucid: unknown task 'nr' (did you mean ner?); see ")
    assert len(wrong.err.splitlines()) == len(TASKS) + 1
    assert "unknown task 'a: b'; see " in command("a: b", "x").err


def test_help_is_without_torch() -> None:
    code = (
        "import sys\nfrom pellucid.cli.app import app\n"
        "for line in (['run', '--help'], ['run']):\n    app.main(line, standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'tokenizers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


WRONG = {
    "no text": (["ner"], 2, "was given no text"),
    "no context": (["question-answering", "Who?"], 2, "add --question TEXT or --context TEXT"),
    "no second": (["sentence-similarity", "a"], 2, "add the second by --pair TEXT"),
    "no query": (["text-ranking", "a"], 2, "add --query"),
    "a pair for one": (["ner", "a", "--pair", "b"], 2, "one text at a time"),
    "no value": (["ner", "a", "-O", "stride"], 2, "NAME=VALUE"),
    "no file": (["ner", "none.csv", "--column", "a"], 3, "none.csv"),
    "a column of nothing": (["ner", "a", "b", "--column", "a"], 2, "one FILE"),
    "no file of text": (["ner", "none.txt"], 3, "there is no file 'none.txt'"),
    "no table": (["ner", "none.csv"], 3, "there is no file 'none.csv'"),
    "a folder": (["ner", "."], 3, "'.' is a folder, expected a file"),
    "a device": (["ner", "/dev/null"], 3, "'/dev/null' is a pipe or a device, expected a file: give what it holds on"),
    "a folder among texts": (["ner", "a", "."], 3, "'.' is a folder"),
    "a file among texts": (["ner", "a", __file__], 3, "is a file, which is read alone, and 2 things were given"),
    "a column of what is whole": (["ner", __file__, "-c", "a", "--whole"], 2, "--whole and --column do not go"),
    "whole texts": (["ner", "a", "--whole"], 2, "neither was given"),
    "two seconds": (["text-classification", "a", "--pair", "b", "--pair-column", "c"], 2, "both say the second"),
    "three of a pair": (["question-answering", "a", "--question", "b", "--pair", "c"], 2, "a pair has two texts"),
    "a pair of documents": (["text-ranking", "a", "--query", "b", "--pair", "c"], 2, "leave out --pair"),
    "said twice": (["ner", "a", "--stride", "3", "-O", "stride=4"], 2, "stride is given twice"),
    "said twice otherwise": (
        ["text-classification", "a", "--pair", "b", "--context", "c"],
        2,
        "--context is given twice",
    ),
    "an option of its own": (["ner", "a", "-O", "output=b"], 2, "output is not set by -O: write --output"),
    "an argument": (["ner", "a", "-O", "items=b"], 2, "items is not set by -O: write TEXT"),
    "rows of a word": (["ner", "a", "--skip-bad-rows"], 2, "--skip-bad-rows is for the rows of a FILE"),
    "labels of another task": (["ner", "a", "-m", "tags", "--labels", "a,b"], 3, "has no option '--labels'"),
    "no such option": (["ner", "a", "-m", "tags", "-O", "strid=3"], 3, "did you mean stride"),
    "a value that cannot be": (["ner", "a", "-m", "tags", "--long", "windows", "--stride", "-3"], 3, "stride"),
    "stretches of nothing": (["ner", "a", "--stride", "3"], 2, "--stride is for texts that are read in windows"),
    "no such place": (["ner", "a", "-o", "no/such.jsonl"], 3, "there is no folder 'no'"),
    "another head": (["ner", "a", "-m", "feel"], 3, "sequence-classification"),
    "no such model": (["ner", "a", "-m", "./nowhere"], 3, "./nowhere"),
    "too long": (["ner", "a " * 90, "-m", "tags"], 3, "at once: pass --long windows to read all of it"),
    "the text is too long": (["ner", "a " * 90, "-m", "tags"], 3, "pellucid: the text has"),
    "one of two is too long": (["ner", "a", "a " * 90, "-m", "tags"], 3, "pellucid: text 2 of 2 has"),
    "a file called -": (
        ["ner", "a", "-o", "-"],
        2,
        "--output is -, which is not the name of a file: leave --output out",
    ),
    "a column of no name": (["ner", "I love", "-c", ""], 3, "there is no file 'I love'"),
    "a second column of no name": (["sentence-similarity", "I love", "--pair-column", ""], 3, "no file 'I love'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence_and_a_code(command: Pellucid, name: str) -> None:
    arguments, code, fragment = WRONG[name]
    done = command(*arguments)
    assert (done.code, done.out) == (code, ""), done.err
    assert fragment in done.err and len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize(("task", "name"), [("text-generation", "decoder"), ("text2text-generation", "pair")])
def test_top_k_of_a_task_that_writes_means_to_draw(
    command: Pellucid, task: str, name: str, minilm: pellucid.Model, tmp_path: Path
) -> None:
    """As in `pellucid generate`; it used to be refused without `-O do_sample=true`."""
    folder = saved(name, tmp_path, minilm)
    asked = (task, "-m", str(folder), "a work", "-O", "max_new_tokens=5", "--json")
    wanted = pellucid.pipeline(task, folder)("a work", max_new_tokens=5, top_k=3, do_sample=True, seed=4).whole()
    assert rows(command(*asked, "--top-k", "3", "-O", "seed=4")) == [rounded(wanted)]
    done = command(*asked, "--top-k", "3", "-O", "do_sample=false")
    assert done.code == 3 and "--top-k is 3 and nothing is sampled" in done.err
    done = command(*asked, "--top-k", "3", "-O", "num_beams=2")
    assert done.code == 2 and "--top-k samples, and -O num_beams=2 does not" in done.err
    done = command(*asked, "--top-k", "3", "-O", "num_beams=2", "-O", "do_sample=true")
    assert done.code == 3 and "-O do_sample=true and -O num_beams=2 do not go together" in done.err
