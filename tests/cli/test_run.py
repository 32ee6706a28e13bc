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
from tests.cli.command_runner import CommandResult, RunCommand, command_runner
from tests.generation.writers import one_thread
from tests.tasks.task_models import HEADS, saved_folder


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, minilm: pellucid.Model) -> Path:
    """A folder of small models with each head, which answer nonsense with a real tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    for name in HEADS:
        saved_folder(name, folder, minilm)
    return folder


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], models: Path) -> RunCommand:
    """Runs `pellucid run` in this process; models of `HEADS` are named by their short names."""
    monkeypatch.chdir(models)
    return functools.partial(command_runner(monkeypatch, capsys), "run")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text('id;text;more\n1;I love glass;NA\n2;"two\nlines";x\n', encoding="utf-8")
    return path


def json_rows(result: CommandResult) -> list[Any]:
    """The JSON lines, rounded, since the last digits of a number depend on its batch."""
    assert result.code == 0, result.err
    return [rounded(json.loads(line)) for line in result.out.splitlines()]


def rounded(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [rounded(value) for value in data]
    return pytest.approx(data, abs=1e-5) if isinstance(data, float) else data


# -- what is typed -----------------------------------------------------------------------------------------------------


def test_texts_are_read_from_arguments_files_and_stdin(
    command: RunCommand, models: Path, table: Path, tmp_path: Path
) -> None:
    pipe = pellucid.pipeline("sentiment-analysis", models / "feel")
    expected = [answer.whole() for answer in pipe(["I love glass", "two\nlines"])]
    arguments = ("sentiment-analysis", "-m", "feel", "--json")
    assert json_rows(command(*arguments, "I love glass", "two\nlines")) == expected
    result = command(*arguments, str(table), "--column", "text")
    assert json_rows(result) == expected
    assert result.err == "rows.csv: its fields are separated by a semicolon\n"
    lines = tmp_path / "lines.txt"
    lines.write_text("I love glass\r\nhate\n")
    expected[1:] = [pipe("hate").whole()]
    assert json_rows(command(*arguments, str(lines))) == expected
    assert json_rows(command(*arguments, "-", stdin="I love glass\nhate\n")) == expected
    objects = tmp_path / "rows.jsonl"
    objects.write_text('{"text": "I love glass"}\n{"text": "hate", "id": 5}\n')
    assert json_rows(command(*arguments, str(objects), "-c", "text")) == expected
    assert json_rows(command(*arguments, str(lines), "--whole")) == [pipe("I love glass\r\nhate").whole()]
    assert json_rows(command(*arguments, "-", "--whole", stdin="a\nb\n")) == [pipe("a\nb").whole()]


def test_file_in_another_encoding(command: RunCommand, models: Path, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_bytes("naïve\n".encode("latin-1"))
    arguments = ("sentiment-analysis", "-m", "feel", str(tmp_path / "old.txt"), "--json")
    result = command(*arguments)
    assert (result.code, result.out) == (3, "") and "line 1, byte 0xef): try --encoding latin-1" in result.err
    pipe = pellucid.pipeline("sentiment-analysis", models / "feel")
    assert json_rows(command(*arguments, "--encoding", "latin-1")) == [pipe("naïve").whole()]
    assert command("sentiment-analysis", "-m", "feel", "-", stdin="").out == ""


@pytest.mark.parametrize("named", [["--column", "text"], ["--whole"]])
def test_input_file_is_not_overwritten(command: RunCommand, tmp_path: Path, named: list[str]) -> None:
    (tmp_path / "rows.csv").write_text("text\nI love glass\n")
    (tmp_path / "link").symlink_to("rows.csv")
    for output in ("rows.csv", "link"):
        result = command("ner", str(tmp_path / "rows.csv"), *named, "-o", str(tmp_path / output))
        assert (result.code, result.out) == (2, "") and "is the FILE that is read" in result.err
    assert (tmp_path / "rows.csv").read_text() == "text\nI love glass\n"


def test_lone_surrogates_are_escaped_on_stdout(command: RunCommand, tmp_path: Path) -> None:
    halves = tmp_path / "halves.jsonl"
    halves.write_text('{"text": "caf\\udce9"}\n{"text": "Ada"}\n')
    result = command("sentiment-analysis", "-m", "feel", str(halves), "--column", "text")
    assert (result.code, result.err) == (0, "") and "caf\\udce9" in result.out and "Ada" in result.out


def test_pairs_and_questions_are_read_from_arguments_and_columns(
    command: RunCommand, models: Path, table: Path
) -> None:
    feel, reading_arguments = (
        pellucid.pipeline("text-classification", models / "feel"),
        ("question-answering", "-m", "spans"),
    )
    pairs = [feel(("I love glass", "NA")).whole(), feel(("two\nlines", "x")).whole()]
    arguments = ("text-classification", "-m", "feel", "--json")
    assert json_rows(command(*arguments, str(table), "--column", "text", "--pair-column", "more")) == pairs
    assert json_rows(command(*arguments, "I love glass", "--pair", "NA")) == pairs[:1]
    pipe = pellucid.pipeline("question-answering", models / "spans")
    expected = pipe(question="Who came?", context="Ada came at five.").whole()
    for question in (
        ("Who came?", "--context", "Ada came at five."),
        ("--question", "Who came?", "Ada came at five."),
        ("--question", "Who came?", "--context", "Ada came at five."),
    ):
        assert json_rows(command(*reading_arguments, *question, "--json")) == [expected]
    table.write_text("question,context\nWho came?,Ada came at five.\n")
    columns = ("--column", "question", "--context-column", "context")
    assert json_rows(command(*reading_arguments, str(table), *columns, "--json")) == [expected]
    assert json_rows(
        command(*reading_arguments, str(table), "--question", "Who came?", "--context-column", "context", "--json")
    ) == [expected]


def test_empty_texts_are_counted(command: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("It ended 2:1.\n\n   \nart\n")
    for options in ((), ("--json",)):
        result = command("ner", "-m", "tags", str(tmp_path / "a.txt"), *options)
        assert (result.code, result.err) == (0, "empty texts: 2 of 4 (the first is text 2)\n")


def test_options_are_passed_by_name(command: RunCommand, models: Path) -> None:
    classify = pellucid.pipeline("zero-shot-classification", models / "nli")
    arguments = ("zero-shot-classification", "-m", "nli", "It ended 2:1.", "--labels", "sport, art", "--json")
    assert json_rows(command(*arguments)) == [classify("It ended 2:1.", candidate_labels=["sport", "art"]).whole()]
    options = {"multi_label": True, "hypothesis_template": "About {}."}
    option_arguments = ("-O", "multi_label=true", "-O", "hypothesis-template=About {}.")
    assert json_rows(command(*arguments, *option_arguments)) == [
        classify("It ended 2:1.", candidate_labels=["sport", "art"], **options).whole()
    ]
    deep = "[" * 60_000 + "{}"  # not valid JSON, so a text
    too_long = command(*arguments, "-O", f"hypothesis-template={deep}")
    assert too_long.code == 3 and "leaves no room" in too_long.err
    pipe = pellucid.pipeline("token-classification", models / "tags")
    cut = json_rows(command("ner", "-m", "tags", "a " * 90, "--long", "truncate", "--max-length", "9", "--json"))
    assert cut == [pipe("a " * 90, long="truncate", max_length=9).whole()]
    for windows in (("--long", "windows"), ("-O", "long=windows")):
        result = command("ner", "-m", "tags", "a " * 90, *windows, "--max-length", "9", "--stride", "2", "--json")
        assert json_rows(result) == [pipe("a " * 90, long="windows", max_length=9, stride=2).whole()]


def test_help_states_the_default_of_long(command: RunCommand) -> None:
    assert {name.task_class().long for name in TASKS} == {"error"}
    help_text = " ".join(command("run", "--help").out.replace("│", " ").split())
    assert "[default: error]" in help_text and "question-answering: windows" not in help_text


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_answers_are_printed_as_lines(command: RunCommand, models: Path) -> None:
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
    for three in (("--top-k", "3"), ("-O", "top_k=3")):
        every = command("sentiment-analysis", "-m", "feel", "glass", *three).out.splitlines()
        assert [line.split("  ")[0] for line in every] == [one["label"] for one in found.all]
    span = pellucid.pipeline("question-answering", models / "spans")(question="Who?", context="Ada came")
    line = command("question-answering", "-m", "spans", "Who?", "--context", "Ada came").out
    assert line == f"{span['answer']}  {span['score']:.1%}  {span['start']}-{span['end']}\n"
    words = pellucid.pipeline("fill-mask", models / "mask", top_k=2)("a [MASK] of glass")
    lines = command("fill-mask", "-m", "mask", "a [MASK] of glass", "--top-k", "2").out.splitlines()
    assert [line.split()[0] for line in lines] == [one["token_str"] for one in words]
    assert lines[0].endswith(words[0]["sequence"])
    ranking = ("text-ranking", "-m", "body", "--query", "a", "glass", "a house")
    ranked = pellucid.pipeline("text-ranking", models / "body")("a", ["glass", "a house"])
    rows = [[str(one["corpus_id"]), f"{one['score']:.4f}", one["text"]] for one in ranked]
    assert [line.split(maxsplit=2) for line in command(*ranking).out.splitlines()] == rows
    without_texts = command(*ranking, "-O", "return_documents=false").out.splitlines()
    assert [line.split() for line in without_texts] == [row[:2] for row in rows]


def test_entities_are_printed_with_their_offsets(command: RunCommand, models: Path) -> None:
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


def test_why_prints_the_strongest_tokens(command: RunCommand, models: Path) -> None:
    found = pellucid.pipeline("sentiment-analysis", models / "feel")("I love glass", explain=True)
    lines = command("sentiment-analysis", "-m", "feel", "I love glass", "--why").out.splitlines()
    assert lines[1].startswith(f"why: {found.why.target}  ({found.why.method}: ")
    strongest = max(range(len(found.why.tokens)), key=lambda i: abs(found.why.scores[i]))
    assert lines[2].startswith(f"{found.why.tokens[strongest]} {found.why.scores[strongest]:+.2g}   ")
    (whole,) = json_rows(command("sentiment-analysis", "-m", "feel", "I love glass", "--why", "--json"))
    assert [token for token, _ in whole["why"]["tokens"]] == list(found.why.tokens)


@pytest.mark.parametrize("plain", [True, False])
def test_terminal_output_has_colours_and_no_control_characters(models: Path, plain: bool) -> None:
    """On a real terminal; control characters in a text are displayed and have no effect."""
    pty = pytest.importorskip("pty")
    controller, terminal = pty.openpty()
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
    with subprocess.Popen(command, cwd=models, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        output = b""
        try:
            while block := os.read(controller, 4096):
                output += block
        except OSError:  # the end of a terminal on Linux
            process.wait(60)
    os.close(controller)
    assert process.returncode == 0, output
    assert b"\x1b[2J" not in output and "a\ufffd[2Jb\ufffdc".encode() in output
    assert (b"\x1b[32m" in output or b"\x1b[33m" in output or b"\x1b[37;4" in output) != plain


# -- files and streams -------------------------------------------------------------------------------------------------


def test_output_file_is_written_atomically(command: RunCommand, table: Path, tmp_path: Path) -> None:
    target = tmp_path / "answers.jsonl"
    arguments = ("sentiment-analysis", "-m", "feel", str(table), "--column", "text", "-o", str(target))
    result = command(*arguments)
    assert (result.code, result.out) == (0, f"{target}\n")
    before = target.read_bytes()
    assert [json.loads(line)["label"] for line in before.splitlines()]
    table.write_text(table.read_text() + "3;too;many;fields\n")
    result = command(*arguments)
    assert result.code == 3 and "line 5: 4 fields, expected 3" in result.err
    assert target.read_bytes() == before and sorted(tmp_path.iterdir()) == [target, table]
    result = command(*arguments, "--skip-bad-rows")
    assert result.code == 0 and result.err.endswith("rows left out: 1 (line 5: 4 fields, expected 3)\n")
    assert target.read_bytes() == before


def test_rows_without_a_text_are_skipped_and_listed(command: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "glass"}\n{"txt": "house"}\n{"text": null}\n{"text": "hate", "id": 5}\n')
    arguments = ("sentiment-analysis", "-m", "feel", path, "-c", "text")
    result = command(*arguments)
    assert result.code == 3 and "line 2: no 'text' (did you mean txt?)" in result.err
    result = command(*arguments, "--skip-bad-rows")
    assert (result.code, [line.split()[-1] for line in result.out.splitlines()]) == (0, ["glass", "hate"])
    left_out = "line 2: no 'text' (did you mean txt?); line 3: 'text' is NoneType, expected a string"
    assert result.err == f"rows left out: 2 ({left_out})\n"


@pytest.mark.parametrize(
    ("name", "text", "location"),
    [
        ("rows.csv", 'id,text\n1,"a\nb"\n2,{long}\n', "line 4"),
        ("rows.jsonl", '{{"text": "a"}}\n\n{{"text": "{long}"}}\n', "line 3"),
        ("rows.txt", "a\n{long}\nb\n", "line 2"),
    ],
)
def test_unanswerable_row_is_named_by_its_line(
    command: RunCommand, tmp_path: Path, name: str, text: str, location: str
) -> None:
    path = tmp_path / name
    path.write_text(text.format(long="glass " * 90), encoding="utf-8")
    column = [] if name.endswith("txt") else ["-c", "text"]
    result = command("ner", "-m", "tags", path, *column)
    assert (result.code, result.out) == (3, "") and f"{path}, {location} has " in result.err, result.err


def test_text_that_resembles_a_file_name_is_reported(
    command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reviews.txt").write_text("glass\n")
    arguments = ("sentiment-analysis", "-m", "feel")
    assert "'reviews.text' (did you mean reviews.txt?)" in command(*arguments, tmp_path / "reviews.text").err.replace(
        str(tmp_path) + os.sep, ""
    )
    for text in ("amazon.com", "reviews.cvs", "/no/such/path", "./notes"):
        result = command(*arguments, text)
        assert (result.code, result.err) == (0, f"read as text, for there is no such file: {text}\n") and result.out
    for option, task in (("--pair", "sentence-similarity"), ("--query", "text-ranking")):
        message = "read as text, and not as the name of a file: notes.txt\n"
        assert command(task, "-m", "all-MiniLM-L6-v2", option, "notes.txt", "a", "b").err == message
    stderr = command("sentence-similarity", "-m", "./nowhere", "--pair", "notes.txt", "a").err
    assert stderr.count("not as the name of a file") == 1  # and not again with the error
    for text in ("3.14", "and/or", "ada@example.org", "https://example.org/robots.txt", "I wrote notes.txt"):
        assert command(*arguments, text).err == ""
    (tmp_path / "reviews").write_text("glass\n")
    message = f"read as text, though a file is called so: {tmp_path / 'reviews'}; its lines: on standard input (-)\n"
    assert command(*arguments, tmp_path / "reviews").err == message


def test_empty_column_name_is_refused(command: RunCommand, table: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("a\nb\n")
    messages = {
        table: "has no column ''; its columns: id, text, more\n",
        tmp_path / "plain.txt": "so it has no column ''",
    }
    for path, sentence in messages.items():
        result = command("sentiment-analysis", "-m", "feel", path, "-c", "")
        assert (result.code, result.out) == (3, "") and path.name in result.err and sentence in result.err


def test_json_file_is_refused(command: RunCommand, tmp_path: Path) -> None:
    """Each line used to be answered as a text: `[`, `{`, `"text": ...`."""
    path = tmp_path / "reviews.json"
    path.write_text('[\n {"text": "glass"}\n]\n')
    result = command("sentiment-analysis", "-m", "feel", path)
    assert result.code and not result.out
    assert result.err.endswith(
        "is JSON, whose lines are not texts: write it as .jsonl, one object with its text a line\n"
    )


def long_file(folder: Path) -> Path:
    path = folder / "long.txt"
    path.write_text("".join(f"line {i} of a long file\n" for i in range(20_000)))
    return path


def test_answers_are_printed_while_reading_and_kept_on_ctrl_c(models: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pellucid", "run", "sentiment-analysis", "-m", "feel", str(long_file(tmp_path))]
    with subprocess.Popen(command, cwd=models, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline()
        assert process.poll() is None, "the first answer came while the rest was read"
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=60)
    assert first.endswith("line 0 of a long file\n")
    assert process.returncode == 130 and stderr.splitlines()[-1] == "pellucid: interrupted"
    assert rest.count("\n") < 20_000


def test_typed_line_is_answered_before_the_next(models: Path) -> None:
    pty = pytest.importorskip("pty")
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "pellucid", "run", "sentiment-analysis", "-m", "feel", "-"]
    with subprocess.Popen(
        command, cwd=models, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        os.close(terminal)
        assert process.stdout is not None
        for word in (b"glass", b"house"):
            os.write(controller, word + b"\n")
            assert process.stdout.readline().rstrip().endswith(b"%  " + word)
        os.write(controller, b"\x04")
        assert process.wait(60) == 0
    os.close(controller)


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_unanswerable_typed_line_is_named_by_its_number(command: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "TextIOWrapper", _Terminal)
    result = command("ner", "-m", "tags", "-", "--json", stdin="glass\n" + "a " * 90 + "\n")
    assert result.code == 3 and len(result.out.splitlines()) == 1
    assert "pellucid: standard input, line 2 has " in result.err


def test_error_messages_have_no_control_characters_on_a_terminal(models: Path, tmp_path: Path) -> None:
    """Error messages quote files, and so do the lines about skipped rows."""
    pty = pytest.importorskip("pty")
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "glass"}\n{"text\\u001b\\u0007": "b"}\n')
    for more in ((), ("--skip-bad-rows",)):
        controller, terminal = pty.openpty()
        command_line = [
            sys.executable,
            "-m",
            "pellucid",
            "run",
            "sentiment-analysis",
            "-m",
            "feel",
            path,
            "-c",
            "text",
            *more,
        ]
        with subprocess.Popen(command_line, cwd=models, stdout=subprocess.DEVNULL, stderr=terminal) as process:
            os.close(terminal)
            output = os.read(controller, 4096)
            process.wait(60)
        os.close(controller)
        assert b"\x1b" not in output and b"\x07" not in output and rb"did you mean text\x1b\x07" in output


def test_error_messages_have_no_control_characters_in_a_pipe(command: RunCommand) -> None:
    result = command("ner", "a", "-o", "no\x1b[2J\u202e/there")
    assert result.code == 3 and r"cannot write no\x1b[2J\u202e/there: " in result.err and "\x1b" not in result.err


def test_truncation_is_reported(command: RunCommand) -> None:
    result = command("ner", "-m", "tags", "a " * 90, "b", "--long", "truncate", "--max-length", "9")
    assert (result.code, result.err) == (0, "not read: 83 tokens (texts that were cut: 1)\n")


def test_closed_pipe_is_no_error(models: Path, tmp_path: Path) -> None:
    command_line = f"{sys.executable} -m pellucid run sentiment-analysis -m feel {long_file(tmp_path)}"
    line = f"set -o pipefail; {command_line} | head -n 2"
    result = subprocess.run(["bash", "-c", line], cwd=models, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr, result.stdout.count("\n")) == (0, "", 2)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_name_of_a_training_task_suggests_the_task(command: RunCommand) -> None:
    result = command("classify", "hi")
    assert result.code == 2 and "unknown task 'classify' (did you mean text-classification?)" in result.err


def test_tasks_are_listed_without_a_task(command: RunCommand) -> None:
    listed = command().out.splitlines()
    assert [line.split()[0] for line in listed] == [one.name for one in TASKS]
    wrong = command("nr", "x")
    assert wrong.code == 2 and wrong.out == ""
    assert wrong.err.splitlines()[-1].startswith("pellucid: unknown task 'nr' (did you mean ner?); see ")
    assert len(wrong.err.splitlines()) == len(TASKS) + 1
    assert "unknown task 'a: b'; see " in command("a: b", "x").err


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom pellucid.cli.app import app\n"
        "for line in (['run', '--help'], ['run']):\n    app.main(line, standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'tokenizers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


ERRORS = {
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
    "given twice": (["ner", "a", "--stride", "3", "-O", "stride=4"], 2, "stride is given twice"),
    "given under two names": (
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


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_sentence_and_an_exit_code(command: RunCommand, name: str) -> None:
    arguments, code, fragment = ERRORS[name]
    result = command(*arguments)
    assert (result.code, result.out) == (code, ""), result.err
    assert fragment in result.err and len(result.err.strip().splitlines()) == 1


@pytest.mark.parametrize(("task", "name"), [("text-generation", "decoder"), ("text2text-generation", "pair")])
def test_top_k_of_a_generating_task_samples(
    command: RunCommand, task: str, name: str, minilm: pellucid.Model, tmp_path: Path
) -> None:
    """As in `pellucid generate`; it used to be refused without `-O do_sample=true`."""
    folder = saved_folder(name, tmp_path, minilm)
    arguments = (task, "-m", str(folder), "a work", "-O", "max_new_tokens=5", "--json")
    expected = pellucid.pipeline(task, folder)("a work", max_new_tokens=5, top_k=3, do_sample=True, seed=4).whole()
    assert json_rows(command(*arguments, "--top-k", "3", "-O", "seed=4")) == [rounded(expected)]
    result = command(*arguments, "--top-k", "3", "-O", "do_sample=false")
    assert result.code == 3 and "--top-k is 3 and nothing is sampled" in result.err
    result = command(*arguments, "--top-k", "3", "-O", "num_beams=2")
    assert result.code == 2 and "--top-k samples, and -O num_beams=2 does not" in result.err
    result = command(*arguments, "--top-k", "3", "-O", "num_beams=2", "-O", "do_sample=true")
    assert result.code == 3 and "-O do_sample=true and -O num_beams=2 do not go together" in result.err
