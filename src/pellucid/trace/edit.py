"""Applies edits: resolves their points, makes them during the passes of a model, and checks that each of them fired."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Config
from pellucid.errors import InputError, format_count, join_names, shorten
from pellucid.models import Network, TokenPositions
from pellucid.trace.aliases import omitted_message, resolve_with_alias
from pellucid.trace.axes import requested_axes, requested_value
from pellucid.trace.edits import Edit, as_edit
from pellucid.trace.points import points
from pellucid.trace.selection import Part, PointContext, first_out_of_range, format_indices
from pellucid.trace.trace import EditRecord

EditsByName = Mapping[str, Any]
"""`{"layers.3.attention.weights": zero(head=5)}`: names or globs, ours or another library's (functions and tensors then
have that library's axes), each with an edit, a function, a tensor, or several of these."""


@dataclass
class PlacedEdit:
    """One edit with the points that it applies to.

    pattern: the name or glob as requested.
    names: the points, each with the name by which it was requested, ours or another library's: the edit is made on its
        axes.
    fired: whether a pass has reached one of them.  unmatched: the selected indices that no pass has had yet.
    axis_lengths: by keyword, the largest axis size so far.
    """

    pattern: str
    edit: Edit
    names: Mapping[str, str]
    fired: bool = field(default=False, init=False)
    unmatched: list[Part] = field(init=False)
    axis_lengths: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.unmatched = self.edit.where.parts()

    def __str__(self) -> str:
        """The pattern and the edit, each shortened if long."""
        return f"{shorten(self.pattern)}: {shorten(str(self.edit))}"

    def apply(self, value: Tensor, context: PointContext) -> Tensor:
        """The edited value, of the same shape, except that a batch axis of size 1 grows where the texts now differ."""
        if not self.fired or self.unmatched:
            selection = self.edit.where
            for keyword, size in selection.axis_lengths(value, context).items():
                self.axis_lengths[keyword] = max(size, self.axis_lengths.get(keyword, 0))
            self.unmatched = selection.missing(self.unmatched, value, context)
            self.fired = True
        return self.edit(value, context)

    def check_fits(self, config: Config) -> None:
        """Raises InputError for a part that one of the points does not have."""
        all_points = points(config)
        for name, requested in self.names.items():
            axes = requested_axes(all_points[name], name, requested)
            self.edit.check(name, requested, axes, all_points.sizes(name))

    def check_fired(self) -> None:
        """Raises InputError for an edit that never fired, or never at one of its selected indices."""
        if not self.fired:
            raise InputError(
                f"an edit never fired, of {self}: no pass was made that meets {join_names(self.names, 2)} "
                "(edits hold inside the block, for this model and in this thread)"
            )
        for keyword, one in self.unmatched:
            requested, length = f"{keyword} {format_indices(one)}", self.axis_lengths[keyword]
            if first_out_of_range(one, length) is not None:
                reason = f"{requested} does not exist, no pass had more than {format_count(length, keyword)} there"
            else:
                reason = f"{requested} was not among the {keyword}s that were computed there"
            raise InputError(f"an edit never fired, of {self}: {reason}")


class EditObserver:
    """An observer of every pass that makes several edits in order, each on the result of the one before."""

    def __init__(self, config: Config, edits: Sequence[PlacedEdit], bits: int | None) -> None:
        self.axes, self.edits, self.bits = points(config), tuple(edits), bits
        self.by_point: dict[str, list[PlacedEdit]] = {}
        for placed in edits:
            for name in placed.names:
                self.by_point.setdefault(name, []).append(placed)

    @property
    def by_row(self) -> bool:
        return any("row" in placed.edit.where.chosen for placed in self.edits)

    def wants(self, name: str) -> bool:
        return name in self.by_point

    def answer(self, name: str, value: Tensor, token_positions: TokenPositions) -> Tensor:
        """The value to continue with: `value` itself where nothing changes, so that nothing downstream does."""
        for placed in self.by_point.get(name, ()):
            value = self._apply_one(placed, name, value, token_positions)
        return value

    def _apply_one(self, placed: PlacedEdit, name: str, value: Tensor, token_positions: TokenPositions) -> Tensor:
        """The result of one edit, made on the axes of the name by which its point was requested."""
        requested = placed.names[name]
        axes = requested_axes(self.axes[name], name, requested)
        before = requested_value(value, name, requested)
        after = placed.apply(before, PointContext(name, requested, axes, token_positions, self.bits))
        return value if after is before else requested_value(after, name, requested)


