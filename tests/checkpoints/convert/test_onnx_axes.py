"""A graph that moves values along an axis is refused; one that ends with BERT's values is read, however written."""

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import load_file

from pellucid.checkpoints.convert import convert
from pellucid.errors import CheckpointMismatchError
from tests.checkpoints.convert.onnx_exports import (
    HEADS,
    NamedInputs,
    example_inputs,
    export,
    export_traced,
    runtime_logits,
    tiny_bert,
)
from tests.quick import few

CHANGES = ("reversed last axis", "reversed tokens", "reversed texts", "shifted", "cut off")


def change_nodes(change: str, read: str, number: int) -> list[onnx.NodeProto]:
    """Operations that compute `changed`, of the same shape, from a value."""
    if change == "cut off":
        return [helper.make_node("Min", [read, "small"], ["changed"])]
    if change == "shifted":  # rotates the last axis by one
        return [
            helper.make_node("Slice", [read, "one", "endless", "last"], ["most"]),
            helper.make_node("Slice", [read, "zero", "one", "last"], ["rest"]),
            helper.make_node("Concat", ["most", "rest"], ["changed"], axis=-1),
        ]
    axis = {"reversed last axis": "last", "reversed tokens": "last but one"}.get(change, "zero")
    return [helper.make_node("Slice", [read, "last", "endless below", axis, "last"], ["changed"])]


def changed_graphs(plain: onnx.ModelProto, change: str) -> Iterator[onnx.ModelProto]:
    """Yields the graph with the change before each input of its first layer in turn."""
    numbers = {"zero": 0, "one": 1, "last": -1, "last but one": -2, "endless": 2**62, "endless below": -(2**62)}
    initializers = [numpy_helper.from_array(np.array([number], "int64"), name) for name, number in numbers.items()]
    initializers.append(numpy_helper.from_array(np.array(0.01, "float32"), "small"))
    shapes = {value.name for value in onnx.shape_inference.infer_shapes(plain).graph.value_info}
    tables = {tensor.name for tensor in plain.graph.initializer}
    for at, node in list(enumerate(plain.graph.node))[5:75]:
        for index, read in enumerate(node.input):
            if read not in shapes - tables or node.op_type in ("Shape", "Concat", "Unsqueeze", "Squeeze"):
                continue
            model = copy.deepcopy(plain)
            model.graph.initializer.extend(initializers)
            model.graph.node[at].input[index] = "changed"
            for one in reversed(change_nodes(change, read, at)):
                model.graph.node.insert(at, one)
            yield model


@pytest.mark.parametrize("change", few(list(CHANGES), ["reversed last axis"]))
def test_values_moved_along_an_axis_are_refused(tmp_path: Path, change: str) -> None:
    """ONNX Runtime shows which changes alter the outputs of tokens that are no padding; each of these is refused."""
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "captured")
    path, is_text = folder / "model.onnx", example_inputs()[1].numpy().astype(bool)
    plain, expected = onnx.load(path), runtime_logits(path)[is_text]
    refused = 0
    for model in changed_graphs(plain, change):
        onnx.save(model, path)
        try:
            other = runtime_logits(path)[is_text]
        except Exception:  # noqa: BLE001 (a value without so many axes, or of another type)
            continue
        if not np.allclose(other, expected, atol=1e-4):
            with pytest.raises(CheckpointMismatchError):
                convert(folder, tmp_path / "ours")
            refused += 1
    assert refused > 15


def with_attributes(folder: Path, kind: str, at: int, **settings: object) -> Path:
    """Changes the attributes of one operation of a kind."""
    model = onnx.load(folder / "model.onnx")
    node = [node for node in model.graph.node if node.op_type == kind][at]
    others = [one for one in node.attribute if one.name not in settings]
    del node.attribute[:]
    node.attribute.extend([*others, *(helper.make_attribute(name, value) for name, value in settings.items())])
    onnx.save(model, folder / "model.onnx")
    return folder


