"""Matches the embeddings of BERT in a graph: three tables, each checked with every index that a text can have."""

import logging
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.batch import TEXTS, trial_batch
from pellucid.checkpoints.convert.graph import printable
from pellucid.checkpoints.convert.match_state import Body
from pellucid.checkpoints.convert.probe import GraphRun
from pellucid.checkpoints.convert.steps import Lookup, Norm, Steps

log = logging.getLogger("pellucid")

_MAX_BATCHES = 512
"""Maximum number of batches for looking up every token once; a file with fixed short texts would need thousands."""

_ROLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")


def read_embeddings(body: Body, facts: dict[str, Any]) -> Norm:
    """Matches the token, position and type embeddings and returns the norm after their sum."""
    found = [
        (norm, before)
        for norm in body.steps.of_type(Norm)
        if (before := body.steps.steps_before(*norm.inputs)) and all(isinstance(step, Lookup) for step in before)
    ]
    if len(found) != 1:
        raise body.steps.not_bert_error(f"{len(found)} norms follow looked-up tables, expected one")
    norm, lookups = found[0]
    roles = {_table_role(body, lookup, facts): lookup for lookup in lookups if isinstance(lookup, Lookup)}
    if len(roles) < len(lookups):
        raise body.steps.not_bert_error(f"of {len(lookups)} tables, several are looked up as one of {', '.join(roles)}")
    for role in (role for role in _ROLES if role not in roles):
        raise body.steps.not_bert_error(f"no table is looked up as {role}; export with all inputs and dynamic axes")
    if norm.width != facts["hidden_size"]:
        raise body.steps.not_bert_error(f"it is {norm.width} wide, config.json says hidden_size {facts['hidden_size']}")
    _check_every_index(body, roles, facts)
    indices, *_ = [_set_inputs(run, roles, facts["type_vocab_size"]) for run in body.runs]
    for role, lookup in roles.items():
        body.run.check_lookup(lookup, indices[role], role)
        body.add_weights(lookup, f"embeddings.{role}")
    total = sum((body.run.state_of(lookup) for lookup in roles.values()), start=torch.zeros((), device="cpu"))
    if not _index_input(body.steps, roles["token_type_embeddings"]):
        for name in filter(_is_type_input, body.steps.graph.inputs):
            log.warning(
                "%s: its input %s says no types of tokens; the new folder reads them", body.steps.graph.path.name, name
            )
    body.run.check_input(norm, total, "embeddings.LayerNorm", "the sum of the embeddings")
    body.add_weights(norm, "embeddings.LayerNorm")
    return norm


def ids_input(steps: Steps) -> str:
    """The name of the input of ids."""
    return "input_ids" if "input_ids" in steps.graph.inputs else next(iter(steps.graph.inputs), "")


def _table_role(body: Body, lookup: Lookup, facts: dict[str, Any]) -> str:
    """The role of a table: indices of tokens and types are inputs, those of positions are generated, or named so."""
    rows = lookup.table.shape[0]
    if name := _index_input(body.steps, lookup):
        if "mask" in name:
            raise body.steps.not_bert_error(
                f"its input {printable(name)} says which rows of a table are looked up ({lookup.node})"
            )
        other_role = "position_embeddings" if "position" in name else "token_type_embeddings"
        return "word_embeddings" if name == ids_input(body.steps) else other_role
    if rows == facts["type_vocab_size"] != facts["max_position_embeddings"]:
        return "token_type_embeddings"
    return "position_embeddings"


def _index_input(steps: Steps, lookup: Lookup) -> str:
    """The graph input with the indices of a lookup; "" where they are generated or constant."""
    return next((found for found in steps.walk_back(*lookup.inputs) if isinstance(found, str)), "")


def _check_every_index(body: Body, roles: dict[str, Lookup], facts: dict[str, Any]) -> None:
    """Looks up every token, and every position that a text of this graph can have."""
    max_length = min(facts["max_position_embeddings"], roles["position_embeddings"].table.shape[0])
    run = GraphRun(body.steps, trial_batch(body.steps, ids_input(body.steps), max_length, (TEXTS, max_length)))
    size, rows = run.batch.attention_mask.numel(), roles["word_embeddings"].table.shape[0]
    for start in range(0, min(rows, _MAX_BATCHES * size), size):
        ids = (torch.arange(start, start + size, device="cpu") % rows).reshape(run.batch.attention_mask.shape)
        indices = _set_inputs(run, roles, facts["type_vocab_size"], ids)
        for role, lookup in roles.items():
            run.check_indices(lookup, indices[role], role)


def _set_inputs(
    run: GraphRun, roles: dict[str, Lookup], type_count: int, ids: Tensor | None = None
) -> dict[str, Tensor]:
    """Sets the inputs of a run and returns the expected indices of each table, `[texts, tokens]`.

    ids: None for the first and last ids of the table, and random ones.
    """
    graph, batch = run.steps.graph, run.batch
    if ids is None:
        rows = max(roles["word_embeddings"].table.shape[0], 1)
        ids = run.random_integers(rows)
        edge_ids = torch.arange(batch.tokens, device="cpu") - batch.tokens // 2  # special tokens are at either end
        ids[0] = edge_ids % rows
    positions = torch.arange(batch.tokens, device="cpu").expand(ids.shape)
    indices = dict(zip(_ROLES, (ids, positions, run.random_integers(type_count))))
    input_names = {role: _index_input(run.steps, lookup) for role, lookup in roles.items()}
    others = [name for name in graph.inputs if name not in input_names.values()]
    if all(map(_is_type_input, others)):  # no input marks padding; id 0 may
        indices["word_embeddings"] = ids = ids.clamp(min=min(1, len(roles["word_embeddings"].table.numbers) - 1))
        run.batch = batch = batch._replace(attention_mask=torch.ones_like(batch.attention_mask))
    for name in others:
        run.substitutes[name] = batch.attention_mask.long().reshape(batch.shape)
    for role, name in input_names.items():
        if name:
            run.substitutes[name] = indices[role].reshape(batch.shape)
        elif role == "token_type_embeddings":
            indices[role] = torch.zeros_like(ids)
    return indices


def _is_type_input(name: str) -> bool:
    """Whether an input is named after token types."""
    return "type" in name or "segment" in name
