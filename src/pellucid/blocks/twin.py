"""Copies of a module for answering: one that only evaluates, and one that is also packed for speed.

On a processor, oneDNN multiplies by tables that were laid out for it beforehand, and applies the activation while the
product is still in the cache. Results agree with the plain blocks up to rounding (about 1e-7 in float32), not to the
last bit; so the plain module stays the reference, and only tasks that ask for speed use the packed twin.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.blocks.attention import Attention
from pellucid.blocks.feed_forward import FeedForward
from pellucid.blocks.joined import joined

_FUSED = {"gelu": ("gelu", "none"), "gelu_pytorch_tanh": ("gelu", "tanh"), "relu": ("relu", ""), "tanh": ("tanh", "")}
"""Activations that oneDNN applies within the product, by our name."""


def evaluating(module: nn.Module) -> Any:
    """The same module, sharing every number, that never drops out; `module` itself may be in training."""
    if not any(part.training for part in module.modules()):
        return module
    return _copy(module, type(module), evaluating)


@torch.no_grad()
def packed(module: nn.Module, dtype: torch.dtype) -> Any:
    """An evaluating copy in `dtype`, its linear maps packed where the processor gains by it.

    It holds the numbers of this moment: what `module` learns later does not reach it.
    """

    def part(inner: nn.Module) -> Any:
        return packed(inner, dtype)

    match module:
        case Attention() if _packable(module.query.weight, dtype):
            copy = _copy(module, PackedAttention, part, dtype)
            for name in ("query", "key", "value"):  # needed by themselves only in cross-attention
                copy._modules[name] = _copy(getattr(module, name), nn.Linear, part, dtype)
            copy._modules["product"] = PackedLinear(*joined(module.query, module.key, module.value), dtype)
            return copy
        case FeedForward() if type(module) is FeedForward and _fusible(module, dtype):
            copy = _copy(module, FeedForward, part, dtype)
            copy._modules["up"] = PackedLinear(module.up.weight, module.up.bias, dtype, *_FUSED[module.activation_name])
            copy.activation = _unchanged
            return copy
        case nn.Linear() if _packable(module.weight, dtype):
            return PackedLinear(module.weight, module.bias, dtype)
        case _:
            return _copy(module, type(module), part, dtype)


class PackedLinear(nn.Module):
    """A linear map, and an activation behind it, with its table laid out for oneDNN."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, activation: str = "none", algorithm: str = ""
    ) -> None:
        super().__init__()
        self.table = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype).contiguous(), None)
        self.offset = None if bias is None else bias.detach().to(dtype)
        self.activation, self.algorithm = activation, algorithm

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... in"]  ->  Float[Tensor, "... out"]"""
        return torch.ops.mkldnn._linear_pointwise(x, self.table, self.offset, self.activation, [], self.algorithm)


class PackedAttention(Attention):
    """Attention whose query, key and value are one packed product."""

    product: PackedLinear

    def _product(self, x: Tensor) -> Tensor:
        return self.product(x)


def _packable(weight: Tensor, dtype: torch.dtype) -> bool:
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return there and weight.device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)


def _fusible(module: FeedForward, dtype: torch.dtype) -> bool:
    return _packable(module.up.weight, dtype) and module.activation_name in _FUSED


def _copy(
    module: nn.Module, kind: type[nn.Module], part: Callable[[nn.Module], Any], dtype: torch.dtype | None = None
) -> Any:
    """A module with the attributes of `module`, evaluating, its parts as `part` gives them, its numbers in `dtype`."""
    copy = kind.__new__(kind)
    copy.__dict__.update(module.__dict__)
    copy._modules = {name: inner if inner is None else part(inner) for name, inner in module._modules.items()}
    if dtype is not None:
        copy._parameters = {
            name: p if p is None or p.dtype == dtype else nn.Parameter(p.to(dtype), requires_grad=False)
            for name, p in module._parameters.items()
        }
    copy.training = False
    return copy


def _unchanged(x: Tensor) -> Tensor:
    return x
