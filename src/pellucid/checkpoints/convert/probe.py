"""Runs a foreign graph on a small batch of random values, to find what each of its learned steps reads."""

from collections.abc import Callable, Sequence
from itertools import islice
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.convert.arithmetic import MAX_NUMBERS, OPERATIONS
from pellucid.checkpoints.convert.attention import ATTENTION_TOLERANCE, all_close, fused_attention
from pellucid.checkpoints.convert.batch import TrialBatch
from pellucid.checkpoints.convert.graph import Node, printable
from pellucid.checkpoints.convert.steps import LearnedStep, Lookup, Norm, Steps
from pellucid.errors import CheckpointMismatchError, join_names

ROUNDING_TOLERANCE = 2e-3
"""How far an activation or a decomposed norm may be off because of constants in half precision."""

_MAX_DEPTH = 120
"""Maximum depth of operations between two steps."""

_TOLERANCE = 1e-6
"""Tolerance for values computed in the same way; here nothing is rounded to the graph's own types."""

_QUANTISING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
"""Operations that quantise and dequantise: skipped here, so values keep full precision."""

_MAX_BETWEEN_STEPS, _MAX_IN_GRAPH = 4 * MAX_NUMBERS, 2**32
"""Limits of the values that are computed between two steps, and in the whole graph."""

_MAX_DRAWN_SINGLY = 2**22
"""Values of a step up to which each is drawn by itself."""


