"""Aliases of points: the names of TransformerLens and of the reference's outputs, each mapped to ours.

Under a TransformerLens name a tensor has TransformerLens's axes; see `pellucid.trace.axes`.
"""

import fnmatch
import functools
import logging
import re
from collections import Counter
from collections.abc import Container, Iterator

from pellucid.config import Config, Gated
from pellucid.errors import InputError, did_you_mean, join_names, shorten
from pellucid.trace.points import layers_by_side, points

log = logging.getLogger("pellucid")

_LAYER = {
    "hook_resid_pre": "residual.pre",
    "hook_resid_mid": "residual.mid",
    "hook_resid_mid_cross": "residual.cross",
    "hook_attn_out": "attention.output",
    "hook_cross_attn_out": "cross_attention.output",
    "hook_mlp_out": "feed_forward.output",
    "mlp.hook_post": "feed_forward.hidden",
}
_ATTENTION = {
    "hook_q": "query",
    "hook_k": "key",
    "hook_v": "value",
    "hook_rot_q": "query_rotated",
    "hook_rot_k": "key_rotated",
    "hook_attn_scores": "scores",
    "hook_pattern": "weights",
    "hook_z": "heads",
    "hook_result": "head_outputs",
}
_OUTSIDE_LAYERS = {
    "hook_embed": "embeddings.token",
    "hook_pos_embed": "embeddings.position",
    "hook_token_type_embed": "embeddings.type",
    "embed.hook_embed": "embeddings.token",
    "embed.hook_pos_embed": "embeddings.position",
    "embed.hook_token_type_embed": "embeddings.type",
    "hook_full_embed": "embeddings.output",
    "pooler.hook_pooler_out": "pooled",
    "pooler_output": "pooled",
    "unembed.hook_out": "logits",
}
_NORMALIZED = {"ln_final": "norm", "encoder_final_ln": "encoder.norm", "decoder_final_ln": "decoder.norm"}
"""Norms whose `hook_normalized` TransformerLens records before gain and bias; ours are recorded after both."""
_VERSION_DEPENDENT = {
    "hook_attn_out": "attention.output",
    "attn.hook_attn_scores": "attention.scores",
    "hook_resid_mid": "residual.mid",
    "hook_resid_post": "residual.post",
}
"""Hooks whose value depends on the version of TransformerLens in models that norm after the sum (its bridges record the
normed stream, the weights, and the sum before the last norm), with the point of ours to use instead."""


def resolve(pattern: str, config: Config) -> list[str]:
    """The points that a name or glob stands for, be it ours, TransformerLens's or the reference's.

    Raises InputError, with similar names, where this model has no such point.

    >>> resolve("blocks.3.attn.hook_pattern", config)      # doctest: +SKIP
    ['layers.3.attention.weights']
    """
    return list(resolve_with_alias(pattern, config))


def resolve_with_alias(pattern: str, config: Config) -> dict[str, str]:
    """The same, each point with the name it was requested by: an alias, or its own name."""
    if not isinstance(pattern, str):
        raise InputError(f"a point is called {shorten(repr(pattern))}, expected a name; model.points() lists all")
    if found := matching_points(pattern, config):
        return found
    if message := unavailable_message(pattern, config):
        raise InputError(message)
    names = [*points(config), *aliases(config)]
    raise InputError(
        f"no point is called {shorten(repr(pattern))}{did_you_mean(pattern, names)}; model.points() lists all"
    )


def matching_points(pattern: str, config: Config) -> dict[str, str]:
    """The same, but empty where this model has no such point. Our own names take precedence over aliases."""
    all_points, all_aliases = points(config), aliases(config)
    if pattern in all_points:
        return {pattern: pattern}
    if pattern in all_aliases:
        return {all_aliases[pattern]: pattern}
    if hits := fnmatch.filter(all_points, pattern):
        return {name: name for name in hits}
    alias_by_point = {all_aliases[name]: name for name in fnmatch.filter(all_aliases, _glob(pattern))}
    return {name: alias_by_point[name] for name in all_points if name in alias_by_point}


def unavailable_message(pattern: str, config: Config) -> str:
    """For a TransformerLens name or glob whose values no point has, the reason and the nearest point of ours; else
    ""."""
    return "" if matching_points(pattern, config) else _message_for(pattern, config)


def omitted_message(pattern: str, config: Config, besides: Container[str]) -> str:
    """For a glob that also matches TransformerLens names without a point, a message that names those; else "".

    besides: points that are requested in another way as well.
    """
    has_aliases = not any(name == alias for name, alias in matching_points(pattern, config).items())
    return _message_for(pattern, config, besides, "{} leaves out {}, which") if has_aliases else ""


def warn_of_omitted(pattern: str, config: Config, besides: Container[str]) -> None:
    """Warns of what a glob leaves out where points are only recorded; see `omitted_message`."""
    if message := omitted_message(pattern, config, besides):
        log.warning("%s", message)


