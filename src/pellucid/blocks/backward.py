"""Operations with an explicit backward pass, in fewer and larger steps than autograd would take.

Gradients are named after what they are the gradient of: `grad_x` is the gradient of the loss with respect to x.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pellucid.blocks.hooks import storage_version
from pellucid.blocks.joint_weights import concatenated
from pellucid.blocks.relative import Rotation
from pellucid.machine import mkl_keeps_pace, product_dtype, served_by_mkl

LowPrecisionTables = dict[tuple[int, ...], tuple[list[Any], list[tuple[int, int]], Tensor]]
"""Weights converted to half precision, by the ids of the originals; with these and their storages, which are kept alive
so that their addresses are not reused, and their versions."""


class JointLinear(torch.autograd.Function):
    """x times several weights concatenated by rows, plus their biases: one product forward, two backward.

        x [..., in]  ->  x . W' + b [..., out]      grad_x = grad_y . W,  grad_W = grad_y' . x,  grad_b = sum of grad_y

    Gradients that are not needed are not computed. Where half precision is no faster (`product_dtype`), only the output
    and what is saved for the backward pass are in it, and products are computed in float32.
    """

    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]
        ctx: Any, x: Tensor, dtype: torch.dtype, cache: LowPrecisionTables, count: int, *weights_and_biases: Tensor
    ) -> Tensor:
        weights, biases = weights_and_biases[:count], weights_and_biases[count:]
        kind = product_dtype(dtype, x.device)
        weight = _joint_weight(weights, kind, cache)
        bias = concatenated(biases).to(kind) if biases else None
        rows = x.reshape(-1, x.shape[-1])
        y = linear_forward(rows.to(kind), weight, bias).to(dtype)
        ctx.product = kind
        ctx.lengths, ctx.kinds, ctx.like, ctx.count = [len(part) for part in weights], weights[0].dtype, x.dtype, count
        needs_weight_gradient = any(ctx.needs_input_grad[4 : 4 + count])
        ctx.save_for_backward(
            rows.to(dtype) if needs_weight_gradient else None, weight if ctx.needs_input_grad[0] else None
        )
        return y.view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Any, ...]:  # pyrefly: ignore[bad-override]
        rows, weight = ctx.saved_tensors
        needed = ctx.needs_input_grad
        grad_product = grad_y.reshape(-1, grad_y.shape[-1]).to(ctx.product)
        grad_x = (
            None
            if weight is None
            else linear_input_gradient(grad_product, weight).view(*grad_y.shape[:-1], weight.shape[1]).to(ctx.like)
        )
        parts: list[Tensor | None] = [None] * (len(needed) - 4)
        if rows is not None:
            parts[: ctx.count] = (
                linear_weight_gradient(grad_product, rows.to(ctx.product)).to(ctx.kinds).split(ctx.lengths)
            )
        if any(needed[4 + ctx.count :]):
            parts[ctx.count :] = grad_product.sum(dim=0).to(ctx.kinds).split(ctx.lengths)
        return grad_x, None, None, None, *(part if one else None for part, one in zip(parts, needed[4:]))


def _joint_weight(weights: Sequence[Tensor], dtype: torch.dtype, cache: LowPrecisionTables) -> Tensor:
    """Weights concatenated and converted to `dtype`; cached until they change."""
    if weights[0].dtype == dtype or not all(isinstance(part, torch.nn.Parameter) for part in weights):
        return concatenated(weights).to(dtype)
    name, state = tuple(map(id, weights)), [storage_version(part) for part in weights]
    if name not in cache or cache[name][1] != state:
        memory = [part.untyped_storage() for part in weights]
        cache[name] = ([*weights, *memory], state, concatenated(weights).to(dtype))
    return cache[name][2]


# -- the three products of a linear layer -----------------------------------------------------------------------------


def _uses_onednn(x: Tensor, *kinds: torch.dtype) -> bool:
    """Whether oneDNN has to be called explicitly: PyTorch uses it for half precision, if not always in the fastest way,
    but for float32 uses MKL, which is slower where it does not use all of the processor. oneDNN accepts no empty input.
    """
    if not x.numel() or (x.dtype == torch.float32 and served_by_mkl()):
        return False
    if x.device.type != "cpu" or x.dtype not in (kinds or (torch.float32,)) or not torch.backends.mkldnn.is_available():
        return False
    return x.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Float[Tensor, "rows in"], Float[Tensor, "out in"], Float[Tensor, "out"]  ->  Float[Tensor, "rows out"]"""
    multiply = _onednn_linear if _uses_onednn(x, torch.float32, torch.bfloat16) else F.linear
    return multiply(x, weight, bias)


