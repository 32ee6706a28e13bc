"""The lens in a real browser: the model's prediction after every layer, with the exact numbers."""

from types import SimpleNamespace

import pytest
import torch
from playwright.sync_api import Page

from tests.quick import few
from tests.view.conftest import Show
from tests.view.reference_pages import (
    LENS_SIZE,
    POINTS,
    TEXTS,
    TWO_FRAMES,
    ReferencePage,
    comparison_page,
    reference_page,
)

DETAIL = """() => [...document.querySelectorAll(".lens-detail tbody tr")]
  .map((row) => [row.dataset.id, row.cells[3].textContent])"""
SHADE = "(cell) => getComputedStyle(cell).backgroundColor.match(/\\d+/g).map(Number)"
DARKEST, PAPER = (17, 43, 91), (251, 250, 243)


def assert_detail(page: ReferencePage, tab: Page, row: int, token: int) -> None:
    """Asserts that the list beside the grid has this cell's tokens and log-probabilities, the readout the likeliest."""
    tab.evaluate(TWO_FRAMES)
    shown = tab.evaluate(DETAIL)
    ids, log_probabilities = (page.numbers[f"lens.{part}"][row, token] for part in ("ids", "log_probabilities"))
    assert [int(id_) for id_, _ in shown] == ids.tolist()
    assert torch.tensor([float(text) for _, text in shown]).allclose(log_probabilities, rtol=0, atol=1e-7)
    assert float(tab.locator(".readout-value").inner_text()) == pytest.approx(log_probabilities[0].item(), abs=1e-7)
    assert f"({token})" in tab.locator(".readout-words").inner_text()


def test_every_cell_shows_its_likeliest_tokens(show: Show) -> None:
    tab = show(page := reference_page(), "#view=lens")
    for row in range(len(POINTS)):
        for token in range(0, len(TEXTS), 2):
            cell = tab.locator(f".word[data-row='{row}'][data-column='{token}']")
            cell.hover()
            best = page.numbers["lens.ids"][row, token, 0].item()
            assert cell.inner_text() == page.manifest["lens"]["tokens_by_id"][str(best)].replace(" ", "·")
            assert_detail(page, tab, row, token)
    assert tab.locator(".words-name").all_inner_texts()[1:] == ["embeddings", "layer 0", "layer 1"]


def test_shade_is_the_probability(show: Show) -> None:
    page = reference_page()
    page.numbers["lens.log_probabilities"][1, 2, 0], page.numbers["lens.log_probabilities"][1, 3, 0] = 0.0, -40.0
    page.store("lens.log_probabilities", page.numbers["lens.log_probabilities"])
    tab = show(page, "#view=lens")
    certain, impossible = (tab.locator(f".word[data-row='1'][data-column='{token}']") for token in (2, 3))
    assert tuple(certain.evaluate(SHADE)) == DARKEST and tuple(impossible.evaluate(SHADE)) == PAPER
    assert certain.evaluate("(cell) => cell.style.color") == "rgb(255, 255, 255)"
    assert impossible.evaluate("(cell) => cell.style.color") == "rgb(0, 0, 0)"


@pytest.mark.parametrize("width", few([320, 700, 1000, 1280], [320, 1280]))
def test_long_token_does_not_clip_numbers(show: Show, width: int) -> None:
    page = reference_page()
    page.manifest["lens"]["tokens_by_id"] = dict.fromkeys(page.manifest["lens"]["tokens_by_id"], "<0xEF><0xBC><0x8C>")
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
def test_selected_cell_is_visible_on_any_shade(show: Show, scheme: str) -> None:
    """Ink is nearly as dark as the deepest shade, in dark mode as bright: a ring of the paper's colour is in it."""
    tab = show(reference_page(), "#view=lens", color_scheme=scheme)
    paper = tab.locator(".words-name").first.evaluate("(name) => getComputedStyle(name).backgroundColor")
    cell = tab.locator(".word[data-row='1'][data-column='2']")
    for action, width in ((cell.hover, 2), (cell.click, 3)):
        action()
        tab.evaluate(TWO_FRAMES)
        outline, colour, shadow = cell.evaluate(RINGS)
        assert outline == width and colour != paper
        assert shadow.startswith(paper) and float(shadow.split("px")[-2]) > width and "inset" in shadow


def test_shades_are_kept_in_forced_colours(show: Show) -> None:
    page = reference_page()
    page.numbers["lens.log_probabilities"][1, 2, 0] = 0.0
    page.store("lens.log_probabilities", page.numbers["lens.log_probabilities"])
    tab = show(page, "#view=lens", forced_colors="active")
    assert tuple(tab.locator(".word[data-row='1'][data-column='2']").evaluate(SHADE)) == DARKEST


