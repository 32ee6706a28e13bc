"""The page on a phone and in a small window: words and numbers do not overlap, and nothing needed is cut off."""

import pytest
from playwright.sync_api import Page

from tests.view.conftest import READ, Show
from tests.view.reference_pages import DRAWN, compared, written
from tests.view.test_grid import SETTLED, grid, three_kinds
from tests.view.test_page import make_case
from tests.view.test_widths import CUT

PHONE = {"width": 320, "height": 900}
WORDS = ["[CLS]", "fruit", "flies", "like", "a", "banana", "fruit", "windows", "[SEP]"]
AROUND_OUTLINE = """() => {
  const now = document.activeElement;
  const { outlineWidth, outlineOffset } = getComputedStyle(now);
  const [grown, box] = [parseFloat(outlineWidth) + parseFloat(outlineOffset), now.getBoundingClientRect()];
  return [box.left - grown, box.top - grown, box.right + grown];
}"""
"""The left, top and right edges of what is drawn around the focused element."""


def box(tab: Page, one: str) -> dict[str, float]:
    found = tab.locator(one).first.bounding_box()
    return {"left": found["x"], "top": found["y"], "right": found["x"] + found["width"],
            "bottom": found["y"] + found["height"]}  # fmt: skip


@pytest.mark.parametrize(("side", "other"), [("query", "key"), ("key", "query")])
def test_words_beside_numbers_are_whole_on_a_phone(show: Show, side: str, other: str) -> None:
    tab = show(make_case(texts=WORDS), f"#view=heads&{side}=7", viewport=PHONE)
    tab.evaluate(READ)
    assert tab.locator(f".column.{other} .number").first.inner_text().startswith("0.")
    assert tab.evaluate(CUT) == []
    for place in range(len(WORDS)):
        row = f".column.{other} .row[data-index='{place}']"
        word, number = box(tab, f"{row} .token"), box(tab, f"{row} .number")
        assert word["bottom"] <= number["top"] + 2 or word["right"] <= number["left"], WORDS[place]
        assert number["bottom"] <= box(tab, row)["bottom"] and number["right"] <= box(tab, row)["right"]


def test_a_line_begins_at_its_word_where_numbers_stand_below(show: Show) -> None:
    tab = show(make_case(texts=WORDS), "#view=heads&query=3", viewport=PHONE)
    tab.evaluate(READ)
    painted = tab.evaluate("""() => {
      const canvas = document.querySelector(".middle canvas");
      const { data } = canvas.getContext("2d").getImageData(1, 0, 1, canvas.height);
      const rows = [...Array(canvas.height).keys()].filter((row) => data[4 * row + 3] > 0);
      return canvas.getBoundingClientRect().top + (rows[0] + rows.at(-1)) / 2;
    }""")
    word = box(tab, ".column.query .row[data-index='3'] .token")
    assert word["top"] < painted < word["bottom"]


@pytest.mark.parametrize("width", [320, 480, 1200])
def test_the_place_of_a_word_covers_no_word(show: Show, width: int) -> None:
    tab = show(
        make_case(texts=[f"w{i % 3}" for i in range(130)]), "#view=heads&query=112", viewport=PHONE | {"width": width}
    )
    tab.evaluate(READ)
    for side, inner, outer in (("query", "right", "left"), ("key", "left", "right")):
        row = tab.locator(f".column.{side} .row[data-index='110']")
        look = row.evaluate("(one) => ({ ...getComputedStyle(one, '::after') })")
        word, number = (row.locator(one).bounding_box() for one in (".token", ".number"))
        whole, broad = row.bounding_box(), float(look["width"].removesuffix("px"))
        if look["bottom"] == "4px":  # below the word, at the outer end of the number's line
            assert look[outer] == "4px" and whole["width"] - number["width"] > broad + 12
        else:
            gap = word["x"] - whole["x"] if inner == "left" else whole["x"] + whole["width"] - word["x"] - word["width"]
            assert gap >= broad + float(look[inner].removesuffix("px"))


@pytest.mark.parametrize("width", [320, 480, 761])
def test_the_strip_of_a_long_text_covers_no_number(show: Show, width: int) -> None:
    tab = show(make_case(seq=120), "#view=heads&query=3", viewport=PHONE | {"width": width})
    tab.evaluate(READ)
    assert box(tab, ".column.key .number")["right"] <= box(tab, ".strip")["left"]


