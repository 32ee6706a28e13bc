"""By how much a model turns its queries and keys, for those who turn them again."""

import torch
from torch import Tensor

from pellucid.config import Config
from pellucid.models import rotary_of


def cosines_and_sines(config: Config, seq: int) -> Tensor | None:
    """Cosines and sines of the first `seq` places, Float32[Tensor, "2 seq head_dim/2"]; None where nothing is turned.

    Pair (c, c + head_dim/2) is turned by angle c of its place: (a cos - b sin, b cos + a sin).
    """
    rotary = rotary_of(config)
    if rotary is None:
        return None
    like = torch.zeros(0, dtype=torch.float32, device="cpu")
    rotation, half = rotary(torch.arange(seq, device="cpu")[None], like), config.head_dim // 2
    return torch.stack((rotation.cosine[0, 0, :, :half], rotation.sine[0, 0, :, half:]))
