"""The lens in a real browser: the model's prediction after every layer, with the exact numbers."""

from types import SimpleNamespace

import pytest
import torch
from playwright.sync_api import Page

from tests.quick import few
from tests.view.conftest import Show
from tests.view.reference_pages import DRAWN, KEPT, PLACES, TEXTS, Written, compared, written

DETAIL = """() => [...document.querySelectorAll(".lens-detail tbody tr")]
  .map((row) => [row.dataset.id, row.cells[3].textContent])"""
SHADE = "(cell) => getComputedStyle(cell).backgroundColor.match(/\\d+/g).map(Number)"
DARKEST, PAPER = (17, 43, 91), (251, 250, 243)


def says(page: Written, tab: Page, place: int, token: int) -> None:
    """The list beside the grid has this cell's tokens and log-probabilities, the readout the most likely of them."""
    tab.evaluate(DRAWN)
    shown = tab.evaluate(DETAIL)
    ids, logs = (page.numbers[f"lens.{part}"][place, token] for part in ("ids", "log_probabilities"))
    assert [int(id_) for id_, _ in shown] == ids.tolist()
    assert torch.tensor([float(text) for _, text in shown]).allclose(logs, rtol=0, atol=1e-7)
    assert float(tab.locator(".readout-value").inner_text()) == pytest.approx(logs[0].item(), abs=1e-7)
    assert f"({token})" in tab.locator(".readout-words").inner_text()


def test_every_cell_says_its_likeliest_words(show: Show) -> None:
    tab = show(page := written(), "#view=lens")
    for place in range(len(PLACES)):
        for token in range(0, len(TEXTS), 2):
            cell = tab.locator(f".word[data-row='{place}'][data-column='{token}']")
            cell.hover()
            best = page.numbers["lens.ids"][place, token, 0].item()
            assert cell.inner_text() == page.manifest["lens"]["words"][str(best)].replace(" ", "·")
            says(page, tab, place, token)
    assert tab.locator(".words-name").all_inner_texts()[1:] == ["embeddings", "layer 0", "layer 1"]


def test_the_shade_is_the_probability(show: Show) -> None:
    page = written()
    page.numbers["lens.log_probabilities"][1, 2, 0], page.numbers["lens.log_probabilities"][1, 3, 0] = 0.0, -40.0
    page.store("lens.log_probabilities", page.numbers["lens.log_probabilities"])
    tab = show(page, "#view=lens")
    sure, never = (tab.locator(f".word[data-row='1'][data-column='{token}']") for token in (2, 3))
    assert tuple(sure.evaluate(SHADE)) == DARKEST and tuple(never.evaluate(SHADE)) == PAPER
    assert sure.evaluate("(cell) => cell.style.color") == "rgb(255, 255, 255)"
    assert never.evaluate("(cell) => cell.style.color") == "rgb(0, 0, 0)"


@pytest.mark.parametrize("width", few([320, 700, 1000, 1280], [320, 1280]))
def test_no_number_is_cut_off_by_a_long_word(show: Show, width: int) -> None:
    page = written()
    page.manifest["lens"]["words"] = dict.fromkeys(page.manifest["lens"]["words"], "<0xEF><0xBC><0x8C>")
    page.numbers["lens.log_probabilities"][-1, -1, 0] = -1.23456789e-5
    page.store("lens.log_probabilities", page.numbers["lens.log_probabilities"])
    tab = show(page, "#view=lens", viewport={"width": width, "height": 900})
    detail = tab.locator(".lens-detail")
    assert "-0.00001234567" in detail.inner_text()
    assert detail.evaluate("(box) => box.scrollWidth - box.clientWidth") == 0
    assert detail.locator("tbody th").first.get_attribute("title") == "<0xEF><0xBC><0x8C>"


RINGS = """(cell) => {
  const { outlineWidth, outlineColor, boxShadow } = getComputedStyle(cell);
  return [parseFloat(outlineWidth), outlineColor, boxShadow];
}"""


@pytest.mark.parametrize("scheme", few(["light", "dark"], ["light"]))
def test_the_cell_in_hand_is_seen_on_any_shade(show: Show, scheme: str) -> None:
    """Ink is nearly as dark as the deepest shade, in dark mode as bright: a ring of the paper's colour is in it."""
    tab = show(written(), "#view=lens", color_scheme=scheme)
    paper = tab.locator(".words-name").first.evaluate("(name) => getComputedStyle(name).backgroundColor")
    cell = tab.locator(".word[data-row='1'][data-column='2']")
    for act, width in ((cell.hover, 2), (cell.click, 3)):
        act()
        tab.evaluate(DRAWN)
        outline, colour, shadow = cell.evaluate(RINGS)
        assert outline == width and colour != paper
        assert shadow.startswith(paper) and float(shadow.split("px")[-2]) > width and "inset" in shadow


