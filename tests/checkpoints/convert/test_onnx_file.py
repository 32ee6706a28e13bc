"""The reader of ONNX files: tensors as the package `onnx` reads them, and faults in one sentence."""

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from pellucid.checkpoints.convert import convert
from pellucid.checkpoints.convert.onnx import open_graph
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError, PellucidError
from tests.checkpoints.builders import Case
from tests.checkpoints.convert.onnx_exports import export, tiny_bert
from tests.checkpoints.convert.test_onnx_hostile import (
    Damage,
    add_branch,
    doubling_functions,
    initializer,
    with_graph,
    with_raw,
)


def add_constant(outputs: list[str], **setting: object) -> Damage:
    return with_graph(lambda g: g.node.append(onnx.helper.make_node("Constant", [], outputs, **setting)))


CASES = [
    Case("empty", with_raw(lambda data: b""), CorruptFileError, "model.onnx holds no operations"),
    Case("cut in half", with_raw(lambda data: data[: len(data) // 2]), CorruptFileError, "model.onnx ("),
    Case("a branch", with_graph(add_branch), CheckpointMismatchError, "If  holds a graph of its own"),
    Case(
        "too few numbers",
        with_graph(lambda g: initializer(g, "dense.bias").ClearField("raw_data")),
        CorruptFileError,
        "has fewer or more numbers than its shape [32] needs",
    ),
    Case(
        "endless shape",
        with_graph(lambda g: initializer(g, "dense.bias").dims.extend([2**39] * 3)),
        CorruptFileError,
        "has shape [32, 549755813888, 549755813888, 549755813888], which no model has",
    ),
    Case(
        "a constant without a name",
        add_constant([], value=onnx.numpy_helper.from_array(np.ones(3))),
        CorruptFileError,
        "an operation in it makes nothing",
    ),
    Case(
        "a whole constant of words",
        add_constant(["odd"], value_int="three"),
        CorruptFileError,
        "a value_int that is not a",
    ),
    Case(
        "a real constant of words",
        add_constant(["odd"], value_float="3"),
        CorruptFileError,
        "a value_float that is not a",
    ),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_bert("tokens"), tmp_path_factory.mktemp("good") / "foreign", "traced", 17)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_damaged_records_are_refused_in_one_sentence(exported: Path, tmp_path: Path, case: Case) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "foreign"))
    case.damage(folder)
    with pytest.raises(PellucidError) as caught:
        convert(folder, tmp_path / "ours")
    assert type(caught.value) is case.error, caught.value
    assert case.message in str(caught.value)


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
