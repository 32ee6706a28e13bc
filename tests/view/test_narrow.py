"""The page on a phone and in a small window: words and numbers do not overlap, and nothing needed is cut off."""

import pytest
from playwright.sync_api import Page

from tests.view.conftest import READOUT, Show
from tests.view.reference_pages import TWO_FRAMES, comparison_page, reference_page
from tests.view.test_grid import encoder_decoder_page, grid_page
from tests.view.test_page import make_case
from tests.view.test_widths import CUT

PHONE = {"width": 320, "height": 900}
TOKENS = ["[CLS]", "fruit", "flies", "like", "a", "banana", "fruit", "windows", "[SEP]"]
AROUND_OUTLINE = """() => {
  const now = document.activeElement;
  const { outlineWidth, outlineOffset } = getComputedStyle(now);
  const [grown, box] = [parseFloat(outlineWidth) + parseFloat(outlineOffset), now.getBoundingClientRect()];
  return [box.left - grown, box.top - grown, box.right + grown];
}"""
"""The left, top and right edges of what is drawn around the focused element."""


def bounding_box(tab: Page, one: str) -> dict[str, float]:
    found = tab.locator(one).first.bounding_box()
    return {"left": found["x"], "top": found["y"], "right": found["x"] + found["width"],
            "bottom": found["y"] + found["height"]}  # fmt: skip


@pytest.mark.parametrize(("side", "other"), [("query", "key"), ("key", "query")])
def test_tokens_beside_numbers_are_not_clipped_on_a_phone(show: Show, side: str, other: str) -> None:
    tab = show(make_case(texts=TOKENS), f"#view=heads&{side}=7", viewport=PHONE)
    tab.evaluate(READOUT)
    assert tab.locator(f".column.{other} .number").first.inner_text().startswith("0.")
    assert tab.evaluate(CUT) == []
    for index in range(len(TOKENS)):
        row = f".column.{other} .row[data-index='{index}']"
        word, number = bounding_box(tab, f"{row} .token"), bounding_box(tab, f"{row} .number")
        assert word["bottom"] <= number["top"] + 2 or word["right"] <= number["left"], TOKENS[index]
        assert (
            number["bottom"] <= bounding_box(tab, row)["bottom"] and number["right"] <= bounding_box(tab, row)["right"]
        )


def test_lines_begin_at_their_token_if_numbers_are_below(show: Show) -> None:
    tab = show(make_case(texts=TOKENS), "#view=heads&query=3", viewport=PHONE)
    tab.evaluate(READOUT)
    painted = tab.evaluate("""() => {
      const canvas = document.querySelector(".middle canvas");
      const { data } = canvas.getContext("2d").getImageData(1, 0, 1, canvas.height);
      const rows = [...Array(canvas.height).keys()].filter((row) => data[4 * row + 3] > 0);
      return canvas.getBoundingClientRect().top + (rows[0] + rows.at(-1)) / 2;
    }""")
    word = bounding_box(tab, ".column.query .row[data-index='3'] .token")
    assert word["top"] < painted < word["bottom"]


@pytest.mark.parametrize("width", [320, 480, 1200])
def test_index_of_a_token_covers_no_token(show: Show, width: int) -> None:
    tab = show(
        make_case(texts=[f"w{i % 3}" for i in range(130)]), "#view=heads&query=112", viewport=PHONE | {"width": width}
    )
    tab.evaluate(READOUT)
    for side, inner, outer in (("query", "right", "left"), ("key", "left", "right")):
        row = tab.locator(f".column.{side} .row[data-index='110']")
        style = row.evaluate("(one) => ({ ...getComputedStyle(one, '::after') })")
        word, number = (row.locator(one).bounding_box() for one in (".token", ".number"))
        whole, broad = row.bounding_box(), float(style["width"].removesuffix("px"))
        if style["bottom"] == "4px":  # below the word, at the outer end of the number's line
            assert style[outer] == "4px" and whole["width"] - number["width"] > broad + 12
        else:
            gap = word["x"] - whole["x"] if inner == "left" else whole["x"] + whole["width"] - word["x"] - word["width"]
            assert gap >= broad + float(style[inner].removesuffix("px"))


