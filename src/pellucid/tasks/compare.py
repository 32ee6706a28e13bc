"""Two architectures compared, axis by axis."""

from dataclasses import dataclass
from typing import Any

import torch

from pellucid.checkpoints.families import families
from pellucid.checkpoints.load import read_config
from pellucid.config import Config, NoPosition
from pellucid.errors import NotFoundError, did_you_mean
from pellucid.models.assemble import assemble, tie_parameters, tied_parameters

KINDS = ("norm", "position", "attention_position", "feed_forward", "head")
"""Axes on which a model has one of several types; the settings of the type are rows of their own."""


@dataclass(frozen=True)
class Axis:
    """One fact of both models; None for a model that has no such fact."""

    name: str
    left: Any
    right: Any

    @property
    def differs(self) -> bool:
        return self.left != self.right


def config_of(name: str) -> Config:
    """The facts of a checkpoint, or the defaults of a family where `name` is one (`./bert` is always a folder).

    Raises NotFoundError where it is neither.
    """
    known = families()
    if name in known:
        return known[name].defaults
    try:
        return read_config(name)
    except NotFoundError as error:
        hint = did_you_mean(name, known)
        raise NotFoundError(f"{name!r} is not a family{hint}, and {error}" if hint else str(error)) from error


def compare_configs(left: Config, right: Config) -> list[Axis]:
    """Every axis of both: first the types of parts, then sizes and settings, last the number of parameters."""
    left_axes, right_axes = _axes(left), _axes(right)
    axes = [Axis(name, left_axes.get(name), right_axes.get(name)) for name in left_axes | right_axes]
    return [*axes, Axis("parameters", _parameters(left), _parameters(right))]


def _axes(config: Config) -> dict[str, Any]:
    """Facts by name; those that default to others, such as `head_dim`, with their effective values."""
    facts = {name: value for name, value in config.facts().items() if name not in (*KINDS, "decoder")}
    facts |= {"head_dim": config.head_dim, "num_key_value_heads": config.num_key_value_heads}
    facts["attention_scale"] = config.attention.attention_scale or config.head_dim**-0.5
    if config.head is None:
        del facts["labels"]  # no head uses them
    first = {name: facts.pop(name) for name in ("family", "kind", "residual")}
    kinds = {name: _kind(getattr(config, name)) for name in KINDS}
    return first | kinds | facts


def _kind(part: Any) -> str | None:
    """The name of a part's type; None for no part."""
    if part is None or isinstance(part, NoPosition):
        return None
    return str(getattr(part, "name", type(part).__name__))


def _parameters(config: Config) -> int:
    with torch.device("meta"):
        module = assemble(config)
    tie_parameters(module, tied_parameters(config))
    return sum(p.numel() for p in module.parameters())