@pytest.mark.parametrize("width", [320, 768, 1200])
def test_a_row_in_hand_is_framed_on_all_sides(show: Show, width: int) -> None:
    tab = show(make_case(), "#view=heads", viewport=PHONE | {"width": width})
    for key in ("ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
        tab.evaluate(DRAWN)
        left, _, right = tab.evaluate(AROUND_OUTLINE)
        frame = box(tab, ".scroller")
        assert frame["left"] <= left and right <= frame["right"]


def test_the_frame_of_the_model_grid_is_not_covered(show: Show) -> None:
    tab = show(grid(), "#view=grid")
    tab.keyboard.press("ArrowDown")
    tab.evaluate(SETTLED)
    assert box(tab, ".readout")["bottom"] <= tab.evaluate(AROUND_OUTLINE)[1]


def test_the_mark_of_the_first_head_is_not_covered(show: Show) -> None:
    tab = show(grid(), "#view=grid&layer=0&head=0")
    tab.evaluate(SETTLED)
    mark, names = box(tab, ".grid-current"), box(tab, ".grid-row[data-place='0'] .grid-layer")
    assert names["right"] + 3 <= mark["left"] and box(tab, ".grid-heads")["bottom"] + 3 <= mark["top"]


def test_layers_keep_their_names_where_heads_were_scrolled_away(show: Show) -> None:
    tab = show(grid(heads=16), "#view=grid&head=15&layer=1", viewport=PHONE)
    tab.evaluate(SETTLED)
    assert tab.locator(".grid").evaluate("(one) => one.scrollLeft") > 100
    name, frame = box(tab, ".grid-row[data-place='1'] .grid-layer"), box(tab, ".grid")
    assert name["left"] == pytest.approx(frame["left"], abs=1)
    before = tab.locator(".readout").inner_text()
    tab.mouse.click(name["left"] + 10, (name["top"] + name["bottom"]) / 2)
    tab.evaluate(SETTLED)
    assert tab.locator(".grid").is_visible() and tab.locator(".readout").inner_text() == before


def test_titles_of_the_model_grid_are_whole_on_a_phone(show: Show) -> None:
    tab = show(three_kinds(), "#view=grid", viewport=PHONE)
    tab.evaluate(SETTLED)
    tops = tab.locator(".grid-row").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().top)")
    for title in tab.locator(".grid-title").all():
        right, bottom = title.evaluate("""(one) => {
          const range = document.createRange();
          range.selectNodeContents(one);
          const { right, bottom } = range.getBoundingClientRect();
          return [right, bottom];
        }""")
        assert right <= box(tab, ".grid")["right"] and any(0 <= top - bottom < 12 for top in tops), title.inner_text()


def test_the_axes_of_a_matrix_are_named_in_full_on_a_phone(show: Show) -> None:
    tab = show(make_case(), "#view=matrix", viewport=PHONE)
    tab.evaluate(READ)
    for name in tab.locator(".axes b").all():
        assert name.bounding_box()["x"] >= box(tab, ".matrix")["left"], name.inner_text()


@pytest.mark.parametrize("width", [761, 800, 961])
def test_strips_of_the_neuron_view_are_broad_enough_to_read(show: Show, width: int) -> None:
    tab = show(make_case(), "#view=neuron", viewport=PHONE | {"width": width})
    tab.evaluate(DRAWN)
    assert min(tab.locator(".keylist-row canvas").evaluate_all("(all) => all.map((one) => one.clientWidth)")) > 60


def test_keys_of_the_neuron_view_are_whole_on_a_phone(show: Show) -> None:
    tab = show(make_case(texts=WORDS), "#view=neuron&query=1", viewport=PHONE)
    tab.evaluate(DRAWN)
    assert tab.locator(".keylist-row").count() == len(WORDS)
    cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert tab.locator(".keylist-token").evaluate_all(cut) == []
    ends = "(all) => all.map((one) => one.getBoundingClientRect().left + one.scrollWidth)"
    assert max(tab.locator(".chain-link b").evaluate_all(ends)) <= 304


