"""Edits at work: which points they reach, at which passes of a model, and whether they ever did."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Config
from pellucid.errors import InputError, several, short
from pellucid.models import Network, Standing
from pellucid.trace.aliases import left_out, named
from pellucid.trace.axes import is_turned, turned, turned_axes
from pellucid.trace.edits import Edit, edit_of
from pellucid.trace.points import Axes, points
from pellucid.trace.selection import Spot, beyond, parts, shown
from pellucid.trace.trace import EditSaid

Wanted = Mapping[str, Any]
"""`{"layers.3.attention.weights": zero(head=5)}`: names or globs, ours or another library's (then functions and tensors
have the axes of that library), and for each an edit, a function, a tensor, or several of these."""


@dataclass
class Entry:
    """One edit with the points that it was asked for.

    asked: the name or glob as it was given.  names: the points.  fired: whether a pass has told one of them.
    called: of those that were asked for by another library's name, that name; the edit is made on its axes.
    met: by each word that chooses, those of its indices that a pass had.  reach: how far that axis has reached.
    """

    asked: str
    edit: Edit
    names: tuple[str, ...]
    called: Mapping[str, str] = field(default_factory=dict)
    fired: bool = False
    met: dict[str, set[str]] = field(default_factory=dict)
    reach: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """It in a sentence: a name or an edit that is long is shortened."""
        return f"{short(self.asked)}: {short(str(self.edit))}"

    def answer(self, value: Tensor, spot: Spot) -> Tensor:
        """The edited value, of the same shape but for a batch of one that is no longer the same for all."""
        if not self.fired or self._missing():
            where = self.edit.where
            for word, size in where.reach(value, spot).items():
                self.reach[word] = max(size, self.reach.get(word, 0))
            for word, met in where.met(value, spot).items():
                self.met[word] = met | self.met.get(word, set())
            self.fired = True
        return self.edit(value, spot)

    def check(self) -> None:
        """Refuses an edit that never fired, or in some place that was asked for did not."""
        if not self.fired:
            raise InputError(
                f"an edit never fired, of {self}: no pass was made that meets {several(self.names, 2)} "
                "(edits hold inside the block, for this model and in this thread)"
            )
        for word, one in self._missing():
            asked, reach = f"{word} {short(shown(one))}", self.reach[word]
            if beyond(one, reach) is not None:
                why = f"{asked} does not exist, no pass had more than {reach} {word}s there"
            else:
                why = f"{asked} was not among the {word}s that were computed there"
            raise InputError(f"an edit never fired, of {self}: {why}")

    def _missing(self) -> list[tuple[str, int | slice]]:
        """What was chosen and has not been met yet."""
        chosen = self.edit.where.chosen.items()
        return [(word, one) for word, some in chosen for one in parts(some) if shown(one) not in self.met.get(word, ())]


class Edits:
    """Several edits as one onlooker of every pass. They are made in their order, each on what the one before gave."""

    def __init__(self, config: Config, entries: Sequence[Entry], bits: int | None) -> None:
        self.axes, self.entries, self.bits = points(config), tuple(entries), bits
        self.at: dict[str, list[Entry]] = {}
        for entry in entries:
            for name in entry.names:
                self.at.setdefault(name, []).append(entry)

    @property
    def by_row(self) -> bool:
        return any("row" in entry.edit.where.chosen for entry in self.entries)

    def wants(self, name: str) -> bool:
        return name in self.at

    def answer(self, name: str, value: Tensor, standing: Standing) -> Tensor:
        """The value to go on with: `value` itself where nothing changes, so that nothing else does."""
        for entry in self.at.get(name, ()):
            value = self._one(entry, name, value, standing)
        return value

    def _one(self, entry: Entry, name: str, value: Tensor, standing: Standing) -> Tensor:
        """What one edit gives, made on the axes of the name by which its point was asked for."""
        spot = Spot(name, _axes(self.axes[name], name, entry.called), standing, self.bits, entry.called.get(name, ""))
        if spot.axes == self.axes[name]:
            return entry.answer(value, spot)
        seen = turned(value)
        new = entry.answer(seen, spot)
        return value if new is seen else turned(new)


def _axes(own: Axes, name: str, called: Mapping[str, str]) -> Axes:
    """The axes of a point under the name by which it was asked for."""
    return turned_axes(own) if name in called and is_turned(name) else own


def entries_of(config: Config, wanted: Wanted) -> list[Entry]:
    """The edits that were asked for, with their points. Raises InputError for what this model has nothing of."""
    if not isinstance(wanted, Mapping) or not wanted:
        raise InputError('edits are given as {name: edit}, such as {"layers.3.attention.weights": zero(head=5)}')
    entries, own = [], points(config)
    found = {asked: named(asked, config) for asked in wanted}
    reached = {name for names in found.values() for name in names}
    for asked, given in wanted.items():
        if why := left_out(asked, config, reached):  # what it does not reach would still be in what the model answers
            raise InputError(why)
        names = found[asked]
        edits = given if isinstance(given, list | tuple) else [given]
        if not edits:
            raise InputError(f"no edit was given for {short(str(asked))}: leave it out, or say what to do there")
        for one in edits:
            edit = edit_of(one)
            theirs = {name: called for name, called in names.items() if called != name}
            for name in names:
                edit.check(name, _axes(own[name], name, theirs), own.sizes(name), theirs.get(name, ""))
            entries.append(Entry(asked, edit, tuple(names), theirs))
    return entries


def edited(loaded: Loaded, entries: Sequence[Entry]) -> Loaded:
    """The same model, sharing every number, that makes these edits at all of its passes, behind those it makes."""
    before = getattr(loaded.module.onlooker, "entries", ())
    onlooker = Edits(loaded.config, [*before, *entries], loaded.module.bits)
    return replace(loaded, module=loaded.module.edited(onlooker))


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


def present(loaded: Loaded) -> Loaded:
    """What this model is here and now: itself, or with the edits of the blocks that this line stands in."""
    here = (one.now for one in reversed(_EDITED.get()) if one.module is loaded.module)
    now = next((now for now in here if now is not None), None)  # another thread may end one meanwhile
    return loaded if now is None else replace(loaded, module=now)


@contextmanager
def editing(loaded: Loaded, wanted: Wanted) -> Iterator[Loaded]:
    """Edits every pass of a model inside the block. See `Model.edit`."""
    entries = entries_of(loaded.config, wanted)
    now = edited(present(loaded), entries)
    block = _Block(loaded.module, now.module)
    _EDITED.set((*_EDITED.get(), block))
    try:
        yield now
    finally:
        last = present(loaded).module
        block.module = block.now = None
        _EDITED.set(tuple(one for one in _EDITED.get() if one.now is not None))  # others may last, or have begun
    for entry in entries:  # not reached where the block raised: its own error says more
        entry.check()
    if last is not now.module:
        raise InputError(
            "edits of a model end in the order opposite to that in which they began, in the thread and task in which "
            "they began: a block of them was left while one within it was still open, as generators may be"
        )
