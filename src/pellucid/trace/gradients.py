"""Gradients of one number of the output with respect to any point."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import InputError, join_names
from pellucid.models import Network, Output


class GradientRecorder:
    """An observer that keeps points as nodes of the graph that leads from them to the output.

    Each kept value is replaced by a tensor of its own, so a layer whose scores or weights are kept computes its output
    from these, step by step, instead of computing them separately. Values that all texts share are expanded to one for
    each (`texts`: how many there are), since their effect on the output differs from text to text.
    """

    def __init__(self, names: Iterable[str], texts: int) -> None:
        self.names, self.texts = frozenset(names), texts
        self.nodes: dict[str, Tensor] = {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        if name not in self.names:
            return value
        if value.shape[0] < self.texts:
            value = value.expand(self.texts, *value.shape[1:])
        node = value.view_as(value) if value.requires_grad else value.detach().clone().requires_grad_()
        self.nodes[name] = node
        return node

    def wants(self, name: str) -> bool:
        return name in self.names


def record_with_gradients(
    module: Network, batch: dict[str, Any], names: Iterable[str], scalar_of: Callable[[Output], Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One pass with the values at `names`, and the gradient of `scalar_of(output)` with respect to each.

    scalar_of: a function of the pass's `Output` that returns one number, `lambda output: output.logits[0, -1, 42]`.
    ->  tensors by name, and gradients of the same shapes; zeros where the number does not depend on a point.

    The gradient of masked scores (minus infinity) is zero. Raises InputError where `scalar_of` returns anything but one
    number that depends on the pass, or modifies the output in place, and for 8- and 4-bit models.
    """
    module.require_float("a gradient")
    recorder = GradientRecorder(names, len(batch["input_ids"]))
    with torch.enable_grad():
        output, nodes = module(**batch, observer=recorder), list(recorder.nodes.values())
        versions = [node._version for node in nodes]
        answer = scalar_of(output)
        _check_scalar(answer)
        if changed := [
            name for name, node, version in zip(recorder.nodes, nodes, versions) if node._version != version
        ]:
            raise InputError(
                f"gradients_of writes into {join_names(changed, 3)}, as the pass gave it: change a clone()"
            )
        gradients = torch.autograd.grad(answer, nodes, materialize_grads=True)
    recorded = {name: node.detach() for name, node in recorder.nodes.items()}
    return recorded, dict(zip(recorder.nodes, gradients))


def _check_scalar(answer: object) -> None:
    if not isinstance(answer, Tensor) or answer.numel() != 1:
        got = f"shape {list(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
        raise InputError(
            f"gradients_of returned {got}, expected a tensor of one number, such as output.logits[0, -1, 42]"
        )
    if answer.is_complex():
        raise InputError("gradients_of returned a complex number, expected a real one: its .abs() or its .real, say")
    if not answer.requires_grad:
        raise InputError("gradients_of returned a number without a gradient: it was detached, or is not of this pass")
