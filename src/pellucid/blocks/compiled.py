"""Blocks with kernels compiled for this processor: for one position at a time, as in generation, and attention of many.

Besides its packed layer, for many rows, a linear layer keeps the plain weights, which are in memory anyway (those of
the module, or 8-bit ones): for one row, a product costs what reading the weights does. Results agree with the packed
blocks up to rounding.

The kernels need numba, the extra `fast`; without it, a copy has packed blocks only.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks.activation import ACTIVATIONS
from pellucid.blocks.availability import installed, usable_kernels
from pellucid.blocks.cache import KeyValues
from pellucid.blocks.forward_pass import Pass
from pellucid.blocks.hooks import Hookless, is_differentiated, is_hooked
from pellucid.blocks.kernel_calls import KINDS, Kernels, PlainTable
from pellucid.blocks.packed import (
    PackedAttention,
    PackedGatedFeedForward,
    PackedLinear,
    PackedPostNormLayer,
    PackedRMSNorm,
)
from pellucid.blocks.packing import NamedTable
from pellucid.blocks.quantized import Int8Linear
from pellucid.blocks.widened import WidenedLinear
from pellucid.machine import processor_features

MAX_PLAIN_ROWS = {torch.float32: 2, torch.bfloat16: 2, torch.int8: 6}
"""Rows of x up to which the plain weights are read, by their dtype; above, the product for many rows is faster."""

MIN_QUERY_HEADS_PER_KEY = 4
"""Query heads per key from which PyTorch's attention is faster: it reads a key once for all of them."""

MAX_SINGLE_THREAD_ROWS = 32
"""Rows up to which a step between products is faster on one thread."""

MIN_KERNEL_POSITIONS, MIN_PROMPT_POSITIONS = 512, 8
"""Positions of a batch from which its attention uses a kernel: one or two texts are not worth the seconds of compiling;
and of a prompt, since generation uses kernels anyway: PyTorch's is hardly faster there, and its first call takes 1.4 MB
of memory. This depends on the batch alone: results must not depend on what the process did before."""


def has_attention_kernel(dtype: torch.dtype) -> bool:
    """Whether attention of many positions, in this dtype, may use a kernel."""
    return _kernel_is_faster(dtype) and installed()


@functools.cache
def _kernel_is_faster(dtype: torch.dtype) -> bool:
    """Whether our kernel is known to be faster than PyTorch's: if a vector holds 16 floats, and the processor has no
    AMX for bfloat16, which PyTorch uses."""
    features = processor_features()
    return "avx512" in features and (dtype == torch.float32 or (dtype == torch.bfloat16 and "amx" not in features))


def _kernels_for(*numbers: Tensor | None) -> Kernels | None:
    """The compiled kernels, unless a gradient is needed or there are none."""
    return None if is_differentiated(*numbers) else usable_kernels()


class CompiledLinear(Hookless):
    """A linear layer, optionally with an activation: `many` for many rows, the plain weights for few."""

    def __init__(self, many: nn.Module, tables: Sequence[PlainTable], activation: str | None = None) -> None:
        super().__init__()
        self.many, self.tables, self.activation = many, tuple(tables), activation
        self.max_plain_rows, self.in_features = MAX_PLAIN_ROWS[tables[0].numbers.dtype], tables[0].numbers.shape[1]
        self.dtype = many.dtype if isinstance(many, PackedLinear) else torch.float32

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... in"]  ->  Float[Tensor, "... out"], for few rows in `dtype`"""
        steps = _kernels_for(x)
        if steps is None or x.numel() > self.max_plain_rows * self.in_features or x.shape[-1:] != (self.in_features,):
            return self.many(x)  # which raises the error for a wrong width
        rows = x if x.dim() == 2 else x.reshape(-1, self.in_features)
        product = steps.product(rows.float().contiguous(), self.tables)
        product = product if self.activation is None else ACTIVATIONS[self.activation](product)
        product = product if x.dim() == 2 else product.view(*x.shape[:-1], product.shape[-1])
        return product if self.dtype == torch.float32 else product.to(self.dtype)


def compiled_linear(
    packed: nn.Module, weights: Sequence[NamedTable], biases: Sequence[NamedTable], activation: str | None
) -> nn.Module:
    """Returns a packed linear layer with the plain weights beside it, if the kernels read weights of their dtype."""
    if isinstance(packed, Int8Linear):
        bias = None if packed.bias is None else packed.bias.float()
        return CompiledLinear(packed, [PlainTable(packed.codes, packed.scale.float(), bias)])
    if not isinstance(packed, PackedLinear | WidenedLinear):
        return packed
    if packed.table_dtype not in KINDS or any(part.parameter.dtype != packed.table_dtype for part in weights):
        return packed
    offsets = [part.parameter.float().contiguous() for part in biases] if biases else [None] * len(weights)
    tables = [
        PlainTable(part.parameter.contiguous(), None, offset, part.rotary_width or 0)
        for part, offset in zip(weights, offsets, strict=True)
    ]
    return CompiledLinear(packed, tables, activation)


