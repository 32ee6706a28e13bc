"""What a graph computes between its steps with parameters must be what BERT computes, or nothing is written."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import load_file
from transformers import BertModel

from pellucid.checkpoints.convert import convert
from pellucid.errors import CheckpointMismatchError
from tests.checkpoints.convert.onnx_exports import INPUTS, export, export_traced, runtime_logits, tiny_bert

Tensors = tuple[torch.Tensor, ...]
HeadFunction = Callable[["CustomHead", torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class CustomHead(torch.nn.Module):
    """A BERT with a custom head: `compute` gives the output from the hidden states, the pooled output and the mask."""

    def __init__(self, model: BertModel, compute: HeadFunction) -> None:
        super().__init__()
        self.bert, self.compute = model, compute
        self.classifier, self.dense = torch.nn.Linear(32, 3), torch.nn.Linear(32, 32)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        states, pooled = self.bert(**dict(zip(INPUTS, inputs)), return_dict=False)
        return self.compute(self, states, pooled, inputs[1])


def export_with_head(folder: Path, compute: HeadFunction) -> Path:
    model = tiny_bert("base")
    export(model, folder, "traced")
    export_traced(CustomHead(model, compute), folder / "model.onnx")
    return folder


def mean_pooled(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask[..., None].float()
    return (states * weights).sum(1) / weights.sum(1)


UNSUPPORTED_HEADS: dict[str, tuple[HeadFunction, str]] = {
    "pooler of the mean": (
        lambda own, states, pooled, mask: own.classifier(torch.tanh(own.dense(mean_pooled(states, mask)))),
        r"pooler\.dense reads the result of Div /Div",
    ),
    "pooler of the last token": (
        lambda own, states, pooled, mask: own.classifier(torch.tanh(own.dense(states[:, -1]))),
        r"pooler\.dense reads the result of Gather /Gather, where BERT reads the first token",
    ),
    "pooler of the first token, reversed": (
        lambda own, states, pooled, mask: own.classifier(torch.tanh(own.dense(states[:, 0].flip(-1)))),
        r"pooler\.dense reads the result of Slice /Slice \(after Gather /Gather",
    ),
    "whole numbers": (
        lambda own, states, pooled, mask: own.classifier(states.long().float()),
        r"classifier .* reads the result of Cast /Cast",
    ),
    "temperature": (
        lambda own, states, pooled, mask: own.classifier(pooled) / 2.5,
        r"the output \w+ reads 0\.4 times Gemm /classifier/Gemm",
    ),
    "softmax": (
        lambda own, states, pooled, mask: torch.softmax(own.classifier(pooled), -1),
        r"the output \w+ reads the result of Softmax /Softmax, where BERT reads Gemm /classifier/Gemm",
    ),
    "relu before the classifier": (
        lambda own, states, pooled, mask: own.classifier(torch.relu(pooled)),
        r"classifier reads the result of Relu /Relu .* where BERT reads the pooled first token",
    ),
    "dense of the mean": (
        lambda own, states, pooled, mask: torch.tanh(own.dense(mean_pooled(states, mask))),
        r"pooler\.dense reads the result of Div /Div",
    ),
    "tags of relu": (
        lambda own, states, pooled, mask: own.classifier(torch.relu(states)),
        r"classifier \(a product for every token\) reads the result of Relu /Relu",
    ),
    "tags of twice the state": (
        lambda own, states, pooled, mask: own.classifier(2 * states),
        r"classifier \(a product for every token\) reads 2 times the states of the last layer",
    ),
    "classifier of the first token": (
        lambda own, states, pooled, mask: own.classifier(states[:, 0]),
        r"classifier \(a product for every token\) reads the result of Gather",
    ),
    "classifier of the mean": (
        lambda own, states, pooled, mask: own.classifier(mean_pooled(states, mask)),
        r"classifier \(a product for every token\) reads the result of Div /Div",
    ),
    "classifier of the greatest": (
        lambda own, states, pooled, mask: own.classifier(states.max(1)[0]),
        r"classifier .* reads the result of ReduceMax /ReduceMax",
    ),
    "mean alone": (
        lambda own, states, pooled, mask: mean_pooled(states, mask),
        "the output .* reads the result of Div /Div",
    ),
}


@pytest.mark.parametrize("case", UNSUPPORTED_HEADS)
def test_unsupported_heads_are_refused(tmp_path: Path, case: str) -> None:
    compute, message = UNSUPPORTED_HEADS[case]
    folder = export_with_head(tmp_path / "foreign", compute)
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("slicing", [False, True])
def test_first_token_by_slice_or_index_is_converted(tmp_path: Path, slicing: bool) -> None:
    def first(own: CustomHead, states: torch.Tensor, pooled: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        cut = states[:, 0:1].flatten(1) if slicing else states[:, 0]
        return own.classifier(torch.tanh(own.dense(cut)))

    result = convert(export_with_head(tmp_path / "foreign", first), tmp_path / "ours").folder
    assert json.loads((result / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]


def test_additional_sentence_output_is_dropped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in exports of sentence-transformers; it holds no weights."""
    folder = export_with_head(tmp_path / "foreign", lambda own, states, pooled, mask: states)
    model = onnx.load(folder / "model.onnx")
    model.graph.node.append(helper.make_node("ReduceMean", [model.graph.output[0].name], ["sentence"], axes=[1]))
    model.graph.output.append(helper.make_tensor_value_info("sentence", 1, None))
    onnx.save(model, folder / "model.onnx")
    convert(folder, tmp_path / "ours")
    assert "its output sentence is not part of BERT; left out" in caplog.text


