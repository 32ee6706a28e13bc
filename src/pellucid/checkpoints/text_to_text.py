"""T5's config keys for the feed-forward blocks and for what differs in the decoder."""

from typing import Any

from pellucid.checkpoints.facts import ACTIVATION_ALIASES, Computed
from pellucid.config import Config, Gated, Plain
from pellucid.config.checks import ACTIVATIONS, check_bool, check_count
from pellucid.errors import InputError, shorten

_GATED = "gated-"
_PLAIN = {name: name for name in ACTIVATIONS} | ACTIVATION_ALIASES
_GATED_ACTIVATIONS = {_GATED + name: one for name, one in _PLAIN.items() if name != "gelu"}
_ACTIVATIONS = {"gated-gelu": "gelu_new"} | _PLAIN | _GATED_ACTIVATIONS
"""Our activation for each `feed_forward_proj`, as the reference reads it; the first match is the one that is saved."""


def _read_feed_forward(raw: dict[str, Any]) -> dict[str, Any]:
    activation, width = raw.get("feed_forward_proj", "relu"), raw.get("d_ff", 2048)
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        known = f"expected one of {', '.join(_PLAIN)}, or {_GATED!r} before one"
        raise InputError(f"feed_forward_proj is {shorten(repr(activation))}, {known}")
    check_count("d_ff", width)
    for key, meant in (("dense_act_fn", _ACTIVATIONS[activation]), ("is_gated_act", activation.startswith(_GATED))):
        found = raw.get(key, meant)
        if (_PLAIN.get(found, found) if isinstance(found, str) else found) != meant:  # the reference would follow it
            raise InputError(
                f"{key} is {shorten(repr(raw[key]))}, and feed_forward_proj {activation!r} means {meant!r}: "
                "correct one of them"
            )
    kind = Gated if activation.startswith(_GATED) else Plain
    return {"feed_forward": kind(width, _ACTIVATIONS[activation], False), "decoder_intermediate_size": width}


def _write_feed_forward(config: Config) -> dict[str, Any]:
    part, gated = config.feed_forward, isinstance(config.feed_forward, Gated)
    names = (name for name, ours in _ACTIVATIONS.items() if (ours, name.startswith(_GATED)) == (part.hidden_act, gated))
    return {"feed_forward_proj": next(names), "d_ff": part.intermediate_size}


def _read_sides(raw: dict[str, Any]) -> dict[str, Any]:
    heads, layers = raw.get("num_heads", 8), raw.get("num_decoder_layers")
    scaled = raw.get("scale_decoder_outputs", raw.get("tie_word_embeddings", True))
    if layers is None:  # the reference decides this before it resolves the alias of num_layers
        layers = 6 if "num_hidden_layers" in raw else raw.get("num_layers", 6)
    check_count("num_heads", heads)
    check_bool("scale_decoder_outputs", scaled)
    return {
        "num_decoder_layers": layers,
        "decoder_attention_heads": heads,
        "scale_logits": scaled,
    }


def _write_sides(config: Config) -> dict[str, Any]:
    side = config.decoder
    layers = side.num_decoder_layers if side else config.num_hidden_layers
    return {"num_decoder_layers": layers, "scale_decoder_outputs": config.scale_logits}


FEED_FORWARD = Computed(("feed_forward_proj", "d_ff"), _read_feed_forward, _write_feed_forward)
SIDES = Computed(("num_decoder_layers", "scale_decoder_outputs"), _read_sides, _write_sides)
