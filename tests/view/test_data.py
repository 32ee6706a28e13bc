"""The contents and size of a page: precisions, budgets, tensors, a lens, a second trace."""

import copy
import dataclasses
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid import Config
from pellucid.config import SequenceToSequenceLM
from pellucid.edits import add, fixed, scale, zero
from pellucid.text import Tokenizer
from pellucid.trace.explain import logit_lens
from pellucid.view import page as page_module
from pellucid.view.choice import choose_attention
from pellucid.view.numbers import block_numbers, head_weights
from pellucid.view.page import render
from pellucid.view.picture import draw
from pellucid.view.svg import width_of
from tests.generation.writers import byte_level, pieces
from tests.trace.small_models import small_model
from tests.view.conftest import READOUT, Show, wait_until
from tests.view.test_picture import texts_of
from tests.view.test_recipes import COMPUTED_WEIGHTS

LONG = " ".join(Path(__file__).read_text(encoding="utf-8").split())


def page_size(view: pellucid.View) -> float:
    return len(view.html().encode()) / 1e6


@pytest.mark.parametrize("name", ["~nobody-at-all/x.html", "\0", "a" * 5000])
def test_invalid_paths_are_refused(minilm: pellucid.Model, name: str) -> None:
    view = pellucid.view(trace := minilm.trace("time", keep="view"))
    for save in (trace.save, view.save, view.svg):
        with pytest.raises(pellucid.InputError, match="is not a valid path here: "):
            save(name)


def test_lone_surrogates_are_replaced(minilm: pellucid.Model, tmp_path: Path) -> None:
    """A terminal passes them for bytes that are not UTF-8."""
    page = pellucid.view(minilm.trace("\udcff time", keep="view")).save(tmp_path / "page.html")
    assert "<title>\ufffd time</title>" in page.read_text(encoding="utf-8")


def test_view_can_be_pickled_and_copied(minilm: pellucid.Model) -> None:
    view = pellucid.view(minilm.trace("time flies"), tensors="*layers.0.residual.post")
    for copied in (pickle.loads(pickle.dumps(view)), copy.deepcopy(view)):
        assert copied.html() == view.html()


# -- size -------------------------------------------------------------------------------------------------------------


def test_page_size_of_minilm_is_proportional_to_the_tokens(minilm: pellucid.Model) -> None:
    long, half = (minilm.trace(LONG, keep="view", max_length=n) for n in (512, 256))
    assert len(long.tokens) == 512
    assert page_size(pellucid.view(long)) <= 7.0
    sizes = [pellucid.view(trace, precision="int16").data.size for trace in (half, long)]
    assert 1.8 < sizes[1] / sizes[0] < 2.1  # proportional to the tokens, not to their square


def test_page_size_of_twelve_layers_at_128_tokens(minilm: pellucid.Model) -> None:
    config = Config.of("bert", vocab_size=len(minilm.tokenizer), hidden_size=768, num_hidden_layers=12,
                       num_attention_heads=12, intermediate_size=64, initializer_range=0.06)  # fmt: skip
    trace = pellucid.build(config, tokenizer=minilm.tokenizer).trace(LONG, keep="view", max_length=128)
    assert page_size(pellucid.view(trace, precision="int16")) <= 7.0
    compact = pellucid.view(trace, precision="compact")
    assert page_size(compact) <= 2.0
    assert all(entry["max_error"] <= 8e-3 for entry in compact.data.manifest["attentions"])


def test_page_of_an_edited_run_names_its_edits(minilm: pellucid.Model, show: Show) -> None:
    """Otherwise blank heads, or weights that are not the model's, would pass for the model's."""
    edit = {"layers.3.attention.weights": zero(head=5)}
    plain = pellucid.view(minilm.trace("time flies like an arrow"), layer=3, heads=[5])
    with minilm.edit(edit):
        edited = pellucid.view(minilm.trace("time flies like an arrow"), layer=3, heads=[5])
    message = "edited: layers.3.attention.weights: zero(head=5)"
    assert edited.data.manifest["edits"] == [message.removeprefix("edited: ")] and "edits" not in plain.data.manifest
    for view, has_message in ((edited, True), (plain, False)):
        page = show(view.data)
        assert (message in page.inner_text("header")) is has_message
        assert ("the weights of the edited run" in page.inner_text("body")) is has_message
        assert ("the model’s own weights" in page.inner_text("body")) is not has_message
        cell = view._repr_mimebundle_()
        assert (message in cell["text/plain"]) is has_message
        for drawn in ("heads", "matrix"):
            svg = draw(view.data, view=drawn)
            assert (message in svg) is has_message and ("the weights of the edited run" in svg) is has_message


