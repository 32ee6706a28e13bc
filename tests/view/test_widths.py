"""The page on narrow screens and on paper: nothing is cut, and nothing sticks out."""

import re

import pytest

from tests.quick import few
from tests.view.conftest import READ, Show
from tests.view.test_access import CONTRAST, VIEWS
from tests.view.test_grid import grid
from tests.view.test_page import make_case
from tests.view.written import compared, written

CUT = """() => [...document.querySelectorAll(".column .token")].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.textContent)"""
"""The words that are not written in full."""
ENDS = """() => {
  const boxes = [...document.querySelectorAll(".stage, .stage *")].map((one) => one.getBoundingClientRect());
  return [Math.min(...boxes.map(({ left }) => left)), Math.max(...boxes.map(({ right }) => right))];
}"""
"""Where the stage, or what sticks out of it, begins and ends."""


BROAD = ["WWWWW", "‹0xD8›", "المدرسة", "mm", "東京都"]
SHORT, LONG = ["fruit", "flies", "like", "a", "banana"], ["the", "counterrevolutionaries", "misunderstood", "it"]


@pytest.mark.parametrize(
    "words, width",
    [
        (SHORT, 320),
        (SHORT, 761),
        *((LONG, each) for each in (700, 761, 830, 900)),
        *((BROAD, each) for each in (320, 440, 520, 600, 640, 700, 800)),
    ],
)
def test_the_words_of_the_heads_view_are_whole_at_every_width(show: Show, words: list[str], width: int) -> None:
    tab = show(make_case(texts=words), "#view=heads&query=1", viewport={"width": width, "height": 900})
    tab.evaluate(READ)
    assert tab.evaluate(CUT) == []
    lines = tab.locator(".heads canvas").first.bounding_box()["width"]
    assert lines >= (200 if tab.locator(".heads").get_attribute("data-room") == "wide" else 56)


@pytest.mark.parametrize("view", few(VIEWS, ["heads", "neuron", "lens", "diff"]))
def test_nothing_sticks_out_of_a_narrow_page(show: Show, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.view.written.HEADS", 12)
    page = compared(0, 3)
    page.manifest["lens"]["words"] = {str(i): f"counterrevolutionaries {i}" for i in range(30)}
    tab = show(page, f"#view={view}", viewport={"width": 320, "height": 900})
    tab.keyboard.press("ArrowDown")
    if view == "neuron":
        tab.get_by_placeholder("find a key").fill("x" * 400)
    tab.evaluate(READ)
    tab.evaluate(READ)
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("view", few([*VIEWS, "grid"], ["heads", "lens"]))
def test_paper_shows_the_screen_made_smaller(show: Show, view: str) -> None:
    page = grid(heads=12) if view == "grid" else compared(0, 3)
    tab = show(page, f"#view={view}&query=6", color_scheme="dark", reduced_motion="reduce")
    tab.keyboard.press("ArrowDown")
    tab.evaluate(READ)
    tab.emulate_media(media="print")
    tab.evaluate(READ)
    left, right = tab.evaluate(ENDS)
    assert 500 < right - left <= 691
    worst = tab.evaluate(CONTRAST)
    assert worst[0][0] >= 4.5, worst
    assert tab.locator(".stage").evaluate("(one) => getComputedStyle(one).printColorAdjust") == "exact"
    if view == "heads":
        canvas, keys = (tab.locator(each).bounding_box() for each in (".middle canvas", ".column.key"))
        assert canvas["x"] + canvas["width"] == pytest.approx(keys["x"], abs=1)


@pytest.mark.parametrize("view", few(["heads", "neuron"], ["heads"]))
def test_a_long_text_leaves_no_empty_pages(show: Show, view: str) -> None:
    tab = show(make_case(seq=200), f"#view={view}")
    tab.evaluate(READ)
    assert len(re.findall(rb"/Type\s*/Page\b", tab.pdf())) == 2  # half of it is in sight


def test_a_dark_page_is_drawn_for_white_paper(show: Show) -> None:
    shades = "() => [...document.querySelectorAll('.word')].map((cell) => cell.style.background)"
    light = show(written(), "#view=lens").evaluate(shades)
    tab = show(written(), "#view=lens", color_scheme="dark")
    dark = tab.evaluate(shades)
    tab.evaluate(f"() => addEventListener('beforeprint', () => (window.printed = ({shades})()))")
    tab.pdf()
    assert tab.evaluate("() => window.printed") == light != dark
    assert tab.evaluate(shades) == dark
