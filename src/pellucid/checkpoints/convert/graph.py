"""A foreign graph as plain records: nodes, the numbers that lie in the file, and who reads what."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.lazy import cached_property

UNLEARNED_TYPES = ("BOOL", "STRING")
"""Types that nothing learned is kept in."""

INDEX_TYPES = ("INT32", "INT64", "UINT32", "UINT64")
"""Types of shapes and indices, and of the biases that a quantised product sums whole numbers with."""

TYPES = {
    1: ("FLOAT", torch.float32), 2: ("UINT8", torch.uint8), 3: ("INT8", torch.int8), 5: ("INT16", torch.int16),
    6: ("INT32", torch.int32), 7: ("INT64", torch.int64), 9: ("BOOL", torch.bool), 10: ("FLOAT16", torch.float16),
    11: ("DOUBLE", torch.float64), 16: ("BFLOAT16", torch.bfloat16),
}  # fmt: skip
"""ONNX's numbers for types, its words for them, and ours."""

FLOAT_TYPES = (1, 10, 11, 16)
"""Those of real numbers."""

INTEGER_ARITHMETIC = ("DequantizeLinear", "MatMulInteger", "QLinearMatMul", "QGemm", "QAttention", "QLinearAdd")
"""Operations that calculate with whole numbers."""

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
"""Operations that hand numbers on: by their first input, or by all."""


def printable(name: str) -> str:
    """A name from a foreign file for a message: short, and without signs that a terminal would obey."""
    return ascii(name[:120])[1:-1]


@dataclass(frozen=True, eq=False)
class Node:
    """One operation: what it is called, what it reads and makes, and its attributes."""

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]

    def input(self, index: int) -> str:
        """The name of an input; "" where it was left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def __str__(self) -> str:
        return printable(f"{self.op_type} {self.name or ' '.join(self.outputs)}")


@dataclass(frozen=True)
class Initializer:
    """Numbers that have not been read yet; `type_name` is ONNX's word for their type.

    file: the name of the file that they lie in, where it is another one beside the graph.
    """

    type_name: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    file: str = ""


@dataclass(frozen=True)
class Graph:
    """nodes: in the order of the file.  initializers: numbers by name.

    inputs, outputs: names of the whole graph's own.
    input_shapes: of the inputs, where the file says how many axes they have; 0 for an axis of any size.
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
        """By each value, the operation that makes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """By each value, the operations that read it."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found

    def only_consumer(self, name: str, op_types: Iterable[str]) -> Node | None:
        """The one node that reads a value, where it is of one of these kinds."""
        found = self.consumers.get(name, [])
        return found[0] if len(found) == 1 and found[0].op_type in op_types and name not in self.outputs else None

    def may_be_weights(self, name: str) -> bool:
        """Whether numbers of the file may be learned: more than one, and neither a shape nor indices."""
        initializer = self.initializers[name]
        if prod(initializer.shape) <= 1 or initializer.type_name in UNLEARNED_TYPES:
            return False
        return initializer.type_name not in INDEX_TYPES or self._enters_arithmetic(name)

    def _enters_arithmetic(self, name: str) -> bool:
        """Whether whole numbers become real ones, or a product is made with them."""
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
