"""Accessibility: keyboard, screen readers, light, dark and forced colours, and colour vision deficiencies."""

import re
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

import pellucid
from pellucid.view import page as page_module
from tests.quick import few
from tests.view.conftest import Show
from tests.view.page_builder import PageBuilder, tokens_of
from tests.view.reference_pages import HEADS, TWO_FRAMES, comparison_page, reference_page

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
SERIOUS = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 200) + node.failureSummary)}`);
}"""
CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (part) => (part <= 10.3 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const bright = ([red, green, blue]) => 0.2126 * light(red) + 0.7152 * light(green) + 0.0722 * light(blue);
  const over = (top, below, share) => top.slice(0, 3).map((part, at) => part * share + below[at] * (1 - share));
  const paper = (element) => {
    const path = [];
    for (let at = element; at; at = at.parentElement) path.unshift(parts(getComputedStyle(at).backgroundColor));
    return path.reduce((below, top) => over(top, below, top[3] ?? 1), [255, 255, 255]);
  };
  const opacity = (element) =>
    element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1;
  const walker = document.createTreeWalker(document.querySelector(".pellucid"), NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest("script, style, noscript, button:disabled, [aria-disabled='true']")) continue;
    const below = paper(element);
    const ink = over(parts(getComputedStyle(element).color), below, opacity(element));
    const [dark, pale] = [bright(ink), bright(below)].sort((a, b) => a - b);
    found.push([(pale + 0.05) / (dark + 0.05), walker.currentNode.data.slice(0, 40), element.outerHTML.slice(0, 90)]);
  }
  return found.sort((a, b) => a[0] - b[0]).slice(0, 4);
}"""
"""The texts with the least contrast to what is painted below them (WCAG 2.2, 1.4.3)."""
OUTLINED = """() => {
  const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(document.activeElement);
  return (outlineStyle !== "none" && parseFloat(outlineWidth) >= 2) || boxShadow !== "none";
}"""
FOCUSED = """() => {
  const { activeElement: now } = document;
  now.dataset.stops = Number(now.dataset.stops ?? 0) + 1;
  const name = now.getAttribute("aria-label") ?? now.textContent;
  return now.closest(".pellucid") && `${now.tagName} ${now.className} ${name} ${now.dataset.stops}`;
}"""
VIEWS = ["heads", "matrix", "neuron", "lens", "tensor", "diff"]

COLOUR_VISION = {
    "all colours": "1 0 0  0 1 0  0 0 1",
    "no red": "0.152286 1.052583 -0.204868  0.114503 0.786281 0.099216  -0.003882 -0.048116 1.051998",
    "no green": "0.367322 0.860646 -0.227968  0.280085 0.672501 0.047413  -0.011820 0.042940 0.968881",
    "no blue": "1.255528 -0.076749 -0.178779  -0.078411 0.930809 0.147602  0.004733 0.691367 0.303900",
}
"""Matrices from linear red, green and blue to how they are seen (Machado, Oliveira and Fernandes 2009, severity 1)."""
XYZ = "0.4124564 0.3575761 0.1804375  0.2126729 0.7151522 0.0721750  0.0193339 0.1191920 0.9503041"
"""The matrix from linear red, green and blue to CIE XYZ (sRGB)."""
BACKGROUNDS = {"light": "#fdfcf9", "dark": "#15181d"}


def matrix(numbers: str) -> np.ndarray:
    return np.array(numbers.split(), dtype=float).reshape(3, 3)


def linear_rgb(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB under D65."""
    share = matrix(XYZ) @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def hues(theme: str) -> list[str]:
    source = (page_module.WEB / "colour.js").read_text(encoding="utf-8").partition("HUES = {")[2]
    return re.findall(r"#\w{6}", re.search(rf"{theme}: \[(.*?)\]", source)[1])


def assert_accessible(tab: Page, states: dict[str, str]) -> None:
    """Asserts that axe finds nothing serious and no contrast below 4.5 to 1, in each state; keys lead to the next."""
    tab.evaluate(AXE)
    for state, keys in states.items():
        press_keys(tab, keys)
        assert tab.evaluate(SERIOUS) == [], state
        worst = tab.evaluate(CONTRAST)
        assert worst[0][0] >= 4.5, (state, worst)


def press_keys(tab: Page, keys: str) -> None:
    for key in keys.split():
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)


@pytest.mark.parametrize(
    ("view", "theme"),
    [
        *few([(view, "light") for view in VIEWS], [("heads", "light"), ("tensor", "light")]),
        ("diff", "dark"),
        *(pytest.param(view, "dark", marks=pytest.mark.slow) for view in VIEWS if view != "diff"),
    ],
)
def test_axe_finds_no_serious_violation_and_contrast_is_sufficient(show: Show, view: str, theme: str) -> None:
    tab = show(comparison_page(0, 3), f"#view={view}", color_scheme=theme, viewport={"width": 1200, "height": 1000})
    press_keys(tab, "ArrowDown ArrowRight")
    assert tab.get_by_role("group", name="view").locator("[aria-pressed=true]").get_attribute("data-value") == view
    assert_accessible(tab, {"at rest": "", "table": "t", "help": "Escape ?", "search": "Escape /"})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_masked_tokens_have_sufficient_contrast(show: Show, theme: str) -> None:
    builder = PageBuilder(("", tokens_of(6)))
    builder.attention(mask="causal")
    tab = show(builder.data(), "#view=heads&query=2", color_scheme=theme)
    assert tab.locator(".key .row[data-unseen]").count() == 3
    assert_accessible(tab, {"a token selected": ""})


@pytest.mark.slow
def test_grid_of_a_real_model_is_accessible(minilm: "pellucid.Model", show: Show) -> None:
    html = pellucid.view(minilm.trace("time flies like an arrow", "fruit flies like a banana")).html()
    for theme in ("light", "dark"):
        tab = show(html, "#view=grid", color_scheme=theme)
        press_keys(tab, "ArrowDown ArrowRight")
        assert tab.get_by_role("group", name="view").locator("[aria-pressed=true]").inner_text() == "Model"
        assert_accessible(tab, {"at rest": "", "table": "t"})


def test_axe_and_the_contrast_check_can_fail(show: Show) -> None:
    tab = show(comparison_page(0, 3), "#view=tensor")
    tab.evaluate(AXE)
    tab.evaluate("() => document.querySelector('.tensor-list input').removeAttribute('aria-label')")
    tab.evaluate("() => document.querySelector('.tensor-list input').removeAttribute('placeholder')")
    tab.evaluate("() => (document.querySelector('.legend p').style.color = '#aaaaaa')")
    violations = " ".join(tab.evaluate(SERIOUS))
    assert "label" in violations and "color-contrast" in violations
    assert tab.evaluate(CONTRAST)[0][0] < 3


@pytest.mark.parametrize("view", few(VIEWS, ["heads", "lens"]))
def test_tab_visits_each_region_with_a_visible_focus(show: Show, view: str) -> None:
    tab = show(comparison_page(0, 3), f"#view={view}")
    tab.evaluate(TWO_FRAMES)
    stops = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        focused = tab.evaluate(FOCUSED)
        if focused is None:
            break
        assert tab.evaluate(OUTLINED), focused
        stops.append(focused)
    assert len(stops) < 24 and all(stop.endswith(" 1") for stop in stops)
    assert sum("chip" in stop for stop in stops) <= 1, "the heads are one stop"
    stage = tab.locator(".stage").locator(":is([tabindex='0'], input, select)").count()
    assert stage > 0


@pytest.mark.parametrize("side", ["query", "key"])
def test_home_and_end_select_the_first_and_last_token(show: Show, side: str) -> None:
    tab = show(reference_page(), "#view=heads")
    tab.locator(f".column.{side} [tabindex='0']").focus()
    for key, last in (("End", 6), ("Home", 0)):
        press_keys(tab, key)
        assert tab.locator(f".column.{side} .row[aria-selected=true]:focus").get_attribute("data-index") == str(last)
        assert f"({last})" in tab.locator(".readout").inner_text()


def test_arrow_keys_move_within_a_group_of_buttons(show: Show) -> None:
    tab = show(reference_page(), "#view=heads&heads=1")
    tab.locator(".chip").nth(1).focus()
    press_keys(tab, "ArrowRight")
    assert tab.locator(".chip:focus").inner_text() == "2"
    press_keys(tab, "Enter")
    assert tab.locator(".chip[aria-pressed=true]").all_inner_texts() == ["1", "2"]
    press_keys(tab, "ArrowLeft ArrowLeft")
    assert tab.locator(".chip:focus").inner_text() == "0"
    press_keys(tab, "Shift+Tab Tab")
    assert tab.locator(".chip:focus").inner_text() == "0"


def test_every_key_in_the_help_has_an_effect(show: Show) -> None:
    page = comparison_page(0, 3)
    tab = show(page, "#view=matrix&layer=0&heads=0.1.2")
    press_keys(tab, "?")
    shown = tab.locator("dialog dt").all()
    keys = [kbd for line in shown for kbd in line.locator("kbd").all_inner_texts()]
    press_keys(tab, "Escape")
    names = {"↑": "ArrowUp", "↓": "ArrowDown", "←": "ArrowLeft", "→": "ArrowRight", "Esc": "Escape"}
    snapshot = (
        """() => document.querySelector(".pellucid").innerHTML + document.activeElement.outerHTML + location.hash"""
    )
    for key in keys:
        press_keys(tab, "Escape Escape m [ ArrowDown ArrowDown ArrowRight")
        if key == "[":
            press_keys(tab, "]")
        if key == "m":
            press_keys(tab, "h")
        if key == "c":
            tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
        before = tab.evaluate(snapshot)
        press_keys(tab, names.get(key, key))
        if key == "c":
            assert tab.evaluate("() => navigator.clipboard.readText()").startswith(
                'trace["layers.0.attention.weights"]'
            )
        else:
            assert tab.evaluate(snapshot) != before, key
    assert set("tcs/?[],.hmnlxd") <= set(keys)


COLOUR_AT_REST = """async (button) => {
  await Promise.all(button.getAnimations().map((one) => one.finished));
  return getComputedStyle(button).backgroundColor;
}"""
FOCUSED_REGION = """() => {
  const { activeElement: now } = document;
  const name = now.closest(".stage") ? "stage" : (now.getAttribute("aria-label") ?? now.textContent);
  return now.closest(".pellucid") && name;
}"""


@pytest.mark.parametrize("view", VIEWS)
def test_focus_stays_in_the_stage_when_a_key_switches_the_view(show: Show, view: str) -> None:
    tab = show(comparison_page(0, 3), f"#view={view}")
    press_keys(tab, "ArrowDown ArrowRight")
    tab.locator(".stage [tabindex='0']").first.focus()
    tab.evaluate(TWO_FRAMES)
    for key in "mhnlxd":
        before = tab.evaluate("() => location.hash.match(/&(query|key)=.*/)?.[0]")
        press_keys(tab, key)
        assert tab.evaluate(FOCUSED_REGION) == "stage", key
        assert tab.evaluate("() => document.activeElement.checkVisibility() && document.activeElement.tabIndex") == 0
        assert tab.evaluate("() => document.activeElement.localName") != "input"
        assert tab.evaluate("() => location.hash.match(/&(query|key)=.*/)?.[0]") == before


def test_focus_leaves_hidden_chips_and_stays_on_disabled_buttons(show: Show) -> None:
    tab = show(comparison_page(0, 3), "#view=heads")
    for key in "xl":
        press_keys(tab, "h")
        tab.locator(".chip[aria-current=true]").focus()
        press_keys(tab, key)
        assert tab.evaluate(FOCUSED_REGION) == "stage", key
    press_keys(tab, "h")
    for name, sign in (("next layer", "layer=1"), ("previous layer", "layer=0")):
        button = tab.get_by_role("button", name=name)
        button.focus()
        assert button.get_attribute("aria-disabled") == "false"
        press_keys(tab, "Enter Enter")
        assert tab.evaluate(FOCUSED_REGION) == name and button.get_attribute("aria-disabled") == "true"
        assert sign in tab.url
        button.hover(force=True)
        assert button.evaluate(COLOUR_AT_REST) == "rgba(0, 0, 0, 0)"


def test_switching_the_view_by_key_selects_no_token(show: Show) -> None:
    tab = show(comparison_page(0, 3), "#view=matrix")
    tab.locator(".stage .plot").focus()
    press_keys(tab, "ArrowDown ArrowDown ArrowDown ArrowDown ArrowRight ArrowRight")
    value = tab.locator(".readout-value").inner_text()
    press_keys(tab, "h")
    assert tab.evaluate(FOCUSED_REGION) == "stage" and value and tab.locator(".readout-value").inner_text() == value


def test_search_selects_a_token(show: Show) -> None:
    tab = show(reference_page(), "#view=heads")
    press_keys(tab, "/")
    field = tab.get_by_role("combobox", name="text or index of a token")
    for letters, listed in (("qqq", "false"), ("", "true")):
        field.fill(letters)
        assert field.get_attribute("aria-expanded") == listed
    tab.keyboard.type("AR")
    assert tab.locator("dialog li").all_inner_texts() == ["“·arrow” (4)"]
    press_keys(tab, "Enter")
    assert tab.locator(".column.query .row[data-index='4'][aria-selected=true]").count() == 1
    assert "“·arrow” (4)" in tab.locator(".readout").inner_text()
    press_keys(tab, "/")
    tab.keyboard.type("time")
    press_keys(tab, "ArrowDown Enter")
    assert "“·time” (6)" in tab.locator(".readout").inner_text()


def test_table_is_copied_as_csv(show: Show) -> None:
    tab = show(page := reference_page(), "#view=matrix&heads=2&layer=1")
    press_keys(tab, "t")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.get_by_role("button", name="copy as CSV").click()
    tab.get_by_text("copied").wait_for()
    lines = tab.evaluate("() => navigator.clipboard.readText()").split("\r\n")
    assert lines[0].split(",")[1:3] == ["time 0", "·flies 1"]
    expected = page.numbers["layers.1.attention.weights"][2, 3]
    assert [float(text) for text in lines[4].split(",")[1:]] == pytest.approx(expected.tolist(), abs=2e-6)


SELECTED = {"matrix": ".cross", "neuron": ".neuron-queries .row[aria-selected=true]",
            "lens": ".word[aria-selected=true]", "tensor": ".heat-cell",
            "diff": ".diff-head .heat-cell"}  # fmt: skip
"""The selected element of each view."""
OUTSIDE = """(one) => {
  const scroller = one.closest(".scroller");
  const { outlineWidth, outlineOffset } = getComputedStyle(one);
  if (!scroller) return 0;
  const [box, frame] = [one, scroller].map((each) => each.getBoundingClientRect());
  return parseFloat(outlineWidth) + parseFloat(outlineOffset) - (box.left - frame.left);
}"""
"""The pixels by which an outline exceeds the left edge of its scroll container."""


@pytest.mark.parametrize("view", few(VIEWS, ["matrix", "neuron"]))
def test_selection_is_visible_in_forced_colours(show: Show, view: str) -> None:
    tab = show(comparison_page(0, 3), f"#view={view}", forced_colors="active")
    press_keys(tab, "ArrowDown ArrowRight Space")
    chosen = tab.locator(".segments [aria-pressed=true]").first
    assert chosen.evaluate("(one) => getComputedStyle(one).outlineStyle") != "none"
    marked = SELECTED.get(view)
    if marked:
        assert tab.locator(marked).first.evaluate("(one) => getComputedStyle(one).outlineStyle") != "none"
        assert tab.locator(marked).first.evaluate(OUTSIDE) <= 0, "the outline is cut off"


def test_current_head_is_marked_in_forced_colours(show: Show) -> None:
    tab = show(reference_page(), "#view=heads&heads=0.1.2&head=1", forced_colors="active")
    outline = "(all) => all.map((one) => getComputedStyle(one)).map((one) => `${one.outlineStyle} ${one.outlineWidth}`)"
    outlines = tab.locator(".chip").evaluate_all(outline)
    assert outlines[0] == outlines[2] != outlines[1] and not any("none" in one for one in outlines)
    tab.keyboard.press("Tab")  # from now on the focused element is outlined
    tab.locator(".chip").nth(1).focus()
    assert tab.locator(".chip").evaluate_all(outline)[1] == "solid 2px"


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_reduced_motion_disables_animations(show: Show, motion: Any) -> None:
    tab = show(comparison_page(0, 3), "#view=tensor", reduced_motion=motion)
    moving = """() => [...document.querySelectorAll(".pellucid *")].filter((each) =>
      getComputedStyle(each).transitionDuration !== "0s" || getComputedStyle(each).animationName !== "none").length"""
    assert (tab.evaluate(moving) > 0) == (motion == "no-preference")


@pytest.mark.parametrize("vision", COLOUR_VISION)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_head_colours_are_distinct_for_every_colour_vision(theme: str, vision: str) -> None:
    perceived = [lab(matrix(COLOUR_VISION[vision]) @ linear_rgb(hue)) for hue in hues(theme)]
    distances = [np.linalg.norm(a - b) for i, a in enumerate(perceived) for b in perceived[:i]]
    assert len(perceived) == 8 and min(distances) > 20
    for hue in hues(theme):
        pale, dark = sorted(
            [(matrix(XYZ) @ linear_rgb(colour))[1] + 0.05 for colour in (hue, BACKGROUNDS[theme])], reverse=True
        )
        assert pale / dark >= 3


def test_heads_have_distinct_lines(show: Show) -> None:
    tab = show(reference_page(), "#view=heads&heads=0.1.2")
    lines = tab.locator(".chip i").evaluate_all("(all) => all.map((one) => getComputedStyle(one).background)")
    assert len(set(lines)) == HEADS
