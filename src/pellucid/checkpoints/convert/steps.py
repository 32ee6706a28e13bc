"""The steps of a graph that have learned tensors, and the connections between them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from pellucid.checkpoints.convert.constants import Constants, ConstantTensor
from pellucid.checkpoints.convert.graph import FLOAT_TYPES, Graph, Node
from pellucid.errors import CheckpointMismatchError

SHAPE_OR_TYPE_ONLY = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""Operations that may come between a product and the addition of its bias."""

PASSING_STEP_ON = (*SHAPE_OR_TYPE_ONLY, "QuantizeLinear", "DequantizeLinear")
"""The same, and operations that quantise."""


@dataclass(eq=False)
class Step:
    """inputs: computed values.  output: the name of the result.  node: the operation in the graph."""

    inputs: tuple[str, ...]
    output: str
    node: Node


@dataclass(eq=False)
class Lookup(Step):
    """Selects rows of a table `[rows, hidden]` by its input.  width: of any step, the last dimension of its result."""

    table: ConstantTensor

    @property
    def width(self) -> int:
        return self.table.shape[1]


@dataclass(eq=False)
class Linear(Step):
    """`x @ weight.T + bias`, with the weight `[out, in]`."""

    weight: ConstantTensor
    bias: ConstantTensor | None = None

    @property
    def width(self) -> int:
        return self.weight.shape[0]


@dataclass(eq=False)
class Norm(Step):
    """A layer normalisation of the sum of its inputs."""

    weight: ConstantTensor
    bias: ConstantTensor
    epsilon: float

    @property
    def width(self) -> int:
        return self.weight.shape[0]


LearnedStep = Lookup | Linear | Norm

Kind = TypeVar("Kind", bound=Step)


@dataclass
class Steps:
    """Every step of a graph by the name of its output, with backward traversal from values to steps.

    fused_steps: outputs of operations that contain several steps, and the results of those steps.
    """

    graph: Graph
    constants: Constants
    by_output: dict[str, Step] = field(default_factory=dict)
    fused_steps: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def not_understood_error(self, what: object) -> CheckpointMismatchError:
        """The error for an unsupported operation."""
        return CheckpointMismatchError(f"{self.graph.path}: {what}")

    def not_bert_error(self, what: object) -> CheckpointMismatchError:
        """The error for a graph that is not BERT's."""
        return CheckpointMismatchError(f"{self.graph.path} is not built as BERT is: {what}")

    def of_type(self, kind: type[Kind]) -> list[Kind]:
        """Every step of a type, in the order of the graph."""
        return [step for step in self.by_output.values() if isinstance(step, kind)]

    def steps_before(self, *values: str) -> list[Step]:
        """The nearest steps on every path back from these values, from left to right."""
        return [found for found in self.walk_back(*values) if isinstance(found, Step)]

    def walk_back(self, *values: str) -> Iterator[Step | Node | str]:
        """Traverses the graph backwards and yields steps, where it stops, other operations and names of graph inputs.

        Does not follow shapes, since values do not depend on the length of a text.
        """
        pending, visited = list(reversed(values)), set()
        while pending:
            name = pending.pop()
            if not name or name in visited:
                continue
            visited.add(name)
            node = self.graph.producers.get(name)
            if name in self.by_output:
                yield self.by_output[name]
            elif node is None:
                if name in self.graph.inputs:
                    yield name
            elif node.op_type not in ("Shape", "Size"):
                yield node
                read = node.inputs[:1] if node.op_type == "CastLike" else node.inputs  # the other only gives the type
                pending += reversed(self.fused_steps.get(name, read))

    def source_step(self, name: str) -> Step | None:
        """The step that produced a value, if only type, shape or quantisation has changed since; else None."""
        for _ in range(len(self.graph.nodes)):
            node = self.graph.producers.get(name)
            if name in self.by_output or node is None or not self._passes_on(node):
                break
            name = node.input(0)
        return self.by_output.get(name)

    def is_read_only_by(self, step: Step, node: Node) -> bool:
        """Whether this operation is the only one that reads a step's result."""
        name = step.output
        while name not in node.inputs:
            after = self.graph.only_consumer(name, PASSING_STEP_ON)
            if after is None:
                return False
            name = after.outputs[0]
        return self.graph.only_consumer(name, [node.op_type]) is node

    def _passes_on(self, node: Node) -> bool:
        if node.op_type == "Cast":
            return node.attributes.get("to") in FLOAT_TYPES
        return node.op_type in (*SHAPE_OR_TYPE_ONLY, "QuantizeLinear") or (
            node.op_type == "DequantizeLinear" and self.is_dequantised(node)
        )

    def is_dequantised(self, node: Node) -> bool:
        """Whether integers are converted back to floats with the scale and zero point of their quantisation."""
        producer = self.graph.producers.get(node.input(0))
        for _ in range(len(self.graph.nodes)):
            if producer is None or producer.op_type not in (*SHAPE_OR_TYPE_ONLY, "Transpose", "Expand"):
                break
            producer = self.graph.producers.get(producer.input(0))
        if producer is None or producer.op_type != "QuantizeLinear":
            return False
        return all(self._are_equal(node.input(i), producer.input(i)) for i in (1, 2))

    def _are_equal(self, one: str, other: str) -> bool:
        """Whether two values in the file are equal; an omitted zero point is 0."""
        parts = (self.constants.get(name) for name in (one, other))
        numbers = [torch.zeros(1, device="cpu") if part is None else part.numbers for part in parts]
        return one == other or (numbers[0].numel() == numbers[1].numel() and bool((numbers[0] == numbers[1]).all()))
