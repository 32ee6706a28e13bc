"""Whether a network is still the one that its config describes."""

import torch
from torch import nn

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError, several
from pellucid.models import assemble, ties

_FACTS = ("activation", "causal")
"""What else than scales is no number of a file and decides what comes out."""


def check_network(loaded: Loaded, done: str) -> None:
    """Refuses a network that is no longer the one that its config describes: nobody could open its files, and what
    learns in its place would be another. done: what cannot be done with it."""
    with torch.device("meta"):
        as_said = assemble(loaded.config)
    held, described = loaded.module.state_dict(), as_said.state_dict()
    odd = [name for name in {**held, **described} if name not in held or name not in described]
    odd += [name for name in held if name in described and held[name].shape != described[name].shape]
    if odd:
        raise InputError(
            f"this model cannot be {done}: its parts were changed, and {several(sorted(odd), 2)} no longer fit its "
            "config; put them back, or merge what was hung on them"
        )
    if other := _changed(loaded.module, as_said):
        raise InputError(
            f"this model cannot be {done}: {other} is not what its config says, and would be lost; put it back"
        )
    for name, source in ties(loaded.config).items():
        if name in held and not torch.equal(held[name], held[source]):
            raise InputError(
                f"this model cannot be {done}: {name} and {source} are one table by its config, and their numbers "
                "differ"
            )


def changed_fact(loaded: Loaded) -> str | None:
    """The first scale or function of a part that is another than its config says, as "scale of layers.0.attention".
    Not what is dropped: nothing is where a model answers."""
    with torch.device("meta"):
        return _changed(loaded.module, assemble(loaded.config), nn.Dropout)


def _changed(module: nn.Module, as_said: nn.Module, *but: type[nn.Module]) -> str | None:
    parts = {path: part for path, part in as_said.named_modules() if not isinstance(part, but)}
    pairs = ((path, _differs(part, parts[path])) for path, part in module.named_modules() if path in parts)
    return next((f"{fact} of {path}" if path else fact for path, fact in pairs if fact), None)


def _differs(part: nn.Module, said: nn.Module) -> str | None:
    """The first fact of a part, a scale or a function, that is another than the config says."""
    facts = {name: fact for name, fact in vars(said).items() if type(fact) is float or name in _FACTS}
    return next((name for name, fact in facts.items() if getattr(part, name, fact) != fact), None)
