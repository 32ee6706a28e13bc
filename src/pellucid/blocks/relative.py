"""Where tokens stand to each other, known to attention alone: turned queries and keys, or a summand for the scores."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pellucid.blocks.position import Table


class RotaryPositions(nn.Module):
    """Angles that grow with the place, so that a score depends on how far two tokens stand apart (Su et al., 2021,
    arXiv:2104.09864). Pair c is made of columns c and c + head_dim/2 and turns by place x theta^(-2c/head_dim).

    slowed: changes the speeds, for texts longer than the model was first made for.
    """

    def __init__(
        self, head_dim: int, theta: float = 10_000.0, slowed: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.head_dim, self.theta, self.slowed = head_dim, theta, slowed

    def forward(self, places: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines, and sines with their signs, in the kind of `like`; speeds are float32 numbers, as the reference
        has them.

        places: Int[Tensor, "batch|1 seq"]  ->  twice Float[Tensor, "batch|1 1 seq head_dim"]
        """
        pairs = torch.arange(0, self.head_dim, 2, device=places.device).float()
        speeds = 1.0 / self.theta ** (pairs / self.head_dim)
        speeds = speeds if self.slowed is None else self.slowed(speeds)
        wide = torch.promote_types(like.dtype, torch.float32)
        angle = places[:, None, :, None].to(wide) * speeds.to(wide)
        cosine, sine = angle.cos().to(like.dtype), angle.sin().to(like.dtype)
        return torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turns the pairs of `x`: Float[Tensor, "batch heads seq head_dim"]  ->  the same shape"""
    cosine, sine = rotation
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((right, left), dim=-1) * sine


def slowed_evenly(speeds: Tensor, *, factor: float) -> Tensor:
    """All speeds divided by `factor` (position interpolation: Chen et al., 2023, arXiv:2306.15595)."""
    return speeds / factor


def slowed_as_llama3(speeds: Tensor, *, factor: float, low: float, high: float, length: int) -> Tensor:
    """Waves longer than `length / low` places are slowed by `factor`, those shorter than `length / high` are left, and
    those between go over from one to the other (Llama 3.1's own code)."""
    waves = 2 * math.pi / speeds
    result = torch.where(waves > length / low, speeds / factor, speeds)
    share = (length / waves - low) / (high - low)
    between = (1 - share) * result / factor + share * result
    return torch.where((waves >= length / high) & (waves <= length / low), between, result)


class RelativeBias(nn.Module):
    """A learned summand per head for the distance of two tokens (Raffel et al., 2019, arXiv:1910.10683, section 2.1).

    Half of the buckets hold one distance each; the others grow as its logarithm up to `max_distance` and hold all
    beyond. Looking both ways, each way has half of the buckets; else all are for looking back.
    """

    def __init__(self, num_buckets: int, max_distance: int, num_heads: int, *, both_ways: bool) -> None:
        super().__init__()
        self.table = Table(num_buckets, num_heads)
        self.num_buckets, self.max_distance, self.both_ways = num_buckets, max_distance, both_ways

    def forward(self, places: Tensor, source_places: Tensor) -> Tensor:
        """Int[Tensor, "batch|1 seq"], Int[Tensor, "batch|1 source"]  ->  Float[Tensor, "batch|1 heads seq source"]"""
        ahead = source_places[:, None, :] - places[:, :, None]
        return self.table(self._bucket(ahead)).permute(0, 3, 1, 2)

    def _bucket(self, ahead: Tensor) -> Tensor:
        buckets = self.num_buckets // 2 if self.both_ways else self.num_buckets
        first = (ahead > 0).long() * buckets if self.both_ways else torch.zeros_like(ahead)
        distance = ahead.abs() if self.both_ways else (-ahead).clamp(min=0)
        exact = buckets // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(distance < exact, distance, far)
