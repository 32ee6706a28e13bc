"""The model grid in a real browser: its pictures are the stored ones, and each opens the head that it shows."""

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

import pellucid
from pellucid.view.data import PageData
from pellucid.view.page import render
from tests.view.conftest import Show, wait_until
from tests.view.page_builder import PageBuilder, tokens_of
from tests.view.test_access import AXE, CONTRAST, SERIOUS

NODES = "() => document.querySelectorAll('*').length"
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
CELL_COLOURS = """(canvas, [heads, rows, columns]) => {
  const { width, height } = canvas, step = width / heads;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const middle = (place, count, size) => Math.floor(((place + 0.5) * size) / count);
  const list = (count, of) => Array.from({ length: count }, (_, place) => of(place));
  const cell = (head, row, column) => {
    const at = 4 * (middle(row, rows, height) * width + head * step + middle(column, columns, step - 6));
    return [...data.slice(at, at + 4)];
  };
  return list(heads, (head) => list(rows, (row) => list(columns, (column) => cell(head, row, column)))) }"""


def grid_page(layers: int = 3, heads: int = 5, tokens: int = 7, rows: int | None = None, **recipe: Any) -> PageData:
    """A page of random pictures, which need not match its random queries and keys."""
    builder = PageBuilder(("", tokens_of(tokens)))
    for layer in range(layers):
        entry = builder.attention(layer=layer, heads=heads, **recipe)
        add_picture(builder, entry, heads, rows or tokens, rows or tokens)
    return builder.data()


def add_picture(builder: PageBuilder, entry: dict[str, Any], heads: int, rows: int, columns: int) -> None:
    values = builder.generator.integers(0, 256, size=(heads, rows, columns), dtype="u1")
    entry["thumb"] = builder.block(f"{entry['name']}.thumb", values, coding="sqrt")


def stored_pictures(data: PageData, layer: int) -> np.ndarray:
    name = data.manifest["attentions"][layer]["thumb"]
    return np.frombuffer(data.blocks[name], "u1").reshape(data.manifest["blocks"][name]["shape"]).astype("f8")


def drawn_colours(tab: Page, layer: int, heads: int, rows: int, columns: int) -> np.ndarray:
    """The centre of every cell of every picture of one layer: heads × rows × columns × red, green, blue, opacity."""
    tab.evaluate(TWO_FRAMES)
    row = tab.locator(f".grid-row[data-place='{layer}'] canvas")
    return np.array(row.evaluate(CELL_COLOURS, [heads, rows, columns]), "f8")


def colour_ramp(tab: Page, theme: str) -> np.ndarray:
    return np.array(tab.evaluate("(theme) => [...colour.ramp(theme)]", theme), "f8").reshape(256, 3)


def centre_of_head(tab: Page, layer: int, head: int, heads: int) -> tuple[float, float]:
    box = tab.locator(f".grid-row[data-place='{layer}'] canvas").bounding_box()
    return box["x"] + (head + 0.45) * box["width"] / heads, box["y"] + box["height"] / 2


