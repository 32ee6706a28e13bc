"""Edits at work: which points they reach, at which passes of a model, and whether they ever did."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Config
from pellucid.errors import InputError, join_names, shorten
from pellucid.models import Network, TokenPositions
from pellucid.trace.aliases import omitted_message, resolve_with_alias
from pellucid.trace.axes import is_transposed, transposed, transposed_axes
from pellucid.trace.edits import Edit, as_edit
from pellucid.trace.points import Axes, points
from pellucid.trace.selection import PointContext, first_out_of_range, format_indices, split_indices
from pellucid.trace.trace import EditSaid

EditsByName = Mapping[str, Any]
"""`{"layers.3.attention.weights": zero(head=5)}`: names or globs, ours or another library's (then functions and tensors
have the axes of that library), and for each an edit, a function, a tensor, or several of these."""


@dataclass
class PlacedEdit:
    """One edit with the points that it was asked for.

    pattern: the name or glob as it was given.  names: the points.  fired: whether a pass has told one of them.
    aliases: of those that were asked for by another library's name, that name; the edit is made on its axes.
    matched_indices: by each word that chooses, those of its indices that a pass had.  axis_lengths: how far that axis has reached.
    """

    pattern: str
    edit: Edit
    names: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    fired: bool = False
    matched_indices: dict[str, set[str]] = field(default_factory=dict)
    axis_lengths: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """It in a sentence: a name or an edit that is long is shortened."""
        return f"{shorten(self.pattern)}: {shorten(str(self.edit))}"

    def apply(self, value: Tensor, spot: PointContext) -> Tensor:
        """The edited value, of the same shape but for a batch of one that is no longer the same for all."""
        if not self.fired or self._unmatched():
            where = self.edit.where
            for word, size in where.axis_lengths(value, spot).items():
                self.axis_lengths[word] = max(size, self.axis_lengths.get(word, 0))
            for word, met in where.matched_indices(value, spot).items():
                self.matched_indices[word] = met | self.matched_indices.get(word, set())
            self.fired = True
        return self.edit(value, spot)

    def check(self) -> None:
        """Refuses an edit that never fired, or in some place that was asked for did not."""
        if not self.fired:
            raise InputError(
                f"an edit never fired, of {self}: no pass was made that meets {join_names(self.names, 2)} "
                "(edits hold inside the block, for this model and in this thread)"
            )
        for word, one in self._unmatched():
            asked, reach = f"{word} {shorten(format_indices(one))}", self.axis_lengths[word]
            if first_out_of_range(one, reach) is not None:
                why = f"{asked} does not exist, no pass had more than {reach} {word}s there"
            else:
                why = f"{asked} was not among the {word}s that were computed there"
            raise InputError(f"an edit never fired, of {self}: {why}")

    def _unmatched(self) -> list[tuple[str, int | slice]]:
        """What was chosen and has not been met yet."""
        chosen = self.edit.where.chosen.items()
        return [
            (word, one)
            for word, some in chosen
            for one in split_indices(some)
            if format_indices(one) not in self.matched_indices.get(word, ())
        ]


class EditObserver:
    """Several edits as one onlooker of every pass. They are made in their order, each on what the one before gave."""

    def __init__(self, config: Config, entries: Sequence[PlacedEdit], bits: int | None) -> None:
        self.axes, self.entries, self.bits = points(config), tuple(entries), bits
        self.by_point: dict[str, list[PlacedEdit]] = {}
        for entry in entries:
            for name in entry.names:
                self.by_point.setdefault(name, []).append(entry)

    @property
    def by_row(self) -> bool:
        return any("row" in entry.edit.where.chosen for entry in self.entries)

    def wants(self, name: str) -> bool:
        return name in self.by_point

    def answer(self, name: str, value: Tensor, standing: TokenPositions) -> Tensor:
        """The value to go on with: `value` itself where nothing changes, so that nothing else does."""
        for entry in self.by_point.get(name, ()):
            value = self._apply_one(entry, name, value, standing)
        return value

    def _apply_one(self, entry: PlacedEdit, name: str, value: Tensor, standing: TokenPositions) -> Tensor:
        """What one edit gives, made on the axes of the name by which its point was asked for."""
        spot = PointContext(
            name,
            _requested_axes(self.axes[name], name, entry.aliases),
            standing,
            self.bits,
            entry.aliases.get(name, ""),
        )
        if spot.axes == self.axes[name]:
            return entry.apply(value, spot)
        seen = transposed(value)
        new = entry.apply(seen, spot)
        return value if new is seen else transposed(new)


def _requested_axes(own: Axes, name: str, aliases: Mapping[str, str]) -> Axes:
    """The axes of a point under the name by which it was asked for."""
    return transposed_axes(own) if name in aliases and is_transposed(name) else own


def placed_edits(config: Config, requested: EditsByName) -> list[PlacedEdit]:
    """The edits that were asked for, with their points. Raises InputError for what this model has nothing of."""
    if not isinstance(requested, Mapping) or not requested:
        raise InputError('edits are given as {name: edit}, such as {"layers.3.attention.weights": zero(head=5)}')
    entries, own = [], points(config)
    found = {asked: resolve_with_alias(asked, config) for asked in requested}
    reached = {name for names in found.values() for name in names}
    for asked, given in requested.items():
        if why := omitted_message(
            asked, config, reached
        ):  # what it does not reach would still be in what the model answers
            raise InputError(why)
        names = found[asked]
        edits = given if isinstance(given, list | tuple) else [given]
        if not edits:
            raise InputError(f"no edit was given for {shorten(str(asked))}: leave it out, or say what to do there")
        for one in edits:
            edit = as_edit(one)
            theirs = {name: called for name, called in names.items() if called != name}
            for name in names:
                edit.check(name, _requested_axes(own[name], name, theirs), own.sizes(name), theirs.get(name, ""))
            entries.append(PlacedEdit(asked, edit, tuple(names), theirs))
    return entries


def with_edits(loaded: Loaded, entries: Sequence[PlacedEdit]) -> Loaded:
    """The same model, sharing every number, that makes these edits at all of its passes, behind those it makes."""
    before = getattr(loaded.module.onlooker, "entries", ())
    onlooker = EditObserver(loaded.config, [*before, *entries], loaded.module.bits)
    return replace(loaded, module=loaded.module.observed_by(onlooker))


def edits_of(loaded: Loaded) -> tuple[EditSaid, ...]:
    """What is edited in the passes of this model, each edit whole; nothing as a rule."""
    return tuple(EditSaid(one.asked, str(one.edit)) for one in getattr(loaded.module.onlooker, "entries", ()))


# -- inside a block ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Block:
    """A network that is edited, and what it is inside the block; neither once the block has ended, wherever it did: the
    one who takes an abandoned generator to its end stands in a context of his own, where nobody else hears of it."""

    module: Network | None
    now: Network | None


_EDITED: ContextVar[tuple[_Block, ...]] = ContextVar("edited", default=())
"""The blocks that this line stands in, the innermost last; a thread begins with none."""


def with_active_edits(loaded: Loaded) -> Loaded:
    """What this model is here and now: itself, or with the edits of the blocks that this line stands in."""
    here = (one.now for one in reversed(_EDITED.get()) if one.module is loaded.module)
    now = next((now for now in here if now is not None), None)  # another thread may end one meanwhile
    return loaded if now is None else replace(loaded, module=now)


@contextmanager
def editing(loaded: Loaded, requested: EditsByName) -> Iterator[Loaded]:
    """Edits every pass of a model inside the block. See `Model.edit`."""
    entries = placed_edits(loaded.config, requested)
    now = with_edits(with_active_edits(loaded), entries)
    block = _Block(loaded.module, now.module)
    _EDITED.set((*_EDITED.get(), block))
    try:
        yield now
    finally:
        last = with_active_edits(loaded).module
        block.module = block.now = None
        _EDITED.set(tuple(one for one in _EDITED.get() if one.now is not None))  # others may last, or have begun
    for entry in entries:  # not reached where the block raised: its own error says more
        entry.check()
    if last is not now.module:
        raise InputError(
            "edits of a model end in the order opposite to that in which they began, in the thread and task in which "
            "they began: a block of them was left while one within it was still open, as generators may be"
        )
