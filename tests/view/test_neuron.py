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
from tests.view.conftest import MOUNTED, READ, Show, until
from tests.view.neuron_steps import (
    SETTLED,
    TOLD,
    across,
    add_up,
    biased,
    numbers,
    plain,
    rotary,
    said,
    weights,
    windowed,
)
from tests.view.page_builder import Made, tokens_of
from tests.view.test_access import AXE, CONTRAST, SERIOUS

NODES = "() => document.querySelectorAll('*').length"
CELLS = """(canvas, count) => {
  const { data } = canvas.getContext("2d").getImageData(0, canvas.height >> 1, canvas.width, 1);
  const middle = (place) => 4 * Math.floor((place + 0.5) * canvas.width / count);
  return Array.from({ length: count }, (_, place) => [...data.slice(middle(place), middle(place) + 3)]) }"""


CASES: dict[str, tuple[Callable[[], PageData], list[tuple[int, int, int]]]] = {
    "encoder": (plain, [(0, 2, 7), (3, 8, 0)]),
    "rotary, grouped": (rotary, [(0, 8, 3), (4, 7, 7), (5, 0, 0)]),
    "distance bias": (biased, [(1, 2, 8), (3, 8, 0)]),
    "window": (windowed, [(2, 8, 6), (0, 3, 1)]),
    "cross attention": (across, [(1, 8, 11), (2, 0, 3)]),
}


@pytest.mark.parametrize("name", few(CASES, ["rotary, grouped"]))
def test_a_weight_can_be_made_again_from_what_is_written(show: Show, name: str) -> None:
    make, pairs = CASES[name]
    data = make()
    for head, query, key in pairs:
        tab = show(data, f"#view=neuron&head={head}&heads={head}&query={query}&key={key}")
        scores, expected = weights(data, head, query)
        steps = add_up(tab, expected[key], 16)
        assert steps.get("score", steps["scaled"]) == pytest.approx(scores[key], rel=1e-6)
        text, about = tab.evaluate(READ)
        assert (about["query"], about["key"]) == (str(query), str(key))
        assert float(text) == pytest.approx(expected[key], abs=2e-6)


