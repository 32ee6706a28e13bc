"""Drawing the next token: a generator of random numbers for each text, so that no text depends on its neighbours."""

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor


def generators(seeds: Sequence[int | None]) -> list[torch.Generator]:
    """One source of random numbers per text; None seeds one that nobody can foretell."""
    return [torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed) for seed in seeds]


def draw(logits: Tensor, sources: Sequence[torch.Generator]) -> Tensor:
    """One token per row, each as often as its probability says: the place at which the summed probabilities pass a
    random share of the whole. Float[Tensor, "rows vocab"]  ->  Int[Tensor, "rows"]"""
    summed = logits.softmax(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    shares = torch.cat([torch.rand(1, generator=source, dtype=torch.float64) for source in sources])
    wanted = shares.to(summed.device)[:, None] * summed[:, -1:]
    return torch.searchsorted(summed, wanted, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
