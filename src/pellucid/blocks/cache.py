"""The key-value cache of a decoder: keys and values of the positions that it has already read.

The cache belongs to the caller and is passed in; models keep no state. Each pass writes its keys and values into the
next free slots of preallocated memory, and attends to everything written so far:

    slot        0   1   2   3   4   5   6   7       capacity 8, filled 5
    positions  -1   0   1   2   3   .   .   .       row 0 begins with padding: -1 is never attended to
                0   1   2   3   4   .   .   .       row 1
"""

import copy
import weakref
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from pellucid.blocks.checks import kind_of, require_whole_number
from pellucid.errors import InputError, format_count


class KeyValues:
    """Keys and values of one attention block, `filled` slots of them in use.

    capacity: slots to allocate at the first write; None for exactly as many as are written then.
    memory: the heads of keys, then as many of values, in one tensor: Float[Tensor, "rows 2*heads capacity width"];
        `width` is the greater of the two widths.
    interleaved: whether the two columns of a key that are rotated together are adjacent, as packed blocks store them;
        the queries have to be in the same order.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.filled = 0
        self.memory = torch.empty(0, device="cpu")
        self.widths = (0, 0)
        self.interleaved = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeyValues":
        """Copies the memory, keeping its gradient to the keys and values already stored."""
        copied = copy.copy(self)
        copied.memory = self.memory.clone()
        return copied

    def extend(self, key: Tensor, value: Tensor, *, interleaved: bool = False) -> tuple[Tensor, Tensor]:
        """Appends the keys and values of new positions; returns those of all positions so far.

        key, value: Float[Tensor, "rows heads new head_dim"]  ->  the same with `filled` positions, without a copy
        Raises InputError where the stored ones have other sizes or another order of columns.
        """
        rows, heads, length, width = key.shape
        self._take_slots(key, (rows, 2 * heads, length, max(width, value.shape[3])), interleaved)
        self.widths = width, value.shape[3]
        slots = self.memory.narrow(2, self.filled - length, length)
        slots[:, :heads, :, :width] = key
        slots[:, heads:, :, : self.widths[1]] = value
        return self.stored()

    def extend_both(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """Appends heads of interleaved keys, then of values: Float[Tensor, "rows 2*heads new head_dim"]"""
        self._take_slots(both, both.shape, interleaved=True)
        self.memory.narrow(2, self.filled - both.shape[2], both.shape[2]).copy_(both)
        self.widths = both.shape[3], both.shape[3]
        return self.stored()

    def reserve(self, heads: int, width: int, like: Tensor) -> Tensor:
        """Reserves the next slot of each row for one new position, and returns the memory to write it to, interleaved.

        heads: number of key and value heads together.  like: Float[Tensor, "rows ..."], of the stored dtype and device.
        Raises InputError where the stored ones differ: a kernel that writes by address would write out of bounds.
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
        """Keeps these rows in this order; a row may occur several times. Int[Tensor, "kept"]

        Only filled slots are copied, into the same memory while it is large enough.
        since: slots before this one are left as they are.
        """
        if not self.filled:
            return
        memory, count = self.memory, len(rows)
        if memory.requires_grad:  # autograd needs the old values: write into new memory
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
        """Joins the rows of several memories, right-aligned (`flush_right`) or left-aligned to the longest."""
        capacity = max(part.capacity or part.filled for part in parts)
        first, merged = parts[0].memory, cls(capacity)
        merged.filled, merged.widths = max(part.filled for part in parts), parts[0].widths
        merged.interleaved = parts[0].interleaved
        rows = sum(len(part.memory) for part in parts)
        merged.memory = first.new_zeros(rows, first.shape[1], capacity, first.shape[3])  # slots of no text: finite
        row = 0
        for part in parts:
            start, end = (merged.filled - part.filled if flush_right else 0), row + len(part.memory)
            merged.memory[row:end, :, start : start + part.filled] = part.memory[:, :, : part.filled]
            row = end
        return merged

    def split_texts(self, lengths: Sequence[int], capacity: int) -> "KeyValues":
        """Splits one row that holds several texts end to end into one row per text."""
        texts = []
        for memory in self.memory[:, :, : self.filled].split(list(lengths), dim=2):
            text = copy.copy(self)
            text.memory, text.filled, text.capacity = memory, memory.shape[2], capacity
            texts.append(text)
        return KeyValues.merge(texts, flush_right=True)

    def _take_slots(self, like: Tensor, shape: Sequence[int], interleaved: bool) -> None:
        """Takes the next free slots for `shape`, allocating the memory at the first call. Plain blocks may change the
        dtype between passes, as within `torch.autocast`; packed ones have to keep it."""
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
            with torch.enable_grad():  # keeps the gradient to what was stored before
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
    """Whether the memory must not be written to: it was made in inference mode, which has ended; or it is a view of
    rows selected without gradients, which are now being recorded."""
    is_from_inference = memory.is_inference() and not torch.is_inference_mode_enabled()
    return is_from_inference or (memory._is_view() and torch.is_grad_enabled())


