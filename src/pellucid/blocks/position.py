"""Absolute positions: one vector per position, added to the token embedding."""

import math

import torch
from torch import Tensor, nn

from pellucid.errors import InputError, did_you_mean
from pellucid.machine import widest_dtype

WAVES = ("interleaved", "halves", "tensor2tensor")


class Table(nn.Embedding):
    """An embedding table.

    On the meta device, where a checkpoint is being opened, there is nothing to initialise; PyTorch would import its
    compiler for it, which takes a second.
    """

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of the output."""
        return self.weight


class LearnedPositions(Table):
    """A learned vector for each of the first `length` positions.

    offset: the row of the first position; the rows before it are never read.
    """

    def __init__(self, length: int, hidden_size: int, offset: int = 0) -> None:
        super().__init__(length + offset, hidden_size)
        self.length, self.offset = length, offset

    def forward(self, positions: Tensor, input_ids: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        """Int[Tensor, "batch|1 seq"]  ->  Float[Tensor, "batch|1 seq hidden"]"""
        return super().forward(positions + self.offset if self.offset else positions)


class PaddingAwarePositions(Table):
    """Learned vectors for non-padding tokens, counted from the ids themselves: padding takes up no position.

    Row `padding_id` is that of all padding, and the first token has the next; so `rows` rows give
    `rows - padding_id - 1` positions (Liu et al., 2019, arXiv:1907.11692, in their code).
    """

    def __init__(self, rows: int, hidden_size: int, padding_id: int) -> None:
        super().__init__(rows, hidden_size, padding_idx=padding_id)
        self.length = rows - padding_id - 1
        self.padding_id = padding_id

    def forward(self, positions: Tensor, input_ids: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        """Int[Tensor, "batch seq"]  ->  Float[Tensor, "batch seq hidden"]"""
        real = input_ids.ne(self.padding_id).long()
        return super().forward(real.cumsum(dim=1) * real + self.padding_id)


class SinusoidalPositions(nn.Module):
    """Fixed sinusoids (Vaswani et al., 2017, arXiv:1706.03762, section 3.5), computed on the fly in float64 (on Metal
    in float32).

    Column pair c rotates by one radian in 10000^(2c/hidden) positions, so that nearby positions have similar vectors.

    waves: "interleaved" (sine, cosine, sine, ...: the paper's), "halves" (all sines, then all cosines) or
        "tensor2tensor" (halves, with frequencies such that the last pair rotates by one radian in exactly 10000
        positions, pair c in 10000^(c/(hidden/2 - 1))).
    offset: the number of the first position.
    """

    def __init__(self, length: int, hidden_size: int, offset: int = 0, waves: str = "interleaved") -> None:
        super().__init__()
        if waves not in WAVES:
            raise InputError(f"waves is {waves!r}{did_you_mean(waves, WAVES)}, expected one of {', '.join(WAVES)}")
        self.length, self.hidden_size, self.offset, self.waves = length, hidden_size, offset, waves

    def forward(self, positions: Tensor, input_ids: Tensor) -> Tensor:
        """Int[Tensor, "batch|1 seq"]  ->  Float64[Tensor, "batch|1 seq hidden"]"""
        pairs = torch.arange((self.hidden_size + 1) // 2, device=positions.device, dtype=widest_dtype(positions.device))
        steps = max(self.hidden_size / 2 - (self.waves == "tensor2tensor"), 1)
        angle = (positions[..., None] + self.offset) * torch.exp(pairs * (-math.log(10000.0) / steps))
        if self.waves == "interleaved":
            return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., : self.hidden_size]
        return torch.cat((angle.sin(), angle.cos()), dim=-1)[..., : self.hidden_size]


class NoPositions(nn.Module):
    """No positions: without a causal mask, permuting the tokens only permutes the output."""

    length = None

    def forward(self, positions: Tensor, input_ids: Tensor) -> None:
        return None
