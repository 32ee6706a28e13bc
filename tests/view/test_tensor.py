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
from tests.view.conftest import MOUNTED, READOUT, Show, wait_until
from tests.view.reference_pages import HEAD_SIZE, TEXTS, TWO_FRAMES, ReferencePage, reference_page

CELL_COLOURS = """(canvas, [rows, columns]) => {
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
CLIPBOARD = "() => navigator.clipboard.readText()"


def choose_tensor(tab: Page, name: str) -> None:
    tab.locator(f".tensor-list li[data-name='{name}']").click()
    tab.locator(".tensor-main h2").get_by_text(name, exact=True).wait_for()


def point_at(tab: Page, row: int, column: int, cell: tuple[int, int] = (28, 28)) -> None:
    tab.evaluate(TWO_FRAMES)  # before drawing, the plot is elsewhere and ignores the pointer
    box = tab.locator(".plot canvas").bounding_box()
    tab.mouse.move(box["x"] + (column + 0.5) * cell[0], box["y"] + (row + 0.5) * cell[1])
    tab.evaluate(TWO_FRAMES)


def readout_number(tab: Page) -> float:
    return float(tab.locator(".readout-value").inner_text().replace("Infinity", "inf"))


def displayed_facts(tab: Page) -> dict[str, str]:
    return dict(zip(tab.locator(".facts dt").all_inner_texts(), tab.locator(".facts dd").all_inner_texts()))


def evaluate_copied(page: ReferencePage, text: str) -> Tensor:
    """The result of the copied Python code, run on the page's own numbers."""
    trace = {t["name"]: page.numbers[t["block"]][None] for t in page.manifest["tensors"]}
    return eval(text, {"trace": trace})


@pytest.fixture
def copy_text(show: Show) -> Callable[[Page, str], str]:
    def copy_by_button(tab: Page, label: str) -> str:
        tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
        button = tab.get_by_role("button", name=label).element_handle()
        button.click()
        wait_until(tab, "(button) => button.textContent === 'copied'", button)
        return tab.evaluate(CLIPBOARD)

    return copy_by_button


def test_readout_equals_the_tensor_under_the_pointer(show: Show) -> None:
    tab = show(page := reference_page(), "#view=tensor")
    for name, head in (("layers.1.attention.query", 2), ("layers.0.attention.weights", 1)):
        choose_tensor(tab, name)
        for _ in range(head):
            tab.get_by_label("next index on the axis heads").click()
        value = page.numbers[f"{name}.tensor"][head]
        for row in range(0, value.shape[0], 2):
            for column in range(value.shape[1]):
                point_at(tab, row, column)
                assert readout_number(tab) == pytest.approx(value[row, column].item(), abs=1e-8)
                assert f"[0, {head}, {row}, {column}]" in tab.locator(".readout-words").inner_text()


def test_axes_are_selected_and_indices_stepped(show: Show) -> None:
    tab = show(page := reference_page(), "#view=tensor")
    value = page.numbers["layers.0.attention.query.tensor"]
    tab.get_by_label("axis shown as columns").select_option(label="heads (3)")
    tab.get_by_label("index on the axis head_dim", exact=True).fill("3")
    tab.keyboard.press("Enter")
    point_at(tab, 4, 2)
    assert readout_number(tab) == pytest.approx(value[2, 4, 3].item(), abs=1e-8)
    tab.get_by_label("axis shown as rows").select_option(label="heads (3)")
    point_at(tab, 1, 5)
    assert readout_number(tab) == pytest.approx(value[1, 5, 3].item(), abs=1e-8)
    tab.locator(".plot").focus()
    tab.keyboard.press("]")
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".tensor-main h2").inner_text() == "layers.1.attention.query"
    point_at(tab, 1, 5)
    assert readout_number(tab) == pytest.approx(
        page.numbers["layers.1.attention.query.tensor"][1, 5, 3].item(), abs=1e-8
    )


def test_address_has_the_slice(show: Show) -> None:
    tab = show(page := reference_page(), "#view=tensor")
    choose_tensor(tab, "layers.1.attention.query")
    tab.get_by_label("axis shown as rows").select_option(label=f"head_dim ({HEAD_SIZE})")
    tab.get_by_label("next index on the axis heads").click()
    wait_until(tab, "() => location.hash.endsWith('tensor=layers.1.attention.query&cut=1.c.r')")
    tab.reload()
    wait_until(tab, MOUNTED)
    point_at(tab, 3, 4)
    assert readout_number(tab) == pytest.approx(
        page.numbers["layers.1.attention.query.tensor"][1, 4, 3].item(), abs=1e-8
    )
    for cut in ("3.r.c", "r.c", "0.r.r", "0.1.c", "0.r.x", "-1.r.c", ""):  # not a slice of a tensor of this shape
        tab.evaluate(f"location.hash = '#view=tensor&tensor=layers.1.attention.query&cut={cut}'")
        wait_until(tab, "() => location.hash.endsWith('tensor=layers.1.attention.query')")


