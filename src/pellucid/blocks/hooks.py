"""How other code changes a module: it registers hooks, writes to parameters, and asks for derivatives."""

import functools
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from pellucid.errors import Argument, InputError


def version_of(number: Tensor) -> int:
    """PyTorch's count of in-place writes to a tensor; 0 for one made in inference mode."""
    return 0 if number.is_inference() else number._version


def storage_version(number: Tensor) -> tuple[int, int]:
    """Address and version counter: while the memory is kept alive, a change of values changes one of them."""
    return number.data_ptr(), version_of(number)


def is_differentiated(*numbers: Tensor | None) -> bool:
    """Whether autograd records any of these tensors, or `torch.func` or forward-mode differentiation is active at all.
    Our own kernels would silently cut the gradient, so this is called with all of their inputs."""
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in numbers):
        return True
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def has_global_hooks() -> bool:
    """Whether a hook for all modules is registered, as by `register_module_forward_hook`."""
    return bool(nn.modules.module._has_any_global_hook())


def is_hooked(module: nn.Module) -> bool:
    """Whether only the module's own call would run something attached to it: a forward or backward hook, its own or
    global, or a `forward` set on the instance, as accelerate does."""
    forward_hooks = module._forward_hooks or module._forward_pre_hooks or has_global_hooks()
    return bool(forward_hooks or module._backward_hooks or module._backward_pre_hooks or has_own_forward(module))


def has_own_forward(module: nn.Module) -> bool:
    """Whether a `forward` other than the class's is set on the instance; accelerate leaves the class's own there."""
    if "forward" not in vars(module):
        return False
    forward = module.forward
    return (
        getattr(forward, "__self__", None) is not module
        or getattr(forward, "__func__", None) is not type(module).forward
    )


def is_written_in(function: Any, *packages: str) -> bool:
    """Whether a function, and every function that it wraps, is defined in these packages."""
    while function is not None:
        function = function.func if isinstance(function, functools.partial) else function
        module_name = getattr(function, "__globals__", {}).get("__name__", type(function).__module__)
        if module_name.partition(".")[0] not in packages:
            return False
        function = getattr(function, "__wrapped__", None)
    return True


class Hookless(nn.Module):
    """A module that is called without looking for hooks, which takes as long as a small step of arithmetic; so it
    refuses hooks rather than ignore them."""

    def __init_subclass__(cls) -> None:
        cls.__call__ = cls.forward

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        message = "a part of a model of 8 or 4 bits, or of a packed copy, would ignore a hook: load it with "
        raise InputError(message, Argument("dtype", "float32"))

    register_forward_hook = register_forward_pre_hook = _refuse
    register_full_backward_hook = register_full_backward_pre_hook = register_backward_hook = _refuse
