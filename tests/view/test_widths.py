"""The page on narrow screens and on paper: nothing is clipped, and nothing overflows."""

import re

import pytest
from playwright.sync_api import Page

from tests.quick import few
from tests.view.conftest import READOUT, Show
from tests.view.reference_pages import comparison_page, reference_page
from tests.view.test_access import CONTRAST, VIEWS
from tests.view.test_grid import grid_page
from tests.view.test_page import make_case

CUT = """() => [...document.querySelectorAll(".column .token")].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.textContent)"""
"""The tokens that are not shown in full."""
STAGE_EDGES = """() => {
  const boxes = [...document.querySelectorAll(".stage, .stage *")].map((one) => one.getBoundingClientRect());
  return [Math.min(...boxes.map(({ left }) => left)), Math.max(...boxes.map(({ right }) => right))];
}"""
"""The left and right edges of the stage, including what sticks out of it."""


WIDE_TOKENS = ["WWWWW", "‹0xD8›", "المدرسة", "mm", "東京都"]
SHORT_TOKENS, LONG_TOKENS = (
    ["fruit", "flies", "like", "a", "banana"],
    ["the", "counterrevolutionaries", "misunderstood", "it"],
)


@pytest.mark.parametrize(
    "tokens, width",
    [
        (SHORT_TOKENS, 320),
        (SHORT_TOKENS, 761),
        *((LONG_TOKENS, each) for each in (700, 761, 830, 900)),
        *((WIDE_TOKENS, each) for each in (320, 440, 520, 600, 640, 700, 800)),
    ],
)
def test_tokens_of_the_heads_view_are_not_clipped_at_any_width(show: Show, tokens: list[str], width: int) -> None:
    tab = show(make_case(texts=tokens), "#view=heads&query=1", viewport={"width": width, "height": 900})
    tab.evaluate(READOUT)
    assert tab.evaluate(CUT) == []
    lines = tab.locator(".heads canvas").first.bounding_box()["width"]
    assert lines >= (200 if tab.locator(".heads").get_attribute("data-room") == "wide" else 56)


def test_index_of_a_token_does_not_overlap_it(show: Show) -> None:
    tab = show(make_case(seq=1100), "#view=heads&query=1098&key=1099")
    tab.evaluate(READOUT)
    for side, index, edge in (("query", 1098, "paddingRight"), ("key", 1099, "paddingLeft")):
        gap, width = tab.locator(f".column.{side} .row[data-index='{index}']").evaluate(
            "(row, edge) => [[null, edge], ['::after', 'width']].map(([of, what]) => "
            "Number.parseFloat(getComputedStyle(row, of)[what]))",
            edge,
        )
        assert width > 15 and gap - 3 >= width + 4  # it starts 3 pixels from the edge


