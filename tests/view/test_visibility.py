"""What the keyboard reaches is visible, also in a small window, and lists are read in order."""

import numpy as np
import pytest

import pellucid
from tests.quick import few
from tests.view.conftest import READ, Show
from tests.view.reference_pages import DRAWN, compared
from tests.view.test_access import press
from tests.view.test_grid import grid
from tests.view.test_page import make_case

HIDDEN = """(cell) => {
  const now = cell ? document.querySelector(cell) : document.activeElement;
  const { left, top, width, height } = now.getBoundingClientRect();
  const [x, y] = [left + width / 2, top + height / 2];
  const readout = document.querySelector(".readout").getBoundingClientRect();
  return [now.className || now.tagName, x, y, readout.bottom, innerHeight,
    x >= 0 && x <= innerWidth && y > readout.bottom && y < innerHeight];
}"""
"""Name and centre of the selected element, limits, and whether it is visible below the readout, which stays on top."""

CELLS = {"matrix": ".current.query .label", "tensor": ".heat-cell", "diff": ".diff-head .heat-cell"}
"""The mark of the selected cell in each whole plot."""

PRESSED = """([key, times]) => {
  for (let at = 0; at < times; at++) document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}"""

WINDOWS = {"zoomed": {"width": 320, "height": 225}, "low": {"width": 1280, "height": 400}}
WALK = [*["ArrowDown"] * 5, "ArrowRight", *["ArrowUp"] * 6]


@pytest.mark.parametrize(
    ("view", "window"),
    few(
        [(view, window) for view in ("heads", "matrix", "lens", "tensor", "diff") for window in WINDOWS],
        [("heads", "zoomed"), ("matrix", "low"), ("lens", "low"), ("diff", "zoomed")],
    ),
)
def test_what_the_arrows_reach_can_be_seen(show: Show, view: str, window: str) -> None:
    tab = show(compared(0, 3), f"#view={view}", viewport=WINDOWS[window])
    for key in WALK:
        tab.keyboard.press(key)
        tab.evaluate(DRAWN)
        *where, seen = tab.evaluate(HIDDEN, CELLS.get(view))
        assert seen, (key, where)


def test_a_cell_of_a_large_matrix_stays_in_the_window(show: Show) -> None:
    tab = show(make_case(seq=300), "#view=matrix&query=299&key=299", viewport={"width": 400, "height": 600})
    for keys, edge in (("", 299), ("ArrowUp ArrowLeft", 0), ("ArrowDown ArrowRight", 299)):
        for key in keys.split():
            tab.evaluate(PRESSED, [key, 305])
        tab.evaluate(READ)
        assert tab.locator(".readout-value").get_attribute("data-key") == str(edge)
        across, down = (tab.locator(f".cross.{way}").bounding_box() for way in ("across", "down"))
        assert down and down["x"] >= 0 and down["x"] + down["width"] <= 400, down
        assert across and across["y"] > 0 and across["y"] + across["height"] < 600, across


@pytest.mark.parametrize(("view", "window"), [("neuron", "zoomed"), ("tensor", "zoomed"), ("neuron", "low")])
def test_a_page_opens_at_its_top(show: Show, view: str, window: str) -> None:
    tab = show(compared(0, 3), f"#view={view}", viewport=WINDOWS[window])
    tab.evaluate(DRAWN)
    assert tab.evaluate("() => scrollY") == 0


def test_tab_reaches_nothing_behind_the_readout(show: Show) -> None:
    tab = show(compared(0, 3), "#view=lens", viewport=WINDOWS["zoomed"])
    for key in [*["Tab"] * 6, *["Shift+Tab"] * 5]:
        tab.keyboard.press(key)
        tab.evaluate(DRAWN)
        if tab.evaluate("() => document.querySelector('.stage').contains(document.activeElement)"):
            *where, seen = tab.evaluate(HIDDEN)
            assert seen, (key, where)


