"""Each operation computes what ONNX's own reference evaluator computes."""

from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from pellucid.checkpoints.convert.arithmetic import OPERATIONS

GENERATOR = np.random.default_rng(1)
REALS, ROWS, POSITIVE = (GENERATOR.standard_normal(shape) for shape in ((2, 3, 4), (3, 1), (4,)))
POSITIVE = np.abs(POSITIVE)
TRUTH, OTHER_TRUTH = np.array([True, False, True]), np.array([[True], [False]])
INTEGERS = np.array([-70_000, -129, -7, -1, 0, 1, 300, 2049, 2**33 + 1])
BACKWARDS = [np.array([one]) for one in (-1, -(2**62), 2, -1)]

CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    *[("Flatten", [REALS], {"axis": axis}) for axis in range(-3, 4)],
    ("Flatten", [REALS], {}),
    *[("Cast", [INTEGERS], {"to": to}) for to in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 16)],
    *[("Cast", [REALS * 9], {"to": to}) for to in (3, 6, 7, 9, 11)],
    ("CastLike", [REALS * 9, INTEGERS], {}),
    *[("Range", [np.array(one) for one in bounds], {}) for bounds in ((0, 10, 3), (10, 0, -3), (0.0, 1.0, 0.3))],
    *[("Slice", [REALS, np.array(start), np.array(end), np.array(axes)], {})
      for start, end, axes in (([1], [2**62], [-1]), ([0, -2], [-1, 3], [2, 1]), ([-(2**62)], [2], [1]))],
    ("Slice", [REALS, np.array([1, 1]), np.array([2, 2**31 - 1])], {}),
    ("Slice", [REALS, *BACKWARDS], {}),
    ("Slice", [REALS, np.array([-1]), np.array([-1 - REALS.shape[2]]), np.array([2]), np.array([-1])], {}),
    *[(kind, [np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])], settings)
      for kind, settings in (("Mod", {}), ("Mod", {"fmod": 1}), ("Div", {}))],
    ("Mod", [REALS, POSITIVE], {"fmod": 1}),
    ("Div", [REALS, POSITIVE], {}),
    ("Pow", [POSITIVE, np.array(3)], {}),
    ("Pow", [np.array([2, 3]), np.array([0.5, 2.0])], {}),
    ("Clip", [REALS, np.array(-0.5)], {}),
    ("Clip", [REALS, None, np.array(0.5)], {}),
    ("Clip", [REALS], {}),
    *[(f"Reduce{kind}", [REALS, np.array(axes)], {"keepdims": keep})
      for kind in ("Mean", "Sum", "Max", "Min") for axes, keep in (([1], 1), ([0, -1], 0))],
    ("ReduceSum", [REALS], {}),
    *[("ReduceSum", [REALS, *axes], {"noop_with_empty_axes": 1}) for axes in ([], [np.array([1])])],
    ("Split", [REALS, np.array([1, 3])], {"axis": -1}),
    ("Split", [REALS], {"axis": 1, "num_outputs": 2}),
    ("Split", [REALS], {"num_outputs": 2}),
    ("Gather", [REALS, np.array([[0, -1], [2, 1]])], {"axis": 1}),
    ("Gather", [REALS, np.array([-2, 1])], {}),
    ("GatherElements", [REALS, GENERATOR.integers(-4, 4, (2, 3, 4))], {"axis": -1}),
    ("GatherElements", [REALS, GENERATOR.integers(-2, 2, (2, 3, 4))], {}),
    *[("GatherND", [REALS, np.array(indices)], {}) for indices in ([[0, -1], [1, 2]], [[[0, 1], [1, 0], [1, 2]]])],
    ("Transpose", [REALS], {}),
    ("Transpose", [REALS], {"perm": [1, 2, 0]}),
    ("Reshape", [REALS, np.array([0, -1])], {}),
    ("Reshape", [REALS[:0], np.array([7, 0])], {"allowzero": 1}),
    ("Squeeze", [ROWS], {}),
    ("Squeeze", [REALS[:1, :, :1], np.array([-1])], {}),
    *[("Unsqueeze", [ROWS, np.array(axes)], {}) for axes in ([0], [-1], [3, 0], [1, -1])],
    ("Expand", [ROWS, np.array([2, 1, 4])], {}),
    ("Tile", [ROWS, np.array([2, 3])], {}),
    ("Concat", [REALS, REALS], {"axis": -2}),
    *[("Shape", [REALS], settings) for settings in ({}, {"start": 1}, {"start": -2, "end": -1})],
    ("Size", [REALS], {}),
    ("ConstantOfShape", [np.array([2, 3])], {}),
    *[(kind, [REALS, ROWS, POSITIVE], {}) for kind in ("Max", "Min", "Sum")],
    *[(kind, [REALS, ROWS], {}) for kind in ("Add", "Sub", "Mul", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")],
    ("Equal", [INTEGERS, np.array([300])], {}),
    *[(kind, [TRUTH, OTHER_TRUTH], {}) for kind in ("And", "Or")],
    *[(kind, [INTEGERS, np.array([300])], {}) for kind in ("BitwiseAnd", "BitwiseOr")],
    ("BitwiseNot", [INTEGERS], {}),
    ("Not", [TRUTH], {}),
    ("Where", [OTHER_TRUTH, REALS[0, :2], POSITIVE], {}),
    ("IsNaN", [np.array([1.0, np.nan])], {}),
    *[(kind, [REALS], {}) for kind in ("Neg", "Abs", "Exp", "Sigmoid", "Relu", "Tanh", "Erf", "Softmax", "Gelu")],
    *[(kind, [REALS], {}) for kind in ("Identity", "Dropout")],
    ("Dropout", [REALS, np.array(0.5), np.array(False)], {}),
    *[(kind, [POSITIVE], {}) for kind in ("Sqrt", "Log", "Reciprocal")],
    ("Gelu", [REALS], {"approximate": "tanh"}),
    ("Softmax", [REALS], {"axis": 2}),
    *[("Swish", [REALS], settings) for settings in ({}, {"alpha": 2.0})],
    ("MatMul", [REALS, REALS[0].T], {}),
]  # fmt: skip

OLDER_CASES: list[tuple[int, str, list[Any], dict[str, Any]]] = [
    (6, "Clip", [REALS], {"min": -0.5, "max": 0.5}),
    (9, "Slice", [REALS], {"starts": [0, 1], "ends": [1, 3], "axes": [1, 2]}),
    (11, "ReduceSum", [REALS], {"axes": [0, 2]}),
    (11, "Split", [REALS], {"split": [1, 3], "axis": 2}),
    (11, "Squeeze", [REALS[:1, :1]], {"axes": [1]}),
    (11, "Unsqueeze", [REALS], {"axes": [1, 3]}),
]
"""Operations whose settings are attributes in an older opset, which comes first."""

OF_ONNX_RUNTIME = {"BiasGelu", "FastGelu", "QuickGelu", "Silu", "FusedMatMul"}


def reference_outputs(
    kind: str, inputs: list[Any], settings: dict[str, Any], outputs: int, opset: int
) -> list[np.ndarray]:
    names = ["" if one is None else f"in{i}" for i, one in enumerate(inputs)]
    feeds = {name: one for name, one in zip(names, inputs) if name}
    node = helper.make_node(kind, names, [f"out{i}" for i in range(outputs)], **settings)
    read = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in feeds.items()
    ]
    graph = helper.make_graph([node], "g", read, [helper.make_tensor_value_info(name, 0, None) for name in node.output])
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])).run(None, feeds)


