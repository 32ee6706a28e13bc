"""The difference of two runs in a real browser, number by number; a run minus itself is zero everywhere."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from playwright.sync_api import Page
from torch import Tensor

import pellucid
from pellucid.trace import edits
from pellucid.trace.edits import fixed, zero
from pellucid.trace.long_text import record_long
from pellucid.view.choice import choose_attention
from tests.trace.small_models import small_model
from tests.view.conftest import Show, wait_until
from tests.view.reference_pages import HEADS, LAYERS, POINTS, TEXTS, TWO_FRAMES, ReferencePage, comparison_page

HEAD_0_COLOURS = f"""(canvas) => {{
  const {{ width, height, data }} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const row = (layer) => Math.floor((layer + 0.5) * height / {LAYERS});
  const start = (layer) => 4 * (row(layer) * width + Math.floor(width / {HEADS} / 2));
  return [...Array({LAYERS}).keys()].map((layer) => [...data.subarray(start(layer), start(layer) + 4)]);
}}"""
"""The colours of head 0 of every layer, in the overview."""
OVERVIEW_COMPLETE = "() => document.querySelector('.legend').textContent.includes('overview is the largest difference')"


def difference(page: ReferencePage, layer: int) -> Tensor:
    """Tensor[heads, seq, seq]: this run's weights minus the other's."""
    return page.numbers[f"layers.{layer}.attention.weights"] - page.numbers[f"other/layers.{layer}.attention.weights"]


def readout_value(tab: Page) -> float:
    tab.evaluate(TWO_FRAMES)
    return float(tab.locator(".readout-value").inner_text())


def point_at(tab: Page, plot: str, row: int, column: int, rows: int, columns: int) -> None:
    tab.locator(f"{plot} .plot canvas").scroll_into_view_if_needed()
    box = tab.locator(f"{plot} .plot canvas").bounding_box()
    tab.mouse.move(box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows)


def overview_values(tab: Page, layers: int, heads: int) -> Tensor:
    """The overview's value for every head: Tensor[layers, heads]."""
    wait_until(tab, OVERVIEW_COMPLETE)
    values = torch.zeros(layers, heads)
    for layer in range(layers):
        for head in range(heads):
            point_at(tab, ".diff-weights > section:first-child", layer, head, layers, heads)
            values[layer, head] = readout_value(tab)
            assert f"layer {layer} · head {head}" in tab.locator(".readout").inner_text()
    return values


def test_every_cell_is_the_difference_of_the_runs(show: Show) -> None:
    tab = show(page := comparison_page(0, 3), "#view=diff&layer=1&heads=2")
    expected = difference(page, 1)[2]
    for query in range(len(TEXTS)):
        for key in range(query + 1):
            point_at(tab, ".diff-head", query, key, len(TEXTS), len(TEXTS))
            assert readout_value(tab) == pytest.approx(expected[query, key].item(), abs=2e-6)
    tab.keyboard.press("t")
    cells = torch.tensor([float(text) for text in tab.locator("dialog tbody td").all_inner_texts()])
    assert cells.view_as(expected).allclose(expected, rtol=0, atol=2e-6)


def test_largest_differences_are_listed_and_select_their_cells(show: Show) -> None:
    tab = show(page := comparison_page(0, 3), "#view=diff&layer=0&heads=1")
    expected = difference(page, 0)[1]
    order = expected.abs().flatten().argsort(descending=True)[:12]
    listed = [float(text.replace("−", "-")) for text in tab.locator(".diff-list b").all_inner_texts()]
    assert listed == pytest.approx(expected.flatten()[order].tolist(), abs=5e-5)
    tab.locator(".diff-list button").nth(2).click()
    assert readout_value(tab) == pytest.approx(expected.flatten()[order[2]].item(), abs=2e-6)
    assert "pinned" in tab.locator(".readout").inner_text()