def test_a_small_window_shows_several_tokens_of_a_lens(show: Show) -> None:
    tab = show(written(), "#view=lens", viewport={"width": 800, "height": 900})
    tab.evaluate(DRAWN)
    right = box(tab, ".words")["right"]
    ends = tab.locator(".words-heading").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().right)")
    assert sum(end <= right for end in ends) >= 5


def test_the_overview_of_a_comparison_fits_a_phone(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.view.reference_pages.HEADS", 12)
    tab = show(compared(0, 3), "#view=diff", viewport=PHONE)
    tab.evaluate(DRAWN)
    assert box(tab, ".diff [aria-label='all heads'] canvas")["right"] <= 304


def test_a_dialog_can_be_read_and_closed_on_a_phone(show: Show) -> None:
    tab = show(written(), "#view=tensor", viewport={"width": 320, "height": 500})
    tab.keyboard.press("t")
    caption = tab.locator("dialog caption").evaluate("(one) => one.getBoundingClientRect().right")
    assert caption <= box(tab, "dialog")["right"] < 320
    tab.keyboard.press("Escape")
    tab.locator("dialog").wait_for(state="detached")
    tab.keyboard.press("?")
    tab.locator("dialog").evaluate("(one) => (one.scrollTop = one.scrollHeight)")
    close, frame = box(tab, "dialog .close"), box(tab, "dialog")
    assert frame["top"] <= close["top"] and close["right"] <= frame["right"]
    tab.locator("dialog .close").click()
    tab.locator("dialog").wait_for(state="detached")


def test_what_keys_do_is_readable_on_a_phone(show: Show) -> None:
    tab = show(compared(0, 3), viewport=PHONE)
    tab.keyboard.press("?")
    words = tab.locator("dialog dd").evaluate_all("(all) => all.map((one) => one.clientWidth)")
    keys = tab.locator("dialog kbd").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().right)")
    assert min(words) > 110 and max(keys) < box(tab, "dialog dd")["left"]


def test_letters_from_right_to_left_turn_no_name_around(show: Show) -> None:
    tab = show(make_case(texts=["שלום"] * 40), "#view=heads")
    for key, name in (("t", "tbody th"), ("/", "li")):
        tab.keyboard.press(key)
        found = tab.locator(f"dialog {name}").first
        assert found.locator("bdi").inner_text() == found.inner_text() and "“שלום” (" in found.inner_text()
        tab.keyboard.press("Escape")
        tab.locator("dialog").wait_for(state="detached")


TOP = "() => document.querySelector('.stage').getBoundingClientRect().top + scrollY"


@pytest.mark.parametrize(("view", "width"), [("heads", 768), ("matrix", 480), ("lens", 768), ("tensor", 320)])
def test_nothing_moves_away_from_a_pointer(show: Show, view: str, width: int) -> None:
    tab = show(written(), f"#view={view}", viewport=PHONE | {"width": width})
    tops = [tab.evaluate(TOP)]
    for key in [*["ArrowDown"] * 3, *["ArrowRight"] * 3, "Space", "ArrowDown"]:
        tab.keyboard.press(key)
        tab.evaluate(DRAWN)
        tops.append(tab.evaluate(TOP))
    assert len(set(tops)) == 1, tops


def test_what_has_taken_several_lines_keeps_them_in_its_view(show: Show) -> None:
    tab = show(make_case(texts=["a", "b", "incomprehensibilities" * 2, "c"]), "#view=matrix", viewport=PHONE)
    tops = []
    for key in ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "h"]:
        tab.keyboard.press(key)
        tab.evaluate(READ)
        tops.append(tab.evaluate(TOP))
    assert tops[:-1] == sorted(tops[:-1]) and tops[0] < tops[-2] and tops[-1] < tops[-2]


def test_what_is_said_of_a_difference_hangs_beside_its_number(show: Show) -> None:
    tab = show(compared(0, 3), "#view=diff&layer=0&heads=1", viewport=PHONE)
    tab.evaluate(DRAWN)
    numbers, notes = (
        tab.locator(f".diff-list {one}").evaluate_all(
            "(all) => all.flatMap((one) => [...one.getClientRects()].map(({ left, right }) => [left, right]))"
        )
        for one in ("b", "small")
    )
    assert max(right for _, right in numbers) + 5 < min(left for left, _ in notes)
