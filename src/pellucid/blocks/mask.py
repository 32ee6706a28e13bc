"""Attention masks: for padding, causal, windowed and packed texts, and their combination."""

import torch
from torch import Tensor

from pellucid.blocks.checks import check_mask
from pellucid.errors import InputError


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:
    """Returns the tokenizer's mask (1 = token, 0 = padding) as a boolean mask of attention; None if nothing is padding.

    attention_mask: Int[Tensor, "batch source"]  ->  Bool[Tensor, "batch 1 1 source"]
    """
    if attention_mask is None:
        return None
    real = attention_mask.to(torch.bool)
    return None if bool(real.all()) else real[:, None, None, :]


def causal_mask(seq: int, source: int, device: torch.device | None = None) -> Tensor:
    """True on and below the diagonal: query i of the last `seq` positions sees the keys up to its own position.

    ->  Bool[Tensor, "1 1 seq source"]
    Raises InputError for fewer keys than queries: the first query could attend to nothing.
    """
    if seq > source:
        raise InputError(
            f"{seq} queries and {source} keys: under a causal mask the first query could attend to nothing"
        )
    return torch.ones(seq, source, dtype=torch.bool, device=device).tril_(source - seq)[None, None]


def windowed_mask(seq: int, window: int, device: torch.device | None = None) -> Tensor:
    """A causal mask limited to the last `window` positions, including the query's own.

    ->  Bool[Tensor, "1 1 seq seq"]
    """
    return causal_mask(seq, seq, device).triu_(1 - window)


def position_mask(query_positions: Tensor, key_positions: Tensor, window: int | None = None) -> Tensor:
    """The causal mask of queries and keys at the given positions; negative keys, padding, are hidden.

    query_positions: Int[Tensor, "rows seq"]; key_positions: Int[Tensor, "rows source"]
    ->  Bool[Tensor, "rows 1 seq source"]
    """
    queries, keys = query_positions[:, None, :, None], key_positions[:, None, None, :]
    allowed = keys <= queries
    allowed &= keys >= 0
    if window is not None:
        allowed &= keys > queries - window
    return allowed


def segment_positions(segments: Tensor) -> Tensor:
    """Position of each token in its segment, counted from 0; -1 for padding, which is segment 0.

    segments: Int[Tensor, "batch seq"], each one contiguous  ->  Int[Tensor, "batch seq"]
    """
    index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    start = index.where(begins, 0).cummax(dim=1).values
    return (index - start).where(segments > 0, -1)


def segmented_mask(segments: Tensor, *, causal: bool, window: int | None = None) -> Tensor:
    """Hides other segments. Padding sees padding, so that no row of scores is fully masked.

        segments 1 1 2 2 2 0     1 1 . . . .
                                 1 1 . . . .
                                 . . 1 1 1 .      bidirectional; if causal, only what is on and below the diagonal
                                 . . 1 1 1 .
                                 . . 1 1 1 .
                                 . . . . . 1

    segments: Int[Tensor, "batch seq"]  ->  Bool[Tensor, "batch 1 seq seq"]
    """
    same = segments[:, None, :, None] == segments[:, None, None, :]
    if not causal:
        return same
    seq = segments.shape[1]
    return same.logical_and_(windowed_mask(seq, window or seq, segments.device))


def combined_mask(mask: Tensor | None, causal: bool, seq: int, source: int, device: torch.device) -> Tensor | None:
    """Combines a mask and the causal one; None where there is neither."""
    if mask is not None:
        check_mask(mask)
    if not causal:
        return mask
    order = causal_mask(seq, source, device)
    return order if mask is None else order & mask


def additive_mask(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Combines a boolean mask and a bias to add to the scores: the bias, or the dtype's minimum where masked."""
    if mask is None:
        return None if bias is None else bias.to(dtype)
    min_score = torch.finfo(dtype).min
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero if bias is None else bias.to(dtype), min_score)