@pytest.mark.parametrize("view", few(VIEWS, ["heads", "neuron", "lens", "diff"]))
def test_narrow_page_has_no_overflow(show: Show, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.view.reference_pages.HEADS", 12)
    page = comparison_page(0, 3)
    page.manifest["lens"]["tokens_by_id"] = {str(i): f"counterrevolutionaries {i}" for i in range(30)}
    tab = show(page, f"#view={view}", viewport={"width": 320, "height": 900})
    tab.keyboard.press("ArrowDown")
    if view == "neuron":
        tab.get_by_placeholder("find a key").fill("x" * 400)
    tab.evaluate(READOUT)
    tab.evaluate(READOUT)
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("view", few([*VIEWS, "grid"], ["heads", "lens"]))
def test_printed_page_is_a_scaled_screen(show: Show, view: str) -> None:
    page = grid_page(heads=12) if view == "grid" else comparison_page(0, 3)
    tab = show(page, f"#view={view}&query=6", color_scheme="dark", reduced_motion="reduce")
    tab.keyboard.press("ArrowDown")
    tab.evaluate(READOUT)
    tab.emulate_media(media="print")
    tab.evaluate(READOUT)
    left, right = tab.evaluate(STAGE_EDGES)
    assert 500 < right - left <= 691
    worst = tab.evaluate(CONTRAST)
    assert worst[0][0] >= 4.5, worst
    assert tab.locator(".stage").evaluate("(one) => getComputedStyle(one).printColorAdjust") == "exact"
    if view == "heads":
        assert not tab.locator(".heads-key").is_visible()
        canvas, keys = (tab.locator(each).bounding_box() for each in (".middle canvas", ".column.key"))
        assert canvas["x"] + canvas["width"] == pytest.approx(keys["x"], abs=1)


def test_printed_sum_is_beside_its_row(show: Show) -> None:
    tab = show(make_case(seq=60), "#view=matrix&query=40&key=3", viewport={"width": 1200, "height": 800})
    for media in ("screen", "print"):
        tab.emulate_media(media=media)
        tab.evaluate(READOUT)
        total, plot, band = (tab.locator(each).bounding_box() for each in (".sum", ".plot canvas", ".cross.across"))
        assert total["x"] == pytest.approx(plot["x"] + plot["width"], abs=2)
        middle = total["y"] + total["height"] / 2
        assert middle == pytest.approx(band["y"] + band["height"] / 2, abs=2)


@pytest.mark.parametrize("view", few(["heads", "neuron"], ["heads"]))
def test_printed_long_text_has_no_empty_pages(show: Show, view: str) -> None:
    tab = show(make_case(seq=200), f"#view={view}")
    tab.evaluate(READOUT)
    assert len(re.findall(rb"/Type\s*/Page\b", tab.pdf())) == 2  # half of the text is in view


PRINTED_STATE = """() => new Promise((done) => addEventListener("beforeprint", () => done([
  document.querySelector(".legend").textContent,
  [...document.querySelectorAll(".words, .keylist, .neuron-queries")].map(
    (one) => one.scrollHeight - one.clientHeight)])))"""


def printed_legend_and_scroll(tab: Page) -> tuple[str, list[int]]:
    """The printed legend, and how far each list is scrolled."""
    tab.evaluate(f"() => {{ window.printed = ({PRINTED_STATE})(); }}")
    tab.pdf()
    return tab.evaluate("() => window.printed")


@pytest.mark.parametrize("width", few([1200, 700], [1200]))
@pytest.mark.parametrize(
    ("count", "message"),
    [
        (20, ""),
        (90, "shows rows 1 to 56 of the 90 queries and rows 1 to 41 of the 90 keys; what crosses its edge is cut off."),
    ],
)
def test_printed_list_is_complete_or_states_its_rows(show: Show, count: int, message: str, width: int) -> None:
    tab = show(make_case(seq=count), "#view=neuron&query=0&key=0", viewport={"width": width, "height": 800})
    tab.evaluate(READOUT)
    legend, hidden = printed_legend_and_scroll(tab)
    assert len(hidden) == 2
    assert ("This sheet shows" in legend) == (min(hidden) > 0) == (max(hidden) > 0) == bool(
        message
    ) and message in legend
    assert "This sheet shows" not in tab.locator(".legend").inner_text()


def test_printed_lens_of_many_layers_is_complete(show: Show) -> None:
    page = reference_page()
    page.manifest["lens"]["points"] = ["embeddings.output", *(f"layers.{i}.residual.post" for i in range(41))]
    for name in ("lens.ids", "lens.log_probabilities"):
        page.store(name, page.numbers[name].repeat(14, 1, 1))
    legend, (hidden,) = printed_legend_and_scroll(show(page, "#view=lens", viewport={"width": 1200, "height": 800}))
    assert hidden == 0 and "This sheet shows tokens 0 to 5 of 7; what crosses its edge is cut off." in legend


@pytest.mark.parametrize(
    ("view", "size", "width", "message"),
    [
        ("heads", 12, 1200, ""),
        ("heads", 90, 1200, "rows 1 to 28 of the 90 queries and rows 1 to 28 of the 90 keys; what crosses its edge"),
        ("matrix", 20, 1200, ""),
        ("matrix", 400, 390, "columns 1 to 289 of the 400 keys."),
        ("grid", 8, 1200, ""),
        ("grid", 30, 1200, "rows 1 to 9 of the 30 layers; what crosses its edge is cut off."),
        ("grid", 30, 390, "rows 1 to 9 of the 30 layers; what crosses its edge is cut off."),
    ],
)
def test_printed_view_states_what_is_missing(show: Show, view: str, size: int, width: int, message: str) -> None:
    page = grid_page(layers=size, heads=8) if view == "grid" else make_case(seq=size)
    tab = show(page, f"#view={view}", viewport={"width": width, "height": 800})
    tab.evaluate(READOUT)
    legend, _ = printed_legend_and_scroll(tab)
    assert ("This sheet shows" in legend) == bool(message) and message in legend
    assert "This sheet shows" not in tab.locator(".legend").inner_text()
    if width == 390 and view == "matrix":  # as many as fit
        tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
        tab.emulate_media(media="print")
        frame, plot = (tab.locator(each).bounding_box() for each in (".matrix", ".matrix .plot canvas"))
        assert (frame["x"] + frame["width"] - plot["x"]) // 2 == 289


def test_printed_readout_is_above_the_picture_of_a_scrolled_page(show: Show) -> None:
    tab = show(make_case(seq=400), "#view=matrix&query=390&key=390", viewport={"width": 1200, "height": 300})
    tab.evaluate(READOUT)
    tab.emulate_media(media="print")
    assert tab.evaluate("() => scrollY") > 100
    readout, stage = (tab.locator(each).bounding_box() for each in (".readout", ".stage"))
    assert readout["y"] + readout["height"] <= stage["y"]


@pytest.mark.parametrize(("heads", "key"), [("1", ""), ("0.2", "head 0head 2"), ("0.1.2.3.4", "")])
def test_printed_lines_have_a_legend_of_heads(show: Show, heads: str, key: str) -> None:
    tab = show(make_case(), f"#view=heads&heads={heads}")
    assert not tab.locator(".heads-key").is_visible()
    chips = "(all) => all.map((one) => getComputedStyle(one).backgroundColor.match(/\\d+/g).map(Number))"
    hues = tab.locator(".chip[aria-pressed=true] i").evaluate_all(chips)
    tab.emulate_media(media="print")
    legend_key = tab.locator(".heads-key")
    assert legend_key.is_visible() == bool(key)
    if key:
        assert legend_key.inner_text().replace("\n", "") == key
        first = "(all) => all.map((one) => [...one.getContext('2d').getImageData(1, 1, 1, 1).data.slice(0, 3)])"
        assert legend_key.locator("canvas").evaluate_all(first) == hues


def test_dark_page_is_printed_in_light_colours(show: Show) -> None:
    shades = "() => [...document.querySelectorAll('.word')].map((cell) => cell.style.background)"
    light = show(reference_page(), "#view=lens").evaluate(shades)
    tab = show(reference_page(), "#view=lens", color_scheme="dark")
    dark = tab.evaluate(shades)
    tab.evaluate(f"() => addEventListener('beforeprint', () => (window.printed = ({shades})()))")
    tab.pdf()
    assert tab.evaluate("() => window.printed") == light != dark
    assert tab.evaluate(shades) == dark
