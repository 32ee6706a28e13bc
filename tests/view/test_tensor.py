"""Any recorded tensor in a real browser: its numbers, its facts, and code that gives the same numbers elsewhere."""

import csv
import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from playwright.sync_api import Page
from torch import Tensor

import pellucid
from tests.view.conftest import MOUNTED, READ, Show, until
from tests.view.reference_pages import DRAWN, SIZE, TEXTS, Written, written

PIXELS = """(canvas, [rows, columns]) => {
  const [height, width] = [canvas.height / rows, canvas.width / columns];
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const at = (row, column) =>
    4 * (Math.floor((row + 0.5) * height) * canvas.width + Math.floor((column + 0.5) * width));
  return Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_, column) =>
    [...data.slice(at(row, column), at(row, column) + 4)]));
}"""
"""The colour in the centre of every cell."""
TAKEN = "() => navigator.clipboard.readText()"


def choose(tab: Page, name: str) -> None:
    tab.locator(f".tensor-list li[data-name='{name}']").click()
    tab.locator(".tensor-main h2").get_by_text(name, exact=True).wait_for()


def point(tab: Page, row: int, column: int, cell: tuple[int, int] = (28, 28)) -> None:
    tab.evaluate(DRAWN)  # before drawing, the plot is elsewhere and ignores the pointer
    box = tab.locator(".plot canvas").bounding_box()
    tab.mouse.move(box["x"] + (column + 0.5) * cell[0], box["y"] + (row + 0.5) * cell[1])
    tab.evaluate(DRAWN)


def number(tab: Page) -> float:
    return float(tab.locator(".readout-value").inner_text().replace("Infinity", "inf"))


def facts(tab: Page) -> dict[str, str]:
    return dict(zip(tab.locator(".facts dt").all_inner_texts(), tab.locator(".facts dd").all_inner_texts()))


def evaluated(page: Written, text: str) -> Tensor:
    """The result of the copied Python code, run on the page's own numbers."""
    trace = {t["name"]: page.numbers[t["block"]][None] for t in page.manifest["tensors"]}
    return eval(text, {"trace": trace})


@pytest.fixture
def copied(show: Show) -> Callable[[Page, str], str]:
    def press(tab: Page, label: str) -> str:
        tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
        button = tab.get_by_role("button", name=label).element_handle()
        button.click()
        until(tab, "(button) => button.textContent === 'copied'", button)
        return tab.evaluate(TAKEN)

    return press


def test_the_number_under_the_pointer_is_the_tensor_s(show: Show) -> None:
    tab = show(page := written(), "#view=tensor")
    for name, head in (("layers.1.attention.query", 2), ("layers.0.attention.weights", 1)):
        choose(tab, name)
        for _ in range(head):
            tab.get_by_label("next index on the axis heads").click()
        value = page.numbers[f"{name}.tensor"][head]
        for row in range(0, value.shape[0], 2):
            for column in range(value.shape[1]):
                point(tab, row, column)
                assert number(tab) == pytest.approx(value[row, column].item(), abs=1e-8)
                assert f"[0, {head}, {row}, {column}]" in tab.locator(".readout-words").inner_text()


def test_axes_are_chosen_and_the_others_stepped(show: Show) -> None:
    tab = show(page := written(), "#view=tensor")
    value = page.numbers["layers.0.attention.query.tensor"]
    tab.get_by_label("axis shown as columns").select_option(label="heads (3)")
    tab.get_by_label("index on the axis head_dim", exact=True).fill("3")
    tab.keyboard.press("Enter")
    point(tab, 4, 2)
    assert number(tab) == pytest.approx(value[2, 4, 3].item(), abs=1e-8)
    tab.get_by_label("axis shown as rows").select_option(label="heads (3)")
    point(tab, 1, 5)
    assert number(tab) == pytest.approx(value[1, 5, 3].item(), abs=1e-8)
    tab.locator(".plot").focus()
    tab.keyboard.press("]")
    tab.evaluate(DRAWN)
    assert tab.locator(".tensor-main h2").inner_text() == "layers.1.attention.query"
    point(tab, 1, 5)
    assert number(tab) == pytest.approx(page.numbers["layers.1.attention.query.tensor"][1, 5, 3].item(), abs=1e-8)


def test_the_address_names_the_cut(show: Show) -> None:
    tab = show(page := written(), "#view=tensor")
    choose(tab, "layers.1.attention.query")
    tab.get_by_label("axis shown as rows").select_option(label=f"head_dim ({SIZE})")
    tab.get_by_label("next index on the axis heads").click()
    until(tab, "() => location.hash.endsWith('tensor=layers.1.attention.query&cut=1.c.r')")
    tab.reload()
    until(tab, MOUNTED)
    point(tab, 3, 4)
    assert number(tab) == pytest.approx(page.numbers["layers.1.attention.query.tensor"][1, 4, 3].item(), abs=1e-8)
    for words in ("3.r.c", "r.c", "0.r.r", "0.1.c", "0.r.x", "-1.r.c", ""):  # not a slice of a tensor of this shape
        tab.evaluate(f"location.hash = '#view=tensor&tensor=layers.1.attention.query&cut={words}'")
        until(tab, "() => location.hash.endsWith('tensor=layers.1.attention.query')")


