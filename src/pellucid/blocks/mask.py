"""Who may look at whom: padding and causal masks, and the one form that attention takes them in."""

import torch
from torch import Tensor

from pellucid.blocks.checks import check_mask
from pellucid.errors import InputError


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:
    """From the tokenizer's mask (1 = word, 0 = padding) to what attention takes; None where nothing is padding.

    attention_mask: Int[Tensor, "batch source"]  ->  Bool[Tensor, "batch 1 1 source"]
    """
    if attention_mask is None:
        return None
    real = attention_mask.to(torch.bool)
    return None if bool(real.all()) else real[:, None, None, :]


def causal_mask(seq: int, source: int, device: torch.device | None = None) -> Tensor:
    """True on and below the diagonal: position i of the last `seq` sees the positions up to its own.

    ->  Bool[Tensor, "1 1 seq source"]
    Raises InputError where fewer answer than ask: the first of them would see nothing.
    """
    if seq > source:
        raise InputError(
            f"{seq} queries and {source} keys: under a causal mask the first query could attend to nothing"
        )
    return torch.ones(seq, source, dtype=torch.bool, device=device).tril_(source - seq)[None, None]


def windowed_mask(seq: int, window: int, device: torch.device | None = None) -> Tensor:
    """Causal, and no further back than `window` positions, the own one included.

    ->  Bool[Tensor, "1 1 seq seq"]
    """
    return causal_mask(seq, seq, device).triu_(1 - window)


def position_mask(query_positions: Tensor, key_positions: Tensor, window: int | None = None) -> Tensor:
    """Who may look at whom where both say where they stand; nobody looks at position -1, padding.

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
    """Where each token stands in its segment, counted from 0; -1 for padding, which is segment 0.

    segments: Int[Tensor, "batch seq"], each one stretch  ->  Int[Tensor, "batch seq"]
    """
    index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    start = index.where(begins, 0).cummax(dim=1).values
    return (index - start).where(segments > 0, -1)


def segmented_mask(segments: Tensor, *, causal: bool, window: int | None = None) -> Tensor:
    """Nobody sees another segment. Padding sees padding, so that no row of scores is without a number.

        segments 1 1 2 2 2 0     1 1 . . . .
                                 1 1 . . . .
                                 . . 1 1 1 .      looking both ways; causal, only what is on and below the diagonal
                                 . . 1 1 1 .
                                 . . 1 1 1 .
                                 . . . . . 1

    segments: Int[Tensor, "batch seq"]  ->  Bool[Tensor, "batch 1 seq seq"]
    """
    same = segments[:, None, :, None] == segments[:, None, None, :]
    if not causal:
        return same
    seq = segments.shape[1]
    return same.logical_and_(windowed_mask(seq, min(window or seq, seq), segments.device))


def combined_mask(mask: Tensor | None, causal: bool, seq: int, source: int, device: torch.device) -> Tensor | None:
    """Both restrictions as one boolean mask; None where there is none."""
    if mask is not None:
        check_mask(mask)
    if not causal:
        return mask
    order = causal_mask(seq, source, device)
    return order if mask is None else order & mask


def additive_mask(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A boolean mask and a bias as one summand for the scores: the bias where one may look, else the least number."""
    if mask is None:
        return None if bias is None else bias.to(dtype)
    least = torch.finfo(dtype).min
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero if bias is None else bias.to(dtype), least)
