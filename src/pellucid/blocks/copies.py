"""Copies of a module for inference: an evaluation copy, and a packed copy, which is optimised for speed.

Packed results agree with the plain blocks up to rounding (about 1e-7 in float32), not to the last bit; so the plain
module remains the reference, and packed copies are used only for speed.
"""

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn

from pellucid.blocks import compiled
from pellucid.blocks import packed as fast
from pellucid.blocks.attention import Attention
from pellucid.blocks.feed_forward import FeedForward, GatedFeedForward
from pellucid.blocks.joint_weights import biases_of
from pellucid.blocks.layer import PostNormLayer, PreNormLayer
from pellucid.blocks.norm import RMSNorm
from pellucid.blocks.packing import NamedTable, Packing
from pellucid.blocks.position import Table
from pellucid.machine import no_grad


def evaluation_copy(module: nn.Module) -> Any:
    """Returns the same module in evaluation mode, sharing all weights; `module` itself may be in training."""
    if not any(part.training for part in module.modules()):
        return module
    return copy_with_parts(module, type(module), lambda name, part: evaluation_copy(part))


@no_grad()
def packed_copy(module: nn.Module, packing: Packing, path: str = "") -> Any:
    """Returns a copy in evaluation mode, its weights arranged by `packing` where that is faster.

    Packed weights hold the present values; everything else shares memory with `module`. Once `module` has changed,
    another copy is needed.
    """
    return _PackedCopy(packing, module, path).build()


class _PackedCopy:
    """Copies one module, whose path within the network is `path`."""

    def __init__(self, packing: Packing, module: nn.Module, path: str) -> None:
        self.packing, self.module, self.path = packing, module, path
        self.compiles = packing.is_autoregressive and compiled.usable_kernels() is not None

    def build(self) -> Any:
        module, fits = self.module, self.packing.fits
        match module:
            case PreNormLayer():
                return self.copy(fast.PackedPreNormLayer)
            case PostNormLayer():
                return self.copy(fast.PackedPostNormLayer)
            case Attention() if self.path.endswith("cross_attention") and fits(module.query.weight):
                return self.copy(fast.PackedCrossAttention)
            case Attention() if fits(module.query.weight):
                rotated = ("query", "key") if fast.is_interleaved(module) else ()
                product = self.linear("query", "key", "value", rotary_widths=dict.fromkeys(rotated, module.head_dim))
                return self.copy(fast.PackedAttention, product=product)
            case GatedFeedForward() if fits(module.up.weight):
                return self.copy(fast.PackedGatedFeedForward, product=self.linear("gate", "up"))
            case FeedForward() if (
                self.packing.fuses_activation and fits(module.up.weight) and module.activation_name in fast.FUSED
            ):
                packed = self.copy(FeedForward, up=self.linear("up", activation=module.activation_name))
                packed.activation = _identity
                return packed
            case nn.Linear() if fits(module.weight):
                return self.linear("")
            case Table() if type(module) is Table:  # but not its subclasses for positions
                return self.packing.embedding(self.path_of("weight"), module.weight) or self.copy(Table)
            case RMSNorm() if type(module) is RMSNorm and fast.PackedRMSNorm.is_faster(
                module.weight, self.packing.dtype
            ):
                norm = self.copy(fast.PackedRMSNorm)
                norm.pack()
                return norm
        return self.copy(type(module))

    def linear(
        self, *inner: str, activation: str | None = None, rotary_widths: dict[str, int] | None = None
    ) -> nn.Module:
        """Packs these linear layers of one input into one; "" is the module itself.

        rotary_widths: head widths of those that have rotary positions; see `NamedTable`.
        """
        linears = {name: cast(nn.Linear, self.module.get_submodule(name)) for name in inner}

        def part(name: str, kind: str, numbers: Tensor) -> NamedTable:
            return NamedTable(
                self.path_of(f"{name}.{kind}".removeprefix(".")), numbers.detach(), (rotary_widths or {}).get(name)
            )

        weights = [part(name, "weight", one.weight) for name, one in linears.items()]
        biases = [part(name, "bias", bias) for name, bias in zip(linears, biases_of(linears.values()))]
        packed = self.packing.linear(weights, biases, activation)
        return compiled.compiled_linear(packed, weights, biases, activation) if self.compiles else packed

    def copy(self, kind: type[nn.Module], **replacements: nn.Module) -> Any:
        """Returns the module as a `kind`, with `replacements`; a `product` replaces the submodules that it joins."""
        replaced = {*replacements, *fast.JOINED.get(kind, ())}
        if self.compiles or (
            kind in compiled.COMPILED_FOR_PROMPTS and compiled.has_attention_kernel(self.packing.dtype)
        ):
            kind = compiled.COMPILED.get(kind, kind)
        packed = copy_with_parts(
            self.module, kind, lambda name, part: packed_copy(part, self.packing, self.path_of(name)), replaced
        )
        packed._modules |= replacements
        packed._parameters = {name: self._packed_parameter(name, p) for name, p in self.module._parameters.items()}
        packed.__dict__.update(packed._modules)  # found at once, without PyTorch's lookup
        return packed

    def path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def _packed_parameter(self, name: str, parameter: Tensor | None) -> nn.Parameter | None:
        if parameter is None:
            return None
        number = self.packing.parameter_values(self.path_of(name), parameter.detach()).to(self.packing.dtype)
        return number if isinstance(number, nn.Parameter) else nn.Parameter(number, requires_grad=False)


def copy_with_parts(
    module: nn.Module,
    kind: type[nn.Module],
    part: Callable[[str, nn.Module], Any],
    without: set[str] | frozenset[str] = frozenset(),
) -> Any:
    """Returns a copy with the attributes and parameters of `module`, in evaluation mode, its submodules from `part`."""
    copy = kind.__new__(kind)
    copy.__dict__.update(module.__dict__)
    copy._modules = {
        name: inner if inner is None else part(name, inner)
        for name, inner in module._modules.items()
        if name not in without
    }
    copy.training = False
    return copy


def _identity(x: Tensor) -> Tensor:
    return x
