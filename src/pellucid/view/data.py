"""What a page holds: one manifest, and blocks of numbers beside it.

Queries and keys are stored instead of weights, because they grow with the number of tokens and not with its square; the
browser computes the weights again. What that costs is measured here against the model's own weights, and told on the
page.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid import __version__
from pellucid.config import RelativeBias
from pellucid.errors import InputError
from pellucid.trace import Trace

FORMAT, VERSION = "pellucid-view", 1
MOST_EXACT_BYTES = 5_000_000
"""Up to here blocks are float32; above they are float16."""

_DTYPES = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}


@dataclass(frozen=True)
class Data:
    """manifest: plain JSON values.  blocks: little-endian numbers, row by row, by the names in `manifest["blocks"]`."""

    manifest: dict[str, Any]
    blocks: dict[str, bytes]


def data_of(trace: Trace, layer: int, heads: list[int], precision: str) -> Data:
    """Everything that the page of `trace` needs."""
    if trace.config.kind != "encoder" or isinstance(trace.config.attention_position, RelativeBias):
        raise InputError(
            f"the page draws encoders without a bias for distances so far, not {trace.config.family}; "
            "its numbers are in the trace"
        )
    layers = [f"layers.{i}.attention" for i in range(trace.config.num_hidden_layers)]
    lacking = [
        f"{n}.{part}" for n in layers for part in ("query", "key", "weights") if f"{n}.{part}" not in trace.points
    ]
    if lacking:
        raise InputError(
            f"this trace has no {lacking[0]!r}: a page needs the query, key and weights of every layer; "
            "record with keep='all' or keep=['layers.*.attention.*']"
        )
    kind = _precision(trace, layers, precision)
    blocks: dict[str, bytes] = {}
    facts: dict[str, Any] = {}
    attentions = []
    for i, name in enumerate(layers):
        stored = {}
        for part in ("query", "key"):
            block = f"{name}.{part}"
            stored[part] = trace[block][0].float().cpu().numpy().astype(_DTYPES[kind])
            blocks[block] = stored[part].tobytes()
            facts[block] = {"dtype": kind, "shape": list(stored[part].shape)}
        scale = trace.config.head_dim**-0.5
        error = _error(stored["query"], stored["key"], scale, trace[f"{name}.weights"][0])
        attentions.append(
            {
                "name": name,
                "layer": i,
                "kind": "self",
                "query": f"{name}.query",
                "key": f"{name}.key",
                "recipe": {"scale": scale, "mask": "full"},
                "max_error": error,
            }
        )
    return Data(_manifest(trace, attentions, facts, layer, heads), blocks)


def _manifest(
    trace: Trace, attentions: list[dict[str, Any]], facts: dict[str, Any], layer: int, heads: list[int]
) -> dict[str, Any]:
    config = trace.config
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": {
            "name": trace.model,
            "family": config.family,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "parameters": trace.parameters,
        },
        "texts": list(trace.texts),
        "tokens": [
            {"text": text, "id": id_, "kind": _kind(text, special), "segment": segment}
            for text, id_, special, segment in zip(trace.tokens, trace.ids, trace.special, trace.segments)
        ],
        "attentions": attentions,
        "blocks": facts,
        "show": {"view": "heads", "layer": layer, "heads": heads},
        "made_by": {"pellucid": __version__, "torch": torch.__version__},
    }


def _kind(token: str, special: bool) -> str:
    return "special" if special else "subword" if token.startswith("##") else "word"


def _precision(trace: Trace, layers: list[str], precision: str) -> str:
    if precision not in ("auto", *_DTYPES):
        raise InputError(f"precision is {precision!r}, expected 'auto', 'float32' or 'float16'")
    size = sum(trace[f"{name}.{part}"].numel() for name in layers for part in ("query", "key")) * 4
    return ("float32" if size <= MOST_EXACT_BYTES else "float16") if precision == "auto" else precision


def _error(query: np.ndarray, key: np.ndarray, scale: float, weights: Tensor) -> float:
    """The largest difference between the weights that the browser will compute and the model's own."""
    scores = torch.from_numpy(query.astype(np.float64)) @ torch.from_numpy(key.astype(np.float64)).mT * scale
    return float((scores.softmax(dim=-1) - weights.double().cpu()).abs().max())
