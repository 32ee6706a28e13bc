"""Blocks optimised for speed on a processor: the same arithmetic in fewer and larger steps.

oneDNN multiplies by weights that are reordered for it in advance, and applies the activation while the product is still
in the processor's cache. Weight matrices of the same input are joined into one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks.attention import Attention
from pellucid.blocks.cache import KeyValues
from pellucid.blocks.feed_forward import GatedFeedForward
from pellucid.blocks.forward_pass import Pass
from pellucid.blocks.hooks import Hookless, is_differentiated, storage_version
from pellucid.blocks.layer import PostNormLayer, PreNormLayer
from pellucid.blocks.norm import RMSNorm
from pellucid.blocks.relative import deinterleaved
from pellucid.machine import fastest_dtype, processor_features

FUSED = {"gelu": ("gelu", "none"), "gelu_pytorch_tanh": ("gelu", "tanh"), "relu": ("relu", ""), "tanh": ("tanh", "")}
"""Activations that oneDNN can fuse into the product, by our name."""

INPLACE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu_pytorch_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "tanh": torch.tanh_,
}
"""Those of them that PyTorch applies faster, in place after the product, without AVX-512: there oneDNN takes 1.5 times
as long, and for GELU four times."""

MIN_STRIPPED_LENGTH, STRIP_LENGTH = 64, 128
"""Positions of a prompt from which plain products are faster than PyTorch's kernel, if bfloat16 is used and is the
fastest dtype; and the number of queries per chunk."""


def fused_activation(activation: str | None) -> tuple[str, str, Callable[[Tensor], Tensor] | None]:
    """How an activation is applied to a product: its name and algorithm for oneDNN, and a function to call after it."""
    if activation is None:
        return "none", "", None
    if activation in INPLACE_ACTIVATIONS and "avx512" not in processor_features():
        return "none", "", INPLACE_ACTIVATIONS[activation]
    return *FUSED[activation], None


class PackedLinear(Hookless):
    """A linear layer, optionally with an activation, whose weights are reordered for oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, activation: str | None = None) -> None:
        super().__init__()
        self.packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype).contiguous(), None)
        self.offset = None if bias is None else bias.detach().to(dtype)
        self.dtype = self.table_dtype = dtype  # of its output, and of its weights
        self.activation, self.algorithm, self.inplace_activation = fused_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... in"]  ->  Float[Tensor, "... out"]"""
        x = x if x.dtype == self.dtype else x.to(self.dtype)
        multiply = torch.ops.mkldnn._linear_pointwise
        product = multiply(x, self.packed_weight, self.offset, self.activation, [], self.algorithm)
        return product if self.inplace_activation is None else self.inplace_activation(product)


def is_interleaved(attention: Attention) -> bool:
    """Whether columns that are rotated together are made adjacent: if all heads have one even width."""
    return attention.head_dim == attention.value_head_dim and attention.head_dim % 2 == 0


