"""Checks whether a network still is the one that its config and its files describe."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from pellucid.blocks.hooks import has_own_forward, is_hooked
from pellucid.blocks.quantized import low_bit_tensors
from pellucid.checkpoints.load import open_checkpoint
from pellucid.checkpoints.loaded import Loaded, storage_versions
from pellucid.checkpoints.source import Source
from pellucid.checkpoints.unchanged import changed_files
from pellucid.errors import InputError, join_names
from pellucid.models import Network, assemble, tied_parameters

_MODULE_ATTRIBUTES, _METHOD_ATTRIBUTES = vars(nn.Module()).keys(), ("explicit", "pad_token_id")
"""Attributes that do not affect the output: those of every module, how attention is computed, and what a config may be
given later."""

_FACT_TYPES = (bool, int, float)
_FACT_NAMES = ("activation",)
"""Attributes that affect the output and are neither weights nor flags, sizes or scales."""

_IDENTITY_FORWARDS = {nn.Dropout.forward, nn.Identity.forward}
"""Forward passes that are the identity in evaluation: dropout may be removed."""


def check_network(loaded: Loaded, action: str) -> None:
    """Refuses a network that no longer matches its config: its files could not be opened again, and training would
    continue with another network. action: what cannot be done with it."""
    if mismatch := _config_mismatch(loaded):
        raise InputError(f"this model cannot be {action}: {mismatch}")


def _config_mismatch(loaded: Loaded) -> str | None:
    """How a network differs from its config, and what to do; None where it does not."""
    with torch.device("meta"):
        expected = assemble(loaded.config)
    state, expected_state = loaded.module.state_dict(), expected.state_dict()
    mismatched = [name for name in {**state, **expected_state} if name not in state or name not in expected_state]
    mismatched += [name for name in state if name in expected_state and state[name].shape != expected_state[name].shape]
    if mismatched:
        changed = f"its parts were changed, and {join_names(sorted(mismatched), 2)} no longer fit its config"
        return f"{changed}; put them back, or merge what was attached to them"
    if fact := _changed_fact(loaded.module, expected):
        return f"{fact} is not what its config says, and would be lost; put it back"
    if change := _changed_computation(loaded.module, expected):
        return f"{change[0]}, which would be lost; {change[1]}"
    for name, source in tied_parameters(loaded.config).items():
        if name in state and not torch.equal(state[name], state[source]):
            return f"{name} and {source} are one table by its config, and their weights differ"
    return None


def files_mismatch(loaded: Loaded, is_relevant: Callable[[Path], bool], opened: str) -> str | None:
    """Why the hidden states of a model differ from those of a model loaded from its files, as a sentence; None where
    they do not.

    is_relevant: which of its files matter.  opened: what is opened with them later, as "an index".
    """
    for path in filter(is_relevant, changed_files(loaded.source) if loaded.source else ()):
        return f"{path} was replaced, added or removed since {loaded.name} was loaded from there: load it again"
    if hooked := next((path or "the model" for path, part in loaded.module.named_modules() if is_hooked(part)), None):
        return (
            f"a hook, or a forward of its own, is set on {hooked}, and {opened} is opened without it: remove it, "
            "which for a forward is `del part.forward`"
        )
    with torch.device("meta"):  # dropout does not matter in evaluation
        expected = assemble(loaded.config.replace(head=None))
    if fact := _changed_fact(loaded.module, expected, nn.Dropout):
        return (
            f"{fact} of {loaded.name} is not what its config says, and {opened} is opened with what its files say: put "
            "it back"
        )
    if not loaded.module.bits and (change := _changed_computation(loaded.module, expected)):
        return f"{change[0]}, and {opened} is opened with what its files say: {change[1]}"
    source, module = loaded.source, loaded.module
    if source is None or storage_versions(module) == loaded.initial_versions or _matches_files(module, source):
        return None
    advice = "load it again" if module.bits else "save the model, and use what is loaded from there"
    return (
        f"the numbers of {loaded.name} were changed since it was loaded, and {opened} is opened with those of its "
        f"files: {advice}"
    )


def _matches_files(module: Network, source: Source) -> bool:
    """Whether a module that was copied, moved or written to still has the weights of its files."""
    kinds: list[str | torch.dtype | None] = [f"int{module.bits}" if module.bits else None]
    if module.dtype == torch.float64 and not module.bits:  # converted, or loaded so
        kinds.append(torch.float64)
    return any(
        _have_equal_weights(module, open_checkpoint(source, head=None, dtype=kind, alternatives={}).module)
        for kind in kinds
    )


def _have_equal_weights(module: Network, other: Network) -> bool:
    """Whether both have the same weights, apart from head and pooler."""
    own, theirs = (one.state_dict() | low_bit_tensors(one) for one in (module, other))
    names = {name for name in {**own, **theirs} if not name.startswith(("head.", "pooler."))}
    return names <= own.keys() & theirs.keys() and all(torch.equal(own[n], theirs[n].to(own[n])) for n in names)


def _changed_fact(module: nn.Module, expected: nn.Module, *ignored: type[nn.Module]) -> str | None:
    """The first scale or function of a part that differs from its config, as "scale of layers.0.attention"."""
    parts = {path: part for path, part in expected.named_modules() if not isinstance(part, ignored)}
    pairs = ((path, _differing_fact(part, parts[path])) for path, part in module.named_modules() if path in parts)
    return next((f"{fact} of {path}" if path else fact for path, fact in pairs if fact), None)


def _changed_computation(module: nn.Module, expected: nn.Module) -> tuple[str, str] | None:
    """The first part that does not compute what its config describes, in words, and what to do: it has a `forward` of
    its own, or a type with another one. None where there is no such part."""
    parts = dict(expected.named_modules())
    for path, part in module.named_modules(remove_duplicate=False):
        if path not in parts:
            continue
        if has_own_forward(part):
            return f"a forward of its own was set on {path or 'the network'}", "remove it with `del part.forward`"
        forwards = {type(part).forward, type(parts[path]).forward}
        if len(forwards) > 1 and forwards != _IDENTITY_FORWARDS:
            kind = type(part).__name__
            what = f"{path or 'the network'} is a {kind}, which does not compute what its config says"
            return what, "put back what it replaced"
    return None


def _differing_fact(part: nn.Module, expected: nn.Module) -> str | None:
    """The first attribute of a part, a scale or a function, that differs from the expected one."""
    own = {
        name: fact for name, fact in vars(expected).items() if name not in (*_MODULE_ATTRIBUTES, *_METHOD_ATTRIBUTES)
    }
    facts = {name: fact for name, fact in own.items() if type(fact) in _FACT_TYPES or name in _FACT_NAMES}
    return next((name for name, fact in facts.items() if getattr(part, name, fact) != fact), None)
