"""Several linear maps of one input as one matrix product, while each keeps its own name and parameters."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from pellucid.errors import Argument, InputError


def are_plain(*maps: nn.Module) -> bool:
    """Whether all that these maps do is to multiply by a table: none computes otherwise or has something hung on it."""
    return all(type(one).forward is nn.Linear.forward and not is_hooked(one) for one in maps)


def hooks_on_all() -> bool:
    """Whether every module's call asks a hook, as `register_module_forward_hook` hangs one."""
    return bool(nn.modules.module._has_any_global_hook())


def is_hooked(module: nn.Module) -> bool:
    """Whether something hangs on this part that its own call alone hears: a hook, before or behind its pass or on its
    way back, or another `forward` that somebody set in place of its class's, as accelerate does; or on all parts."""
    ahead = module._forward_hooks or module._forward_pre_hooks or hooks_on_all()
    return bool(ahead or module._backward_hooks or module._backward_pre_hooks or "forward" in vars(module))


class Unheard(nn.Module):
    """A part that is called without asking for hooks, which takes as long as a small step of arithmetic: it refuses
    them, so that none is passed over."""

    def _refuse(self, *given: Any, **said: Any) -> NoReturn:
        what = "a part of a model of 8 or 4 bits, or of a copy laid out for speed, would not hear a hook: load it with "
        raise InputError(what, Argument("dtype", "float32"))

    register_forward_hook = register_forward_pre_hook = _refuse
    register_full_backward_hook = register_full_backward_pre_hook = register_backward_hook = _refuse


def adjoin(*linears: nn.Linear) -> None:
    """Lays the tables of these maps end to end in one memory; each stays a parameter of its own, now a view of it."""
    if not are_plain(*linears) or linears[0].weight.is_meta or len({linear.in_features for linear in linears}) > 1:
        return  # no memory yet, or inputs of different width
    for name in ("weight", "bias"):
        parts = [getattr(linear, name) for linear in linears]
        if any(part is None for part in parts):
            continue
        whole = torch.cat([part.detach() for part in parts])
        for part, piece in zip(parts, whole.split([len(part) for part in parts])):
            part.data = piece


def joined(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weight [all rows, in] and bias [all rows] of these maps as one; without a copy where they lie end to end."""
    weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
    if all(bias is None for bias in biases):
        return end_to_end(weights), None
    return end_to_end(weights), end_to_end([offset(linear) for linear in linears])


def offset(linear: nn.Linear) -> Tensor:
    """The bias of a map, 0 where it has none: Float[Tensor, "out"]"""
    weight, bias = linear.weight, linear.bias
    return weight.new_zeros(len(weight)) if bias is None else bias


def end_to_end(parts: Sequence[Tensor]) -> Tensor:
    """These tables, or biases, one below the other; without a copy where they lie so."""
    if torch.is_grad_enabled() or not _lie_so(parts):
        return torch.cat(list(parts))  # gradients find their way to each part
    rows = sum(len(part) for part in parts)
    return parts[0].as_strided((rows, *parts[0].shape[1:]), parts[0].stride())


def _lie_so(parts: Sequence[Tensor]) -> bool:
    first = parts[0]
    memory, place = first.untyped_storage().data_ptr(), first.storage_offset()
    if memory == 0:
        return False
    for part in parts:
        if part.storage_offset() != place or part.untyped_storage().data_ptr() != memory or not part.is_contiguous():
            return False
        place += part.numel()
    return True
