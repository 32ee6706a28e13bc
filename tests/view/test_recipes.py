"""Every way in which a family computes its weights: the browser recomputes them and gets PyTorch's values."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page

import pellucid
from pellucid import Config
from pellucid.config import Llama3Scaling, Rotary
from pellucid.trace import Trace
from pellucid.view import page as page_module
from pellucid.view.store import MAX_ERROR
from tests.quick import few
from tests.view.conftest import READOUT, Show

TEXT, TARGET = "time flies like an arrow", "fruit flies like a ripe banana here"
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
         "initializer_range": 0.35}  # fmt: skip
DECODER_SIZES = {"num_decoder_layers": 2, "decoder_attention_heads": 4, "decoder_intermediate_size": 40}
SCALED_ROTATION = Rotary(10_000.0, 2048, Llama3Scaling(8.0, 1.0, 4.0, 8))
ROTATED, BIASED = "window, rotated, grouped", "pair, bias by distance, unscaled"
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("bert", {}),
    "full, two embeddings": ("distilbert", {}),
    "full, shared layers": ("albert", {"embedding_size": 16}),
    "full, bias by distance": ("mpnet", {}),
    "full, padding takes no place": ("roberta", {}),
    "causal": ("gpt2", {}),
    "causal, rotated, grouped": ("llama", {"num_key_value_heads": 2}),
    "causal, rotated slowly": ("llama", {"attention_position": SCALED_ROTATION}),
    ROTATED: ("mistral", {"num_key_value_heads": 2, "sliding_window": 3}),
    "causal, rotated, one key": ("qwen2", {"num_key_value_heads": 1}),
    "pair, full and causal and cross": ("bart", DECODER_SIZES),
    BIASED: ("t5", DECODER_SIZES | {"initializer_range": 0.2}),
    "pair, decoder deeper": ("t5", DECODER_SIZES | {"num_decoder_layers": 5, "initializer_range": 0.2}),
}
QUICK_RECIPES = "full", "causal, rotated slowly", ROTATED, "pair, full and causal and cross", BIASED
COMPUTED_WEIGHTS = """async () => {
  const source = data.inlineSource(document.querySelector(".pellucid"));
  await source.load(source.manifest.attentions.flatMap(attention.blocksOf));
  return source.manifest.attentions.map((entry) => {
    const numbers = new attention.Attention(source, entry);
    const rows = (head) => Array.from({ length: numbers.queries }, (_, query) => [...numbers.row(head, query)]);
    return Array.from({ length: numbers.heads }, (_, head) => rows(head));
  });
}"""
COLUMNS = """async ([before]) => {
  const source = data.inlineSource(document.querySelector(".pellucid"));
  await source.load(source.manifest.attentions.flatMap(attention.blocksOf));
  return source.manifest.attentions.map((entry) => {
    const numbers = new attention.Attention(source, entry);
    const [heads, queries] = [[...Array(numbers.heads).keys()], [...Array(numbers.queries).keys()]];
    const rows = () => [...heads.map((head) => queries.map((query) => [...numbers.row(head, query)])),
      queries.map((query) => [...numbers.meanRow(heads, query)])];
    const columns = () => [...heads, heads].map((head) => Array.from({ length: numbers.keys }, (_, key) => [
      ...(head === heads ? numbers.meanColumn(heads, key) : numbers.column(head, key))]));
    if (before === "rows first") rows();
    numbers.cache.clear();
    const scores = numbers.scores.bind(numbers);
    let scored = 0;
    numbers.scores = (...of) => (scored++, scores(...of));
    return { columns: columns(), scored, rows: rows() };
  });
}"""
STEPS = """async ([place, head, query, key]) => {
  const source = data.inlineSource(document.querySelector(".pellucid"));
  const entry = source.manifest.attentions[place];
  await source.load(attention.blocksOf(entry));
  const steps = new attention.Attention(source, entry).steps(head, query, key);
  const [left, right, before] = [steps.query, steps.key, steps.queryBefore].map((part) => part && [...part]);
  return { ...steps, products: [...steps.products], left, right, before };
}"""

MakeTrace = Callable[..., Trace]


@pytest.fixture
def make_trace(minilm: pellucid.Model) -> MakeTrace:
    """Returns traces of small untrained models, whose weights are far from uniform."""

    def trace(family: str, changes: dict[str, Any], keep: str = "view") -> Trace:
        config = Config.of(family, vocab_size=len(minilm.tokenizer), **(SIZES | changes))
        model = pellucid.build(config, seed=3, tokenizer=minilm.tokenizer)
        target = {"target": TARGET} if config.kind == "encoder-decoder" else {}
        return model.trace(TEXT, keep=keep, **target)

    return trace


def assert_weights_agree(tab: Page, view: pellucid.View, trace: Trace) -> int:
    """Asserts that every weight computed by the page is within the stated error of the model's own."""
    computed, entries = tab.evaluate(COMPUTED_WEIGHTS), view.data.manifest["attentions"]
    for rows, entry in zip(computed, entries, strict=True):
        computed_weights, expected = (
            torch.tensor(rows, dtype=torch.float64),
            trace[f"{entry['name']}.weights"][0].double(),
        )
        assert (computed_weights - expected).abs().max() <= max(entry["max_error"], 1e-9) * 1.01 + 1e-12, entry["name"]
        torch.testing.assert_close(
            computed_weights.sum(-1), torch.ones(computed_weights.shape[:-1], dtype=torch.float64), atol=1e-3, rtol=0
        )
    return len(computed)


