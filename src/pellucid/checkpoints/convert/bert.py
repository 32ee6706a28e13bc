"""Matches the steps of a graph to BERT (Devlin et al., 2018) by what each of them reads, not by its name."""

from math import isclose
from typing import Any

import torch

from pellucid.checkpoints.convert.batch import TEXTS, TOKENS, trial_batch
from pellucid.checkpoints.convert.bert_embeddings import ids_input, read_embeddings
from pellucid.checkpoints.convert.bert_inside import apply_activation, find_attention
from pellucid.checkpoints.convert.match_state import Body
from pellucid.checkpoints.convert.probe import ROUNDING_TOLERANCE, GraphRun
from pellucid.checkpoints.convert.steps import Linear, Norm, Steps

_ACTIVATED = "the activation of the product before"

MIN_HALF_EPSILON = 1.2e-7
"""The epsilon that exporters write where half precision cannot hold the real one."""


def read_body(steps: Steps, facts: dict[str, Any]) -> Body:
    """Matches the embeddings and the number of layers given by `facts`.

    facts: of config.json, with BERT's defaults filled in (see `DEFAULTS` in `encoder.py`).
    Raises: CheckpointMismatchError where the graph computes something else.
    """
    max_length, heads = facts["max_position_embeddings"], facts["num_attention_heads"]
    batch, long_batch = (
        trial_batch(steps, ids_input(steps), max_length, default_sizes, heads)
        for default_sizes in ((TEXTS, TOKENS), (1, max_length))
    )
    body = Body(
        steps,
        GraphRun(steps, batch),
        GraphRun(steps, long_batch, zero_states=True) if long_batch.tokens > batch.tokens else None,
    )
    hidden = read_embeddings(body, facts)
    for i in range(facts["num_hidden_layers"]):
        hidden = _layer(body, hidden, f"encoder.layer.{i}", facts)
    if _norms_after(body, hidden):
        raise body.steps.not_bert_error(f"it has more layers than the {facts['num_hidden_layers']} of config.json")
    body.last_norm = hidden
    norms = [step for step in body.assigned.values() if isinstance(step, Norm)]
    is_half = any(norm.weight.numbers.dtype == torch.float16 for norm in norms)
    tolerances = {"rel_tol": 2e-3, "abs_tol": MIN_HALF_EPSILON if is_half else 0.0}
    wrong_epsilons = [
        norm.epsilon for norm in norms if not isclose(norm.epsilon, facts["layer_norm_eps"], **tolerances)
    ]
    if wrong_epsilons:
        raise body.steps.not_bert_error(
            f"its norms add {wrong_epsilons[0]:.3g}, config.json says layer_norm_eps {facts['layer_norm_eps']}"
        )
    return body


def _layer(body: Body, hidden: Norm, name: str, facts: dict[str, Any]) -> Norm:
    run = body.run
    attention_norm, attention_output = _residual_norm(
        body, hidden, f"{name} has no sum with its attention and norm after it"
    )
    projections = find_attention(body, hidden, attention_output, name, facts)
    for step, part in zip(projections, ("query", "key", "value")):
        body.add_weights(step, f"{name}.attention.self.{part}")
    body.add_weights(attention_output, f"{name}.attention.output.dense")
    _check_sum(run, attention_norm, hidden, attention_output, f"{name}.attention.output")
    body.add_weights(attention_norm, f"{name}.attention.output.LayerNorm")
    output_norm, down = _residual_norm(
        body, attention_norm, f"{name} has no sum with its feed-forward part and norm after it"
    )
    match body.steps.steps_before(*down.inputs):
        case [Linear() as up] if body.steps.steps_before(*up.inputs) == [attention_norm]:
            run.check_input(
                up, run.state_of(attention_norm), f"{name}.intermediate.dense", "the state after the attention"
            )
            run.check_input(
                down,
                apply_activation(body, up, down.inputs[0], facts),
                f"{name}.output.dense",
                _ACTIVATED,
                tolerance=ROUNDING_TOLERANCE,
            )
        case _:
            raise body.steps.not_bert_error(f"{name} has no two products between its norms ({down.node})")
    body.add_weights(up, f"{name}.intermediate.dense")
    body.add_weights(down, f"{name}.output.dense")
    _check_sum(run, output_norm, attention_norm, down, f"{name}.output")
    body.add_weights(output_norm, f"{name}.output.LayerNorm")
    run.release(projections[2], attention_output, up, down)  # query and key: weights may be outputs
    return output_norm


def _check_sum(run: GraphRun, norm: Norm, residual: Norm, product: Linear, name: str) -> None:
    run.check_input(
        norm,
        run.state_of(residual) + run.state_of(product),
        f"{name}.LayerNorm",
        f"the sum of {name}.dense and its input",
    )


def _norms_after(body: Body, hidden: Norm) -> list[tuple[Norm, Linear]]:
    """The norms of the sum of `hidden` and one linear layer's result."""
    found = []
    for norm in body.steps.of_type(Norm):
        before = body.steps.steps_before(*norm.inputs)
        products = [step for step in before if isinstance(step, Linear)]
        if hidden in before and len(before) == 2 and len(products) == 1:
            found.append((norm, products[0]))
    return found


def _residual_norm(body: Body, hidden: Norm, fault: str) -> tuple[Norm, Linear]:
    found = _norms_after(body, hidden)
    if len(found) != 1:
        raise body.steps.not_bert_error(fault)
    return found[0]
