"""Rows of ids as one batch for a model: the one place that pads with the token by which the model knows padding."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.text import collate

Rows = Sequence[Sequence[int]]


def as_batch(
    loaded: Loaded,
    rows: Rows,
    token_types: Rows | None = None,
    *,
    decoder_rows: Rows | None = None,
    pad_left: bool = False,
) -> dict[str, Tensor]:
    """What the module takes for these rows in one pass, padded to the longest: Int[Tensor, "batch seq"] each.

    token_types: the text of a pair that each token is of; by default the first.
    pad_left: padding stands before a text.
    decoder_rows: what the decoder of an encoder-decoder has read.
    A mask is among it only where something is padding.
    """
    arrays = _collate_unpadded_mask(rows, rows if token_types is None else token_types, loaded.padding_id, pad_left)
    if token_types is None or not loaded.uses_token_types:
        del arrays["token_type_ids"]
    if decoder_rows is not None:
        decoder_arrays = _collate_unpadded_mask(decoder_rows, decoder_rows, _target_padding_id(loaded), pad_left=False)
        arrays |= {f"decoder_{name}": array for name, array in decoder_arrays.items()}
    device = loaded.module.device
    return {
        name: torch.from_numpy(array).to(device) for name, array in arrays.items() if name in loaded.module.input_names
    }


def _collate_unpadded_mask(rows: Rows, token_types: Rows, pad: int, pad_left: bool) -> dict[str, np.ndarray]:
    arrays = collate(rows, token_types, pad, left=pad_left)
    if arrays["attention_mask"].all():
        del arrays["attention_mask"]
    return arrays


def _target_padding_id(loaded: Loaded) -> int:
    """As `Loaded.padding_id`, on the side of the decoder, which may have a tokenizer of its own."""
    tokenizer = loaded.target_tokenizer
    if tokenizer is None or loaded.config.pad_token_id is not None:
        return loaded.padding_id
    return tokenizer.pad_token_id or 0
