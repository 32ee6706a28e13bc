"""Which maps of a model its adapter is for, as `adapter_config.json` says by their names.

The library PEFT attaches nothing elsewhere, and leaves out without a word what a file holds for it.
"""

import re
from dataclasses import dataclass
from typing import Any

from pellucid.errors import InputError, shorten

KEYS = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")

_PLAIN = re.compile(r"[\w.]+")
"""What stands before the number of a layer, where it is no expression of more than letters: others are not run."""

_ANY_LAYER = re.compile(r"\.[^.]*\.(?P<layer>\d+)\.")


@dataclass(frozen=True)
class Targets:
    """Modules by their path or, behind a dot, the end of it; what was said by an expression is left open.

    included: None where all may be meant.  excluded: of those.  layers: that are meant; None for all.
    layer_prefixes: what stands before the number of a layer; () for anything, None for an expression.
    """

    included: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    layers: frozenset[int] | None = None
    layer_prefixes: tuple[str, ...] | None = ()

    def excluding_key(self, module: str) -> str | None:
        """The key by which a module has no adapter; None for one that may have one."""
        ends = {module[i:] for i in (0, *(dot.end() for dot in re.finditer(r"\.", module)))}
        if ends & self.excluded:
            return "exclude_modules"
        if self.included is not None and module in self.included:
            return None  # one that is named in full is meant in every layer
        if self.included is not None and not ends & self.included:
            return "target_modules"
        if self.layers is None or self.layer_prefixes is None or self._layer(module) in self.layers:
            return None
        return "layers_to_transform"

    def _layer(self, module: str) -> int | None:
        """The first number of a layer in a path."""
        patterns = [re.compile(rf"(?:^|\.){one}\.(?P<layer>\d+)\.") for one in self.layer_prefixes or ()] or [
            _ANY_LAYER
        ]
        found = next((match for pattern in patterns if (match := pattern.search(module))), None)
        return int(found["layer"]) if found and len(found["layer"]) < 10 else None


def read_targets(raw: dict[str, Any]) -> Targets:
    """What the four keys say. Raises InputError for a value that is none of theirs."""
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
