"""Where the steps of a graph stand in BERT (Devlin et al., 2018): found by what each reads, not by its name."""

import logging
from dataclasses import dataclass, field
from math import isclose
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.bert_inside import activated, attention_of
from pellucid.checkpoints.convert.constants import Part
from pellucid.checkpoints.convert.run import Run, batch_for
from pellucid.checkpoints.convert.steps import Linear, Lookup, Norm, Step, Steps
from pellucid.errors import CheckpointMismatchError

log = logging.getLogger("pellucid")

ACTIVE = ("pooler.dense", "intermediate.dense", "predictions.transform.dense")
"""Products that an activation may follow within the same operation."""

_ACTIVATED = "the activation of the product before"

LEAST_OF_HALF = 1.2e-7
"""What exporters make of an epsilon that half precision cannot hold."""


@dataclass
class Body:
    """The encoder of a graph: its tables by the reference's names, and the step that its last hidden state leaves.

    used: every step that has found its place.  run: what stands between them, tried on random numbers.
    weights: names of the values that are weights of attention.
    """

    steps: Steps
    run: Run
    tables: dict[str, Part] = field(default_factory=dict)
    used: list[Step] = field(default_factory=list)
    weights: set[str] = field(default_factory=set)
    last: Norm | None = None

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
        return self.run.wrong(what)


def read_body(steps: Steps, facts: dict[str, Any]) -> Body:
    """Embeddings and layers, as many as `facts` says.

    facts: of config.json: num_hidden_layers, hidden_act, layer_norm_eps, max_position_embeddings, type_vocab_size.
    Raises: CheckpointMismatchError where the graph does something else.
    """
    body = Body(steps, Run(steps, batch_for(steps, _words(steps), facts["max_position_embeddings"])))
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


_MOST_BATCHES = 512
"""Batches in which all words are looked up once; a file that fixes short texts would need thousands."""

_ROLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")


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
    roles = {_role(body, lookup, facts): lookup for lookup in lookups if isinstance(lookup, Lookup)}
    if len(roles) < len(lookups):
        raise body.wrong(f"of {len(lookups)} tables, several are looked up as one of {', '.join(roles)}")
    for role in (role for role in _ROLES if role not in roles):
        raise body.wrong(f"no table is looked up as {role}; export with all inputs and free lengths")
    if norm.width != facts["hidden_size"]:
        raise body.wrong(f"it is {norm.width} wide, config.json says hidden_size {facts['hidden_size']}")
    _check_every_index(body, roles, facts)
    given = _inputs(body.run, roles, facts["type_vocab_size"])
    for role, lookup in roles.items():
        body.run.look_up(lookup, given[role], role)
        body.place(lookup, f"embeddings.{role}")
    total = sum((body.run.state(lookup) for lookup in roles.values()), start=torch.zeros((), device="cpu"))
    if not _asked(body.steps, roles["token_type_embeddings"]):
        for name in filter(_of_types, body.steps.graph.inputs):
            log.warning(
                "%s: its input %s says no types of tokens; the new folder reads them", body.steps.graph.path.name, name
            )
    body.run.check(norm, total, "embeddings.LayerNorm", "the sum of the embeddings")
    body.place(norm, "embeddings.LayerNorm")
    return norm


def _words(steps: Steps) -> str:
    """The input of ids."""
    return "input_ids" if "input_ids" in steps.graph.inputs else next(iter(steps.graph.inputs), "")


def _role(body: Body, lookup: Lookup, facts: dict[str, Any]) -> str:
    """What a table is for: the indices of words and types are inputs; those of positions are counted, or named so."""
    rows = lookup.table.shape[0]
    if given := _asked(body.steps, lookup):
        others = "position_embeddings" if "position" in given else "token_type_embeddings"
        return "word_embeddings" if given == _words(body.steps) else others
    if rows == facts["type_vocab_size"] != facts["max_position_embeddings"]:
        return "token_type_embeddings"
    return "position_embeddings"