def test_the_facts_are_those_of_what_is_drawn(show: Show) -> None:
    tab = show(page := written(), "#view=tensor")
    choose(tab, "layers.0.residual.post")
    value = page.numbers["layers.0.residual.post.tensor"]
    finite = value[value.isfinite()].double()
    said = facts(tab)
    assert (said["numbers"], said["NaN"], said["infinite"]) == ("280", "1", "2")
    expected = [finite.min(), finite.max(), finite.mean(), finite.std(correction=0)]
    for name, fact in zip(("min", "max", "mean", "standard deviation"), expected):
        assert float(said[name].replace("−", "-")) == pytest.approx(fact.item(), rel=1e-5)
    assert said["min"].startswith("−")
    assert (
        "NaN" in tab.locator(".legend").inner_text()
        and "infinite numbers are empty" in tab.locator(".legend").inner_text()
    )
    assert "histogram: the fullest of 48 bins" in tab.locator(".tensor-facts canvas").get_attribute("aria-label")


def test_colours_follow_sign_and_size(show: Show) -> None:
    tab = show(page := written(), "#view=tensor")
    value = page.numbers["layers.0.attention.query.tensor"][0]
    canvas = tab.locator(".plot canvas")
    for row, line in enumerate(canvas.evaluate(PIXELS, list(value.shape))):
        for column, (red, _, blue, solid) in enumerate(line):
            assert solid == 255
            if abs(value[row, column]) > value.abs().max() / 20:
                assert (red > blue) == (value[row, column].item() > 0)
    choose(tab, "layers.0.residual.post")
    cells = canvas.evaluate(PIXELS, [len(TEXTS), 40])
    assert cells[2][5] == [0, 0, 0, 255] and cells[3][7][3] == cells[4][9][3] == 0