def test_overview_has_the_largest_difference_of_every_head(show: Show) -> None:
    tab = show(page := comparison_page(0, 3), "#view=diff&layer=1&heads=0")
    expected = torch.stack([difference(page, layer).abs().amax((1, 2)) for layer in range(LAYERS)])
    assert overview_values(tab, LAYERS, HEADS).allclose(expected, rtol=0, atol=2e-6)
    assert tab.get_by_text("Both runs are identical").is_hidden()
    ends = tab.locator(".diff-weights .field").inner_text().split()  # of its own colour scale
    assert [float(end) for end in ends] == [0, pytest.approx(expected.max().item(), abs=5e-4)]
    point_at(tab, ".diff-weights > section:first-child", 1, 2, LAYERS, HEADS)
    tab.mouse.down()
    tab.mouse.up()
    tab.evaluate(TWO_FRAMES)
    assert "Layer 1 · head 2" in tab.locator(".diff-head").inner_text()
    for key in ("ArrowLeft", "ArrowUp"):
        tab.keyboard.press(key)
    tab.evaluate(TWO_FRAMES)
    assert "Layer 0 · head 1" in tab.locator(".diff-head").inner_text()


@pytest.mark.parametrize("action", ["press", "choose", "move", "search"])
def test_keyboard_selection_replaces_the_readout_of_the_pointer(show: Show, action: str) -> None:
    tab = show(comparison_page(0, 3), "#view=diff&layer=1&heads=0")
    wait_until(tab, OVERVIEW_COMPLETE)
    point_at(tab, ".diff-overview", 0, 2, LAYERS, HEADS)
    tab.evaluate(TWO_FRAMES)
    readout = tab.locator(".readout")
    assert "largest difference" in readout.inner_text()
    if action == "press":
        tab.locator(".diff-list button").nth(1).focus()
    elif action == "choose":
        tab.locator(".diff-overview .plot").focus()
    for key in {"press": ["Enter"], "search": ["/", "Enter"]}.get(action, ["ArrowDown"]):
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)
    assert "largest difference" not in readout.inner_text()
    assert ("point at a cell" if action == "choose" else "this run") in readout.inner_text()


def test_difference_of_a_run_with_itself_is_zero(show: Show) -> None:
    tab = show(comparison_page(5, 5), "#view=diff&layer=1&heads=0")
    assert not overview_values(tab, LAYERS, HEADS).any()
    assert tab.get_by_text("Both runs are identical").is_visible()
    assert tab.locator(".ramp:visible").count() == 0 and "orange" not in tab.locator(".legend").inner_text()
    assert "every weight is the same" in tab.locator(".diff-list").inner_text()
    point_at(tab, ".diff-head", 4, 2, len(TEXTS), len(TEXTS))
    assert readout_value(tab) == 0
    tab.get_by_role("button", name="lens", exact=True).click()
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".word[data-mark]").count() == 0
    assert "the same in all 21 cells" in tab.locator(".legend").inner_text()


def test_lens_marks_where_the_likeliest_tokens_differ(show: Show) -> None:
    tab = show(page := comparison_page(0, 3), "#view=diff")
    tab.get_by_role("button", name="lens", exact=True).click()
    tab.evaluate(TWO_FRAMES)
    one, other = (page.numbers[f"{prefix}lens.ids"][..., 0] for prefix in ("", "other/"))
    differ = one != other
    assert f"differs in {differ.sum()} of {differ.numel()} cells" in tab.locator(".legend").inner_text()
    tokens_by_id = page.manifest["lens"]["tokens_by_id"]
    for row in range(len(POINTS)):
        cell = tab.locator(f".word[data-row='{row}'][data-column='3']")
        expected = [tokens_by_id[str(int(run[row, 3]))].replace(" ", "·") for run in (one, other)]
        assert cell.inner_text() == (" | ".join(expected) if differ[row, 3] else expected[0])
        assert (cell.get_attribute("data-mark") == "≠") == bool(differ[row, 3])
    for scale in ("square root", "linear"):
        tab.get_by_label("colour scale").select_option(label=scale)
        tab.evaluate(TWO_FRAMES)
        assert f"from 0 to 100 % on a {scale} scale" in tab.locator(".legend").inner_text()
    assert tab.locator(".toolbar .field:has(.ramp):visible").all_inner_texts() == ["0\n100 %"]
    tab.keyboard.press("ArrowDown")
    tab.evaluate(TWO_FRAMES)
    assert "at “time” (0)" in tab.locator(".readout").inner_text()