BEHIND = """() => {
  const { left, top, width, height } = document.querySelector(".readout-value").getBoundingClientRect();
  scrollBy(0, document.querySelector(".words-heading").getBoundingClientRect().top - top);
  return document.elementsFromPoint(left + width / 2, top + height / 2).map((one) => one.className);
}"""
"""The elements at the readout's number, topmost first, after scrolling until words are behind it."""


@pytest.mark.parametrize("address", ["#view=lens&cell=2.3", "#view=diff&diff=lens.2.3"])
def test_words_that_are_scrolled_past_cover_no_number(show: Show, address: str) -> None:
    tab = show(compared(0, 3), address, viewport={"width": 1280, "height": 225})
    tab.evaluate(DRAWN)
    above, *below = tab.evaluate(BEHIND)
    assert above == "readout-value" and "words-heading" in below


@pytest.mark.parametrize(
    ("view", "scroller", "row"), [("heads", ".scroller", ".column.query .row"), ("neuron", ".keylist", ".keylist-row")]
)
def test_rows_are_read_in_the_order_of_the_text(show: Show, view: str, scroller: str, row: str) -> None:
    tab = show(make_case(seq=400), f"#view={view}")
    tab.evaluate(READ)
    for top in (4000, 3700, 3900):
        tab.evaluate("([scroller, top]) => (document.querySelector(scroller).scrollTop = top)", [scroller, top])
        tab.evaluate(DRAWN)
    found = tab.locator(row).evaluate_all("(all) => all.map((one) => [one.ariaPosInSet, one.ariaSetSize])")
    places = [int(place) for place, _ in found]
    assert len(places) > 9 and places == sorted(places) and {size for _, size in found} == {"400"}


def test_an_address_keeps_the_column_of_the_token_in_hand(show: Show) -> None:
    tab = show(make_case(), "#view=heads&heads=3")
    tab.locator(".key .row").nth(3).click()
    tab.locator(".query .row").nth(5).hover()
    tab.evaluate(READ)
    said = tab.locator(".heads canvas").first.get_attribute("aria-label") or ""
    assert "to “" in said
    again = show(make_case(), tab.evaluate("() => location.hash"))
    assert again.locator(".heads canvas").first.get_attribute("aria-label") == said


def test_the_scale_is_said_where_nothing_can_be_taken_apart(show: Show) -> None:
    weights = np.full((1, 2, 3, 3), 1 / 3, dtype="f4")
    view = pellucid.view(attention=[weights], tokens=["a", "b", "c"])
    tab = show(view.html(), "#view=neuron&scale=linear&order=weight")
    chosen = tab.locator(".own select").evaluate_all("(all) => all.map((one) => one.value)")
    assert chosen == ["linear", "weight"]


@pytest.mark.parametrize(
    "address", ["#view=matrix", "#view=lens", "#view=diff&layer=1&heads=2", "#view=diff&diff=lens"]
)
def test_search_goes_to_a_token_in_every_view_of_tokens(show: Show, address: str) -> None:
    tab = show(page := compared(0, 3), address, viewport={"width": 320, "height": 225})
    press(tab, "/")
    tab.keyboard.type("arrow")
    press(tab, "Enter")
    tab.evaluate(DRAWN)
    assert "“·arrow” (4)" in tab.locator(".readout").inner_text()
    mark = (
        ".cross.across"
        if "matrix" in address
        else ".diff-head .heat-cell"
        if "layer" in address
        else ".word[aria-selected=true]"
    )
    box = tab.locator(mark).bounding_box()
    assert tab.locator(".readout").bounding_box()["height"] <= box["y"] + 1 and box["y"] + box["height"] <= 225
    if "layer" in address:
        runs = [page.numbers[f"{run}layers.1.attention.weights"][2, 4] for run in ("", "other/")]
        largest = (runs[0] - runs[1]).abs().max().item()
        assert abs(float(tab.locator(".readout-value").inner_text())) == pytest.approx(largest, abs=2e-6)


def test_where_no_tokens_stand_search_says_so(show: Show) -> None:
    tab = show(grid(), "#view=grid")
    press(tab, "/")
    assert not tab.locator("dialog").count()
    assert "there is no token here to search for" in tab.locator(".readout").inner_text()