def test_omitted_layers_are_named(show: Show, minilm: "pellucid.Model") -> None:
    """The matrix of such a layer shows no colour scale."""
    whole = pellucid.view(minilm.trace("time flies like an arrow"))
    assert "a picture opens." in show(whole.data, "#view=grid").inner_text("body")
    text = " ".join(f"word {i}" for i in range(120))
    small = pellucid.view(minilm.trace(text), layer=0, heads=[8], budget_mb=0.7)
    assert small.notes and small.data.manifest["attentions"][2]["query"] is None
    text_of_page = show(small.data, "#view=grid").inner_text("body")
    assert "except those of layer 1, layer 2, layer 3, layer 4, layer 5, which were left out" in text_of_page
    tab = show(small.data, "#view=matrix&layer=2&heads=8&head=8")
    assert "were left out to keep this page small" in tab.inner_text("body")
    assert not tab.locator("canvas.ramp").is_visible()
    tab.keyboard.press("[")
    tab.keyboard.press("[")
    wait_until(tab, "() => document.querySelector('canvas.ramp').offsetHeight > 0")
    tab.keyboard.press("]")
    wait_until(tab, "() => document.querySelector('canvas.ramp').offsetHeight === 0")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_drawn_pictures_equal_the_stored_ones(show: Show, theme: str) -> None:
    data = grid_page()
    tab = show(data, "#view=grid", color_scheme=theme)
    colours = colour_ramp(tab, theme)
    for layer in range(3):
        stored = stored_pictures(data, layer)
        drawn = drawn_colours(tab, layer, 5, 7, 7)
        steps = np.rint(255 * stored / stored.max((1, 2), keepdims=True)).astype(int)
        assert np.abs(drawn[..., :3] - colours[steps]).max() <= 2 and (drawn[..., 3] == 255).all()
    tab.get_by_label("colour scale").select_option("linear")
    tab.get_by_label("end of the colour range").select_option("one")
    steps = np.rint(255 * (stored_pictures(data, 1) / 255) ** 2).astype(int)
    assert np.abs(drawn_colours(tab, 1, 5, 7, 7)[..., :3] - colours[steps]).max() <= 2
    assert "from 0 to 1 on a linear scale" in tab.locator(".legend").inner_text()
    again = show(data, tab.evaluate("() => location.hash"))
    assert "from 0 to 1 on a linear scale" in again.locator(".legend").inner_text()


def test_masked_cells_are_empty(show: Show) -> None:
    queries, keys = np.mgrid[:7, :7]
    for recipe, hidden in [
        ({"mask": "causal"}, keys > queries),
        ({"mask": "window", "window": 3}, (keys > queries) | (keys <= queries - 3)),
    ]:
        tab = show(grid_page(layers=1, **recipe), "#view=grid")
        drawn = drawn_colours(tab, 0, 5, 7, 7)[..., 3]
        assert ((drawn == 0) == hidden).all() and "Empty parts are masked" in tab.locator(".legend").inner_text()


def test_reduced_pictures_keep_the_strongest_links(show: Show) -> None:
    data = grid_page(layers=1, heads=40, tokens=200, rows=64)
    values = np.zeros((40, 64, 64), "u1")
    values[:, 13, 42] = 255
    data.blocks["layers.0.attention.thumb"] = values.tobytes()
    tab = show(data, "#view=grid")
    side = tab.locator(".grid-row canvas").evaluate("(canvas) => canvas.height")
    assert side < 64  # the pictures are drawn smaller than they are stored
    darkest = np.abs(drawn_colours(tab, 0, 40, side, side)[..., :3] - colour_ramp(tab, "light")[255]).max(-1) <= 2
    assert (darkest.sum((1, 2)) == 1).all()
    assert "patch of tokens" in tab.locator(".legend").inner_text()


@pytest.mark.parametrize("last, opened", [("", "matrix"), ("h", "heads"), ("hm", "matrix")])
def test_click_opens_the_head(show: Show, last: str, opened: str) -> None:
    tab = show(grid_page(), "#view=grid")
    for key in [*last, "g"]:
        tab.keyboard.press(key)
    tab.evaluate(TWO_FRAMES)
    tab.mouse.move(*centre_of_head(tab, 2, 3, 5))
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".readout").inner_text().startswith("layer 2 · head 3")
    tab.mouse.click(*centre_of_head(tab, 2, 3, 5))
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".segments [aria-pressed=true]").first.get_attribute("data-value") == opened
    assert "layer 2 · head 3" in tab.locator(".readout").inner_text()
    assert tab.locator(".chip[aria-pressed=true]").all_inner_texts() == ["3"]


def test_keyboard_moves_between_heads(show: Show) -> None:
    tab = show(grid_page(), "#view=grid&heads=0&head=0")
    for key in "ArrowRight ArrowRight ArrowDown ArrowDown ArrowDown ArrowLeft ] [".split():
        tab.keyboard.press(key)
    tab.evaluate(TWO_FRAMES)
    assert "layer 1 · head 1" in tab.locator(".readout").inner_text()
    mark, row = (tab.locator(one).bounding_box() for one in (".grid-current", ".grid-row[data-place='1'] canvas"))
    assert mark["y"] == row["y"] and mark["x"] == pytest.approx(row["x"] + row["width"] / 5)
    assert tab.locator(".grid:focus").count() == 1
    tab.keyboard.press("Enter")
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".matrix").is_visible() and "layer 1 · head 1" in tab.locator(".readout").inner_text()


