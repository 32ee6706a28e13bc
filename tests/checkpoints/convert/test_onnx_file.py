"""The reader of ONNX files: tensors as the package `onnx` reads them, and faults in one sentence."""

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from pellucid.checkpoints.convert import convert
from pellucid.checkpoints.convert.onnx import open_graph
from pellucid.errors import CorruptFileError, InputError
from tests.checkpoints.convert.onnx_exports import export, tiny_bert
from tests.checkpoints.convert.test_onnx_hostile import doubling_functions


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_bert("tokens"), tmp_path_factory.mktemp("good") / "foreign", "traced", 17)


TYPES = "FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 BOOL FLOAT16 DOUBLE UINT32 UINT64 BFLOAT16 UINT4 INT4".split()


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("type_name", TYPES)
def test_tensors_are_those_of_the_library(tmp_path: Path, type_name: str, raw: bool) -> None:
    data_type = onnx.TensorProto.DataType.Value(type_name)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(data_type)
    if type_name == "BOOL" or type_name.startswith("U"):
        numbers = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 1]]).astype(dtype)
    else:
        numbers = np.array([[0, 1, -3], [7, -8, 2], [-1, 5, 4]]).astype(dtype)
    values = numbers.tobytes() if raw else numbers.flatten().tolist()
    if raw and type_name.endswith("INT4"):
        values = onnx.numpy_helper.from_array(numbers).raw_data
    tensor = onnx.helper.make_tensor("table", data_type, [3, 3], values, raw=raw)
    node = onnx.helper.make_node("Identity", ["table"], ["out"])
    out = onnx.helper.make_tensor_value_info("out", data_type, [3, 3])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [out], [tensor])), path)
    found = open_graph(path).initializers["table"]
    expected = onnx.numpy_helper.to_array(tensor)
    assert found.type_name == type_name
    assert found.read().tolist() == expected.astype("float64" if expected.dtype.kind == "V" else "O").tolist()


def test_functions_without_onnx_name_the_package(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "foreign"))
    doubling_functions(2)(folder)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r'has functions, .* pip install "pellucid\[onnx\]"'):
        convert(folder, tmp_path / "ours")


def test_without_onnx_the_files_are_the_same(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(exported, tmp_path / "theirs")
    monkeypatch.setitem(sys.modules, "onnx", None)
    convert(exported, tmp_path / "ours")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


def test_external_data_is_read_without_onnx(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(exported, tmp_path / "plain")
    folder = Path(shutil.copytree(exported, tmp_path / "foreign"))
    onnx.save(
        onnx.load(exported / "model.onnx"),
        folder / "model.onnx",
        save_as_external_data=True,
        location="numbers.bin",
        size_threshold=64,
    )
    assert (folder / "model.onnx").stat().st_size < (exported / "model.onnx").stat().st_size
    monkeypatch.setitem(sys.modules, "onnx", None)
    convert(folder, tmp_path / "ours")
    assert (tmp_path / "ours/model.safetensors").read_bytes() == (tmp_path / "plain/model.safetensors").read_bytes()


def test_raw_data_that_is_a_number_is_refused(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Identity", ["table"], ["out"])
    table = onnx.numpy_helper.from_array(np.ones((2, 3), "float32"), "table")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [], [table]))
    raw = b"\x4a\x18" + table.raw_data  # field 9, bytes
    written = model.SerializeToString()
    assert written.count(raw) == 1
    path = tmp_path / "model.onnx"
    path.write_bytes(written.replace(raw, b"\x48\x01" + b"\x48\x01" * 12))  # the same length in field 9 as numbers
    with pytest.raises(CorruptFileError, match="'table' holds no readable numbers"):
        open_graph(path).initializers["table"].read()


def test_attributes_are_those_of_the_library(tmp_path: Path) -> None:
    values = {"real": 0.5, "whole": -3, "text": "abc", "reals": [1.0, 2.5], "wholes": [1, -2], "texts": ["a", "b"]}
    node = onnx.helper.make_node("Strange", ["x"], ["out"], **values)
    node.attribute.append(onnx.helper.make_attribute("none", [], attr_type=onnx.AttributeProto.INTS))
    node.attribute.append(onnx.AttributeProto(name="zero", type=onnx.AttributeProto.FLOAT))
    node.attribute.append(onnx.AttributeProto(name="old", i=4))  # from before attributes had types
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [])), path)
    (found,) = open_graph(path).nodes
    assert found.attributes == values | {"none": [], "zero": 0.0, "old": 4}


def test_what_a_file_says_twice_is_read_as_by_the_library(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Identity", ["first"], ["out"])
    first, second = (onnx.numpy_helper.from_array(np.full(2, i, "float32"), name) for i, name in enumerate("ab"))
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [], [first]))
    twice = onnx.TensorProto(data_type=onnx.TensorProto.INT32)  # and FLOAT after it
    written = twice.SerializeToString() + second.SerializeToString()
    length = len(written)
    more = b"\x3a" + bytes([length + 2]) + b"\x2a" + bytes([length]) + written  # field 7, a graph; field 5, a tensor
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString() + more)
    expected = {one.name: onnx.numpy_helper.to_array(one).tolist() for one in onnx.load(path).graph.initializer}
    found = {name: one.read().tolist() for name, one in open_graph(path).initializers.items()}
    assert found == expected == {"a": [0.0, 0.0], "b": [1.0, 1.0]}
