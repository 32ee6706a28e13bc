"""The page on narrow screens and on paper: nothing is cut, and nothing sticks out."""

import pytest

from tests.quick import few
from tests.view.conftest import READ, Show
from tests.view.test_access import VIEWS
from tests.view.test_page import make_case
from tests.view.written import compared

CUT = """() => [...document.querySelectorAll(".column .token")].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.textContent)"""
"""The words that are not written in full."""


@pytest.mark.parametrize("width", [390, 761])
def test_the_words_of_the_heads_view_are_whole_at_every_width(show: Show, width: int) -> None:
    tab = show(make_case(texts=["fruit", "flies", "like", "a", "banana"]), viewport={"width": width, "height": 900})
    tab.evaluate(READ)
    assert tab.evaluate(CUT) == []


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