def test_shades_are_data_where_colours_are_forced(show: Show) -> None:
    page = written()
    page.numbers["lens.log_probabilities"][1, 2, 0] = 0.0
    page.store("lens.log_probabilities", page.numbers["lens.log_probabilities"])
    tab = show(page, "#view=lens", forced_colors="active")
    assert tuple(tab.locator(".word[data-row='1'][data-column='2']").evaluate(SHADE)) == DARKEST


@pytest.mark.parametrize("view", ["view=lens", "view=diff&diff=lens"])
def test_where_a_model_says_no_number_the_cell_says_so(show: Show, view: str) -> None:
    page = compared(0, 3)
    page.numbers["lens.log_probabilities"][1, 2] = torch.nan
    page.store("lens.log_probabilities", page.numbers["lens.log_probabilities"])
    cell = show(page, f"#{view}").locator(".word[data-row='1'][data-column='2']")
    assert cell.inner_text() == "NaN" and tuple(cell.evaluate(SHADE)) == PAPER
    assert cell.evaluate("(cell) => cell.style.color") == "rgb(0, 0, 0)"


def test_the_grid_is_walked_by_keyboard_and_pinned(show: Show) -> None:
    tab = show(page := written(), "#view=lens")
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown", "Space"):
        tab.keyboard.press(key)
    says(page, tab, 1, 1)
    focused = tab.locator(".word:focus")
    assert focused.get_attribute("data-column") == "1" and tab.locator(".word[tabindex='0']").count() == 1
    tab.locator(".word[data-row='0'][data-column='5']").hover()
    says(page, tab, 1, 1)
    assert "pinned" in tab.locator(".readout").inner_text()
    tab.keyboard.press("Escape")
    tab.evaluate(DRAWN)
    assert "point at a cell" in tab.locator(".readout").inner_text()


def test_what_the_text_really_says_is_marked_and_counted(show: Show) -> None:
    page = written()
    ids = page.numbers["lens.ids"]
    ids[2, 0, 0], ids[2, 3, 0], ids[1, 1, 2] = 1, 4, 2
    page.store("lens.ids", ids)
    right = sum(int(ids[2, token, 0]) == token + 1 for token in range(len(TEXTS) - 1))
    tab = show(page, "#view=lens")
    assert tab.locator(".word[data-row='2'][data-mark]").count() == right
    assert f"{right} of {len(TEXTS) - 1} after the last layer" in tab.locator(".legend").inner_text()
    tab.locator(".word[data-row='1'][data-column='1']").hover()
    tab.evaluate(DRAWN)
    assert "“·like”: number 3 in this list" in tab.locator(".lens-detail").inner_text()
    tab.locator(".word[data-row='1'][data-column='6']").hover()
    tab.evaluate(DRAWN)
    assert "The text ends here" in tab.locator(".lens-detail").inner_text()


def test_long_texts_are_drawn_through_a_window(show: Show) -> None:
    texts = [f" w{i}" for i in range(600)]
    tab = show(page := written(texts=texts), "#view=lens")
    assert tab.locator(".word").count() < 60
    tab.locator(".words").evaluate("(grid) => (grid.scrollLeft = 30_000)")
    tab.locator(".word[data-column='290']").first.hover()
    says(page, tab, 0, 290)
    assert tab.locator(".word").count() < 60 and tab.evaluate("document.querySelectorAll('*').length") < 3000
    tab.keyboard.press("/")
    tab.keyboard.type("w512")
    tab.keyboard.press("Enter")
    says(page, tab, 0, 512)
    assert tab.locator(".word:focus").get_attribute("data-column") == "512"


def test_the_table_holds_the_column_in_hand(show: Show) -> None:
    tab = show(page := written(), "#view=lens")
    tab.locator(".word[data-row='1'][data-column='3']").hover()
    tab.evaluate(DRAWN)
    tab.keyboard.press("t")
    lines = tab.locator("dialog tbody tr").all()
    assert len(lines) == len(PLACES)
    for place, line in enumerate(lines):
        logs = [float(text) for text in line.locator("td").all_inner_texts()[1::2]]
        assert logs == pytest.approx(page.numbers["lens.log_probabilities"][place, 3, :KEPT].tolist(), abs=1e-7)


def test_the_number_in_hand_is_copied_as_python_that_gives_it(show: Show) -> None:
    tab = show(page := written(), "#view=lens")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.keyboard.press("c")
    tab.get_by_text("there is nothing here to copy as Python").wait_for()
    tab.locator(".word[data-row='1'][data-column='3']").hover()
    tab.evaluate(DRAWN)
    tab.keyboard.press("c")
    tab.get_by_text("copied: lens").wait_for()
    lens = SimpleNamespace(log_probabilities=page.numbers["lens.log_probabilities"])
    number = eval(tab.evaluate("() => navigator.clipboard.readText()"), {"lens": lens})
    assert float(tab.locator(".readout-value").inner_text()) == pytest.approx(number.item(), abs=1e-7)


def test_without_a_lens_there_is_no_such_view(show: Show) -> None:
    tab = show(written(lens=False), "#view=lens")
    assert tab.get_by_role("button", name="Lens").count() == 0