def test_a_wide_tensor_is_pooled_and_its_strongest_numbers_survive(show: Show) -> None:
    page = written()
    value = page.numbers["logits.tensor"]
    value[3, 4321] = 99.0
    page.store("logits.tensor", value)
    tab = show(page, "#view=tensor")
    choose(tab, "logits")
    said = tab.locator(".legend").inner_text()
    pool = int(said.split("is the largest of 1 × ")[1].split()[0])
    assert pool > 1
    point(tab, 3, 4321 // pool, (1, 28))
    assert number(tab) == 99 and "[0, 3, 4321]" in tab.locator(".readout-words").inner_text()
    tab.keyboard.press("ArrowRight")
    tab.evaluate(DRAWN)
    assert number(tab) == pytest.approx(value[3, 4322].item(), abs=1e-8)


def test_only_axes_that_there_are_have_an_arrow(show: Show) -> None:
    tab = show(written(), "#view=tensor")
    for name, axes in (("layers.0.residual.post", "hidden →\nseq ↓"), ("pooled", "hidden →")):
        choose(tab, name)
        tab.evaluate(DRAWN)
        assert tab.locator(".axes").inner_text() == axes


def test_copied_texts_give_the_numbers_back(show: Show, copied: Callable[[Page, str], str]) -> None:
    tab = show(page := written(), "#view=tensor")
    choose(tab, "layers.0.residual.post")
    value = page.numbers["layers.0.residual.post.tensor"]
    array = eval(copied(tab, "copy as NumPy"), {"np": np})
    assert array.dtype == np.float32 and np.array_equal(array, value.numpy(), equal_nan=True)
    lines = list(csv.reader(io.StringIO(copied(tab, "as CSV"))))
    assert [line[0] for line in lines[1:]] == TEXTS and lines[0][1:] == [str(i) for i in range(40)]
    assert np.array_equal(np.array([line[1:] for line in lines[1:]], dtype=np.float32), value.numpy(), equal_nan=True)
    choose(tab, "pooled")
    assert np.array_equal(eval(copied(tab, "copy as NumPy"), {"np": np}), page.numbers["pooled.tensor"].numpy())


def test_copied_python_runs_and_gives_what_is_shown(show: Show, copied: Callable[[Page, str], str]) -> None:
    tab = show(page := written(), "#view=tensor")
    choose(tab, "layers.1.attention.query")
    tab.get_by_label("next index on the axis heads").click()
    assert evaluated(page, copied(tab, "as Python")).equal(page.numbers["layers.1.attention.query.tensor"][1])
    tab.get_by_label("axis shown as rows").select_option(label="head_dim (4)")
    assert evaluated(page, copied(tab, "as Python")).equal(page.numbers["layers.1.attention.query.tensor"][1].T)
    point(tab, 3, 6)
    tab.keyboard.press("c")
    until(tab, "async () => await navigator.clipboard.readText()")
    assert evaluated(page, tab.evaluate(TAKEN)).item() == pytest.approx(number(tab), abs=1e-8)


@pytest.mark.parametrize("allowed", [True, False])
def test_a_closed_clipboard_leaves_the_text_in_reach(show: Show, allowed: bool) -> None:
    tab = show(written(), "#view=tensor")
    tab.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    if not allowed:
        tab.evaluate("() => (document.execCommand = () => false)")
    tab.get_by_role("button", name="as Python").click()
    tab.get_by_text("copied" if allowed else "copy it from the field").wait_for()
    if allowed:
        assert tab.locator("textarea").count() == 0
        tab.locator(".tensor-list input").click()
        tab.keyboard.press("Control+V")
        assert tab.locator(".tensor-list input").input_value().startswith('trace["layers.0.attention.query"]')
    else:
        assert tab.locator("textarea").input_value().startswith('trace["layers.0.attention.query"]')


def test_the_list_is_filtered_and_walked_by_keyboard(show: Show) -> None:
    tab = show(written(), "#view=tensor")
    tab.keyboard.press("/")
    tab.keyboard.type("attention 1")
    assert tab.locator(".tensor-list li").all_inner_texts() == ["layers.1.attention.query\n3 × 7 × 4"]
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    tab.evaluate(DRAWN)
    assert tab.locator(".tensor-main h2").inner_text() == "layers.1.attention.query"
    example = tab.locator(".tensor-list input").get_attribute("placeholder")
    tab.locator(".tensor-list input").fill(example.removeprefix("filter: "))
    assert tab.locator(".tensor-list li").count() >= 1
    tab.locator(".tensor-list input").fill("nothing")
    assert "no tensor has a matching name" in tab.locator(".tensor-list").inner_text()


def test_the_table_holds_the_numbers_around_the_cell(show: Show) -> None:
    tab = show(page := written(), "#view=tensor")
    choose(tab, "logits")
    for _ in range(9):
        tab.keyboard.press("ArrowRight")
    tab.evaluate(DRAWN)
    tab.keyboard.press("t")
    cells = torch.tensor([float(text) for text in tab.locator("dialog tbody td").all_inner_texts()])
    assert cells.view(7, 10).allclose(page.numbers["logits.tensor"][:, 3:13], rtol=0, atol=1e-7)
    assert "34,930 more numbers are left out" in tab.locator("dialog caption").inner_text()


@pytest.mark.slow
def test_python_copied_from_a_real_trace_gives_the_number_shown(
    minilm: "pellucid.Model", show: Show, copied: Callable[[Page, str], str]
) -> None:
    trace = minilm.trace("time flies like an arrow")
    names = ["layers.3.attention.query", "layers.5.feed_forward.hidden", "pooled"]
    tab = show(pellucid.view(trace, tensors=names).html(), "#view=tensor")
    for name in names:
        choose(tab, name)
        drawn = eval(copied(tab, "copy as NumPy"), {"np": np})
        assert np.array_equal(drawn, eval(copied(tab, "as Python"), {"trace": trace}).numpy())
        tab.locator(".plot").click(position={"x": 9, "y": 9})
        tab.evaluate(DRAWN)
        assert eval(copied(tab, "as Python"), {"trace": trace}).item() == pytest.approx(number(tab), rel=1e-7)


def test_a_pointer_takes_no_cell_of_a_tensor_that_is_on_its_way(show: Show) -> None:
    tab = show(written(), "#view=tensor")
    choose(tab, "layers.0.residual.post")
    tab.evaluate(DRAWN)
    for change in (
        "document.querySelector('.tensor-list li[data-name=pooled]').click()",
        "document.querySelector('.axis-picker select').selectedIndex += 1;"
        " document.querySelector('.axis-picker select').dispatchEvent(new Event('change'))",
    ):
        point(tab, 0, 0)
        assert tab.locator(".readout-value").inner_text() != ""
        tab.evaluate(f"""() => {{
          const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
          const [clientX, clientY] = [box.right - 3, box.bottom - 3];
          {change};
          for (const kind of ["mousemove", "click"])
            plot.dispatchEvent(new MouseEvent(kind, {{ bubbles: true, clientX, clientY, screenX: 1, screenY: 1 }}));
        }}""")
        tab.evaluate(READ)
        assert "point at a cell" in tab.locator(".readout").inner_text()
        choose(tab, "layers.0.attention.query")
