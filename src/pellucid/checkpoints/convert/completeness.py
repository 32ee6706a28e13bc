"""Checks a converted encoder: all shapes as in config.json, and no learned tensor of the file left over."""

import logging
import re
from typing import Any

from pellucid.checkpoints.convert.graph import printable
from pellucid.checkpoints.convert.match_state import Body
from pellucid.errors import CheckpointMismatchError, InputError, join_names

log = logging.getLogger("pellucid")


TIED_TABLES = {"embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"}
"""Input and output embeddings, which most models share and a file may store under either name."""


def check_heads(heads: int, width: int) -> None:
    """Refuses a number of heads that does not divide the width."""
    if heads < 1 or width % heads:
        fits = [n for n in range(1, width + 1) if width % n == 0][:20]
        raise InputError(f"{heads} heads do not divide a width of {width}; one of {', '.join(map(str, fits))} does")


def _expected_shapes(facts: dict[str, Any], labels: int) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of BERT and its heads; `{i}` stands for a layer."""
    hidden, inner, vocab_size = facts["hidden_size"], facts["intermediate_size"], facts["vocab_size"]
    sizes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocab_size, hidden),
        "embeddings.position_embeddings.weight": (facts["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (facts["type_vocab_size"], hidden),
        "cls.predictions.bias": (vocab_size,),
    }
    layer = "encoder.layer.{i}"
    norms = (
        "embeddings",
        f"{layer}.attention.output",
        f"{layer}.output",
        "cls.predictions.transform",
    )
    products = {
        **{f"{layer}.attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")},
        f"{layer}.attention.output.dense": (hidden, hidden),
        f"{layer}.intermediate.dense": (inner, hidden),
        f"{layer}.output.dense": (hidden, inner),
        "pooler.dense": (hidden, hidden),
        "cls.predictions.transform.dense": (hidden, hidden),
        "cls.predictions.decoder": (vocab_size, hidden),
        "cls.seq_relationship": (2, hidden),
        "classifier": (labels, hidden),
        "qa_outputs": (2, hidden),
    }
    for name in norms:
        sizes |= {f"{name}.LayerNorm.{last}": (hidden,) for last in ("weight", "bias")}
    for name, shape in products.items():
        sizes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return sizes


def check_shapes(body: Body, facts: dict[str, Any], config: dict[str, Any]) -> None:
    """Checks every tensor's shape against config.json, and adds label names where config.json has none."""
    id2label = config.get("id2label")
    labels = len(id2label) if isinstance(id2label, dict) else config.get("num_labels")
    if labels is None and (classifier := body.tables.get("classifier.weight")):  # only the graph has their number
        labels = classifier.shape[0]
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        config["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
    shapes = _expected_shapes(facts, 1 if config["architectures"] == ["BertForMultipleChoice"] else labels or 2)
    problems = []
    for name, part in body.tables.items():
        expected = shapes[re.sub(r"\.\d+\.", ".{i}.", name)]
        if part.shape != expected:
            problems.append(f"{name} has shape {list(part.shape)}, expected {list(expected)} by config.json")
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointMismatchError(f"{body.steps.graph.path} does not fit: {'; '.join(problems[:3])}{more}")


def check_all_used(body: Body) -> None:
    """Checks that every possibly learned tensor of the file is assigned, and none contrary to its name."""
    graph, names_by_source = body.steps.graph, {}
    for name, part in body.tables.items():
        for source in part.sources:
            names_by_source.setdefault(source, []).append(name)
    unassigned = [name for name in graph.initializers if name not in names_by_source and graph.may_be_weights(name)]
    unread = [name for name in unassigned if name not in graph.consumers and name not in graph.outputs]
    if unread:
        log.warning("%s: no operation reads %s; left out", graph.path.name, join_names(map(printable, unread)))
    if lost := [
        f"{printable(name)} {list(graph.initializers[name].shape)}" for name in unassigned if name not in unread
    ]:
        raise body.steps.not_bert_error(f"{len(lost)} tables have no place in it ({join_names(lost, 4)})")
    for source, names in names_by_source.items():
        stated = _table_in_name(source, body)
        if len(names) == 1 and stated not in (None, names[0]) and {stated, names[0]} != TIED_TABLES:
            raise body.steps.not_bert_error(f"it uses {printable(source)} as {names[0]}")


def _table_in_name(source: str, body: Body) -> str | None:
    """The tensor that a name in the file refers to, whatever its prefix; None where it refers to none."""
    parts = source.split(".")
    return next((name for i in range(len(parts)) if (name := ".".join(parts[i:])) in body.tables), None)
