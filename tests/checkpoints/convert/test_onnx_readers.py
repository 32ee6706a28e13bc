"""An ONNX file, where the package `onnx` is there and where it is not: what is wrong is one sentence, and the same."""

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from pellucid.checkpoints.convert import convert
from pellucid.checkpoints.convert.onnx import KINDS, open_graph
from pellucid.errors import CheckpointMismatchError, CorruptFileError, PellucidError
from tests.checkpoints.builders import Case
from tests.checkpoints.convert.exports import export, tiny_bert
from tests.checkpoints.convert.test_onnx_hostile import Damage, graph, loop, raw, table


def constant(outputs: list[str], **setting: object) -> Damage:
    return graph(lambda g: g.node.append(onnx.helper.make_node("Constant", [], outputs, **setting)))


CASES = [
    Case("empty", raw(lambda data: b""), CorruptFileError, "model.onnx holds no operations"),
    Case("cut in half", raw(lambda data: data[: len(data) // 2]), CorruptFileError, "model.onnx ("),
    Case("a branch", graph(loop), CheckpointMismatchError, "If  holds a graph of its own"),
    Case(
        "too few numbers",
        graph(lambda g: table(g, "dense.bias").ClearField("raw_data")),
        CorruptFileError,
        "has fewer or more numbers than its shape [32] asks for",
    ),
    Case(
        "endless shape",
        graph(lambda g: table(g, "dense.bias").dims.extend([2**39] * 3)),
        CorruptFileError,
        "has shape [32, 549755813888, 549755813888, 549755813888], which no model has",
    ),
    Case(
        "a constant without a name",
        constant([], value=onnx.numpy_helper.from_array(np.ones(3))),
        CorruptFileError,
        "an operation in it makes nothing",
    ),
    Case("a whole constant of words", constant(["odd"], value_int="three"), CorruptFileError, "a value_int that is no"),
    Case("a real constant of words", constant(["odd"], value_float="3"), CorruptFileError, "a value_float that is no"),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_bert("tokens"), tmp_path_factory.mktemp("good") / "foreign", "traced", 17)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_with_or_without_the_package_it_is_said_alike(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "foreign"))
    case.damage(folder)
    said = []
    for library in (onnx, None):
        monkeypatch.setitem(sys.modules, "onnx", library)
        with pytest.raises(PellucidError) as caught:
            convert(folder, tmp_path / "ours")
        assert type(caught.value) is case.error, caught.value
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert case.says in said[0]


@pytest.mark.parametrize("kind", [number for number, (_, dtype) in KINDS.items() if dtype is not None])
@pytest.mark.parametrize("shape", [(3, 5), (4,), (0,), ()])
def test_numbers_of_every_type_however_they_are_written(tmp_path: Path, kind: int, shape: tuple[int, ...]) -> None:
    said = onnx.helper.tensor_dtype_to_np_dtype(kind)
    bits = np.random.default_rng(kind).integers(0, 2 if kind == onnx.TensorProto.BOOL else 2**60, shape)
    values = (bits if KINDS[kind][0].removeprefix("U").startswith(("INT", "BOOL")) else bits / 2**59).astype(said)
    raw = onnx.numpy_helper.from_array(values, "numbers")
    for tensor in (raw, onnx.helper.make_tensor("numbers", kind, shape, values.ravel()), elsewhere(raw, tmp_path)):
        graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [], [], [tensor])
        (tmp_path / "model.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
        made = open_graph(tmp_path / "model.onnx").held["numbers"].read()
        exact = values.astype(np.float64) if values.dtype.kind in "Vf" else values
        assert tuple(made.shape) == shape
        assert (made.double().numpy() if values.dtype.kind in "Vf" else made.numpy()).tolist() == exact.tolist()


def elsewhere(tensor: onnx.TensorProto, folder: Path) -> onnx.TensorProto:
    """The same numbers behind two bytes of another file."""
    (folder / "numbers.bin").write_bytes(b"??" + tensor.raw_data)
    place = {"location": "numbers.bin", "offset": "2", "length": str(len(tensor.raw_data))}
    moved = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=1)
    for key, value in place.items():
        moved.external_data.add(key=key, value=value)
    return moved