def placed_edits(config: Config, requested: EditsByName) -> list[PlacedEdit]:
    """The requested edits with their points. Raises InputError for a name or part that this model does not have."""
    if not isinstance(requested, Mapping) or not requested:
        raise InputError('edits are given as {name: edit}, such as {"layers.3.attention.weights": zero(head=5)}')
    placed = []
    found = {pattern: resolve_with_alias(pattern, config) for pattern in requested}
    reached = {name for names in found.values() for name in names}
    for pattern, values in requested.items():
        # what the glob leaves out would still affect the output
        if message := omitted_message(pattern, config, reached):
            raise InputError(message)
        values = values if isinstance(values, list | tuple) else [values]
        if not values:
            raise InputError(f"no edit was given for {shorten(str(pattern))}: leave it out, or say what to do there")
        for value in values:
            placed.append(PlacedEdit(pattern, as_edit(value), found[pattern]))
            placed[-1].check_fits(config)
    return placed


def with_edits(loaded: Loaded, edits: Sequence[PlacedEdit]) -> Loaded:
    """The same model, sharing all weights, that makes these edits in every pass, after those that it makes already."""
    before = getattr(loaded.module.observer, "edits", ())
    observer = EditObserver(loaded.config, [*before, *edits], loaded.module.bits)
    return replace(loaded, module=loaded.module.observed_by(observer))


def edits_of(loaded: Loaded) -> tuple[EditRecord, ...]:
    """Descriptions of the edits made in every pass of this model; empty for an unedited model."""
    return tuple(EditRecord(one.pattern, str(one.edit)) for one in getattr(loaded.module.observer, "edits", ()))


# -- inside a block ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Block:
    """A network and its edited version inside a block; both None once the block has ended, in whatever context it did:
    an abandoned generator may be closed in a context of its own, whose changes no other context sees."""

    module: Network | None
    edited: Network | None


_EDITED: ContextVar[tuple[_Block, ...]] = ContextVar("edited", default=())
"""The blocks entered in this context, the innermost last; a new thread starts with none."""


def with_active_edits(loaded: Loaded) -> Loaded:
    """This model with the edits of the blocks entered in this context; the model itself where there are none."""
    active = (one.edited for one in reversed(_EDITED.get()) if one.module is loaded.module)
    edited = next((module for module in active if module is not None), None)  # another thread may end a block meanwhile
    return loaded if edited is None else replace(loaded, module=edited)


@contextmanager
def editing(loaded: Loaded, requested: EditsByName) -> Iterator[Loaded]:
    """Edits every pass of a model inside the block. See `Model.edit`."""
    edits = placed_edits(loaded.config, requested)
    edited = with_edits(with_active_edits(loaded), edits)
    block = _Block(loaded.module, edited.module)
    _EDITED.set((*_EDITED.get(), block))
    try:
        yield edited
    finally:
        last = with_active_edits(loaded).module
        block.module = block.edited = None
        _EDITED.set(tuple(one for one in _EDITED.get() if one.edited is not None))  # other blocks may be open still
    for placed in edits:  # not reached if the block raised: its own error is more informative
        placed.check_fired()
    if last is not edited.module:
        raise InputError(
            "edits of a model end in the reverse of the order in which they began, in the thread and task in which "
            "they began: a block of them was left while one within it was still open, as generators may be"
        )
