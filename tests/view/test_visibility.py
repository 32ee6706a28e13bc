"""What the keyboard reaches is visible, also in a small window, and lists are read in order."""

import numpy as np
import pytest

import pellucid
from tests.quick import few
from tests.view.conftest import READOUT, Show
from tests.view.reference_pages import TWO_FRAMES, comparison_page
from tests.view.test_access import press_keys
from tests.view.test_grid import grid_page
from tests.view.test_page import make_case

SELECTION_VISIBILITY = """(cell) => {
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

PRESS_REPEATEDLY = """([key, times]) => {
  for (let at = 0; at < times; at++) document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}"""

WINDOWS = {"zoomed": {"width": 320, "height": 225}, "low": {"width": 1280, "height": 400}}
ARROW_KEYS = [*["ArrowDown"] * 5, "ArrowRight", *["ArrowUp"] * 6]


@pytest.mark.parametrize(
    ("view", "window"),
    few(
        [(view, window) for view in ("heads", "matrix", "lens", "tensor", "diff") for window in WINDOWS],
        [("heads", "zoomed"), ("matrix", "low"), ("lens", "low"), ("diff", "zoomed")],
    ),
)
def test_selection_by_arrow_keys_is_visible(show: Show, view: str, window: str) -> None:
    tab = show(comparison_page(0, 3), f"#view={view}", viewport=WINDOWS[window])
    for key in ARROW_KEYS:
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)
        *position, visible = tab.evaluate(SELECTION_VISIBILITY, CELLS.get(view))
        assert visible, (key, position)


def test_selected_cell_of_a_large_matrix_is_visible(show: Show) -> None:
    tab = show(make_case(seq=300), "#view=matrix&query=299&key=299", viewport={"width": 400, "height": 600})
    for keys, edge in (("", 299), ("ArrowUp ArrowLeft", 0), ("ArrowDown ArrowRight", 299)):
        for key in keys.split():
            tab.evaluate(PRESS_REPEATEDLY, [key, 305])
        tab.evaluate(READOUT)
        assert tab.locator(".readout-value").get_attribute("data-key") == str(edge)
        across, down = (tab.locator(f".cross.{way}").bounding_box() for way in ("across", "down"))
        assert down and down["x"] >= 0 and down["x"] + down["width"] <= 400, down
        assert across and across["y"] > 0 and across["y"] + across["height"] < 600, across


@pytest.mark.parametrize(("view", "window"), [("neuron", "zoomed"), ("tensor", "zoomed"), ("neuron", "low")])
def test_page_opens_at_its_top(show: Show, view: str, window: str) -> None:
    tab = show(comparison_page(0, 3), f"#view={view}", viewport=WINDOWS[window])
    tab.evaluate(TWO_FRAMES)
    assert tab.evaluate("() => scrollY") == 0


def test_focused_elements_are_not_behind_the_readout(show: Show) -> None:
    tab = show(comparison_page(0, 3), "#view=lens", viewport=WINDOWS["zoomed"])
    for key in [*["Tab"] * 6, *["Shift+Tab"] * 5]:
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)
        if tab.evaluate("() => document.querySelector('.stage').contains(document.activeElement)"):
            *position, visible = tab.evaluate(SELECTION_VISIBILITY)
            assert visible, (key, position)


ELEMENTS_AT_READOUT = """() => {
  const { left, top, width, height } = document.querySelector(".readout-value").getBoundingClientRect();
  scrollBy(0, document.querySelector(".words-heading").getBoundingClientRect().top - top);
  return document.elementsFromPoint(left + width / 2, top + height / 2).map((one) => one.className);
}"""
"""The elements at the readout's number, topmost first, after scrolling until words are behind it."""


@pytest.mark.parametrize("address", ["#view=lens&cell=2.3", "#view=diff&diff=lens.2.3"])
def test_scrolled_tokens_do_not_cover_the_readout(show: Show, address: str) -> None:
    tab = show(comparison_page(0, 3), address, viewport={"width": 1280, "height": 225})
    tab.evaluate(TWO_FRAMES)
    above, *below = tab.evaluate(ELEMENTS_AT_READOUT)
    assert above == "readout-value" and "words-heading" in below


@pytest.mark.parametrize(
    ("view", "scroller", "row"), [("heads", ".scroller", ".column.query .row"), ("neuron", ".keylist", ".keylist-row")]
)
def test_rows_have_the_order_of_the_text(show: Show, view: str, scroller: str, row: str) -> None:
    tab = show(make_case(seq=400), f"#view={view}")
    tab.evaluate(READOUT)
    for top in (4000, 3700, 3900):
        tab.evaluate("([scroller, top]) => (document.querySelector(scroller).scrollTop = top)", [scroller, top])
        tab.evaluate(TWO_FRAMES)
    found = tab.locator(row).evaluate_all("(all) => all.map((one) => [one.ariaPosInSet, one.ariaSetSize])")
    positions = [int(position) for position, _ in found]
    assert len(positions) > 9 and positions == sorted(positions) and {size for _, size in found} == {"400"}


def test_address_has_the_column_of_the_selected_token(show: Show) -> None:
    tab = show(make_case(), "#view=heads&heads=3")
    tab.locator(".key .row").nth(3).click()
    tab.locator(".query .row").nth(5).hover()
    tab.evaluate(READOUT)
    label = tab.locator(".heads canvas").first.get_attribute("aria-label") or ""
    assert "to “" in label
    again = show(make_case(), tab.evaluate("() => location.hash"))
    assert again.locator(".heads canvas").first.get_attribute("aria-label") == label


def test_scale_is_kept_without_queries_and_keys(show: Show) -> None:
    weights = np.full((1, 2, 3, 3), 1 / 3, dtype="f4")
    view = pellucid.view(attention=[weights], tokens=["a", "b", "c"])
    tab = show(view.html(), "#view=neuron&scale=linear&order=weight")
    selected = tab.locator(".own select").evaluate_all("(all) => all.map((one) => one.value)")
    assert selected == ["linear", "weight"]


@pytest.mark.parametrize(
    "address", ["#view=matrix", "#view=lens", "#view=diff&layer=1&heads=2", "#view=diff&diff=lens"]
)
def test_search_selects_a_token_in_every_view(show: Show, address: str) -> None:
    tab = show(page := comparison_page(0, 3), address, viewport={"width": 320, "height": 225})
    press_keys(tab, "/")
    tab.keyboard.type("arrow")
    press_keys(tab, "Enter")
    tab.evaluate(TWO_FRAMES)
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


def test_search_without_tokens_is_reported(show: Show) -> None:
    tab = show(grid_page(), "#view=grid")
    press_keys(tab, "/")
    assert not tab.locator("dialog").count()
    assert "there is no token here to search for" in tab.locator(".readout").inner_text()
