"""What others do to a part: they hang hooks on it, write its numbers, and ask for derivatives."""

import functools
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from pellucid.errors import Argument, InputError


def version_of(number: Tensor) -> int:
    """How often PyTorch counts that it was written."""
    return 0 if number.is_inference() else number._version


def storage_version(number: Tensor) -> tuple[int, int]:
    """Where its numbers lie, and how often they were written: others, as long as that memory is kept, are others."""
    return number.data_ptr(), version_of(number)


def is_differentiated(*numbers: Tensor | None) -> bool:
    """Whether a derivative is asked for by any of these, or, as `torch.func` and `forward_ad` ask, by anybody. A kernel
    of ours would cut it without a word: it is asked about all that the kernel takes."""
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in numbers):
        return True
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def has_global_hooks() -> bool:
    """Whether every module's call asks a hook, as `register_module_forward_hook` hangs one."""
    return bool(nn.modules.module._has_any_global_hook())


def is_hooked(module: nn.Module) -> bool:
    """Whether something hangs on this part that its own call alone hears: a hook, before or behind its pass or on its
    way back, or another `forward` that somebody set in place of its class's, as accelerate does; or on all parts."""
    forward_hooks = module._forward_hooks or module._forward_pre_hooks or has_global_hooks()
    return bool(forward_hooks or module._backward_hooks or module._backward_pre_hooks or has_own_forward(module))


def has_own_forward(module: nn.Module) -> bool:
    """Whether another `forward` was set on this part than its class's, which accelerate leaves on it where it takes its
    own away."""
    if "forward" not in vars(module):
        return False
    forward = module.forward
    return (
        getattr(forward, "__self__", None) is not module
        or getattr(forward, "__func__", None) is not type(module).forward
    )


def is_written_in(function: Any, *packages: str) -> bool:
    """Whether a function, and whatever it wraps, was written in these packages."""
    while function is not None:
        function = function.func if isinstance(function, functools.partial) else function
        module_name = getattr(function, "__globals__", {}).get("__name__", type(function).__module__)
        if module_name.partition(".")[0] not in packages:
            return False
        function = getattr(function, "__wrapped__", None)
    return True


class Hookless(nn.Module):
    """A part that is called without asking for hooks, which takes as long as a small step of arithmetic: it refuses
    them, so that none is passed over."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        message = "a part of a model of 8 or 4 bits, or of a packed copy, would ignore a hook: load it with "
        raise InputError(message, Argument("dtype", "float32"))

    register_forward_hook = register_forward_pre_hook = _refuse
    register_full_backward_hook = register_full_backward_pre_hook = register_backward_hook = _refuse
