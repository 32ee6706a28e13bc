"""Converts an ONNX encoder of BERT's kind into the tensors and facts that the reference would have saved."""

import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.checkpoints.convert.bert import read_body
from pellucid.checkpoints.convert.bert_head import PLAIN, read_head
from pellucid.checkpoints.convert.completeness import check_all_used, check_heads, check_shapes
from pellucid.checkpoints.convert.constants import ConstantTensor
from pellucid.checkpoints.convert.graph import printable
from pellucid.checkpoints.convert.match_state import Body
from pellucid.checkpoints.convert.onnx import open_graph
from pellucid.checkpoints.convert.step_readers import read_steps
from pellucid.checkpoints.facts import ACTIVATION_ALIASES
from pellucid.checkpoints.families import bert
from pellucid.errors import Argument, CheckpointMismatchError, InputError, join_names
from pellucid.machine import dtype_name

log = logging.getLogger("pellucid")

_KEYS = """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act
    max_position_embeddings type_vocab_size layer_norm_eps""".split()

DEFAULTS = {key: bert.defaults.facts()[key] for key in _KEYS}
"""BERT's defaults for keys that a config.json leaves out."""

DROPPED_KEYS = ("transformers.js_config", "quantization_config", "auto_map", "torch_dtype", "dtype")
"""Keys about the foreign file, or that name code, which would be wrong or unsafe in the new folder."""


def read_encoder(
    path: Path, raw: dict[str, Any], heads: int | None, progress: bool | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of the file by the reference's names, and the new config.json.

    raw: its config.json.  heads: the number given by the caller, which must match config.json.
    Raises: CheckpointMismatchError with all tensors that are unassigned, missing, or of another shape.
    """
    facts = _checked_facts(path, raw, heads)
    steps, stated = read_steps(open_graph(path), progress), raw.get("architectures") or [""]
    try:
        body = read_body(steps, facts)
        architecture = read_head(body, facts, str(stated[0]))
    except RuntimeError as error:
        raise CheckpointMismatchError(f"{path} has tables that do not fit each other ({str(error)[:160]})") from error
    if stated not in ([architecture], [""]):
        names = join_names(printable(str(name)) for name in stated)
        log.warning("%s holds a %s; config.json said %s", path.name, architecture, names)
    config = {key: value for key, value in raw.items() if key not in DROPPED_KEYS} | {"architectures": [architecture]}
    config |= {"hidden_act": ACTIVATION_ALIASES.get(facts["hidden_act"], facts["hidden_act"])}
    config |= _tie_embeddings(body, raw)
    check_shapes(body, facts, config)
    check_all_used(body)
    prefix = "" if architecture == PLAIN else "bert."
    tensors = {
        name if name.startswith(("cls.", "classifier.", "qa_outputs.")) else prefix + name: part.numbers.contiguous()
        for name, part in body.tables.items()
    }
    dtype = dtype_name(tensors[f"{prefix}embeddings.word_embeddings.weight"].dtype)
    return tensors, config | {"dtype": dtype, "torch_dtype": dtype}


def _checked_facts(path: Path, raw: dict[str, Any], heads: int | None) -> dict[str, Any]:
    kind = raw.get("model_type")
    if kind != "bert":
        raise InputError(f"{path}: model_type {str(kind)[:60]!r} is not converted yet, expected 'bert'")
    facts = {key: raw.get(key, value) for key, value in DEFAULTS.items()}
    for key, value in facts.items():
        kinds = (int, float) if isinstance(DEFAULTS[key], float) else type(DEFAULTS[key])
        if not isinstance(value, kinds) or isinstance(value, bool) or (not isinstance(value, str) and value <= 0):
            raise CheckpointMismatchError(f"{path.name}: config.json says {key} is {str(value)[:40]!r}")
    check_heads(facts["num_attention_heads"], facts["hidden_size"])
    if heads is not None and heads != facts["num_attention_heads"]:
        raise InputError(
            Argument("heads"), f" is {heads}, config.json says {facts['num_attention_heads']}; leave it out"
        )
    return facts


def _tie_embeddings(body: Body, raw: dict[str, Any]) -> dict[str, Any]:
    """Ties input and output embeddings where they are equal; a quantised graph may store one table twice."""
    decoder = body.tables.get("cls.predictions.decoder.weight")
    if decoder is None:
        return {}
    embeddings = body.tables["embeddings.word_embeddings.weight"]
    are_equal = decoder.shape == embeddings.shape and bool((decoder.numbers == embeddings.numbers).all())
    if are_equal and raw.get("tie_word_embeddings", True):
        del body.tables["cls.predictions.decoder.weight"]
        sources = embeddings.sources | decoder.sources
        body.tables["embeddings.word_embeddings.weight"] = ConstantTensor(embeddings.numbers, sources)
        return {}
    if raw.get("tie_word_embeddings", True):
        log.warning("input and output embeddings are not tied; config.json says so: tie_word_embeddings is false")
    body.tables["cls.predictions.decoder.bias"] = body.tables["cls.predictions.bias"]
    return {"tie_word_embeddings": False}
