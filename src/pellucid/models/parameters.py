"""Parameters: counting, freezing, resizing the vocabulary, and tied ones in state dicts."""

import fnmatch
from typing import Any

import torch
from torch import nn

from pellucid.blocks.quantized import LowBitModule
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.machine import no_grad


def freeze(module: nn.Module, *patterns: str, frozen: bool = True) -> list[str]:
    """Freezes the parameters that match (`frozen=False`: unfreezes them) and returns their names.

    patterns: names or globs, such as "embeddings.*" or "layers.0.*"; each must match at least one parameter.
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
"""Name endings of the parameters that have one row per token of the vocabulary."""


@no_grad()
def resize_vocabulary(module: nn.Module, before: int, rows: int) -> None:
    """Resizes the token embeddings and output layers from `before` to `rows` rows, in place.

    The first rows are kept; new ones are the mean of the old ones, and 0 in a bias.
    """
    resized: dict[nn.Parameter, nn.Parameter] = {}
    parts = dict(module.named_modules())
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        if name.endswith(_ROWS) and len(parameter) == before:
            if parameter not in resized:  # tied parameters stay tied
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
    """Number of weights in a module, of whatever bit width; tied weights count once."""
    sizes, biases = {}, 0
    for part in module.modules():
        if isinstance(part, LowBitModule):
            sizes[part.codes.data_ptr()] = part.size
            biases += 0 if part.bias is None else part.bias.numel()
    return sum(p.numel() for p in module.parameters()) + sum(sizes.values()) + biases


def save_tied_once(module: nn.Module) -> None:
    """From now on, state dicts of the module hold each tied parameter once, by its first name, also in loading.

    safetensors refuses a tensor under two names, and the reference's Trainer saves with it.
    """
    module.register_state_dict_post_hook(_drop_tied_names)
    module.register_load_state_dict_pre_hook(_restore_tied_names)


def _tied_names(module: nn.Module) -> dict[str, str]:
    """Aliases of tied parameters, each with the first name."""
    first: dict[int, str] = {}
    named = [(name, first.setdefault(id(one), name)) for name, one in module.named_parameters(remove_duplicate=False)]
    return {name: other for name, other in named if name != other}


def _drop_tied_names(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Removes the aliases of tied parameters from a state dict."""
    for name in _tied_names(module):
        state.pop(prefix + name, None)


def _restore_tied_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Adds the aliases of tied parameters to a state dict that is to be loaded."""
    for name, other in _tied_names(module).items():
        if prefix + other in state:
            state.setdefault(prefix + name, state[prefix + other])
