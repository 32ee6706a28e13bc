"""Small files cannot take much memory, by broadcast scales or by many tensors made from the same bytes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.helper import make_node

from pellucid.checkpoints.convert import convert
from pellucid.checkpoints.convert.constants import dequantise
from pellucid.errors import UnsafeFileError
from tests.checkpoints.convert.onnx_exports import export, tiny_bert


def test_block_longer_than_the_row() -> None:
    numbers, scale = torch.ones(2, 3, dtype=torch.int8), torch.tensor([[2.0], [3.0]])
    assert dequantise(numbers, scale, None, axis=1, block=2**50).tolist() == [[2.0] * 3, [3.0] * 3]


def test_more_scales_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="64 scales for 63 rows"):
        dequantise(torch.ones(1, 63, dtype=torch.int8), torch.ones(64, 1), None, axis=1, block=63)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)


def test_one_tensor_dequantised_many_times_is_refused(folder: Path, tmp_path: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    parts = {"small": np.ones((1000, 1000), "int8"), "scale": np.array(0.5, "float32")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in parts.items())
    for i in range(100):  # 400 MB of one MB
        model.graph.node.append(make_node("DequantizeLinear", list(parts), [f"table{i}"]))
        model.graph.node.append(make_node("MatMul", ["input_ids", f"table{i}"], [f"made{i}"]))
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(UnsafeFileError, match=r"makes [\d,]+ bytes of 1,[\d,]+; not read further"):
        convert(folder, tmp_path / "ours")


def test_one_external_range_under_many_names_is_refused(folder: Path, tmp_path: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    (folder / "numbers").write_bytes(bytes(4_000_000))
    for i in range(150):
        table = onnx.TensorProto(name=f"table{i}", data_type=1, dims=[1000, 1000], data_location=1)
        table.external_data.add(key="location", value="numbers")
        model.graph.initializer.append(table)
        model.graph.node.append(make_node("MatMul", ["input_ids", f"table{i}"], [f"made{i}"]))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UnsafeFileError, match=r"bytes of 4,[\d,]+; not read further"):
        convert(folder, tmp_path / "ours")