class GraphRun:
    """Computes the values of a graph between its steps; the result of each step is replaced by random values.

    batch: the trial texts.  substitutes: values of inputs and of steps' results.
    zero_states: whether missing step results are 0, for runs where only the shapes of earlier states matter.
    """

    def __init__(self, steps: Steps, batch: TrialBatch, *, zero_states: bool = False) -> None:
        self.steps, self.batch, self.zero_states = steps, batch, zero_states
        self.substitutes: dict[str, Tensor] = {}
        self.computed: dict[str, Tensor] = {}
        self.numbers_computed = self.total_numbers = 0
        self.generator = torch.Generator("cpu").manual_seed(1)

    def check_input(
        self,
        step: LearnedStep,
        expected: Tensor,
        consumer: str,
        what: str,
        *,
        is_attention: bool = False,
        tolerance: float = _TOLERANCE,
    ) -> None:
        """Refuses a step that reads anything but `expected`, `[texts, tokens, width]` or `[texts, width]`; its result
        is random from then on.

        consumer: what the step is.  what: what the expected values are.  is_attention, tolerance: see `matches`.
        """
        actual = self.summed_inputs(step, consumer)
        if not self.matches(actual, expected, is_attention=is_attention, tolerance=tolerance):
            raise self.mismatch_error(actual, expected, consumer, what, *step.inputs)
        if isinstance(step, Norm):
            self._check_norm(step, actual, consumer)
        self._substitute_random(step, actual.shape[:-1])

    def check_lookup(self, lookup: Lookup, indices: Tensor, role: str) -> None:
        """Refuses a table that is looked up with anything but these indices, `[texts, tokens]`; its result is random
        from then on."""
        actual = self.check_indices(lookup, indices, role)
        self._substitute_random(lookup, actual.shape)

    def check_indices(self, lookup: Lookup, indices: Tensor, role: str) -> Tensor:
        """The same check alone. ->  the indices, in the graph's own shape"""
        if not any(lookup.inputs):  # the operation generates them
            return indices
        actual = self.summed_inputs(lookup, f"the indices of {role}")
        if not self.matches(actual, indices):
            what = self.describe_source(*lookup.inputs)
            raise self.steps.not_bert_error(
                f"{lookup.node} looks up {role} with {what}, which are not the indices that BERT takes"
            )
        return actual

    def substitute(self, step: LearnedStep, numbers: Tensor) -> None:
        """Replaces the result of a step, `[texts, tokens, width]`."""
        self.substitutes[step.output] = numbers.reshape(self.value_of(step.output, "").shape)
        self.clear_computed()

    def release(self, *steps: LearnedStep) -> None:
        """Frees the results of these steps, which may not be read again."""
        for step in steps:
            del self.substitutes[step.output]

    def summed_inputs(self, step: LearnedStep, consumer: str) -> Tensor:
        """The sum of a step's inputs."""
        self.clear_computed()
        found = [self.value_of(name, consumer) for name in step.inputs]
        return sum(found[1:], start=found[0])

    def clear_computed(self) -> None:
        """Clears all computed values except the results of steps."""
        self.computed.clear()
        self.numbers_computed = 0

    def _substitute_random(self, step: LearnedStep, rows: Sequence[int]) -> None:
        """Sets a random result of a step, `[*rows, width]`, with large and small values of either sign."""
        is_small = prod(rows) * step.width <= _MAX_DRAWN_SINGLY  # else a value per row times one per column
        column_scale, row_scale = (
            10 ** (1.5 * self.random(*shape, sampler=torch.rand) - 0.5) for shape in ((step.width,), (*rows, 1))
        )
        self.substitutes[step.output] = self.random(*(rows if is_small else ()), step.width) * column_scale * row_scale

    def random_integers(self, end: int) -> Tensor:
        """Random integers below `end`, `[texts, tokens]`."""
        return torch.randint(end, self.batch.attention_mask.shape, generator=self.generator, device="cpu")

    def random(self, *shape: int, sampler: Callable[..., Tensor] = torch.randn) -> Tensor:
        """Random values in float64 from a fixed seed; drawn in float32, which is faster."""
        return sampler(*shape, generator=self.generator, dtype=torch.float32, device="cpu").double()

    def state_of(self, step: LearnedStep) -> Tensor:
        """The result of a step, `[texts, tokens, width]`; `[texts, width]` for steps with one state per text, and
        `[tokens, width]` for those that do not depend on the text."""
        found = self.substitutes[step.output]
        is_per_token = found.numel() == self.batch.attention_mask.numel() * step.width
        return found.reshape(*self.batch.attention_mask.shape, -1) if is_per_token else found.reshape(-1, step.width)

    def matches(
        self, actual: Tensor, expected: Tensor, *, is_attention: bool = False, tolerance: float = _TOLERANCE
    ) -> bool:
        """Whether values are equal up to `tolerance`, in whatever shape.

        is_attention: compares attention outputs, with a larger tolerance per channel and without padding.
        tolerance: the largest difference, absolute and relative.
        """
        try:
            actual = (
                actual.reshape(expected.shape) if actual.numel() == expected.numel() else actual.expand_as(expected)
            )
        except RuntimeError:
            return False
        if not expected.is_floating_point():
            return bool((actual == expected).all())
        if is_attention:
            actual, expected = actual[self.batch.attention_mask], expected[self.batch.attention_mask]
            return bool(((actual - expected).abs() <= ATTENTION_TOLERANCE * expected.abs().amax(0)).all())
        return all_close(actual, expected, tolerance)

    def value_of(self, name: str, consumer: str, depth: int = 0) -> Tensor:
        """A value of the graph.

        Raises: CheckpointMismatchError for an operation that is not supported, or does not fit the batch.
        """
        if name in self.substitutes:
            return self.substitutes[name]
        if name not in self.computed:
            self._compute(name, consumer, depth)
        return self.computed[name]

    def _compute(self, name: str, consumer: str, depth: int) -> None:
        part, node = self.steps.constants.get(name), self.steps.graph.producers.get(name)
        if part is not None:
            self.computed[name] = part.numbers.double() if part.numbers.is_floating_point() else part.numbers
            return
        if depth > _MAX_DEPTH:
            raise self.steps.not_bert_error(f"more than {_MAX_DEPTH} operations lie on the way to {consumer}")
        step = self.steps.by_output.get(name)
        if self.zero_states and isinstance(step, LearnedStep):
            self.computed[name] = torch.zeros((), dtype=torch.float64, device="cpu").expand(
                *self.batch.attention_mask.shape, step.width
            )
            return
        if node is None or step is not None:
            raise self.unexpected_error(node or f"the input {printable(name)}", consumer)
        self._execute(node, consumer, depth)
        if name not in self.computed:
            raise self.unexpected_error(node, consumer)

    def _execute(self, node: Node, consumer: str, depth: int) -> None:
        """Computes the results of one operation, where it is supported."""
        operation = OPERATIONS.get(node.op_type)
        if (fused := self._fused_operation(node)) is not None:
            input_names, operation = fused
        elif node.op_type in _QUANTISING:
            input_names, operation = node.inputs[:1], OPERATIONS["Identity"]
        else:
            input_names = node.inputs
        if operation is None or (node.op_type == "DequantizeLinear" and not self.steps.is_dequantised(node)):
            raise self.unexpected_error(node, consumer)
        parts = [self.value_of(name, consumer, depth + 1) if name else None for name in input_names]
        if parts and parts[0] is None:
            raise self.unexpected_error(node, consumer)
        try:
            found = operation(self._attributes_with_defaults(node), *parts)
        except ValueError as error:
            raise self.steps.not_bert_error(f"{node} lies on the way to {consumer}: {error}") from error
        except (RuntimeError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError) as error:
            texts = f"{self.batch.texts} texts of {self.batch.tokens} tokens"
            raise self.steps.not_bert_error(f"{node}, on the way to {consumer}, does not take {texts}") from error
        for name, numbers in zip(node.outputs, found if isinstance(found, tuple) else (found,), strict=False):
            if numbers is not None:
                self.computed[name] = numbers
                self.numbers_computed += numbers.numel()
                self.total_numbers += numbers.numel()
        if self.numbers_computed > _MAX_BETWEEN_STEPS or self.total_numbers > _MAX_IN_GRAPH:
            raise self.steps.not_bert_error(f"{node}, on the way to {consumer}, makes more numbers than BERT does")

    def _attributes_with_defaults(self, node: Node) -> dict[str, Any]:
        """The attributes of an operation, with the defaults of ONNX."""
        defaults: dict[str, dict[str, Any]] = {
            "Split": {"num_outputs": len(node.outputs)},
            "Slice": {"longest": self.batch.max_length},
            "Softmax": {"axis": -1 if self.steps.graph.opset >= 13 else 1},
        }
        return defaults.get(node.op_type, {}) | node.attributes

    def _fused_operation(self, node: Node) -> tuple[tuple[str, ...], Callable[..., Any]] | None:
        """Inputs and function of a fused operation; None for any other."""
        match node.op_type:
            case "Attention" if node.outputs[0] in self.steps.fused_steps:
                parts, masks = self.steps.fused_steps[node.outputs[0]], (node.input(3), node.input(5))
            case "Attention":
                parts, masks = node.inputs[:3], ("", node.input(3))
            case "MultiHeadAttention":  # its biases are attached to the products before
                parts, masks = node.inputs[:3], (node.input(4), node.input(5))
            case "SkipLayerNormalization":  # its norm is a step; the sum is used further on, too
                return node.inputs[:2], lambda attributes, one, other: (None, None, None, one + other)
            case "EmbedLayerNormalization":
                return node.inputs[7:8], lambda attributes, mask: (None, mask.sum(-1))
            case _:
                return None
        return (*parts, *masks), lambda attributes, q, k, v, *masks: fused_attention(attributes, [q, k, v], *masks)

    def describe_source(self, *values: str) -> str:
        """What these values are, for a message: the nearest operations that produce them."""
        nodes = [found for found in islice(self.steps.walk_back(*values), 3) if isinstance(found, Node)]
        earlier_nodes = f" (after {join_names(map(str, nodes[1:]))})" if nodes[1:] else ""
        return f"the result of {nodes[0]}{earlier_nodes}" if nodes else "another step"

    def mismatch_error(
        self, actual: Tensor, expected: Tensor, consumer: str, what: str, *values: str
    ) -> CheckpointMismatchError:
        """The error for values that BERT does not read there.  what: those that it reads."""
        if actual.numel() == expected.numel():
            one, other = actual.reshape(-1).double(), expected.reshape(-1).double()
            factor = float(one @ other / (other @ other))
            if self.matches(actual, expected * factor):
                return self.steps.not_bert_error(
                    f"{consumer} reads {factor:.4g} times {what}: {self.describe_source(*values)}"
                )
        return self.steps.not_bert_error(f"{consumer} reads {self.describe_source(*values)}, where BERT reads {what}")

    def unexpected_error(self, what: object, consumer: str) -> CheckpointMismatchError:
        """The error for an operation that does not belong where it stands."""
        return self.steps.not_bert_error(f"{what} lies on the way to {consumer}, where BERT has none")

    def _check_norm(self, norm: Norm, summed: Tensor, consumer: str) -> None:
        """Refuses a decomposed norm that computes something else, or does not normalise each token."""
        if norm.node.attributes.get("axis", -1) not in (-1, summed.dim() - 1):
            raise self.steps.not_bert_error(f"{norm.node} in {consumer} is not a norm of each token")
        if norm.node.op_type != "Div":
            return
        self._execute(self.steps.graph.producers[norm.output], consumer, 0)
        actual, shape = self.computed[norm.output], (norm.width,)
        weight, bias = norm.weight.numbers.double(), norm.bias.numbers.double()
        expected = functional.layer_norm(summed, shape, weight, bias, norm.epsilon)
        if actual.shape != expected.shape or not bool(
            ((actual - expected).abs() <= ROUNDING_TOLERANCE * (weight.abs() + expected.abs())).all()
        ):
            raise self.steps.not_bert_error(f"{norm.node} in {consumer} is not a layer norm")