def encoder_decoder_page() -> PageData:
    """An encoder-decoder with attentions of different depths and lengths."""
    builder = PageBuilder(("encoder", tokens_of(9)), ("decoder", tokens_of(4)))
    for layer, side, kind, queries, keys in [(0, "encoder", "self", 0, 0), (1, "encoder", "self", 0, 0),
                                             (0, "decoder", "self", 1, 1), (0, "decoder", "cross", 1, 0)]:  # fmt: skip
        entry = builder.attention(layer=layer, side=side, kind=kind, queries=queries, keys=keys)
        add_picture(builder, entry, 4, *(len(builder.sequences[i]["tokens"]) for i in (queries, keys)))
    return builder.data()


def test_three_kinds_of_attention_are_drawn_below_each_other(show: Show) -> None:
    data = encoder_decoder_page()
    tab = show(data, "#view=grid")
    assert [title.split(":")[0] for title in tab.locator(".grid-title").all_inner_texts()] == [
        "Encoder", "Decoder", "Cross-attention"]  # fmt: skip
    steps = np.rint(255 * stored_pictures(data, 3) / stored_pictures(data, 3).max((1, 2), keepdims=True)).astype(int)
    drawn = drawn_colours(tab, 3, 4, 4, 9)[..., :3]
    assert np.abs(drawn - colour_ramp(tab, "light")[steps]).max() <= 2
    tab.mouse.click(*centre_of_head(tab, 3, 2, 4))
    tab.evaluate(TWO_FRAMES)
    assert "cross · layer 0 · head 2" in tab.locator(".readout").inner_text()
    tab.keyboard.press("g")
    for _ in range(9):
        tab.keyboard.press("ArrowUp")
    tab.evaluate(TWO_FRAMES)
    assert "encoder layer 0 · head 2" in tab.locator(".readout").inner_text()


def test_deep_model_has_few_elements_and_a_visible_selection(show: Show) -> None:
    tab = show(grid_page(layers=126, heads=64, tokens=3), "#view=grid&layer=100&head=60")
    tab.evaluate(TWO_FRAMES)
    assert tab.evaluate(NODES) < 3000 and tab.locator(".grid-row").count() < 100
    mark, frame = (tab.locator(one).bounding_box() for one in (".grid-current", ".grid"))
    assert frame["y"] < mark["y"] < frame["y"] + frame["height"]
    assert frame["x"] < mark["x"] < frame["x"] + frame["width"]
    assert tab.locator(".grid-row[data-place='100']").count() == 1 and not tab.locator("[data-place='3']").count()


def test_grid_needs_only_the_pictures(show: Show) -> None:
    data = grid_page(layers=2)
    queries = [entry["query"] for entry in data.manifest["attentions"]]
    html = page_without(data, queries)
    tab = show(html, "#view=grid")
    assert drawn_colours(tab, 1, 5, 7, 7)[..., 3].all()
    tab.keyboard.press("Enter")
    assert "is missing" in tab.get_by_role("alert").inner_text()


def page_without(data: PageData, names: list[str]) -> str:
    """The page with some of its blocks missing."""
    html = render(data.manifest, data.blocks)
    for name in names:
        assert html.count(f'data-block="{name}"') == 1
        html = html.replace(f'data-block="{name}"', 'data-block="lost"')
    return html


def test_table_has_the_largest_weight_of_every_head(show: Show) -> None:
    data = encoder_decoder_page()
    tab = show(data, "#view=grid")
    tab.keyboard.press("t")
    cells = [float(text) for text in tab.locator("tbody td").all_inner_texts()]
    expected = [(stored_pictures(data, place).max((1, 2)) / 255) ** 2 for place in range(4)]
    assert np.allclose(np.reshape(cells, (4, 4)), expected, atol=1e-3)
    assert tab.locator("tbody th").all_inner_texts() == [
        "encoder layer 0", "encoder layer 1", "decoder layer 0", "cross-attention, layer 0"]  # fmt: skip