class LayerCache:
    """The cache of one layer: keys and values of its self-attention and of its cross-attention."""

    def __init__(self, capacity: int) -> None:
        self.self_attention = KeyValues(capacity)
        self.cross_attention = KeyValues()


class Cache:
    """The cache of a whole decoder for a batch of texts (rows).

    capacity: positions per text, of all passes together; memory is allocated in the first pass.

    >>> cache = Cache(num_layers=2, capacity=64)
    >>> cache.filled
    0
    """

    def __init__(self, num_layers: int, capacity: int) -> None:
        capacity = require_whole_number("capacity", capacity)
        self.layers = [LayerCache(capacity) for _ in range(num_layers)]
        self.capacity = capacity
        self.filled = 0
        self.positions = torch.empty(0, 0, dtype=torch.long, device="cpu")
        """Int[Tensor, "rows filled"]: position of each slot's token in its text; -1 for padding, and -2 - n for padding
        that takes up position n."""
        self.padded = False
        """Whether any slot holds padding."""
        self.is_complete = True
        """Whether the last pass was completed, including its head."""
        self.reader: weakref.ref[object] | None = None
        """The layers that filled the cache: those of a model, edited or not, but not of its packed copy."""

    def __getstate__(self) -> dict[str, Any]:
        """Drops `reader`: a copied or pickled cache belongs to the first model that continues it."""
        return vars(self) | {"reader": None}

    @classmethod
    def merge(cls, caches: Sequence["Cache"]) -> "Cache":
        """Joins caches of different texts into one batch, right-aligned: all texts end at the same slot.

        Raises InputError for caches of several models.
        """
        readers = [cache.reader for cache in caches if cache.reader is not None]  # a copied cache has none yet
        if any(reader != readers[0] for reader in readers):
            raise InputError("these caches were filled by several models, and a model can continue only its own cache")
        merged = cls(len(caches[0].layers), max(cache.capacity for cache in caches))
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
        """Splits texts read end to end in one row into one row each, right-aligned: all end at the same slot."""
        split = Cache(len(self.layers), capacity)
        split.filled, split.padded = max(lengths), len(set(lengths)) > 1
        split.is_complete, split.reader = self.is_complete, self.reader
        positions = self.positions[0].split(list(lengths))
        split.positions = torch.stack([pad(one, (split.filled - len(one), 0), value=-1) for one in positions])
        for layer, source in zip(split.layers, self.layers):
            layer.self_attention = source.self_attention.split_texts(lengths, capacity)
        return split

    def check(self, reader: object, depth: int, rows: int, new: int) -> None:
        """Refuses a pass of `new` positions in `rows` texts that does not fit, or has another reader than before.

        depth: number of layers that will use the cache.
        """
        needed = self.filled + new
        if depth != len(self.layers):
            mismatch = f"{format_count(depth, 'layer')} were given a cache of {len(self.layers)}"
            raise InputError(f"{mismatch}: model.module.new_cache(capacity) makes one that fits")
        if needed > self.capacity:
            raise InputError(f"{needed} positions do not fit into a cache of {self.capacity}: make a larger one")
        if self.filled and rows != len(self.positions):
            raise InputError(f"a pass of {format_count(rows, 'row')} was given to a cache of {len(self.positions)}")
        if not self.is_complete:
            raise InputError(f"a pass was interrupted at position {self.filled} of this cache: make a new one")
        if self.reader is not None and self.reader() is not reader:
            raise InputError(
                "this cache was filled by another model, or by the packed copy of this one, or the other way round: "
                "only the model that filled a cache can continue it; make a new cache"
            )

    def advance(self, reader: object, positions: Tensor) -> None:
        """Records the positions of a pass before its layers run. Int[Tensor, "rows new"], as in `positions`.

        reader: the layers that run the pass; the caller calls `finish` once it is complete.
        """
        self.reader, self.is_complete = weakref.ref(reader), False
        self.positions = torch.cat((self.positions.to(positions), positions), dim=1) if self.filled else positions
        self.filled = self.positions.shape[1]
        self.padded = self.padded or bool((positions < 0).any())

    def finish(self) -> None:
        """Marks the pass as complete: without it, the next one is refused."""
        self.is_complete = True

    def next_positions(self) -> Tensor:
        """Position of the next token of each text: Int[Tensor, "rows 1"]"""
        taken = self.positions.where(self.positions > -2, -2 - self.positions)
        return taken.amax(dim=1, keepdim=True) + 1

    def select_rows(self, rows: Tensor, *, since: int = 0) -> Self:
        """Keeps these texts in this order; a text may occur several times, as beam search needs.

        rows: Int[Tensor, "kept"].  since: first slot to copy; only if the number of rows stays the same and each row
            shares all earlier slots, and its cross-attention, with the row that it replaces.
        """
        self.positions = self.positions[rows.to(self.positions.device)]
        for layer in self.layers:
            layer.self_attention.select_rows(rows, since)
            if not since:
                layer.cross_attention.select_rows(rows)
        return self
