"""Low-bit models: the converted model computes what ONNX Runtime computes with the quantised weights."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from safetensors.torch import load_file

from pellucid.checkpoints.convert import convert
from pellucid.checkpoints.convert.constants import dequantise
from pellucid.checkpoints.convert.low_bit import unpack_blocks
from tests.checkpoints.convert.onnx_exports import HEADS, example_inputs, export, runtime_logits, tiny_bert


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token classifier in full precision."""
    return export(tiny_bert("tokens"), tmp_path_factory.mktemp("plain"), "traced", 17)


def model_path_beside(plain: Path, name: str) -> Path:
    """The path of another model, in a folder of its own with the same config.json and vocabulary."""
    folder = plain.parent / name
    folder.mkdir()
    for file in ("config.json", "vocab.txt"):
        (folder / file).write_bytes((plain / file).read_bytes())
    return folder / "model.onnx"


def reference_logits(folder: Path) -> np.ndarray:
    """The reference's logits for a converted folder."""
    with torch.no_grad():
        return HEADS["tokens"].from_pretrained(folder)(*example_inputs()).logits.numpy()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 32)])
def test_block_quantised_products_match_onnx_runtime(
    plain: Path, tmp_path: Path, bits: int, block: int, symmetric: bool
) -> None:
    path = model_path_beside(plain, f"blocks{bits}-{block}-{symmetric}")
    settings = DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=symmetric, bits=bits)
    quantizer = MatMulNBitsQuantizer(onnx.load(plain / "model.onnx"), algo_config=settings)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path))
    assert any(node.op_type == "MatMulNBits" for node in onnx.load(path).graph.node)
    result = convert(path, tmp_path / "ours")
    np.testing.assert_allclose(reference_logits(result.folder), runtime_logits(path), rtol=0, atol=1e-5)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_dynamically_quantised_model_is_close_to_onnx_runtime(
    plain: Path, tmp_path: Path, kind: QuantType, per_channel: bool
) -> None:
    """8-bit products and 8-bit embeddings; activations are 8-bit there, and floats here."""
    path = model_path_beside(plain, f"bytes-{kind}-{per_channel}")
    quantize_dynamic(plain / "model.onnx", path, weight_type=kind, per_channel=per_channel)
    assert any(node.op_type == "MatMulInteger" for node in onnx.load(path).graph.node)
    result = convert(path, tmp_path / "ours")
    before, after = load_file(convert(plain, tmp_path / "full").folder / "model.safetensors"), None
    after = load_file(result.folder / "model.safetensors")
    assert after.keys() == before.keys()
    for name, value in after.items():
        step = (before[name].max() - before[name].min()) / 127
        assert (value - before[name]).abs().max() <= step, name
    assert not torch.equal(
        after["bert.embeddings.word_embeddings.weight"], before["bert.embeddings.word_embeddings.weight"]
    )
    np.testing.assert_allclose(reference_logits(result.folder), runtime_logits(path), rtol=0, atol=0.2)


def test_dequantised_tensors_before_products_match_onnx_runtime(plain: Path, tmp_path: Path) -> None:
    """DequantizeLinear before MatMul, per tensor and per axis, with and without a zero point; or Cast and Mul."""
    path, model = model_path_beside(plain, "dequantised"), onnx.load(plain / "model.onnx")
    tables = {t.name: t for t in model.graph.initializer if len(t.dims) == 2}
    for i, (name, tensor) in enumerate(sorted(tables.items())):
        _quantise(model.graph, tensor, per_axis=i % 2 == 0, with_zero=i % 3 == 0)
        assert name.endswith(tuple("0123456789t"))
    onnx.save(model, path)
    np.testing.assert_allclose(
        reference_logits(convert(path, tmp_path / "ours").folder), runtime_logits(path), rtol=0, atol=1e-5
    )


