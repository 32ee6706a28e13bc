"""Snapshots of a module, by which a copy derived from it is discarded once the module has changed."""

import operator
import weakref
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim.optimizer import register_optimizer_step_post_hook

from pellucid.blocks.hooks import has_global_hooks, is_hooked, storage_version, version_of
from pellucid.machine import no_grad


class Snapshot:
    """The submodules and tensors of a module at one moment: their identities, storages and version counters, and all
    other attributes, such as a scale, an activation or a dropout probability.

    Submodules and tensors are referenced weakly: a snapshot keeps none of them in memory, and a new object at the
    address of a freed one is not mistaken for it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.facts, self.values = _facts(module)
        self.tensors = [one for one in self.values if isinstance(one, torch.Tensor)]
        self.versions = [version_of(one) for one in self.tensors]
        parts = list(module.modules())
        numbers = [one for part in parts for one in _numbers(part) if one is not None]
        self.references = [weakref.ref(one) for one in (*parts, *numbers)]
        self.storages = [StorageWeakRef(one.untyped_storage()) for one in numbers]  # their addresses are not reused

    def matches(self, module: nn.Module) -> bool:
        """Whether the module is unchanged."""
        facts, values = _facts(module)
        same = facts == self.facts and all(member() is not None for member in self.references)
        same = same and all(map(operator.is_, values, self.values))
        return same and self.versions == [version_of(one) for one in self.tensors]


def _facts(module: nn.Module) -> tuple[list[tuple[int, ...]], list[Any]]:
    """Returns the submodules and tensors as plain tuples of integers, and the other attributes of the submodules.

    (PyTorch's own traversal, which builds the names of all submodules, takes as long as a layer of a small model.)
    """
    facts: list[tuple[int, ...]] = [(has_global_hooks(),)]
    values: list[Any] = []
    parts = [module]
    while parts:
        part = parts.pop()
        attributes = vars(part)
        facts.append(
            (0 if part is module else id(part), len(part._forward_hooks), len(part._forward_pre_hooks), len(attributes))
        )
        values += islice(attributes.values(), _STANDARD_ATTRIBUTES, None)
        for one in _numbers(part):
            if one is not None:
                facts.append((id(one), one.untyped_storage()._cdata, *storage_version(one)))
        parts += [inner for inner in part._modules.values() if inner is not None]
    return facts, values


def _numbers(part: nn.Module) -> list[torch.Tensor | None]:
    return [*part._parameters.values(), *part._buffers.values()]


_STANDARD_ATTRIBUTES = len(vars(nn.Module()))
"""Number of attributes that PyTorch sets in every module, before those of a subclass."""


def foreign_module(module: nn.Module, path: str = "") -> str | None:
    """Returns the path of the first submodule that only the plain blocks can run, or None: one of a type that is
    neither ours nor one of PyTorch's that ours consist of (such as an adapter of another library in place of a linear
    layer), or one with hooks, which only its own call runs. A parametrization may be anything, since all code reads the
    resulting weight."""
    if isinstance(module, ParametrizationList):
        return None
    packages = [
        kind.__module__.partition(".")[0] for kind in type(module).__mro__
    ]  # a parametrized module has a class of its own
    is_known = (
        "pellucid" in packages or isinstance(module, _TORCH_MODULES) or not (module._parameters or module._modules)
    )
    if packages[0] not in ("pellucid", "torch") or not is_known or is_hooked(module):
        return path or type(module).__name__
    parts = (foreign_module(part, f"{path}.{name}".lstrip(".")) for name, part in module.named_children())
    return next((name for name in parts if name), None)


_TORCH_MODULES = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.ModuleList, nn.ModuleDict)


@no_grad()
def _count_fused_writes(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Increments the version counters that PyTorch's fused optimizer steps leave as they are."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            increment_version([one for one in group["params"] if one.grad is not None])


register_optimizer_step_post_hook(_count_fused_writes)
