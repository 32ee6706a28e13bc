"""The page on narrow screens and on paper: nothing is cut, and nothing sticks out."""

import pytest

from tests.view.conftest import READ, Show
from tests.view.test_page import make_case

CUT = """() => [...document.querySelectorAll(".column .token")].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.textContent)"""
"""The words that are not written in full."""


@pytest.mark.parametrize("width", [390, 761])
def test_the_words_of_the_heads_view_are_whole_at_every_width(show: Show, width: int) -> None:
    tab = show(make_case(texts=["fruit", "flies", "like", "a", "banana"]), viewport={"width": width, "height": 900})
    tab.evaluate(READ)
    assert tab.evaluate(CUT) == []
