"""Differences that show only for some tokens, positions or values, what a file may omit, and the cost of running."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import NodeProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from safetensors.torch import load_file

from pellucid.checkpoints.convert import convert
from pellucid.errors import CheckpointMismatchError
from tests.checkpoints.convert.onnx_exports import (
    INPUTS,
    example_inputs,
    export,
    export_traced,
    fused,
    runtime_logits,
    tiny_bert,
)

CONSTANTS = {
    "three": 3, "four": 4, "twenty-four": 24, "twenty-five": 25, "fifty-nine": 59, "low": -5.0, "high": 5.0,
    "zero": 0.0, "tiny": 2.0**-24, "seven": [7], "far": [2**22], "square": [4096, 4096],
    "many axes": [3] * 2**16, "twenty": [0] * 20, "ends": [2**62] * 20,
}  # fmt: skip


def find(model: onnx.ModelProto, kind: str, at: int = 0, read: str = "") -> NodeProto:
    """An operation of a kind whose first input has `read` in its name."""
    return [node for node in model.graph.node if node.op_type == kind and read in node.input[0]][at]


def insert(model: onnx.ModelProto, node: NodeProto, index: int, *new: tuple[str, list[str], dict[str, int]]) -> None:
    """Inserts operations before an input of a node; each reads the previous output as "x", and CONSTANTS by name."""
    value, at = node.input[index], list(model.graph.node).index(node)
    for i, (kind, inputs, settings) in enumerate(new):
        inserted = helper.make_node(kind, [value if name == "x" else name for name in inputs], [f"new{i}"], **settings)
        model.graph.node.insert(at + i, inserted)
        value = f"new{i}"
    node.input[index] = value
    for name, number in CONSTANTS.items():
        kind = "float32" if isinstance(number, float) else "int64"
        model.graph.initializer.append(numpy_helper.from_array(np.array(number, kind), name))


QUERY_BIAS = "inner.bert.encoder.layer.0.attention.self.query.bias"

Change = Callable[[onnx.ModelProto], None]

CHANGES: dict[str, tuple[Change, str]] = {
    "one token for another": (
        lambda m: insert(m, find(m, "Gather", read="word_embeddings"), 1,
                             ("Equal", ["x", "three"], {}), ("Where", ["x", "four", "input_ids"], {})),
        "looks up word_embeddings with the result of Where",
    ),
    "the last tokens as one": (
        lambda m: insert(m, find(m, "Gather", read="word_embeddings"), 1, ("Min", ["x", "fifty-nine"], {})),
        "looks up word_embeddings with the result of Min",
    ),
    "late positions as one": (
        lambda m: insert(m, find(m, "Gather", read="position_embeddings"), 1, ("Min", ["x", "twenty-five"], {})),
        "looks up position_embeddings with the result of Min",
    ),
    "positions that begin again": (
        lambda m: insert(m, find(m, "Gather", read="position_embeddings"), 1, ("Mod", ["x", "twenty-four"], {})),
        "looks up position_embeddings with the result of Mod",
    ),
    "clipped scores": (
        lambda m: insert(m, find(m, "Softmax"), 0, ("Clip", ["x", "low", "high"], {})),
        "the weights of encoder.layer.0",
    ),
    "scores clipped before the mask": (
        lambda m: insert(m, find(m, "Add", read="self/Mul_output"), 0, ("Clip", ["x", "low", "high"], {})),
        "the weights of encoder.layer.0",
    ),
    "a bias added twice": (
        lambda m: insert(m, find(m, "Add", read="query.bias"), 1, ("Add", ["x", QUERY_BIAS], {})),
        "the weights of encoder.layer.0",
    ),
    "a product in whole numbers": (
        lambda m: insert(m, find(m, "Add", read="query.bias"), 1, ("Cast", ["x"], {"to": 7}),
                             ("Cast", ["x"], {"to": 1})),
        "the weights of encoder.layer.0|its scores are multiplied",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_rare_changes_are_refused(tmp_path: Path, case: str) -> None:
    change, message = CHANGES[case]
    folder = export(tiny_bert("tokens", attn_implementation="eager"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    change(model)
    onnx.save(model, folder / "model.onnx")
    runtime_logits(folder / "model.onnx")  # it runs
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(folder, tmp_path / "ours")


class CustomMask(torch.nn.Module):
    """A BERT whose attention mask hides more than padding."""

    def __init__(self, model: torch.nn.Module, allowed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.allowed = model, allowed

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        mask = inputs[1][:, None, None] * self.allowed(inputs[0], torch.arange(inputs[0].shape[1]))
        added = (1.0 - mask.float()) * -10000.0
        return self.inner(inputs[0], attention_mask=added, token_type_ids=inputs[2], return_dict=False)[0]


@pytest.mark.parametrize("width", [10, 30])
def test_windowed_attention_is_refused(tmp_path: Path, width: int) -> None:
    model = tiny_bert("tokens", attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    windowed = CustomMask(
        model, lambda ids, positions: ((positions - positions[:, None]).abs() <= width).long()[None, None]
    )
    export_traced(windowed, folder / "model.onnx", 17)
    with pytest.raises(CheckpointMismatchError, match="not those of all tokens but padding"):
        convert(folder, tmp_path / "ours")


def test_wide_window_is_refused(tmp_path: Path) -> None:
    model = tiny_bert("tokens", attn_implementation="eager", max_position_embeddings=300)
    folder = export(model, tmp_path / "foreign", "traced", 17)
    windowed = CustomMask(
        model, lambda ids, positions: ((positions - positions[:, None]).abs() <= 200).long()[None, None]
    )
    export_traced(windowed, folder / "model.onnx", 17)
    with pytest.raises(CheckpointMismatchError, match=r"layer\.0\.attention\.output\.dense reads the result of"):
        convert(folder, tmp_path / "ours")


def test_fully_masked_padding_is_accepted(tmp_path: Path) -> None:
    """Its attention weights are NaN, and no other token attends to it."""

    class FullyMasked(CustomMask):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            is_text = inputs[1].bool()
            allowed = is_text[:, None, :, None] & is_text[:, None, None]
            added = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
            return self.inner(inputs[0], attention_mask=added, token_type_ids=inputs[2], return_dict=False)[0]

    model = tiny_bert("tokens", attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(FullyMasked(model, lambda ids, positions: ids), folder / "model.onnx", 17)
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    assert torch.equal(found["classifier.weight"], model.classifier.weight)


def test_mask_by_a_special_token_is_refused(tmp_path: Path) -> None:
    model = tiny_bert("tokens", attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(CustomMask(model, lambda ids, positions: (ids != 3).long()[:, None, None]), folder / "model.onnx", 17)
    with pytest.raises(CheckpointMismatchError, match="not those of all tokens but padding"):
        convert(folder, tmp_path / "ours")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("UINT8", "looks up word_embeddings with the result of Cast"),
        ("FLOAT16", "looks up word_embeddings with the result of Cast"),
        ("BFLOAT16", "looks up word_embeddings with the result of Cast"),
        ("INT4", "it casts to ONNX's type 22"),
    ],
)
def test_ids_cast_to_a_narrow_type_are_refused(tmp_path: Path, kind: str, message: str) -> None:
    folder = export(tiny_bert("tokens", vocab_size=2100), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    narrow = [("Cast", ["x"], {"to": onnx.TensorProto.DataType.Value(kind)}), ("Cast", ["x"], {"to": 7})]
    insert(model, find(model, "Gather", read="word_embeddings"), 1, *narrow)
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(folder, tmp_path / "ours")


@pytest.mark.parametrize(("start", "end"), [(0, 200), (-200, 2**62)])
def test_output_of_only_part_of_a_long_text_is_refused(tmp_path: Path, start: int, end: int) -> None:
    folder = export(tiny_bert("tokens", max_position_embeddings=300), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    for name, number in (("start", start), ("end", end), ("tokens", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([number], "int64"), name))
    output = model.graph.output[0].name
    model.graph.node.append(helper.make_node("Slice", [output, "start", "end", "tokens"], ["part"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("part", 1, None))
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=f"it cuts an axis from {start} to {end}"):
        convert(folder, tmp_path / "ours")


@pytest.mark.parametrize(("opset", "fits"), [(12, False), (17, True)])
def test_default_softmax_axis_depends_on_the_opset(tmp_path: Path, opset: int, fits: bool) -> None:
    """Before opset 13 the default is axis 1, into which the later axes are flattened."""
    folder = export(tiny_bert("tokens", attn_implementation="eager"), tmp_path / "foreign", "traced", opset)
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        if node.op_type == "Softmax":
            del node.attribute[:]
    onnx.save(model, folder / "model.onnx")
    if fits:
        convert(folder, tmp_path / "ours")
    else:
        with pytest.raises(CheckpointMismatchError, match=r"Softmax .*: its softmax is over axis 1"):
            convert(folder, tmp_path / "ours")


# -- what a file may omit ----------------------------------------------------------------------------------------------


class OrderedInputs(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.inner, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.inner(**dict(zip(self.names, inputs)), return_dict=False)


@pytest.mark.parametrize("names", [["input_ids"], ["input_ids", "attention_mask"], ["input_ids", "token_type_ids"]])
def test_graph_without_mask_or_token_types_is_converted(tmp_path: Path, names: list[str]) -> None:
    model = tiny_bert("tokens")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(OrderedInputs(model, names), folder / "model.onnx", 17, names=names)
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in model.named_parameters())


def test_unused_token_types_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    lookup = find(model, "Gather", read="token_type_embeddings")
    insert(model, lookup, 1, ("Sub", ["x", "x"], {}))
    lookup_of_words = find(model, "Gather", read="word_embeddings")
    assert lookup_of_words.input[1] == "input_ids"
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match="looks up token_type_embeddings with the result of Sub"):
        convert(folder, tmp_path / "ours")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 37), "int64"), "no types"))
    lookup.input[1] = "cut types"
    cut = [
        helper.make_node("Shape", ["input_ids"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "axis one"], ["length"]),
        helper.make_node("Slice", ["no types", "axis none", "length", "axis one"], ["cut types"]),
    ]
    for name, number in (("axis one", 1), ("axis none", 0)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([number], "int64"), name))
    for node in reversed(cut):
        model.graph.node.insert(0, node)
    onnx.save(model, folder / "model.onnx")
    convert(folder, tmp_path / "ours")
    assert "its input token_type_ids says no types of tokens; the new folder reads them" in caplog.text


# -- equivalent graphs -------------------------------------------------------------------------------------------------


class CalibrationData(CalibrationDataReader):
    def __init__(self) -> None:
        self.left = 3

    def get_next(self) -> dict[str, np.ndarray] | None:
        self.left -= 1
        return {name: value.numpy() for name, value in zip(INPUTS, example_inputs())} if self.left >= 0 else None


@pytest.mark.parametrize("head", ["tokens", "sequence"])
def test_statically_quantised_products_are_converted(tmp_path: Path, head: str) -> None:
    """Static quantisation: a pair of operations rounds a product before its bias is added or its tanh is taken."""
    model = tiny_bert(head)
    folder = export(model, tmp_path / "foreign", "traced", 17)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        quantize_static(folder / "model.onnx", folder / "rounded", CalibrationData(), quant_format=QuantFormat.QDQ)
    (folder / "rounded").replace(folder / "model.onnx")
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    for name, value in model.named_parameters():
        assert (found[name] - value).abs().max() <= value.abs().max() / 120, name


def test_cast_between_a_product_and_its_bias_is_converted(tmp_path: Path) -> None:
    """As in mixed precision."""
    model = tiny_bert("tokens")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    foreign = onnx.load(folder / "model.onnx")
    insert(foreign, find(foreign, "Add", read="query.bias"), 1, ("Cast", ["x"], {"to": 11}), ("Cast", ["x"], {"to": 1}))
    onnx.save(foreign, folder / "model.onnx")
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    assert torch.equal(found[QUERY_BIAS.removeprefix("inner.")], model.get_parameter(QUERY_BIAS.removeprefix("inner.")))


@pytest.mark.parametrize("half", [False, True])
def test_multi_head_attention_with_fused_biases_is_converted(tmp_path: Path, half: bool) -> None:
    model = tiny_bert("tokens", attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    model_file = fused(folder, multi_head=True)
    if half:
        model_file.convert_float_to_float16(keep_io_types=True)
    model_file.save_model_to_file(str(folder / "model.onnx"))
    assert "MultiHeadAttention" in {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    for name, value in model.named_parameters():
        assert torch.allclose(found[name].float(), value, atol=2e-3 if half else 0, rtol=0), name


# -- the cost of running -----------------------------------------------------------------------------------------------

EXPENSIVE: dict[str, tuple[list[tuple[str, list[str], dict[str, int]]], str]] = {
    "a table of many axes": ([("ConstantOfShape", ["many axes"], {})], "it has 65,536 sizes or axes"),
    "a table spread over many axes": ([("Expand", ["zero", "many axes"], {})], "it has 65,536 sizes or axes"),
    "a huge table": (
        [("Expand", ["zero", "far"], {}), ("Tile", ["x", "seven"], {}), ("Tile", ["x", "seven"], {})],
        "makes",
    ),
    "a fine range": ([("Range", ["zero", "high", "tiny"], {})], r"it makes a value of \[8388608"),
    "twenty cuts": ([("Slice", ["x", "twenty", "ends", "twenty"], {})], "it has 20 sizes or axes"),
    "an index into a scalar": ([("Size", ["x"], {}), ("Gather", ["x", "three"], {})], "it indexes a scalar"),
    "too many products": ([("Expand", ["zero", "square"], {}), ("MatMul", ["x", "x"], {})], "68,719,476,736 products"),
    "a long chain": ([("Identity", ["x"], {})] * 2_000, "more than 120 operations lie on the way"),
}


@pytest.mark.parametrize("case", EXPENSIVE)
def test_expensive_graphs_are_refused(tmp_path: Path, case: str) -> None:
    nodes, message = EXPENSIVE[case]
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    norm = find(model, "LayerNormalization")
    insert(model, norm, 0, *nodes)
    total = helper.make_node("Sum", [norm.input[0], find(model, "Add", at=1).output[0]], ["both"])
    model.graph.node.insert(list(model.graph.node).index(norm), total)
    norm.input[0] = "both"
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(folder, tmp_path / "ours")


def test_width_that_differs_from_the_config_is_refused(tmp_path: Path) -> None:
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)
    config = (folder / "config.json").read_text().replace('"hidden_size": 32', '"hidden_size": 64')
    (folder / "config.json").write_text(config)
    with pytest.raises(CheckpointMismatchError, match=r"it is 32 wide, config\.json says hidden_size 64"):
        convert(folder, tmp_path / "ours")
