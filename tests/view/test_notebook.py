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
from tests.view.page_builder import Made, plain, tokens_of

Read = Callable[..., Page]


@pytest.fixture(scope="module")
def view(minilm: "pellucid.Model") -> "pellucid.view.View":
    return pellucid.view(minilm.trace("time flies like an arrow", "fruit flies like a banana"), layer=0, heads=[8])


@pytest.fixture
def read(browser: Browser, tmp_path: Path) -> Any:
    """Opens HTML offline. The host's requests fail; errors and requests of the frame are counted."""
    faults: list[str] = []
    context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True)

    def open_page(page: str) -> Page:
        (tmp_path / "host.html").write_text(page, encoding="utf-8")
        tab = context.new_page()
        tab.set_default_timeout(15_000)
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("request", lambda r: r.frame.parent_frame and faults.append(f"the frame asked for {r.url[:80]}"))
        tab.goto((tmp_path / "host.html").as_uri(), wait_until="domcontentloaded")
        return tab

    yield open_page
    context.close()
    assert not [fault for fault in faults if "require" not in fault and "MathJax" not in fault]


def cell(view: "pellucid.view.View") -> dict[str, Any]:
    """What a kernel sends for the last value of a cell."""
    data, _ = DisplayFormatter().format(view)
    return data


def notebook(*views: "pellucid.view.View") -> nbformat.NotebookNode:
    cells = [
        nbformat.v4.new_code_cell("view", outputs=[nbformat.v4.new_output("execute_result", data=cell(view))])
        for view in views
    ]
    found = nbformat.v4.new_notebook(cells=cells)
    nbformat.validate(found)
    return found


def drawn(tab: Page, place: int = 0) -> dict[str, Any]:
    """The state of the frame: coloured pixels of its canvas, size, toolbar."""
    frame = tab.locator("iframe").nth(place)
    frame.scroll_into_view_if_needed()
    inside = frame.content_frame
    inside.locator(".stage canvas").first.wait_for()
    tab.wait_for_timeout(300)
    inked = inside.locator(".stage canvas").first.evaluate(
        """(canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
             .filter((value, place) => place % 4 === 3 && value > 0).length"""
    )
    room = inside.locator("html").evaluate("(page) => [page.scrollHeight - innerHeight, page.scrollWidth - innerWidth]")
    said = {
        "words": inside.locator(".stage").inner_text(),
        "theme": inside.locator(".pellucid").get_attribute("data-theme"),
    }
    return {"inked": inked, "box": frame.bounding_box(), "room": room, **said}


def test_a_cell_is_given_a_frame_a_picture_and_a_table(view: "pellucid.view.View") -> None:
    data = cell(view)
    assert set(data) == {"text/html", "image/png", "text/plain"}
    assert 'sandbox="allow-scripts allow-downloads"' in data["text/html"] and "<script" not in data["text/html"]
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG\r\n")
    assert "strongest links between words, layer 0, head 8:" in data["text/plain"]


def test_the_table_names_the_strongest_links(view: "pellucid.view.View", minilm: "pellucid.Model") -> None:
    trace = minilm.trace("time flies like an arrow", "fruit flies like a banana")
    rows = link_table(view.data).splitlines()[2:]
    wanted = trace.strongest(0, 8, 8)
    assert len(rows) == 8
    for row, (query, key, weight) in zip(rows, wanted):
        assert f"{trace.tokens[query]} ({query})" in row and f"{trace.tokens[key]} ({key})" in row
        assert float(row.split()[-1]) == pytest.approx(weight, abs=1e-4)


