"""The points of a model: every named intermediate tensor, its axes, and the order in which a pass reaches it.

The axes are listed in one table; which points a model has follows from its facts.
"""

import functools
import re
from collections.abc import Iterator, Mapping

from pellucid.config import Config, Gated, NoPosition, RelativeBias, Rotary
from pellucid.errors import InputError, did_you_mean
from pellucid.errors import shorten as shortened

Axes = tuple[str, ...]

_STREAM: Axes = ("batch", "seq", "hidden")
_BY_HEAD: Axes = ("batch", "heads", "seq", "head_dim")
_BY_KEY_HEAD: Axes = ("batch", "key_heads", "seq", "head_dim")
_TABLE: Axes = ("batch", "heads", "seq", "source")

AXES: dict[str, Axes] = {
    "position_bias": _TABLE,
    "embeddings.token": ("batch", "seq", "width"),
    "embeddings.type": ("batch", "seq", "width"),
    "embeddings.position": ("batch", "seq", "width"),
    "embeddings.output": _STREAM,
    "residual.pre": _STREAM,
    "attention.query": _BY_HEAD,
    "attention.key": _BY_KEY_HEAD,
    "attention.value": _BY_KEY_HEAD,
    "attention.query_rotated": _BY_HEAD,
    "attention.key_rotated": _BY_KEY_HEAD,
    "attention.scores": _TABLE,
    "attention.weights": _TABLE,
    "attention.heads": _BY_HEAD,
    "attention.head_outputs": ("batch", "heads", "seq", "hidden"),
    "attention.output": _STREAM,
    "residual.mid": _STREAM,
    "cross_attention.query": _BY_HEAD,
    "cross_attention.key": ("batch", "key_heads", "source", "head_dim"),
    "cross_attention.value": ("batch", "key_heads", "source", "head_dim"),
    "cross_attention.scores": _TABLE,
    "cross_attention.weights": _TABLE,
    "cross_attention.heads": _BY_HEAD,
    "cross_attention.head_outputs": ("batch", "heads", "seq", "hidden"),
    "cross_attention.output": _STREAM,
    "residual.cross": _STREAM,
    "feed_forward.gate": ("batch", "seq", "inner"),
    "feed_forward.pre": ("batch", "seq", "inner"),
    "feed_forward.hidden": ("batch", "seq", "inner"),
    "feed_forward.output": _STREAM,
    "residual.post": _STREAM,
    "norm.output": _STREAM,
    "pooled": ("batch", "hidden"),
    "logits": ("batch", "seq", "vocab"),
}
"""The axes of every point, by its name without layer and side, in the order of a pass.

batch: one entry per text, or a single one for values that all share (positions).  seq: the tokens that are read; of the
    decoder in cross-attention.  source: the tokens that are attended to, with a cache also the earlier ones.
heads, key_heads: the heads of queries, and of keys and values.  width: of the embedding tables, usually `hidden`.
inner: the neurons of the feed-forward block.
"""

_BEFORE_LAYERS = tuple(name for name in AXES if name.startswith(("position_bias", "embeddings")))
_IN_LAYERS = tuple(
    name for name in AXES if name.startswith(("residual", "attention", "cross_attention", "feed_forward"))
)

VIEW_POINTS = ("attention.query", "attention.key", "attention.weights", "position_bias")
"""Suffixes of the points that a page of attention needs, in any stack: `keep="view"`."""


