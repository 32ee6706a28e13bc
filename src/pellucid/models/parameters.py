"""Parameters: how many there are, and which of them learn."""

import fnmatch
from typing import Any

import torch
from torch import nn

from pellucid.blocks.quantized import LowBitModule
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.machine import no_grad


def freeze(module: nn.Module, *patterns: str, frozen: bool = True) -> list[str]:
    """Stops the parameters whose names fit from learning (`frozen=False`: lets them learn again). Gives their names.

    patterns: names or globs, such as "embeddings.*" or "layers.0.*"; each must fit at least one parameter.
    """
    names = dict(module.named_parameters())
    chosen: dict[str, None] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InputError(f"a pattern is {shorten(repr(pattern))}, expected the name of a parameter, or a glob")
        fits = fnmatch.filter(names, pattern) or fnmatch.filter(names, f"{pattern}.*")
        if not fits:
            raise InputError(f"no parameter is called {shorten(repr(pattern))}{did_you_mean(pattern, names)}")
        chosen |= dict.fromkeys(fits)
    for name in chosen:
        names[name].requires_grad_(not frozen)
    return list(chosen)


_ROWS = ("embeddings.token.weight", "head.decoder.weight", "head.decoder.bias", "head.bias")
"""What has a row for each token of the vocabulary, by the end of its name."""


@no_grad()
def resize_vocabulary(module: nn.Module, before: int, rows: int) -> None:
    """Gives the tables of tokens `rows` rows in place of `before`, in place.

    The first rows stay; new ones are the mean of the old ones, and 0 where a token has a single summand.
    """
    resized: dict[nn.Parameter, nn.Parameter] = {}
    parts = dict(module.named_modules())
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        if name.endswith(_ROWS) and len(parameter) == before:
            if parameter not in resized:  # tables that are tied stay one
                mean = parameter.float().mean(dim=0, keepdim=True) * (parameter.dim() > 1)
                new_rows = mean.to(parameter.dtype).expand(max(rows - before, 0), *parameter.shape[1:])
                resized[parameter] = nn.Parameter(
                    torch.cat([parameter, new_rows]) if rows > before else parameter[:rows].clone()
                )
                resized[parameter].requires_grad_(parameter.requires_grad)
            owner, _, attribute = name.rpartition(".")
            part = parts[owner]
            setattr(part, attribute, resized[parameter])
            if isinstance(part, nn.Linear):
                part.out_features = rows
            elif isinstance(part, nn.Embedding):
                part.num_embeddings = rows


def count(module: nn.Module) -> int:
    """How many numbers a module holds, in however many bits; a table under two names counts once."""
    tables, biases = {}, 0
    for part in module.modules():
        if isinstance(part, LowBitModule):
            tables[part.codes.data_ptr()] = part.size
            biases += 0 if part.bias is None else part.bias.numel()
    return sum(p.numel() for p in module.parameters()) + sum(tables.values()) + biases


def save_tied_once(module: nn.Module) -> None:
    """From now on a state dict of the module names a table that serves twice once, and is read back by that name.

    safetensors refuses a table under two names, and the reference's Trainer saves by it.
    """
    module.register_state_dict_post_hook(_drop_tied_names)
    module.register_load_state_dict_pre_hook(_restore_tied_names)


def _tied_names(module: nn.Module) -> dict[str, str]:
    """Further names of tables that serve twice, each with the first."""
    first: dict[int, str] = {}
    named = [(name, first.setdefault(id(one), name)) for name, one in module.named_parameters(remove_duplicate=False)]
    return {name: other for name, other in named if name != other}


def _drop_tied_names(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Leaves each table its first name."""
    for name in _tied_names(module):
        state.pop(prefix + name, None)


def _restore_tied_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The way back."""
    for name, other in _tied_names(module).items():
        if prefix + other in state:
            state.setdefault(prefix + name, state[prefix + other])