def test_statistics_are_those_of_the_drawn_slice(show: Show) -> None:
    tab = show(page := reference_page(), "#view=tensor")
    choose_tensor(tab, "layers.0.residual.post")
    value = page.numbers["layers.0.residual.post.tensor"]
    finite = value[value.isfinite()].double()
    displayed = displayed_facts(tab)
    assert (displayed["numbers"], displayed["NaN"], displayed["infinite"]) == ("280", "1", "2")
    expected = [finite.min(), finite.max(), finite.mean(), finite.std(correction=0)]
    for name, fact in zip(("min", "max", "mean", "standard deviation"), expected):
        assert float(displayed[name].replace("−", "-")) == pytest.approx(fact.item(), rel=1e-5)
    assert displayed["min"].startswith("−")
    assert (
        "NaN" in tab.locator(".legend").inner_text()
        and "infinite numbers are empty" in tab.locator(".legend").inner_text()
    )
    assert "histogram: the fullest of 48 bins" in tab.locator(".tensor-facts canvas").get_attribute("aria-label")


def test_colours_follow_sign_and_size(show: Show) -> None:
    tab = show(page := reference_page(), "#view=tensor")
    value = page.numbers["layers.0.attention.query.tensor"][0]
    canvas = tab.locator(".plot canvas")
    for row, line in enumerate(canvas.evaluate(CELL_COLOURS, list(value.shape))):
        for column, (red, _, blue, solid) in enumerate(line):
            assert solid == 255
            if abs(value[row, column]) > value.abs().max() / 20:
                assert (red > blue) == (value[row, column].item() > 0)
    choose_tensor(tab, "layers.0.residual.post")
    cells = canvas.evaluate(CELL_COLOURS, [len(TEXTS), 40])
    assert cells[2][5] == [0, 0, 0, 255] and cells[3][7][3] == cells[4][9][3] == 0


def test_wide_tensor_is_pooled_by_its_largest_values(show: Show) -> None:
    page = reference_page()
    value = page.numbers["logits.tensor"]
    value[3, 4321] = 99.0
    page.store("logits.tensor", value)
    tab = show(page, "#view=tensor")
    choose_tensor(tab, "logits")
    legend = tab.locator(".legend").inner_text()
    pool = int(legend.split("is the largest of 1 × ")[1].split()[0])
    assert pool > 1
    point_at(tab, 3, 4321 // pool, (1, 28))
    assert readout_number(tab) == 99 and "[0, 3, 4321]" in tab.locator(".readout-words").inner_text()
    tab.keyboard.press("ArrowRight")
    tab.evaluate(TWO_FRAMES)
    assert readout_number(tab) == pytest.approx(value[3, 4322].item(), abs=1e-8)


def test_only_existing_axes_have_an_arrow(show: Show) -> None:
    tab = show(reference_page(), "#view=tensor")
    for name, axes in (("layers.0.residual.post", "hidden →\nseq ↓"), ("pooled", "hidden →")):
        choose_tensor(tab, name)
        tab.evaluate(TWO_FRAMES)
        assert tab.locator(".axes").inner_text() == axes


def test_copied_numpy_and_csv_equal_the_tensor(show: Show, copy_text: Callable[[Page, str], str]) -> None:
    tab = show(page := reference_page(), "#view=tensor")
    choose_tensor(tab, "layers.0.residual.post")
    value = page.numbers["layers.0.residual.post.tensor"]
    array = eval(copy_text(tab, "copy as NumPy"), {"np": np})
    assert array.dtype == np.float32 and np.array_equal(array, value.numpy(), equal_nan=True)
    lines = list(csv.reader(io.StringIO(copy_text(tab, "as CSV"))))
    assert [line[0] for line in lines[1:]] == TEXTS and lines[0][1:] == [str(i) for i in range(40)]
    assert np.array_equal(np.array([line[1:] for line in lines[1:]], dtype=np.float32), value.numpy(), equal_nan=True)
    choose_tensor(tab, "pooled")
    assert np.array_equal(eval(copy_text(tab, "copy as NumPy"), {"np": np}), page.numbers["pooled.tensor"].numpy())


def test_copied_python_equals_the_displayed_number(show: Show, copy_text: Callable[[Page, str], str]) -> None:
    tab = show(page := reference_page(), "#view=tensor")
    choose_tensor(tab, "layers.1.attention.query")
    tab.get_by_label("next index on the axis heads").click()
    assert evaluate_copied(page, copy_text(tab, "as Python")).equal(page.numbers["layers.1.attention.query.tensor"][1])
    tab.get_by_label("axis shown as rows").select_option(label="head_dim (4)")
    assert evaluate_copied(page, copy_text(tab, "as Python")).equal(
        page.numbers["layers.1.attention.query.tensor"][1].T
    )
    point_at(tab, 3, 6)
    tab.keyboard.press("c")
    wait_until(tab, "async () => await navigator.clipboard.readText()")
    assert evaluate_copied(page, tab.evaluate(CLIPBOARD)).item() == pytest.approx(readout_number(tab), abs=1e-8)


@pytest.mark.parametrize("allowed", [True, False])
def test_denied_clipboard_shows_the_text(show: Show, allowed: bool) -> None:
    tab = show(reference_page(), "#view=tensor")
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


def test_list_of_tensors_is_filtered_and_used_by_keyboard(show: Show) -> None:
    tab = show(reference_page(), "#view=tensor")
    tab.keyboard.press("/")
    tab.keyboard.type("attention 1")
    assert tab.locator(".tensor-list li").all_inner_texts() == ["layers.1.attention.query\n3 × 7 × 4"]
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".tensor-main h2").inner_text() == "layers.1.attention.query"
    example = tab.locator(".tensor-list input").get_attribute("placeholder")
    tab.locator(".tensor-list input").fill(example.removeprefix("filter: "))
    assert tab.locator(".tensor-list li").count() >= 1
    tab.locator(".tensor-list input").fill("nothing")
    assert "no tensor has a matching name" in tab.locator(".tensor-list").inner_text()