def _asked(steps: Steps, lookup: Lookup) -> str:
    """The input of the graph that says which rows are looked up; "" where they are counted, or always the same."""
    return next((found for found in steps.back(*lookup.inputs) if isinstance(found, str)), "")


def _check_every_index(body: Body, roles: dict[str, Lookup], facts: dict[str, Any]) -> None:
    """Looks up every word, and every place that a text of this graph can have."""
    longest = min(facts["max_position_embeddings"], roles["position_embeddings"].table.shape[0])
    run = Run(body.steps, batch_for(body.steps, _words(body.steps), longest, whole=True))
    size, rows = run.batch.kept.numel(), roles["word_embeddings"].table.shape[0]
    for start in range(0, min(rows, _MOST_BATCHES * size), size):
        words = (torch.arange(start, start + size, device="cpu") % rows).reshape(run.batch.kept.shape)
        given = _inputs(run, roles, facts["type_vocab_size"], words)
        for role, lookup in roles.items():
            run.check_indices(lookup, given[role], role)


def _inputs(run: Run, roles: dict[str, Lookup], types: int, words: Tensor | None = None) -> dict[str, Tensor]:
    """Gives the run its texts; the answer is what each table is then looked up with, `[texts, tokens]`.

    words: the ids; None for the first ones of the table, where the special ones stand, and random ones.
    """
    graph, batch = run.steps.graph, run.batch
    if words is None:
        rows = max(roles["word_embeddings"].table.shape[0], 1)
        words = run.whole_numbers(rows)
        words[0] = torch.arange(batch.tokens, device="cpu") % rows
    places = torch.arange(batch.tokens, device="cpu").expand(words.shape)
    indices = dict(zip(_ROLES, (words, places, run.whole_numbers(types))))
    asked = {role: _asked(run.steps, lookup) for role, lookup in roles.items()}
    others = [name for name in graph.inputs if name not in asked.values()]
    if all(map(_of_types, others)):  # nothing says what is padding
        run.batch = batch = batch._replace(kept=torch.ones_like(batch.kept))
    for name in others:
        run.given[name] = batch.kept.long().reshape(batch.shape)
    for role, name in asked.items():
        if name:
            run.given[name] = indices[role].reshape(batch.shape)
        elif role == "token_type_embeddings":
            indices[role] = torch.zeros_like(words)
    return indices


def _of_types(name: str) -> bool:
    """Whether an input is called after the types of tokens."""
    return "type" in name or "segment" in name


def _layer(body: Body, hidden: Norm, name: str, facts: dict[str, Any]) -> Norm:
    run = body.run
    middle, out = _sum(body, hidden, f"{name} has no sum with its attention and norm after it")
    for step, part in zip(attention_of(body, hidden, out, name, facts), ("query", "key", "value")):
        body.place(step, f"{name}.attention.self.{part}")
    body.place(out, f"{name}.attention.output.dense")
    _check_sum(run, middle, hidden, out, f"{name}.attention.output")
    body.place(middle, f"{name}.attention.output.LayerNorm")
    end, down = _sum(body, middle, f"{name} has no sum with its feed-forward part and norm after it")
    match body.steps.before(*down.inputs):
        case [Linear() as up] if body.steps.before(*up.inputs) == [middle]:
            run.check(up, run.state(middle), f"{name}.intermediate.dense", "the state behind the attention")
            run.check(down, activated(body, up, down.inputs[0], facts), f"{name}.output.dense", _ACTIVATED)
        case _:
            raise body.wrong(f"{name} has no two products between its norms ({down.node})")
    body.place(up, f"{name}.intermediate.dense")
    body.place(down, f"{name}.output.dense")
    _check_sum(run, end, middle, down, f"{name}.output")
    body.place(end, f"{name}.output.LayerNorm")
    return end


def _check_sum(run: Run, norm: Norm, past: Norm, made: Linear, where: str) -> None:
    run.check(norm, run.state(past) + run.state(made), f"{where}.LayerNorm", f"the sum of {where}.dense and its input")


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
