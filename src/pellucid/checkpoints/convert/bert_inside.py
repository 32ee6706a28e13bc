"""What BERT does between its learned steps: the attention, the activation and the norm of one layer."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.convert.graph import Node, shown
from pellucid.checkpoints.convert.pointwise import Pointwise, gelu_by_tanh
from pellucid.checkpoints.convert.steps import Linear, Norm, Step
from pellucid.checkpoints.convert.ways import Term, Ways
from pellucid.checkpoints.facts import SPELLINGS
from pellucid.errors import CheckpointMismatchError, several

if TYPE_CHECKING:
    from pellucid.checkpoints.convert.bert import Body

ACTIVATIONS = {
    "gelu": ("Erf", "Gelu", "BiasGelu"),
    "gelu_new": ("Tanh", "FastGelu", "Gelu by tanh"),
    "relu": ("Relu",),
    "silu": ("Sigmoid", "Silu", "Swish"),
}
"""How an activation shows in a graph (`activation_of`)."""

ALIKE = {"gelu_pytorch_tanh": "gelu_new"}
"""Activations that a graph does not tell apart."""

_WORK: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu, "gelu_new": gelu_by_tanh, "relu": functional.relu, "silu": functional.silu,
    "Tanh": torch.tanh, "Relu": torch.relu, "Sigmoid": torch.sigmoid,
}  # fmt: skip
"""Activations by our names, and those that an operation may hold within by ONNX's."""

_OFF = 2e-3
"""By how much an operation in half precision may differ."""


def attention_of(body: "Body", hidden: Norm, out: Linear, name: str) -> Sequence[Linear]:
    """Query, key and value: what meets in the product under the softmax, and what its weights are multiplied with."""
    fused = body.steps.before(*out.inputs)
    if len(fused) == 3 and len({step.node for step in fused}) == 1:  # made by one operation, in this order
        found = [step for step in fused if isinstance(step, Linear)]
        body.ways.same(out.inputs, [Term(fused[0].node.outputs[0])], f"{name}.attention.output.dense")
        _check_padding(body, fused[0].node, 3, name)
    else:
        found = _written_out(body, out, name)
    for step, part in zip(found, ("query", "key", "value")):
        if body.steps.before(*step.inputs) != [hidden]:
            raise body.wrong(f"the {part} of {name} does not read the layer's input")
        body.ways.same(step.inputs, [Term(hidden.output)], f"the {part} of {name}")
    return found


def _written_out(body: "Body", out: Linear, name: str) -> list[Linear]:
    mixed, ways = _meeting(body, *out.inputs), body.ways
    whole = mixed is not None and mixed.kind in ("Attention", "MultiHeadAttention")
    scores = mixed if mixed is None or whole else _meeting(body, mixed.input(0))
    if mixed is None or scores is None:
        raise body.wrong(f"{name} has no attention before {out.node}")
    values = mixed.inputs[:3] if whole else (scores.input(0), scores.input(1), mixed.input(1))
    sides = [body.steps.before(value) for value in values]
    found = [side[0] for side in sides if len(side) == 1 and isinstance(side[0], Linear)]
    if len(found) != 3:
        raise body.wrong(f"{name} does not make query, key and value by one product each")
    ways.end(mixed.outputs[0])
    ways.same(out.inputs, [Term(mixed.outputs[0])], f"{name}.attention.output.dense")
    parts = [f"the {part} of {name}" for part in ("query", "key", "value")]
    if whole:
        for value, step, part in zip(values, found, parts):
            ways.same([value], [Term(step.output)], part)
        for place in (3,) if mixed.kind == "Attention" else (4, 5):
            _check_padding(body, mixed, place, name)
        return found
    ways.same([values[2]], [Term(found[2].output)], parts[2])
    _check_scores(body, mixed, scores, found, name)
    return found


def _meeting(body: "Body", *values: str) -> Node | None:
    """The nearest product of two computed values on the way back."""
    kinds = ("MatMul", "FusedMatMul", "Attention", "MultiHeadAttention")
    return next((n for n in body.steps.back(*values) if isinstance(n, Node) and n.kind in kinds), None)


def _check_padding(body: "Body", node: Node, place: int, name: str) -> None:
    """What an attention of one operation adds to its scores, or lets through."""
    if node.input(place):
        where = f"the attention of {name}"
        try:
            body.ways.check_mask(node.input(place), where, node)
        except CheckpointMismatchError:  # a mask that lets through instead
            body.ways.check_mask(node.input(place), where, node, (1.0, 0.0))