class CompiledRMSNorm(PackedRMSNorm):
    """RMSNorm, in one step for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  the same shape"""
        weight: Any = self._parameters["weight"]  # attribute lookup takes as long as half of this step
        width = weight.shape[0]
        steps = _kernels_for(x, weight)
        if steps is None or x.shape[-1] != width or x.numel() > MAX_SINGLE_THREAD_ROWS * width:
            return super().forward(x)  # which raises the error for a wrong width
        return steps.norm(x.float().contiguous(), self.current_gain(), self.eps * width)


class CompiledGatedFeedForward(PackedGatedFeedForward):
    """A gated feed-forward block whose gate is one step for few rows."""

    def apply_gate(self, both: Tensor) -> Tensor:
        """Float[Tensor, "... 2*inner"]  ->  Float[Tensor, "... inner"]"""
        steps = _kernels_for(both)
        if steps is None or self.activation is not F.silu or both.numel() > MAX_SINGLE_THREAD_ROWS * both.shape[-1]:
            return super().apply_gate(both)
        return steps.gated_activation(both)


class CompiledAttention(PackedAttention):
    """Attention in two steps between its products for one new position per text; for many positions that share a mask,
    by a kernel."""

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, run: Pass) -> Tensor:
        rows, _, seq, width = query.shape
        shares_mask = bias is None and run.text_lengths is None and (run.mask is None or run.mask.shape[1:3] == (1, 1))
        min_positions = MIN_KERNEL_POSITIONS if run.cache is None else MIN_PROMPT_POSITIONS
        is_large = (
            seq > 1 and rows * seq >= min_positions and value.shape[-1] == width and _kernel_is_faster(query.dtype)
        )
        if not (shares_mask and is_large and (steps := _kernels_for(query, key, value))):
            return super()._fused(query, key, value, bias, run)
        mask = None if run.mask is None else run.mask[:, 0, 0]
        return steps.attend_many(query, key, value, mask, self.scale, causal=run.causal).transpose(1, 2)

    def _prefers_bfloat16(self, x: Tensor, run: Pass) -> bool:
        return super()._prefers_bfloat16(x, run) and not (run.cache and _kernel_is_faster(x.dtype) and usable_kernels())

    def attend_to_cache(self, product: Tensor, run: Pass, remembered: KeyValues) -> Tensor:
        """Float[Tensor, "batch widths"]  ->  Float[Tensor, "batch heads*width"]"""
        steps = _kernels_for(product, remembered.memory)
        if steps is None or self.num_heads >= MIN_QUERY_HEADS_PER_KEY * self.num_key_value_heads:
            return super().attend_to_cache(product, run, remembered)
        mask = None if run.mask is None else run.mask[:, 0, 0].contiguous()
        heads, key_value_heads = self.num_heads, self.num_key_value_heads
        return steps.attend(product, remembered, heads, key_value_heads, self.scale, run.rotation, mask)


class CompiledPostNormLayer(PackedPostNormLayer):
    """A post-norm layer whose sums and norms are one step each for many positions."""

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        run = run or Pass()
        is_large = x.shape[0] * x.shape[1] >= MIN_KERNEL_POSITIONS and _kernel_is_faster(x.dtype)
        plain = run.observer is None and self.cross_attention is None
        if not (is_large and plain):
            return super().forward(x, run)
        normed = _add_norm(run.output_positions(x), self._self_attention(x, run), self.attention_norm)
        return _add_norm(normed, self.feed_forward(normed, run), self.feed_forward_norm)


def _add_norm(x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
    """norm(x + y), in one step if it is a plain layer norm and all have one dtype: quantized ones may differ."""
    if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None or is_hooked(norm):
        return norm(x + y)
    steps = _kernels_for(x, y, norm.weight, norm.bias)
    alike = x.dtype == y.dtype == norm.weight.dtype == norm.bias.dtype
    return steps.add_norm(x, y, norm) if alike and steps else norm(x + y)


COMPILED: dict[type[nn.Module], type[nn.Module]] = {
    PackedRMSNorm: CompiledRMSNorm,
    PackedGatedFeedForward: CompiledGatedFeedForward,
    PackedAttention: CompiledAttention,
    PackedPostNormLayer: CompiledPostNormLayer,
}
"""Compiled blocks, by the packed ones that they replace."""

COMPILED_FOR_PROMPTS = (PackedAttention, PackedPostNormLayer)
"""Those of them that are also used for many positions, with or without generation."""
