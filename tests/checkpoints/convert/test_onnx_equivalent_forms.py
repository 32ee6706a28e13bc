"""One computation, in many forms: activations, positions, heads and fused products of several exporters."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.helper import make_attribute, make_node
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from safetensors.torch import load_file

from pellucid import load
from pellucid.checkpoints.convert import convert
from pellucid.errors import CheckpointMismatchError
from tests.checkpoints.convert.onnx_exports import (
    HEADS,
    INPUTS,
    example_inputs,
    export,
    export_traced,
    fused,
    runtime_logits,
    tiny_bert,
)


def set_config(folder: Path, **values: object) -> None:
    """Sets keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def reference_logits(folder: Path, head: str) -> np.ndarray:
    with torch.no_grad():
        return HEADS[head].from_pretrained(folder)(*example_inputs()).logits.numpy()


@pytest.mark.parametrize(("older", "current"), [("gelu_python", "gelu"), ("gelu_fast", "gelu_new"), ("swish", "silu")])
def test_older_activation_names_are_replaced(tmp_path: Path, older: str, current: str) -> None:
    folder = export(tiny_bert("tokens", hidden_act=older), tmp_path / "foreign", "traced", 17)
    result = convert(folder, tmp_path / "ours").folder
    assert json.loads((result / "config.json").read_text())["hidden_act"] == current
    assert load(result).config.feed_forward.hidden_act == current  # it once failed to load
    np.testing.assert_allclose(
        reference_logits(result, "tokens"), runtime_logits(folder / "model.onnx"), rtol=0, atol=1e-5
    )


def test_tanh_gelu_is_distinguished_from_gelu(tmp_path: Path) -> None:
    """From opset 20 on, both are one operation with an attribute."""
    folder = export(tiny_bert("tokens", hidden_act="gelu_pytorch_tanh"), tmp_path / "foreign", "traced", 20)
    assert "Gelu" in {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    result = convert(folder, tmp_path / "ours").folder
    np.testing.assert_allclose(
        reference_logits(result, "tokens"), runtime_logits(folder / "model.onnx"), rtol=0, atol=1e-5
    )
    set_config(folder, hidden_act="gelu")
    with pytest.raises(CheckpointMismatchError, match=r"uses gelu_new where config.json says hidden_act gelu"):
        convert(folder, tmp_path / "other")


def test_unknown_activation_is_refused(tmp_path: Path) -> None:
    folder = export(tiny_bert("tokens", hidden_act="relu"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        node.op_type = node.op_type.replace("Relu", "Softsign")
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=r"no activation that is known where .* hidden_act relu"):
        convert(folder, tmp_path / "ours")


def test_position_ids_as_an_input_are_converted(tmp_path: Path) -> None:
    model = tiny_bert("tokens")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    foreign = onnx.load(folder / "model.onnx")
    lookup = next(node for node in foreign.graph.node if "position_embeddings.weight" in "".join(node.input[:1]))
    lookup.input[1] = "position_ids"
    foreign.graph.input.append(onnx.helper.make_tensor_value_info("position_ids", 7, ["batch", "seq"]))
    onnx.save(foreign, folder / "model.onnx")
    result = convert(folder, tmp_path / "ours").folder
    expected = dict(model.named_parameters())
    found = dict(HEADS["tokens"].from_pretrained(result).named_parameters())
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("num_heads", 8, "it has 8 heads, config.json says 4"),
        ("unidirectional", 1, "is causal, has a past, or"),
        ("mask_filter_value", -1.0, "masks its scores in another way"),
        ("do_rotary", 1, "is causal, has a past, or"),
        ("scale", 0.5, "scales or masks its scores in another way"),
    ],
)
def test_other_settings_of_a_fused_attention_are_refused(
    tmp_path: Path, setting: str, value: Any, message: str
) -> None:
    folder = export(tiny_bert("tokens", attn_implementation="eager"), tmp_path / "foreign", "traced", 17)
    model = fused(folder).model
    for node in (node for node in model.graph.node if node.op_type == "Attention"):
        others = [one for one in node.attribute if one.name != setting]
        del node.attribute[:]
        node.attribute.extend([*others, make_attribute(setting, value)])
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(folder, tmp_path / "ours")


@pytest.mark.parametrize(("kind", "place"), [("Attention", 4), ("MultiHeadAttention", 6), ("MultiHeadAttention", 7)])
def test_fused_attention_with_keys_of_an_earlier_pass_is_refused(tmp_path: Path, kind: str, place: int) -> None:
    folder = export(tiny_bert("tokens", attn_implementation="eager"), tmp_path / "foreign", "traced", 17)
    model = fused(folder, multi_head=kind == "MultiHeadAttention").model
    onnx.save(model, folder / "model.onnx")
    convert(folder, tmp_path / "without")
    for node in (node for node in model.graph.node if node.op_type == kind):
        node.input[:] = [*node.input, *[""] * place][:place] + node.input[:1]
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match="has a past, or scales"):
        convert(folder, tmp_path / "ours")