class Points(Mapping[str, Axes]):
    """The points of one model by name, in the order in which a pass reaches them, each with the names of its axes.

    >>> model.points()["layers.0.attention.weights"]                          # doctest: +SKIP
    ('batch', 'heads', 'seq', 'source')
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._axes = {name: axes_of(name, config) for name in _names(config)}

    def __getitem__(self, name: str) -> Axes:
        if not isinstance(name, str):
            raise InputError(f"a point is indexed by name, not by {shortened(repr(name))}; list() has all of them")
        if name not in self._axes:
            raise InputError(f"this model has no point {shortened(repr(name))}{did_you_mean(name, self._axes)}")
        return self._axes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._axes

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def sizes(self, name: str) -> dict[str, int]:
        """The sizes of those axes of a point that do not depend on the text."""
        axes, facts = self[name], _sizes(self.config, name.startswith("decoder."))
        return {axis: facts[axis] for axis in axes if axis in facts}

    def __repr__(self) -> str:
        rows = {re.sub(r"layers\.\d+", "layers.*", name): name for name in reversed(self._axes)}  # the first of each
        long = max(map(len, rows))
        lines = [f"{row:{long}}  {self._shape(name)}" for row, name in reversed(rows.items())]
        sides = layers_by_side(self.config)
        layers = ", ".join(f"{side}layers.0 to {side}layers.{depth - 1}" for side, depth in sides.items())
        return "\n".join([f"{len(self)} points; * stands for {layers}", *lines])

    def _shape(self, name: str) -> str:
        known = self.sizes(name)
        return " x ".join(f"{axis} {known[axis]}" if axis in known else axis for axis in self[name])


@functools.lru_cache(maxsize=32)
def points(config: Config) -> Points:
    """All points of a model with these facts. The result is cached."""
    return Points(config)


def axes_of(name: str, config: Config) -> Axes:
    """The axes of a point by its full name, such as "decoder.layers.3.attention.weights".

    Raises InputError for a name that is not a point.
    """
    short = re.sub(r"^((encoder|decoder)\.)?(layers\.\d+\.)?", "", name)
    if short == "logits":
        return _logits_axes(config)
    if short not in AXES:
        raise InputError(f"no point is called {name!r}{did_you_mean(short, AXES)}")
    return AXES[short]


def sides_of(name: str) -> tuple[str, str]:
    """The sides whose tokens the axes `seq` and `source` count: "encoder", "decoder", or "" for the only side."""
    if name == "logits":
        return "decoder", ""
    side = name.partition(".")[0]
    side = side if side in ("encoder", "decoder") else ""
    return side, ("encoder" if ".cross_attention." in name else side)


def _logits_axes(config: Config) -> Axes:
    assert config.head is not None  # without a head there are no logits
    answers = "vocab" if config.head.answers == "vocabulary" else "labels"
    return ("batch", answers) if config.head.per == "text" else ("batch", "seq", answers)


def _names(config: Config) -> Iterator[str]:
    for side, layers in layers_by_side(config).items():
        first = [name for name in _BEFORE_LAYERS if _exists(name, config, side)]
        inside = [name for name in _IN_LAYERS if _exists(name, config, side)]
        yield from (f"{side}{name}" for name in first)
        yield from (f"{side}layers.{i}.{name}" for i in range(layers) for name in inside)
        if config.residual == "pre":
            yield f"{side}norm.output"
    if config.pools and config.kind == "encoder":
        yield "pooled"
    if config.head is not None:
        yield "logits"


def layers_by_side(config: Config) -> dict[str, int]:
    """The number of layers on each side, by the prefix of its names."""
    if config.decoder is None:
        return {"": config.num_hidden_layers}
    return {"encoder.": config.num_hidden_layers, "decoder.": config.decoder.num_decoder_layers}


def _exists(name: str, config: Config, side: str) -> bool:
    """Whether a stack of this model has a point of this (short) name."""
    match name:
        case "position_bias":
            return isinstance(config.attention_position, RelativeBias)
        case "embeddings.type":
            return config.type_vocab_size > 0
        case "embeddings.position":
            return not isinstance(config.position, NoPosition)
        case "attention.query_rotated" | "attention.key_rotated":
            return isinstance(config.attention_position, Rotary)
        case "feed_forward.gate":
            return isinstance(config.feed_forward, Gated)
        case _:
            return side == "decoder." or "cross" not in name


def _sizes(config: Config, in_decoder: bool) -> dict[str, int]:
    side = config.decoder if in_decoder else None
    heads = config.num_attention_heads if side is None else side.decoder_attention_heads
    inner = config.feed_forward.intermediate_size if side is None else side.decoder_intermediate_size
    return {
        "heads": heads,
        "key_heads": config.attention.num_key_value_heads or heads,
        "head_dim": config.attention.head_dim or config.hidden_size // heads,
        "hidden": config.hidden_size,
        "width": config.embedding_size or config.hidden_size,
        "inner": inner,
        "vocab": config.vocab_size,
        "labels": len(config.answer_names),
    }
