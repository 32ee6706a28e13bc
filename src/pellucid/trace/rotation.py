"""The rotation of queries and keys by position, for code that applies it itself."""

import torch
from torch import Tensor

from pellucid.config import Config
from pellucid.models import rotary_of


def cosines_and_sines(config: Config, seq: int) -> Tensor | None:
    """Cosines and sines of the first `seq` positions, Float32[Tensor, "2 seq head_dim/2"]; None if not rotary.

    Pair (c, c + head_dim/2) is rotated by angle c of its position: (a cos - b sin, b cos + a sin).
    """
    rotary = rotary_of(config)
    if rotary is None:
        return None
    like = torch.zeros(0, dtype=torch.float32, device="cpu")
    rotation, half = rotary(torch.arange(seq, device="cpu")[None], like), config.head_dim // 2
    return torch.stack((rotation.cosine[0, 0, :, :half], rotation.sine[0, 0, :, half:]))
