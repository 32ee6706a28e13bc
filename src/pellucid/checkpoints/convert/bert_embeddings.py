"""Where the embeddings of BERT stand in a graph: three tables, each looked up with every index that a text can have."""

import logging
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.batch import TEXTS, batch_for
from pellucid.checkpoints.convert.body import Body
from pellucid.checkpoints.convert.graph import shown
from pellucid.checkpoints.convert.run import Run
from pellucid.checkpoints.convert.steps import Lookup, Norm, Steps

log = logging.getLogger("pellucid")

_MOST_BATCHES = 512
"""Batches in which all words are looked up once; a file that fixes short texts would need thousands."""

_ROLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")


def read_embeddings(body: Body, facts: dict[str, Any]) -> Norm:
    """The norm after the sum of the tables of words, positions and types."""
    found = [
        (norm, before)
        for norm in body.steps.all(Norm)
        if (before := body.steps.before(*norm.inputs)) and all(isinstance(step, Lookup) for step in before)
    ]
    if len(found) != 1:
        raise body.steps.unlike(f"{len(found)} norms follow looked-up tables, expected one")
    norm, lookups = found[0]
    roles = {_role(body, lookup, facts): lookup for lookup in lookups if isinstance(lookup, Lookup)}
    if len(roles) < len(lookups):
        raise body.steps.unlike(f"of {len(lookups)} tables, several are looked up as one of {', '.join(roles)}")
    for role in (role for role in _ROLES if role not in roles):
        raise body.steps.unlike(f"no table is looked up as {role}; export with all inputs and free lengths")
    if norm.width != facts["hidden_size"]:
        raise body.steps.unlike(f"it is {norm.width} wide, config.json says hidden_size {facts['hidden_size']}")
    _check_every_index(body, roles, facts)
    given, *_ = [_inputs(run, roles, facts["type_vocab_size"]) for run in body.runs]
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


def words_of(steps: Steps) -> str:
    """The input of ids."""
    return "input_ids" if "input_ids" in steps.graph.inputs else next(iter(steps.graph.inputs), "")


def _role(body: Body, lookup: Lookup, facts: dict[str, Any]) -> str:
    """What a table is for: the indices of words and types are inputs; those of positions are counted, or named so."""
    rows = lookup.table.shape[0]
    if given := _asked(body.steps, lookup):
        if "mask" in given:
            raise body.steps.unlike(
                f"its input {shown(given)} says which rows of a table are looked up ({lookup.node})"
            )
        others = "position_embeddings" if "position" in given else "token_type_embeddings"
        return "word_embeddings" if given == words_of(body.steps) else others
    if rows == facts["type_vocab_size"] != facts["max_position_embeddings"]:
        return "token_type_embeddings"
    return "position_embeddings"


def _asked(steps: Steps, lookup: Lookup) -> str:
    """The input of the graph that says which rows are looked up; "" where they are counted, or always the same."""
    return next((found for found in steps.back(*lookup.inputs) if isinstance(found, str)), "")


def _check_every_index(body: Body, roles: dict[str, Lookup], facts: dict[str, Any]) -> None:
    """Looks up every word, and every place that a text of this graph can have."""
    longest = min(facts["max_position_embeddings"], roles["position_embeddings"].table.shape[0])
    run = Run(body.steps, batch_for(body.steps, words_of(body.steps), longest, (TEXTS, longest)))
    size, rows = run.batch.kept.numel(), roles["word_embeddings"].table.shape[0]
    for start in range(0, min(rows, _MOST_BATCHES * size), size):
        words = (torch.arange(start, start + size, device="cpu") % rows).reshape(run.batch.kept.shape)
        given = _inputs(run, roles, facts["type_vocab_size"], words)
        for role, lookup in roles.items():
            run.check_indices(lookup, given[role], role)


def _inputs(run: Run, roles: dict[str, Lookup], types: int, words: Tensor | None = None) -> dict[str, Tensor]:
    """Gives the run its texts; the answer is what each table is then looked up with, `[texts, tokens]`.

    words: the ids; None for the first and the last ones of the table, and random ones.
    """
    graph, batch = run.steps.graph, run.batch
    if words is None:
        rows = max(roles["word_embeddings"].table.shape[0], 1)
        words = run.whole_numbers(rows)
        ends = torch.arange(batch.tokens, device="cpu") - batch.tokens // 2  # special words stand at either end
        words[0] = ends % rows
    places = torch.arange(batch.tokens, device="cpu").expand(words.shape)
    indices = dict(zip(_ROLES, (words, places, run.whole_numbers(types))))
    asked = {role: _asked(run.steps, lookup) for role, lookup in roles.items()}
    others = [name for name in graph.inputs if name not in asked.values()]
    if all(map(_of_types, others)):  # nothing says what is padding, but the id 0 perhaps
        indices["word_embeddings"] = words = words.clamp(min=min(1, len(roles["word_embeddings"].table.numbers) - 1))
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