def _message_for(
    pattern: str, config: Config, besides: Container[str] = (), head: str = "{} finds no point, since {}"
) -> str:
    unavailable = _unavailable_names(config)
    hits = {
        unavailable[name]: name
        for name in fnmatch.filter(unavailable, _glob(pattern))
        if unavailable[name] not in besides
    }
    if not hits:
        return ""
    own_names, foreign_names = (join_names(_collapse_layers([*names], config)) for names in (hits, hits.values()))
    is_plural = foreign_names != pattern and "," in foreign_names
    head = pattern if foreign_names == pattern else head.format(shorten(pattern), foreign_names)
    if not _is_version_dependent(config):
        are, have, norms = ("are", "have", "their norms") if is_plural else ("is", "has", "its norm")
        reason = f"{are} taken before the gain and bias of {norms} in TransformerLens, and no point here does"
        return f"{head} {reason}: {own_names} {have} both"
    reason = f"{'are each' if is_plural else 'is'} another number from version to version of TransformerLens"
    return f"{head} {reason}, where norms follow the sum: use {own_names}"


def _collapse_layers(names: list[str], config: Config) -> list[str]:
    """Names that occur in every layer as one glob, others unchanged."""
    kinds = [re.sub(r"\.\d+\.", ".*.", name) for name in names]
    counts, layers = Counter(kinds), config.num_hidden_layers
    return [*dict.fromkeys(kind if counts[kind] == layers > 1 else name for name, kind in zip(names, kinds))]


@functools.lru_cache(maxsize=32)
def _unavailable_names(config: Config) -> dict[str, str]:
    """The TransformerLens names whose values no point of this model has, each with the nearest point of ours."""
    nearest = {f"{norm}.hook_normalized": f"{point}.output" for norm, point in _NORMALIZED.items()}
    if _is_version_dependent(config):
        layers = range(config.num_hidden_layers)
        nearest = {
            f"blocks.{i}.{name}": f"layers.{i}.{point}" for i in layers for name, point in _VERSION_DEPENDENT.items()
        }
    return _with_bare({alias: point for alias, point in nearest.items() if point in points(config)})


def _with_bare(table: dict[str, str]) -> dict[str, str]:
    """The same table with the names also without `hook_`, listed before the full ones."""
    return {alias.replace("hook_", ""): point for alias, point in table.items()} | table


def _glob(pattern: str) -> str:
    return pattern.replace("[*]", ".*")


def _is_version_dependent(config: Config) -> bool:
    return config.residual == "post" and config.decoder is None


@functools.lru_cache(maxsize=32)
def aliases(config: Config) -> dict[str, str]:
    """Every alias of a point of this model, with our name; `hook_` may be left out."""
    all_points = points(config)
    all_names = _with_bare(
        {alias: point for alias, point in _transformer_lens_names(config) if point in all_points}
    ) | dict(_reference_names(config))
    return {alias: point for alias, point in all_names.items() if alias not in all_points}


def _transformer_lens_names(config: Config) -> Iterator[tuple[str, str]]:
    """TransformerLens's hook names for this architecture, each with our name; hooks without a point are left out."""
    yield from _OUTSIDE_LAYERS.items()
    if _is_version_dependent(config):
        yield "hook_embed", "embeddings.output"  # theirs is recorded after the norm, if any
    inside = _LAYER | {f"attn.{alias}": f"attention.{point}" for alias, point in _ATTENTION.items()}
    inside |= {f"cross_attn.{alias}": f"cross_attention.{point}" for alias, point in _ATTENTION.items()}
    # where the norm follows the sum, their `hook_resid_post` is recorded before the norm and has no point here
    inside["hook_resid_post" if config.residual == "pre" else "hook_normalized_resid_post"] = "residual.post"
    # of a gate they record the input of the activation, we its output
    inside["mlp.hook_pre_linear" if isinstance(config.feed_forward, Gated) else "mlp.hook_pre"] = "feed_forward.pre"
    if _is_version_dependent(config):
        inside = {name: point for name, point in inside.items() if name not in _VERSION_DEPENDENT}
    for side, layers in layers_by_side(config).items():
        for i in range(layers):
            yield from (
                (f"{side or 'blocks.'}{i}.{name}", f"{side}layers.{i}.{point}") for name, point in inside.items()
            )


def _reference_names(config: Config) -> Iterator[tuple[str, str]]:
    """The names of the reference's outputs, `hidden_states[4]` or `decoder_attentions[-1]`, also written with a dot."""
    for side, layers in layers_by_side(config).items():
        prefix = side.replace(".", "_")
        states = [f"{side}embeddings.output", *(f"{side}layers.{i}.residual.post" for i in range(layers))]
        if config.residual == "pre":
            states[-1] = f"{side}norm.output"  # after the last layer the reference has only the normed stream
        weights = [f"{side}layers.{i}.attention.weights" for i in range(layers)]
        yield from _indexed_names(f"{prefix}hidden_states", states)
        yield from _indexed_names(f"{prefix}attentions", weights)
        yield f"{prefix}last_hidden_state", states[-1]
        if side == "decoder.":
            yield "last_hidden_state", states[-1]
            across = [name.replace(".attention.", ".cross_attention.") for name in weights]
            yield from _indexed_names("cross_attentions", across)


def _indexed_names(name: str, point_names: list[str]) -> Iterator[tuple[str, str]]:
    for i, point in enumerate(point_names):
        for number in (i, i - len(point_names)):
            yield f"{name}[{number}]", point
            yield f"{name}.{number}", point