def test_attention_of_onnx_itself_is_converted(tmp_path: Path) -> None:
    """From opset 23 on, PyTorch's exporter writes attention as one operation, which can mask keys in other ways."""
    original = tiny_bert("tokens")
    folder = export(original, tmp_path / "foreign", "captured", 23)
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in original.named_parameters())
    unchanged = (folder / "model.onnx").read_bytes()
    lengths = ["", "", "attention_mask"]
    windows = [make_attribute(f"{side}_window_size", 300) for side in ("left", "right")]
    for inputs, attributes in ((lengths, []), *(([], [window]) for window in windows)):
        model = onnx.load_from_string(unchanged)
        node = next(node for node in model.graph.node if node.op_type == "Attention")
        node.input.extend(inputs)
        node.attribute.extend(attributes)
        onnx.save(model, folder / "model.onnx")
        with pytest.raises(CheckpointMismatchError, match="is causal, has a past, or scales or masks its scores"):
            convert(folder, tmp_path / "other")


def test_product_fused_with_its_activation_is_converted(tmp_path: Path) -> None:
    """ONNX Runtime's FusedGemm: the pooler's product includes its tanh."""
    folder = export(tiny_bert("sequence"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    expected = runtime_logits(folder / "model.onnx")
    product = next(node for node in model.graph.node if node.op_type == "Gemm" and "pooler" in node.input[1])
    tanh = next(node for node in model.graph.node if node.op_type == "Tanh")
    product.op_type, product.domain = "FusedGemm", "com.microsoft"
    product.attribute.append(make_attribute("activation", "Tanh"))
    product.output[:] = tanh.output
    model.graph.node.remove(tanh)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, folder / "model.onnx")
    np.testing.assert_allclose(expected, runtime_logits(folder / "model.onnx"), rtol=0, atol=1e-6)
    result = convert(folder, tmp_path / "ours").folder
    np.testing.assert_allclose(reference_logits(result, "sequence"), expected, rtol=0, atol=1e-5)
    last = [node for node in model.graph.node if node.op_type == "Gemm"][-1]
    last.op_type, last.domain = "FusedGemm", "com.microsoft"
    last.attribute.append(make_attribute("activation", "Relu"))
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match="an activation follows classifier"):
        convert(folder, tmp_path / "other")


