"""A foreign graph, run on a small batch of random numbers: what does each of its learned steps read?"""

from collections.abc import Callable, Sequence
from itertools import islice
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.convert.arithmetic import MOST, WORK
from pellucid.checkpoints.convert.attention import MIXED_OFF, near, whole_attention
from pellucid.checkpoints.convert.batch import Batch
from pellucid.checkpoints.convert.graph import Node, shown
from pellucid.checkpoints.convert.steps import Learned, Lookup, Norm, Steps
from pellucid.errors import CheckpointMismatchError, several

ROUNDED = 2e-3
"""By how much constants in half precision may make an activation, or a norm that is written out, differ."""

_DEEPEST = 120
"""Operations behind each other between two steps."""

_OFF = 1e-6
"""By how much numbers differ that were calculated alike; nothing here is rounded to what a graph keeps."""

_ROUNDING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
"""What makes few bits of numbers, and numbers of few bits: here they stay as they are."""

_MOST_AT_ONCE, _MOST_IN_ALL = 4 * MOST, 2**32
"""Numbers that are made between two steps, and in a graph."""

_MANY = 2**22
"""Numbers of a step, of which each is not drawn alone."""


class Run:
    """The values of a graph between its steps: what a step makes is replaced by random numbers of the same shape.

    batch: the texts that are put in.  given: what stands for inputs, and for what steps make.
    blank: what was not given is 0, as where the sizes of the states before are asked for and nothing else.
    """

    def __init__(self, steps: Steps, batch: Batch, *, blank: bool = False) -> None:
        self.steps, self.batch, self.blank = steps, batch, blank
        self.given: dict[str, Tensor] = {}
        self.known: dict[str, Tensor] = {}
        self.made = self.in_all = 0
        self.chance = torch.Generator("cpu").manual_seed(1)

    def check(
        self, step: Learned, wanted: Tensor, where: str, what: str, *, mixed: bool = False, off: float = _OFF
    ) -> None:
        """Refuses a step that reads anything but these numbers, `[texts, tokens, width]` or `[texts, width]`; others
        stand for what it makes from then on.

        where: what the step is.  what: what the numbers are.  mixed, off: see `alike`.
        """
        made = self.read(step, where)
        if not self.alike(made, wanted, mixed=mixed, off=off):
            raise self.other(made, wanted, where, what, *step.inputs)
        if isinstance(step, Norm):
            self._check_norm(step, made, where)
        self._stand_in(step, made.shape[:-1])

    def look_up(self, lookup: Lookup, indices: Tensor, role: str) -> None:
        """Refuses a table that is looked up with anything but these indices, `[texts, tokens]`; random numbers stand
        for what is found."""
        made = self.check_indices(lookup, indices, role)
        self._stand_in(lookup, made.shape)

    def check_indices(self, lookup: Lookup, indices: Tensor, role: str) -> Tensor:
        """The same refusal alone. ->  the indices, in the graph's own shape"""
        if not any(lookup.inputs):  # counted within the operation
            return indices
        made = self.read(lookup, f"the indices of {role}")
        if not self.alike(made, indices):
            what = self.result(*lookup.inputs)
            raise self.steps.unlike(
                f"{lookup.node} looks up {role} with {what}, which are not the indices that BERT takes"
            )
        return made

    def replace(self, step: Learned, numbers: Tensor) -> None:
        """Gives other numbers for what a step makes, `[texts, tokens, width]`."""
        self.given[step.output] = numbers.reshape(self.of(step.output, "").shape)
        self.fresh()

    def forget(self, *steps: Learned) -> None:
        """Gives back the memory of what these steps make: nothing may read it any more."""
        for step in steps:
            del self.given[step.output]

    def read(self, step: Learned, where: str) -> Tensor:
        """The sum of a step's inputs."""
        self.fresh()
        found = [self.of(name, where) for name in step.inputs]
        return sum(found[1:], start=found[0])

    def fresh(self) -> None:
        """Forgets what was computed, but for what steps make."""
        self.known.clear()
        self.made = 0

    def _stand_in(self, step: Learned, rows: Sequence[int]) -> None:
        """Random numbers for what a step makes, `[*rows, width]`: far from 0 and near to it, of either sign."""
        each = prod(rows) * step.width <= _MANY  # else a number for each row times one for each column
        wide, high = (10 ** (1.5 * self.random(*shape, work=torch.rand) - 0.5) for shape in ((step.width,), (*rows, 1)))
        self.given[step.output] = self.random(*(rows if each else ()), step.width) * wide * high

    def whole_numbers(self, end: int) -> Tensor:
        """Random whole numbers below `end`, `[texts, tokens]`."""
        return torch.randint(end, self.batch.kept.shape, generator=self.chance, device="cpu")

    def random(self, *shape: int, work: Callable[..., Tensor] = torch.randn) -> Tensor:
        """Random numbers in float64, the same on every day; drawn in float32, which is faster."""
        return work(*shape, generator=self.chance, dtype=torch.float32, device="cpu").double()

    def state(self, step: Learned) -> Tensor:
        """What stands for a step's numbers, `[texts, tokens, width]`; `[texts, width]` where it reads one of each, and
        `[tokens, width]` where they are the same for all texts."""
        found = self.given[step.output]
        whole = found.numel() == self.batch.kept.numel() * step.width
        return found.reshape(*self.batch.kept.shape, -1) if whole else found.reshape(-1, step.width)

    def alike(self, made: Tensor, wanted: Tensor, *, mixed: bool = False, off: float = _OFF) -> bool:
        """Whether numbers are the same, however a table of several axes is cut into rows.

        mixed: they are those of an attention, in which any weight may be a little off, and those of padding anything.
        off: by how much they may differ.
        """
        try:
            made = made.reshape(wanted.shape) if made.numel() == wanted.numel() else made.expand_as(wanted)
        except RuntimeError:
            return False
        if not wanted.is_floating_point():
            return bool((made == wanted).all())
        if mixed:
            made, wanted = made[self.batch.kept], wanted[self.batch.kept]
            return bool(((made - wanted).abs() <= MIXED_OFF * wanted.abs().amax(0)).all())
        return near(made, wanted, off)

    def of(self, name: str, where: str, depth: int = 0) -> Tensor:
        """A value of the graph.

        Raises: CheckpointMismatchError for an operation that is not known, or that these texts do not fit.
        """
        if name in self.given:
            return self.given[name]
        if name not in self.known:
            self._compute(name, where, depth)
        return self.known[name]

    def _compute(self, name: str, where: str, depth: int) -> None:
        part, node = self.steps.constants.get(name), self.steps.graph.makers.get(name)
        if part is not None:
            self.known[name] = part.numbers.double() if part.numbers.is_floating_point() else part.numbers
            return
        if depth > _DEEPEST:
            raise self.steps.unlike(f"more than {_DEEPEST} operations stand on the way to {where}")
        step = self.steps.by_output.get(name)
        if self.blank and isinstance(step, Learned):
            self.known[name] = torch.zeros((), dtype=torch.float64, device="cpu").expand(
                *self.batch.kept.shape, step.width
            )
            return
        if node is None or step is not None:
            raise self.strange(node or f"the input {shown(name)}", where)
        self._work(node, where, depth)
        if name not in self.known:
            raise self.strange(node, where)

    def _work(self, node: Node, where: str, depth: int) -> None:
        """Computes what one operation makes, as far as it is understood."""
        work = WORK.get(node.kind)
        if (whole := self._several(node)) is not None:
            read, work = whole
        elif node.kind in _ROUNDING:
            read, work = node.inputs[:1], WORK["Identity"]
        else:
            read = node.inputs
        if work is None or (node.kind == "DequantizeLinear" and not self.steps.restored(node)):
            raise self.strange(node, where)
        parts = [self.of(name, where, depth + 1) if name else None for name in read]
        if parts and parts[0] is None:
            raise self.strange(node, where)
        try:
            found = work(self._said(node), *parts)
        except ValueError as error:
            raise self.steps.unlike(f"{node} stands on the way to {where}: {error}") from error
        except (RuntimeError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError) as error:
            texts = f"{self.batch.texts} texts of {self.batch.tokens} tokens"
            raise self.steps.unlike(f"{node}, on the way to {where}, does not take {texts}") from error
        for name, numbers in zip(node.outputs, found if isinstance(found, tuple) else (found,), strict=False):
            if numbers is not None:
                self.known[name] = numbers
                self.made += numbers.numel()
                self.in_all += numbers.numel()
        if self.made > _MOST_AT_ONCE or self.in_all > _MOST_IN_ALL:
            raise self.steps.unlike(f"{node}, on the way to {where}, makes more numbers than BERT does")

    def _said(self, node: Node) -> dict[str, Any]:
        """The settings of an operation, with what is meant where the file says nothing."""
        usual: dict[str, dict[str, Any]] = {
            "Split": {"num_outputs": len(node.outputs)},
            "Slice": {"longest": self.batch.longest},
            "Softmax": {"axis": -1 if self.steps.graph.opset >= 13 else 1},
        }
        return usual.get(node.kind, {}) | node.settings

    def _several(self, node: Node) -> tuple[tuple[str, ...], Callable[..., Any]] | None:
        """What an operation that does the work of several reads, and what it makes of that."""
        match node.kind:
            case "Attention" if node.outputs[0] in self.steps.inside:
                made, masks = self.steps.inside[node.outputs[0]], (node.input(3), node.input(5))
            case "Attention":
                made, masks = node.inputs[:3], ("", node.input(3))
            case "MultiHeadAttention":  # whose biases are those of the products before
                made, masks = node.inputs[:3], (node.input(4), node.input(5))
            case "SkipLayerNormalization":  # its norm is a step; the sum goes further on, too
                return node.inputs[:2], lambda said, one, other: (None, None, None, one + other)
            case "EmbedLayerNormalization":
                return node.inputs[7:8], lambda said, mask: (None, mask.sum(-1))
            case _:
                return None
        return (*made, *masks), lambda said, q, k, v, *masks: whole_attention(said, [q, k, v], *masks)

    def result(self, *values: str) -> str:
        """What these values are, for a message: by the nearest operations on the way back."""
        nodes = [found for found in islice(self.steps.back(*values), 3) if isinstance(found, Node)]
        behind = f" (behind {several(map(str, nodes[1:]))})" if nodes[1:] else ""
        return f"the result of {nodes[0]}{behind}" if nodes else "another step"

    def other(self, made: Tensor, wanted: Tensor, where: str, what: str, *values: str) -> CheckpointMismatchError:
        """The error for numbers that BERT does not read there.  what: those that it reads."""
        if made.numel() == wanted.numel():
            one, other = made.reshape(-1).double(), wanted.reshape(-1).double()
            times = float(one @ other / (other @ other))
            if self.alike(made, wanted * times):
                return self.steps.unlike(f"{where} reads {times:.4g} times {what}: {self.result(*values)}")
        return self.steps.unlike(f"{where} reads {self.result(*values)}, where BERT reads {what}")

    def strange(self, what: object, where: str) -> CheckpointMismatchError:
        """The error for an operation that does not belong where it stands."""
        return self.steps.unlike(f"{what} stands on the way to {where}, where BERT has none")

    def _check_norm(self, norm: Norm, summed: Tensor, where: str) -> None:
        """Refuses a norm that is written out as several operations and does something else, or is not of each token."""
        if norm.node.settings.get("axis", -1) not in (-1, summed.dim() - 1):
            raise self.steps.unlike(f"{norm.node} in {where} is no norm of each token")
        if norm.node.kind != "Div":
            return
        self._work(self.steps.graph.makers[norm.output], where, 0)
        made, shape = self.known[norm.output], (norm.width,)
        weight, bias = norm.weight.numbers.double(), norm.bias.numbers.double()
        wanted = functional.layer_norm(summed, shape, weight, bias, norm.epsilon)
        if made.shape != wanted.shape or not bool(
            ((made - wanted).abs() <= ROUNDED * (weight.abs() + wanted.abs())).all()
        ):
            raise self.steps.unlike(f"{norm.node} in {where} is no layer norm")