@pytest.mark.parametrize("width", [320, 480, 761])
def test_overview_strip_of_a_long_text_covers_no_number(show: Show, width: int) -> None:
    tab = show(make_case(seq=120), "#view=heads&query=3", viewport=PHONE | {"width": width})
    tab.evaluate(READOUT)
    assert bounding_box(tab, ".column.key .number")["right"] <= bounding_box(tab, ".strip")["left"]


@pytest.mark.parametrize("width", [320, 768, 1200])
def test_selected_row_is_framed_on_all_sides(show: Show, width: int) -> None:
    tab = show(make_case(), "#view=heads", viewport=PHONE | {"width": width})
    for key in ("ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)
        left, _, right = tab.evaluate(AROUND_OUTLINE)
        frame = bounding_box(tab, ".scroller")
        assert frame["left"] <= left and right <= frame["right"]


def test_frame_of_the_grid_is_not_covered(show: Show) -> None:
    tab = show(grid_page(), "#view=grid")
    tab.keyboard.press("ArrowDown")
    tab.evaluate(TWO_FRAMES)
    assert bounding_box(tab, ".readout")["bottom"] <= tab.evaluate(AROUND_OUTLINE)[1]


def test_mark_of_the_first_head_is_not_covered(show: Show) -> None:
    tab = show(grid_page(), "#view=grid&layer=0&head=0")
    tab.evaluate(TWO_FRAMES)
    mark, names = bounding_box(tab, ".grid-current"), bounding_box(tab, ".grid-row[data-place='0'] .grid-layer")
    assert names["right"] + 3 <= mark["left"] and bounding_box(tab, ".grid-heads")["bottom"] + 3 <= mark["top"]


def test_layer_names_stay_visible_when_scrolled(show: Show) -> None:
    tab = show(grid_page(heads=16), "#view=grid&head=15&layer=1", viewport=PHONE)
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".grid").evaluate("(one) => one.scrollLeft") > 100
    name, frame = bounding_box(tab, ".grid-row[data-place='1'] .grid-layer"), bounding_box(tab, ".grid")
    assert name["left"] == pytest.approx(frame["left"], abs=1)
    before = tab.locator(".readout").inner_text()
    tab.mouse.click(name["left"] + 10, (name["top"] + name["bottom"]) / 2)
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".grid").is_visible() and tab.locator(".readout").inner_text() == before


def test_titles_of_the_grid_are_not_clipped_on_a_phone(show: Show) -> None:
    tab = show(encoder_decoder_page(), "#view=grid", viewport=PHONE)
    tab.evaluate(TWO_FRAMES)
    tops = tab.locator(".grid-row").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().top)")
    for title in tab.locator(".grid-title").all():
        right, bottom = title.evaluate("""(one) => {
          const range = document.createRange();
          range.selectNodeContents(one);
          const { right, bottom } = range.getBoundingClientRect();
          return [right, bottom];
        }""")
        assert right <= bounding_box(tab, ".grid")["right"] and any(0 <= top - bottom < 12 for top in tops), (
            title.inner_text()
        )


def test_axis_names_of_a_matrix_are_not_clipped_on_a_phone(show: Show) -> None:
    tab = show(make_case(), "#view=matrix", viewport=PHONE)
    tab.evaluate(READOUT)
    for name in tab.locator(".axes b").all():
        assert name.bounding_box()["x"] >= bounding_box(tab, ".matrix")["left"], name.inner_text()


@pytest.mark.parametrize("width", [761, 800, 961])
def test_strips_of_the_neuron_view_are_wide_enough(show: Show, width: int) -> None:
    tab = show(make_case(), "#view=neuron", viewport=PHONE | {"width": width})
    tab.evaluate(TWO_FRAMES)
    assert min(tab.locator(".keylist-row canvas").evaluate_all("(all) => all.map((one) => one.clientWidth)")) > 60


def test_keys_of_the_neuron_view_are_not_clipped_on_a_phone(show: Show) -> None:
    tab = show(make_case(texts=TOKENS), "#view=neuron&query=1", viewport=PHONE)
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".keylist-row").count() == len(TOKENS)
    cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert tab.locator(".keylist-token").evaluate_all(cut) == []
    ends = "(all) => all.map((one) => one.getBoundingClientRect().left + one.scrollWidth)"
    assert max(tab.locator(".chain-link b").evaluate_all(ends)) <= 304


