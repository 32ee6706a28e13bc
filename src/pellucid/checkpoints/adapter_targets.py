"""Which modules an adapter applies to, as `adapter_config.json` gives them by name.

PEFT attaches nothing to other modules, and silently ignores what a file holds for them.
"""

import re
from dataclasses import dataclass
from typing import Any

from pellucid.errors import InputError, shorten

KEYS = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")

_PLAIN = re.compile(r"[\w.]+")
"""Matches the part before a layer number that is a plain path; other expressions are not evaluated."""

_ANY_LAYER = re.compile(r"\.[^.]*\.(?P<layer>\d+)\.")


@dataclass(frozen=True)
class Targets:
    """Modules by their path or, after a dot, its end; regular expressions are left open.

    included: None where any module may match.  excluded: exceptions.  layers: those that match; None for all.
    layer_prefixes: the part before the layer number; () for anything, None for an expression.
    """

    included: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    layers: frozenset[int] | None = None
    layer_prefixes: tuple[str, ...] | None = ()

    def excluding_key(self, module: str) -> str | None:
        """The key that excludes a module; None for one that may have an adapter."""
        ends = {module[i:] for i in (0, *(dot.end() for dot in re.finditer(r"\.", module)))}
        if ends & self.excluded:
            return "exclude_modules"
        if self.included is not None and module in self.included:
            return None  # a full path matches in every layer
        if self.included is not None and not ends & self.included:
            return "target_modules"
        if self.layers is None or self.layer_prefixes is None or self._layer(module) in self.layers:
            return None
        return "layers_to_transform"

    def _layer(self, module: str) -> int | None:
        """The first layer number in a path."""
        patterns = [re.compile(rf"(?:^|\.){one}\.(?P<layer>\d+)\.") for one in self.layer_prefixes or ()] or [
            _ANY_LAYER
        ]
        found = next((match for pattern in patterns if (match := pattern.search(module))), None)
        return int(found["layer"]) if found and len(found["layer"]) < 10 else None


def read_targets(raw: dict[str, Any]) -> Targets:
    """The values of the four keys. Raises InputError for an invalid one."""
    included, excluded, layer_patterns = (
        _names(raw, key) for key in ("target_modules", "exclude_modules", "layers_pattern")
    )
    stated_layers = raw.get("layers_to_transform")
    layers = stated_layers if isinstance(stated_layers, list) else [] if stated_layers is None else [stated_layers]
    if not all(type(one) is int for one in layers):
        raise InputError(f"layers_to_transform is {shorten(ascii(stated_layers))}, expected the numbers of layers")
    layer_prefixes = (
        (layer_patterns,) if isinstance(layer_patterns, str) and layer_patterns else tuple(layer_patterns or ())
    )
    return Targets(
        frozenset(included) if isinstance(included, list) else None,
        frozenset(excluded) if isinstance(excluded, list) else frozenset(),
        frozenset(layers) or None,
        layer_prefixes if all(_PLAIN.fullmatch(one) for one in layer_prefixes) else None,
    )


def _names(raw: dict[str, Any], key: str) -> list[str] | str | None:
    found = raw.get(key)
    if found is None or isinstance(found, str):
        return found
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InputError(f"{key} is {shorten(ascii(found))}, expected a list of names, or one expression")
    return found
