"""The drawing is correct: colours of single cells, masks, sides with other tokens and heads, the address."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Page

import pellucid
from pellucid import Config
from pellucid.view import page as page_module
from tests.quick import few
from tests.view.conftest import MOUNTED, READOUT, Show, wait_until
from tests.view.page_builder import PageBuilder, plain_page, tokens_of
from tests.view.reference_pages import TEXTS, comparison_page, reference_page
from tests.view.test_grid import grid_page
from tests.view.test_page import make_case
from tests.view.test_recipes import DECODER_SIZES, SIZES, TARGET, TEXT

CELL_COLOURS = """([cells, queries, keys]) => {
  const canvas = document.querySelector(".plot canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return cells.map(([query, key]) => {
    const [x, y] = [Math.floor((key + 0.5) * canvas.width / keys), Math.floor((query + 0.5) * canvas.height / queries)];
    return [...data.slice(4 * (y * canvas.width + x), 4 * (y * canvas.width + x) + 4)];
  });
}"""


def expected_colour(theme: str, share: float) -> list[float]:
    """The colour of a fraction of the largest weight, from the stops in colour.js."""
    source = (page_module.WEB / "colour.js").read_text(encoding="utf-8")
    line = re.search(rf"RAMPS = {{.*?{theme}: \[(.*?)\]", source, re.DOTALL)
    assert line is not None
    stops = [[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in re.findall(r"#(\w{6})", line[1])]
    position = round(share * 255) / 255 * (len(stops) - 1)
    below = min(int(position), len(stops) - 2)
    return [low + (high - low) * (position - below) for low, high in zip(stops[below], stops[below + 1])]


@pytest.mark.parametrize(
    ("scale", "theme"),
    few(
        [(scale, theme) for scale in ("sqrt", "linear") for theme in ("light", "dark")],
        [("sqrt", "light"), ("linear", "dark")],
    ),
)
def test_cell_has_the_colour_of_its_weight(show: Show, theme: str, scale: str) -> None:
    tab = show(case := make_case(), "#view=matrix&layer=1&heads=7", color_scheme=theme)
    tab.get_by_label("colour scale").select_option(scale)
    tab.evaluate(READOUT)
    weights = case.weights[1][7]
    cells = torch.randint(13, (12, 2), generator=torch.Generator().manual_seed(2)).tolist()
    for (query, key), (*colour, alpha) in zip(cells, tab.evaluate(CELL_COLOURS, [cells, 13, 13]), strict=True):
        share = (weights[query, key] / weights.max()).item()
        assert (
            colour == pytest.approx(expected_colour(theme, share**0.5 if scale == "sqrt" else share), abs=2)
            and alpha == 255
        )


def test_masked_cells_are_hatched_and_their_tokens_hidden(show: Show) -> None:
    tab = show(make_case(seq=8, mask="causal"), "#view=matrix&layer=1&heads=7&query=3&key=5")
    tab.evaluate(READOUT)
    assert "masked: the key is after the query" in tab.locator(".readout-note").inner_text()
    assert "Hatched cells are masked: a token cannot attend to later tokens." in tab.locator(".legend").inner_text()
    hatched, visible = tab.evaluate(CELL_COLOURS, [[[3, 5], [3, 3]], 8, 8])
    assert hatched[3] < 128 and visible[3] == 255  # hatched, not coloured
    tab.keyboard.press("h")
    tab.evaluate(READOUT)
    hidden = tab.locator(".column.key .row[data-unseen]").evaluate_all(
        "(rows) => rows.map((row) => Number(row.dataset.index))"
    )
    assert hidden == [key for key in range(8) if key > 3]


def test_causal_mask_hides_later_tokens_in_the_heads_view(show: Show) -> None:
    tab = show(make_case(mask="causal"), "#query=4")
    tab.evaluate(READOUT)
    numbers = tab.locator(".column.key .number").all_inner_texts()
    assert numbers[5:] == ["masked"] * 8 and "masked" not in numbers[:5]


@pytest.fixture(scope="module")
def encoder_decoder_trace(minilm: pellucid.Model) -> Any:
    """A trace of an encoder-decoder whose sides differ in depth, heads and length."""
    changes = SIZES | DECODER_SIZES | {"decoder_attention_heads": 2}
    config = Config.of("bart", vocab_size=len(minilm.tokenizer), **changes)
    return pellucid.build(config, seed=3, tokenizer=minilm.tokenizer).trace(TEXT, target=TARGET, keep="view")


def chip_texts(tab: Page) -> list[str]:
    tab.evaluate(READOUT)
    return tab.locator(".chip").all_inner_texts()


def test_each_side_has_its_layers_heads_and_tokens(show: Show, encoder_decoder_trace: Any) -> None:
    tab = show(pellucid.view(encoder_decoder_trace, heads=[3], layer=2).html())
    assert chip_texts(tab) == list("0123")
    assert tab.locator(".letter").all_inner_texts() == ["encoder", "decoder"]
    assert tab.locator("h1 bdi").all_inner_texts() == [TEXT, TARGET]
    layers = tab.get_by_label("layer", exact=True).locator("option")
    assert layers.all_inner_texts() == ["0", "1", "2"]
    tab.get_by_role("button", name="cross", exact=True).click()
    assert chip_texts(tab) == list("01") and layers.all_inner_texts() == ["0", "1"]
    assert "cross · layer 1 · head 1" in tab.locator(".readout").inner_text()
    for side, tokens in (("query", encoder_decoder_trace.target_tokens), ("key", encoder_decoder_trace.tokens)):
        assert tab.locator(f".column.{side} .token").all_inner_texts() == list(tokens)
    assert tab.locator(".names").inner_text().split() == ["query", "decoder", "key", "encoder"]
    tab.locator(".column.query .row[data-index='8']").click()
    tab.get_by_role("button", name="encoder", exact=True).click()  # its text has fewer tokens: the selection ends
    assert tab.evaluate(READOUT)[0] == "" and chip_texts(tab) == list("0123")


@pytest.mark.parametrize("view", ["heads", "matrix"])
def test_click_on_a_replaced_view_selects_no_missing_token(show: Show, encoder_decoder_trace: Any, view: str) -> None:
    tab = show(pellucid.view(encoder_decoder_trace).html(), f"#view={view}&of=cross&layer=0&heads=0&query=8&key=2")
    tab.evaluate(READOUT)
    tab.evaluate("""() => { // both before the next frame, in which the encoder's seven tokens would be drawn
      const cell =
        document.querySelector(".column.query .row[data-index='8']") ?? document.querySelector(".plot canvas");
      const box = cell.getBoundingClientRect();
      [...document.querySelectorAll("button")].find((one) => one.textContent === "encoder").click();
      cell.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: box.left + 5, clientY: box.bottom - 3 }));
    }""")
    assert tab.evaluate(READOUT)[0] == "" and "query=" not in tab.url


@pytest.mark.parametrize("view", ["tensor", "lens", "grid", "diff", "diff&diff=lens"])
def test_leaving_a_view_keeps_only_pinned_selections(show: Show, view: str) -> None:
    tab = show(grid_page() if view == "grid" else comparison_page(0, 3), f"#view={view}")
    readout = tab.locator(".readout")

    def leave_and_return() -> str:
        tab.keyboard.press("m")
        tab.evaluate(READOUT)
        tab.mouse.move(5, 5)
        tab.keyboard.press({"tensor": "x", "lens": "l", "grid": "g"}.get(view, "d"))
        tab.evaluate(READOUT)
        return readout.inner_text()

    tab.evaluate(READOUT)
    before = readout.inner_text()
    cell = tab.locator(".word, .stage canvas").locator("visible=true").first
    cell.hover(position={"x": 15, "y": 15})
    tab.evaluate(READOUT)
    assert readout.inner_text() != before
    assert leave_and_return() == before
    if view not in ("grid", "diff"):
        cell.click(position={"x": 15, "y": 15})
        assert "pinned" in leave_and_return()


def test_largest_weight_ignores_nan(show: Show) -> None:
    builder = PageBuilder(("", tokens_of(3)))
    entry = builder.attention(heads=2)
    weights = np.full((2, 3, 3), np.nan, "f4")
    weights[1] = np.nan, 0.25, 0.75
    entry |= {"weights": builder.block("weights", weights), "query": None, "key": None}
    tab = show(builder.data(), "#view=heads&head=1&heads=1&query=0")
    tab.evaluate(READOUT)
    assert re.search("0.750000000\\s+largest of this query", tab.locator(".readout").inner_text())
    for side in ("query", "key"):
        tab.evaluate(f"location.hash = '#view=heads&head=0&heads=0&{side}=0'")
        wait_until(tab, "() => document.querySelector('.readout').innerText.includes('NaN')")
        assert "largest" not in tab.locator(".readout").inner_text()
    tab.keyboard.press("m")
    tab.evaluate(READOUT)
    legend = tab.locator(".legend").inner_text()
    assert "No finite weight shown of head 0 is above 0. Red cells are NaN or infinite." in legend
    assert tab.locator(".toolbar .ramp").is_hidden() and "Colour" not in legend


def test_address_has_side_layer_and_token(show: Show, encoder_decoder_trace: Any) -> None:
    tab = show(pellucid.view(encoder_decoder_trace).html(), "#view=matrix&of=cross&layer=1&heads=1&query=8&key=2")
    own = encoder_decoder_trace["decoder.layers.1.cross_attention.weights"][0, 1, 8, 2].item()
    for _ in range(2):
        text, dataset = tab.evaluate(READOUT)
        assert dataset == {"layer": "1", "head": "1", "query": "8", "key": "2"} and float(text) == pytest.approx(
            own, abs=2e-6
        )
        assert {"of=cross", "layer=1", "query=8", "key=2"} <= set(tab.url.split("#")[1].split("&"))
        tab.reload()
        wait_until(tab, MOUNTED)
    tab.evaluate("location.hash = '#view=heads&of=decoder&layer=0&heads=0&query=3'")
    wait_until(tab, "() => document.querySelector('.readout').innerText.includes('decoder · layer 0 · head 0')")
    tab.evaluate(
        "location.hash = '#view=nowhere&of=elsewhere&layer=77&heads=9.x&query=999'"
    )  # invalid values are dropped
    tab.evaluate(READOUT)
    assert "decoder · layer 0" in tab.locator(".readout").inner_text()


def test_pair_filter_needs_pairs_on_both_sides(show: Show, encoder_decoder_trace: Any) -> None:
    tab = show(pellucid.view(encoder_decoder_trace).html())
    assert not tab.get_by_role("button", name="A → B").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_of_one_token(show: Show, theme: str) -> None:
    view = pellucid.view(attention=[torch.ones(1, 2, 1, 1)], tokens=["alone"])
    tab = show(view.html(), "#view=matrix&query=0&key=0", color_scheme=theme)
    assert tab.evaluate(READOUT)[0] == "1.00000000"


def pressed_buttons(tab: Page, group: str) -> list[str]:
    return tab.get_by_role("group", name=group).locator("[aria-pressed=true]").all_inner_texts()


def test_parts_missing_in_an_address_are_reset(show: Show) -> None:
    tab = show(make_case(), "#view=matrix&layer=0&heads=8&pair=AB")
    assert pressed_buttons(tab, "pair") == ["A → B"] and "adds up to 1" not in tab.locator(".legend").inner_text()
    tab.evaluate("location.hash = '#view=matrix&layer=0&heads=5.3.3&query=9'")
    wait_until(tab, "() => location.hash.includes('heads=3.5&head=5&query=9')")
    assert pressed_buttons(tab, "pair") == ["all"] and pressed_buttons(tab, "heads") == ["3", "5"]
    assert "adds up to 1" in tab.locator(".legend").inner_text()


def test_address_of_unknown_heads_shows_the_default_heads(show: Show) -> None:
    for heads, shown in (("99", ["8"]), ("99.5", ["5"]), ("", [])):
        tab = show(make_case(), f"#view=heads&heads={heads}")
        assert tab.locator(".chip[aria-pressed=true]").all_inner_texts() == shown


def test_address_is_read_before_it_is_written(show: Show) -> None:
    tab = show(make_case(), "#view=matrix&layer=0&heads=8")
    tab.evaluate("""() => {
      location.hash = '#view=matrix&layer=0&heads=5'; // the browser notifies the page later
      document.querySelector("[aria-label='light or dark theme']").click(); // which draws at once
    }""")
    wait_until(tab, "() => location.hash.includes('heads=5&head=5')")
    assert pressed_buttons(tab, "heads") == ["5"]


ADDRESSES = ["view=heads&threshold=0.2&scale=linear", "view=tensor&tensor=layers.1.attention.query",
        "view=tensor&tensor=layers.1.attention.query&cut=1.c.r&number=2.5", "view=diff&diff=lens",
        "view=diff&diff=lens.2.5", "view=lens&cell=2.5"]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_address_has_the_settings_of_each_view(show: Show, address: str) -> None:
    tab = show(comparison_page(0, 3), f"#{address}")
    expected = {
        "heads": "0.2 hides",
        "tensor": "layers.1.attention.query" + (" [0, 1, 5, 2]" if "number" in address else " · point"),
        "diff": "layer 1 · at “·and” (5) · “" if "2.5" in address else "lens · point at a cell to compare both",
        "lens": "layer 1 · at “·and” (5)",
    }
    for _ in range(2):
        tab.evaluate(READOUT)
        assert expected[address.split("&")[0][5:]] in tab.locator(".pellucid").inner_text()
        assert set(address.split("&")) <= set(tab.url.split("#")[1].split("&"))
        tab.reload()
        wait_until(tab, MOUNTED)
    tab.evaluate("location.hash = '#view=heads&threshold=7&scale=log&tensor=none&number=1.1&cell=9.9&diff=none'")
    wait_until(tab, "() => location.hash === '#view=heads&layer=0&heads=0&head=0'")  # invalid values become defaults


def test_address_has_the_cell_and_scale_of_a_lens(show: Show) -> None:
    tab = show(reference_page(), "#view=lens")
    tab.locator(".word[data-row='1'][data-column='4']").click()
    tab.get_by_label("colour scale").select_option("linear")
    wait_until(tab, "() => location.hash.endsWith('&scale=linear&cell=1.4')")


@pytest.mark.parametrize("address", ["#view=lens", "#view=diff&diff=lens"])
def test_hovered_token_element_is_not_replaced(show: Show, address: str) -> None:
    """Otherwise clicks are lost: browsers send none if press and release hit different elements."""
    tab = show(comparison_page(0, 3), address)
    word = tab.locator(".word[data-row='1'][data-column='4'] .token").first
    tab.evaluate(READOUT)
    word.evaluate("(word) => { window.word = word; }")
    word.hover()
    tab.evaluate(READOUT)
    assert tab.locator(".word[data-row='1'][data-column='4']").get_attribute("aria-selected") == "true"
    assert word.evaluate("(word) => word === window.word")


@pytest.mark.parametrize("word", few(["lens.3.0", "lens.0.7", "lens.x", "lens.1", "lensing"], ["lens.3.0", "lensing"]))
def test_invalid_cell_of_two_lenses_is_ignored(show: Show, word: str) -> None:
    tab = show(comparison_page(0, 3), f"#view=diff&diff={word}")
    wait_until(tab, f"() => location.hash.endsWith('{'' if word == 'lensing' else '&diff=lens'}')")
    assert "pinned" not in tab.locator(".readout").inner_text()


def test_token_in_the_address_is_visible(show: Show) -> None:
    tab = show(make_case(seq=200), "#view=heads&query=180")
    tab.evaluate(READOUT)
    row, frame = (tab.locator(one).bounding_box() for one in (".row[aria-selected=true]", ".scroller"))
    assert frame["y"] <= row["y"] and row["y"] + row["height"] <= frame["y"] + frame["height"]
    tab.evaluate("location.hash = '#view=heads&key=3'")
    wait_until(tab, "() => document.querySelector('.scroller').scrollTop < 80")


def test_cell_in_the_address_is_visible(show: Show) -> None:
    page = reference_page(texts=[f"w{i}" for i in range(60)])
    tab = show(page, "#view=lens&cell=2.55")
    tab.evaluate(READOUT)
    cell, frame = (tab.locator(one).bounding_box() for one in (".word[aria-selected=true]", ".words"))
    assert frame["x"] <= cell["x"] and cell["x"] + cell["width"] <= frame["x"] + frame["width"]


def test_right_to_left_tokens_do_not_reverse_the_readout(show: Show) -> None:
    page = reference_page(texts=["שלום", "עולם", "c", "d", "e", "f", "g"])
    tab = show(page, "#view=tensor")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    tab.evaluate(READOUT)
    words = tab.locator(".readout-words")
    assert words.inner_text() == "layers.0.attention.query [0, 0, 1, 0] · seq “עולם” (1)"
    assert words.locator("bdi").inner_text() == "עולם"


@pytest.mark.parametrize("view", ["heads", "neuron"])
def test_selecting_a_filtered_token_clears_the_pair_filter(show: Show, view: str) -> None:
    tab = show(make_case(), f"#view={view}&pair=AB")
    for token, pair in (("t2", "A → B"), ("t9", "all")):
        tab.keyboard.press("/")
        tab.keyboard.type(token)
        tab.keyboard.press("Enter")
        tab.evaluate(READOUT)
        assert pressed_buttons(tab, "pair") == [pair]
        assert f"“{token}” ({token[1:]}) → " in tab.locator(".readout").inner_text()


def test_search_ignores_the_unicode_form_of_accents(show: Show) -> None:
    tab = show(reference_page(texts=["Cafe\u0301", "caf\u00e9", "cafe"]), "#view=heads")
    for search_text in ("CAF\u00c9", "cafe\u0301"):
        tab.keyboard.press("/")
        tab.locator("dialog input").fill(search_text)
        assert tab.locator("dialog li").all_inner_texts() == ["“Cafe\u0301” (0)", "“caf\u00e9” (1)"]
        tab.keyboard.press("Escape")
    tab = show(reference_page(texts=["Cafe\u0301", "caf\u00e9", "cafe"]), "#view=neuron&query=2")
    tab.get_by_placeholder("find a key").fill("CAF\u00c9")
    wait_until(tab, "() => document.querySelectorAll('.keylist-row').length === 2")


def test_pair_filter_without_tokens_is_ignored(show: Show) -> None:
    tab = show(plain_page(), "#view=matrix&pair=BA")
    assert tab.get_by_role("alert").count() == 0
    assert tab.locator(".plot canvas").is_visible() and "pair=" not in tab.url


@pytest.mark.parametrize("view, scroller", [("heads", ".scroller"), ("neuron", ".keylist")])
def test_loading_layer_is_neither_scrolled_nor_hovered(show: Show, view: str, scroller: str) -> None:
    tab = show(make_case(seq=90), f"#view={view}")
    tab.evaluate(
        """(scroller) => {
      document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "]", bubbles: true }));
      document.querySelector(scroller).scrollTop += 300;
      for (const canvas of document.querySelectorAll(".vectors canvas, .keylist canvas"))
        canvas.dispatchEvent(new MouseEvent("mousemove", { bubbles: true, clientX: 500, clientY: 9, screenX: 500 }));
    }""",
        scroller,
    )
    tab.keyboard.press("ArrowDown")
    tab.evaluate(READOUT)
    assert "layer 1 · head 8" in tab.locator(".readout").inner_text()


@pytest.mark.parametrize(
    "address, line",
    [
        ("#view=heads&query=300", ".row[data-pinned]"),
        ("#view=neuron&query=300&key=280", ".neuron-queries .row[data-index='300']"),
    ],
)
@pytest.mark.parametrize("height", [720, 900])
def test_selection_in_the_address_is_in_the_window(show: Show, address: str, line: str, height: int) -> None:
    tab = show(make_case(seq=400), address, viewport={"width": 1000, "height": height})
    tab.evaluate(READOUT)
    wait_until(tab, f"() => document.querySelector({line!r}) !== null")
    box = tab.locator(line).first.bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= height


def test_direction_marks_in_a_heading_are_visible_and_inert(minilm: "pellucid.Model", show: Show) -> None:
    """They would show other letters than the model read."""
    tab = show(pellucid.view(minilm.trace("pay 100 \u202e002 now")).html())
    assert tab.locator("h1 bdi").inner_text() == "pay 100 \ufffd002 now"


LEFT_EDGES = """(line, parts) => parts.map((part) => {
  const nodes = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) if (nodes.currentNode.data.includes(part)) break;
  const [range, from] = [document.createRange(), nodes.currentNode.data.indexOf(part)];
  range.setStart(nodes.currentNode, from);
  range.setEnd(nodes.currentNode, from + part.length);
  return range.getBoundingClientRect().left;
})"""
"""The left edges of some words of a line."""


def test_right_to_left_model_name_does_not_reverse_the_line(show: Show) -> None:
    page = reference_page()
    page.manifest["model"] |= {"name": "\u05de\u05d5\u05d3\u05dc \u202e", "family": ""}
    line = show(page).locator(".model").first
    assert line.inner_text().startswith("\u05de\u05d5\u05d3\u05dc \ufffd  ·  2 layers × 3 heads")
    left_edges = line.evaluate(LEFT_EDGES, ["\u05de\u05d5\u05d3\u05dc", "2", "layers", "3"])
    assert left_edges == sorted(left_edges)


def test_right_to_left_texts_of_two_runs_do_not_reverse_the_line(show: Show) -> None:
    page = comparison_page(0, 3)
    page.manifest["other"] |= {"label": "pay \u202e900", "beside": "pay \u202e100", "texts": ["x\u2067y"]}
    tab = show(page, "#view=diff")
    legend, runs = tab.locator(".legend"), tab.locator(".diff-runs")
    assert "The other run is “pay \ufffd900”. The weights of both runs" in legend.inner_text()
    assert legend.locator("bdi").inner_text() == "pay \ufffd900"
    run_texts = runs.locator("bdi").all_inner_texts()
    assert run_texts == ["".join(TEXTS), "pay \ufffd100", "x\ufffdy", "pay \ufffd900"]
    assert not set("\u202e\u2067") & set(legend.inner_html() + runs.inner_html())


@pytest.mark.parametrize("enabled, head", [("0.1.4", 1), ("4", 2)])
def test_layer_with_fewer_heads_reads_an_enabled_one(show: Show, enabled: str, head: int) -> None:
    builder = PageBuilder(("", tokens_of(8)))
    for layer, heads in enumerate((3, 5)):
        builder.attention(layer=layer, heads=heads)
    tab = show(builder.data(), f"#view=heads&layer=1&heads={enabled}&head=4")
    tab.evaluate(READOUT)
    tab.keyboard.press("[")
    tab.evaluate(READOUT)
    assert f"layer 0 · head {head}" in tab.locator(".readout").inner_text()