def test_runs_of_different_length_are_reported(show: Show) -> None:
    tab = show(comparison_page(0, 3, TEXTS[:5]), "#view=diff")
    assert "This run has 7 tokens and the other 5 tokens" in tab.locator(".diff-head").inner_text()
    for key in ("ArrowDown", "t", "Escape", "c", "Space"):
        tab.keyboard.press(key)
    tab.get_by_role("button", name="lens", exact=True).click()
    tab.evaluate(TWO_FRAMES)
    assert "the numbers of tokens are equal" in tab.locator(".diff-lens").inner_text()
    tab.keyboard.press("t")
    assert "lenses can be compared position by position only" in tab.get_by_role("dialog").inner_text()


def test_omitted_layer_shows_no_numbers(show: Show) -> None:
    page = comparison_page(0, 3)
    for run in (page.manifest, page.manifest["other"]):
        run["attentions"][1] |= {"query": None, "key": None}
    tab = show(page, "#view=diff&layer=0&query=3&key=1")
    shown = readout_value(tab)
    layer = tab.get_by_label("layer", exact=True)
    layer.select_option("1")
    for key in ("ArrowDown", "c", "Space", "t"):
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)
    for reported in (tab.locator(".stage"), tab.get_by_role("dialog")):
        assert "The numbers of layers.1.attention were left out" in reported.inner_text()
        assert not reported.locator("table").count()
    assert tab.locator(".diff-list").is_hidden() and not tab.locator(".readout-value").inner_text()
    assert "copied" not in tab.locator(".readout").inner_text()
    assert "come from stored numbers" not in tab.locator(".legend").inner_text()
    tab.keyboard.press("Escape")
    wait_until(tab, OVERVIEW_COMPLETE)
    assert "Layers that cannot be compared stay empty" in tab.locator(".legend").inner_text()
    canvases = tab.locator(".diff-overview .plot canvas")
    assert [colour[3] for colour in canvases.evaluate(HEAD_0_COLOURS)] == [
        255 * (layer != 1) for layer in range(LAYERS)
    ]
    point_at(tab, ".diff-overview", 1, 0, LAYERS, HEADS)
    tab.evaluate(TWO_FRAMES)
    assert "layer 1 · head 0 · largest difference" in (reported := tab.locator(".readout").inner_text())
    assert "not comparable" in reported
    layer.select_option("0")
    tab.locator(".diff-list").wait_for()
    tab.evaluate(TWO_FRAMES)
    point_at(tab, ".diff-head", 3, 1, len(TEXTS), len(TEXTS))
    assert readout_value(tab) == shown


def test_weights_of_only_the_other_run_are_drawn(minilm: "pellucid.Model", show: Show) -> None:
    """An edit may set weights that the mask forbids."""
    model = small_model("gpt2", minilm)
    plain = model.trace("time flies like an arrow")
    with model.edit({"layers.0.attention.weights": fixed(0.5, head=0, position=1, source=4)}) as edited:
        edited_trace = edited.trace("time flies like an arrow")
    page = pellucid.view(plain, edited_trace, layer=0, heads=[0])
    tab = show(page.html(), "#view=diff&layer=0&heads=0&query=1&key=4&pinned=true")
    wait_until(tab, OVERVIEW_COMPLETE)
    assert readout_value(tab) == -0.5 and "masked" not in tab.locator(".readout").inner_text()
    side = f"canvas.width / {len(plain.tokens[0])}"
    opacity = f"(canvas) => canvas.getContext('2d').getImageData(4.5 * {side}, 1.5 * {side}, 1, 1).data[3]"
    assert tab.locator(".diff-head .plot canvas").evaluate(opacity) == 255
    assert "equal ones may differ slightly" in tab.locator(".legend").inner_text()


