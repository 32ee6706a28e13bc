"""Where the steps of a graph stand in BERT (Devlin et al., 2018): found by what each reads, not by its name."""

from dataclasses import dataclass, field
from math import isclose
from typing import Any

import torch

from pellucid.checkpoints.convert.bert_inside import attention_of, check_activation, check_norm
from pellucid.checkpoints.convert.constants import Part
from pellucid.checkpoints.convert.graph import Node, shown
from pellucid.checkpoints.convert.steps import Linear, Lookup, Norm, Step, Steps
from pellucid.checkpoints.convert.ways import Term, Ways
from pellucid.errors import CheckpointMismatchError

ACTIVE = ("pooler.dense", "intermediate.dense", "predictions.transform.dense")
"""Products that an activation may follow within the same operation."""

LEAST_OF_HALF = 1.2e-7
"""What exporters make of an epsilon that half precision cannot hold."""


@dataclass
class Body:
    """The encoder of a graph: its tables by the reference's names, and the step that its last hidden state leaves.

    used: every step that has found its place.  ways: what stands between them.
    scales: what the scores of each layer are multiplied by, and where.
    """

    steps: Steps
    ways: Ways
    tables: dict[str, Part] = field(default_factory=dict)
    used: list[Step] = field(default_factory=list)
    scales: list[tuple[float, Node]] = field(default_factory=list)
    last: Step | None = None

    def place(self, step: Linear | Norm | Lookup, name: str) -> None:
        """Takes the tables of a step as `name`; a product without a bias adds nothing, which is a bias of zeros."""
        self.used.append(step)
        if step.node.kind == "FusedGemm" and not name.endswith(ACTIVE):
            raise self.wrong(f"an activation follows {name} ({step.node})")
        if isinstance(step, Lookup):
            self.tables[f"{name}.weight"] = step.table
            return
        self.tables[f"{name}.weight"] = step.weight
        zeros = Part(step.weight.numbers.new_zeros(step.weight.shape[0]), frozenset())
        self.tables[f"{name}.bias"] = step.bias or zeros

    def wrong(self, what: str) -> CheckpointMismatchError:
        """The error for a graph that is not BERT's."""
        return CheckpointMismatchError(f"{self.steps.graph.path} is not built as BERT is: {what}")


