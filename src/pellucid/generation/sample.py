"""The next token: the likeliest, or one drawn, with random numbers of its own for each text, so that no text depends on
its neighbours."""

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.errors import InputError
from pellucid.machine import widest_dtype

BLOCK = 256


def generators(seeds: Sequence[int | None]) -> list[torch.Generator]:
    """One source of random numbers per text; None seeds one that nobody can foretell."""
    return [torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed) for seed in seeds]


def greedy_tokens(logits: Tensor) -> Tensor:
    """The first of the greatest logits: Float[Tensor, "rows vocab"]  ->  Int[Tensor, "rows"]

    The same as `argmax`, which for many rows takes five times as long: the block that holds it, then its place there.
    """
    vocab = logits.shape[1]
    if vocab < BLOCK:
        return logits.argmax(dim=1)
    blocks = logits[:, : vocab - vocab % BLOCK].unflatten(1, (-1, BLOCK)).amax(dim=2)
    block_maxima = torch.cat((blocks, logits[:, -BLOCK:].amax(dim=1, keepdim=True)), dim=1)
    start = (block_maxima.argmax(dim=1, keepdim=True) * BLOCK).clamp(max=vocab - BLOCK)
    window = logits.gather(1, start + torch.arange(BLOCK, device=logits.device))
    return start.squeeze(1) + window.argmax(dim=1)


def sample_tokens(logits: Tensor, sources: Sequence[torch.Generator]) -> Tensor:
    """One token per row, each as often as its probability says: the place at which the summed probabilities pass a
    random share of the whole. Float[Tensor, "rows vocab"]  ->  Int[Tensor, "rows"]

    A block by one random number, and a token in it by another: where a sum over a whole vocabulary passes a share,
    rounding moves by more than an unlikely token is wide, and a seed would draw another one beside other texts.
    Raises InputError for a row in which all logits are -inf or one is no number.
    """
    probabilities = logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    blocks = F.pad(probabilities, (0, -logits.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    sums = blocks.sum(dim=-1, dtype=widest_dtype(blocks.device))
    if not bool(sums.isfinite().all()):
        raise InputError("no token can be drawn: all logits of a text are -inf, or one of them is NaN or inf")
    shares = torch.stack([torch.rand(2, generator=source, dtype=torch.float64, device="cpu") for source in sources])
    first, second = shares.to(sums).unbind(dim=1)
    block = _inverse_cdf(sums, first)
    rows = torch.arange(len(sums), device=sums.device)
    return block * BLOCK + _inverse_cdf(blocks[rows, block].to(sums.dtype), second)


def _inverse_cdf(parts: Tensor, share: Tensor) -> Tensor:
    """Where the summed parts pass a share of their whole, never at a part of nothing."""
    summed = parts.cumsum(dim=1)
    last = (summed < summed[:, -1:]).sum(dim=1)  # the last part that is something
    return torch.minimum((summed <= share[:, None] * summed[:, -1:]).sum(dim=1), last)
