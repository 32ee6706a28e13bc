"""Relative positions, used by attention alone: rotated queries and keys, or a bias of the scores."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pellucid.blocks.hooks import is_differentiated
from pellucid.blocks.position import Table


class RotaryPositions(nn.Module):
    """Rotary embeddings: angles proportional to the position, so that a score depends on the distance of two tokens (Su
    et al., 2021, arXiv:2104.09864). Pair c is columns c and c + head_dim/2; its angle is position x
    theta^(-2c/head_dim).

    scaling: function of the frequencies, for texts longer than the model was first trained on.
    """

    def __init__(
        self, head_dim: int, theta: float = 10_000.0, scaling: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.head_dim, self.theta, self.scaling = head_dim, theta, scaling

    def forward(self, positions: Tensor, like: Tensor) -> "Rotation":
        """Int[Tensor, "batch|1 seq"]  ->  the rotation of each position, in the dtype of `like`

        Frequencies are computed in float32, as in the reference.
        """
        pairs = torch.arange(0, self.head_dim, 2, device=positions.device).float()
        frequencies = 1.0 / self.theta ** (pairs / self.head_dim)
        frequencies = frequencies if self.scaling is None else self.scaling(frequencies)
        wide = torch.promote_types(like.dtype, torch.float32)
        angle = positions[:, None, :, None].to(wide) * frequencies.to(wide)
        cosine, sine = angle.cos().to(like.dtype), angle.sin().to(like.dtype)
        return Rotation(torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1))


class Rotation:
    """Rotation of the column pairs at each position.

    cosine, sine: of each column's angle, the sine with its sign; Float[Tensor, "batch|1 1 seq head_dim"]
    """

    def __init__(self, cosine: Tensor, sine: Tensor) -> None:
        self.cosine, self.sine = cosine, sine
        self._heads: dict[tuple[int, int], Tensor] = {}
        self._pairs: Tensor | None = None

    def rotate(self, x: Tensor) -> Tensor:
        """Rotates the pairs of `x`: Float[Tensor, "batch heads seq head_dim"]  ->  the same shape"""
        left, right = x.chunk(2, dim=-1)
        return x * self.cosine + torch.cat((right, left), dim=-1) * self.sine

    def rotate_back(self, by_rotated: Tensor) -> Tensor:
        """The backward pass of `rotate`: Float[Tensor, "batch heads seq head_dim"]  ->  the same shape"""
        left, right = (by_rotated * self.sine).chunk(2, dim=-1)
        return by_rotated * self.cosine + torch.cat((right, left), dim=-1)

    def rotate_interleaved(self, x: Tensor, rotated_heads: int, other_heads: int) -> Tensor:
        """Rotates whole heads in one step, where the columns of a pair are adjacent: by a complex product.

        x: Float32[Tensor, "batch seq (rotated_heads+other_heads)*head_dim"], heads to rotate, then unchanged ones
        ->  the same shape
        """
        if (rotated_heads, other_heads) not in self._heads:
            self._heads[rotated_heads, other_heads] = self._angles_by_head(rotated_heads, other_heads)
        turn = self._heads[rotated_heads, other_heads]
        if is_differentiated(x):  # a view as another dtype has no derivative
            return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)
        return (x.view(torch.complex64) * turn).view(torch.float32)

    def complex_angles(self) -> Tensor:
        """cos + i sin of each pair's angle: Complex64[Tensor, "batch|1 seq head_dim/2"]"""
        if self._pairs is None:
            half = self.cosine.shape[-1] // 2
            self._pairs = torch.complex(self.cosine[:, 0, :, :half].float(), self.sine[:, 0, :, half:].float())
        return self._pairs

    def _angles_by_head(self, rotated_heads: int, other_heads: int) -> Tensor:
        """Complex64[Tensor, "batch|1 seq (rotated_heads+other_heads)*head_dim/2"]"""
        angle = self.complex_angles()[:, :, None]
        one = torch.ones_like(angle)
        return torch.cat((angle.expand(-1, -1, rotated_heads, -1), one.expand(-1, -1, other_heads, -1)), dim=2).flatten(
            2
        )


def interleaved(x: Tensor, head_dim: int) -> Tensor:
    """Makes the rows of each pair (c and c + head_dim/2) in whole heads adjacent: Float[Tensor, "rows ..."]"""
    return x.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def deinterleaved(x: Tensor) -> Tensor:
    """Undoes the interleaving of a head's columns: Float[Tensor, "... head_dim"]"""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def linear_scaling(frequencies: Tensor, *, factor: float) -> Tensor:
    """All frequencies divided by `factor` (position interpolation: Chen et al., 2023, arXiv:2306.15595)."""
    return frequencies / factor


def llama3_scaling(frequencies: Tensor, *, factor: float, low: float, high: float, length: int) -> Tensor:
    """Divides frequencies by `factor` for wavelengths above `length / low` positions, keeps them below `length / high`,
    and interpolates in between (Llama 3.1's own code)."""
    waves = 2 * math.pi / frequencies
    result = torch.where(waves > length / low, frequencies / factor, frequencies)
    smooth = (length / waves - low) / (high - low)
    between = (1 - smooth) * result / factor + smooth * result
    return torch.where((waves >= length / high) & (waves <= length / low), between, result)


class RelativeBias(nn.Module):
    """A learned bias per head and distance of two tokens (Raffel et al., 2019, arXiv:1910.10683, section 2.1).

    Half of the buckets hold one distance each; the others grow logarithmically up to `max_distance`, and the last holds
    all beyond. If bidirectional, each direction has half of the buckets; else all are for earlier positions.
    """

    def __init__(self, num_buckets: int, max_distance: int, num_heads: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.table = Table(num_buckets, num_heads)
        self.num_buckets, self.max_distance, self.bidirectional = num_buckets, max_distance, bidirectional

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Int[Tensor, "batch|1 seq"], Int[Tensor, "batch|1 source"]  ->  Float[Tensor, "batch|1 heads seq source"]"""
        relative_position = key_positions[:, None, :] - query_positions[:, :, None]
        return self.table(self._bucket(relative_position)).permute(0, 3, 1, 2)

    def _bucket(self, relative_position: Tensor) -> Tensor:
        buckets = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        first = (relative_position > 0).long() * buckets if self.bidirectional else torch.zeros_like(relative_position)
        distance = relative_position.abs() if self.bidirectional else (-relative_position).clamp(min=0)
        exact = buckets // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(distance < exact, distance, far)
