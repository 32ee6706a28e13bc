"""`pellucid look`: pages, drawings and a server, for models of every kind."""

import base64
import errno
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.cli.app import app
from pellucid.cli.look import _stem
from pellucid.files import MAX_NAME_BYTES, write_atomically
from tests.trace.small_models import small_model

SMOLLM = "HuggingFaceTB/SmolLM2-135M-Instruct"


def run_look(*arguments: str) -> None:
    app.main(["look", *arguments], standalone_mode=False)


def manifest_of(page: Path) -> dict[str, Any]:
    match = re.search(r'class="pellucid-manifest">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    return json.loads(match[1])


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_requested_view_layer_and_heads_are_shown_first(
    working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_look("time flies", "--view", "matrix", "--layer", "4", "--head", "3", "--head", "7", "--precision", "compact")
    assert capsys.readouterr().out == "time-flies.html\n"
    manifest = manifest_of(working_folder / "time-flies.html")
    shown = {"view": "matrix", "layer": 4, "heads": [3, 7]}
    assert manifest["show"] | shown == manifest["show"]
    assert all(entry["weights"] and not entry["query"] for entry in manifest["attentions"])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("हिन्दी, भाषा!", "हिन्दी-भाषा"),
        ("Cafe\u0301 snake_case", "cafe\u0301-snake_case"),
        ("../a\u202eb/c", "a-b-c"),
        ("👍🏽", "attention"),
        ("𝒜" * 70, "𝒜" * (MAX_NAME_BYTES // 4)),
    ],
)
def test_page_is_named_after_its_text(text: str, name: str) -> None:
    assert _stem(text) == name


def test_unnamed_page_does_not_overwrite_a_file(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (working_folder / "time.html").write_text("mine")
    (working_folder / "time-2.html").symlink_to("nowhere")
    for expected in ("time-3.html", "time-4.html"):
        run_look("time")
        assert capsys.readouterr().out == f"{expected}\n"
    assert (working_folder / "time.html").read_text() == "mine" and len(list(working_folder.iterdir())) == 4
    run_look("time", "-o", "time.html")
    assert manifest_of(working_folder / "time.html")["texts"] == ["time"]


@pytest.mark.parametrize("links", [True, False])
def test_page_written_meanwhile_is_not_overwritten(
    working_folder: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on file systems without hard links."""

    def no_links(*names: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    page = Path("page.html")
    assert write_atomically(page, lambda file: file.write(b"first"), must_be_new=True) == page
    with pytest.raises(FileExistsError):
        write_atomically(page, lambda file: file.write(b"second"), must_be_new=True)
    assert page.read_bytes() == b"first" and [path.name for path in working_folder.iterdir()] == ["page.html"]


def test_drawings_instead_of_a_page(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_look("time flies", "--svg", "flies.svg", "--png", "flies.png", "--view", "matrix")
    assert capsys.readouterr().out.split() == ["flies.svg", "flies.png"]
    assert {path.name for path in working_folder.iterdir()} == {"flies.svg", "flies.png"}
    cells = [cell for group in ET.parse("flies.svg").getroot().iter("{http://www.w3.org/2000/svg}g") for cell in group]
    assert len(cells) == 16 and (working_folder / "flies.png").read_bytes().startswith(b"\x89PNG")
    run_look("time flies", "--svg", "flies.svg", "-o", "flies.html")
    assert capsys.readouterr().out.split() == ["flies.svg", "flies.html"]


def test_page_of_a_decoder_has_a_lens(working_folder: Path) -> None:
    run_look("The capital of France is", "-m", SMOLLM, "--lens", "--view", "lens", "-o", "page.html")
    manifest = manifest_of(working_folder / "page.html")
    assert manifest["show"]["view"] == "lens" and manifest["lens"]["kind"] == "next token"
    assert len(manifest["attentions"]) == 30 and manifest["attentions"][0]["recipe"]["mask"] == "causal"


def test_page_of_an_encoder_decoder_has_its_generated_text(working_folder: Path, minilm: "pellucid.Model") -> None:
    small_model("t5", minilm).save(working_folder / "t5")
    run_look("time flies like an arrow", "-m", "./t5", "--target", "fruit flies", "-o", "page.html")
    manifest = manifest_of(working_folder / "page.html")
    assert [sequence["name"] for sequence in manifest["sequences"]] == ["encoder", "decoder"]
    assert manifest["texts"] == ["time flies like an arrow", "fruit flies"]
    assert [token["text"] for token in manifest["sequences"][1]["tokens"]][-2:] == ["fruit", "flies"]
    assert {entry["kind"] for entry in manifest["attentions"]} == {"self", "cross"}


def test_a_long_text_is_recorded_without_its_weights(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.trace.long_text.MAX_WEIGHT_BYTES", 1000)
    run_look("time flies", "-o", "page.html")
    entry = manifest_of(working_folder / "page.html")["attentions"][0]
    assert entry["query"] and entry["thumb"] and entry["max_error"] < 1e-5


def test_max_length_truncates_the_text(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_look("word " * 30, "--max-length", "12", "-o", "page.html")
    (read,) = manifest_of(working_folder / "page.html")["sequences"]
    assert (len(read["tokens"]), read["cut"]) == (12, 20)
    assert "the text was cut, 20 more tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["look", "a", "-m", "nowhere", "--png", "a.png"], ["index", "evaluate", "nowhere", "--plot", "a.png"]]
)
def test_png_without_its_library_is_refused_before_loading_a_model(
    working_folder: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.view.picture.can_render", lambda: False)
    with pytest.raises(pellucid.errors.ResourceError, match=r"pellucid\[draw\]"):
        app.main(arguments, standalone_mode=False)


HOSTILE = {"script": "</script><script>alert(1)</script>", "long": "x" * 2000, "one": "a", "signs": "\x1b[31mred \x07"}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_are_drawn(working_folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_look(HOSTILE[kind], "-o", "page.html", "--svg", "page.svg")
    page = (working_folder / "page.html").read_text(encoding="utf-8")
    assert "</script><script>alert" not in page and manifest_of(working_folder / "page.html")["texts"] == [
        HOSTILE[kind]
    ]
    ET.parse("page.svg")
    message = capsys.readouterr().err
    assert "\x1b" not in message and "\x07" not in message


ERRORS = {
    "two ways": (["x", "--serve", "-o", "page.html"], 2, "--serve writes no file"),
    "two ways drawn": (["x", "--serve", "--svg", "x.svg"], 2, "--serve writes no file"),
    "a text of spaces": (["  "], 3, "TEXT is empty: there is nothing to look at"),
    "nothing on standard input": (["-"], 3, "standard input is empty: there is nothing to look at"),
    "a port for nothing": (["x", "--port", "8000"], 2, "--port is the port of --serve"),
    "nothing to open": (["x", "--svg", "x.svg", "--open"], 2, "--open is for a page"),
    "no such view": (["x", "--view", "matrx"], 2, "matrx"),
    "no such port": (["x", "--serve", "--port", "70000"], 3, "ports go from 1 to 65535"),
    "no such layer": (["x", "--layer", "6"], 3, "--layer 6 does not exist: this model has layers 0 to 5"),
    "no layer at all": (["x", "--layer", "-1"], 3, "--layer -1 does not exist"),
    "no such head": (["x", "--head", "0", "--head", "12"], 3, "--head 12 does not exist: this model has heads 0 to 11"),
    "no decoder": (["x", "--target", "y"], 3, "has no decoder beside it"),
    "no lens": (["x", "--lens"], 3, "lens"),
    "no text": ([""], 3, "TEXT is empty"),
    "a page as a picture": (["x", "-o", "x.png"], 3, "expected a name that ends in .html"),
    "a picture as another": (["x", "--png", "x.jpg"], 3, "expected a name that ends in .png"),
    "no place": (["x", "--png", "no/such/x.png"], 3, "cannot write"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_contradicting_options_are_one_sentence(
    working_folder: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pellucid.cli.errors import run

    arguments, code, fragment = ERRORS[name]
    monkeypatch.setattr(sys, "argv", ["pellucid", "look", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    exit_code = run(app)
    message = capsys.readouterr().err
    assert (exit_code, fragment in message) == (code, True), message
    assert message.count("pellucid: ") == 1


def test_port_in_use_is_reported_before_loading_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(pellucid.InputError) as caught:
        run_look("x", "-m", "./nowhere", "--serve", "--port", str(taken.getsockname()[1]))
    assert "cannot be used: Address already in use" in str(caught.value)


def test_page_is_served_until_ctrl_c(working_folder: Path) -> None:
    command = [sys.executable, "-m", "pellucid", "look", "time flies", "--serve"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | {"NO_COLOR": "1"}, **pipes) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address)
        with urllib.request.urlopen(address) as page:
            (packed,) = re.findall(rb'class="pellucid-program">([^<]*)<', page.read())
        program = zlib.decompress(base64.b64decode(packed))
        with urllib.request.urlopen(f"{address}block/layers.0.attention.query") as block:
            assert len(block.read()) == 12 * 4 * 32 * 4
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(re.sub(r"/[\w-]{32}/", "/wrong/", address))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert b"served.mountServed" in program
    assert (process.returncode, output) == (0, "") and "Ctrl-C ends it" in errors and "Traceback" not in errors
    assert not list(working_folder.iterdir())