def test_many_edits_fit_in_the_drawing(minilm: pellucid.Model, show: Show) -> None:
    def a_function_whose_name_is_long_and_goes_on_and_on_and_on_and_on_and_on_and_on_to_the_very_end_of_the_line(x):
        return x

    edits = {f"layers.{i}.attention.weights": zero(head=5) for i in range(5)}
    edits["layers.5.residual.pre"] = (
        a_function_whose_name_is_long_and_goes_on_and_on_and_on_and_on_and_on_and_on_to_the_very_end_of_the_line
    )
    with minilm.edit(edits):
        view = pellucid.view(minilm.trace("time flies"), layer=3, heads=[5])
    for drawn in ("heads", "matrix"):
        lines = re.findall(r"<text x=\"24\"[^>]*>([^<]*)</text>", svg := draw(view.data, view=drawn))
        assert "zero(head=5); layers.4" in "".join(lines).replace(";layers", "; layers")
        assert max(map(width_of, lines)) * 11 / 13 < float(re.findall('width="([0-9.]+)"', svg)[0])
    tab = show(view.data, viewport={"width": 380, "height": 700})
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 380


def test_page_of_an_empty_text_is_marked_as_no_text(minilm: pellucid.Model, show: Show) -> None:
    assert show(pellucid.view(minilm.trace("")).data).inner_text("h1") == "(no text)"


@pytest.mark.parametrize("factor", [3.0, -1.0])
def test_edited_weights_outside_0_to_1_are_not_stored_in_one_byte(minilm: pellucid.Model, factor: float) -> None:
    with minilm.edit({"layers.0.attention.weights": scale(factor)}):
        trace = minilm.trace("time flies like an arrow")
    data = pellucid.view(trace, precision="compact").data
    entry = data.manifest["attentions"][0]
    assert entry["max_error"] < 1e-3
    stored, _ = head_weights(data, entry, 4)
    np.testing.assert_allclose(stored, trace["layers.0.attention.weights"][0, 4], atol=1e-3)


def test_edited_weights_of_later_tokens_are_drawn(minilm: pellucid.Model) -> None:
    model = small_model("gpt2", minilm)
    with model.edit({"layers.0.attention.weights": fixed(0.25)}):
        trace = model.trace("time flies like an arrow")
    drawn = pellucid.view(trace).data
    assert [entry["recipe"]["mask"] for entry in drawn.manifest["attentions"][:2]] == ["full", "causal"]
    assert choose_attention(drawn, layer=0, heads=[0]).attention_mask.all()


def test_compact_page_of_real_heads_is_small(minilm: pellucid.Model) -> None:
    trace = minilm.trace(LONG, keep="view", max_length=128)
    compact = pellucid.view(trace, precision="compact")
    assert 2 * compact.data.size + page_size(compact) * 1e6 - compact.data.size <= 2e6  # twelve layers, from these six
    blocks = compact.data.manifest["blocks"]
    assert all(blocks[entry["weights"]].get("deflated") for entry in compact.data.manifest["attentions"])


def test_compact_page_shows_weights_within_the_stated_error(minilm: pellucid.Model, show: Show) -> None:
    trace = minilm.trace("time flies like an arrow", "fruit flies like a banana")
    view = pellucid.view(trace, precision="compact")
    tab = show(view.html(), "#layer=2&heads=4")
    for rows, entry in zip(tab.evaluate(COMPUTED_WEIGHTS), view.data.manifest["attentions"], strict=True):
        difference = (torch.tensor(rows) - trace[f"{entry['name']}.weights"][0]).abs().max().item()
        assert difference == pytest.approx(entry["max_error"], abs=1e-6) and difference < 8e-3
    tab.evaluate(READOUT)
    max_error = f"{view.data.manifest['attentions'][2]['max_error']:.2g}"
    assert f"weights in this layer: {max_error}." in tab.locator(".legend").inner_text()


