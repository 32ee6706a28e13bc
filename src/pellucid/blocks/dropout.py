"""What is dropped: masks out of a pool that was drawn beforehand.

To draw a random number takes a processor longer than the step of arithmetic that it is for. So numbers are drawn once
for many steps, and each mask is a stretch of them that begins at a random place:

    pool     1 1 0 1 1 1 1 0 1 1 1 1 1 0 1 1 1 ...      2^22 draws, new ones every 64 steps
    masks        '-------'   '-----------'              numbers within one are independent; two are shifted
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

POOL = 1 << 22
"""Numbers of a pool. A mask has half of them at most; a larger one is made of several."""
STEPS_PER_POOL = 64
"""Steps that a pool is used for."""
OFFSETS_PER_DRAW = 64
"""Places that are drawn at once."""


class DropoutMasks:
    """A source of masks: a function of the seed, the step, the piece, and of how many were asked for since `begin`.

    No generator but its own is touched. Within a piece no two masks begin at the same place, so no two are equal.

    dtype: of the masks.  device: where they are.
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.seed, self.dtype, self.device = seed, dtype, device
        self._pools: dict[float, Tensor] = {}
        self._pool_number = -1
        self.begin(0, 0)

    def begin(self, step: int, piece: int) -> None:
        """From here on, chance is that of a piece of a step."""
        if step // STEPS_PER_POOL != self._pool_number:
            self._pool_number = step // STEPS_PER_POOL
            self._pools.clear()
        self._generator = torch.Generator().manual_seed(derived_seed(self.seed, "places", step, piece))
        self._offsets: list[int] = []
        self.masks_taken = 0

    def mask(self, shape: Sequence[int], share: float) -> Tensor:
        """What numbers of this shape are multiplied with: 0 in `share` of the places, else 1 / (1 - share).

        It is a view of the pool: nobody may write into it.
        """
        count, max_count = math.prod(shape), POOL // 2
        if count <= max_count:
            return self._mask_slice(count, share).view(*shape)
        parts = [self._mask_slice(min(max_count, count - i), share) for i in range(0, count, max_count)]
        return torch.cat(parts).view(*shape)

    def _mask_slice(self, count: int, share: float) -> Tensor:
        if share not in self._pools:
            self._pools[share] = self._draw_pool(share)
        while self.masks_taken >= len(self._offsets):
            drawn = torch.randint(POOL // 2 + 1, (OFFSETS_PER_DRAW,), generator=self._generator, device="cpu").tolist()
            self._offsets = list(dict.fromkeys(self._offsets + drawn))
        offset = self._offsets[self.masks_taken]
        self.masks_taken += 1
        return self._pools[share][offset : offset + count]

    def _draw_pool(self, share: float) -> Tensor:
        """A whole pool. Where 1 / (1 - share) is no number of the kind, its two neighbours stand for it, mixed so that
        the mean is right."""
        source = torch.Generator().manual_seed(derived_seed(self.seed, "pool", self._pool_number, share))
        keep_mask = torch.empty(POOL, dtype=torch.float32, device="cpu").bernoulli_(1.0 - share, generator=source)
        scale = 1.0 / (1.0 - share)
        if torch.finfo(self.dtype).bits >= 32:
            return keep_mask.to(self.device, self.dtype).mul_(scale)
        between = torch.finfo(self.dtype).eps * 2.0 ** math.floor(math.log2(scale))
        below = math.floor(scale / between) * between
        above = torch.empty_like(keep_mask).bernoulli_((scale - below) / between, generator=source)
        return above.mul_(between).add_(below).mul_(keep_mask).to(self.device, self.dtype)


def derived_seed(*parts: object) -> int:
    """A number that follows from some words: 0 to 2^63 - 1, everywhere the same."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1
