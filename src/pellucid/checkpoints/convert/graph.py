"""A foreign graph as plain records: nodes, stored tensors, and which node reads which value."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.lazy import cached_property

UNLEARNED_TYPES = ("BOOL", "STRING")
"""Types that never hold learned tensors."""

INDEX_TYPES = ("INT32", "INT64", "UINT32", "UINT64")
"""Types of shapes and indices, and of the integer biases of quantised products."""

TYPES = {
    1: ("FLOAT", torch.float32), 2: ("UINT8", torch.uint8), 3: ("INT8", torch.int8), 5: ("INT16", torch.int16),
    6: ("INT32", torch.int32), 7: ("INT64", torch.int64), 9: ("BOOL", torch.bool), 10: ("FLOAT16", torch.float16),
    11: ("DOUBLE", torch.float64), 16: ("BFLOAT16", torch.bfloat16),
}  # fmt: skip
"""ONNX's type numbers, with its names and our dtypes."""

FLOAT_TYPES = (1, 10, 11, 16)
"""The floating-point types among them."""

INTEGER_ARITHMETIC = ("DequantizeLinear", "MatMulInteger", "QLinearMatMul", "QGemm", "QAttention", "QLinearAdd")
"""Operations on integers."""

PASSING_ON = (
    "Identity",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Transpose",
    "Slice",
    "Gather",
    "Split",
    "Concat",
)
"""Operations that pass values on unchanged: those of their first input, or of all inputs."""


def printable(name: str) -> str:
    """A name from a foreign file for a message: shortened, and without control characters."""
    return ascii(name[:120])[1:-1]


@dataclass(frozen=True, eq=False)
class Node:
    """One operation: its type and name, inputs, outputs and attributes."""

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]

    def input(self, index: int) -> str:
        """The name of an input; "" where it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def __str__(self) -> str:
        return printable(f"{self.op_type} {self.name or ' '.join(self.outputs)}")


@dataclass(frozen=True)
class Initializer:
    """A stored tensor that has not been read yet; `type_name` is ONNX's name of its type.

    file: the name of the external data file that holds it, if any.
    """

    type_name: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    file: str = ""


@dataclass(frozen=True)
class Graph:
    """nodes: in the order of the file.  initializers: stored tensors by name.

    inputs, outputs: names of the graph's inputs and outputs.
    input_shapes: of inputs with a known number of axes; 0 for a dynamic axis.
    opset: the version of ONNX's own operations.
    """

    path: Path
    nodes: tuple[Node, ...]
    initializers: dict[str, Initializer]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_shapes: dict[str, tuple[int, ...]]
    opset: int

    @cached_property
    def producers(self) -> dict[str, Node]:
        """For each value, the operation that produces it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """For each value, the operations that read it."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found

    def only_consumer(self, name: str, op_types: Iterable[str]) -> Node | None:
        """The only node that reads a value, if it is of one of these types; else None."""
        found = self.consumers.get(name, [])
        return found[0] if len(found) == 1 and found[0].op_type in op_types and name not in self.outputs else None

    def may_be_weights(self, name: str) -> bool:
        """Whether a stored tensor may be learned: it has more than one value, and is neither a shape nor indices."""
        initializer = self.initializers[name]
        if prod(initializer.shape) <= 1 or initializer.type_name in UNLEARNED_TYPES:
            return False
        return initializer.type_name not in INDEX_TYPES or self._enters_arithmetic(name)

    def _enters_arithmetic(self, name: str) -> bool:
        """Whether integers are converted to floats or used in a product."""
        pending, visited = [name], {name}
        while pending:
            value = pending.pop()
            for node in self.consumers.get(value, []):
                if node.op_type in INTEGER_ARITHMETIC or (
                    node.op_type == "Cast" and node.attributes.get("to") in FLOAT_TYPES
                ):
                    return True
                if node.op_type in PASSING_ON and (node.input(0) == value or node.op_type == "Concat"):
                    new = [output for output in node.outputs if output and output not in visited]
                    visited.update(new)
                    pending += new
        return False