@pytest.mark.parametrize("precision", ["float32", pytest.param("int16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("recipe", few(RECIPES, QUICK_RECIPES))
def test_browser_computes_the_weights_of_the_model(
    show: Show, make_trace: MakeTrace, recipe: str, precision: str
) -> None:
    trace = make_trace(*RECIPES[recipe])
    view = pellucid.view(trace, precision=precision)
    entries = view.data.manifest["attentions"]
    assert all(entry["weights"] is None for entry in entries)  # all of them are recomputed
    assert max(entry["max_error"] for entry in entries) < (5e-6 if precision == "float32" else MAX_ERROR["int16"])
    weights = torch.cat([trace[f"{entry['name']}.weights"].flatten() for entry in entries])
    assert weights.max() > 0.8 and weights.std() > 0.1  # far from uniform
    tab = show(view.html(), "#view=matrix")
    assert assert_weights_agree(tab, view, trace) == len([name for name in trace if name.endswith(".weights")])


@pytest.mark.parametrize("before", ["rows first", "columns alone"])
@pytest.mark.parametrize("recipe", few(["full", ROTATED, BIASED], [ROTATED]))
def test_columns_equal_rows_and_reuse_computed_rows(
    show: Show, make_trace: MakeTrace, recipe: str, before: str
) -> None:
    tab = show(pellucid.view(make_trace(*RECIPES[recipe])).html())
    for found in tab.evaluate(COLUMNS, [before]):
        rows, columns = torch.tensor(found["rows"]), torch.tensor(found["columns"])
        assert torch.equal(rows, columns.mT)  # bit for bit, including the mean over all heads
        heads, queries = rows.shape[0] - 1, rows.shape[1]
        assert found["scored"] == (0 if before == "rows first" else heads * queries)


def test_float32_is_used_if_16_bits_are_too_inexact(make_trace: MakeTrace) -> None:
    trace = make_trace("bert", {"initializer_range": 30.0})
    data = pellucid.view(trace, precision="int16").data
    entries = data.manifest["attentions"]
    assert "float32" in {data.manifest["blocks"][entry["query"]]["dtype"] for entry in entries}
    assert max(entry["max_error"] for entry in entries) <= MAX_ERROR["int16"]


@pytest.mark.parametrize("recipe", few([ROTATED, BIASED], [ROTATED]))
def test_readout_shows_the_weight_under_the_mouse(show: Show, make_trace: MakeTrace, recipe: str) -> None:
    trace = make_trace(*RECIPES[recipe])
    view = pellucid.view(trace, heads=[2], layer=1)
    tab = show(view.html(), "#view=matrix")
    groups = ["encoder", "decoder", "cross"] if trace.config.kind == "encoder-decoder" else [""]
    for group in groups:
        if group:
            tab.get_by_role("button", name=group, exact=True).click()
        tab.evaluate(READOUT)
        name = {"": "layers", "cross": "decoder.layers"}.get(group, f"{group}.layers")
        name += ".1.cross_attention.weights" if group == "cross" else ".1.attention.weights"
        expected = trace[name][0, 2]
        box = tab.locator(".plot canvas").bounding_box()
        for query in range(expected.shape[0]):
            for key in range(expected.shape[1]):
                x = box["x"] + (key + 0.5) * box["width"] / expected.shape[1]
                tab.mouse.move(x, box["y"] + (query + 0.5) * box["height"] / expected.shape[0])
                text, dataset = tab.evaluate(READOUT)
                assert dataset == {"layer": "1", "head": "2", "query": str(query), "key": str(key)}
                assert float(text) == pytest.approx(expected[query, key].item(), abs=5e-6)
                masked = "masked" in tab.locator(".readout-note").inner_text()
                hidden = group != "encoder" and group != "cross" and (key > query or (not group and key <= query - 3))
                assert masked == hidden


@pytest.mark.parametrize("recipe", ["full", "causal, rotated, grouped", BIASED])
def test_steps_of_a_weight_equal_the_model(show: Show, make_trace: MakeTrace, recipe: str) -> None:
    trace = make_trace(*RECIPES[recipe], keep="all")
    view = pellucid.view(trace)
    tab = show(view.html())
    for index, entry in enumerate(view.data.manifest["attentions"]):
        name, query, key = entry["name"], 3, 2
        steps = tab.evaluate(STEPS, [index, 3, query, key])
        scores = trace[f"{name}.scores"][0, 3, query].double()
        suffix = "_rotated" if f"{name}.query_rotated" in trace else ""
        left = trace[f"{name}.query{suffix}"][0, 3, query]
        right = trace[f"{name}.key{suffix}"][0, 3 * entry["key_heads"] // entry["heads"], key]
        torch.testing.assert_close(torch.tensor(steps["left"]), left, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(torch.tensor(steps["right"]), right, atol=1e-5, rtol=1e-5)
        assert (steps["before"] is not None) == bool(suffix)
        assert steps["sum"] == pytest.approx(sum(steps["products"]))
        assert steps["scaled"] == pytest.approx(steps["sum"] * steps["scale"])
        assert steps["score"] == pytest.approx(steps["scaled"] + steps["bias"])
        assert steps["score"] == pytest.approx(scores[key].item(), abs=1e-4)
        assert steps["weight"] == pytest.approx(steps["exponential"] / steps["total"])
        assert steps["weight"] == pytest.approx(trace[f"{name}.weights"][0, 3, query, key].item(), abs=1e-5)
        assert steps["allowed"]


MUTATIONS = {
    "the scale is dropped": ("dot * this.recipe.scale", "dot", "full"),
    "the sign of a product is flipped": ("dot += this.query", "dot -= this.query", "full"),
    "the sign of the turn is flipped": ("a * cosine - b * sine", "a * cosine + b * sine", "causal, rotated, grouped"),
    "the bias is dropped": (" + this.biasOf(head, query, key);", ";", "full, bias by distance"),
    "the bias is one place off": ("query + this.queries - 1]", "query + this.queries]", "full, bias by distance"),
    "the future is seen": ("causal: (query, key) => key <= query,", "causal: () => true,", "causal"),
    "the window is one too long": ("key > query - window", "key >= query - window", "window, rotated, grouped"),
    "heads of key are taken in turn": ("Math.floor((head * this.keyHeads) / this.heads)", "head % this.keyHeads",
                                       "causal, rotated, grouped"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", few(MUTATIONS, ["the bias is one place off", "the window is one too long"]))
def test_wrong_arithmetic_is_detected(
    show: Show, make_trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: str
) -> None:
    old, new, recipe = MUTATIONS[mutation]
    web = shutil.copytree(page_module.WEB, tmp_path / "web")
    source = (web / "attention.js").read_text()
    assert source.count(old) == 1
    (web / "attention.js").write_text(source.replace(old, new))
    monkeypatch.setattr(page_module, "WEB", web)
    trace = make_trace(*RECIPES[recipe])
    view = pellucid.view(trace)
    tab = show(view.html())
    with pytest.raises(AssertionError, match="attention"):
        assert_weights_agree(tab, view, trace)