def test_the_table_keeps_the_text_s_own_letters() -> None:
    data = plain(3)
    data.manifest["texts"] = ["la col·lecció\nde l'any\x1b"]
    assert link_table(data).startswith("la col·lecció de l'any\u241b\n")
    data.manifest["texts"], data.manifest["sequences"][0]["tokens"][1]["text"] = ["a\u202egnp.exe\u200d"], "b\u2067c"
    assert link_table(data).startswith("a\ufffdgnp.exe\u200d\n") and "b\ufffdc (1)" in link_table(data)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "none: these weights are NaN or infinite"),
        (float("inf"), "none: these weights are NaN or infinite"),
        (0.0, "none between words"),
    ],
)
def test_a_head_that_is_all_nan_says_so(minilm: "pellucid.Model", value: float, said: str) -> None:
    def between_words(weights: torch.Tensor) -> torch.Tensor:
        changed = weights.clone()
        changed[..., 1:-1, 1:-1] = value
        return changed

    with minilm.edit({"layers.0.attention.weights": between_words}) as edited:
        view = pellucid.view(edited.trace("time flies"), layer=0, heads=[0])
    assert link_table(view.data).endswith(f"  {said}")


def test_columns_are_aligned_by_how_wide_their_letters_are(
    minilm: "pellucid.Model", capsys: pytest.CaptureFixture[str]
) -> None:
    rows = link_table(pellucid.view(minilm.trace("東京 tower", "the 大阪 castle")).data).splitlines()[2:]
    assert any("京" in row for row in rows) and len({cell_len(row) for row in rows}) == 1
    wide = [("東京タワー", "1.0"), ("a", "10.0"), ("e\u0301ก็", "3.0")]
    assert len({cell_len(line) for line in table(wide).splitlines()}) == 1
    assert [cell_width(unicodedata.normalize("NFD", "한국어")), cell_width("हिन्दी"), cell_width("👍🏽")] == [6, 3, 2]
    output.print_table(wide)
    assert [cell_len(line) for line in capsys.readouterr().out.splitlines()] == [15, 16, 15]


def test_a_view_of_a_long_text_is_one_line_in_words(minilm: "pellucid.Model") -> None:
    assert len(repr(pellucid.view(minilm.trace("word " * 300)))) < 140


def test_the_page_of_nbconvert_draws_offline(view: "pellucid.view.View", read: Read) -> None:
    page, _ = HTMLExporter().from_notebook_node(notebook(view))
    shown = drawn(read(page))
    assert shown["inked"] > 1000 and "arrow" in shown["words"]
    assert shown["box"]["width"] > 500 and shown["room"] == [0, 0], "the frame is not as large as its page"


def test_two_views_in_one_notebook_do_not_meet(
    view: "pellucid.view.View", minilm: "pellucid.Model", read: Read
) -> None:
    other = pellucid.view(minilm.trace("glass lets light through"), layer=2, heads=[1], show="matrix")
    page, _ = HTMLExporter().from_notebook_node(notebook(view, other))
    tab = read(page)
    first, second = drawn(tab, 0), drawn(tab, 1)
    assert "banana" in first["words"] and "glass" not in first["words"]
    assert "glass" in second["words"] and second["inked"] > 1000


STRICT = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; frame-src 'self' data:"
)


def test_a_host_without_eval_workers_or_network_draws_it(view: "pellucid.view.View", read: Read) -> None:
    policy = f'<meta http-equiv="Content-Security-Policy" content="{STRICT}">'
    shown = drawn(read(f"<!doctype html><html><head>{policy}</head><body>{cell(view)['text/html']}</body></html>"))
    assert shown["inked"] > 1000


def test_a_host_that_lets_no_handler_run_shows_a_frame_of_one_height(view: "pellucid.view.View", read: Read) -> None:
    own = re.search(r"script-src ([^;]*)", view.html())
    assert own and own[1].count("sha256-") == 2, "the page names the hashes of its loader and its program"
    policy = f'<meta http-equiv="Content-Security-Policy" content="script-src {own[1]}">'
    shown = drawn(read(f"<!doctype html><html><head>{policy}</head><body>{cell(view)['text/html']}</body></html>"))
    assert shown["inked"] > 1000 and shown["box"]["height"] == HEIGHT


