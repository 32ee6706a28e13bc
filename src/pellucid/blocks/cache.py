"""What a decoder remembers between passes: the keys and values of the positions it has already read.

The memory is handed in and belongs to the caller; models stay functions. Each pass writes its keys and values into the
next free slots of memory that was set aside beforehand, and looks at everything written so far:

    slot        0   1   2   3   4   5   6   7       capacity 8, filled 5
    positions  -1   0   1   2   3   .   .   .       row 0 begins with padding: -1 is never looked at
                0   1   2   3   4   .   .   .       row 1
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

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

    def choose(self, rows: Tensor, since: int = 0) -> None:
        """Keeps these rows in this order; a row may come several times. Int[Tensor, "kept"]

        since: slots before it stay where they are.
        """
        if self.filled:
            self.key, self.value = (self._chosen(old, rows, since) for old in (self.key, self.value))

    @classmethod
    def together(cls, parts: Sequence["KeyValues"], *, flush_right: bool) -> "KeyValues":
        """Rows of several memories as one; shorter ones begin further right, or end further left, than the longest."""
        whole = cls(parts[0].capacity)
        whole.filled = max(part.filled for part in parts)
        whole.key, whole.value = (
            _together([(part.key, part.filled) for part in parts], whole.filled, flush_right),
            _together([(part.value, part.filled) for part in parts], whole.filled, flush_right),
        )
        return whole

    def _chosen(self, old: Tensor, rows: Tensor, since: int) -> Tensor:
        """Only what is written is moved, and into the same memory while it is large enough."""
        kept = old[rows, :, since : self.filled]
        new = old[: len(rows)] if len(rows) <= len(old) else old.new_empty(len(rows), *old.shape[1:])
        new[:, :, since : self.filled] = kept
        return new

    def _room(self, new: Tensor) -> Tensor:
        rows, heads, length, width = new.shape
        return new.new_empty(rows, heads, self.capacity or length, width)


def _together(parts: Sequence[tuple[Tensor, int]], filled: int, flush_right: bool) -> Tensor:
    first = parts[0][0]
    rows, room = sum(len(held) for held, _ in parts), max(held.shape[2] for held, _ in parts)
    whole = first.new_zeros(rows, first.shape[1], room, first.shape[3])  # what no text has must still be a number
    row = 0
    for held, length in parts:
        start = filled - length if flush_right else 0
        whole[row : row + len(held), :, start : start + length] = held[:, :, :length]
        row += len(held)
    return whole


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

    @classmethod
    def together(cls, caches: Sequence["Cache"]) -> "Cache":
        """Texts of different lengths, read apart, from now on side by side: all end at the same slot."""
        whole = cls(len(caches[0].layers), caches[0].capacity)
        whole.filled = max(cache.filled for cache in caches)
        padded = [pad(cache.positions, (whole.filled - cache.filled, 0), value=-1) for cache in caches]
        whole.positions = torch.cat(padded)
        whole.padded = bool((whole.positions < 0).any())
        for i, layer in enumerate(whole.layers):
            layer.own = KeyValues.together([cache.layers[i].own for cache in caches], flush_right=True)
            across = [cache.layers[i].across for cache in caches]
            if across[0].filled:
                layer.across = KeyValues.together(across, flush_right=False)
        return whole

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

    def choose(self, rows: Tensor, *, since: int = 0) -> Self:
        """Keeps these texts in this order; one may come several times, as the beams of a search need it.

        rows: Int[Tensor, "kept"].  since: for as many rows as there are, which have all slots before this one, and what
            they look across at, in common with those whose places they take; that is not moved then.
        """
        self.positions = self.positions[rows.to(self.positions.device)]
        for layer in self.layers:
            layer.own.choose(rows, since)
            if not since:
                layer.across.choose(rows)
        return self
