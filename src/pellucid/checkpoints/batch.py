"""Rows of ids as a padded batch for a model; the only place that picks the padding token."""

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
    """The module's inputs for these rows in one pass, padded to the longest: Int[Tensor, "batch seq"] each.

    token_types: for each token, which text of a pair it belongs to; by default the first.
    pad_left: whether padding precedes the text.
    decoder_rows: input rows of the decoder of an encoder-decoder.
    A mask is included only where there is padding.
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
    """`Loaded.padding_id` for the decoder, which may have its own tokenizer."""
    tokenizer = loaded.target_tokenizer
    if tokenizer is None or loaded.config.pad_token_id is not None:
        return loaded.padding_id
    return tokenizer.pad_token_id or 0