def test_budget_reduces_precision_and_then_omits_layers(
    minilm: pellucid.Model, show: Show, caplog: pytest.LogCaptureFixture
) -> None:
    trace = minilm.trace(LONG, keep="view", max_length=100)
    exact, less, least = (pellucid.view(trace, layer=2, budget_mb=mb) for mb in (50, 2.2, 1.2))
    assert exact.notes == [] and not caplog.records
    assert len(less.notes) == 1 and "int16" in less.notes[0]
    assert {less.data.manifest["blocks"][entry["query"]]["dtype"] for entry in less.data.manifest["attentions"]} == {
        "int16"
    }
    assert page_size(least) <= 1.2 < page_size(less) <= 2.2
    omitted = [entry["layer"] for entry in least.data.manifest["attentions"] if entry["query"] is None]
    assert omitted and 2 not in omitted and len(omitted) < 6
    assert all(entry["thumb"] for entry in least.data.manifest["attentions"])
    assert (
        least.notes == [record.message for record in caplog.records[-2:]]
        and f"layers.{omitted[0]}.attention" in least.notes[1]
    )
    tab = show(least.html())
    tab.evaluate(READOUT)
    tab.get_by_label("layer", exact=True).select_option(str(omitted[0]))
    assert "left out" in tab.get_by_role("alert").inner_text()
    for key in ("n", "t"):
        tab.keyboard.press(key)
    assert "left out to keep this page small; its picture" in tab.get_by_role("dialog").inner_text()
    for key in ("Escape", "h"):
        tab.keyboard.press(key)
    tab.get_by_label("layer", exact=True).select_option("2")
    tab.evaluate(READOUT)
    assert tab.locator(".column.query .row").count() > 5
    with pytest.raises(pellucid.InputError, match=r"budget_mb is 0\.01"):
        pellucid.view(trace, budget_mb=0.01)
    with pytest.raises(pellucid.InputError, match=r"leaves 0\.\d\d MB .* takes 0\.\d\d MB: raise it"):
        pellucid.view(trace, budget_mb=0.35).html()
    with pytest.raises(pellucid.InputError, match=r"MB, 0\.20 MB of it for tensors: .* or keep fewer tensors"):
        pellucid.view(trace, tensors=["layers.0.attention.key"], precision="float32", budget_mb=0.2).html()


@pytest.mark.parametrize(
    "texts", [("time flies like an arrow",), ("time flies like an arrow", "fruit flies like a pear")]
)
def test_no_layer_that_fits_in_16_bits_is_omitted(minilm: pellucid.Model, texts: tuple[str, ...]) -> None:
    traces = [minilm.trace(text, keep="view") for text in texts]
    exact = pellucid.view(*traces)
    view = pellucid.view(*traces, budget_mb=page_size(exact) - 0.005)
    assert len(view.notes) == 1 and "numbers are stored as int16, since" in view.notes[0]
    assert "left_out" not in view.data.manifest and page_size(view) < page_size(exact)