@pytest.mark.parametrize("view", ["view=lens", "view=diff&diff=lens"])
def test_nan_is_shown_in_its_cell(show: Show, view: str) -> None:
    page = comparison_page(0, 3)
    page.numbers["lens.log_probabilities"][1, 2] = torch.nan
    page.store("lens.log_probabilities", page.numbers["lens.log_probabilities"])
    cell = show(page, f"#{view}").locator(".word[data-row='1'][data-column='2']")
    assert cell.inner_text() == "NaN" and tuple(cell.evaluate(SHADE)) == PAPER
    assert cell.evaluate("(cell) => cell.style.color") == "rgb(0, 0, 0)"


def test_keyboard_moves_in_the_grid_and_pins_a_cell(show: Show) -> None:
    tab = show(page := reference_page(), "#view=lens")
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown", "Space"):
        tab.keyboard.press(key)
    assert_detail(page, tab, 1, 1)
    focused = tab.locator(".word:focus")
    assert focused.get_attribute("data-column") == "1" and tab.locator(".word[tabindex='0']").count() == 1
    tab.locator(".word[data-row='0'][data-column='5']").hover()
    assert_detail(page, tab, 1, 1)
    assert "pinned" in tab.locator(".readout").inner_text()
    tab.keyboard.press("Escape")
    tab.evaluate(TWO_FRAMES)
    assert "point at a cell" in tab.locator(".readout").inner_text()


def test_correct_predictions_are_marked_and_counted(show: Show) -> None:
    page = reference_page()
    ids = page.numbers["lens.ids"]
    ids[2, 0, 0], ids[2, 3, 0], ids[1, 1, 2] = 1, 4, 2
    page.store("lens.ids", ids)
    correct = sum(int(ids[2, token, 0]) == token + 1 for token in range(len(TEXTS) - 1))
    tab = show(page, "#view=lens")
    assert tab.locator(".word[data-row='2'][data-mark]").count() == correct
    assert f"{correct} of {len(TEXTS) - 1} after the last layer" in tab.locator(".legend").inner_text()
    tab.locator(".word[data-row='1'][data-column='1']").hover()
    tab.evaluate(TWO_FRAMES)
    assert "“·like”: number 3 in this list" in tab.locator(".lens-detail").inner_text()
    tab.locator(".word[data-row='1'][data-column='6']").hover()
    tab.evaluate(TWO_FRAMES)
    assert "The text ends here" in tab.locator(".lens-detail").inner_text()


def test_long_texts_draw_only_visible_columns(show: Show) -> None:
    texts = [f" w{i}" for i in range(600)]
    tab = show(page := reference_page(texts=texts), "#view=lens")
    assert tab.locator(".word").count() < 60
    tab.locator(".words").evaluate("(grid) => (grid.scrollLeft = 30_000)")
    tab.locator(".word[data-column='290']").first.hover()
    assert_detail(page, tab, 0, 290)
    assert tab.locator(".word").count() < 60 and tab.evaluate("document.querySelectorAll('*').length") < 3000
    tab.keyboard.press("/")
    tab.keyboard.type("w512")
    tab.keyboard.press("Enter")
    assert_detail(page, tab, 0, 512)
    assert tab.locator(".word:focus").get_attribute("data-column") == "512"


def test_table_has_the_selected_column(show: Show) -> None:
    tab = show(page := reference_page(), "#view=lens")
    tab.locator(".word[data-row='1'][data-column='3']").hover()
    tab.evaluate(TWO_FRAMES)
    tab.keyboard.press("t")
    lines = tab.locator("dialog tbody tr").all()
    assert len(lines) == len(POINTS)
    for row, line in enumerate(lines):
        log_probabilities = [float(text) for text in line.locator("td").all_inner_texts()[1::2]]
        assert log_probabilities == pytest.approx(
            page.numbers["lens.log_probabilities"][row, 3, :LENS_SIZE].tolist(), abs=1e-7
        )


def test_selected_number_is_copied_as_python(show: Show) -> None:
    tab = show(page := reference_page(), "#view=lens")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.keyboard.press("c")
    tab.get_by_text("there is nothing here to copy as Python").wait_for()
    tab.locator(".word[data-row='1'][data-column='3']").hover()
    tab.evaluate(TWO_FRAMES)
    tab.keyboard.press("c")
    tab.get_by_text("copied: lens").wait_for()
    lens = SimpleNamespace(log_probabilities=page.numbers["lens.log_probabilities"])
    number = eval(tab.evaluate("() => navigator.clipboard.readText()"), {"lens": lens})
    assert float(tab.locator(".readout-value").inner_text()) == pytest.approx(number.item(), abs=1e-7)


def test_lens_view_needs_a_lens(show: Show) -> None:
    tab = show(reference_page(lens=False), "#view=lens")
    assert tab.get_by_role("button", name="Lens").count() == 0
