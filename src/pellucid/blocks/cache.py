"""What a decoder remembers between passes: the keys and values of the positions it has already read.

The memory is handed in and belongs to the caller; models stay functions. Each pass writes its keys and values into the
next free slots of memory that was set aside beforehand, and looks at everything written so far:

    slot        0   1   2   3   4   5   6   7       capacity 8, filled 5
    positions  -1   0   1   2   3   .   .   .       row 0 begins with padding: -1 is never looked at
                0   1   2   3   4   .   .   .       row 1
"""

from typing import Self

import torch
from torch import Tensor

from pellucid.errors import InputError


class KeyValues:
    """Keys and values of one attention: Float[Tensor, "rows heads capacity head_dim"], `filled` slots of them in use.

    capacity: slots to set aside at the first writing; None for exactly what is written then.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.filled = 0
        self.key = self.value = torch.empty(0)

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the keys and values of new positions; gives those of all positions so far.

        key, value: Float[Tensor, "rows heads new head_dim"]  ->  the same with `filled` positions, without a copy
        """
        if not self.filled:
            self.key, self.value = (self._room(new) for new in (key, value))
        start, self.filled = self.filled, self.filled + key.shape[2]
        if self.filled > self.key.shape[2]:
            raise InputError(f"{self.filled} positions do not fit into a cache of {self.key.shape[2]}")
        self.key[:, :, start : self.filled] = key
        self.value[:, :, start : self.filled] = value
        return self.held()

    def held(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all positions so far, as views."""
        return self.key[:, :, : self.filled], self.value[:, :, : self.filled]

    def choose(self, rows: Tensor) -> None:
        """Keeps these rows in this order; a row may come several times. Int[Tensor, "kept"]"""
        if self.filled:
            self.key, self.value = self.key[rows], self.value[rows]

    def _room(self, new: Tensor) -> Tensor:
        rows, heads, length, width = new.shape
        return new.new_empty(rows, heads, self.capacity or length, width)


class LayerCache:
    """What one layer remembers: of its own positions, and of the memory that it looks across at."""

    def __init__(self, capacity: int) -> None:
        self.own = KeyValues(capacity)
        self.across = KeyValues()


class Cache:
    """What a whole decoder remembers of several texts (rows) that it reads side by side.

    capacity: positions per text, all passes together; memory is taken at the first pass.

    >>> cache = Cache(num_layers=2, capacity=64)
    >>> cache.filled
    0
    """

    def __init__(self, num_layers: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(num_layers)]
        self.capacity = capacity
        self.filled = 0
        self.positions = torch.empty(0, 0, dtype=torch.long)
        """Int[Tensor, "rows filled"]: where the token of each slot stands in its text; -1 for padding."""
        self.padded = False
        """Whether any slot holds padding."""

    def check(self, rows: int, new: int) -> None:
        """Refuses a pass of `new` positions in `rows` texts that does not fit."""
        wanted = self.filled + new
        if wanted > self.capacity:
            raise InputError(f"{wanted} positions do not fit into a cache of {self.capacity}: make a larger one")
        if self.filled and rows != len(self.positions):
            raise InputError(f"{rows} rows were given to a cache of {len(self.positions)}")

    def advance(self, positions: Tensor) -> None:
        """Takes note of the positions of a pass, before its layers run. Int[Tensor, "rows new"], -1 for padding"""
        self.positions = torch.cat((self.positions.to(positions), positions), dim=1) if self.filled else positions
        self.filled = self.positions.shape[1]
        self.padded = self.padded or bool((positions < 0).any())

    def next_positions(self) -> Tensor:
        """Where the next token of each text stands: Int[Tensor, "rows 1"]"""
        return self.positions.amax(dim=1, keepdim=True) + 1

    def choose(self, rows: Tensor) -> Self:
        """Keeps these texts in this order; one may come several times, as the beams of a search need it.

        rows: Int[Tensor, "kept"]
        """
        self.positions = self.positions[rows.to(self.positions.device)]
        for layer in self.layers:
            layer.own.choose(rows)
            layer.across.choose(rows)
        return self
