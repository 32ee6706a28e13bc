"""What a decoder remembers between passes: the keys and values of the positions it has already read.

The memory is handed in and belongs to the caller; models stay functions. Each pass writes its keys and values into the
next free slots of memory that was set aside beforehand, and looks at everything written so far:

    slot        0   1   2   3   4   5   6   7       capacity 8, filled 5
    positions  -1   0   1   2   3   .   .   .       row 0 begins with padding: -1 is never looked at
                0   1   2   3   4   .   .   .       row 1
"""

import copy
import weakref
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from pellucid.blocks.checks import kind_of
from pellucid.errors import InputError, format_count


class KeyValues:
    """Keys and values of one attention, `filled` slots of them in use.

    capacity: slots to set aside at the first writing; None for exactly what is written then.
    memory: heads of keys, then as many of values, in one table: Float[Tensor, "rows 2*heads capacity width"]; `width`
        is the wider of the two.
    interleaved: whether the two columns of a key that a rotation turns together stand side by side, as packed
        blocks write them; what reads on has its own in the same order.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.filled = 0
        self.memory = torch.empty(0, device="cpu")
        self.widths = (0, 0)
        self.interleaved = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeyValues":
        """A memory of its own, from which a gradient goes back to what was read as well."""
        copied = copy.copy(self)
        copied.memory = self.memory.clone()
        return copied

    def extend(self, key: Tensor, value: Tensor, *, interleaved: bool = False) -> tuple[Tensor, Tensor]:
        """Writes the keys and values of new positions; gives those of all positions so far.

        key, value: Float[Tensor, "rows heads new head_dim"]  ->  the same with `filled` positions, without a copy
        Raises InputError where what is remembered has other sizes or another order of columns.
        """
        rows, heads, length, width = key.shape
        self._take_slots(key, (rows, 2 * heads, length, max(width, value.shape[3])), interleaved)
        self.widths = width, value.shape[3]
        slots = self.memory.narrow(2, self.filled - length, length)
        slots[:, :heads, :, :width] = key
        slots[:, heads:, :, : self.widths[1]] = value
        return self.stored()

    def extend_both(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """The same for heads of keys, interleaved, values behind: Float[Tensor, "rows 2*heads new head_dim"]"""
        self._take_slots(both, both.shape, interleaved=True)
        self.memory.narrow(2, self.filled - both.shape[2], both.shape[2]).copy_(both)
        self.widths = both.shape[3], both.shape[3]
        return self.stored()

    def reserve(self, heads: int, width: int, like: Tensor) -> Tensor:
        """The next free slot of each row, for one new position: the memory, which is to be written there, interleaved.

        heads: of key and value together.  like: Float[Tensor, "rows ..."], a tensor of the kind that is remembered
        Raises InputError where something else was remembered: who writes there by its address would write beside it.
        """
        self._take_slots(like, (like.shape[0], heads, 1, width), interleaved=True)
        self.widths = width, width
        return self.memory

    def stored(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all positions so far, as views."""
        key, value = self.memory.narrow(2, 0, self.filled).chunk(2, dim=1)
        if self.widths[0] == self.widths[1]:
            return key, value
        return key[..., : self.widths[0]], value[..., : self.widths[1]]

    def select_rows(self, rows: Tensor, since: int = 0) -> None:
        """Keeps these rows in this order; a row may come several times. Int[Tensor, "kept"]

        Only what is written is moved, and into the same memory while it is large enough.
        since: slots before it stay where they are.
        """
        if not self.filled:
            return
        memory, count = self.memory, len(rows)
        if memory.requires_grad:  # nothing is written into what a gradient goes back through
            with torch.enable_grad():
                free = memory.new_empty(count, memory.shape[1], memory.shape[2] - self.filled, memory.shape[3])
                unmoved = [memory[:count, :, :since]] if since else []
                self.memory = torch.cat((*unmoved, memory[rows, :, since : self.filled], free), dim=2)
            return
        chosen = memory[rows, :, since : self.filled]
        memory = memory.clone() if _is_read_only(memory) else memory
        self.memory = memory[:count] if count <= len(memory) else memory.new_empty(count, *memory.shape[1:])
        self.memory[:, :, since : self.filled] = chosen

    @classmethod
    def merge(cls, parts: Sequence["KeyValues"], *, flush_right: bool) -> "KeyValues":
        """Rows of several memories as one; shorter ones begin further right, or end further left, than the longest."""
        first, merged = parts[0].memory, cls(parts[0].capacity)
        merged.filled, merged.widths = max(part.filled for part in parts), parts[0].widths
        merged.interleaved = parts[0].interleaved
        rows, capacity = sum(len(part.memory) for part in parts), max(part.capacity or part.filled for part in parts)
        merged.memory = first.new_zeros(
            rows, first.shape[1], capacity, first.shape[3]
        )  # what no text has: still a number
        row = 0
        for part in parts:
            start, end = (merged.filled - part.filled if flush_right else 0), row + len(part.memory)
            merged.memory[row:end, :, start : start + part.filled] = part.memory[:, :, : part.filled]
            row = end
        return merged

    def split_texts(self, lengths: Sequence[int], capacity: int) -> "KeyValues":
        """One row that holds several texts end to end, as a row for each."""
        texts = []
        for memory in self.memory[:, :, : self.filled].split(list(lengths), dim=2):
            text = copy.copy(self)
            text.memory, text.filled, text.capacity = memory, memory.shape[2], capacity
            texts.append(text)
        return KeyValues.merge(texts, flush_right=True)

    def _take_slots(self, like: Tensor, shape: Sequence[int], interleaved: bool) -> None:
        """Takes the next free slots for `shape`, out of memory that is set aside the first time. Plain blocks may come
        with another kind of number than before, as they do within `torch.autocast`; packed ones write as it lies."""
        rows, heads, length, width = shape
        if not self.filled:
            self.memory, self.interleaved = like.new_empty(rows, heads, self.capacity or length, width), interleaved
        fits = rows, heads, self.memory.shape[2], width
        alike = self.memory.dtype == like.dtype and self.memory.device == like.device
        if self.memory.shape != fits or self.interleaved != interleaved or (interleaved and not alike):
            raise self._mismatch_error(like, fits, interleaved)
        if self.filled + length > self.memory.shape[2]:
            raise InputError(f"{self.filled + length} positions do not fit into a cache of {self.memory.shape[2]}")
        if self.filled and (self.memory.requires_grad or _is_read_only(self.memory)):
            with torch.enable_grad():  # a gradient finds its way back to what was read as it was
                self.memory = self.memory.clone()
        self.filled += length

    def _mismatch_error(self, like: Tensor, fits: Sequence[int], interleaved: bool) -> InputError:
        stored, incoming = self.memory, like.new_empty(*fits, device="meta")
        orders = [f", columns {'in pairs' if one else 'in halves'}" for one in (self.interleaved, interleaved)]
        before, after = orders if self.interleaved != interleaved else ("", "")
        return InputError(
            f"this cache holds {kind_of(stored)} on {stored.device}{before}, and {kind_of(incoming)} on "
            f"{like.device}{after} cannot be added: only the model that filled a cache can continue it, not its packed "
            "copy; make a new cache"
        )


