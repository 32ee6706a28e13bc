"""The cross-entropy over a vocabulary, computed from the head's features in chunks of positions, so that the logits of
a batch never exist all at once. Its gradient is computed in the forward pass, while the logits of a chunk exist."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pellucid.machine import product_dtype

IGNORED = -100
"""The label of a position without a target."""

MAX_LOGITS, MIN_POSITIONS = 2**22, 512
"""The most logits of a chunk, and the fewest positions of one, which takes precedence."""


def vocabulary_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The sum of the cross-entropies of all positions that have a target.

        features --> logits = features . weight + bias --> p = softmax --> -log p[target]

    features: Float[Tensor, "... hidden"]; weight: Float[Tensor, "vocab hidden"]; bias: Float[Tensor, "vocab"] or None.
    targets: Int[Tensor, "..."], the token to predict at each position; -100 for none.
    smoothing: probability mass spread evenly over the vocabulary (Szegedy et al., 2015, arXiv:1512.00567, section 7).
    dtype: of matrix products, by default that of features; float32 where that is no slower. Softmax and sums are at
        least float32.
    ->  Float[Tensor, ""]; it can be differentiated once
    """
    rows, flat_targets = features.flatten(0, -2), targets.flatten()
    has_target = flat_targets != IGNORED
    if not bool(has_target.all()):
        rows, flat_targets = rows[has_target], flat_targets[has_target]
    kind = product_dtype(dtype or features.dtype, features.device)
    loss: Any = _VocabularyLoss.apply(rows, weight, bias, flat_targets, smoothing, kind)
    return loss


class _VocabularyLoss(torch.autograd.Function):
    """features Float[Tensor, "positions hidden"], weight, bias, targets Int[Tensor, "positions"], ...  ->  the sum"""

    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        dtype: torch.dtype,
    ) -> Tensor:
        gradients = _Gradients(features, weight, bias, ctx.needs_input_grad[:3], dtype)
        size = max(MAX_LOGITS // len(weight), MIN_POSITIONS)
        total = torch.zeros((), dtype=gradients.sum_dtype, device=features.device)
        for start in range(0, len(features), size):
            chunk = slice(start, start + size)
            total += gradients.chunk_loss(chunk, targets[chunk], smoothing)
        ctx.gradients = (gradients.grad_features, gradients.grad_weight, gradients.grad_bias)
        ctx.kinds = (features.dtype, weight.dtype, None if bias is None else bias.dtype)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        found = [None if one is None else (one * grad_loss).to(kind) for one, kind in zip(ctx.gradients, ctx.kinds)]
        return *found, None, None, None


class _Gradients:
    """The gradients of the sum by features, weight and bias, as far as needed; accumulated chunk by chunk."""

    def __init__(
        self, features: Tensor, weight: Tensor, bias: Tensor | None, needed: tuple[bool, ...], dtype: torch.dtype
    ) -> None:
        self.sum_dtype = torch.promote_types(dtype, torch.float32)
        self.rows, self.weight = features.detach().to(dtype), weight.detach().to(dtype)
        self.summand = None if bias is None else bias.detach().to(self.sum_dtype)
        self.grad_features = torch.empty_like(self.rows) if needed[0] else None
        self.grad_weight = torch.zeros(weight.shape, dtype=self.sum_dtype, device=weight.device) if needed[1] else None
        self.grad_bias = torch.zeros_like(self.summand) if needed[2] and self.summand is not None else None

    def chunk_loss(self, chunk: slice, targets: Tensor, smoothing: float) -> Tensor:
        """The summed losses of a chunk of positions; accumulates their gradients."""
        logits = (self.rows[chunk] @ self.weight.T).to(self.sum_dtype)
        if self.summand is not None:
            logits += self.summand
        logits -= logits.amax(dim=-1, keepdim=True)
        target_index = targets[:, None]
        fit = (1.0 - smoothing) * logits.gather(1, target_index)
        if smoothing:
            fit = fit + smoothing * logits.mean(dim=-1, keepdim=True)
        exponentials = logits.exp_()
        total = exponentials.sum(dim=-1, keepdim=True)
        loss = (total.log() - fit).sum()
        if not (self.grad_features is None and self.grad_weight is None and self.grad_bias is None):
            self._accumulate(chunk, _logit_gradient(exponentials, total, target_index, smoothing))
        return loss

    def _accumulate(self, chunk: slice, gradient: Tensor) -> None:
        """slope: the gradient of the loss by each logit, Float[Tensor, "positions vocab"]"""
        if self.grad_bias is not None:
            self.grad_bias += gradient.sum(dim=0)
        narrow = gradient.to(self.weight.dtype)
        if self.grad_features is not None:
            self.grad_features[chunk] = narrow @ self.weight
        if self.grad_weight is not None and narrow.dtype == self.sum_dtype:
            self.grad_weight.addmm_(narrow.T, self.rows[chunk])
        elif self.grad_weight is not None:
            self.grad_weight += narrow.T @ self.rows[chunk]


def _logit_gradient(exponentials: Tensor, total: Tensor, target_index: Tensor, smoothing: float) -> Tensor:
    """The gradient by each logit, predicted less target probability; overwrites the exponentials."""
    gradient = exponentials.div_(total)
    if smoothing:
        gradient -= smoothing / gradient.shape[-1]
    return gradient.scatter_add_(1, target_index, torch.full_like(target_index, smoothing - 1.0, dtype=gradient.dtype))
