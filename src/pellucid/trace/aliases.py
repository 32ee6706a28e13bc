"""What others call the points: the names of TransformerLens and of the reference's outputs, each led to ours.

Under a name of TransformerLens stand its numbers on its axes; see `pellucid.trace.axes`.
"""

import fnmatch
import functools
from collections.abc import Iterator

from pellucid.config import Config, Gated
from pellucid.errors import InputError, near, short
from pellucid.trace.points import points

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
_AROUND = {
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
_UNSETTLED = {
    "hook_attn_out": "attention.output",
    "attn.hook_attn_scores": "attention.scores",
    "hook_resid_mid": "residual.mid",
    "hook_resid_post": "residual.post",
}
"""What each version of TransformerLens tells another number of, where the norm stands behind the sum: its bridges the
normed stream, the weights, and the sum before the last norm. By what of ours to ask."""


def resolve(asked: str, config: Config) -> list[str]:
    """Our names for what somebody asks for by a name or glob, ours, TransformerLens's or the reference's.

    Raises InputError, with near names, where this model has nothing of that name.

    >>> resolve("blocks.3.attn.hook_pattern", config)      # doctest: +SKIP
    ['layers.3.attention.weights']
    """
    return list(named(asked, config))


def named(asked: str, config: Config) -> dict[str, str]:
    """The same, each of our names with the one that it was asked for by: another's, or ours itself."""
    if not isinstance(asked, str):
        raise InputError(f"a point is called {short(repr(asked))}, expected a name; model.points() lists all")
    own = points(config)
    if asked in own:
        return {asked: asked}
    table = aliases(config)
    if asked in table:
        return {table[asked]: asked}
    if hits := fnmatch.filter(own, asked):
        return {name: name for name in hits}
    theirs = {table[name]: name for name in fnmatch.filter(table, asked.replace("[*]", ".*"))}
    if theirs:
        return {name: theirs[name] for name in own if name in theirs}
    if why := why_not(asked, config):
        raise InputError(why)
    said = short(repr(asked))
    raise InputError(f"no point is called {said}{near(asked, [*own, *table])}; model.points() lists all")


def why_not(asked: str, config: Config) -> str:
    """Of a name of TransformerLens whose numbers no point has, why it has none and what comes nearest; else nothing."""
    norm, _, rest = asked.partition(".")
    if norm in _NORMALIZED and rest.removeprefix("hook_") == "normalized":
        nearest = f"{_NORMALIZED[norm]}.output"
        why = "stands before the gain and bias of its norm in TransformerLens, and no point here does"
        return f"{asked} {why}: {nearest} has both" if nearest in points(config) else ""
    side, number, name = ([*asked.split(".", 2), "", ""])[:3]
    if not _is_unsettled(config) or side != "blocks":
        return ""
    bare = {theirs.replace("hook_", ""): ours for theirs, ours in _UNSETTLED.items()}
    if (ours := bare.get(name.replace("hook_", ""))) is None:
        return ""
    why = "is another number from version to version of TransformerLens, where norms stand behind the sum"
    return f"{asked} {why}: ask for layers.{number}.{ours}"


def _is_unsettled(config: Config) -> bool:
    return config.residual == "post" and config.decoder is None


@functools.lru_cache(maxsize=32)
def aliases(config: Config) -> dict[str, str]:
    """Every name that others have for a point of this model, and ours; `hook_` may be left out."""
    own = points(config)
    whole = {theirs: ours for theirs, ours in _lens(config) if ours in own}
    bare = {theirs.replace("hook_", ""): ours for theirs, ours in whole.items()}
    return {theirs: ours for theirs, ours in (bare | whole | dict(_reference(config))).items() if theirs not in own}


def _lens(config: Config) -> Iterator[tuple[str, str]]:
    """As TransformerLens names the hooks of this architecture; what it has and we have not is not there."""
    yield from _AROUND.items()
    if _is_unsettled(config):
        yield "hook_embed", "embeddings.output"  # theirs is told behind the norm, where the embeddings have one
    inside = _LAYER | {f"attn.{theirs}": f"attention.{ours}" for theirs, ours in _ATTENTION.items()}
    inside |= {f"cross_attn.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()}
    # where the norm stands behind the sum, their `hook_resid_post` is told before it and has no point here
    inside["hook_resid_post" if config.residual == "pre" else "hook_normalized_resid_post"] = "residual.post"
    # of a gate they tell what goes into the activation, we what comes out
    inside["mlp.hook_pre_linear" if isinstance(config.feed_forward, Gated) else "mlp.hook_pre"] = "feed_forward.pre"
    if _is_unsettled(config):
        inside = {name: ours for name, ours in inside.items() if name not in _UNSETTLED}
    for side, theirs, layers in _stacks(config):
        for i in range(layers):
            yield from ((f"{theirs}{i}.{name}", f"{side}layers.{i}.{ours}") for name, ours in inside.items())


def _stacks(config: Config) -> list[tuple[str, str, int]]:
    """Of each stack our prefix, TransformerLens's, and how many layers there are."""
    if config.decoder is None:
        return [("", "blocks.", config.num_hidden_layers)]
    deep = config.decoder.num_decoder_layers
    return [("encoder.", "encoder.", config.num_hidden_layers), ("decoder.", "decoder.", deep)]


def _reference(config: Config) -> Iterator[tuple[str, str]]:
    """As the reference's outputs are called: `hidden_states[4]`, `decoder_attentions[-1]`, also with a dot."""
    for side, _, layers in _stacks(config):
        said = side.replace(".", "_")
        states = [f"{side}embeddings.output", *(f"{side}layers.{i}.residual.post" for i in range(layers))]
        if config.residual == "pre":
            states[-1] = f"{side}norm.output"  # behind the last layer the reference shows the normed stream alone
        weights = [f"{side}layers.{i}.attention.weights" for i in range(layers)]
        yield from _numbered(f"{said}hidden_states", states)
        yield from _numbered(f"{said}attentions", weights)
        yield f"{said}last_hidden_state", states[-1]
        if side == "decoder.":
            yield "last_hidden_state", states[-1]
            yield from _numbered("cross_attentions", [n.replace(".attention.", ".cross_attention.") for n in weights])


def _numbered(name: str, ours: list[str]) -> Iterator[tuple[str, str]]:
    for i, point in enumerate(ours):
        for number in (i, i - len(ours)):
            yield f"{name}[{number}]", point
            yield f"{name}.{number}", point