def test_infinite_weight_is_named_and_does_not_affect_the_scale(minilm: "pellucid.Model", show: Show) -> None:
    plain = minilm.trace("time flies")
    with minilm.edit({"layers.5.attention.weights": fixed(float("inf"), head=2, position=1, source=0)}) as edited:
        broken = edited.trace("time flies")
    assert pellucid.view(broken).data.manifest["attentions"][5]["max_error"] == 0
    tab = show(pellucid.view(plain, broken).html(), "#view=diff&layer=5&heads=2&query=1&key=0&pinned=true")
    wait_until(tab, OVERVIEW_COMPLETE)
    assert "-Infinity" in tab.locator(".readout").inner_text() and "∞" not in tab.locator(".toolbar").inner_text()
    assert "Infinity" not in tab.locator(".toolbar").inner_text()
    assert "NaN or infinite are black" in tab.locator(".legend").inner_text()


def test_diff_view_needs_a_second_run(show: Show) -> None:
    page = comparison_page()
    page.manifest["other"] = None
    assert show(page, "#view=diff").get_by_role("button", name="Diff").count() == 0


@pytest.mark.slow
def test_zeroed_head_changes_only_later_layers(minilm: "pellucid.Model", show: Show) -> None:
    one = minilm.trace("time flies like an arrow")
    with minilm.edit({"layers.2.attention.weights": zero(head=5)}) as edited:
        other = edited.trace("time flies like an arrow")
    tab = show(pellucid.view(one, other).html())
    assert "Layer 2 · head 5" in tab.locator(".diff-head").inner_text()  # the page opens at the largest difference
    values = overview_values(tab, 6, 12)
    names = [f"layers.{layer}.attention.weights" for layer in range(6)]
    expected = torch.stack([(one[name] - other[name])[0].abs().amax((1, 2)) for name in names])
    assert values.allclose(expected, rtol=0, atol=5e-6)
    assert not values[:2].any() and (values[2] > 1e-5).nonzero().flatten().tolist() == [5] and (values[3:] > 1e-4).all()


def test_page_opens_at_the_largest_difference_of_the_selection(minilm: "pellucid.Model") -> None:
    one = minilm.trace("time flies like an arrow")
    with minilm.edit({"layers.2.attention.weights": zero(head=5)}) as edited:
        other = edited.trace("time flies like an arrow")
    differences = (one["layers.4.attention.weights"] - other["layers.4.attention.weights"])[0].abs().amax((1, 2))
    for options, layer, heads in [
        ({"layer": 4}, 4, [int(differences.argmax())]),
        ({"heads": [1, 5]}, 2, [1, 5]),
        ({"layer": 0}, 0, list(range(12))),  # where nothing differs
    ]:
        shown = pellucid.view(one, other, **options).data.manifest["show"]
        assert (shown["view"], shown["layer"], shown["heads"]) == ("diff", layer, heads)
    same = pellucid.view(one, one, show="matrix").data.manifest["show"]
    assert (same["view"], same["layer"], same["heads"]) == ("matrix", 0, list(range(12)))


def test_nan_differs_from_any_number(minilm: "pellucid.Model") -> None:
    one = minilm.trace("time flies like an arrow")
    applied_edits = {
        "layers.1.attention.weights": edits.scale(1.001, head=0),
        "layers.3.residual.post": fixed(float("nan")),
    }
    with minilm.edit(applied_edits) as edited:
        shown = pellucid.view(one, edited.trace("time flies like an arrow")).data.manifest["show"]
    assert (shown["view"], shown["layer"]) == ("diff", 4)


def test_two_models_on_a_page_are_named(minilm: "pellucid.Model", show: Show) -> None:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    sizes["vocab_size"] = len(minilm.tokenizer)
    models = [
        pellucid.build(pellucid.Config.of(name, **sizes), tokenizer=minilm.tokenizer) for name in ("bert", "gpt2")
    ]
    one, two = (model.trace("time flies") for model in models)
    run_labels = show(pellucid.view(one, two).html(), "#view=diff").locator(".diff-runs p").all_inner_texts()
    assert run_labels == ["this run an untrained model (bert)", "the other an untrained model (gpt2)"]
    with models[1].edit({"layers.0.attention.heads": zero(head=1)}):
        edited = models[1].trace("fruit flies")
    other = pellucid.view(one, edited).data.manifest["other"]
    assert other["label"] == "an untrained model (gpt2); layers.0.attention.heads: zero(head=1)"
    assert pellucid.view(two, edited).data.manifest["other"]["label"] == "layers.0.attention.heads: zero(head=1)"
    with pytest.raises(
        pellucid.InputError, match=r"only one of the traces has .*: they come from two models of different"
    ):
        pellucid.view(one, minilm.trace("time flies"))
    wider = pellucid.build(models[0].config.replace(num_attention_heads=4), tokenizer=minilm.tokenizer)
    with pytest.raises(pellucid.InputError, match=r"layers.0.attention has 2 heads in one trace and 4 in the other"):
        pellucid.view(one, wider.trace("time flies"))


