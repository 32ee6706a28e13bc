"""The page of a real model: what the browser draws is what PyTorch computed."""

from pathlib import Path

import pytest
import torch

import pellucid
from tests.quick import few
from tests.view.conftest import READOUT, Show

PAIR = ("time flies like an arrow", "fruit flies like a banana")


@pytest.mark.parametrize(("precision", "bound"), few([("float32", 2e-6), ("int16", 5e-4)], ["float32"]))
def test_readout_equals_the_weights_of_the_model(
    minilm: "pellucid.Model", show: Show, precision: str, bound: float
) -> None:
    trace = minilm.trace(*PAIR)
    view = pellucid.view(trace, layer=3, heads=[5], precision=precision)
    tab = show(view.html(), "#view=matrix")
    box = tab.locator(".plot canvas").bounding_box()
    seq = len(trace.tokens)
    for query in range(seq):
        for key in range(query % 2, seq):
            tab.mouse.move(box["x"] + (key + 0.5) * box["width"] / seq, box["y"] + (query + 0.5) * box["height"] / seq)
            text, dataset = tab.evaluate(READOUT)
            assert dataset == {"layer": "3", "head": "5", "query": str(query), "key": str(key)}
            assert abs(float(text) - trace["layers.3.attention.weights"][0, 5, query, key].item()) <= bound


def test_precision_depends_on_the_size(minilm: "pellucid.Model") -> None:
    small, large = minilm.trace("time flies"), minilm.trace("word " * 500)
    for trace, dtype in ((small, "float32"), (large, "int16")):
        data = pellucid.view(trace).data
        assert {data.manifest["blocks"][entry["query"]]["dtype"] for entry in data.manifest["attentions"]} == {dtype}


@pytest.mark.parametrize(("precision", "bound"), [("float32", 5e-6), ("int16", 5e-4)])
def test_stated_error_is_correct(minilm: "pellucid.Model", precision: str, bound: float) -> None:
    trace = minilm.trace("a long sentence about glass and light " * 20)
    data = pellucid.view(trace, precision=precision).data
    for attention in data.manifest["attentions"]:
        parts = {}
        for part in ("query", "key"):
            fact = data.manifest["blocks"][attention[part]]
            raw = bytearray(data.blocks[attention[part]])
            numbers = torch.frombuffer(raw, dtype=getattr(torch, fact["dtype"])).view(fact["shape"]).double()
            scales = torch.tensor(fact.get("scales", [1.0]), dtype=torch.float64).view(-1, 1, 1)
            parts[part] = (numbers * scales).float().double()  # pages store float32
        scores = parts["query"] @ parts["key"].mT * attention["recipe"]["scale"]
        error = (scores.softmax(-1) - trace[f"{attention['name']}.weights"][0].double()).abs().max().item()
        assert error == pytest.approx(attention["max_error"])
        assert error <= bound


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [({"layer": 9}, "layers 0 to 5"), ({"heads": [12]}, "heads 0 to 11"), ({"precision": "float16"}, "int16")],
)
def test_invalid_arguments_are_refused(minilm: "pellucid.Model", arguments: dict[str, object], fragment: str) -> None:
    with pytest.raises(pellucid.InputError, match=fragment):
        pellucid.view(minilm.trace("time flies"), **arguments).html()


def test_trace_without_queries_is_refused(minilm: "pellucid.Model") -> None:
    with pytest.raises(pellucid.InputError, match="this trace holds no attention"):
        pellucid.view(minilm.trace("time flies", keep="pooled")).html()


def test_page_that_cannot_be_written_leaves_no_file(minilm: "pellucid.Model", tmp_path: Path) -> None:
    with pytest.raises(pellucid.InputError, match="cannot write"):
        pellucid.view(minilm.trace("time flies")).save(tmp_path / "no" / "such" / "folder.html")
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(pellucid.InputError, match="cannot write"):
        pellucid.view(minilm.trace("time flies")).save(tmp_path / "taken.html")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]


def test_notebook_shows_the_page_in_a_frame(minilm: "pellucid.Model") -> None:
    frame = pellucid.view(minilm.trace("time flies"))._repr_html_()
    assert "<iframe" in frame and "srcdoc=" in frame and 'sandbox="allow-scripts' in frame