@pytest.mark.parametrize(
    ("module", "old", "new", "named"),
    few(
        [
            ("attention", "scaled: sum * scale", "scaled: sum", "scaled"),
            ("attention", "b * cosine + a * sine", "b * cosine - a * sine", "turned"),
            ("attention", "exponential: Math.exp(score", "exponential: Math.exp(1 + score", "exponential"),
            ("chain", "exponential / total)", "exponential)", "weight"),
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
    tab = show(rotary(), "#view=neuron&head=0&heads=0&query=8&key=3")
    with pytest.raises(AssertionError, match=f"^{named}: .* is not"):
        add_up(tab, weights(rotary(), 0, 8)[1][3], 16)


def test_every_key_is_listed_with_its_score_and_its_weight(show: Show) -> None:
    data = windowed()
    tab = show(data, "#view=neuron&head=1&heads=1&query=6&key=4")
    scores, expected = weights(data, 1, 6)
    rows = tab.locator(".keylist-row")
    for key, text in enumerate(rows.all_inner_texts()):
        *_, score, weight = text.split()
        assert score == ("masked" if expected[key] == 0 else f"{scores[key]:.3f}".replace("-", "−"))
        assert float(weight) == pytest.approx(expected[key], abs=1e-6)
    assert rows.count() == 9
    tab.get_by_label("order of the keys").select_option("weight")
    tab.evaluate(SETTLED)
    order = tab.evaluate("() => [...document.querySelectorAll('.keylist-row')].map((row) => Number(row.dataset.key))")
    assert sorted(order, key=lambda key: -expected[key]) == order
    until(tab, "() => location.hash.includes('&order=weight')")
    tab.reload()
    until(tab, MOUNTED)
    assert rows.all_inner_texts() and tab.get_by_label("order of the keys").input_value() == "weight"
    tab.get_by_placeholder("find a key").fill("WORD3")
    tab.evaluate(SETTLED)
    assert rows.count() == 1 and "1 of 9 keys" in tab.locator(".legend").inner_text()
    tab.get_by_placeholder("find a key").fill("nothing like it")
    tab.evaluate(SETTLED)
    assert rows.count() == 0


@pytest.mark.parametrize("width", [760, 940, 1180])
def test_a_sign_and_its_number_stand_on_one_line(show: Show, width: int) -> None:
    tab = show(biased(), "#view=neuron&head=1&heads=1&query=6&key=4", viewport={"width": width, "height": 1000})
    lines = """(number) => {
      const range = document.createRange(), before = number.previousSibling;
      range.setStart(before, before.length - 2);
      range.setEndAfter(number);
      const lines = new Set([...range.getClientRects()].map(({ bottom }) => Math.round(bottom / 8)));
      return [range.toString()[0], lines.size]; }"""
    told = [number.evaluate(lines) for number in tab.locator(".chain-words b").all()]
    assert told == [["×", 1], ["+", 1], ["−", 1], ["÷", 1]]


def test_what_is_masked_says_so(show: Show) -> None:
    tab = show(windowed(), "#view=neuron&head=1&heads=1&query=8&key=2")
    assert "the mask excludes this pair" in tab.locator(".chain").inner_text()
    assert said(tab)["weight"] == 0 and said(tab)["masked"] == -math.inf


def test_heads_that_share_keys_say_so(show: Show) -> None:
    tab = show(rotary(), "#view=neuron&head=4&heads=4")
    assert tab.locator(".neuron-shared").inner_text() == "Heads 3 to 5 share key head 1."
    assert tab.locator(".vectors-row").evaluate_all("(rows) => rows.map((row) => row.dataset.part)") == [
        "queryBefore", "query", "keyBefore", "key", "product"]  # fmt: skip
    assert not show(plain(), "#view=neuron").locator(".neuron-shared").is_visible()


def test_the_keyboard_goes_everywhere(show: Show) -> None:
    data = plain()
    tab = show(data, "#heads=2&head=2")
    for key in "n ArrowRight ArrowDown ArrowDown ArrowLeft ArrowDown".split():
        tab.keyboard.press(key)
    tab.evaluate(SETTLED)
    assert tab.locator(".neuron-queries .row:focus").get_attribute("data-index") == "2"
    largest = int(weights(data, 2, 1)[1].argmax())
    expected = min(8, largest + 2)
    assert tab.locator(".keylist-row[aria-selected=true]").get_attribute("data-key") == str(expected)
    add_up(tab, weights(data, 2, 2)[1][expected], 16)
    tab.keyboard.press("ArrowDown")  # the vectors have the focus now: the key moves, and they keep it
    assert tab.locator(".vectors:focus").count() == 1
    for key in ". ] Escape".split():
        tab.keyboard.press(key)
    assert "head 3" in tab.locator(".readout").inner_text()


def test_the_pointer_reads_a_number_of_any_strip(show: Show) -> None:
    data = rotary()
    tab = show(data, "#view=neuron&head=0&heads=0&query=8&key=3")
    for row, key in ((tab.locator(".vectors-row[data-part=key]"), 3), (tab.locator(".keylist-row[data-key='5']"), 5)):
        row.scroll_into_view_if_needed()
        box = row.locator("canvas").last.bounding_box()
        tab.mouse.move(box["x"] + box["width"] * 5.5 / 16, box["y"] + box["height"] / 2)
        product, _, turned = tab.evaluate(TOLD)
        assert (product["dimension"], product["key"]) == ("5", str(key))
        assert turned["numbers"][4] == product["numbers"][1]
    tab.mouse.move(3, 3)
    assert "Point at a number" in tab.locator(".neuron-dimension").inner_text()
    tab.locator(".keylist-row[data-key='5']").click()
    assert said(tab)["weight"] == pytest.approx(weights(data, 0, 8)[1][5], abs=2e-6)


def test_the_colours_are_those_of_the_numbers(show: Show) -> None:
    data = plain()
    tab = show(data, "#view=neuron&head=0&heads=0&query=2&key=7")
    ramp = tab.evaluate("() => [...colour.signedRamp('light')]")
    query, keys = numbers(data, "layers.4.attention.query")[0, 2], numbers(data, "layers.4.attention.key")[0]
    for part, values, end in (
        ("query", query, abs(query).max()),
        ("key", keys[7], abs(keys).max()),
        ("product", query * keys[7], abs(query * keys).max()),
    ):
        cells = tab.locator(f".vectors-row[data-part={part}] canvas").evaluate(CELLS, 16)
        for seen, value in zip(cells, values):
            share = np.sign(value) * math.sqrt(abs(value) / end)
            step = round(127.5 + 127.5 * share)
            assert np.abs(np.array(seen) - ramp[3 * step : 3 * step + 3]).max() <= 3
    assert f"up to ±{abs(query).max():.2f}" == tab.locator("[data-part=query] .vectors-number").inner_text()


def test_the_table_holds_every_dimension(show: Show) -> None:
    data = rotary()
    tab = show(data, "#view=neuron&head=5&heads=5&query=8&key=3")
    tab.keyboard.press("t")
    cells = np.array([float(text) for text in tab.locator("tbody td").all_inner_texts()]).reshape(16, 5)
    assert np.allclose(cells[:, 1] * cells[:, 3], cells[:, 4], rtol=1e-6)
    assert np.allclose(cells[:, 0], numbers(data, "layers.4.attention.query")[5, 8])
    assert cells[:, 4].sum() * 0.25 == pytest.approx(weights(data, 5, 8)[0][3], rel=1e-6)


def test_numbers_that_are_none_are_shown_as_such(show: Show) -> None:
    made = Made(("", tokens_of(4)))
    entry = made.attention(size=8)
    broken = np.frombuffer(made.blocks[entry["query"]], "<f4").copy()
    broken[3], broken[9] = np.nan, np.inf
    made.blocks[entry["query"]] = broken.tobytes()
    tab = show(made.data(), "#view=neuron&head=0&heads=0&query=0&key=1")
    assert said(tab)["sum"] != said(tab)["sum"] and said(tab)["weight"] != said(tab)["weight"]
    grey = tab.evaluate("() => colour.meanColour('light').match(/\\w\\w/g).map((part) => parseInt(part, 16))")
    assert tab.locator("[data-part=query] canvas").evaluate(CELLS, 8)[3] == grey
    tab = show(made.data(), "#view=neuron&head=0&heads=0&query=1&key=1")
    assert not math.isfinite(said(tab)["sum"])
    tab.keyboard.press("Escape")
    tab.evaluate(SETTLED)
    readout = tab.locator(".readout").inner_text()
    assert "NaN" in readout and "choose a query" in readout and "largest" not in readout


def test_one_token_looks_at_itself(show: Show) -> None:
    made = Made(("", tokens_of(1)))
    made.attention(size=8, mask="causal")
    tab = show(made.data(), "#view=neuron")
    assert add_up(tab, 1.0, 8)["total"] == 1


def test_long_texts_stay_light_and_what_is_chosen_is_in_sight(show: Show) -> None:
    made = Made(("", tokens_of(512)))
    made.attention(size=64, heads=2)
    data = made.data()
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
    assert said(tab)["weight"] == pytest.approx(weights(data, 1, 400)[1][505], rel=1e-6)
    assert tab.evaluate(NODES) < 3000


def test_weights_alone_cannot_be_taken_apart(show: Show) -> None:
    made = Made(("", tokens_of(3)))
    entry = made.attention(size=8)
    entry["weights"] = made.block("weights", np.full((4, 3, 3), 1 / 3, "f4"))
    entry["query"] = entry["key"] = None
    tab = show(made.data(), "#view=neuron")
    for key in "ArrowDown ArrowRight t Escape".split():
        tab.keyboard.press(key)
    sentence = tab.locator(".neuron .problem").inner_text()
    assert "cannot show how a weight was computed" in sentence and not tab.locator(".chain").is_visible()
    assert tab.locator(".readout").inner_text().strip() == "layer 0 · head 0"  # no token is selected


def test_the_model_s_own_weight_stands_beside_the_one_that_is_made(show: Show) -> None:
    made = Made(("", tokens_of(3)))
    entry = made.attention(size=8)
    entry["weights"] = made.block("weights", np.full((4, 3, 3), 1 / 4, "f4"))
    tab = show(made.data(), "#view=neuron&head=2&heads=2&query=1&key=2")
    steps = said(tab)
    assert steps["weight"] == pytest.approx(weights(made.data(), 2, 1)[1][2]) and steps["stored"] == 0.25


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 900}}], ids=str)
def test_it_fits_every_window(show: Show, options: dict[str, Any]) -> None:
    tab = show(rotary(), "#view=neuron", **options)
    tab.evaluate(SETTLED)
    assert tab.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    for part in ("query", "key", "product"):
        assert tab.locator(f"[data-part={part}] canvas").first.bounding_box()["width"] > 60


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_every_text_can_be_read(show: Show, theme: str) -> None:
    tab = show(rotary(), "#view=neuron&query=6&key=2", color_scheme=theme)
    tab.locator(".vectors").focus()
    tab.keyboard.press("ArrowRight")
    tab.evaluate(AXE)
    assert tab.evaluate(SERIOUS) == []
    assert tab.evaluate(CONTRAST)[0][0] >= 4.5
