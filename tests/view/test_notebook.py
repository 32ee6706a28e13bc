"""A view in a notebook: what a cell contains, and that it is drawn in notebook viewers."""

import base64
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page
from rich.cells import cell_len

import pellucid
from pellucid.cli import output
from pellucid.trace.explain.table import cell_width, table
from pellucid.view.notebook import HEIGHT, MAX_PAGE_CHARACTERS, iframe_html, link_table
from tests.quick import few
from tests.view.page_builder import PageBuilder, plain_page, tokens_of

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def view(minilm: "pellucid.Model") -> "pellucid.view.View":
    return pellucid.view(minilm.trace("time flies like an arrow", "fruit flies like a banana"), layer=0, heads=[8])


@pytest.fixture
def open_html(browser: Browser, tmp_path: Path) -> Any:
    """Opens HTML offline. The host's requests fail; errors and requests of the frame are counted."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True)

    def open_page(page: str) -> Page:
        (tmp_path / "host.html").write_text(page, encoding="utf-8")
        tab = context.new_page()
        tab.set_default_timeout(15_000)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda r: r.frame.parent_frame and errors.append(f"the frame requested {r.url[:80]}"))
        tab.goto((tmp_path / "host.html").as_uri(), wait_until="domcontentloaded")
        return tab

    yield open_page
    context.close()
    assert not [fault for fault in errors if "require" not in fault and "MathJax" not in fault]


def cell_output(view: "pellucid.view.View") -> dict[str, Any]:
    """The output that a kernel sends for the last value of a cell."""
    data, _ = DisplayFormatter().format(view)
    return data


def notebook(*views: "pellucid.view.View") -> nbformat.NotebookNode:
    cells = [
        nbformat.v4.new_code_cell("view", outputs=[nbformat.v4.new_output("execute_result", data=cell_output(view))])
        for view in views
    ]
    created = nbformat.v4.new_notebook(cells=cells)
    nbformat.validate(created)
    return created


def frame_state(tab: Page, index: int = 0) -> dict[str, Any]:
    """The state of the frame: coloured pixels of its canvas, size, toolbar."""
    frame = tab.locator("iframe").nth(index)
    frame.scroll_into_view_if_needed()
    inside = frame.content_frame
    inside.locator(".stage canvas").first.wait_for()
    tab.wait_for_timeout(300)
    painted_pixels = inside.locator(".stage canvas").first.evaluate(
        """(canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
             .filter((value, place) => place % 4 === 3 && value > 0).length"""
    )
    overflow = inside.locator("html").evaluate(
        "(page) => [page.scrollHeight - innerHeight, page.scrollWidth - innerWidth]"
    )
    state = {
        "words": inside.locator(".stage").inner_text(),
        "theme": inside.locator(".pellucid").get_attribute("data-theme"),
    }
    return {"inked": painted_pixels, "box": frame.bounding_box(), "room": overflow, **state}


def test_cell_output_has_a_frame_a_picture_and_a_table(view: "pellucid.view.View") -> None:
    data = cell_output(view)
    assert set(data) == {"text/html", "image/png", "text/plain"}
    assert 'sandbox="allow-scripts allow-downloads"' in data["text/html"] and "<script" not in data["text/html"]
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG\r\n")
    assert "strongest links between words, layer 0, head 8:" in data["text/plain"]


def test_table_has_the_strongest_links(view: "pellucid.view.View", minilm: "pellucid.Model") -> None:
    trace = minilm.trace("time flies like an arrow", "fruit flies like a banana")
    rows = link_table(view.data).splitlines()[2:]
    expected = trace.strongest(0, 8, 8)
    assert len(rows) == 8
    for row, (query, key, weight) in zip(rows, expected):
        assert f"{trace.tokens[query]} ({query})" in row and f"{trace.tokens[key]} ({key})" in row
        assert float(row.split()[-1]) == pytest.approx(weight, abs=1e-4)


def test_table_keeps_the_letters_of_the_text() -> None:
    data = plain_page(3)
    data.manifest["texts"] = ["la col·lecció\nde l'any\x1b"]
    assert link_table(data).startswith("la col·lecció de l'any\u241b\n")
    data.manifest["texts"], data.manifest["sequences"][0]["tokens"][1]["text"] = ["a\u202egnp.exe\u200d"], "b\u2067c"
    assert link_table(data).startswith("a\ufffdgnp.exe\u200d\n") and "b\ufffdc (1)" in link_table(data)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "none: these weights are NaN or infinite"),
        (float("inf"), "none: these weights are NaN or infinite"),
        (0.0, "none between words"),
    ],
)
def test_head_of_only_nan_is_reported(minilm: "pellucid.Model", value: float, message: str) -> None:
    def between_words(weights: torch.Tensor) -> torch.Tensor:
        changed = weights.clone()
        changed[..., 1:-1, 1:-1] = value
        return changed

    with minilm.edit({"layers.0.attention.weights": between_words}) as edited:
        view = pellucid.view(edited.trace("time flies"), layer=0, heads=[0])
    assert link_table(view.data).endswith(f"  {message}")


def test_columns_are_aligned_by_character_width(minilm: "pellucid.Model", capsys: pytest.CaptureFixture[str]) -> None:
    rows = link_table(pellucid.view(minilm.trace("東京 tower", "the 大阪 castle")).data).splitlines()[2:]
    assert any("京" in row for row in rows) and len({cell_len(row) for row in rows}) == 1
    wide = [("東京タワー", "1.0"), ("a", "10.0"), ("e\u0301ก็", "3.0")]
    assert len({cell_len(line) for line in table(wide).splitlines()}) == 1
    assert [cell_width(unicodedata.normalize("NFD", "한국어")), cell_width("हिन्दी"), cell_width("👍🏽")] == [6, 3, 2]
    output.print_table(wide)
    assert [cell_len(line) for line in capsys.readouterr().out.splitlines()] == [15, 16, 15]


def test_repr_of_a_long_text_is_one_line(minilm: "pellucid.Model") -> None:
    assert len(repr(pellucid.view(minilm.trace("word " * 300)))) < 140


def test_page_of_nbconvert_is_drawn_offline(view: "pellucid.view.View", open_html: OpenPage) -> None:
    page, _ = HTMLExporter().from_notebook_node(notebook(view))
    state = frame_state(open_html(page))
    assert state["inked"] > 1000 and "arrow" in state["words"]
    assert state["box"]["width"] > 500 and state["room"] == [0, 0], "the frame is not as large as its page"


def test_two_views_in_a_notebook_are_independent(
    view: "pellucid.view.View", minilm: "pellucid.Model", open_html: OpenPage
) -> None:
    other = pellucid.view(minilm.trace("glass lets light through"), layer=2, heads=[1], show="matrix")
    page, _ = HTMLExporter().from_notebook_node(notebook(view, other))
    tab = open_html(page)
    first, second = frame_state(tab, 0), frame_state(tab, 1)
    assert "banana" in first["words"] and "glass" not in first["words"]
    assert "glass" in second["words"] and second["inked"] > 1000


STRICT = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; frame-src 'self' data:"
)


def test_page_needs_no_eval_workers_or_network(view: "pellucid.view.View", open_html: OpenPage) -> None:
    policy = f'<meta http-equiv="Content-Security-Policy" content="{STRICT}">'
    state = frame_state(
        open_html(f"<!doctype html><html><head>{policy}</head><body>{cell_output(view)['text/html']}</body></html>")
    )
    assert state["inked"] > 1000


def test_frame_has_a_fixed_height_without_event_handlers(view: "pellucid.view.View", open_html: OpenPage) -> None:
    own = re.search(r"script-src ([^;]*)", view.html())
    assert own and own[1].count("sha256-") == 2, "the page names the hashes of its loader and its program"
    policy = f'<meta http-equiv="Content-Security-Policy" content="script-src {own[1]}">'
    state = frame_state(
        open_html(f"<!doctype html><html><head>{policy}</head><body>{cell_output(view)['text/html']}</body></html>")
    )
    assert state["inked"] > 1000 and state["box"]["height"] == HEIGHT


@pytest.mark.parametrize(("ink", "expected_theme"), few([("#eee", "dark"), ("rgb(20 20 30)", "light")], ["#eee"]))
def test_page_has_the_theme_of_its_surroundings(
    view: "pellucid.view.View", open_html: OpenPage, ink: str, expected_theme: str
) -> None:
    tab = open_html(f"<!doctype html><body style='color: {ink}'>{cell_output(view)['text/html']}</body>")
    assert frame_state(tab)["theme"] == expected_theme
    page = tab.locator("iframe").content_frame
    for theme in ("light", "dark"):
        tab.evaluate("(ink) => void (document.body.style.color = ink)", "#000" if theme == "light" else "#fff")
        page.locator(f".pellucid[data-theme={theme}]").wait_for()


def test_chosen_theme_is_kept(view: "pellucid.view.View", open_html: OpenPage) -> None:
    tab = open_html(f"<!doctype html><body style='color: #eee'>{cell_output(view)['text/html']}</body>")
    assert frame_state(tab)["theme"] == "dark"
    tab.locator("iframe").content_frame.get_by_role(
        "button", name=re.compile("dark|light|theme", re.IGNORECASE)
    ).click()
    tab.evaluate("() => void (document.body.className = 'busy')")
    assert frame_state(tab)["theme"] == "light"


@pytest.mark.parametrize("show", few(["heads", "matrix"], ["heads"]))
@pytest.mark.parametrize("has_renderer", [True, False])
def test_static_picture_is_shown_without_frames(
    minilm: "pellucid.Model", open_html: OpenPage, monkeypatch: pytest.MonkeyPatch, show: str, has_renderer: bool
) -> None:
    monkeypatch.setattr("pellucid.view.notebook.can_render", lambda: has_renderer)
    long = pellucid.view(minilm.trace("a pane of glass lets light through " * 12), show=show)
    without_frames = re.sub(
        "<style>.*?</style>|<iframe.*?</iframe>", "", cell_output(long)["text/html"], flags=re.DOTALL
    )
    tab = open_html(f"<!doctype html><body>{without_frames}</body>")
    assert "This is a static picture" in tab.inner_text("body")
    if show == "matrix" and not has_renderer:
        assert "strongest links between words" in tab.locator("pre").inner_text()
    else:
        assert tab.locator("img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 300


@pytest.mark.parametrize("max_characters", [10, 10_000_000])
def test_picture_is_repeated_in_a_cell_only_if_there_is_room(
    view: "pellucid.view.View", monkeypatch: pytest.MonkeyPatch, max_characters: int
) -> None:
    """It contains the picture twice if there is room, otherwise only as the fallback of the frame."""
    monkeypatch.setattr("pellucid.view.notebook.MAX_CELL_CHARACTERS", max_characters)
    output = cell_output(view)
    assert ("image/png" in output) == (max_characters > 10) and "<iframe" in output["text/html"]
    coded = re.findall('src="data:image/(svg.xml|png);base64,([^"]*)', output["text/html"])
    assert [kind for kind, _ in coded] == ["svg+xml"] and len(coded[0][1]) < 1_000_000


def test_too_large_picture_is_replaced_by_a_table(view: "pellucid.view.View", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.view.notebook.MAX_STILL_CHARACTERS", 10)
    assert (
        "<pre>" in cell_output(view)["text/html"] and "strongest links between words" in cell_output(view)["text/html"]
    )


def test_page_too_large_for_a_cell_is_reported() -> None:
    message = iframe_html("x" * (MAX_PAGE_CHARACTERS + 1))
    assert "iframe" not in message and "8 MB" in message and "view.save" in message
    assert "trust the notebook" not in message, "neither trusting the notebook nor running it again would help"


def test_tokens_cannot_affect_the_host_page(open_html: OpenPage) -> None:
    builder = PageBuilder(("", tokens_of(4)))
    builder.sequences[0]["tokens"][1]["text"] = '"></iframe><img src=x onerror="document.title=1">'
    builder.attention()
    data = builder.data()
    from pellucid.view.page import render

    tab = open_html(f"<!doctype html><title>host</title>{iframe_html(render(data.manifest, data.blocks))}")
    assert "onerror" in frame_state(tab)["words"]
    assert tab.title() == "host" and tab.locator("img").count() == 0


def test_no_picture_without_the_drawing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.view.notebook.can_render", lambda: False)
    from pellucid.view.notebook import mime_bundle

    assert set(mime_bundle(plain_page(3), "<p>")) == {"text/html", "text/plain"}