@pytest.mark.parametrize(
    ("opset", "kind", "inputs", "settings"),
    [*((24, *case) for case in CASES), *OLDER_CASES],
    ids=[f"{kind}{i}" for i, (kind, *_) in enumerate(CASES)] + [f"{kind} of opset {n}" for n, kind, *_ in OLDER_CASES],
)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_operations_are_those_of_onnx(opset: int, kind: str, inputs: list[Any], settings: dict[str, Any]) -> None:
    own_settings = settings | ({"longest": 10} if kind == "Slice" else {})
    made = OPERATIONS[kind](own_settings, *(None if one is None else torch.tensor(one) for one in inputs))
    found = made if isinstance(made, tuple) else (made,)
    expected = reference_outputs(kind, inputs, settings, len(found), opset)
    for one, other in zip(found, expected, strict=True):
        assert tuple(one.shape) == other.shape
        assert one.dtype.is_floating_point == (np.asarray(other).dtype.kind not in "biu")
        assert (one.dtype == torch.bool) == (np.asarray(other).dtype == bool)
        np.testing.assert_allclose(one.double().numpy(), np.asarray(other, "float64"), rtol=1e-6, atol=1e-6)


def test_every_operation_of_onnx_has_a_case() -> None:
    assert {kind for kind, _, _ in CASES} == OPERATIONS.keys() - OF_ONNX_RUNTIME