def read_body(steps: Steps, facts: dict[str, Any]) -> Body:
    """Embeddings and layers, as many as `facts` says.

    facts: of config.json: num_hidden_layers, hidden_act, layer_norm_eps, max_position_embeddings, type_vocab_size.
    Raises: CheckpointMismatchError where the graph does something else.
    """
    body = Body(steps, Ways(steps, facts["hidden_size"] // facts["num_attention_heads"]))
    hidden = _embeddings(body, facts)
    for i in range(facts["num_hidden_layers"]):
        hidden = _layer(body, hidden, f"encoder.layer.{i}", facts)
    if _after(body, hidden):
        raise body.wrong(f"it has more layers than the {facts['num_hidden_layers']} of config.json")
    body.last = hidden
    norms = [step for step in body.used if isinstance(step, Norm)]
    half = any(norm.weight.numbers.dtype == torch.float16 for norm in norms)
    allowed = {"rel_tol": 2e-3, "abs_tol": LEAST_OF_HALF if half else 0.0}
    strange = [norm.epsilon for norm in norms if not isclose(norm.epsilon, facts["layer_norm_eps"], **allowed)]
    if strange:
        raise body.wrong(f"its norms add {strange[0]:.3g}, config.json says layer_norm_eps {facts['layer_norm_eps']}")
    return body


def _embeddings(body: Body, facts: dict[str, Any]) -> Norm:
    """The norm after the sum of the tables of words, positions and types."""
    found = [
        (norm, before)
        for norm in body.steps.all(Norm)
        if (before := body.steps.before(*norm.inputs)) and all(isinstance(step, Lookup) for step in before)
    ]
    if len(found) != 1:
        raise body.wrong(f"{len(found)} norms follow looked-up tables, expected one")
    norm, lookups = found[0]
    for lookup in (step for step in lookups if isinstance(step, Lookup)):
        role = _role(body, lookup, facts)
        if f"embeddings.{role}.weight" in body.tables:
            raise body.wrong(f"two tables are looked up as {role}")
        _check_indices(body, lookup, role)
        body.place(lookup, f"embeddings.{role}")
    check_norm(body.ways, norm, lookups, "the sum of the embeddings")
    body.place(norm, "embeddings.LayerNorm")
    return norm


def _role(body: Body, lookup: Lookup, facts: dict[str, Any]) -> str:
    """What a table is for: the indices of words and types are inputs; those of positions are counted, or named so."""
    rows = lookup.table.shape[0]
    given = [found for found in body.steps.back(*lookup.inputs) if isinstance(found, str)]
    if given:
        words = "input_ids" if "input_ids" in body.steps.graph.inputs else body.steps.graph.inputs[0]
        others = "position_embeddings" if "position" in given[0] else "token_type_embeddings"
        return "word_embeddings" if given[0] == words else others
    if rows == facts["type_vocab_size"] != facts["max_position_embeddings"]:
        return "token_type_embeddings"
    return "position_embeddings"


def _check_indices(body: Body, lookup: Lookup, role: str) -> None:
    """Words and types are looked up as they are given; positions are counted from 0, and types not given are 0."""
    steps, value = body.steps, lookup.inputs[0]
    given = any(isinstance(found, str) for found in steps.back(value))
    for _ in range(len(steps.graph.nodes)):
        value = steps.given(value)
        node, whole = steps.graph.makers.get(value), steps.constants.get(value)
        wrong = body.wrong(f"{node or shown(value)} changes the indices with which {lookup.node} looks up {role}")
        if whole is not None and whole.numbers.numel() > 1:
            counted = torch.arange(whole.shape[-1], device="cpu") * (role == "position_embeddings")
            if not bool((whole.numbers == counted).all()):
                raise wrong
        if node is None:
            return
        numbers = [steps.constants.number(name) for name in node.inputs]
        if node.kind == "Range" and (numbers[0], numbers[-1]) != (0, 1):
            raise wrong
        if node.kind in ("Expand", "Transpose", "Slice") and (node.kind != "Slice" or numbers[1:2] in ([0], [])):
            value = node.input(0)
        elif node.kind == "Add" and 0 in numbers:
            value = node.inputs[1 - numbers.index(0)]
        elif given or node.kind in ("Add", "Sub", "Mul", "Div", "Slice"):
            raise wrong
        else:
            return


def _layer(body: Body, hidden: Norm, name: str, facts: dict[str, Any]) -> Norm:
    middle, out = _sum(body, hidden, f"{name} has no sum with its attention and norm after it")
    for step, part in zip(attention_of(body, hidden, out, name), ("query", "key", "value")):
        body.place(step, f"{name}.attention.self.{part}")
    body.place(out, f"{name}.attention.output.dense")
    check_norm(body.ways, middle, [hidden, out], f"{name}.attention.output.LayerNorm")
    body.place(middle, f"{name}.attention.output.LayerNorm")
    end, down = _sum(body, middle, f"{name} has no sum with its feed-forward part and norm after it")
    match body.steps.before(*down.inputs):
        case [Linear() as up] if body.steps.before(*up.inputs) == [middle]:
            body.ways.same(up.inputs, [Term(middle.output)], f"{name}.intermediate.dense")
            check_activation(body, up, down.inputs[0], facts)
        case _:
            raise body.wrong(f"{name} has no two products between its norms ({down.node})")
    body.place(up, f"{name}.intermediate.dense")
    body.place(down, f"{name}.output.dense")
    check_norm(body.ways, end, [middle, down], f"{name}.output.LayerNorm")
    body.place(end, f"{name}.output.LayerNorm")
    return end


def _after(body: Body, hidden: Norm) -> list[tuple[Norm, Linear]]:
    """The norms of a sum of `hidden` and one product."""
    found = []
    for norm in body.steps.all(Norm):
        before = body.steps.before(*norm.inputs)
        products = [step for step in before if isinstance(step, Linear)]
        if hidden in before and len(before) == 2 and len(products) == 1:
            found.append((norm, products[0]))
    return found


def _sum(body: Body, hidden: Norm, otherwise: str) -> tuple[Norm, Linear]:
    found = _after(body, hidden)
    if len(found) != 1:
        raise body.wrong(otherwise)
    return found[0]
