"""What is drawn is true: colours of single cells, masks, sides with other tokens and heads, the address."""

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
from tests.view.conftest import MOUNTED, READ, Show, until
from tests.view.page_builder import Made, plain, tokens_of
from tests.view.reference_pages import TEXTS, compared, written
from tests.view.test_grid import grid
from tests.view.test_page import make_case
from tests.view.test_recipes import PAIR, SMALL, TARGET, TEXT

PIXELS = """([cells, queries, keys]) => {
  const canvas = document.querySelector(".plot canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return cells.map(([query, key]) => {
    const [x, y] = [Math.floor((key + 0.5) * canvas.width / keys), Math.floor((query + 0.5) * canvas.height / queries)];
    return [...data.slice(4 * (y * canvas.width + x), 4 * (y * canvas.width + x) + 4)];
  });
}"""


def ramp(theme: str, share: float) -> list[float]:
    """The colour of a fraction of the largest weight, from the stops in colour.js."""
    source = (page_module.WEB / "colour.js").read_text(encoding="utf-8")
    line = re.search(rf"RAMPS = {{.*?{theme}: \[(.*?)\]", source, re.DOTALL)
    assert line is not None
    stops = [[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in re.findall(r"#(\w{6})", line[1])]
    place = round(share * 255) / 255 * (len(stops) - 1)
    below = min(int(place), len(stops) - 2)
    return [low + (high - low) * (place - below) for low, high in zip(stops[below], stops[below + 1])]


@pytest.mark.parametrize(
    ("scale", "theme"),
    few(
        [(scale, theme) for scale in ("sqrt", "linear") for theme in ("light", "dark")],
        [("sqrt", "light"), ("linear", "dark")],
    ),
)
def test_a_cell_has_the_colour_of_its_weight(show: Show, theme: str, scale: str) -> None:
    tab = show(case := make_case(), "#view=matrix&layer=1&heads=7", color_scheme=theme)
    tab.get_by_label("colour scale").select_option(scale)
    tab.evaluate(READ)
    weights = case.weights[1][7]
    cells = torch.randint(13, (12, 2), generator=torch.Generator().manual_seed(2)).tolist()
    for (query, key), (*colour, alpha) in zip(cells, tab.evaluate(PIXELS, [cells, 13, 13]), strict=True):
        share = (weights[query, key] / weights.max()).item()
        assert colour == pytest.approx(ramp(theme, share**0.5 if scale == "sqrt" else share), abs=2) and alpha == 255


def test_what_the_mask_forbids_is_hatched_and_hidden(show: Show) -> None:
    tab = show(make_case(seq=8, mask="causal"), "#view=matrix&layer=1&heads=7&query=3&key=5")
    tab.evaluate(READ)
    assert "masked: the key is after the query" in tab.locator(".readout-note").inner_text()
    assert "Hatched cells are masked: a token cannot attend to later tokens." in tab.locator(".legend").inner_text()
    hatched, seen = tab.evaluate(PIXELS, [[[3, 5], [3, 3]], 8, 8])
    assert hatched[3] < 128 and seen[3] == 255  # hatched, not coloured
    tab.keyboard.press("h")
    tab.evaluate(READ)
    hidden = tab.locator(".column.key .row[data-unseen]").evaluate_all(
        "(rows) => rows.map((row) => Number(row.dataset.index))"
    )
    assert hidden == [key for key in range(8) if key > 3]


def test_a_token_does_not_look_ahead_in_the_heads_view(show: Show) -> None:
    tab = show(make_case(mask="causal"), "#query=4")
    tab.evaluate(READ)
    numbers = tab.locator(".column.key .number").all_inner_texts()
    assert numbers[5:] == ["masked"] * 8 and "masked" not in numbers[:5]


@pytest.fixture(scope="module")
def sides(minilm: pellucid.Model) -> Any:
    """A trace of an encoder-decoder whose sides differ in depth, heads and length."""
    changes = SMALL | PAIR | {"decoder_attention_heads": 2}
    config = Config.of("bart", vocab_size=len(minilm.tokenizer), **changes)
    return pellucid.build(config, seed=3, tokenizer=minilm.tokenizer).trace(TEXT, target=TARGET, keep="view")


def chips(tab: Page) -> list[str]:
    tab.evaluate(READ)
    return tab.locator(".chip").all_inner_texts()


def test_sides_have_their_own_layers_heads_and_tokens(show: Show, sides: Any) -> None:
    tab = show(pellucid.view(sides, heads=[3], layer=2).html())
    assert chips(tab) == list("0123")
    assert tab.locator(".letter").all_inner_texts() == ["encoder", "decoder"]
    assert tab.locator("h1 bdi").all_inner_texts() == [TEXT, TARGET]
    layers = tab.get_by_label("layer", exact=True).locator("option")
    assert layers.all_inner_texts() == ["0", "1", "2"]
    tab.get_by_role("button", name="cross", exact=True).click()
    assert chips(tab) == list("01") and layers.all_inner_texts() == ["0", "1"]
    assert "cross · layer 1 · head 1" in tab.locator(".readout").inner_text()
    for side, tokens in (("query", sides.target_tokens), ("key", sides.tokens)):
        assert tab.locator(f".column.{side} .token").all_inner_texts() == list(tokens)
    assert tab.locator(".names").inner_text().split() == ["query", "decoder", "key", "encoder"]
    tab.locator(".column.query .row[data-index='8']").click()
    tab.get_by_role("button", name="encoder", exact=True).click()  # its text has fewer tokens: the selection ends
    assert tab.evaluate(READ)[0] == "" and chips(tab) == list("0123")


@pytest.mark.parametrize("view", ["heads", "matrix"])
def test_a_pointer_on_what_is_being_replaced_takes_no_token_that_is_not_there(
    show: Show, sides: Any, view: str
) -> None:
    tab = show(pellucid.view(sides).html(), f"#view={view}&of=cross&layer=0&heads=0&query=8&key=2")
    tab.evaluate(READ)
    tab.evaluate("""() => { // both before the next frame, in which the encoder's seven tokens would be drawn
      const cell =
        document.querySelector(".column.query .row[data-index='8']") ?? document.querySelector(".plot canvas");
      const box = cell.getBoundingClientRect();
      [...document.querySelectorAll("button")].find((one) => one.textContent === "encoder").click();
      cell.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: box.left + 5, clientY: box.bottom - 3 }));
    }""")
    assert tab.evaluate(READ)[0] == "" and "query=" not in tab.url


@pytest.mark.parametrize("view", ["tensor", "lens", "grid", "diff", "diff&diff=lens"])
def test_a_view_that_is_left_by_keyboard_lets_go_of_what_is_not_pinned(show: Show, view: str) -> None:
    tab = show(grid() if view == "grid" else compared(0, 3), f"#view={view}")
    readout = tab.locator(".readout")

    def away_and_back() -> str:
        tab.keyboard.press("m")
        tab.evaluate(READ)
        tab.mouse.move(5, 5)
        tab.keyboard.press({"tensor": "x", "lens": "l", "grid": "g"}.get(view, "d"))
        tab.evaluate(READ)
        return readout.inner_text()

    tab.evaluate(READ)
    before = readout.inner_text()
    cell = tab.locator(".word, .stage canvas").locator("visible=true").first
    cell.hover(position={"x": 15, "y": 15})
    tab.evaluate(READ)
    assert readout.inner_text() != before
    assert away_and_back() == before
    if view not in ("grid", "diff"):
        cell.click(position={"x": 15, "y": 15})
        assert "pinned" in away_and_back()


def test_the_largest_weight_is_one_that_is_a_number(show: Show) -> None:
    made = Made(("", tokens_of(3)))
    entry = made.attention(heads=2)
    weights = np.full((2, 3, 3), np.nan, "f4")
    weights[1] = np.nan, 0.25, 0.75
    entry |= {"weights": made.block("weights", weights), "query": None, "key": None}
    tab = show(made.data(), "#view=heads&head=1&heads=1&query=0")
    tab.evaluate(READ)
    assert re.search("0.750000000\\s+largest of this query", tab.locator(".readout").inner_text())
    for side in ("query", "key"):
        tab.evaluate(f"location.hash = '#view=heads&head=0&heads=0&{side}=0'")
        until(tab, "() => document.querySelector('.readout').innerText.includes('NaN')")
        assert "largest" not in tab.locator(".readout").inner_text()
    tab.keyboard.press("m")
    tab.evaluate(READ)
    told = tab.locator(".legend").inner_text()
    assert "No finite weight shown of head 0 is above 0. Red cells are NaN or infinite." in told
    assert tab.locator(".toolbar .ramp").is_hidden() and "Colour" not in told


def test_the_address_keeps_side_layer_and_token(show: Show, sides: Any) -> None:
    tab = show(pellucid.view(sides).html(), "#view=matrix&of=cross&layer=1&heads=1&query=8&key=2")
    own = sides["decoder.layers.1.cross_attention.weights"][0, 1, 8, 2].item()
    for _ in range(2):
        text, said = tab.evaluate(READ)
        assert said == {"layer": "1", "head": "1", "query": "8", "key": "2"} and float(text) == pytest.approx(
            own, abs=2e-6
        )
        assert {"of=cross", "layer=1", "query=8", "key=2"} <= set(tab.url.split("#")[1].split("&"))
        tab.reload()
        until(tab, MOUNTED)
    tab.evaluate("location.hash = '#view=heads&of=decoder&layer=0&heads=0&query=3'")
    until(tab, "() => document.querySelector('.readout').innerText.includes('decoder · layer 0 · head 0')")
    tab.evaluate(
        "location.hash = '#view=nowhere&of=elsewhere&layer=77&heads=9.x&query=999'"
    )  # invalid values are dropped
    tab.evaluate(READ)
    assert "decoder · layer 0" in tab.locator(".readout").inner_text()


def test_pairs_are_told_apart_only_where_both_sides_have_them(show: Show, sides: Any) -> None:
    tab = show(pellucid.view(sides).html())
    assert not tab.get_by_role("button", name="A → B").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_one_token_is_a_page_too(show: Show, theme: str) -> None:
    view = pellucid.view(attention=[torch.ones(1, 2, 1, 1)], tokens=["alone"])
    tab = show(view.html(), "#view=matrix&query=0&key=0", color_scheme=theme)
    assert tab.evaluate(READ)[0] == "1.00000000"


def chosen(tab: Page, group: str) -> list[str]:
    return tab.get_by_role("group", name=group).locator("[aria-pressed=true]").all_inner_texts()


def test_what_an_address_leaves_out_is_not_kept(show: Show) -> None:
    tab = show(make_case(), "#view=matrix&layer=0&heads=8&pair=AB")
    assert chosen(tab, "pair") == ["A → B"] and "adds up to 1" not in tab.locator(".legend").inner_text()
    tab.evaluate("location.hash = '#view=matrix&layer=0&heads=5.3.3&query=9'")
    until(tab, "() => location.hash.includes('heads=3.5&head=5&query=9')")
    assert chosen(tab, "pair") == ["all"] and chosen(tab, "heads") == ["3", "5"]
    assert "adds up to 1" in tab.locator(".legend").inner_text()


def test_an_address_of_unknown_heads_shows_those_of_the_page(show: Show) -> None:
    for heads, shown in (("99", ["8"]), ("99.5", ["5"]), ("", [])):
        tab = show(make_case(), f"#view=heads&heads={heads}")
        assert tab.locator(".chip[aria-pressed=true]").all_inner_texts() == shown


def test_an_address_is_not_written_over_before_it_is_read(show: Show) -> None:
    tab = show(make_case(), "#view=matrix&layer=0&heads=8")
    tab.evaluate("""() => {
      location.hash = '#view=matrix&layer=0&heads=5'; // the browser tells the page of it later
      document.querySelector("[aria-label='light or dark theme']").click(); // which draws at once
    }""")
    until(tab, "() => location.hash.includes('heads=5&head=5')")
    assert chosen(tab, "heads") == ["5"]


KEPT = ["view=heads&threshold=0.2&scale=linear", "view=tensor&tensor=layers.1.attention.query",
        "view=tensor&tensor=layers.1.attention.query&cut=1.c.r&number=2.5", "view=diff&diff=lens",
        "view=diff&diff=lens.2.5", "view=lens&cell=2.5"]  # fmt: skip


@pytest.mark.parametrize("chosen", KEPT)
def test_the_address_keeps_what_a_view_has_of_its_own(show: Show, chosen: str) -> None:
    tab = show(compared(0, 3), f"#{chosen}")
    said = {
        "heads": "0.2 hides",
        "tensor": "layers.1.attention.query" + (" [0, 1, 5, 2]" if "number" in chosen else " · point"),
        "diff": "layer 1 · at “·and” (5) · “" if "2.5" in chosen else "lens · point at a cell to compare both",
        "lens": "layer 1 · at “·and” (5)",
    }
    for _ in range(2):
        tab.evaluate(READ)
        assert said[chosen.split("&")[0][5:]] in tab.locator(".pellucid").inner_text()
        assert set(chosen.split("&")) <= set(tab.url.split("#")[1].split("&"))
        tab.reload()
        until(tab, MOUNTED)
    tab.evaluate("location.hash = '#view=heads&threshold=7&scale=log&tensor=none&number=1.1&cell=9.9&diff=none'")
    until(tab, "() => location.hash === '#view=heads&layer=0&heads=0&head=0'")  # invalid values become defaults


def test_a_cell_of_a_lens_and_its_scale_reach_the_address(show: Show) -> None:
    tab = show(written(), "#view=lens")
    tab.locator(".word[data-row='1'][data-column='4']").click()
    tab.get_by_label("colour scale").select_option("linear")
    until(tab, "() => location.hash.endsWith('&scale=linear&cell=1.4')")


@pytest.mark.parametrize("address", ["#view=lens", "#view=diff&diff=lens"])
def test_a_word_stays_where_it_is_as_the_pointer_passes(show: Show, address: str) -> None:
    """Otherwise clicks are lost: browsers send none if press and release hit different elements."""
    tab = show(compared(0, 3), address)
    word = tab.locator(".word[data-row='1'][data-column='4'] .token").first
    tab.evaluate(READ)
    word.evaluate("(word) => { window.word = word; }")
    word.hover()
    tab.evaluate(READ)
    assert tab.locator(".word[data-row='1'][data-column='4']").get_attribute("aria-selected") == "true"
    assert word.evaluate("(word) => word === window.word")


@pytest.mark.parametrize("word", few(["lens.3.0", "lens.0.7", "lens.x", "lens.1", "lensing"], ["lens.3.0", "lensing"]))
def test_a_cell_of_two_lenses_that_is_not_there_is_left_out(show: Show, word: str) -> None:
    tab = show(compared(0, 3), f"#view=diff&diff={word}")
    until(tab, f"() => location.hash.endsWith('{'' if word == 'lensing' else '&diff=lens'}')")
    assert "pinned" not in tab.locator(".readout").inner_text()


def test_a_token_that_the_address_names_is_in_sight(show: Show) -> None:
    tab = show(make_case(seq=200), "#view=heads&query=180")
    tab.evaluate(READ)
    row, frame = (tab.locator(one).bounding_box() for one in (".row[aria-selected=true]", ".scroller"))
    assert frame["y"] <= row["y"] and row["y"] + row["height"] <= frame["y"] + frame["height"]
    tab.evaluate("location.hash = '#view=heads&key=3'")
    until(tab, "() => document.querySelector('.scroller').scrollTop < 80")


def test_a_cell_that_the_address_names_is_in_sight(show: Show) -> None:
    page = written(texts=[f"w{i}" for i in range(60)])
    tab = show(page, "#view=lens&cell=2.55")
    tab.evaluate(READ)
    cell, frame = (tab.locator(one).bounding_box() for one in (".word[aria-selected=true]", ".words"))
    assert frame["x"] <= cell["x"] and cell["x"] + cell["width"] <= frame["x"] + frame["width"]


def test_letters_from_right_to_left_turn_no_readout_around(show: Show) -> None:
    page = written(texts=["שלום", "עולם", "c", "d", "e", "f", "g"])
    tab = show(page, "#view=tensor")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    tab.evaluate(READ)
    words = tab.locator(".readout-words")
    assert words.inner_text() == "layers.0.attention.query [0, 0, 1, 0] · seq “עולם” (1)"
    assert words.locator("bdi").inner_text() == "עולם"


@pytest.mark.parametrize("view", ["heads", "neuron"])
def test_a_token_that_the_pair_filter_hides_lifts_it(show: Show, view: str) -> None:
    tab = show(make_case(), f"#view={view}&pair=AB")
    for wanted, pair in (("t2", "A → B"), ("t9", "all")):
        tab.keyboard.press("/")
        tab.keyboard.type(wanted)
        tab.keyboard.press("Enter")
        tab.evaluate(READ)
        assert chosen(tab, "pair") == [pair]
        assert f"“{wanted}” ({wanted[1:]}) → " in tab.locator(".readout").inner_text()


def test_a_token_is_found_however_its_accents_are_written(show: Show) -> None:
    tab = show(written(texts=["Cafe\u0301", "caf\u00e9", "cafe"]), "#view=heads")
    for typed in ("CAF\u00c9", "cafe\u0301"):
        tab.keyboard.press("/")
        tab.locator("dialog input").fill(typed)
        assert tab.locator("dialog li").all_inner_texts() == ["“Cafe\u0301” (0)", "“caf\u00e9” (1)"]
        tab.keyboard.press("Escape")
    tab = show(written(texts=["Cafe\u0301", "caf\u00e9", "cafe"]), "#view=neuron&query=2")
    tab.get_by_placeholder("find a key").fill("CAF\u00c9")
    until(tab, "() => document.querySelectorAll('.keylist-row').length === 2")


def test_a_pair_filter_that_leaves_no_token_is_not_followed(show: Show) -> None:
    tab = show(plain(), "#view=matrix&pair=BA")
    assert tab.get_by_role("alert").count() == 0
    assert tab.locator(".plot canvas").is_visible() and "pair=" not in tab.url


@pytest.mark.parametrize("view, scroller", [("heads", ".scroller"), ("neuron", ".keylist")])
def test_a_layer_that_loads_is_neither_scrolled_nor_pointed_at(show: Show, view: str, scroller: str) -> None:
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
    tab.evaluate(READ)
    assert "layer 1 · head 8" in tab.locator(".readout").inner_text()


@pytest.mark.parametrize(
    "address, line",
    [
        ("#view=heads&query=300", ".row[data-pinned]"),
        ("#view=neuron&query=300&key=280", ".neuron-queries .row[data-index='300']"),
    ],
)
@pytest.mark.parametrize("height", [720, 900])
def test_what_an_address_names_stands_in_the_window(show: Show, address: str, line: str, height: int) -> None:
    tab = show(make_case(seq=400), address, viewport={"width": 1000, "height": height})
    tab.evaluate(READ)
    until(tab, f"() => document.querySelector({line!r}) !== null")
    box = tab.locator(line).first.bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= height


def test_marks_of_direction_in_a_heading_are_seen_and_not_obeyed(minilm: "pellucid.Model", show: Show) -> None:
    """They would show other letters than the model read."""
    tab = show(pellucid.view(minilm.trace("pay 100 \u202e002 now")).html())
    assert tab.locator("h1 bdi").inner_text() == "pay 100 \ufffd002 now"


LEFTS = """(line, parts) => parts.map((part) => {
  const nodes = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) if (nodes.currentNode.data.includes(part)) break;
  const [range, from] = [document.createRange(), nodes.currentNode.data.indexOf(part)];
  range.setStart(nodes.currentNode, from);
  range.setEnd(nodes.currentNode, from + part.length);
  return range.getBoundingClientRect().left;
})"""
"""The left edges of some words of a line."""


def test_the_name_of_a_model_turns_nothing_behind_it(show: Show) -> None:
    page = written()
    page.manifest["model"] |= {"name": "\u05de\u05d5\u05d3\u05dc \u202e", "family": ""}
    line = show(page).locator(".model").first
    assert line.inner_text().startswith("\u05de\u05d5\u05d3\u05dc \ufffd  ·  2 layers × 3 heads")
    lefts = line.evaluate(LEFTS, ["\u05de\u05d5\u05d3\u05dc", "2", "layers", "3"])
    assert lefts == sorted(lefts)


def test_texts_of_two_runs_turn_nothing_beside_them(show: Show) -> None:
    page = compared(0, 3)
    page.manifest["other"] |= {"label": "pay \u202e900", "beside": "pay \u202e100", "texts": ["x\u2067y"]}
    tab = show(page, "#view=diff")
    legend, runs = tab.locator(".legend"), tab.locator(".diff-runs")
    assert "The other run is “pay \ufffd900”. The weights of both runs" in legend.inner_text()
    assert legend.locator("bdi").inner_text() == "pay \ufffd900"
    said = runs.locator("bdi").all_inner_texts()
    assert said == ["".join(TEXTS), "pay \ufffd100", "x\ufffdy", "pay \ufffd900"]
    assert not set("\u202e\u2067") & set(legend.inner_html() + runs.inner_html())


@pytest.mark.parametrize("on, head", [("0.1.4", 1), ("4", 2)])
def test_where_a_layer_has_fewer_heads_one_that_stays_on_is_read(show: Show, on: str, head: int) -> None:
    made = Made(("", tokens_of(8)))
    for layer, heads in enumerate((3, 5)):
        made.attention(layer=layer, heads=heads)
    tab = show(made.data(), f"#view=heads&layer=1&heads={on}&head=4")
    tab.evaluate(READ)
    tab.keyboard.press("[")
    tab.evaluate(READ)
    assert f"layer 0 · head {head}" in tab.locator(".readout").inner_text()