def test_grid_of_one_token_and_without_pictures(show: Show) -> None:
    data = grid_page(layers=2, tokens=1)
    data.manifest["attentions"][1]["thumb"] = None
    tab = show(data, "#view=grid&layer=1")
    assert (drawn_colours(tab, 0, 5, 1, 1)[..., :3] == colour_ramp(tab, "light")[255]).all()
    assert "no picture of this layer" in tab.locator("[data-place='1']").inner_text()
    for entry in data.manifest["attentions"]:
        entry["thumb"] = None
    tab = show(data)
    assert "Model" not in tab.locator(".segments").first.inner_text()


def test_grid_fits_a_narrow_window(show: Show) -> None:
    tab = show(grid_page(heads=16), "#view=grid&head=15", viewport={"width": 390, "height": 800})
    tab.evaluate(TWO_FRAMES)
    assert tab.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    mark = tab.locator(".grid-current").bounding_box()
    assert mark["x"] > 0 and mark["x"] + mark["width"] < 390


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_violation_and_contrast_is_sufficient(show: Show, theme: str) -> None:
    tab = show(encoder_decoder_page(), "#view=grid", color_scheme=theme)
    tab.mouse.move(*centre_of_head(tab, 1, 2, 4))
    tab.evaluate(TWO_FRAMES)
    tab.evaluate(AXE)
    assert tab.evaluate(SERIOUS) == []
    assert tab.evaluate(CONTRAST)[0][0] >= 4.5


def test_keys_in_a_dialog_do_not_reach_the_page(show: Show) -> None:
    tab = show(grid_page(), "#view=grid")
    tab.keyboard.press("?")
    tab.evaluate("() => document.activeElement.blur()")  # as by Tab after the last button
    for key in ("Enter", "t", "]"):
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)
    assert tab.locator("dialog").count() == 1 and tab.url.endswith("#view=grid&layer=0&heads=0.1.2.3.4&head=0")
    tab.keyboard.press("Escape")
    tab.evaluate(
        "() => ['t', '?'].forEach((key) => document.body.dispatchEvent("
        "new KeyboardEvent('keydown', { key, bubbles: true })))"
    )
    tab.evaluate("() => document.querySelectorAll('.buttons button:not(.sign)').forEach((one) => one.click())")
    tab.evaluate(TWO_FRAMES)
    assert tab.locator("dialog").count() == 1


def test_head_reached_by_keyboard_is_enabled(show: Show) -> None:
    """As with `,` and `.`: it replaces a single selected head, and is added to several."""
    tab = show(grid_page(), "#view=grid&layer=1&heads=1.4&head=1")
    tab.keyboard.press("ArrowLeft")
    wait_until(tab, "() => location.hash === '#view=grid&layer=1&heads=0.1.4&head=0'")
    for key in ("h", "ArrowDown"):
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)
    assert tab.locator(".chip[aria-pressed=true]").all_inner_texts() == ["0", "1", "4"]
    assert "head 0" in tab.locator(".readout").inner_text()
    tab = show(grid_page(), "#view=grid&layer=1&heads=4&head=4")
    tab.keyboard.press("ArrowLeft")
    wait_until(tab, "() => location.hash === '#view=grid&layer=1&heads=3&head=3'")


@pytest.mark.parametrize(
    ("address", "enabled"), [("1.4&head=0", "0.1.4"), ("4&head=2", "2"), ("&head=2", ""), ("1.4", "1.4")]
)
def test_address_of_a_disabled_head_is_corrected(show: Show, address: str, enabled: str) -> None:
    tab = show(grid_page(), f"#view=heads&layer=1&heads={address}")
    head = address.partition("head=")[2] or enabled[0]
    expected = f"#view=heads&layer=1&heads={enabled}&head={head}"
    wait_until(tab, "(expected) => location.hash === expected", expected)
    tab.evaluate("(heads) => (location.hash = `#view=heads&layer=2&heads=${heads}`)", address)
    wait_until(tab, "(expected) => location.hash === expected", expected.replace("layer=1", "layer=2"))
