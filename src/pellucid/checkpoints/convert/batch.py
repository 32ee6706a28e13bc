"""The trial texts for a foreign graph."""

from math import isqrt, prod
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.checkpoints.convert.graph import printable
from pellucid.checkpoints.convert.steps import Steps

TEXTS, TOKENS, _PADDED = 3, 131, (5, 0, 94)
"""Batch sizes for dynamic axes: numbers that no other axis of a graph has, so that axes cannot be confused; and the
number of padding tokens of each text."""

_MAX_TOKENS = 2**17
"""Maximum number of tokens in a batch."""

_MAX_SCORES = 2**24
"""Maximum number of scores of one attention."""


class TrialBatch(NamedTuple):
    """texts, tokens: how many.  attention_mask: `[texts, tokens]`, False for padding.  shape: of an input.
    max_length: maximum length of a text."""

    texts: int
    tokens: int
    attention_mask: Tensor
    shape: tuple[int, ...]
    max_length: int


def trial_batch(
    steps: Steps, ids_input: str, max_length: int, default_sizes: tuple[int, int], heads: int = 0
) -> TrialBatch:
    """A batch in the sizes that a file fixes for its inputs.

    ids_input: the input of ids.  max_length: number of positions.
    default_sizes: texts and tokens for dynamic axes; fewer tokens where the model has fewer positions, or the batch
        would have too many scores.
    heads: number of attention heads; 0 where the texts are only looked up.
    """
    sizes = steps.graph.input_shapes.get(ids_input) or (0, 0)
    # With three axes, each text has two choices.
    texts = [size or free for size, free in zip(sizes[:-1], (default_sizes[0], 2))]
    max_tokens = max(isqrt(_MAX_SCORES // (prod(texts) * heads)), 1) if heads else max_length
    shape = (*texts, sizes[-1] or min(default_sizes[1], max_length, max_tokens))
    if (
        ids_input not in steps.graph.inputs
        or len(sizes) not in (2, 3)
        or shape[-1] > max_length
        or not 0 < prod(shape) <= _MAX_TOKENS
    ):
        fault = f"its input {printable(ids_input)} is {list(sizes)}" if ids_input else "it has no inputs"
        raise steps.not_understood_error(f"{fault}, expected ids of texts of up to {max_length} tokens")
    count, tokens = prod(texts), shape[-1]
    if count * tokens**2 * heads > _MAX_SCORES:
        fault = f"it takes {count} texts of {tokens} tokens and no others"
        raise steps.not_understood_error(f"{fault}, which are too many to try; export with dynamic axes")
    padding_counts = torch.tensor([min(_PADDED[i % 3], tokens // 2) for i in range(count)], device="cpu")
    return TrialBatch(
        count, tokens, torch.arange(tokens, device="cpu") < (tokens - padding_counts)[:, None], shape, max_length
    )
