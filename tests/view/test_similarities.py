"""The page of matching words in a real browser."""

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page

import pellucid
from pellucid.errors import InputError
from pellucid.search.why import Match, match
from tests.quick import few
from tests.view.conftest import Show
from tests.view.reference_pages import TWO_FRAMES
from tests.view.test_access import AXE, SERIOUS

LONG = (
    "The weather was mild, and nobody said much about it. In the evening a man repaired his bicycle, then he drank "
    "green tea; the recipe (his mother's) needs hot water, two spoons of leaves and some patience. " * 3
)

SHADES = """() => [...document.querySelectorAll(".passage span, tbody td, .ramp i")].map((one) =>
  `${getComputedStyle(one).backgroundColor} ${getComputedStyle(one).color}`)"""
PAPER = "(one) => getComputedStyle(one).backgroundColor"


def match_of(model: pellucid.Model, query: str, text: str, **hit: object) -> Match:
    return match(model.loaded, query, {"text": text, **hit})


@pytest.mark.parametrize("theme", few(["light", "dark"], ["light"]))
@pytest.mark.parametrize("text", few(["Coca-Cola Company (The)", LONG], [LONG]))
def test_page_shows_every_number_accessibly(
    minilm: pellucid.Model,
    show: Show,
    theme: str,
    text: str,
) -> None:
    result = match_of(minilm, "how to make green tea", text)
    page = show(result.view().html(), color_scheme=theme)
    assert page.locator("tbody th").all_inner_texts() == list(result.text)
    assert page.locator("thead th").all_inner_texts() == list(result.query)
    assert page.locator(".passage").inner_text().split() == text.split()
    displayed = [float(cell.replace("−", "-")) for cell in page.locator("tbody td").all_inner_texts()]
    assert np.allclose(displayed, result.similarity.T.ravel(), atol=0.0051)
    best = [page.locator("tbody tr").nth(i) for i in result.similarity.argmax(axis=1)]
    assert all(
        row.locator("td").nth(j).evaluate("cell => cell.className.includes('best')") for j, row in enumerate(best)
    )
    assert page.locator("td.best").count() == len(result.query)
    rows = page.locator("tbody tr").evaluate_all(
        "(all) => all.map((row) => [...row.cells].slice(1).map((one) => one.classList[0]))"
    )
    darkest = [max(row, key=lambda shade: int(shade[1:])) for row in rows]
    assert page.locator(".passage span").evaluate_all("(all) => all.map((one) => one.className)") == darkest
    assert (
        "In the text above, each word has the shade of the largest number in its row."
        in page.locator(".note").inner_text()
    )
    assert _paper(page) == {"light": "rgb(253, 252, 249)", "dark": "rgb(21, 24, 29)"}[theme]
    page.evaluate(AXE)
    assert page.evaluate(SERIOUS) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_requested_theme_overrides_the_preferred_one(minilm: pellucid.Model, show: Show) -> None:
    result = match_of(minilm, "coca cola", "Coca-Cola")
    for theme, other, paper in (("dark", "light", "rgb(21, 24, 29)"), ("light", "dark", "rgb(253, 252, 249)")):
        page = show(result.view(theme).html(), color_scheme=other)
        assert _paper(page) == paper
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == theme
    with pytest.raises(InputError, match="theme is 'blue'"):
        result.view("blue")


def test_frame_has_the_theme_of_the_notebook(minilm: pellucid.Model, show: Show) -> None:
    cell = match_of(minilm, "coca cola", "Coca-Cola")._repr_html_()
    tab = show(f"<!doctype html><body style='color: #eee'>{cell}</body>", color_scheme="null")  # not emulated
    for ink, paper in (("#eee", "rgb(21, 24, 29)"), ("#222", "rgb(253, 252, 249)"), ("#fff", "rgb(21, 24, 29)")):
        tab.evaluate("(ink) => void (document.body.style.color = ink)", ink)
        tab.evaluate(TWO_FRAMES)
        inside = tab.frame_locator("iframe").locator("body")
        assert inside.evaluate("(body) => getComputedStyle(body).backgroundColor") == paper


@pytest.mark.parametrize("theme", few([None, "dark"], ["dark"]))
def test_printed_page_is_white_and_complete(minilm: pellucid.Model, show: Show, theme: str | None) -> None:
    query = " ".join(f"counterrevolutionary {word}" for word in LONG.split()[:30])
    page = show(
        match_of(minilm, query, LONG).view(theme).html(), viewport={"width": 690, "height": 900}, color_scheme="dark"
    )
    assert _paper(page) == "rgb(21, 24, 29)"
    page.emulate_media(media="print", color_scheme="dark")
    assert _paper(page) == "rgb(255, 255, 255)"
    assert page.locator(".s16").first.evaluate("(one) => getComputedStyle(one).color") == "rgb(0, 0, 0)"
    right, bottom, hidden = page.locator(".sheet").evaluate(
        "(one) => [one.firstChild.getBoundingClientRect().right, one.scrollHeight, one.clientHeight]"
    )
    assert right <= 690 and bottom == hidden


