"""What stands between two steps of a graph: which values are summed, and what each is multiplied by."""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import torch

from pellucid.checkpoints.convert.graph import REALS, Node, shown
from pellucid.checkpoints.convert.pointwise import SAME, Pointwise, rounded
from pellucid.checkpoints.convert.steps import Steps
from pellucid.errors import CheckpointMismatchError

_DEEPEST = 200
"""Operations behind each other between two steps."""

_MOST = 8
"""Counts of places in a mask that are tried apart: of texts, queries and keys."""

_ENDLESS = 2**31 - 1


class Term(NamedTuple):
    """A value that is summed.  first: only the first position of each text."""

    value: str
    first: bool = False


class Ways:
    """Walks back from a value to the steps that it is made of, through nothing but what is understood.

    ends: values where a walk ends: what steps make, and what is between them, such as the answer of a softmax.
    weights: of attention.
    """

    def __init__(self, steps: Steps, width: int) -> None:
        self.steps, self.width = steps, width
        self.ends, self.weights = {*steps.by_output, *steps.inside}, set[str]()
        self.carried = self._carried()
        self.known: dict[tuple[str, bool], dict[Term, float]] = {}

    def _carried(self) -> set[str]:
        """All values that are computed from a step, other than from its shape or type."""
        waiting = [*self.ends, *(step.node.outputs[0] for step in self.steps.by_output.values())]
        found = set(waiting)
        while waiting:
            name = waiting.pop()
            for node in self.steps.graph.readers.get(name, []):
                if node.kind in ("Shape", "Size") or (node.kind == "CastLike" and node.input(0) != name):
                    continue
                new = [output for output in node.outputs if output and output not in found]
                found.update(new)
                waiting += new
        return found

    def terms(self, value: str, where: str, *, mask: bool = False, depth: int = 0) -> dict[Term, float]:
        """The values of which `value` is the sum, and the number that each is multiplied by.

        where: what is read there, for a message.  mask: whether something that no step made may be added.
        Raises: CheckpointMismatchError for every operation that does something else.
        """
        if value in self.ends:
            return {Term(value): 1.0}
        if (value, mask) not in self.known:
            self.known[value, mask] = self._terms(value, where, mask, depth)
        return self.known[value, mask]

    def _terms(self, value: str, where: str, mask: bool, depth: int) -> dict[Term, float]:
        node = self.steps.graph.makers.get(value)
        if node is None or depth > _DEEPEST or value not in self.carried:
            raise self.strange(node or "nothing that is computed from the text", where)
        moving = [read for read in node.inputs if read in self.carried]
        real = node.kind == "Cast" and node.settings.get("to") in REALS
        if (node.kind in SAME or real) and node.input(0) in self.carried:
            return self.terms(node.input(0), where, mask=mask, depth=depth + 1)
        if node.kind == "Where" and (kept := self._kept(node, mask)):
            return self.terms(kept, where, mask=mask, depth=depth + 1)
        if node.kind in ("Add", "Sum") and (len(moving) == len(node.inputs) or mask):
            for read in node.inputs:
                if read not in self.carried:
                    self.check_mask(read, where, node)
            return _sum(self.terms(read, where, mask=mask, depth=depth + 1) for read in moving)
        if node.kind in ("Mul", "Div") and len(moving) == 1 and (node.kind == "Mul" or moving[0] == node.input(0)):
            factor = self._factor(next(read for read in node.inputs if read != moving[0]), node, where)
            found = self.terms(moving[0], where, mask=mask, depth=depth + 1)
            return {term: one * (factor if node.kind == "Mul" else 1 / factor) for term, one in found.items()}
        if node.kind in ("Gather", "Slice"):
            found = self.terms(node.input(0), where, mask=mask, depth=depth + 1)
            first = self._is_first(node, where)
            if first and any(term.first for term in found):
                raise self.strange(node, where)
            return {Term(term.value, term.first or first): one for term, one in found.items()}
        if value == node.outputs[0] and (source := rounded(self.steps.constants, node)):
            return self.terms(source, where, mask=mask, depth=depth + 1)
        added = node.kind in ("Add", "Sum", "Sub") and len(moving) < len(node.inputs)
        raise self.strange(f"{node} with a constant" if added else node, where)

    def _factor(self, name: str, node: Node, where: str) -> float:
        """The number that values are multiplied by."""
        try:
            found = Pointwise(self.steps.constants, {}, width=self.width).of(name)
        except CheckpointMismatchError as error:
            raise self.strange(node, where) from error
        if found.numel() != 1 or not found.item():
            raise self.strange(node, where)
        return float(found.item())

    def _kept(self, node: Node, mask: bool) -> str:
        """The value that a choice lets through: what is no number becomes 0, what is masked a very low number."""
        condition = self.steps.graph.makers.get(node.input(0))
        for kept, other in ((node.input(2), node.input(1)), (node.input(1), node.input(2))):
            number = self.steps.constants.number(other)
            if kept not in self.carried or number is None:
                continue
            if number == 0 and condition is not None and condition.kind == "IsNaN" and condition.input(0) == kept:
                return kept
            if mask and number <= -1000 and node.input(0) not in self.carried:
                self.check_mask(node.input(0), "the scores", node, (kept == node.input(1), kept != node.input(1)))
                return kept
        return ""

    def _is_first(self, node: Node, where: str) -> bool:
        """Whether the first position of each text is taken; False where everything is."""
        vectors = [self.steps.constants.get(name) for name in node.inputs[1:]]
        numbers = [part.numbers.reshape(-1).tolist() for part in vectors if part is not None]
        if node.kind == "Gather":
            if node.settings.get("axis", 0) == 1 and numbers == [[0]]:
                return True
        elif len(numbers) == len(node.inputs) - 1 or not node.inputs[1:]:
            said = [node.settings.get(name) for name in ("starts", "ends", "axes")]
            starts, ends, axes, steps = [*numbers, None, None, None, None][:4] if numbers else [*said, None]
            if starts == [0] and steps in (None, [1]) and isinstance(ends, list) and ends:
                if ends[0] >= _ENDLESS:
                    return False
                if ends == [1] and axes == [1]:
                    return True
        raise self.strange(node, where)

    def strange(self, what: object, where: str) -> CheckpointMismatchError:
        """The error for an operation that does not belong where it stands."""
        return CheckpointMismatchError(
            f"{self.steps.graph.path} is not built as BERT is: {what} stands on the way to {where}, where BERT has none"
        )

    def end(self, value: str) -> None:
        """Walks end here too from now on."""
        self.ends.add(value)
        self.known.clear()

    def factor(self, value: str, wanted: Term, where: str, *, mask: bool = False) -> float:
        """The number by which `wanted` is multiplied to become `value`; refuses any other way that it is made."""
        found = self.terms(value, where, mask=mask)
        if set(found) != {wanted}:
            raise self._other(found, [wanted], where, value)
        return found[wanted]

    def check_mask(self, name: str, where: str, node: Node, wanted: tuple[float, float] = (0.0, -1000.0)) -> None:
        """Refuses what is added to scores where it is no mask: nothing for a token, a very low number for padding.

        wanted: what it makes of 1, and what it makes of 0 at most; wherever the tokens stand: none looks only back.
        """
        behind = list(self.steps.back(name))
        places = [found.outputs[0] for found in behind if isinstance(found, Node) and found.kind == "Range"][:_MOST]
        for given, late in product((1, 0) if any(isinstance(found, str) for found in behind) else (1,), ("", *places)):
            inputs = dict.fromkeys(self.steps.graph.inputs, torch.tensor(given, device="cpu"))
            inputs |= {place: torch.tensor(int(place == late), device="cpu") for place in places}
            try:
                numbers = Pointwise(self.steps.constants, inputs, mask=True).of(name).double()
            except CheckpointMismatchError as error:
                raise self.strange(f"{node} with a mask in which {error}", where) from error
            low = wanted[1] < 0 and not given
            if not bool((numbers <= wanted[1] if low else numbers == wanted[1 - given]).all()):
                raise self.strange(f"{node} with {shown(name)}, which is no mask of padding alone,", where)

    def same(self, values: Iterable[str], wanted: Iterable[Term], where: str) -> None:
        """Refuses values whose sum is not the sum of these, each multiplied by 1."""
        values, wanted = list(values), list(wanted)
        found = _sum(self.terms(value, where) for value in values)
        if set(found) != set(wanted) or any(abs(one - 1) > 1e-6 for one in found.values()):
            raise self._other(found, wanted, where, values[0])

    def _other(
        self, found: dict[Term, float], wanted: Iterable[Term], where: str, value: str
    ) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"{self.steps.graph.path} is not built as BERT is: {where} reads {self._told(found)} by "
            f"{self._node(value)}, where BERT reads {self._told(dict.fromkeys(wanted, 1.0))}"
        )

    def _told(self, terms: dict[Term, float]) -> str:
        return " + ".join(
            f"{'' if abs(one - 1) < 1e-6 else f'{one:.4g} times '}{'the first token of ' if term.first else ''}"
            f"{self._node(term.value)}"
            for term, one in terms.items()
        )

    def _node(self, value: str) -> Node:
        step = self.steps.by_output.get(value)
        maker = self.steps.graph.makers.get(value)
        return step.node if step is not None else maker if maker is not None else Node("input", value, (), (value,))


def _sum(parts: Iterable[dict[Term, float]]) -> dict[Term, float]:
    found: dict[Term, float] = {}
    for part in parts:
        for term, one in part.items():
            found[term] = found.get(term, 0.0) + one
    return found