def test_only_the_open_layer_is_decoded(minilm: pellucid.Model, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    view = pellucid.view(minilm.trace(LONG, keep="view", max_length=512))
    original, instrumented = (
        page_module.pack_program,
        "app.mount(root, () => (window.source = data.inlineSource(root)));",
    )
    monkeypatch.setattr(
        page_module, "pack_program", lambda css, js: original(css, js.replace("app.mount(root);", instrumented))
    )
    tab = show(view.html().replace("Content-Security", "x"))
    wait_until(tab, "() => window.source")
    tab.evaluate(READOUT)
    assert tab.evaluate("window.source.counted") == 2  # query and key of one layer
    tab.get_by_role("button", name="next layer").click()
    tab.evaluate(READOUT)
    assert tab.evaluate("window.source.counted") == 4
    assert tab.evaluate("document.querySelectorAll('*').length") < 3000


# -- what it stores ---------------------------------------------------------------------------------------------------


def test_included_layers_keep_their_numbers(minilm: pellucid.Model, show: Show) -> None:
    trace = minilm.trace("time flies")
    view = pellucid.view(trace, include_layers=[1, 4])
    assert [entry["name"] for entry in view.data.manifest["attentions"]] == ["layers.1.attention", "layers.4.attention"]
    tab = show(view.html(), "#layer=4")
    tab.evaluate(READOUT)
    assert "layer 4" in tab.locator(".readout").inner_text() and "layer=4" in tab.url
    with pytest.raises(pellucid.InputError, match="layer 9 does not exist: this trace has layers 0, 1, 2, 3, 4, 5"):
        pellucid.view(trace, include_layers=[9])
    with pytest.raises(pellucid.InputError, match="layer 2 does not exist"):
        pellucid.view(trace, include_layers=[1, 4], layer=2)
    manifest = pellucid.view(trace, trace, include_layers=iter([4, 4])).data.manifest
    for entries in (manifest["attentions"], manifest["other"]["attentions"]):
        assert [entry["name"] for entry in entries] == ["layers.4.attention"]


def test_weights_that_differ_from_query_and_key_are_stored(minilm: pellucid.Model, show: Show) -> None:
    trace = minilm.trace("time flies like an arrow")
    points = dict(trace.points)
    edited = points["layers.1.attention.weights"].clone()
    edited[:, 5] = 0.0
    view = pellucid.view(dataclasses.replace(trace, points=points | {"layers.1.attention.weights": edited}))
    stored = [entry["weights"] is not None for entry in view.data.manifest["attentions"]]
    assert stored == [False, True, False, False, False, False]
    tab = show(view.html())
    torch.testing.assert_close(torch.tensor(tab.evaluate(COMPUTED_WEIGHTS)[1]), edited[0], atol=1e-7, rtol=0)


def test_nan_is_shown_as_nan(minilm: pellucid.Model, show: Show) -> None:
    trace = minilm.trace("time flies like an arrow")
    points = {name: tensor.clone() for name, tensor in trace.points.items() if "layers.0.attention" in name}
    points["layers.0.attention.query"][:, 2, 3] = torch.nan
    points["layers.0.attention.weights"][:, 2, 3] = torch.nan
    view = pellucid.view(dataclasses.replace(trace, points=points), heads=[2])
    assert view.data.manifest["attentions"][0]["max_error"] < 1e-5
    tab = show(view.html(), "#view=matrix&head=2&heads=2&query=3&key=1")
    text, readout = tab.evaluate(READOUT)
    assert (text, readout["query"]) == ("NaN", "3")
    assert "Red cells are NaN" in tab.locator(".legend").inner_text()
    for precision in ("compact", "int16"):
        assert pellucid.view(dataclasses.replace(trace, points=points), precision=precision).html()
    tab = show(view.html(), "#view=grid&head=2&heads=2")
    assert "some weights are NaN" in tab.locator(".readout").inner_text()
    assert "Weights that are NaN or above 1 are drawn as 1" in tab.locator(".legend").inner_text()


def test_negative_weights_are_drawn_as_0_and_reported(minilm: pellucid.Model, show: Show) -> None:
    with minilm.edit({"layers.0.attention.weights": add(-0.2, head=1)}) as edited:
        view = pellucid.view(trace := edited.trace("time flies like an arrow"), layer=0, heads=[1], show="matrix")
    weights = trace["layers.0.attention.weights"][0, 1]
    tab = show(view.html(), "#view=matrix&layer=0&heads=1")
    assert "Weights below 0 are drawn as 0" in tab.locator(".legend").inner_text()
    assert tab.evaluate("() => [-1, 0, 2].map((weight) => colour.rampStep(weight, 1, 'sqrt'))") == [0, 0, 255]
    tab.keyboard.press("h")
    wait_until(tab, "() => document.querySelector('.legend').innerText.includes('Weights below 0 have no line')")
    below = int((weights < 0).sum())
    drawn = [draw(view.data, layer=0, heads=1, view=name) for name in ("matrix", "heads")]
    message = f"{below} of the weights are below 0; they are drawn as 0"
    assert below and all(message in " ".join(texts_of(one)) for one in drawn)


@pytest.mark.parametrize("precision", ["int16", "compact"])
def test_one_large_weight_does_not_affect_the_others(minilm: pellucid.Model, precision: str) -> None:
    name = "layers.4.attention.weights"
    with minilm.edit({name: fixed(1e6, head=2, position=1, source=3)}) as edited:
        trace = edited.trace("time flies like an arrow")
    data = pellucid.view(trace, precision=precision).data
    entry = data.manifest["attentions"][4]
    np.testing.assert_allclose(head_weights(data, entry, 2)[0], trace[name][0, 2].numpy(), rtol=1e-6)


def test_infinite_weight_does_not_affect_the_shares_of_the_others(minilm: pellucid.Model, show: Show) -> None:
    name = "layers.2.attention.weights"
    with minilm.edit({name: fixed(float("inf"), head=2, position=1, source=3)}) as edited:
        view = pellucid.view(trace := edited.trace("time flies like an arrow"), layer=2, heads=[2])
    weights = trace[name][0, 2]
    finite = weights[weights.isfinite()]
    hidden = f"{100 * finite[finite < 0.02].sum() / finite.sum():.1f} %"
    tab = show(view.html(), "#view=heads&layer=2&heads=2&query=1&pinned=true")
    tab.keyboard.press("Escape")
    tab.evaluate(READOUT)
    legend = tab.locator(".legend").inner_text()
    assert f"they carry {hidden}" in legend and "NaN or infinite: no line is drawn" in legend
    assert f"they carry {hidden}" in " ".join(texts_of(draw(view.data, layer=2, heads=2, view="heads")))


def test_largest_weight_is_a_visible_one(minilm: pellucid.Model, show: Show) -> None:
    model = small_model("gpt2", minilm)
    with model.edit({"layers.1.attention.weights": scale(-1.0, head=2)}) as edited:
        view = pellucid.view(edited.trace("time flies like an arrow"))
    for selection in ("query=3", "key=3&side=key"):
        tab = show(view.html(), f"#view=heads&layer=1&heads=2&{selection}&pinned=true")
        tab.evaluate(READOUT)
        assert float(tab.locator(".readout-value").inner_text()) < 0


def test_weight_above_1_is_reported(minilm: pellucid.Model, show: Show) -> None:
    name = "layers.0.attention.weights"
    with minilm.edit({name: scale(2.5, head=1)}) as edited:
        trace = edited.trace("time flies like an arrow")
    first, second = pellucid.view(trace).data.manifest["attentions"][:2]
    largest = trace[name][0, 1].max().item()
    assert first["beyond"] == {"1": pytest.approx(largest)} and largest > 1 and "beyond" not in second
    tab = show(pellucid.view(trace, show="grid", heads=[1]).html())
    assert f"largest weight about {largest:.1f}" in tab.locator(".readout").inner_text()
    assert "above 1 are drawn as 1" in tab.locator(".legend").inner_text()
    tab.keyboard.press("t")
    cell = tab.locator("dialog tbody tr").first.locator("td").nth(1)
    assert float(cell.inner_text()) == pytest.approx(largest, rel=1e-2)
    for key in ("Escape", "h"):
        tab.keyboard.press(key)
    wait_until(tab, "() => document.querySelector('.legend').innerText.includes('Weights above 1 are drawn as 1')")
    drawn = draw(pellucid.view(trace).data, layer=0, heads=1, view="heads")
    assert "Weights above 1 are drawn as 1" in " ".join(texts_of(drawn))
    assert max(float(part.split('"')[0]) for part in drawn.split('stroke-opacity="')[1:]) <= 1


def test_trace_without_weights_is_drawn_as_not_compared(minilm: pellucid.Model, show: Show) -> None:
    trace = minilm.trace("time flies", keep=["layers.*.attention.query", "layers.*.attention.key"])
    tab = show(pellucid.view(trace).html())
    tab.evaluate(READOUT)
    assert "not compared" in tab.locator(".legend").inner_text()
    drawn = " ".join(texts_of(draw(pellucid.view(trace).data)))
    assert drawn.endswith("Weights after softmax, recomputed from queries and keys.")


def test_weights_that_cannot_be_recomputed_are_stored_or_missing(minilm: pellucid.Model) -> None:
    keep = ["*.query", "*.key"]
    for family, after, missing in (("gpt2", "fruit", "layers.0.attention.weights"), ("mpnet", None, "distance bias")):
        model = small_model(family, minilm)
        with pytest.raises(pellucid.InputError, match=f"this trace has no .*{missing}.*: record with keep='view'"):
            pellucid.view(model.trace("time flies", after=after, keep=keep))
        trace = model.trace("time flies", after=after, keep=[*keep, "*.weights"])
        stored, _ = head_weights((data := pellucid.view(trace).data), data.manifest["attentions"][0], 1)
        np.testing.assert_array_equal(stored, trace["layers.0.attention.weights"][0, 1].double().numpy())


@pytest.mark.parametrize(
    "edited", ["layers.0.attention.weights", "layers.*.attention.scores", "blocks.0.attn.hook_pattern"]
)
def test_edited_weights_are_not_recomputed_from_query_and_key(minilm: pellucid.Model, edited: str) -> None:
    keep = [f"layers.{layer}.attention.{part}" for layer in (0, 1) for part in ("query", "key")]
    with minilm.edit({edited: scale(0.5, head=0)}):
        part, whole = minilm.trace("time flies", keep=keep), minilm.trace("time flies", keep="view")
    with pytest.raises(
        pellucid.InputError, match=r"changed the weights that layers\.0\.attention computes .* record with keep='view'"
    ):
        pellucid.view(part)
    stored, _ = head_weights((data := pellucid.view(whole).data), data.manifest["attentions"][0], 0)
    torch.testing.assert_close(torch.from_numpy(stored).float(), whole["layers.0.attention.weights"][0, 0])
    with minilm.edit({"layers.0.attention.query": scale(0.5, head=0)}):
        assert pellucid.view(minilm.trace("time flies", keep=keep)).html()


def test_row_of_a_batch_is_drawn(minilm: pellucid.Model, show: Show) -> None:
    texts = ["time flies like an arrow", "fruit"]
    both, alone = minilm.trace(texts, keep="view"), minilm.trace("fruit", keep="view")
    with pytest.raises(pellucid.InputError, match=r"of 2 texts: choose one, such as trace.row\(0\)"):
        pellucid.view(both)
    computed = show(pellucid.view(both.row(1)).html()).evaluate(COMPUTED_WEIGHTS)
    for rows, i in zip(computed, range(6), strict=True):
        torch.testing.assert_close(torch.tensor(rows), alone[f"layers.{i}.attention.weights"][0], atol=1e-5, rtol=0)


def test_tensors_are_stored_exactly(minilm: pellucid.Model) -> None:
    trace = minilm.trace("time flies like an arrow")
    data = pellucid.view(trace, tensors=("layers.0.residual.*", "pooled", "logits")[:1]).data
    names = [entry["name"] for entry in data.manifest["tensors"]]
    assert names == [name for name in trace if name.startswith("layers.0.residual.")]
    for entry in data.manifest["tensors"]:
        np.testing.assert_array_equal(block_numbers(data, entry["block"]), trace[entry["name"]][0].numpy())
        assert entry["axes"] == ["seq", "hidden"]
    auto = pellucid.view(trace, tensors="auto").data
    size = sum(4 * int(np.prod(auto.manifest["blocks"][entry["block"]]["shape"])) for entry in auto.manifest["tensors"])
    assert 500_000 < size <= 2_000_000
    assert not any(entry["name"].endswith((".weights", ".scores")) for entry in auto.manifest["tensors"])
    with pytest.raises(pellucid.InputError, match=r"no 'layers.0.residul.pre' \(did you mean layers.0.residual.pre"):
        pellucid.view(trace, tensors=["layers.0.residul.pre"])


@pytest.mark.parametrize(
    ("names_in_call", "names"),
    [
        ("blocks.1.attn.hook_z", ["layers.1.attention.heads"]),
        ("blocks.*.attn.hook_z", ["layers.0.attention.heads", "layers.1.attention.heads"]),
        ("attentions[*]", [f"layers.{i}.attention.weights" for i in range(6)]),
    ],
)
def test_tensors_are_selected_by_other_libraries_names(
    names_in_call: str, names: list[str], minilm: pellucid.Model
) -> None:
    trace = minilm.trace("time flies", keep=["layers.[01].attention.heads", "*.weights", "*query", "*key"])
    data = pellucid.view(trace, tensors=names_in_call).data
    assert [entry["name"] for entry in data.manifest["tensors"]] == names
    for entry in data.manifest["tensors"]:
        assert entry["axes"][0] == "heads"
        np.testing.assert_array_equal(block_numbers(data, entry["block"]), trace[entry["name"]][0].numpy())


def test_missing_tensors_are_refused(minilm: pellucid.Model, caplog: pytest.LogCaptureFixture) -> None:
    trace = minilm.trace("time flies", keep=["*.attention.*"])
    with pytest.raises(pellucid.InputError, match=r"this trace has no 'blocks.1.hook_mlp_out'"):
        pellucid.view(trace, tensors="blocks.1.hook_mlp_out")
    with pytest.raises(pellucid.InputError, match=r"another number .*: use layers.1.attention.output$"):
        pellucid.view(trace, tensors="blocks.1.hook_attn_out")
    assert not caplog.records
    pellucid.view(trace, tensors="blocks.1.attn.*")
    (record,) = caplog.records
    assert record.getMessage().startswith("blocks.1.attn.* leaves out blocks.1.attn.hook_attn_scores, which ")


@pytest.fixture(scope="module")
def decoder(minilm: pellucid.Model) -> pellucid.Model:
    config = Config.of("gpt2", vocab_size=len(minilm.tokenizer), hidden_size=24, num_hidden_layers=2,
                       num_attention_heads=2, intermediate_size=40, head=pellucid.config.CausalLM())  # fmt: skip
    return pellucid.build(config, seed=2, tokenizer=minilm.tokenizer)


def test_lens_is_stored_exactly(decoder: pellucid.Model) -> None:
    trace = decoder.trace("time flies like an arrow")
    lens = logit_lens(decoder.loaded, trace, k=3)
    data = pellucid.view(trace, lens=lens).data
    stored = data.manifest["lens"]
    assert stored["kind"] == "next token" and stored["points"] == list(lens.points)
    np.testing.assert_array_equal(block_numbers(data, stored["ids"]), lens.ids.numpy())
    np.testing.assert_array_equal(block_numbers(data, stored["log_probabilities"]), lens.log_probabilities.numpy())
    assert {int(id_): word for id_, word in stored["tokens_by_id"].items()} == lens.tokens_by_id
    json.dumps(data.manifest, allow_nan=False)
    with pytest.raises(pellucid.InputError, match="lens has 7 tokens and the page 3"):
        pellucid.view(decoder.trace("time"), lens=lens)
    with pytest.raises(
        pellucid.InputError, match="lens has 'time' at token 1, and the page 'fruit': compute the lens of the"
    ):
        pellucid.view(decoder.trace("fruit flies like a banana"), lens=lens)
    with pytest.raises(pellucid.InputError, match="lens is dict without 'kind'"):
        pellucid.view(trace, lens={})
    with pytest.raises(pellucid.InputError, match="lens is tuple without 'kind'"):
        pellucid.view(trace, lens=())
    with pytest.raises(pellucid.InputError, match="lens has no ids and log_probabilities of one shape"):
        pellucid.view(trace, lens=dataclasses.replace(lens, log_probabilities=lens.log_probabilities[:, :, :2]))
    stored_lenses = [
        pellucid.view(trace, trace, lens=pair([lens, lens])).data.manifest["lens"] for pair in (tuple, list)
    ]
    assert stored_lenses[0] == stored_lenses[1]


def test_second_trace_does_not_replace_the_first(minilm: pellucid.Model, show: Show) -> None:
    first, second = minilm.trace("time flies like an arrow"), minilm.trace("fruit flies like a banana")
    view = pellucid.view(first, second)
    other = view.data.manifest["other"]
    assert other["label"] == "fruit flies like a banana"
    assert [token["text"] for token in other["sequences"][0]["tokens"]] == second.tokens
    entry = other["attentions"][3]
    assert entry["query"] == "other/layers.3.attention.query"
    np.testing.assert_array_equal(
        block_numbers(view.data, entry["query"]), second["layers.3.attention.query"][0].numpy()
    )
    show(view.html(), "#view=diff").evaluate(READOUT)
    with pytest.raises(pellucid.InputError, match="have 7 and 3 tokens"):
        pellucid.view(first, minilm.trace("time"))
    with pytest.raises(pellucid.InputError, match=r"only one of the traces has 'layers.*record both"):
        pellucid.view(first, minilm.trace("fruit flies like a banana", keep="layers.0.*"))


def test_tensors_of_the_first_of_two_runs_are_stored(minilm: pellucid.Model, show: Show) -> None:
    name = "layers.0.residual.mid"
    first = minilm.trace("time flies like an arrow")
    second = minilm.trace("fruit flies like a banana", keep="layers.*.attention.*")
    assert name not in second
    view = pellucid.view(first, second, tensors=[name])
    assert [block for block in view.data.blocks if "tensor/" in block] == [f"tensor/{name}"]
    legends = [
        show(page.html(), "#view=tensor").locator(".legend") for page in (view, pellucid.view(first, tensors=[name]))
    ]
    legend_texts = [legend.inner_text() for legend in legends]
    assert (
        "Numbers of this run, not of the other, as the model" in legend_texts[0]
        and "Numbers as the model" in legend_texts[1]
    )


def test_pass_after_a_cache_is_drawn_with_the_cached_tokens(decoder: pellucid.Model, show: Show) -> None:
    trace = decoder.trace("like an arrow", after="time flies", keep="view")
    view = pellucid.view(trace, heads=[1])
    tab = show(view.html(), "#view=matrix")
    computed = tab.evaluate(COMPUTED_WEIGHTS)
    for rows, i in zip(computed, range(2), strict=True):
        torch.testing.assert_close(torch.tensor(rows), trace[f"layers.{i}.attention.weights"][0], atol=1e-6, rtol=0)
    sizes = [len(sequence["tokens"]) for sequence in view.data.manifest["sequences"]]
    assert sizes == [len(trace.before) + len(trace.tokens), len(trace.tokens)]


def test_pass_after_a_cache_is_drawn_with_its_lens(decoder: pellucid.Model, show: Show) -> None:
    trace = decoder.trace("like an arrow", after="time flies")
    lens = logit_lens(decoder.loaded, trace)
    tab = show(pellucid.view(trace, lens=lens, tensors="layers.0.attention.weights").html(), "#view=lens")
    tab.keyboard.press("ArrowRight")
    wait_until(tab, "() => document.querySelector('.readout').innerText.includes('at “like” (0)')")
    shown = tab.locator(".words-name").count() - 1
    assert shown == len(lens.points)
    tab.get_by_role("button", name="Tensor", exact=True).click()
    tab.keyboard.press("t")
    table = tab.get_by_role("dialog")
    for cells, tokens in (("tbody th", trace.tokens), ("thead th", [*trace.before, *trace.tokens])):
        names = [" ".join(text.split()) for text in table.locator(cells).all_inner_texts()]
        assert names == [f"{token} {i}" for i, token in enumerate(tokens)]


def test_byte_level_tokens_are_shown_as_text(minilm: pellucid.Model) -> None:
    from pellucid.view.subject import is_byte_level, token_entries

    def texts(*tokens: str, by_bytes: bool = False) -> list[str]:
        assert is_byte_level(tokens) is (by_bytes or tokens in (("Ġurnata",), ("ĉu",)))  # these two are ambiguous
        return [
            token["text"]
            for token in token_entries(tokens, [0] * len(tokens), [False] * len(tokens), by_bytes=by_bytes)
        ]

    bytes_ = ("Ġthe", "naÃ¯ve", "ĊĊ", "ðŁĳ", "©")
    assert texts(*bytes_, by_bytes=True) == [" the", "naïve", "\n\n", "<0xF0><0x9F><0x91>", "<0xA9>"]
    assert texts("ä½", "łå¥½", by_bytes=True) == ["<0xE4><0xBD>", "<0xA0><0xE5><0xA5><0xBD>"]
    assert texts("▁the", "end") == [" the", "end"]
    for letters in (["café", "##ø", "§"], ["čas", "##ąc"], ["ğ"], ["đa"], ["Ġurnata"], ["ĉu"], ["北京"]):
        assert texts(*letters) == letters
    special: dict[str, Any] = token_entries(["Ġ"], [3], [True], by_bytes=True)[0]
    assert special == {"text": "Ġ", "id": 3, "kind": "special", "segment": 0}


@pytest.mark.parametrize(("make_source", "make_target"), [(byte_level, pieces), (pieces, byte_level)])
def test_tokens_of_a_decoder_are_spelled_by_its_own_vocabulary(
    make_source: Callable[[], Tokenizer], make_target: Callable[[], Tokenizer], tmp_path: Path
) -> None:
    source, target = make_source(), make_target()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes |= {"num_decoder_layers": 1, "decoder_attention_heads": 2, "decoder_intermediate_size": 16}
    tables = {"vocab_size": len(target), "source_vocab_size": len(source), "share_embeddings": False}
    tables["decoder_start_token_id"] = 1
    config = Config.of("transformer", head=SequenceToSequenceLM(), **sizes, **tables)
    loaded = pellucid.build(config).reading(source).loaded
    model = pellucid.Model(dataclasses.replace(loaded, target_tokenizer=target))
    for missing, problem in ((None, "is missing, and the decoder has a vocabulary of its own"), ("", "has no tokens")):
        with pytest.raises(pellucid.InputError, match=f"^target {problem}"):
            model.trace("a dog", target=missing)
    trace = model.trace("a dog", target="a fox")
    trace.save(tmp_path / "a.trace")
    for one in (trace, pellucid.open_trace(tmp_path / "a.trace")):
        sides = pellucid.view(one).data.manifest["sequences"]
        texts = ["".join(token["text"] for token in side["tokens"]) for side in sides]
        assert [text.replace("<s>", "").strip() for text in texts] == ["a dog", "a fo"]
    shown = repr(model.explain.gradient_x_input("a dog", 2, decoder_text="a fox"))
    assert "Ġ" not in shown and "▁" not in shown and shown.count("·") >= 2


def test_page_has_the_letters_of_its_text(minilm: pellucid.Model, tmp_path: Path) -> None:
    """In other vocabularies a letter such as "đ" represents a byte; it used to be shown as a control character."""
    trace = minilm.trace("đi", keep="view")
    again = pellucid.open_trace(trace.save(tmp_path / "a.trace"))
    for one in (trace, again):
        (sequence,) = pellucid.view(one).data.manifest["sequences"]
        assert [token["text"] for token in sequence["tokens"]] == trace.tokens == ["[CLS]", "đ", "##i", "[SEP]"]


def test_damaged_compressed_block_is_reported(minilm: pellucid.Model, show: Show) -> None:
    view = pellucid.view(minilm.trace(LONG, keep="view", max_length=40), precision="compact")
    name = view.data.manifest["attentions"][0]["weights"]
    page = view.html()
    start = page.index(f'data-block="{name}">') + len(f'data-block="{name}">')
    broken = page[: start + 200] + "AAAAAAAA" + page[start + 208 :]
    assert "is damaged" in show(broken).get_by_role("alert").inner_text()
    with pytest.raises(ValueError, match="cannot be unpacked"):
        render(view.data.manifest, view.data.blocks | {name: b"no zlib"})


def test_keys_pressed_while_a_layer_is_decompressed_are_not_lost(minilm: pellucid.Model, show: Show) -> None:
    trace = minilm.trace(LONG, keep="view", max_length=40)
    view = pellucid.view(trace, precision="compact", heads=[0])
    tab = show(view.html(), "#view=matrix")
    tab.evaluate(READOUT)
    press = "for (const key of ['ArrowDown', ']', 'ArrowDown', 'ArrowRight', ']', 'ArrowDown']) "
    press += "document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))"
    tab.evaluate(press)  # all of them before the first block of layers 1 and 2 can arrive
    text, readout = tab.evaluate(READOUT)
    assert readout == {"layer": "2", "head": "0", "query": "2", "key": "1"}
    entry = view.data.manifest["attentions"][2]
    assert float(text) == pytest.approx(trace["layers.2.attention.weights"][0, 0, 2, 1].item(), abs=entry["max_error"])