def test_operand_read_only_for_its_type_is_ignored(tmp_path: Path) -> None:
    """Unoptimised exports cast the scale of the scores to the query's type; the key still has one product."""
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    at = next(i for i, node in enumerate(model.graph.node) if node.op_type == "Softmax")
    product = next(i for i in range(at, -1, -1) if model.graph.node[i].op_type == "MatMul")
    query, key = model.graph.node[product].input
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1.0, "float32"), "one"))
    model.graph.node[product].input[1] = "scaled"
    model.graph.node.insert(product, make_node("Mul", [key, "cast"], ["scaled"]))
    model.graph.node.insert(product, make_node("CastLike", ["one", query], ["cast"]))
    onnx.save(model, folder / "model.onnx")
    result = convert(folder, tmp_path / "ours").folder
    np.testing.assert_allclose(
        reference_logits(result, "tokens"), runtime_logits(folder / "model.onnx"), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(("stated", "stored"), [(1e-12, 1e-7), (1e-5, 1e-5)])
def test_epsilon_rounded_to_half_precision_is_accepted(tmp_path: Path, stated: float, stored: float) -> None:
    """Older opsets write norms out, and optimisers round their epsilon to half precision."""
    folder = export(tiny_bert("tokens", layer_norm_eps=stored).half(), tmp_path / "foreign", "traced", 14)
    assert "Sqrt" in {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    model = onnx.load(folder / "model.onnx")
    for tensor in [node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"]:
        numbers = onnx.numpy_helper.to_array(tensor)
        if numbers.size == 1 and numbers.dtype == np.float32 and 0 < numbers < 1e-4:
            tensor.CopyFrom(onnx.numpy_helper.from_array(numbers.astype("float16").astype("float32")))
    onnx.save(model, folder / "model.onnx")
    set_config(folder, layer_norm_eps=stated)
    result = convert(folder, tmp_path / "ours").folder
    assert json.loads((result / "config.json").read_text())["layer_norm_eps"] == stated
    set_config(folder, layer_norm_eps=1e-3)
    with pytest.raises(CheckpointMismatchError, match=r"says layer_norm_eps 0\.001"):
        convert(folder, tmp_path / "other")


def test_silu_written_as_quick_gelu_is_recognised(tmp_path: Path) -> None:
    """ONNX Runtime's optimiser turns x * sigmoid(x) into QuickGelu with an alpha of 1."""
    folder = export(tiny_bert("tokens", hidden_act="silu"), tmp_path / "foreign", "traced", 17)
    expected = runtime_logits(folder / "model.onnx")
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    settings.optimized_model_filepath = str(folder / "optimised")
    onnxruntime.InferenceSession(folder / "model.onnx", settings, providers=["CPUExecutionProvider"])
    (folder / "optimised").replace(folder / "model.onnx")
    model = onnx.load(folder / "model.onnx")
    gates = [node for node in model.graph.node if node.op_type == "QuickGelu"]
    assert len(gates) == 2
    result = convert(folder, tmp_path / "ours").folder
    np.testing.assert_allclose(reference_logits(result, "tokens"), expected, rtol=0, atol=1e-5)
    gates[0].attribute[0].f = 1.702
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match="no activation that is known"):
        convert(folder, tmp_path / "other")


def test_tied_embeddings_under_the_name_of_the_head_are_converted(tmp_path: Path) -> None:
    """The export stores tied embeddings once, by the head's name; low-bit quantisation makes two tensors of them."""
    folder = export(tiny_bert("words"), tmp_path / "foreign", "captured")
    names = {tensor.name for tensor in onnx.load(folder / "model.onnx").graph.initializer}
    assert "cls.predictions.decoder.weight" in names and not any("word_embeddings" in name for name in names)
    settings = DefaultWeightOnlyQuantConfig(block_size=16, is_symmetric=True, bits=4)
    quantizer = MatMulNBitsQuantizer(onnx.load(folder / "model.onnx"), algo_config=settings)
    quantizer.process()
    quantizer.model.save_model_to_file(str(folder / "model.onnx"))
    result = convert(folder, tmp_path / "ours").folder
    np.testing.assert_allclose(
        reference_logits(result, "words"), runtime_logits(folder / "model.onnx"), rtol=0, atol=1e-5
    )


class SeparateLogits(torch.nn.Module):
    """Returns the start and end logits by index, or split and with both in one tensor as a third output."""

    def __init__(self, model: torch.nn.Module, split: bool) -> None:
        super().__init__()
        self.inner, self.split = model, split

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = self.inner.qa_outputs(self.inner.bert(**dict(zip(INPUTS, inputs)), return_dict=False)[0])
        return (*logits.split(1, -1), logits) if self.split else (logits[..., 0], logits[..., 1])


@pytest.mark.parametrize("split", [True, False])
def test_start_and_end_logits_are_recognised(tmp_path: Path, split: bool) -> None:
    model = tiny_bert("answers")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(SeparateLogits(model, split), folder / "model.onnx", 17)
    result = convert(folder, tmp_path / "ours").folder
    assert json.loads((result / "config.json").read_text())["architectures"] == ["BertForQuestionAnswering"]


@pytest.mark.parametrize("outputs", [1, 2])
def test_two_labels_that_are_split_and_joined_again_stay_labels(tmp_path: Path, outputs: int) -> None:
    """Also where the joined logits are returned twice."""
    folder = export(tiny_bert("tokens", num_labels=2), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    (logits,) = model.graph.output
    model.graph.node[-1].output[:] = ["joined"]
    model.graph.node.extend([
        onnx.helper.make_node("Split", ["joined"], ["first", "second"], axis=-1),
        onnx.helper.make_node("Concat", ["first", "second"], [logits.name], axis=-1),
        onnx.helper.make_node("Identity", [logits.name], ["again"]),
    ])  # fmt: skip
    model.graph.output.extend([onnx.helper.make_tensor_value_info("again", 1, None)] * (outputs - 1))
    onnx.save(model, folder / "model.onnx")
    result = convert(folder, tmp_path / "ours").folder
    assert json.loads((result / "config.json").read_text())["architectures"] == ["BertForTokenClassification"]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_changed_score_scale_is_refused(tmp_path: Path, attention: str) -> None:
    """Written out, attention scales its scores by a constant of the graph, before or after the product."""
    model = tiny_bert("tokens")
    model.set_attn_implementation(attention)
    folder = export(model, tmp_path / "foreign", "traced", 17)
    convert(folder, tmp_path / "ours")
    foreign = onnx.load(folder / "model.onnx")
    root = 8**-0.25 if attention == "sdpa" else 8**-0.5
    scales = [
        attribute.t
        for node in foreign.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if (scale := onnx.numpy_helper.to_array(attribute.t)).size == 1 and np.allclose(scale, root)
    ]
    assert scales
    for scale in scales:
        scale.CopyFrom(onnx.numpy_helper.from_array(np.array(0.25, "float32")))
    onnx.save(foreign, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=r"scores are multiplied by 0\.\d+ .* means 0.3536"):
        convert(folder, tmp_path / "other")
