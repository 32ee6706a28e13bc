"""Two readers of ONNX files, the package `onnx` and our own: both report a fault in the same sentence."""

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from pellucid.checkpoints.convert import convert
from pellucid.errors import CheckpointMismatchError, CorruptFileError, PellucidError
from tests.checkpoints.builders import Case
from tests.checkpoints.convert.onnx_exports import export, tiny_bert
from tests.checkpoints.convert.test_onnx_hostile import Damage, add_branch, initializer, with_graph, with_raw


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
def test_both_readers_report_the_same_error(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "foreign"))
    case.damage(folder)
    messages = []
    for library in (onnx, None):
        monkeypatch.setitem(sys.modules, "onnx", library)
        with pytest.raises(PellucidError) as caught:
            convert(folder, tmp_path / "ours")
        assert type(caught.value) is case.error, caught.value
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert case.message in messages[0]