def _check_scores(body: "Body", mixed: Node, scores: Node, found: Sequence[Linear], name: str) -> None:
    """Scores are divided by the root of a head's width, masked, and become weights by a softmax over the keys."""
    ways, where = body.ways, f"the scores of {name}"
    softmax = next((n for n in body.steps.back(mixed.input(0)) if isinstance(n, Node) and n.kind == "Softmax"), None)
    if softmax is None or softmax.settings.get("axis", -1) not in (-1, 3):
        raise body.wrong(f"{name} has no softmax over the keys before {mixed}")
    ways.end(softmax.outputs[0])
    ways.weights.add(softmax.outputs[0])
    ways.end(scores.outputs[0])
    ways.same([mixed.input(0)], [Term(softmax.outputs[0])], f"the weights of {name}")
    scale = scores.settings.get("alpha", 1.0) * ways.factor(softmax.input(0), Term(scores.outputs[0]), where, mask=True)
    for value, step, part in zip(scores.inputs, found, ("query", "key")):
        scale *= ways.factor(value, Term(step.output), f"the {part} of {name}")
    if mixed.settings.get("alpha", 1.0) != 1.0:
        raise body.wrong(f"{mixed} multiplies the values of {name}")
    body.scales.append((scale, scores))


def check_activation(body: "Body", up: Linear, value: str, facts: dict[str, Any]) -> None:
    """Refuses anything between a product and `value` but the activation of config.json."""
    between = [node for node in body.steps.back(value) if isinstance(node, Node)]
    kinds = {activation_of(node) for node in (*between, up.node)}
    found = [name for name, signs in ACTIVATIONS.items() if kinds & set(signs)]
    said = SPELLINGS.get(facts["hidden_act"], facts["hidden_act"])
    if ALIKE.get(said, said) not in found:
        raise body.wrong(
            f"it uses {several(found) or 'no activation that is known'} where config.json says "
            f"hidden_act {shown(facts['hidden_act'])}"
        )
    check_pointwise(body, up, value, ALIKE.get(said, said))


def check_pointwise(body: "Body", up: Linear, value: str, wanted: str) -> None:
    """Refuses anything between a product and `value` that does not make of each number what `wanted` does."""
    far = [-100.0, -30.0, -8.0, 8.0, 30.0, 100.0]
    sample = torch.tensor([*(i / 4 for i in range(-16, 17)), *far], dtype=torch.float64, device="cpu")
    inside = up.node.settings.get("activation") if up.node.kind == "FusedGemm" else None
    given = _WORK[inside](sample) if inside in _WORK else sample
    try:
        made = Pointwise(body.steps.constants, {up.output: given}).of(value)
    except CheckpointMismatchError as error:
        raise body.wrong(f"behind {up.node}, where BERT has its activation {wanted}, {error}") from error
    if made.shape != sample.shape or not torch.allclose(made, _WORK[wanted](sample), rtol=_OFF, atol=_OFF):
        node = body.steps.graph.makers.get(value)
        raise body.wrong(f"what stands between {up.node} and {node} is more than the activation {wanted}")


def check_norm(ways: Ways, norm: Norm, summed: Sequence[Step], where: str) -> None:
    """Refuses a norm of anything but the sum of these steps, and one that is no layer norm."""
    ways.same(norm.inputs, [Term(step.output) for step in summed], where)
    check_written_out(ways, norm, where)


def check_written_out(ways: Ways, norm: Norm, where: str) -> None:
    """Refuses a norm that is written out as several operations and does something else."""
    if norm.node.kind != "Div":
        return
    width, constants = norm.weight.shape[0], ways.steps.constants
    seed = torch.Generator("cpu").manual_seed(1)
    sample = torch.randn(1, 3, width, generator=seed, dtype=torch.float64, device="cpu")
    try:
        made = Pointwise(constants, {ways.steps.given(norm.inputs[0]): sample}).of(norm.output)
    except CheckpointMismatchError as error:
        raise CheckpointMismatchError(f"{ways.steps.graph.path}: in the norm {where} {error}") from error
    weight, bias = norm.weight.numbers.double(), norm.bias.numbers.double()
    wanted = functional.layer_norm(sample, (width,), weight, bias, norm.epsilon)
    size = max(1.0, float(wanted.abs().max())) if math.isfinite(float(wanted.abs().max())) else 1.0
    if made.shape != wanted.shape or not torch.allclose(made, wanted, rtol=_OFF, atol=_OFF * size, equal_nan=True):
        raise CheckpointMismatchError(f"{ways.steps.graph.path}: {norm.node} in {where} is no layer norm")


def activation_of(node: Node) -> str:
    """The activation that an operation is, or holds within; its kind where it is none."""
    if node.settings.get("approximate") == "tanh":
        return f"{node.kind} by tanh"
    if node.kind == "QuickGelu" and node.settings.get("alpha") == 1:  # ONNX Runtime's x * sigmoid(alpha * x)
        return "Silu"
    return str(node.settings["activation"]) if node.kind == "FusedGemm" and "activation" in node.settings else node.kind