def linear_input_gradient(grad_y: Tensor, weight: Tensor) -> Tensor:
    """Float[Tensor, "rows out"], Float[Tensor, "out in"]  ->  Float[Tensor, "rows in"]"""
    return _onednn_linear(grad_y, weight.t(), None) if _uses_onednn(grad_y) else grad_y @ weight


def linear_weight_gradient(grad_y: Tensor, x: Tensor) -> Tensor:
    """Float[Tensor, "rows out"], Float[Tensor, "rows in"]  ->  Float[Tensor, "out in"]

    Where MKL is otherwise as fast as oneDNN, it is faster for a weight with at least as many rows as columns.
    """
    if _uses_onednn(grad_y) and (grad_y.shape[1] < x.shape[1] or not mkl_keeps_pace()):
        return _onednn_linear(grad_y.t(), x.t(), None)
    return grad_y.t() @ x


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """oneDNN's linear layer; it takes transposed tensors without a copy."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


# -- attention --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How the columns of attention are arranged. heads: number of query heads; key_value_heads: of key and value heads,
    each for a group of consecutive query heads.  width, value_width: of one head.  scale: factor of the scores."""

    heads: int
    key_value_heads: int
    width: int
    value_width: int
    scale: float

    def split(self, own: Tensor, other: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each [batch, seq, heads, width], as views."""
        key, value = self.key_value_heads * self.width, self.key_value_heads * self.value_width
        if other is None:
            three = own.split([self.heads * self.width, key, value], dim=-1)
        else:
            three = (own, *other.split([key, value], dim=-1))
        widths = (self.width, self.width, self.value_width)
        query, key, value = (one.unflatten(-1, (-1, width)) for one, width in zip(three, widths))
        return query, key, value

    def flatten_heads(self, x: Tensor) -> Tensor:
        """[batch, seq, heads, width]  ->  [batch * shared, heads / shared * seq, width]: stacks queries of one key."""
        batch, seq, heads, width = x.shape
        return x.transpose(1, 2).reshape(batch * self.key_value_heads, heads // self.key_value_heads * seq, width)

    def restore_heads(self, x: Tensor, into: Tensor) -> None:
        """Undoes `flatten_heads`, writing to a view [batch, seq, heads, width]."""
        batch, seq, heads, width = into.shape
        into.copy_(x.view(batch, heads, seq, width).transpose(1, 2))


class AttentionProduct(torch.autograd.Function):
    """Attention between its linear layers, as explicit matrix products.

    On a processor, PyTorch's fused kernel has a slow backward pass, and a slow forward pass with dropout. Weights after
    dropout are recomputed in the backward pass.

    own: Float[Tensor, "batch seq widths"], query, key and value concatenated, or the query alone; other: key and value.
    bias, summand: added to the scores [batch, heads, seq, source]; only the first may have a gradient.
    dropout_mask: factors of the weights, Float[Tensor, "batch heads seq source"] of 0 and 1 / (1 - share).
    """

    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]
        ctx: Any,
        own: Tensor,
        other: Tensor | None,
        bias: Tensor | None,
        summand: Tensor | None,
        rotation: Rotation | None,
        dropout_mask: Tensor | None,
        form: HeadLayout,
    ) -> Tensor:
        queries, keys, values = form.split(own, other)
        kind = product_dtype(own.dtype, own.device)
        query, key, value = (form.flatten_heads(x).to(kind) for x in (queries, keys, values))
        batch, seq, source = len(own), queries.shape[1], values.shape[1]
        if rotation is not None:
            query, key = (_rotated(x, rotation.rotate, batch, seq) for x in (query, key))
        scores = torch.baddbmm(query.new_empty(1), query, key.transpose(1, 2), beta=0, alpha=form.scale)
        scores_by_head = scores.view(batch, form.heads, seq, source)
        if bias is not None:
            scores_by_head += bias
        if summand is not None:
            scores_by_head += summand
        weights = scores.softmax(dim=-1)
        mixed = (_with_dropout(weights, dropout_mask) @ value).to(own.dtype)
        ctx.save_for_backward(*(x.to(own.dtype) for x in (query, key, value, weights)))
        ctx.product, ctx.dropout_mask, ctx.form, ctx.rotation = kind, dropout_mask, form, rotation
        ctx.shapes = (
            own.shape,
            None if other is None else other.shape,
            None if bias is None else (bias.shape, bias.dtype),
        )
        mixed = mixed.view(batch, form.heads, seq, form.value_width)
        return mixed.transpose(1, 2).reshape(batch, seq, form.heads * form.value_width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mixed: Tensor) -> tuple[Any, ...]:  # pyrefly: ignore[bad-override]
        form, dropout_mask = ctx.form, ctx.dropout_mask
        query, key, value, weights = (x.to(ctx.product) for x in ctx.saved_tensors)
        grad_heads = form.flatten_heads(grad_mixed.unflatten(-1, (form.heads, form.value_width))).to(ctx.product)
        grad_value = _with_dropout(weights, dropout_mask).transpose(1, 2) @ grad_heads
        grad_weights = grad_heads @ value.transpose(1, 2)
        if dropout_mask is not None:
            grad_weights *= dropout_mask.view(grad_weights.shape)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        empty = query.new_empty(1)
        grad_query = torch.baddbmm(empty, grad_scores, key, beta=0, alpha=form.scale)
        grad_key = torch.baddbmm(empty, grad_scores.transpose(1, 2), query, beta=0, alpha=form.scale)
        if ctx.rotation is not None:
            grad_query, grad_key = (
                _rotated(x, ctx.rotation.rotate_back, *grad_mixed.shape[:2]) for x in (grad_query, grad_key)
            )
        own, other, bias = ctx.shapes
        grad_own = grad_mixed.new_empty(own)
        grad_other = None if other is None else grad_mixed.new_empty(other)
        for grad, into in zip((grad_query, grad_key, grad_value), form.split(grad_own, grad_other)):
            form.restore_heads(grad, into)
        grad_bias = None
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_scores.view(-1, form.heads, own[1], weights.shape[-1]).sum_to_size(bias[0]).to(bias[1])
        return grad_own, grad_other, grad_bias, None, None, None, None


def _rotated(x: Tensor, rotate: Callable[[Tensor], Tensor], batch: int, seq: int) -> Tensor:
    """Rotates queries or keys that are arranged as by `HeadLayout.flatten_heads`."""
    return rotate(x.view(batch, -1, seq, x.shape[-1])).to(x.dtype).view(x.shape)


def _with_dropout(weights: Tensor, dropout_mask: Tensor | None) -> Tensor:
    return weights if dropout_mask is None else weights * dropout_mask.view(weights.shape)


# -- small steps ------------------------------------------------------------------------------------------------------


class DropoutAdd(torch.autograd.Function):
    """x + part * dropout_mask; x may have a wider dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, dropout_mask: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        ctx.dropout_mask, ctx.narrow = dropout_mask, part.dtype
        return torch.addcmul(x, part, dropout_mask) if x.dtype == part.dtype else x + part * dropout_mask

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_sum: Tensor) -> tuple[Any, ...]:  # pyrefly: ignore[bad-override]
        return by_sum, by_sum.to(ctx.narrow) * ctx.dropout_mask, None


class RMSNormalise(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * gain. Backward: grad_x = (s - n mean(s n)) / sqrt(...), where s = grad_y * gain and
    n = x / sqrt(...)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:  # pyrefly: ignore[bad-override]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        length = torch.linalg.vector_norm(wide, 2, -1, True)
        scale = (length.square_().div_(x.shape[-1]).add_(eps)).rsqrt_()
        normed = wide * scale
        ctx.save_for_backward(normed, scale, gain)
        ctx.kind = x.dtype
        return (normed * gain).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Any, ...]:  # pyrefly: ignore[bad-override]
        normed, scale, gain = ctx.saved_tensors
        grad_y = grad_y.to(normed.dtype)
        grad_gain = (grad_y * normed).flatten(0, -2).sum(dim=0).to(gain.dtype) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, grad_gain, None
        grad_normed = grad_y * gain
        projection = (grad_normed * normed).mean(dim=-1, keepdim=True)
        return (grad_normed.addcmul_(normed, projection, value=-1.0).mul_(scale)).to(ctx.kind), grad_gain, None
