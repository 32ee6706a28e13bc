"""What others call the points: the names of TransformerLens and of the reference's outputs, each led to ours.

Under a name of TransformerLens stand its numbers on its axes; see `pellucid.trace.axes`.
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
"""Norms whose `hook_normalized` TransformerLens tells before gain and bias; of ours each is one step, with both."""
_VERSION_DEPENDENT = {
    "hook_attn_out": "attention.output",
    "attn.hook_attn_scores": "attention.scores",
    "hook_resid_mid": "residual.mid",
    "hook_resid_post": "residual.post",
}
"""What each version of TransformerLens tells another number of, where the norm stands behind the sum: its bridges the
normed stream, the weights, and the sum before the last norm. By what of ours to ask."""


def resolve(pattern: str, config: Config) -> list[str]:
    """Our names for what somebody asks for by a name or glob, ours, TransformerLens's or the reference's.

    Raises InputError, with near names, where this model has nothing of that name.

    >>> resolve("blocks.3.attn.hook_pattern", config)      # doctest: +SKIP
    ['layers.3.attention.weights']
    """
    return list(resolve_with_alias(pattern, config))


def resolve_with_alias(pattern: str, config: Config) -> dict[str, str]:
    """The same, each of our names with the one that it was asked for by: another's, or ours itself."""
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
    """The same, nothing where this model has nothing of that name. Names of ours go before those of others."""
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
    """Of a name or glob of TransformerLens's names whose numbers no point has, why it has none and what comes nearest;
    else nothing."""
    return "" if matching_points(pattern, config) else _message_for(pattern, config)


def omitted_message(pattern: str, config: Config, besides: Container[str]) -> str:
    """Of a glob that reaches such names beside others, the same of those; else nothing.

    besides: points of ours that are asked for otherwise, too.
    """
    has_aliases = not any(name == alias for name, alias in matching_points(pattern, config).items())
    return _message_for(pattern, config, besides, "{} leaves out {}, which") if has_aliases else ""


def warn_of_omitted(pattern: str, config: Config, besides: Container[str]) -> None:
    """Warns of what a glob of what is only looked at leaves out; see `omitted_message`."""
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
        reason = (
            f"stand{'' if is_plural else 's'} before the gain and bias of {'their norms' if is_plural else 'its norm'}"
        )
        have = "have" if is_plural else "has"
        return f"{head} {reason} in TransformerLens, and no point here does: {own_names} {have} both"
    reason = f"{'are each' if is_plural else 'is'} another number from version to version of TransformerLens"
    return f"{head} {reason}, where norms stand behind the sum: ask for {own_names}"


def _collapse_layers(names: list[str], config: Config) -> list[str]:
    """Names of which there is one in every layer as one glob; others as they are."""
    kinds = [re.sub(r"\.\d+\.", ".*.", name) for name in names]
    counts, layers = Counter(kinds), config.num_hidden_layers
    return [*dict.fromkeys(kind if counts[kind] == layers > 1 else name for name, kind in zip(names, kinds))]


@functools.lru_cache(maxsize=32)
def _unavailable_names(config: Config) -> dict[str, str]:
    """The names of TransformerLens whose numbers no point of this model has, each with ours that comes nearest."""
    nearest = {f"{norm}.hook_normalized": f"{point}.output" for norm, point in _NORMALIZED.items()}
    if _is_version_dependent(config):
        layers = range(config.num_hidden_layers)
        nearest = {
            f"blocks.{i}.{name}": f"layers.{i}.{point}" for i in layers for name, point in _VERSION_DEPENDENT.items()
        }
    return _with_bare({alias: point for alias, point in nearest.items() if point in points(config)})


def _with_bare(table: dict[str, str]) -> dict[str, str]:
    """Names of TransformerLens also without `hook_`, before the whole ones."""
    return {alias.replace("hook_", ""): point for alias, point in table.items()} | table


def _glob(pattern: str) -> str:
    return pattern.replace("[*]", ".*")


def _is_version_dependent(config: Config) -> bool:
    return config.residual == "post" and config.decoder is None


@functools.lru_cache(maxsize=32)
def aliases(config: Config) -> dict[str, str]:
    """Every name that others have for a point of this model, and ours; `hook_` may be left out."""
    all_points = points(config)
    all_names = _with_bare(
        {alias: point for alias, point in _transformer_lens_names(config) if point in all_points}
    ) | dict(_reference_names(config))
    return {alias: point for alias, point in all_names.items() if alias not in all_points}


def _transformer_lens_names(config: Config) -> Iterator[tuple[str, str]]:
    """As TransformerLens names the hooks of this architecture; what it has and we have not is not there."""
    yield from _OUTSIDE_LAYERS.items()
    if _is_version_dependent(config):
        yield "hook_embed", "embeddings.output"  # theirs is told behind the norm, where the embeddings have one
    inside = _LAYER | {f"attn.{alias}": f"attention.{point}" for alias, point in _ATTENTION.items()}
    inside |= {f"cross_attn.{alias}": f"cross_attention.{point}" for alias, point in _ATTENTION.items()}
    # where the norm stands behind the sum, their `hook_resid_post` is told before it and has no point here
    inside["hook_resid_post" if config.residual == "pre" else "hook_normalized_resid_post"] = "residual.post"
    # of a gate they tell what goes into the activation, we what comes out
    inside["mlp.hook_pre_linear" if isinstance(config.feed_forward, Gated) else "mlp.hook_pre"] = "feed_forward.pre"
    if _is_version_dependent(config):
        inside = {name: point for name, point in inside.items() if name not in _VERSION_DEPENDENT}
    for side, layers in layers_by_side(config).items():
        for i in range(layers):
            yield from (
                (f"{side or 'blocks.'}{i}.{name}", f"{side}layers.{i}.{point}") for name, point in inside.items()
            )


def _reference_names(config: Config) -> Iterator[tuple[str, str]]:
    """As the reference's outputs are called: `hidden_states[4]`, `decoder_attentions[-1]`, also with a dot."""
    for side, layers in layers_by_side(config).items():
        prefix = side.replace(".", "_")
        states = [f"{side}embeddings.output", *(f"{side}layers.{i}.residual.post" for i in range(layers))]
        if config.residual == "pre":
            states[-1] = f"{side}norm.output"  # behind the last layer the reference shows the normed stream alone
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