def test_page_of_two_long_texts_opens_where_their_samples_differ_most(minilm: "pellucid.Model") -> None:
    texts = ("time flies like an arrow", "time flies like an apple")  # short enough for every row to be sampled
    whole, sampled = (
        pellucid.view(*map(read, texts)).data.manifest["show"]
        for read in (minilm.trace, partial(record_long, minilm.loaded))
    )
    assert whole == sampled != {"view": "diff", "layer": 0, "name": "layers.0.attention", "heads": [*range(12)]}


def test_page_opens_at_the_side_of_an_encoder_decoder_that_differs(minilm: "pellucid.Model") -> None:
    sides = small_model("t5", minilm).trace("time flies", target="fruit flies")
    name = "decoder.layers.1.cross_attention.weights"
    changed = sides[name].clone()
    changed[0, 1, 2] = 0
    other = dataclasses.replace(sides, points=dict(sides) | {name: changed})
    view = pellucid.view(sides, other)
    shown = view.data.manifest["show"]
    assert (shown["name"], shown["heads"]) == (name.removesuffix(".weights"), [1])
    assert choose_attention(view.data).entry["name"] == shown["name"]


@pytest.mark.slow
def test_lenses_of_two_texts_are_compared_in_the_page(show: Show) -> None:
    model = pellucid.load("SmolLM2-135M-Instruct")
    texts = ("The capital of France is", "The capital of Germany is")
    traces = [model.trace(text) for text in texts]
    lenses = tuple(model.explain.logit_lens(text, k=10) for text in texts)
    tab = show(pellucid.view(*traces, lens=lenses, include_layers=[0, 29]).html(), "#view=lens")
    assert tab.locator(".words-name").count() == 1 + 1 + 30
    tab.keyboard.press("d")
    tab.get_by_role("button", name="lens", exact=True).click()
    differ = (lenses[0].ids[..., 0] != lenses[1].ids[..., 0]).sum().item()
    tab.get_by_text(f"differs in {differ} of {lenses[0].ids[..., 0].numel()} cells").wait_for()
    assert tab.locator(".word[data-column='0'][data-mark]").count() == 0


def test_a_pair_of_lenses_needs_a_pair_of_traces(minilm: "pellucid.Model") -> None:
    with pytest.raises(pellucid.InputError, match="lens is a pair"):
        pellucid.view(minilm.trace("time flies"), lens=(1, 2))


def test_only_the_selected_number_is_copied(show: Show) -> None:
    tab = show(comparison_page(0, 3), "#view=diff&layer=1&heads=2&query=3&key=1")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.keyboard.press("c")
    wait_until(tab, "() => document.querySelector('.readout').innerText.includes('copied')")
    wait_until(tab, "async () => (await navigator.clipboard.readText()).endsWith('[0, 2, 3, 1]')")
    tab.set_viewport_size({"width": 1000, "height": 700})
    tab.evaluate(TWO_FRAMES)
    assert "copied" in tab.locator(".readout").inner_text()  # the number is still the same after drawing again
    tab.get_by_role("button", name="lens", exact=True).click()
    for key in ("ArrowDown", "c"):
        tab.keyboard.press(key)
        tab.evaluate(TWO_FRAMES)
    assert "embeddings · at " in tab.locator(".readout").inner_text()
    assert "copied" not in tab.locator(".readout").inner_text()