def test_inserted_operations_are_refused(tmp_path: Path) -> None:
    """A scale before each input of the first layers in turn; wherever it changes the output, the graph is refused."""
    folder = export(tiny_bert("sequence"), tmp_path / "foreign", "captured")
    plain, expected = onnx.load(folder / "model.onnx"), runtime_logits(folder / "model.onnx")
    reals = {value.name for value in onnx.shape_inference.infer_shapes(plain).graph.value_info}
    reals -= {tensor.name for tensor in plain.graph.initializer}  # a scaled parameter is read as one parameter
    refused = 0
    for at, node in list(enumerate(plain.graph.node))[5:60]:
        for index, read in enumerate(node.input):
            if read not in reals or node.op_type in ("Shape", "Slice", "Concat", "Unsqueeze", "Squeeze"):
                continue
            model = copy.deepcopy(plain)
            model.graph.initializer.append(numpy_helper.from_array(np.array(1.5, "float32"), "one_and_a_half"))
            model.graph.node[at].input[index] = "changed"
            model.graph.node.insert(at, helper.make_node("Mul", [read, "one_and_a_half"], ["changed"]))
            onnx.save(model, folder / "model.onnx")
            try:
                changed = not np.allclose(runtime_logits(folder / "model.onnx"), expected, atol=1e-5)
            except Exception:  # noqa: BLE001 (whole numbers are not multiplied by 1.5)
                continue
            if changed:
                with pytest.raises(CheckpointMismatchError):
                    convert(folder, tmp_path / "ours")
                refused += 1
    assert refused > 25


@pytest.mark.parametrize("kind", ["int16", "uint16", "int32"])
def test_quantised_bias_is_read_or_refused(tmp_path: Path, kind: str) -> None:
    """Static quantisation stores biases so, and rounds each product before its bias is added."""
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 21)
    model = onnx.load(folder / "model.onnx")
    name = "inner.bert.encoder.layer.0.attention.output.dense.bias"
    initializer = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    bias = numpy_helper.to_array(initializer)
    scale, zero = np.float32(np.abs(bias).max() / 2**14), 2**15 if kind == "uint16" else 0
    model.graph.initializer.remove(initializer)
    model.graph.initializer.extend([
        numpy_helper.from_array((np.round(bias / scale) + zero).astype(kind), "whole"),
        numpy_helper.from_array(np.array(zero, kind), "zero"),
        numpy_helper.from_array(scale, "scale"),
        numpy_helper.from_array(np.array(1.0, "float32"), "one"),
    ])  # fmt: skip
    sums = next(node for node in model.graph.node if name in node.input)
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["whole", "scale", "zero"], [name]))
    onnx.save(model, folder / "model.onnx")
    found = load_file(convert(folder, tmp_path / "placed").folder / "model.safetensors")
    converted = found["bert.encoder.layer.0.attention.output.dense.bias"].numpy()
    np.testing.assert_allclose(converted, bias, rtol=0, atol=float(scale))
    product = next(read for read in sums.input if read != name)
    at = list(model.graph.node).index(sums)
    sums.input[list(sums.input).index(product)] = "same"
    model.graph.node.insert(at, helper.make_node("Mul", [product, "one"], ["same"]))
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(
        CheckpointMismatchError,
        match=r"attention.output.LayerNorm reads the result of Add \S+ \(after Add \S+dense/Add",
    ):
        convert(folder, tmp_path / "ours")


@pytest.mark.parametrize("kind", ["int16", "int32", "int64"])
def test_integer_tensor_used_as_floats_is_refused(tmp_path: Path, kind: str) -> None:
    """Integer tensors of shapes and indices need no place in the model; one that is cast to floats does."""
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    model.graph.initializer.append(numpy_helper.from_array(np.arange(4, dtype=kind), "learned"))
    model.graph.node.append(helper.make_node("Cast", ["learned"], ["real"], to=1))
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=r"1 tables have no place in it \(learned \[4\]\)"):
        convert(folder, tmp_path / "ours")


def test_causal_mask_is_refused(tmp_path: Path) -> None:
    """BERT with is_decoder: its parameters are those of any BERT."""
    model = tiny_bert("tokens", is_decoder=True, use_cache=False)
    folder = export(model, tmp_path / "foreign", "traced", 17)
    with pytest.raises(
        CheckpointMismatchError, match=r"the weights of encoder\.layer\.0 .* are not those of all tokens but padding"
    ):
        convert(folder, tmp_path / "ours")


@pytest.mark.parametrize("change", ["swapped", "scaled"])
def test_swapped_or_scaled_start_and_end_logits_are_refused(tmp_path: Path, change: str) -> None:
    folder = export(tiny_bert("answers"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    split = next(node for node in model.graph.node if node.op_type == "Split")
    if change == "swapped":
        split.output[:] = list(split.output)[::-1]
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, "float32"), "half"))
        at = list(model.graph.node).index(split)
        model.graph.node.insert(at, helper.make_node("Mul", [split.input[0], "half"], ["halved"]))
        split.input[0] = "halved"
    onnx.save(model, folder / "model.onnx")
    message = "are no start and end" if change == "swapped" else "reads 0.5 times"
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(folder, tmp_path / "ours")


@pytest.mark.parametrize("table", ["word_embeddings", "token_type_embeddings", "position_embeddings"])
def test_changed_lookup_indices_are_refused(tmp_path: Path, table: str) -> None:
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    at, lookup = next(
        (at, node) for at, node in enumerate(model.graph.node) if f"{table}.weight" in "".join(node.input[:1])
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(1, "int64"), "further"))
    model.graph.node.insert(at, helper.make_node("Add", [lookup.input[1], "further"], ["moved"], name="by one"))
    lookup.input[1] = "moved"
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=rf"looks up {table} with the result of Add by one"):
        convert(folder, tmp_path / "ours")
