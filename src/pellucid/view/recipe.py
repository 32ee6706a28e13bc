"""Turns a trace into the subject of a page: the tensors from which the weights of each attention can be recomputed.

Queries and keys are taken before rotation, so that both can be shown; the rotation is stored beside them. A learned
position bias is stored by distance, after checking that it depends on nothing else.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pellucid.config import RelativeBias
from pellucid.errors import Argument, InputError, shorten
from pellucid.trace import EditRecord, Trace
from pellucid.trace.aliases import resolve
from pellucid.trace.long_text import LongTrace
from pellucid.trace.rotation import cosines_and_sines
from pellucid.trace.trace import single_row
from pellucid.view.arithmetic import Recipe, visible_keys
from pellucid.view.subject import AttentionData, Subject, token_entries


def subject_of(trace: Trace, layers: Collection[int] | None) -> Subject:
    """The subject of the page of `trace`. Raises InputError where the trace lacks what it needs."""
    row = single_row(trace)
    names = _attention_paths(trace)
    if layers is not None:
        _check_layers(layers, {_layer_number(name) for name in names})
        names = [name for name in names if _layer_number(name) in layers]
    attentions = [_attention_data(trace, name) for name in names]
    if not attentions:
        raise InputError(
            "this trace holds no attention: a page needs the query and key, or the weights, of at least one layer; "
            "record with ",
            Argument("keep", "view"),
            ", ",
            Argument("keep", "all"),
            " or ",
            Argument("keep", ["layers.*.attention.*"]),
        )
    written = [row.target or " ".join(row.texts)] if trace.config.kind == "encoder-decoder" else []
    edits = tuple(map(str, trace.edits))
    label = "; ".join(edits) or " | ".join([*row.texts, row.target] if row.target else row.texts)
    return Subject([*row.texts, *written], _sequences(trace), _model_facts(trace), attentions, label, edits)


def _attention_paths(trace: Trace) -> list[str]:
    """The paths of all attentions whose queries and keys, or weights, the trace holds: first those of the encoder, then
    of the decoder, then cross-attention."""
    found = dict.fromkeys(name.rpartition(".")[0] for name in trace if name.rpartition(".")[0].endswith("attention"))
    complete = [name for name in found if f"{name}.weights" in trace or _has_query_and_key(trace, name)]
    return sorted(complete, key=lambda name: ("cross" in name, name.startswith("decoder."), _layer_number(name)))


def _has_query_and_key(trace: Trace, name: str) -> bool:
    return f"{name}.query" in trace and f"{name}.key" in trace


def _layer_number(name: str) -> int:
    return int(name.split("layers.")[1].partition(".")[0])


def _check_layers(layers: Collection[int], known: set[int]) -> None:
    if not layers:
        raise InputError("include_layers names no layer: a page needs at least one")
    for layer in {*layers} - known:
        raise InputError(f"layer {layer} does not exist: this trace has layers {', '.join(map(str, sorted(known)))}")


def _attention_data(trace: Trace, name: str) -> AttentionData:
    """One attention with its recipe; one that cannot be recomputed (after a cache) has only its weights."""
    config = trace.config
    side = name.partition(".")[0] if name.startswith(("encoder.", "decoder.")) else ""
    cross = name.endswith("cross_attention")
    weights = trace[f"{name}.weights"][0].detach().float().cpu() if f"{name}.weights" in trace else None
    queries, keys = (1, 0) if cross or trace.before else (int(side == "decoder"),) * 2
    is_recomputable = _has_query_and_key(trace, name) and not trace.before
    if not is_recomputable and weights is None:
        raise _missing_error(f"{name} comes after a cache, and this trace has no {name + '.weights'!r}")
    sample = trace.samples.get(name) if isinstance(trace, LongTrace) else None
    if weights is None and (edit := _edit_of_weights(trace, name)):
        reason = f"{shorten(repr(str(edit)))} changed the weights that {name} computes from query and key"
        raise _missing_error(f"{reason}, and this trace has no {name + '.weights'!r}")
    kind = "cross" if cross else "self"
    attention = AttentionData(name, _layer_number(name), queries, keys, weights, kind, side, sample=sample)
    if not is_recomputable:
        return attention
    query, key = (trace[f"{name}.{part}"][0].detach().float().cpu() for part in ("query", "key"))
    seq, size = query.shape[1:]
    causal = not cross and config.kind != "encoder" and side != "encoder"
    window = config.attention.sliding_window if causal else None
    mask = "full" if not causal else "causal" if window is None or window >= seq else "window"
    if trace.edits and weights is not None:
        attention_mask = visible_keys(mask, window, torch.arange(seq, device="cpu"), weights.shape[-1])
        if weights.masked_fill(attention_mask, 0.0).any():
            mask = "full"  # edited weights attend where the model's mask forbids it
    bias, rotation = (None, None) if cross else (_distance_bias(trace, side), cosines_and_sines(config, seq))
    if bias is None and not cross and isinstance(config.attention_position, RelativeBias):
        if weights is None:
            raise _missing_error(f"this trace has no distance bias, which {name} needs")
        return attention
    scale = size**-0.5 if config.attention.attention_scale is None else config.attention.attention_scale
    window = window if mask == "window" else None
    return replace(attention, recipe=Recipe(query, key, scale, mask, window, bias, rotation))


def _missing_error(why: str) -> InputError:
    return InputError(f"{why}: record with ", Argument("keep", "view"))


def _edit_of_weights(trace: Trace, name: str) -> EditRecord | None:
    """The first edit after which this attention's weights do not follow from its query and key, or None."""
    between = {f"{name}.{point}" for point in ("query_rotated", "key_rotated", "scores", "weights")}
    return next((one for one in trace.edits if between & {*resolve(one.name, trace.config)}), None)