@pytest.mark.parametrize(("ink", "worn"), few([("#eee", "dark"), ("rgb(20 20 30)", "light")], ["#eee"]))
def test_the_page_is_dark_where_the_words_around_it_are_light(
    view: "pellucid.view.View", read: Read, ink: str, worn: str
) -> None:
    tab = read(f"<!doctype html><body style='color: {ink}'>{cell(view)['text/html']}</body>")
    assert drawn(tab)["theme"] == worn
    page = tab.locator("iframe").content_frame
    for turned in ("light", "dark"):
        tab.evaluate("(ink) => void (document.body.style.color = ink)", "#000" if turned == "light" else "#fff")
        page.locator(f".pellucid[data-theme={turned}]").wait_for()


def test_the_reader_s_own_choice_of_a_theme_stays(view: "pellucid.view.View", read: Read) -> None:
    tab = read(f"<!doctype html><body style='color: #eee'>{cell(view)['text/html']}</body>")
    assert drawn(tab)["theme"] == "dark"
    tab.locator("iframe").content_frame.get_by_role(
        "button", name=re.compile("dark|light|theme", re.IGNORECASE)
    ).click()
    tab.evaluate("() => void (document.body.className = 'busy')")
    assert drawn(tab)["theme"] == "light"


@pytest.mark.parametrize("show", few(["heads", "matrix"], ["heads"]))
@pytest.mark.parametrize("can", [True, False])
def test_without_frames_there_is_a_still(
    minilm: "pellucid.Model", read: Read, monkeypatch: pytest.MonkeyPatch, show: str, can: bool
) -> None:
    monkeypatch.setattr("pellucid.view.notebook.can_render", lambda: can)
    long = pellucid.view(minilm.trace("a pane of glass lets light through " * 12), show=show)
    kept = re.sub("<style>.*?</style>|<iframe.*?</iframe>", "", cell(long)["text/html"], flags=re.DOTALL)
    tab = read(f"<!doctype html><body>{kept}</body>")
    assert "This is a static picture" in tab.inner_text("body")
    if show == "matrix" and not can:
        assert "strongest links between words" in tab.locator("pre").inner_text()
    else:
        assert tab.locator("img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 300


@pytest.mark.parametrize("most", [10, 10_000_000])
def test_a_cell_is_no_larger_than_a_message(
    view: "pellucid.view.View", monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """It contains the picture twice if there is room, otherwise only as the fallback of the frame."""
    monkeypatch.setattr("pellucid.view.notebook.MAX_CELL_CHARACTERS", most)
    found = cell(view)
    assert ("image/png" in found) == (most > 10) and "<iframe" in found["text/html"]
    coded = re.findall('src="data:image/(svg.xml|png);base64,([^"]*)', found["text/html"])
    assert [kind for kind, _ in coded] == ["svg+xml"] and len(coded[0][1]) < 1_000_000


def test_a_still_that_is_too_large_is_a_table(view: "pellucid.view.View", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.view.notebook.MAX_STILL_CHARACTERS", 10)
    assert "<pre>" in cell(view)["text/html"] and "strongest links between words" in cell(view)["text/html"]


def test_a_page_too_large_for_a_cell_is_told() -> None:
    said = iframe_html("x" * (MAX_PAGE_CHARACTERS + 1))
    assert "iframe" not in said and "8 MB" in said and "view.save" in said
    assert "trust the notebook" not in said, "to trust it or to run it again helps nobody"


def test_what_tokens_say_stays_inside(read: Read) -> None:
    made = Made(("", tokens_of(4)))
    made.sequences[0]["tokens"][1]["text"] = '"></iframe><img src=x onerror="document.title=1">'
    made.attention()
    data = made.data()
    from pellucid.view.page import render

    tab = read(f"<!doctype html><title>host</title>{iframe_html(render(data.manifest, data.blocks))}")
    assert "onerror" in drawn(tab)["words"]
    assert tab.title() == "host" and tab.locator("img").count() == 0


def test_without_the_drawing_library_there_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.view.notebook.can_render", lambda: False)
    from pellucid.view.notebook import mime_bundle

    assert set(mime_bundle(plain(3), "<p>")) == {"text/html", "text/plain"}