def test_key_pressed_during_a_switch_waits_for_loading(show: Show) -> None:
    tab = show(comparison_page(0, 3), "#view=diff")
    tab.evaluate("""() => {
      document.querySelector("[aria-label='what to compare'] [data-value=lens]").click();
      document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    }""")
    wait_until(tab, "() => document.querySelector('.readout').innerText.includes('embeddings · at ')")


def test_nan_weights_are_not_reported_as_equal(show: Show) -> None:
    page = comparison_page(0, 0)
    name = "other/layers.0.attention.query"
    page.numbers[name][0, 3, 0] = float("nan")
    page.blocks[name] = page.numbers[name].numpy().tobytes()
    tab = show(page, "#view=diff&layer=0&heads=0")
    overview = tab.locator(".diff-overview canvas").first
    wait_until(tab, """() => /head 0: NaN$/.test(document.querySelector(".diff-overview canvas").ariaLabel)""")
    assert overview.evaluate(HEAD_0_COLOURS)[0] == [0, 0, 0, 255]
    assert tab.get_by_text("Both runs are identical").is_hidden()
    assert tab.locator(".diff-list").inner_text().startswith("There are none: some weights are NaN or infinite")
    assert "NaN or infinite are black" in tab.locator(".legend").inner_text()


def test_head_of_only_nan_has_no_largest_differences(show: Show) -> None:
    page = comparison_page(0, 0)
    name = "other/layers.0.attention.query"
    page.numbers[name][0] = float("nan")
    page.blocks[name] = page.numbers[name].numpy().tobytes()
    tab = show(page, "#view=diff&layer=0&heads=0")
    tab.evaluate(TWO_FRAMES)
    assert tab.locator(".diff-list").inner_text() == "There are none: in every cell a weight is NaN or infinite."


def test_difference_of_lenses_is_copied_as_python(show: Show) -> None:
    page = comparison_page(0, 0)
    for part in ("ids", "log_probabilities"):
        own = page.numbers[f"other/lens.{part}"]
        page.store(f"other/lens.{part}", torch.stack([own[0], own[2].flip(-1)]))  # the other run lacks the middle row
    page.manifest["other"]["lens"]["points"] = [POINTS[0], POINTS[2]]
    tab = show(page, "#view=diff&diff=lens")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.locator(".word[data-row='1'][data-column='3']").click()
    tab.keyboard.press("c")
    tab.get_by_text("copied: lens").wait_for()
    lens, other = (
        SimpleNamespace(log_probabilities=page.numbers[f"{run}lens.log_probabilities"]) for run in ("", "other/")
    )
    copied = tab.evaluate("() => navigator.clipboard.readText()")
    assert copied == "lens.log_probabilities[2, 3, 0] - other_lens.log_probabilities[1, 3, 3]"
    assert eval(copied, {"lens": lens, "other_lens": other}).item() == pytest.approx(readout_value(tab), abs=1e-7)
    page.store("other/lens.ids", page.numbers["other/lens.ids"] + 1000)
    tab = show(page, "#view=diff&diff=lens")
    tab.locator(".word[data-row='1'][data-column='3']").click()
    tab.keyboard.press("c")
    tab.get_by_text("there is nothing here to copy as Python").wait_for()


def test_largest_differences_are_aligned(show: Show) -> None:
    page = comparison_page(0, 0)
    query = page.numbers["other/layers.0.attention.query"].clone()
    query[0, 3] += 1e-4
    query[0, 6] += 1
    page.store("other/layers.0.attention.query", query)
    tab = show(page, "#view=diff&layer=0&heads=0")
    tab.evaluate(TWO_FRAMES)
    numbers, descriptions = (
        tab.locator(f".diff-list {one}").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect())")
        for one in ("b", "span")
    )
    assert max(len(text) for text in tab.locator(".diff-list b").all_inner_texts()) >= 11
    assert len({one["x"] for one in descriptions}) == 1 and len(descriptions) > 7
    overflow = tab.locator(".diff-list b").evaluate_all("(all) => all.map((one) => one.scrollWidth - one.clientWidth)")
    assert max(overflow) == 0 and max(one["right"] for one in numbers) < descriptions[0]["x"]