class PackedAttention(Hookless, Attention):
    """Attention whose query, key and value layers are one packed product.

    The cache, and queries of it, are float32: PyTorch's kernel takes four times as long for one position in half
    precision. Columns of queries and keys may be interleaved: scores are sums over columns, whose order only an
    observer can see.
    """

    product: nn.Module

    @property
    def by_heads(self) -> bool:
        """Whether heads are processed together while nothing observes."""
        return not self.explicit and is_interleaved(self)

    def _project_inputs(self, x: Tensor) -> Tensor:
        """Returns the columns in the order of the plain block."""
        projected = self.product(x)
        projected = projected.float() if x.dtype == torch.float32 else projected
        if not is_interleaved(self):
            return projected
        heads = projected.unflatten(-1, (-1, self.head_dim))
        rotated, value = heads.split((self.num_heads + self.num_key_value_heads, self.num_key_value_heads), dim=-2)
        return torch.cat((deinterleaved(rotated), value), dim=-2).flatten(-2)

    def _join_weights(self) -> None:
        """Does nothing: they are one weight already."""

    def forward(
        self, x: Tensor, run: Pass | None = None, *, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        run = run or Pass()
        if run.observer is not None or not self.by_heads:
            return super().forward(x, run, memory=memory, bias=bias)
        if x.shape[1] == 1 and run.cache is not None and bias is None:
            return self.attend_next(x.squeeze(1), run, run.cache.self_attention).unsqueeze(1)
        rows, seq, _ = x.shape
        key_value_heads = self.num_key_value_heads
        projected = self.product(x)
        is_causal_only = run.causal and run.mask is None and bias is None
        narrow = seq >= MIN_STRIPPED_LENGTH and is_causal_only and self._prefers_bfloat16(projected, run)
        if run.rotation is not None:
            projected = run.rotation.rotate_interleaved(
                projected.float(), self.num_heads + key_value_heads, key_value_heads
            )
        projected = projected.to(x.dtype if run.cache is None else torch.float32)
        heads = projected.view(rows, seq, self.num_heads + 2 * key_value_heads, self.head_dim).transpose(1, 2)
        query, both = heads.split((self.num_heads, 2 * key_value_heads), dim=1)
        key, value = both.chunk(2, dim=1) if run.cache is None else run.cache.self_attention.extend_both(both)
        if narrow and key.shape[2] == seq:
            return self.output(_causal_in_strips(query * self.scale, key, value))
        query, bias = run.output_positions(query, 2), bias if bias is None else run.output_positions(bias, 2)
        return self.output(self._fused(query, key, value, bias, run).transpose(1, 2).flatten(2))

    def _prefers_bfloat16(self, x: Tensor, run: Pass) -> bool:
        """Whether causal attention is fastest as bfloat16 products, for `x` in bfloat16."""
        return x.dtype == torch.bfloat16 == fastest_dtype(x.device)

    def attend_next(self, x: Tensor, run: Pass, remembered: KeyValues) -> Tensor:
        """Attends from one new position of each text to its cache: Float[Tensor, "batch hidden"]  ->  the same shape"""
        return self.output(self.attend_to_cache(self.product(x), run, remembered))

    def attend_to_cache(self, product: Tensor, run: Pass, remembered: KeyValues) -> Tensor:
        """Heads of one new position, before the output layer. product: its query, key and value, concatenated. Query
        heads that share a key are treated as positions of one head."""
        rows, key_value_heads, width = product.shape[0], self.num_key_value_heads, self.head_dim
        projected = product.float().unsqueeze(1)
        if run.rotation is not None:
            projected = run.rotation.rotate_interleaved(projected, self.num_heads + key_value_heads, key_value_heads)
        query, both = projected.view(rows, -1, 1, width).split_with_sizes((self.num_heads, 2 * key_value_heads), dim=1)
        key, value = remembered.extend_both(both)
        query = query.view(rows, key_value_heads, -1, width)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=run.mask, scale=self.scale)
        return mixed.view(rows, -1)

    def _self_attention_inputs(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the steps of the plain block; keys are cached with their columns in the order of all other passes."""
        query, key, value = super()._self_attention_inputs(x, run._replace(cache=None))
        if run.cache is None:
            return query, key, value
        query, key = (self._cache_layout(x) for x in (query, key))
        return query, *run.cache.self_attention.extend(key, value.float(), interleaved=is_interleaved(self))

    def _cache_layout(self, x: Tensor) -> Tensor:
        x = x.float()
        return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) if is_interleaved(self) else x


def _causal_in_strips(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention as bfloat16 products, some queries at a time, to the keys up to the diagonal only.

    query: Float[Tensor, "batch heads seq width"], scaled; key, value: with as many heads or fewer
    ->  BFloat16[Tensor, "batch seq heads*width"]
    """
    query, key, value = (x.to(torch.bfloat16) for x in (query, key, value))
    queries, across, seq = query.unflatten(1, (key.shape[1], -1)), key.transpose(-2, -1), query.shape[2]
    strips = []
    for start in range(0, seq, STRIP_LENGTH):
        some = queries[:, :, :, start : start + STRIP_LENGTH]  # [batch, shared, heads of each, some, width]
        end = start + some.shape[3]
        scores = (some.flatten(2, 3) @ across[..., :end]).unflatten(2, some.shape[2:4])
        later = torch.ones(some.shape[3], end, dtype=torch.bool, device=key.device).triu(start + 1)
        weights = scores.masked_fill_(later, -torch.inf).softmax(dim=-1).flatten(2, 3)
        strips.append((weights @ value[:, :, :end]).unflatten(2, some.shape[2:4]))
    return torch.cat(strips, dim=3).flatten(1, 2).transpose(1, 2).flatten(2)


class PackedPreNormLayer(Hookless, PreNormLayer):
    """The pre-norm layer without hooks, with a short path for one new position of each text."""

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        run = run or Pass()
        attention, cache = self.attention, run.cache
        needs_plain_path = run.observer is not None or run.bias is not None or self.cross_attention is not None
        if (
            x.shape[1] > 1
            or cache is None
            or needs_plain_path
            or not isinstance(attention, PackedAttention)
            or not attention.by_heads
        ):
            return super().forward(x, run)
        stream = x.squeeze(1)
        stream = stream + attention.attend_next(self.attention_norm(stream), run, cache.self_attention)
        return (stream + self.feed_forward(self.feed_forward_norm(stream), run)).unsqueeze(1)


class PackedPostNormLayer(Hookless, PostNormLayer):
    """The post-norm layer without hooks."""


class PackedCrossAttention(Attention):
    """Cross-attention whose linear layers are packed separately; its cache is float32."""

    def _split_heads(self, x: Tensor, width: int | None = None) -> Tensor:
        return super()._split_heads(x.float(), width)


class PackedGatedFeedForward(Hookless, GatedFeedForward):
    """A gated feed-forward block whose gate and up layers are one packed product."""

    product: nn.Module

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        both = self.product(x)
        if run is None or run.observer is None:
            return self.down(self.apply_gate(both))
        before, pre = both.chunk(2, dim=-1)
        gate = run.observe("gate", self.activation(before))  # [batch, seq, inner]
        hidden = run.observe("hidden", gate * run.observe("pre", pre))
        return run.observe("output", self.down(hidden))

    def apply_gate(self, both: Tensor) -> Tensor:
        """Gate and up outputs concatenated, Float[Tensor, "... 2*inner"]  ->  Float[Tensor, "... inner"]"""
        before, pre = both.chunk(2, dim=-1)
        return self.activation(before) * pre


class PackedRMSNorm(Hookless, RMSNorm):
    """RMSNorm in fewer steps, in float32: sqrt(mean(x^2) + eps) = hypot(|x|, sqrt(eps width)) / sqrt(width)."""

    @staticmethod
    def is_faster(weight: Tensor, dtype: torch.dtype) -> bool:
        """Whether it is faster here: on a processor, where overhead exceeds arithmetic, and if rounding allows it.

        dtype: of the packed copy's parameters.
        """
        return weight.device.type in ("cpu", "meta") and {weight.dtype, dtype} <= {torch.float32, torch.bfloat16}

    def pack(self) -> None:
        """Computes what does not depend on x."""
        weight, width = self.weight, len(self.weight)
        # In a tuple, since as an attribute it would become another parameter; the storage is kept alive, so that no
        # other tensor can take its address.
        of, version = (weight, weight.untyped_storage()), storage_version(weight)
        self.floor = torch.tensor((self.eps * width) ** 0.5, dtype=torch.float32, device=weight.device)
        self.gain = weight.detach().float() * width**0.5
        self.of, self.weight_version = of, version  # set last, for other threads

    def current_gain(self) -> Tensor:
        """The gain for the current weight, which may change: in a quantized model it is a parameter like any other."""
        weight = self._parameters["weight"]
        if weight is not self.of[0] or storage_version(weight) != self.weight_version:
            self.pack()
        return self.gain

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "of": (None,)}  # a copy tracks the writes to its own weight

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  the same shape"""
        if is_differentiated(self._parameters["weight"]):
            return super().forward(x)
        length = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32)
        return x / torch.hypot(length, self.floor) * self.current_gain()


JOINED: dict[type[nn.Module], tuple[str, ...]] = {
    PackedAttention: ("query", "key", "value"),
    PackedGatedFeedForward: ("gate", "up"),
}
"""Submodules whose weights are joined in one `product`."""