def _quantise(graph: onnx.GraphProto, tensor: onnx.TensorProto, *, per_axis: bool, with_zero: bool) -> None:
    values, name = onnx.numpy_helper.to_array(tensor), tensor.name
    scale = np.abs(values).max(axis=0 if per_axis else None).astype("float32") / 127
    parts = {"quantised": np.round(values / scale).astype("int8"), "scale": scale}
    if with_zero:
        parts["quantised"] = np.clip(parts["quantised"].astype("int32") + 128, 0, 255).astype("uint8")
        parts["zero"] = np.full(scale.shape, 128, "uint8")
    graph.initializer.remove(tensor)
    graph.initializer.extend(onnx.numpy_helper.from_array(value, f"{name}_{key}") for key, value in parts.items())
    names, make = [f"{name}_{key}" for key in parts], onnx.helper.make_node
    if with_zero or not per_axis:
        graph.node.insert(0, make("DequantizeLinear", names, [name], axis=1))
        return
    graph.node.insert(0, make("Mul", [f"{name}_real", names[1]], [name]))
    graph.node.insert(0, make("Cast", names[:1], [f"{name}_real"], to=onnx.TensorProto.FLOAT))


def test_tensor_cast_to_int8_matches_onnx_runtime(plain: Path, tmp_path: Path) -> None:
    path, model = model_path_beside(plain, "cast"), onnx.load(plain / "model.onnx")
    tensor = next(t for t in model.graph.initializer if t.name.endswith("word_embeddings.weight"))
    name, values = tensor.name, onnx.numpy_helper.to_array(tensor)
    parts = {"large": np.round(values * 100), "scale": np.array(0.01, "float32")}
    model.graph.initializer.remove(tensor)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, key) for key, value in parts.items())
    model.graph.node.insert(0, onnx.helper.make_node("DequantizeLinear", ["bytes", "scale"], [name]))
    model.graph.node.insert(0, onnx.helper.make_node("Cast", ["large"], ["bytes"], to=onnx.TensorProto.INT8))
    onnx.save(model, path)
    np.testing.assert_allclose(
        reference_logits(convert(path, tmp_path / "ours").folder), runtime_logits(path), rtol=0, atol=1e-5
    )


# -- the arithmetic, by hand -------------------------------------------------------------------------------------------


def test_unpacking_4_bit_blocks() -> None:
    packed = torch.tensor([[[0x10, 0x32] + [0x88] * 6]], dtype=torch.uint8)  # 0 1 2 3, then the zero point
    found = unpack_blocks(packed, torch.tensor([[2.0]]), None, (1, 6), 16, 4)
    assert found.tolist() == [[-16.0, -14.0, -12.0, -10.0, 0.0, 0.0]]
    zero = torch.tensor([[0x03]], dtype=torch.uint8)
    assert unpack_blocks(packed, torch.tensor([[2.0]]), zero, (1, 4), 16, 4).tolist() == [[-6.0, -4.0, -2.0, 0.0]]
    assert unpack_blocks(packed, torch.tensor([[2.0]]), torch.tensor([[0.5]]), (1, 2), 16, 4).tolist() == [[-1.0, 1.0]]


def test_dequantising_per_axis_and_per_block() -> None:
    values = torch.tensor([[1, 2], [3, 4]], dtype=torch.int8)
    assert dequantise(values, torch.tensor(2.0), torch.tensor(1), axis=1).tolist() == [[0.0, 2.0], [4.0, 6.0]]
    assert dequantise(values, torch.tensor([1.0, 10.0]), None, axis=0).tolist() == [[1.0, 2.0], [30.0, 40.0]]
    assert dequantise(values, torch.tensor([1.0, 10.0]), None, axis=-1).tolist() == [[1.0, 20.0], [3.0, 40.0]]
    blocks = torch.tensor([[1.0], [10.0]])
    assert dequantise(values, blocks, None, axis=1, block=2).tolist() == [[1.0, 2.0], [30.0, 40.0]]