def test_small_window_shows_several_tokens_of_a_lens(show: Show) -> None:
    tab = show(reference_page(), "#view=lens", viewport={"width": 800, "height": 900})
    tab.evaluate(TWO_FRAMES)
    right = bounding_box(tab, ".words")["right"]
    ends = tab.locator(".words-heading").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().right)")
    assert sum(end <= right for end in ends) >= 5


def test_overview_of_a_comparison_fits_a_phone(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.view.reference_pages.HEADS", 12)
    tab = show(comparison_page(0, 3), "#view=diff", viewport=PHONE)
    tab.evaluate(TWO_FRAMES)
    assert bounding_box(tab, ".diff [aria-label='all heads'] canvas")["right"] <= 304


def test_a_dialog_can_be_read_and_closed_on_a_phone(show: Show) -> None:
    tab = show(reference_page(), "#view=tensor", viewport={"width": 320, "height": 500})
    tab.keyboard.press("t")
    caption = tab.locator("dialog caption").evaluate("(one) => one.getBoundingClientRect().right")
    assert caption <= bounding_box(tab, "dialog")["right"] < 320
    tab.keyboard.press("Escape")
    tab.locator("dialog").wait_for(state="detached")
    tab.keyboard.press("?")
    tab.locator("dialog").evaluate("(one) => (one.scrollTop = one.scrollHeight)")
    close, frame = bounding_box(tab, "dialog .close"), bounding_box(tab, "dialog")
    assert frame["top"] <= close["top"] and close["right"] <= frame["right"]
    tab.locator("dialog .close").click()
    tab.locator("dialog").wait_for(state="detached")


def test_help_is_readable_on_a_phone(show: Show) -> None:
    tab = show(comparison_page(0, 3), viewport=PHONE)
    tab.keyboard.press("?")
    descriptions = tab.locator("dialog dd").evaluate_all("(all) => all.map((one) => one.clientWidth)")
    keys = tab.locator("dialog kbd").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().right)")
    assert min(descriptions) > 110 and max(keys) < bounding_box(tab, "dialog dd")["left"]


def test_right_to_left_tokens_do_not_reverse_names(show: Show) -> None:
    tab = show(make_case(texts=["שלום"] * 40), "#view=heads")
    for key, name in (("t", "tbody th"), ("/", "li")):
        tab.keyboard.press(key)
        element = tab.locator(f"dialog {name}").first
        assert element.locator("bdi").inner_text() == element.inner_text() and "“שלום” (" in element.inner_text()
        tab.keyboard.press("Escape")
        tab.locator("dialog").wait_for(state="detached")


TOP = "() => document.querySelector('.stage').getBoundingClientRect().top + scrollY"


@pytest.mark.parametrize(("view", "width"), [("heads", 768), ("matrix", 480), ("lens", 768), ("tensor", 320)])
def test_layout_does_not_shift_while_selecting(show: Show, view: str, width: int) -> None:
    tab = show(reference_page(), f"#view={view}", viewport=PHONE | {"width": width})
    tops = [tab.evaluate(TOP)]
    for key in [*["ArrowDown"] * 3, *["ArrowRight"] * 3, "Space", "ArrowDown"]:
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)
        tops.append(tab.evaluate(TOP))
    assert len(set(tops)) == 1, tops


def test_readout_of_several_lines_keeps_its_height(show: Show) -> None:
    tab = show(make_case(texts=["a", "b", "incomprehensibilities" * 2, "c"]), "#view=matrix", viewport=PHONE)
    tops = []
    for key in ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "h"]:
        tab.keyboard.press(key)
        tab.evaluate(READOUT)
        tops.append(tab.evaluate(TOP))
    assert tops[:-1] == sorted(tops[:-1]) and tops[0] < tops[-2] and tops[-1] < tops[-2]


def test_descriptions_of_differences_are_beside_their_numbers(show: Show) -> None:
    tab = show(comparison_page(0, 3), "#view=diff&layer=0&heads=1", viewport=PHONE)
    tab.evaluate(TWO_FRAMES)
    numbers, notes = (
        tab.locator(f".diff-list {one}").evaluate_all(
            "(all) => all.flatMap((one) => [...one.getClientRects()].map(({ left, right }) => [left, right]))"
        )
        for one in ("b", "small")
    )
    assert max(right for _, right in numbers) + 5 < min(left for left, _ in notes)