def _is_read_only(memory: Tensor) -> bool:
    """Whether nothing may be written there: it comes from inference mode, which is over, or it is some rows of another
    one, which were chosen without gradients, and these are recorded now."""
    is_from_inference = memory.is_inference() and not torch.is_inference_mode_enabled()
    return is_from_inference or (memory._is_view() and torch.is_grad_enabled())


class LayerCache:
    """What one layer remembers: of its own positions, and of the memory that it looks across at."""

    def __init__(self, capacity: int) -> None:
        self.self_attention = KeyValues(capacity)
        self.cross_attention = KeyValues()


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
        self.positions = torch.empty(0, 0, dtype=torch.long, device="cpu")
        """Int[Tensor, "rows filled"]: where the token of each slot stands in its text; -1 for padding, and -2 - n for
        padding that takes position n of it."""
        self.padded = False
        """Whether any slot holds padding."""
        self.is_complete = True
        """Whether the last pass came to its end, its head's answer too."""
        self.reader: weakref.ref[object] | None = None
        """The layers whose passes these are: a model's own, edited or not, and not those of its packed copy."""

    def __getstate__(self) -> dict[str, Any]:
        """A copy, and what a file holds, belong to whoever reads on first."""
        return vars(self) | {"reader": None}

    @classmethod
    def merge(cls, caches: Sequence["Cache"]) -> "Cache":
        """Texts of different lengths, read apart, from now on side by side: all end at the same slot.

        Raises InputError for caches of several models.
        """
        readers = [cache.reader for cache in caches if cache.reader is not None]  # a copy has none as yet
        if any(reader != readers[0] for reader in readers):
            raise InputError("these caches were filled by several models, and a model can continue only its own cache")
        merged = cls(len(caches[0].layers), caches[0].capacity)
        merged.filled = max(cache.filled for cache in caches)
        padded = [pad(cache.positions, (merged.filled - cache.filled, 0), value=-1) for cache in caches]
        merged.positions = torch.cat(padded)
        merged.padded = bool((merged.positions < 0).any())
        merged.is_complete, merged.reader = all(cache.is_complete for cache in caches), readers[0] if readers else None
        for i, layer in enumerate(merged.layers):
            layer.self_attention = KeyValues.merge(
                [cache.layers[i].self_attention for cache in caches], flush_right=True
            )
            across = [cache.layers[i].cross_attention for cache in caches]
            if across[0].filled:
                layer.cross_attention = KeyValues.merge(across, flush_right=False)
        return merged

    def split_texts(self, lengths: Sequence[int], capacity: int) -> "Cache":
        """Texts that were read end to end in one row, from now on side by side: all end at the same slot."""
        split = Cache(len(self.layers), capacity)
        split.filled, split.padded = max(lengths), len(set(lengths)) > 1
        split.is_complete, split.reader = self.is_complete, self.reader
        positions = self.positions[0].split(list(lengths))
        split.positions = torch.stack([pad(one, (split.filled - len(one), 0), value=-1) for one in positions])
        for layer, source in zip(split.layers, self.layers):
            layer.self_attention = source.self_attention.split_texts(lengths, capacity)
        return split

    def check(self, reader: object, depth: int, rows: int, new: int) -> None:
        """Refuses a pass of `new` positions in `rows` texts that does not fit, or by another reader than before.

        depth: layers that will remember something
        """
        needed = self.filled + new
        if depth != len(self.layers):
            mismatch = f"{format_count(depth, 'layer')} were given a cache of {len(self.layers)}"
            raise InputError(f"{mismatch}: model.module.new_cache(capacity) makes one that fits")
        if needed > self.capacity:
            raise InputError(f"{needed} positions do not fit into a cache of {self.capacity}: make a larger one")
        if self.filled and rows != len(self.positions):
            raise InputError(f"{rows} rows were given to a cache of {len(self.positions)}")
        if not self.is_complete:
            raise InputError(f"a pass was interrupted at position {self.filled} of this cache: make a new one")
        if self.reader is not None and self.reader() is not reader:
            raise InputError(
                "this cache was filled by another model, or by the packed copy of this one, or the other way round: "
                "only the model that filled a cache can continue it; make a new cache"
            )

    def advance(self, reader: object, positions: Tensor) -> None:
        """Takes note of the positions of a pass, before its layers run. Int[Tensor, "rows new"], as held

        reader: whose pass it is; when it has come to its end, it says so by `finish`.
        """
        self.reader, self.is_complete = weakref.ref(reader), False
        self.positions = torch.cat((self.positions.to(positions), positions), dim=1) if self.filled else positions
        self.filled = self.positions.shape[1]
        self.padded = self.padded or bool((positions < 0).any())

    def finish(self) -> None:
        """Takes note that the pass came to its end: without it, the next one is refused."""
        self.is_complete = True

    def next_positions(self) -> Tensor:
        """Where the next token of each text stands: Int[Tensor, "rows 1"]"""
        taken = self.positions.where(self.positions > -2, -2 - self.positions)
        return taken.amax(dim=1, keepdim=True) + 1

    def select_rows(self, rows: Tensor, *, since: int = 0) -> Self:
        """Keeps these texts in this order; one may come several times, as the beams of a search need it.

        rows: Int[Tensor, "kept"].  since: for as many rows as there are, which have all slots before this one, and what
            they look across at, in common with those whose places they take; that is not moved then.
        """
        self.positions = self.positions[rows.to(self.positions.device)]
        for layer in self.layers:
            layer.self_attention.select_rows(rows, since)
            if not since:
                layer.cross_attention.select_rows(rows)
        return self
