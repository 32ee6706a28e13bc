"""The next token: the likeliest, or a sampled one, with a random generator per text, so that no text depends on the
others in its batch."""

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.errors import InputError
from pellucid.machine import widest_dtype

BLOCK = 256


def generators(seeds: Sequence[int | None]) -> list[torch.Generator]:
    """Returns one random generator per text; a seed of None is replaced by an unpredictable one."""
    return [torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed) for seed in seeds]


def greedy_tokens(logits: Tensor) -> Tensor:
    """The first of the greatest logits: Float[Tensor, "rows vocab"]  ->  Int[Tensor, "rows"]

    The same as `argmax`, which takes five times as long for many rows: first the block, then the position within it.
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
    """Samples one token per row by inverting the cumulative distribution.

    Float[Tensor, "rows vocab"]  ->  Int[Tensor, "rows"]
    A block is drawn first, then a token within it: rounding of a cumulative sum over the whole vocabulary exceeds the
    probability of unlikely tokens, so a seed could draw another token in another batch.
    Raises InputError for a row in which all logits are -inf or one is NaN or inf.
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


def _inverse_cdf(parts: Tensor, fraction: Tensor) -> Tensor:
    """The index at which the cumulative sum exceeds this `fraction` of the total, never one of probability 0."""
    summed = parts.cumsum(dim=1)
    last = (summed < summed[:, -1:]).sum(dim=1)  # the last part that is not 0
    return torch.minimum((summed <= fraction[:, None] * summed[:, -1:]).sum(dim=1), last)