def _distance_bias(trace: Trace, side: str) -> Tensor | None:
    """The learned bias by distance, Float[Tensor, "heads queries+keys-1"]; None where the model has none.

    None also for a bias that depends on more than the distance: then the weights are found to differ, and are stored.
    """
    name = f"{side}.position_bias".removeprefix(".")
    if name not in trace:
        return None
    table = trace[name][0].detach().float().cpu()
    queries, keys = table.shape[1:]
    by_distance = torch.cat((table[:, 1:, 0].flip(-1), table[:, 0, :]), dim=-1)
    places = torch.arange(keys, device="cpu")[None, :] - torch.arange(queries, device="cpu")[:, None] + queries - 1
    return by_distance if torch.equal(by_distance[:, places], table) else None


# -- facts ------------------------------------------------------------------------------------------------------------


def _sequences(trace: Trace) -> list[dict[str, Any]]:
    """The tokens of the text, or of both sides; after a cache, first all tokens, then those of this pass."""
    row = trace.rows[0]
    tokens = token_entries(row.tokens, row.ids, row.special, row.segments, by_bytes=row.by_bytes)
    if (decoder := trace.config.decoder) is None:
        if not row.before:
            return [{"name": "", "tokens": tokens, "cut": row.cut}]
        before = token_entries(row.before, row.before_ids, [False] * len(row.before), by_bytes=row.by_bytes)
        return [{"name": "all", "tokens": before + tokens}, {"name": "this pass", "tokens": tokens, "cut": row.cut}]
    facts = trace.config
    marks = {facts.pad_token_id, facts.bos_token_id, *facts.end_tokens, decoder.decoder_start_token_id}
    special = [number in marks for number in row.target_ids]
    target = token_entries(row.target_tokens, row.target_ids, special, by_bytes=row.target_by_bytes)
    return [{"name": "encoder", "tokens": tokens, "cut": row.cut}, {"name": "decoder", "tokens": target}]


def _model_facts(trace: Trace) -> dict[str, Any]:
    config = trace.config
    side = {}
    if (decoder := config.decoder) is not None:
        side["num_decoder_layers"] = decoder.num_decoder_layers
        side["decoder_attention_heads"] = decoder.decoder_attention_heads
    return {
        "name": trace.model,
        "family": config.family,
        "kind": config.kind,
        "parameters": trace.parameters,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        **side,
    }
