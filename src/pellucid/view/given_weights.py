"""Turns attention weights of any source, as the reference returns them, into the subject of a page.

Only weights are known here: they are stored as they are, and nothing is recomputed.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.config.checks import require_integer, require_list, value_error
from pellucid.errors import Argument, InputError, Placeholder, shorten
from pellucid.view.subject import AttentionData, Subject, is_byte_level, token_entries

_SPECIAL = re.compile(r"\[[A-Z]+\d*\]|</?[a-z_]+>|<\|[^<>|]+\|>")
"""How vocabularies spell special tokens."""

_SIDES = {
    "attention": ("", ""),
    "encoder_attention": ("encoder", "encoder"),
    "decoder_attention": ("decoder", "decoder"),
    "cross_attention": ("decoder", "encoder"),
}
"""The sides of the queries and of the keys of each kind of attention; "" in a model with one side."""

_ROUNDING_TOLERANCE = 0.01
"""How far rounding in half precision may take a weight above 1, or below 0."""


@dataclass(frozen=True)
class GivenWeights:
    """The arguments of `view` in place of a trace.

    attention: for each layer Float[Tensor | ndarray, "1 heads seq seq"], of self-attention.
    encoder_attention, decoder_attention, cross_attention: the same of an encoder-decoder, any of them; cross-attention
        is [1, heads, decoder tokens, encoder tokens].
    sentence_b_start: the first token of the second text, in `tokens` or `encoder_tokens`.  model: a name for the page.
    """

    attention: Sequence[Any] | None = None
    tokens: Sequence[str] | None = None
    encoder_attention: Sequence[Any] | None = None
    decoder_attention: Sequence[Any] | None = None
    cross_attention: Sequence[Any] | None = None
    encoder_tokens: Sequence[str] | None = None
    decoder_tokens: Sequence[str] | None = None
    sentence_b_start: int | None = None
    model: str = "given weights"


def subject_of_weights(weights: GivenWeights, layers: Collection[int] | None) -> Subject:
    """The subject of the page of these weights. Raises InputError for weights that a page cannot show."""
    single_names, paired_names, paired_tokens = (
        [name for name in names if getattr(weights, name) is not None]
        for names in (
            ("attention", "tokens"),
            ("encoder_attention", "decoder_attention", "cross_attention"),
            ("encoder_tokens", "decoder_tokens"),
        )
    )
    if weights.attention is None and not paired_names:
        raise InputError(
            "there is nothing to show: view takes a trace, or ",
            Argument("attention", Placeholder("...")),
            " with ",
            Argument("tokens", Placeholder("...")),
        )
    if single_names and (paired_names or paired_tokens):
        raise InputError(
            f"{single_names[0]} and {[*paired_names, *paired_tokens][0]} were both given: a model has one side or two"
        )
    if not isinstance(weights.model, str):
        raise value_error("model", weights.model, "a name for the page")
    names = paired_names or ["attention"]
    depth = max(len(require_list(name, getattr(weights, name), "weights of each layer")) for name in names)
    for layer in layers or ():
        if layer not in range(depth):
            raise InputError(f"layer {layer!r} does not exist: these weights have layers 0 to {depth - 1}")
    sequences = _sequences(weights, names)
    attentions = [
        attention for name in names for attention in _attentions(name, getattr(weights, name), sequences, layers)
    ]
    if not attentions:
        raise InputError("there is nothing to show: no layer was given, or none is in include_layers")
    texts = [" ".join(token["text"].strip() for token in sequence["tokens"]) for sequence in sequences]
    return Subject(texts, sequences, _model_facts(weights.model, attentions), attentions, " | ".join(texts))


def _sequences(weights: GivenWeights, names: list[str]) -> list[dict[str, Any]]:
    """The tokens of the one text, or of each side that takes part in attention; the first may be two texts."""
    sides = sorted({side for name in names for side in _SIDES[name]}, reverse=True)
    found = []
    for side in sides:
        name, second = f"{side}_tokens".removeprefix("_"), weights.sentence_b_start if side == sides[0] else None
        found.append({"name": side, "tokens": _tokens(name, getattr(weights, name), second)})
    return found


def _tokens(name: str, tokens: Sequence[str] | None, second: int | None) -> list[dict[str, Any]]:
    if tokens is None:
        raise InputError(f"{name} are missing: the page labels the weights with them")
    checked = require_list(name, tokens, "a list of one token or more")
    for token in checked:
        if not isinstance(token, str):
            raise InputError(
                f"{name} hold {shorten(repr(token))}, expected text: tokenizer.convert_ids_to_tokens makes it of ids"
            )
    if not checked:
        raise InputError(f"{name} are {shorten(repr(tokens))}, expected a list of one token or more")
    if second is not None:
        second = require_integer("sentence_b_start", second, "the position of a token")
        if not 0 < second < len(checked):
            raise InputError(
                f"sentence_b_start is {second}, expected the position of a token from 1 to {len(checked) - 1}"
            )
    special = [_SPECIAL.fullmatch(token) is not None for token in checked]
    segments = [int(second is not None and place >= second) for place in range(len(checked))]
    plain = [token for token, mark in zip(checked, special) if not mark]
    return token_entries(checked, [None] * len(checked), special, segments, by_bytes=is_byte_level(plain))


def _attentions(
    name: str, layer_weights: Any, sequences: list[dict[str, Any]], layers: Collection[int] | None
) -> list[AttentionData]:
    """The layers of one kind of attention, by their indices."""
    sides = [sequence["name"] for sequence in sequences]
    side = _SIDES[name][0]
    queries, keys = map(sides.index, _SIDES[name])
    cross = queries != keys
    size = (len(sequences[queries]["tokens"]), len(sequences[keys]["tokens"]))
    if getattr(layer_weights, "ndim", 5) == 4:
        shape = list(torch.as_tensor(layer_weights, device="cpu").shape)
        raise InputError(f"{name} is one array of shape {shape}, expected one for each layer: {name}=[...]")
    path = f"{side}." if side else ""
    part = "cross_attention" if cross else "attention"
    return [
        AttentionData(
            f"{path}layers.{i}.{part}", i, queries, keys,
            weights=_checked_weights(f"{name}[{i}]", entry, size),
            kind="cross" if cross else "self", side=side,
        )
        for i, entry in enumerate(layer_weights) if layers is None or i in layers
    ]  # fmt: skip


def _checked_weights(name: str, entry: Any, size: tuple[int, int]) -> Tensor:
    """The checked weights of one layer: Float32[Tensor, "heads queries keys"]"""
    if entry is None:
        raise InputError(
            f"{name} is None: a fused kernel returns no weights; load the reference with attn_implementation='eager' "
            "and call it with output_attentions=True"
        )
    try:
        weights = torch.as_tensor(entry, device="cpu").detach().float()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is {type(entry).__name__}, expected a tensor or an array of numbers") from None
    shape = list(weights.shape)
    if weights.dim() != 4:
        raise InputError(f"{name} has the shape {shape}, expected four axes: [1, heads, {size[0]}, {size[1]}]")
    if shape[0] != 1:
        raise InputError(f"{name} is of {shape[0]} texts, and a page shows one: take one of them, attention[i : i + 1]")
    if tuple(shape[2:]) != size or not shape[1]:
        raise InputError(f"{name} has the shape {shape}, and the tokens need [1, heads, {size[0]}, {size[1]}]")
    if weights.isnan().any():
        head, query, key = weights[0].isnan().nonzero()[0].tolist()
        raise InputError(
            f"{name} holds NaN, first in head {head} from token {query} to token {key}: no page shows that"
        )
    min_weight, max_weight = float(weights.min()), float(weights.max())
    if min_weight < -_ROUNDING_TOLERANCE or max_weight > 1 + _ROUNDING_TOLERANCE:
        worst = min_weight if min_weight < -_ROUNDING_TOLERANCE else max_weight
        raise InputError(f"{name} holds {worst:.4g}, expected weights from 0 to 1: those after softmax, not scores")
    return weights[0]


def _model_facts(name: str, attentions: list[AttentionData]) -> dict[str, Any]:
    sides = {attention.side for attention in attentions}
    counts = {attention.heads for attention in attentions}
    heads = counts.pop() if len(counts) == 1 else 0  # 0: not the same in all layers
    return {
        "name": name,
        "family": "",
        "kind": "encoder" if sides == {""} else "encoder-decoder",
        "parameters": 0,
        "num_hidden_layers": max(attention.layer for attention in attentions) + 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 0,
    }
