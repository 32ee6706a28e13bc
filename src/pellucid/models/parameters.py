"""Parameters by name: which of them learn."""

import fnmatch

from torch import nn

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
