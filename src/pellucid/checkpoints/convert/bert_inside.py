"""What BERT does between its learned steps: the attention and the activation of one layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.convert.arithmetic import gelu_by_tanh
from pellucid.checkpoints.convert.attention import (
    MIXED_OFF,
    SCALE_OFF,
    check_query,
    check_settings,
    joined,
    near,
    split,
    weights_of,
)
from pellucid.checkpoints.convert.body import Body
from pellucid.checkpoints.convert.graph import Node, shown
from pellucid.checkpoints.convert.steps import Linear, Norm
from pellucid.checkpoints.facts import SPELLINGS
from pellucid.errors import several

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


_FAR = 40.0
"""How many times larger the scores of one text are: what cuts them off shows there."""


def attention_of(body: Body, hidden: Norm, out: Linear, name: str, facts: dict[str, Any]) -> Sequence[Linear]:
    """Query, key and value: what meets in the product under the softmax, and what its weights are multiplied with."""
    heads = facts["num_attention_heads"]
    fused = body.steps.before(*out.inputs)
    softmax = None
    if len(fused) == 3 and len({step.node for step in fused}) == 1:  # made by one operation, in this order
        found = [step for step in fused if isinstance(step, Linear)]
        check_settings(body.steps, fused[0].node, heads, (hidden.width // heads) ** -0.5)
    else:
        found, softmax = _written_out(body, out, name, heads)
        check_query(body.steps, found[0], heads)
    for step, part in zip(found, ("query", "key", "value")):
        if body.steps.before(*step.inputs) != [hidden]:
            raise body.steps.unlike(f"the {part} of {name} does not read the layer's input")
        body.run.check(step, body.run.state(hidden), f"the {part} of {name}", "the layer's input")
    _check_mixed(body, found, out, softmax, name, heads)
    return found


def _written_out(body: Body, out: Linear, name: str, heads: int) -> tuple[list[Linear], Node | None]:
    """Query, key and value; and the softmax, where it is an operation of its own."""
    mixed = _meeting(body, *out.inputs)
    whole = mixed is not None and mixed.kind in ("Attention", "MultiHeadAttention")
    scores = mixed if mixed is None or whole else _meeting(body, mixed.input(0))
    if mixed is None or scores is None:
        raise body.steps.unlike(f"{name} has no attention before {out.node}")
    values = mixed.inputs[:3] if whole else (scores.input(0), scores.input(1), mixed.input(1))
    sides = [body.steps.before(value) for value in values]
    found = [side[0] for side in sides if len(side) == 1 and isinstance(side[0], Linear)]
    if len(found) != 3:
        raise body.steps.unlike(f"{name} does not make query, key and value by one product each")
    if whole:
        check_settings(body.steps, mixed, heads, (found[0].width // heads) ** -0.5)
        return found, None
    nodes = (node for node in body.steps.back(mixed.input(0)) if isinstance(node, Node))
    return found, next((node for node in nodes if node.kind == "Softmax"), None)


def _meeting(body: Body, *values: str) -> Node | None:
    """The nearest product of two computed values on the way back."""
    kinds = ("MatMul", "FusedMatMul", "Attention", "MultiHeadAttention")
    return next((n for n in body.steps.back(*values) if isinstance(n, Node) and n.kind in kinds), None)


def _check_mixed(body: Body, found: Sequence[Linear], out: Linear, softmax: Node | None, name: str, heads: int) -> None:
    """Refuses an attention that does not mix the values as BERT does, with padding left out."""
    for run in body.runs:
        shape, kept = (*run.batch.kept.shape, found[0].width), run.batch.kept
        spread = 10 ** (3 * run.random(shape[-1], work=torch.rand) - 1.5)  # far from 0, and scores that are not
        numbers = [run.random(*shape) * spread, run.random(*shape) / spread, run.random(*shape) * spread]
        numbers[0][0] *= _FAR  # but those of the first text
        for step, one in zip(found, numbers):
            run.replace(step, one)
        query, key, value = (split(one, heads) for one in numbers)
        weights = weights_of(query, key, kept[:, None, None])
        if softmax is not None and run is body.run:
            _check_scale(body, softmax, query, key, name)
            made = run.of(softmax.outputs[0], f"the weights of {name}")
            rows = kept[:, None, :, None]
            if made.shape == weights.shape and not near(_of(rows, made), _of(rows, weights), MIXED_OFF):
                raise body.steps.unlike(f"the weights of {name} ({softmax}) are not those of all tokens but padding")
            body.weights.add(softmax.outputs[0])
        what = "the attention of query, key and value, without what is padding"
        run.check(out, joined(weights @ value), f"{name}.attention.output.dense", what, mixed=True)
    if body.long is not None:
        body.long.forget(*found, out)


def _check_scale(body: Body, softmax: Node, query: Tensor, key: Tensor, name: str) -> None:
    """Refuses scores that are multiplied by another number than one by the root of a head's width.

    query, key: `[texts, heads, tokens, width]`.
    """
    products = query @ key.mT
    made, kept = body.run.of(softmax.input(0), f"the scores of {name}"), body.run.batch.kept
    if made.shape != products.shape:
        return
    pairs = kept[:, None, :, None] & kept[:, None, None]
    one, other = _of(pairs, made), _of(pairs, products)
    usual, times = query.shape[-1] ** -0.5, float(one.flatten() @ other.flatten() / other.square().sum())
    if abs(times / usual - 1) > SCALE_OFF and near(one, other * times, MIXED_OFF):
        scores = _meeting(body, softmax.input(0))
        raise body.steps.unlike(f"its scores are multiplied by {times:.4g} ({scores}), config.json means {usual:.4g}")


def _of(chosen: Tensor, numbers: Tensor) -> Tensor:
    """Numbers with 0 in place of those that are not chosen, which may be NaN."""
    return torch.where(chosen, numbers, 0.0)


def activated(body: Body, up: Linear, value: str, facts: dict[str, Any]) -> Tensor:
    """What the activation of config.json makes of a product.

    value: what the next step reads, for an activation that config.json does not name.
    """
    between = [node for node in body.steps.back(value) if isinstance(node, Node)]
    kinds = {activation_of(node) for node in (*between, up.node)}
    found = [name for name, signs in ACTIVATIONS.items() if kinds & set(signs)]
    said = SPELLINGS.get(facts["hidden_act"], facts["hidden_act"])
    said = ALIKE.get(said, said)
    if said not in ACTIVATIONS:
        raise body.steps.unlike(
            f"hidden_act {shown(facts['hidden_act'])} is not converted, {' or '.join(ACTIVATIONS)} is"
        )
    if said not in found:
        raise body.steps.unlike(
            f"it uses {several(found) or 'no activation that is known'} where config.json says "
            f"hidden_act {shown(facts['hidden_act'])}"
        )
    numbers = body.run.state(up)
    if up.node.kind == "FusedGemm":
        body.run.replace(up, _WORK[str(up.node.settings.get("activation"))](numbers))
    return _WORK[said](numbers)


def activation_of(node: Node) -> str:
    """The activation that an operation is, or holds within; its kind where it is none."""
    if node.settings.get("approximate") == "tanh":
        return f"{node.kind} by tanh"
    if node.kind == "QuickGelu" and node.settings.get("alpha") == 1:  # ONNX Runtime's x * sigmoid(alpha * x)
        return "Silu"
    return str(node.settings["activation"]) if node.kind == "FusedGemm" and "activation" in node.settings else node.kind
