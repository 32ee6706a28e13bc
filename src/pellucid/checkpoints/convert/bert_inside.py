"""The computations between BERT's learned steps: attention and activation of one layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.convert.arithmetic import gelu_by_tanh
from pellucid.checkpoints.convert.attention import (
    ATTENTION_TOLERANCE,
    SCALE_TOLERANCE,
    all_close,
    attention_weights,
    check_attributes,
    check_query,
    merge_heads,
    split_heads,
)
from pellucid.checkpoints.convert.graph import Node, printable
from pellucid.checkpoints.convert.match_state import Body
from pellucid.checkpoints.convert.steps import Linear, Norm
from pellucid.checkpoints.facts import ACTIVATION_ALIASES
from pellucid.errors import join_names

ACTIVATIONS = {
    "gelu": ("Erf", "Gelu", "BiasGelu"),
    "gelu_new": ("Tanh", "FastGelu", "Gelu by tanh"),
    "relu": ("Relu",),
    "silu": ("Sigmoid", "Silu", "Swish"),
}
"""The operations that identify an activation in a graph (`activation_of`)."""

SAME_IN_GRAPH = {"gelu_pytorch_tanh": "gelu_new"}
"""Activations that cannot be told apart in a graph."""

_ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu, "gelu_new": gelu_by_tanh, "relu": functional.relu, "silu": functional.silu,
    "Tanh": torch.tanh, "Relu": torch.relu, "Sigmoid": torch.sigmoid,
}  # fmt: skip
"""Activations by our names, and those within fused operations by ONNX's."""


_FIRST_TEXT_SCALE = 40.0
"""How many times larger the scores of the first text are, which reveals clipping."""