class Interleaved(torch.nn.Module):
    """A BERT whose query projections interleave the values of their heads."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.inner = NamedInputs(model)
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.register_forward_hook(
                lambda part, inputs, made: made.unflatten(-1, (8, 4)).transpose(-1, -2).flatten(-2)
            )

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.inner(*inputs)


def test_interleaved_heads_are_refused(tmp_path: Path) -> None:
    model = tiny_bert("tokens")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(Interleaved(model), folder / "model.onnx", 17)
    with pytest.raises(CheckpointMismatchError, match=r"weights of encoder\.layer\.0|the attention of query, key and"):
        convert(folder, tmp_path / "ours")


MASKS = {
    "of queries": lambda mask: mask[:, None, :, None].expand(-1, 1, -1, mask.shape[1]),
    "reversed": lambda mask: mask.flip(1)[:, None, None],
    "of the first text": lambda mask: mask[:1, None, None].expand(mask.shape[0], -1, -1, -1),
    "of the number of tokens": lambda mask: (mask.sum(1, keepdim=True) > 3).expand(-1, mask.shape[1])[:, None, None],
}


class Masked(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, mask: str) -> None:
        super().__init__()
        self.inner, self.mask = model, MASKS[mask]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        added = (1.0 - self.mask(inputs[1]).float()) * -10000.0
        return self.inner(inputs[0], attention_mask=added, token_type_ids=inputs[2], return_dict=False)[0]


@pytest.mark.parametrize("mask", MASKS)
def test_mask_of_anything_but_key_padding_is_refused(tmp_path: Path, mask: str) -> None:
    model = tiny_bert("tokens", attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(Masked(model, mask), folder / "model.onnx", 17)
    with pytest.raises(CheckpointMismatchError, match=r"not those of all tokens but padding"):
        convert(folder, tmp_path / "ours")


def test_norm_over_another_axis_is_refused(tmp_path: Path) -> None:
    folder = with_attributes(
        export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17), "LayerNormalization", 1, axis=1
    )
    with pytest.raises(CheckpointMismatchError, match=r"is not a norm of each token"):
        convert(folder, tmp_path / "ours")


def test_active_dropout_is_refused(tmp_path: Path) -> None:
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    at = next(i for i, node in enumerate(model.graph.node) if node.op_type == "Softmax")
    weights = model.graph.node[at].output[0]
    for node in model.graph.node:
        node.input[:] = ["dropped" if name == weights else name for name in node.input]
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, "float32"), "ratio"))
    for training in (False, True):
        one = copy.deepcopy(model)
        one.graph.initializer.append(numpy_helper.from_array(np.array(training), "training"))
        one.graph.node.insert(at + 1, helper.make_node("Dropout", [weights, "ratio", "training"], ["dropped"]))
        onnx.save(one, folder / "model.onnx")
        if training:
            with pytest.raises(CheckpointMismatchError, match="it applies dropout"):
                convert(folder, tmp_path / "ours")
        else:
            convert(folder, tmp_path / "plain")


# -- equivalent graphs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", few(["BASIC", "EXTENDED", "ALL"], ["ALL"]))
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("head", few(list(HEADS), ["tokens"]))
def test_graphs_optimised_by_onnx_runtime_are_converted(tmp_path: Path, head: str, half: bool, level: str) -> None:
    """Including its softmax in half precision, which it writes as five operations."""
    model = tiny_bert(head, attn_implementation="eager")
    folder = export(model.half() if half else model, tmp_path / "foreign", "traced", 14)
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    settings.optimized_model_filepath, settings.log_severity_level = str(folder / "optimised"), 4
    onnxruntime.InferenceSession(folder / "model.onnx", settings, providers=["CPUExecutionProvider"])
    (folder / "optimised").replace(folder / "model.onnx")
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    expected = dict(model.named_parameters())
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_graph_of_fixed_sizes_is_converted(tmp_path: Path) -> None:
    """Exported without dynamic axes, so that every shape is a constant of the file."""
    model = tiny_bert("sequence")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(NamedInputs(model), folder / "model.onnx", 17, dynamic=False)
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in model.named_parameters())


class FirstToken(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.inner = NamedInputs(model)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(*inputs)[0][:, 0]


def test_graph_that_returns_only_the_first_token_is_converted(tmp_path: Path) -> None:
    """As in exports of sentence encoders."""
    model = tiny_bert("base")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(FirstToken(model), folder / "model.onnx", 17)
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    expected = {name: value for name, value in model.named_parameters() if "pooler" not in name}
    assert found.keys() == expected.keys() and all(torch.equal(found[name], value) for name, value in expected.items())
