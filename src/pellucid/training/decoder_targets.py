"""Targets as a decoder meets them: what it reads, and what it is to say next.

target    w1     w2     end            reads    start  w1   w2
                                       says     w1     w2   end
"""

from collections.abc import Sequence

import numpy as np

from pellucid.checkpoints.loaded import Loaded
from pellucid.generation.checkpoint_settings import required_start_token
from pellucid.training.losses import IGNORED
from pellucid.training.objective import Example
from pellucid.training.sequence_packing import padded


def shift_tokens_right(loaded: Loaded, examples: Sequence[Example]) -> np.ndarray:
    """What the decoder reads: each target one place to the right, behind the start token.

    ->  Int64[ndarray, "batch seq"]
    """
    start = required_start_token(loaded)
    width = max(len(one.ids[1]) for one in examples)
    return padded([[start, *one.ids[1]][:width] for one in examples], loaded.config.pad_token_id or 0)


def decoder_labels(examples: Sequence[Example]) -> np.ndarray:
    """What the decoder is to say: Int64[ndarray, "batch seq"], -100 where a target has ended"""
    return padded([one.ids[1] for one in examples], IGNORED)