def find_attention(body: Body, hidden: Norm, out: Linear, name: str, facts: dict[str, Any]) -> Sequence[Linear]:
    """The query, key and value steps of a layer, after checking its attention against BERT's."""
    heads = facts["num_attention_heads"]
    fused = body.steps.steps_before(*out.inputs)
    softmax = None
    if len(fused) == 3 and len({step.node for step in fused}) == 1:  # a fused operation, whose steps are in this order
        found = [step for step in fused if isinstance(step, Linear)]
        check_attributes(body.steps, fused[0].node, heads, (hidden.width // heads) ** -0.5)
    else:
        found, softmax = _unfused_attention(body, out, name, heads)
        check_query(body.steps, found[0], heads)
    for step, part in zip(found, ("query", "key", "value")):
        if body.steps.steps_before(*step.inputs) != [hidden]:
            raise body.steps.not_bert_error(f"the {part} of {name} does not read the layer's input")
        body.run.check_input(step, body.run.state_of(hidden), f"the {part} of {name}", "the layer's input")
    _check_attention_output(body, found, out, softmax, name, heads)
    return found


def _unfused_attention(body: Body, out: Linear, name: str, heads: int) -> tuple[list[Linear], Node | None]:
    """The query, key and value steps, and the softmax where it is a separate operation."""
    weighted_sum = _nearest_product(body, *out.inputs)
    is_fused = weighted_sum is not None and weighted_sum.op_type in ("Attention", "MultiHeadAttention")
    scores = weighted_sum if weighted_sum is None or is_fused else _nearest_product(body, weighted_sum.input(0))
    if weighted_sum is None or scores is None:
        raise body.steps.not_bert_error(f"{name} has no attention before {out.node}")
    values = weighted_sum.inputs[:3] if is_fused else (scores.input(0), scores.input(1), weighted_sum.input(1))
    sides = [body.steps.steps_before(value) for value in values]
    found = [side[0] for side in sides if len(side) == 1 and isinstance(side[0], Linear)]
    if len(found) != 3:
        raise body.steps.not_bert_error(f"{name} does not make query, key and value by one product each")
    if is_fused:
        check_attributes(body.steps, weighted_sum, heads, (found[0].width // heads) ** -0.5)
        return found, None
    nodes = (node for node in body.steps.walk_back(weighted_sum.input(0)) if isinstance(node, Node))
    return found, next((node for node in nodes if node.op_type == "Softmax"), None)


def _nearest_product(body: Body, *values: str) -> Node | None:
    """The nearest earlier product of two computed values."""
    kinds = ("MatMul", "FusedMatMul", "Attention", "MultiHeadAttention")
    return next((n for n in body.steps.walk_back(*values) if isinstance(n, Node) and n.op_type in kinds), None)


def _check_attention_output(
    body: Body, found: Sequence[Linear], out: Linear, softmax: Node | None, name: str, heads: int
) -> None:
    """Refuses an attention whose output differs from BERT's, with padding masked."""
    for run in body.runs:
        shape, mask = (*run.batch.attention_mask.shape, found[0].width), run.batch.attention_mask
        magnitudes = 10 ** (3 * run.random(shape[-1], sampler=torch.rand) - 1.5)  # far from 0, with moderate scores
        numbers = [run.random(*shape) * magnitudes, run.random(*shape) / magnitudes, run.random(*shape) * magnitudes]
        numbers[0][0] *= _FIRST_TEXT_SCALE  # except those of the first text
        for step, one in zip(found, numbers):
            run.substitute(step, one)
        query, key, value = (split_heads(one, heads) for one in numbers)
        weights = attention_weights(query, key, mask[:, None, None])
        if softmax is not None and run is body.run:
            _check_scale(body, softmax, query, key, name)
            actual = run.value_of(softmax.outputs[0], f"the weights of {name}")
            rows = mask[:, None, :, None]
            if actual.shape == weights.shape and not all_close(
                _masked(rows, actual), _masked(rows, weights), ATTENTION_TOLERANCE
            ):
                raise body.steps.not_bert_error(
                    f"the weights of {name} ({softmax}) are not those of all tokens but padding"
                )
            body.attention_weights.add(softmax.outputs[0])
        what = "the attention of query, key and value, without what is padding"
        run.check_input(out, merge_heads(weights @ value), f"{name}.attention.output.dense", what, is_attention=True)
    if body.long_run is not None:
        body.long_run.release(*found, out)


def _check_scale(body: Body, softmax: Node, query: Tensor, key: Tensor, name: str) -> None:
    """Refuses scores with another scale than 1 / sqrt(head width).

    query, key: `[texts, heads, tokens, width]`.
    """
    products = query @ key.mT
    actual, mask = body.run.value_of(softmax.input(0), f"the scores of {name}"), body.run.batch.attention_mask
    if actual.shape != products.shape:
        return
    visible_pairs = mask[:, None, :, None] & mask[:, None, None]
    one, other = _masked(visible_pairs, actual), _masked(visible_pairs, products)
    scale, factor = query.shape[-1] ** -0.5, float(one.flatten() @ other.flatten() / other.square().sum())
    if abs(factor / scale - 1) > SCALE_TOLERANCE and all_close(one, other * factor, ATTENTION_TOLERANCE):
        scores = _nearest_product(body, softmax.input(0))
        raise body.steps.not_bert_error(
            f"its scores are multiplied by {factor:.4g} ({scores}), config.json means {scale:.4g}"
        )


def _masked(mask: Tensor, numbers: Tensor) -> Tensor:
    """The values with 0 where the mask is False, since those may be NaN."""
    return torch.where(mask, numbers, 0.0)


def apply_activation(body: Body, up: Linear, value: str, facts: dict[str, Any]) -> Tensor:
    """The result of a linear layer after the activation in config.json, which the graph must use as well.

    value: the input of the next step, from which the graph's activation is searched backwards.
    """
    nodes = [node for node in body.steps.walk_back(value) if isinstance(node, Node)]
    op_types = {activation_of(node) for node in (*nodes, up.node)}
    found = [name for name, signs in ACTIVATIONS.items() if op_types & set(signs)]
    activation = ACTIVATION_ALIASES.get(facts["hidden_act"], facts["hidden_act"])
    activation = SAME_IN_GRAPH.get(activation, activation)
    if activation not in ACTIVATIONS:
        raise body.steps.not_bert_error(
            f"hidden_act {printable(facts['hidden_act'])} is not converted, {' or '.join(ACTIVATIONS)} is"
        )
    if activation not in found:
        raise body.steps.not_bert_error(
            f"it uses {join_names(found) or 'no activation that is known'} where config.json says "
            f"hidden_act {printable(facts['hidden_act'])}"
        )
    numbers = body.run.state_of(up)
    if up.node.op_type == "FusedGemm":
        body.run.substitute(up, _ACTIVATION_FUNCTIONS[str(up.node.attributes.get("activation"))](numbers))
    return _ACTIVATION_FUNCTIONS[activation](numbers)


def activation_of(node: Node) -> str:
    """The activation that an operation is or contains; its type where it is not one."""
    if node.attributes.get("approximate") == "tanh":
        return f"{node.op_type} by tanh"
    if node.op_type == "QuickGelu" and node.attributes.get("alpha") == 1:  # ONNX Runtime's x * sigmoid(alpha * x)
        return "Silu"
    return (
        str(node.attributes["activation"])
        if node.op_type == "FusedGemm" and "activation" in node.attributes
        else node.op_type
    )