def test_column_headings_do_not_cover_row_headings_when_scrolled(minilm: pellucid.Model, show: Show) -> None:
    page = show(match_of(minilm, LONG[:200], LONG).view().html(), viewport={"width": 390, "height": 900})
    corner = page.locator(".sheet").evaluate("""(sheet) => {
      sheet.scrollTo(200, 250);
      const [column, row] = ["thead th", "tbody th"].map((one) => sheet.querySelector(one).getBoundingClientRect());
      return document.elementFromPoint(row.right - 5, column.top + column.height / 2).closest("td, th").cellIndex;
    }""")
    assert corner == 0


@pytest.mark.parametrize("scheme", few(["light", "dark"], ["dark"]))
def test_shades_are_kept_in_forced_colours(minilm: pellucid.Model, show: Show, scheme: str) -> None:
    result = match_of(minilm, "coca cola", LONG).view().html()
    plain = show(result, color_scheme=scheme).evaluate(SHADES)
    tab = show(result, color_scheme=scheme, forced_colors="active")
    assert tab.evaluate(SHADES) == plain and len(set(plain)) > 5
    corner, head = (tab.locator(f"thead {each}").first.evaluate(PAPER) for each in ("td", "th"))
    assert corner == head, "the corner of the table is of the colour of its heads"


def test_texts_are_escaped(minilm: pellucid.Model, show: Show) -> None:
    nasty = "<script>alert(1)</script> & \u202eevil\u202c <img src=x onerror=alert(2)> \x00 end"
    page = show(match_of(minilm, "<b>bold</b> \x07 \u202etea", nasty, id="</p>\u2067").view().html())
    assert page.locator("script, img, b").count() == 0
    assert not set("\u202e\u202c\u2067") & set(page.content())
    assert page.locator("h1").inner_text() == "<b>bold</b> ␇ \ufffdtea"
    assert "\ufffdevil\ufffd" in page.locator(".passage").inner_text()
    assert page.locator(".caption").inner_text() == "id </p>\ufffd"
    assert "<script>alert(1)</script>" in page.locator(".passage").inner_text()


def test_queries_and_hits_are_left_aligned_and_empty_ones_are_reported(minilm: pellucid.Model, show: Show) -> None:
    page = show(match_of(minilm, "تفاح", "تفاح أخضر").view().html())
    query, passage, table = (page.locator(each).bounding_box() for each in ("h1", ".passage", ".sheet table"))
    assert abs(passage["x"] - table["x"]) < 10 and query["x"] == passage["x"] and query["width"] < 100
    assert show(match_of(minilm, "apple", "").view().html()).get_by_text("(no text)").count() == 1


def test_several_hits_share_a_page_and_a_notebook_shows_it_in_a_frame(
    minilm: pellucid.Model,
    show: Show,
    tmp_path: Path,
) -> None:
    texts = ("Starbucks", "PepsiCo", "Coca-Cola Company (The)")
    first, *others = [match_of(minilm, "soft drinks", text).view() for text in texts]
    saved = first.beside(*others).save(tmp_path / "why.html").read_text(encoding="utf-8")
    page = show(saved)
    assert page.locator("h1").all_inner_texts() == ["soft drinks"]
    assert page.locator("table").count() == 3
    cell = match_of(minilm, "soft drinks", texts[0])._repr_html_()
    assert cell.isascii() and "<script" not in cell
    inside = show(cell).frame_locator("iframe")
    assert inside.locator("tbody th").all_inner_texts() == ["Starbucks"]


def test_words_and_numbers_remain_without_frames(minilm: pellucid.Model, show: Show) -> None:
    result = match_of(minilm, "soft drinks", "Coca-Cola Company (The)", id="<b>")
    cell = result._repr_html_()
    assert not show(cell).locator("body > .pellucid-still").is_visible()
    page = show(re.sub("<style>.*?</style>|<iframe.*?</iframe>", "", cell, flags=re.DOTALL))
    assert page.locator("tbody th").all_inner_texts() == list(result.text)
    displayed = [float(number.replace("−", "-")) for number in page.locator("tbody td").all_inner_texts()]
    assert np.allclose(displayed, result.similarity.T.ravel(), atol=0.0051)
    assert "trust the notebook" in page.inner_text("body") and page.locator("b").count() == 0


@pytest.mark.parametrize("width", few([480, 700, 1200], [480]))
def test_frame_of_a_short_text_has_the_height_of_its_page(minilm: pellucid.Model, show: Show, width: int) -> None:
    page = show(match_of(minilm, "soft drinks", "green tea")._repr_html_(), viewport={"width": width, "height": 900})
    inside = page.frame_locator("iframe").locator("html")
    assert inside.evaluate("(page) => page.scrollHeight - innerHeight") <= 0


def _paper(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")
