"""Dropout masks: slices of a pool of random numbers that is drawn in advance.

On a processor, drawing a random number takes longer than the arithmetic that it is for. So numbers are drawn once for
many steps, and each mask is a slice of them at a random offset:

    pool     1 1 0 1 1 1 1 0 1 1 1 1 1 0 1 1 1 ...      2^22 draws, new ones every 64 steps
    masks        '-------'   '-----------'              independent within a mask; two may overlap, shifted
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

POOL_SIZE = 1 << 22
"""Size of a pool. A mask takes at most half of it; a larger one is made of several slices."""
STEPS_PER_POOL = 64
"""Number of training steps for which a pool is used."""
OFFSETS_PER_DRAW = 64
"""Number of offsets drawn at a time."""


class DropoutMasks:
    """A source of masks, determined by the seed, the step, the piece, and the number of masks taken since `begin`.

    It has a random generator of its own. Within a piece no two masks begin at the same offset, so no two are equal.

    dtype: of the masks.  device: where they are.
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.seed, self.dtype, self.device = seed, dtype, device
        self._pools: dict[float, Tensor] = {}
        self._pool_number = -1
        self.begin(0, 0)

    def begin(self, step: int, piece: int) -> None:
        """Restarts the random sequence for a piece of a step."""
        if step // STEPS_PER_POOL != self._pool_number:
            self._pool_number = step // STEPS_PER_POOL
            self._pools.clear()
        self._generator = torch.Generator().manual_seed(derived_seed(self.seed, "places", step, piece))
        self._offsets: list[int] = []
        self.masks_taken = 0

    def mask(self, shape: Sequence[int], probability: float) -> Tensor:
        """A mask of this shape: 0 for a fraction `probability` of the elements, else 1 / (1 - probability).

        It is a view of the pool and must not be written to.
        """
        count, max_count = math.prod(shape), POOL_SIZE // 2
        if count <= max_count:
            return self._mask_slice(count, probability).view(*shape)
        parts = [self._mask_slice(min(max_count, count - i), probability) for i in range(0, count, max_count)]
        return torch.cat(parts).view(*shape)

    def _mask_slice(self, count: int, probability: float) -> Tensor:
        if probability not in self._pools:
            self._pools[probability] = self._draw_pool(probability)
        while self.masks_taken >= len(self._offsets):
            drawn = torch.randint(
                POOL_SIZE // 2 + 1, (OFFSETS_PER_DRAW,), generator=self._generator, device="cpu"
            ).tolist()
            self._offsets = list(dict.fromkeys(self._offsets + drawn))
        offset = self._offsets[self.masks_taken]
        self.masks_taken += 1
        return self._pools[probability][offset : offset + count]

    def _draw_pool(self, probability: float) -> Tensor:
        """A whole pool. If the dtype cannot hold 1 / (1 - probability), its neighbours are mixed to give the right
        mean."""
        source = torch.Generator().manual_seed(derived_seed(self.seed, "pool", self._pool_number, probability))
        keep_mask = torch.empty(POOL_SIZE, dtype=torch.float32, device="cpu").bernoulli_(
            1.0 - probability, generator=source
        )
        scale = 1.0 / (1.0 - probability)
        if torch.finfo(self.dtype).bits >= 32:
            return keep_mask.to(self.device, self.dtype).mul_(scale)
        between = torch.finfo(self.dtype).eps * 2.0 ** math.floor(math.log2(scale))
        below = math.floor(scale / between) * between
        above = torch.empty_like(keep_mask).bernoulli_((scale - below) / between, generator=source)
        return above.mul_(between).add_(below).mul_(keep_mask).to(self.device, self.dtype)


def derived_seed(*parts: object) -> int:
    """A hash of the parts: 0 to 2^63 - 1, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1
