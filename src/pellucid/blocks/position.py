"""Where a token stands: a summand for its embedding, one row per place."""

import math

import torch
from torch import Tensor, nn


class Table(nn.Embedding):
    """A row of numbers per id.

    Without memory (on the meta device, while a checkpoint is being opened) there is nothing to draw; PyTorch would
    load its whole compiler to draw it, which takes a second.
    """

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class LearnedPositions(Table):
    """A learned row per place: the first `length` places, no more."""

    def __init__(self, length: int, hidden_size: int) -> None:
        super().__init__(length, hidden_size)

    @property
    def length(self) -> int:
        return self.num_embeddings


class SinusoidalPositions(nn.Module):
    """Fixed waves (Vaswani et al., 2017, arXiv:1706.03762, section 3.5): even columns are sines, odd ones cosines.

    Column pair c turns through one radian in 10000^(2c/hidden) places, so near places look alike and far ones do not.
    """

    def __init__(self, length: int, hidden_size: int) -> None:
        super().__init__()
        self.length = length
        self.hidden_size = hidden_size

    def forward(self, places: Tensor) -> Tensor:
        """Int[Tensor, "1 seq"]  ->  Float[Tensor, "1 seq hidden"]"""
        pairs = torch.arange(0, self.hidden_size, 2, device=places.device, dtype=torch.float64)
        angle = places[..., None] * torch.exp(pairs * (-math.log(10000.0) / self.hidden_size))
        waves = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., : self.hidden_size]
        return waves.to(torch.get_default_dtype())


class NoPositions(nn.Module):
    """No places at all: what comes out does not depend on the order of the tokens."""

    length = None

    def forward(self, places: Tensor) -> None:
        return None
