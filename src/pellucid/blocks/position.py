"""Where a token stands: a summand for its embedding, one row per place."""

import math

import torch
from torch import Tensor, nn

from pellucid.errors import InputError, did_you_mean
from pellucid.machine import widest_dtype

WAVES = ("interleaved", "halves", "tensor2tensor")


class Table(nn.Embedding):
    """A row of numbers per id.

    Without memory (on the meta device, while a checkpoint is being opened) there is nothing to draw; PyTorch would
    load its whole compiler to draw it, which takes a second.
    """

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()

    @property
    def like(self) -> Tensor:
        """A tensor of the kind and on the device of what this gives."""
        return self.weight


class LearnedPositions(Table):
    """A learned row per place: the first `length` places, no more.

    offset: the row of the first place; the rows before it are never read.
    """

    def __init__(self, length: int, hidden_size: int, offset: int = 0) -> None:
        super().__init__(length + offset, hidden_size)
        self.length, self.offset = length, offset

    def forward(self, positions: Tensor, input_ids: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        """Int[Tensor, "batch|1 seq"]  ->  Float[Tensor, "batch|1 seq hidden"]"""
        return super().forward(positions + self.offset if self.offset else positions)


class PaddingAwarePositions(Table):
    """A learned row per word: padding takes no place.

    Row `padding_id` is that of all padding, the first word has the next; so of `rows` rows `rows - padding_id - 1`
    can be words. Places come from the ids themselves (Liu et al., 2019, arXiv:1907.11692, in their code).
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
    """Fixed waves (Vaswani et al., 2017, arXiv:1706.03762, section 3.5), computed in float64 when they are asked for
    (on Metal in float32).

    Column pair c turns through one radian in 10000^(2c/hidden) places, so near places look alike and far ones do not.

    waves: "interleaved" (sine, cosine, sine, ...: the paper's), "halves" (all sines, then all cosines) or
        "tensor2tensor" (halves, and the last pair turns through one radian in exactly 10000 places, pair c in
        10000^(c/(hidden/2 - 1))).
    offset: what the first place counts as.
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
    """No places at all: the order of the tokens changes only the order of what comes out, but under a causal mask."""

    length = None

    def forward(self, positions: Tensor, input_ids: Tensor) -> None:
        return None
