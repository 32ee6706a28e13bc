"""Rows of ids as one batch for a model: the one place that pads with the token by which the model knows padding."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.text import collate

Rows = Sequence[Sequence[int]]


def as_batch(
    loaded: Loaded, rows: Rows, types: Rows | None = None, *, written: Rows | None = None, left: bool = False
) -> dict[str, Tensor]:
    """What the module takes for these rows in one pass, padded to the longest: Int[Tensor, "batch seq"] each.

    types: the text of a pair that each token is of; by default the first.  left: padding stands before a text.
    written: what the decoder of an encoder-decoder has read.
    A mask is among it only where something is padding.
    """
    arrays = _collated(rows, rows if types is None else types, loaded.padding, left)
    if types is None or not loaded.numbers_texts:
        del arrays["token_type_ids"]
    if written is not None:
        told = _collated(written, written, _target_padding(loaded), left=False)
        arrays |= {f"decoder_{name}": array for name, array in told.items()}
    device = loaded.module.device
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items() if name in loaded.module.reads}


def _collated(rows: Rows, types: Rows, pad: int, left: bool) -> dict[str, np.ndarray]:
    arrays = collate(rows, types, pad, left=left)
    if arrays["attention_mask"].all():
        del arrays["attention_mask"]
    return arrays


def _target_padding(loaded: Loaded) -> int:
    """As `Loaded.padding`, on the side of the decoder, which may have words of its own."""
    words = loaded.target_tokenizer
    if words is None or loaded.config.pad_token_id is not None:
        return loaded.padding
    return words.pad_token_id or 0