def test_table_has_the_numbers_around_the_cell(show: Show) -> None:
    tab = show(page := reference_page(), "#view=tensor")
    choose_tensor(tab, "logits")
    for _ in range(9):
        tab.keyboard.press("ArrowRight")
    tab.evaluate(TWO_FRAMES)
    tab.keyboard.press("t")
    cells = torch.tensor([float(text) for text in tab.locator("dialog tbody td").all_inner_texts()])
    assert cells.view(7, 10).allclose(page.numbers["logits.tensor"][:, 3:13], rtol=0, atol=1e-7)
    assert "34,930 more numbers are left out" in tab.locator("dialog caption").inner_text()


@pytest.mark.slow
def test_python_copied_from_a_real_trace_equals_the_displayed_number(
    minilm: "pellucid.Model", show: Show, copy_text: Callable[[Page, str], str]
) -> None:
    trace = minilm.trace("time flies like an arrow")
    names = ["layers.3.attention.query", "layers.5.feed_forward.hidden", "pooled"]
    tab = show(pellucid.view(trace, tensors=names).html(), "#view=tensor")
    for name in names:
        choose_tensor(tab, name)
        array = eval(copy_text(tab, "copy as NumPy"), {"np": np})
        assert np.array_equal(array, eval(copy_text(tab, "as Python"), {"trace": trace}).numpy())
        tab.locator(".plot").click(position={"x": 9, "y": 9})
        tab.evaluate(TWO_FRAMES)
        assert eval(copy_text(tab, "as Python"), {"trace": trace}).item() == pytest.approx(
            readout_number(tab), rel=1e-7
        )


def test_click_while_loading_selects_no_cell(show: Show) -> None:
    tab = show(reference_page(), "#view=tensor")
    choose_tensor(tab, "layers.0.residual.post")
    tab.evaluate(TWO_FRAMES)
    for change in (
        "document.querySelector('.tensor-list li[data-name=pooled]').click()",
        "document.querySelector('.axis-picker select').selectedIndex += 1;"
        " document.querySelector('.axis-picker select').dispatchEvent(new Event('change'))",
    ):
        point_at(tab, 0, 0)
        assert tab.locator(".readout-value").inner_text() != ""
        tab.evaluate(f"""() => {{
          const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
          const [clientX, clientY] = [box.right - 3, box.bottom - 3];
          {change};
          for (const kind of ["mousemove", "click"])
            plot.dispatchEvent(new MouseEvent(kind, {{ bubbles: true, clientX, clientY, screenX: 1, screenY: 1 }}));
        }}""")
        tab.evaluate(READOUT)
        assert "point at a cell" in tab.locator(".readout").inner_text()
        choose_tensor(tab, "layers.0.attention.query")
