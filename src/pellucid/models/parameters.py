"""Parameters: how many there are, and which of them learn."""

import fnmatch

from torch import nn

from pellucid.blocks.quantized import Int4Linear, Int8Linear, Int8Table
from pellucid.errors import InputError, near


def freeze(module: nn.Module, *patterns: str, frozen: bool = True) -> list[str]:
    """Stops the parameters whose names fit from learning (`frozen=False`: lets them learn again). Gives their names.

    patterns: names or globs, such as "embeddings.*" or "layers.0.*"; each must fit at least one parameter.
    """
    names = dict(module.named_parameters())
    chosen: dict[str, None] = {}
    for pattern in patterns:
        fits = fnmatch.filter(names, pattern) or fnmatch.filter(names, f"{pattern}.*")
        if not fits:
            raise InputError(f"no parameter is called {pattern!r}{near(pattern, names)}")
        chosen |= dict.fromkeys(fits)
    for name in chosen:
        names[name].requires_grad_(not frozen)
    return list(chosen)


def count(module: nn.Module) -> int:
    """How many numbers a module holds, in however many bits; a table under two names counts once."""
    tables, biases = {}, 0
    for part in module.modules():
        if isinstance(part, Int4Linear | Int8Linear | Int8Table):
            tables[part.codes.data_ptr()] = part.codes.numel() * (2 if isinstance(part, Int4Linear) else 1)
            bias = getattr(part, "bias", None)
            biases += 0 if bias is None else bias.numel()
    return sum(p.numel() for p in module.parameters()) + sum(tables.values()) + biases
