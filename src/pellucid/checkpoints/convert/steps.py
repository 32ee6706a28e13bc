"""The steps of a graph that hold learned numbers, and the ways between them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from pellucid.checkpoints.convert.constants import Constants, ConstantTensor
from pellucid.checkpoints.convert.graph import FLOAT_TYPES, Graph, Node
from pellucid.errors import CheckpointMismatchError

SHAPE_OR_TYPE_ONLY = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""What may stand between a product and the sum with its bias."""

PASSING_STEP_ON = (*SHAPE_OR_TYPE_ONLY, "QuantizeLinear", "DequantizeLinear")
"""The same, and what rounds."""


@dataclass(eq=False)
class Step:
    """inputs: values that are computed.  output: where the result goes.  node: what it was called."""

    inputs: tuple[str, ...]
    output: str
    node: Node


@dataclass(eq=False)
class Lookup(Step):
    """Rows of a table `[rows, hidden]`; the input says which.  width: of all steps, how many numbers one makes."""

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
    """Every step of a graph by the name of its output, and the way back from a value to the steps before it.

    fused_steps: outputs of operations that hold several steps in one, and what those steps make.
    """

    graph: Graph
    constants: Constants
    by_output: dict[str, Step] = field(default_factory=dict)
    fused_steps: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def not_understood_error(self, what: object) -> CheckpointMismatchError:
        """The error for an operation that is not understood."""
        return CheckpointMismatchError(f"{self.graph.path}: {what}")

    def not_bert_error(self, what: object) -> CheckpointMismatchError:
        """The error for a graph that is not BERT's."""
        return CheckpointMismatchError(f"{self.graph.path} is not built as BERT is: {what}")

    def of_type(self, kind: type[Kind]) -> list[Kind]:
        """Every step of a kind, in the order of the graph."""
        return [step for step in self.by_output.values() if isinstance(step, kind)]

    def steps_before(self, *values: str) -> list[Step]:
        """The nearest steps on every way back from these values, from left to right."""
        return [found for found in self.walk_back(*values) if isinstance(found, Step)]

    def walk_back(self, *values: str) -> Iterator[Step | Node | str]:
        """Walks back: steps, where the walk ends; other operations, through which it goes; names of the graph's inputs.

        Shapes are not followed: how long a text is says nothing of what is computed from it.
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
                read = node.inputs[:1] if node.op_type == "CastLike" else node.inputs  # of the other it reads the type
                pending += reversed(self.fused_steps.get(name, read))

    def source_step(self, name: str) -> Step | None:
        """The step that a value comes from, when nothing but its type or shape was changed since, or it was rounded."""
        for _ in range(len(self.graph.nodes)):
            node = self.graph.producers.get(name)
            if name in self.by_output or node is None or not self._passes_on(node):
                break
            name = node.input(0)
        return self.by_output.get(name)

    def is_read_only_by(self, step: Step, node: Node) -> bool:
        """Whether nothing but this operation reads a step's result."""
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
        """Whether whole numbers become real ones again by the scale with which they were rounded."""
        producer = self.graph.producers.get(node.input(0))
        for _ in range(len(self.graph.nodes)):
            if producer is None or producer.op_type not in (*SHAPE_OR_TYPE_ONLY, "Transpose", "Expand"):
                break
            producer = self.graph.producers.get(producer.input(0))
        if producer is None or producer.op_type != "QuantizeLinear":
            return False
        return all(self._are_equal(node.input(i), producer.input(i)) for i in (1, 2))

    def _are_equal(self, one: str, other: str) -> bool:
        """Whether two values of the file are the same numbers; a zero that is left out is 0."""
        parts = (self.constants.get(name) for name in (one, other))
        numbers = [torch.zeros(1, device="cpu") if part is None else part.numbers for part in parts]
        return one == other or (numbers[0].numel() == numbers[1].numel() and bool((numbers[0] == numbers[1]).all()))
