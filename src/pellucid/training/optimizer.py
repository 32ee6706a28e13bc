"""AdamW over the trained parameters: matrices decay, vectors such as biases and norm weights do not."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from pellucid.machine import no_grad
from pellucid.training.settings import Settings


def build_optimizer(parameters: Mapping[str, nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, 2017, arXiv:1711.05101), fused into one kernel."""
    matrices = [p for p in parameters.values() if p.dim() > 1]
    others = [p for p in parameters.values() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=betas,
        eps=settings.epsilon,
        fused=True,
    )


@no_grad()
def gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The L2 norm of all gradients as one vector; not finite where one of their elements is not."""
    squares = [torch.dot(flat, flat) for p in parameters if p.grad is not None for flat in [p.grad.flatten()]]
    return math.sqrt(math.fsum(map(float, squares)))


def optimizer_step(optimizer: torch.optim.Optimizer, learning_rate: float, gradient_scale: float = 1.0) -> None:
    """One optimizer step with gradients times `gradient_scale`.

    gradient_scale: such as that of clipping. The fused kernel applies it, which saves a pass over all gradients.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    device = optimizer.param_groups[0]["params"][0].device
    scale = None if gradient_scale == 1.0 else torch.tensor(1.0 / gradient_scale, dtype=torch.float32, device=device)
    setattr(optimizer, "grad_scale", scale)  # noqa: B010 - what the kernel divides gradients by
    optimizer.step()
