"""The neuron view in a real browser: every step from two vectors to a weight can be recomputed from what it shows."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.view import page as page_module
from pellucid.view.data import PageData
from tests.quick import few
from tests.view.conftest import MOUNTED, READOUT, Show, wait_until
from tests.view.neuron_steps import (
    DIMENSION_LINES,
    TWO_FRAMES,
    biased_page,
    block_values,
    check_steps,
    cross_attention_page,
    displayed_steps,
    plain_page,
    rotary_page,
    scores_and_weights,
    windowed_page,
)
from tests.view.page_builder import PageBuilder, tokens_of
from tests.view.test_access import AXE, CONTRAST, SERIOUS

NODES = "() => document.querySelectorAll('*').length"
CELL_COLOURS = """(canvas, count) => {
  const { data } = canvas.getContext("2d").getImageData(0, canvas.height >> 1, canvas.width, 1);
  const middle = (place) => 4 * Math.floor((place + 0.5) * canvas.width / count);
  return Array.from({ length: count }, (_, place) => [...data.slice(middle(place), middle(place) + 3)]) }"""


CASES: dict[str, tuple[Callable[[], PageData], list[tuple[int, int, int]]]] = {
    "encoder": (plain_page, [(0, 2, 7), (3, 8, 0)]),
    "rotary, grouped": (rotary_page, [(0, 8, 3), (4, 7, 7), (5, 0, 0)]),
    "distance bias": (biased_page, [(1, 2, 8), (3, 8, 0)]),
    "window": (windowed_page, [(2, 8, 6), (0, 3, 1)]),
    "cross attention": (cross_attention_page, [(1, 8, 11), (2, 0, 3)]),
}


@pytest.mark.parametrize("name", few(CASES, ["rotary, grouped"]))
def test_weight_can_be_recomputed_from_the_displayed_steps(show: Show, name: str) -> None:
    make_page, pairs = CASES[name]
    data = make_page()
    for head, query, key in pairs:
        tab = show(data, f"#view=neuron&head={head}&heads={head}&query={query}&key={key}")
        scores, expected = scores_and_weights(data, head, query)
        steps = check_steps(tab, expected[key], 16)
        assert steps.get("score", steps["scaled"]) == pytest.approx(scores[key], rel=1e-6)
        text, readout = tab.evaluate(READOUT)
        assert (readout["query"], readout["key"]) == (str(query), str(key))
        assert float(text) == pytest.approx(expected[key], abs=2e-6)


@pytest.mark.parametrize(
    ("module", "old", "new", "named"),
    few(
        [
            ("attention", "scaled: sum * scale", "scaled: sum", "scaled"),
            ("attention", "b * cosine + a * sine", "b * cosine - a * sine", "turned"),
            ("attention", "exponential = Math.exp(score", "exponential = Math.exp(1 + score", "exponential"),
            ("chain", 'step("weight", weight)', 'step("weight", 2 * weight)', "weight"),
        ],
        ["chain"],
    ),
)
def test_the_comparison_can_fail(
    show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, old: str, new: str, named: str
) -> None:
    source = (shutil.copytree(page_module.WEB, tmp_path / "web") / f"{module}.js").read_text()
    assert source.count(old) == 1
    (tmp_path / "web" / f"{module}.js").write_text(source.replace(old, new))
    monkeypatch.setattr(page_module, "WEB", tmp_path / "web")
    tab = show(rotary_page(), "#view=neuron&head=0&heads=0&query=8&key=3")
    with pytest.raises(AssertionError, match=f"^{named}: .* is not"):
        check_steps(tab, scores_and_weights(rotary_page(), 0, 8)[1][3], 16)


def test_every_key_is_listed_with_its_score_and_weight(show: Show) -> None:
    data = windowed_page()
    tab = show(data, "#view=neuron&head=1&heads=1&query=6&key=4")
    scores, expected = scores_and_weights(data, 1, 6)
    rows = tab.locator(".keylist-row")
    for key, text in enumerate(rows.all_inner_texts()):
        *_, score, weight = text.split()
        assert score == ("masked" if expected[key] == 0 else f"{scores[key]:.3f}".replace("-", "−"))
        assert float(weight) == pytest.approx(expected[key], abs=1e-6)
    assert rows.count() == 9
    tab.get_by_label("order of the keys").select_option("weight")
    tab.evaluate(TWO_FRAMES)
    order = tab.evaluate("() => [...document.querySelectorAll('.keylist-row')].map((row) => Number(row.dataset.key))")
    assert sorted(order, key=lambda key: -expected[key]) == order
    wait_until(tab, "() => location.hash.includes('&order=weight')")
    tab.reload()
    wait_until(tab, MOUNTED)
    assert rows.all_inner_texts() and tab.get_by_label("order of the keys").input_value() == "weight"
    tab.get_by_placeholder("find a key").fill("WORD3")
    tab.evaluate(TWO_FRAMES)
    assert rows.count() == 1 and "1 of 9 keys" in tab.locator(".legend").inner_text()
    tab.get_by_placeholder("find a key").fill("nothing like it")
    tab.evaluate(TWO_FRAMES)
    assert rows.count() == 0


@pytest.mark.parametrize("width", [760, 940, 1180])
def test_sign_and_number_are_on_one_line(show: Show, width: int) -> None:
    tab = show(biased_page(), "#view=neuron&head=1&heads=1&query=6&key=4", viewport={"width": width, "height": 1000})
    lines = """(number) => {
      const range = document.createRange(), before = number.previousSibling;
      range.setStart(before, before.length - 2);
      range.setEndAfter(number);
      const lines = new Set([...range.getClientRects()].map(({ bottom }) => Math.round(bottom / 8)));
      return [range.toString()[0], lines.size]; }"""
    line_counts = [number.evaluate(lines) for number in tab.locator(".chain-words b").all()]
    assert line_counts == [["×", 1], ["+", 1], ["−", 1], ["÷", 1]]


def test_masked_keys_are_described(show: Show) -> None:
    tab = show(windowed_page(), "#view=neuron&head=1&heads=1&query=8&key=2")
    assert "the mask excludes this pair" in tab.locator(".chain").inner_text()
    assert displayed_steps(tab)["weight"] == 0 and displayed_steps(tab)["masked"] == -math.inf


def test_shared_keys_are_described(show: Show) -> None:
    tab = show(rotary_page(), "#view=neuron&head=4&heads=4")
    assert tab.locator(".neuron-shared").inner_text() == "Heads 3 to 5 share key head 1."
    assert tab.locator(".vectors-row").evaluate_all("(rows) => rows.map((row) => row.dataset.part)") == [
        "queryBefore", "query", "keyBefore", "key", "product"]  # fmt: skip
    assert not show(plain_page(), "#view=neuron").locator(".neuron-shared").is_visible()


def test_every_element_is_reached_by_keyboard(show: Show) -> None:
    data = plain_page()
    tab = show(data, "#heads=2&head=2")
    for key in "n ArrowRight ArrowDown ArrowDown ArrowLeft ArrowDown".split():
        tab.keyboard.press(key)
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".neuron-queries .row:focus").get_attribute("data-index") == "2"
    largest = int(scores_and_weights(data, 2, 1)[1].argmax())
    expected = min(8, largest + 2)
    assert tab.locator(".keylist-row[aria-selected=true]").get_attribute("data-key") == str(expected)
    check_steps(tab, scores_and_weights(data, 2, 2)[1][expected], 16)
    tab.keyboard.press("ArrowDown")  # the vectors have the focus now: the key moves, and they keep it
    assert tab.locator(".vectors:focus").count() == 1
    for key in ". ] Escape".split():
        tab.keyboard.press(key)
    assert "head 3" in tab.locator(".readout").inner_text()


def test_pointer_reads_numbers_of_any_strip(show: Show) -> None:
    data = rotary_page()
    tab = show(data, "#view=neuron&head=0&heads=0&query=8&key=3")
    for row, key in ((tab.locator(".vectors-row[data-part=key]"), 3), (tab.locator(".keylist-row[data-key='5']"), 5)):
        row.scroll_into_view_if_needed()
        box = row.locator("canvas").last.bounding_box()
        tab.mouse.move(box["x"] + box["width"] * 5.5 / 16, box["y"] + box["height"] / 2)
        product, _, turned = tab.evaluate(DIMENSION_LINES)
        assert (product["dimension"], product["key"]) == ("5", str(key))
        assert turned["numbers"][4] == product["numbers"][1]
    tab.mouse.move(3, 3)
    assert "Point at a number" in tab.locator(".neuron-dimension").inner_text()
    tab.locator(".keylist-row[data-key='5']").click()
    assert displayed_steps(tab)["weight"] == pytest.approx(scores_and_weights(data, 0, 8)[1][5], abs=2e-6)


def test_colours_follow_the_numbers(show: Show) -> None:
    data = plain_page()
    tab = show(data, "#view=neuron&head=0&heads=0&query=2&key=7")
    ramp = tab.evaluate("() => [...colour.signedRamp('light')]")
    query, keys = block_values(data, "layers.4.attention.query")[0, 2], block_values(data, "layers.4.attention.key")[0]
    for part, values, end in (
        ("query", query, abs(query).max()),
        ("key", keys[7], abs(keys).max()),
        ("product", query * keys[7], abs(query * keys).max()),
    ):
        cells = tab.locator(f".vectors-row[data-part={part}] canvas").evaluate(CELL_COLOURS, 16)
        for colour, value in zip(cells, values):
            share = np.sign(value) * math.sqrt(abs(value) / end)
            step = round(127.5 + 127.5 * share)
            assert np.abs(np.array(colour) - ramp[3 * step : 3 * step + 3]).max() <= 3
    assert f"up to ±{abs(query).max():.2f}" == tab.locator("[data-part=query] .vectors-number").inner_text()


def test_table_has_every_dimension(show: Show) -> None:
    data = rotary_page()
    tab = show(data, "#view=neuron&head=5&heads=5&query=8&key=3")
    tab.keyboard.press("t")
    cells = np.array([float(text) for text in tab.locator("tbody td").all_inner_texts()]).reshape(16, 5)
    assert np.allclose(cells[:, 1] * cells[:, 3], cells[:, 4], rtol=1e-6)
    assert np.allclose(cells[:, 0], block_values(data, "layers.4.attention.query")[5, 8])
    assert cells[:, 4].sum() * 0.25 == pytest.approx(scores_and_weights(data, 5, 8)[0][3], rel=1e-6)


def test_nan_is_shown_as_nan(show: Show) -> None:
    builder = PageBuilder(("", tokens_of(4)))
    entry = builder.attention(size=8)
    values = np.frombuffer(builder.blocks[entry["query"]], "<f4").copy()
    values[3], values[9] = np.nan, np.inf
    builder.blocks[entry["query"]] = values.tobytes()
    tab = show(builder.data(), "#view=neuron&head=0&heads=0&query=0&key=1")
    assert (
        displayed_steps(tab)["sum"] != displayed_steps(tab)["sum"]
        and displayed_steps(tab)["weight"] != displayed_steps(tab)["weight"]
    )
    grey = tab.evaluate("() => colour.meanColour('light').match(/\\w\\w/g).map((part) => parseInt(part, 16))")
    assert tab.locator("[data-part=query] canvas").evaluate(CELL_COLOURS, 8)[3] == grey
    tab = show(builder.data(), "#view=neuron&head=0&heads=0&query=1&key=1")
    assert not math.isfinite(displayed_steps(tab)["sum"])
    tab.keyboard.press("Escape")
    tab.evaluate(TWO_FRAMES)
    readout = tab.locator(".readout").inner_text()
    assert "NaN" in readout and "choose a query" in readout and "largest" not in readout


def test_one_token_attends_to_itself(show: Show) -> None:
    builder = PageBuilder(("", tokens_of(1)))
    builder.attention(size=8, mask="causal")
    tab = show(builder.data(), "#view=neuron")
    assert check_steps(tab, 1.0, 8)["total"] == 1


def test_long_texts_have_few_elements_and_a_visible_selection(show: Show) -> None:
    builder = PageBuilder(("", tokens_of(512)))
    builder.attention(size=64, heads=2)
    data = builder.data()
    tab = show(data, "#view=neuron&head=1&heads=1&query=400&key=300")
    assert tab.locator(".keylist-row[aria-selected=true]").get_attribute("data-key") == "300"
    assert tab.evaluate(NODES) < 3000 and tab.locator(".keylist-row").count() < 80
    for selector in (".keylist-row[data-key='300']", ".neuron-queries .row[data-index='400']"):
        row, frame = (
            tab.locator(one).bounding_box() for one in (selector, selector.split()[0].replace("-row", "").split("[")[0])
        )
        assert frame["y"] <= row["y"] and row["y"] + row["height"] <= frame["y"] + frame["height"]
    tab.locator(".keylist").evaluate("(list) => list.scrollTo(0, 15000)")
    tab.locator(".keylist-row[data-key='505']").click()
    assert displayed_steps(tab)["weight"] == pytest.approx(scores_and_weights(data, 1, 400)[1][505], rel=1e-6)
    assert tab.evaluate(NODES) < 3000


def test_weights_without_queries_and_keys_have_no_steps(show: Show) -> None:
    builder = PageBuilder(("", tokens_of(3)))
    entry = builder.attention(size=8)
    entry["weights"] = builder.block("weights", np.full((4, 3, 3), 1 / 3, "f4"))
    entry["query"] = entry["key"] = None
    tab = show(builder.data(), "#view=neuron")
    for key in "ArrowDown ArrowRight t Escape".split():
        tab.keyboard.press(key)
    sentence = tab.locator(".neuron .problem").inner_text()
    assert "cannot show how a weight was computed" in sentence and not tab.locator(".chain").is_visible()
    assert tab.locator(".readout").inner_text().strip() == "layer 0 · head 0"  # no token is selected


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 900}}], ids=str)
def test_neuron_view_fits_every_window(show: Show, options: dict[str, Any]) -> None:
    tab = show(rotary_page(), "#view=neuron", **options)
    tab.evaluate(TWO_FRAMES)
    assert tab.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    for part in ("query", "key", "product"):
        assert tab.locator(f"[data-part={part}] canvas").first.bounding_box()["width"] > 60


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_violation_and_contrast_is_sufficient(show: Show, theme: str) -> None:
    tab = show(rotary_page(), "#view=neuron&query=6&key=2", color_scheme=theme)
    tab.locator(".vectors").focus()
    tab.keyboard.press("ArrowRight")
    tab.evaluate(AXE)
    assert tab.evaluate(SERIOUS) == []
    assert tab.evaluate(CONTRAST)[0][0] >= 4.5
