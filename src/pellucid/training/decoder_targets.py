"""Inputs and labels of a decoder from the targets of examples.

target    w1     w2     end            inputs   start  w1   w2
                                       labels   w1     w2   end
"""

from collections.abc import Sequence

import numpy as np

from pellucid.checkpoints.loaded import Loaded
from pellucid.generation.checkpoint_settings import required_start_token
from pellucid.training.losses import IGNORED
from pellucid.training.objective import Example
from pellucid.training.sequence_packing import padded


def shift_tokens_right(loaded: Loaded, examples: Sequence[Example]) -> np.ndarray:
    """The decoder's inputs: each target shifted right by one position, after the start token.

    ->  Int64[ndarray, "batch seq"]
    """
    start = required_start_token(loaded)
    width = max(len(one.ids[1]) for one in examples)
    return padded([[start, *one.ids[1]][:width] for one in examples], loaded.config.pad_token_id or 0)


def decoder_labels(examples: Sequence[Example]) -> np.ndarray:
    """The decoder's labels: Int64[ndarray, "batch seq"], -100 after the end of a target"""
    return padded([one.ids[1] for one in examples], IGNORED)
