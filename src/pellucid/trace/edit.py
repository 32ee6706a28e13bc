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
from pellucid.trace.axes import is_transposed, transposed, transposed_axes
from pellucid.trace.edits import Edit, as_edit
from pellucid.trace.points import Axes, points
from pellucid.trace.selection import PointContext, first_out_of_range, format_indices, split_indices
from pellucid.trace.trace import EditRecord

EditsByName = Mapping[str, Any]
"""`{"layers.3.attention.weights": zero(head=5)}`: names or globs, ours or another library's (functions and tensors then
have that library's axes), each with an edit, a function, a tensor, or several of these."""


@dataclass
class PlacedEdit:
    """One edit with the points that it applies to.

    pattern: the name or glob as requested.  names: the points.  fired: whether a pass has reached one of them.
    aliases: for points requested by another library's name, that name; the edit is made on its axes.
    matched_indices: by keyword, the selected indices that a pass had.  axis_lengths: the largest axis size so far.
    """

    pattern: str
    edit: Edit
    names: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    fired: bool = False
    matched_indices: dict[str, set[str]] = field(default_factory=dict)
    axis_lengths: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """The pattern and the edit, each shortened if long."""
        return f"{shorten(self.pattern)}: {shorten(str(self.edit))}"

    def apply(self, value: Tensor, context: PointContext) -> Tensor:
        """The edited value, of the same shape, except that a batch axis of size 1 grows where the texts now differ."""
        if not self.fired or self._unmatched():
            selection = self.edit.where
            for keyword, size in selection.axis_lengths(value, context).items():
                self.axis_lengths[keyword] = max(size, self.axis_lengths.get(keyword, 0))
            for keyword, matched in selection.matched_indices(value, context).items():
                self.matched_indices[keyword] = matched | self.matched_indices.get(keyword, set())
            self.fired = True
        return self.edit(value, context)

    def check(self) -> None:
        """Raises InputError for an edit that never fired, or never at one of its selected indices."""
        if not self.fired:
            raise InputError(
                f"an edit never fired, of {self}: no pass was made that meets {join_names(self.names, 2)} "
                "(edits hold inside the block, for this model and in this thread)"
            )
        for keyword, one in self._unmatched():
            requested, length = f"{keyword} {shorten(format_indices(one))}", self.axis_lengths[keyword]
            if first_out_of_range(one, length) is not None:
                reason = f"{requested} does not exist, no pass had more than {format_count(length, keyword)} there"
            else:
                reason = f"{requested} was not among the {keyword}s that were computed there"
            raise InputError(f"an edit never fired, of {self}: {reason}")

    def _unmatched(self) -> list[tuple[str, int | slice]]:
        """The selected indices that no pass has had yet."""
        chosen = self.edit.where.chosen.items()
        return [
            (keyword, one)
            for keyword, indices in chosen
            for one in split_indices(indices)
            if format_indices(one) not in self.matched_indices.get(keyword, ())
        ]


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
        axes, alias = _requested_axes(self.axes[name], name, placed.aliases), placed.aliases.get(name, "")
        context = PointContext(name, axes, token_positions, self.bits, alias)
        if axes == self.axes[name]:
            return placed.apply(value, context)
        transposed_value = transposed(value)
        edited_value = placed.apply(transposed_value, context)
        return value if edited_value is transposed_value else transposed(edited_value)


def _requested_axes(axes: Axes, name: str, aliases: Mapping[str, str]) -> Axes:
    """The axes of a point under the name by which it was requested."""
    return transposed_axes(axes) if name in aliases and is_transposed(name) else axes


def placed_edits(config: Config, requested: EditsByName) -> list[PlacedEdit]:
    """The requested edits with their points. Raises InputError for a name or part that this model does not have."""
    if not isinstance(requested, Mapping) or not requested:
        raise InputError('edits are given as {name: edit}, such as {"layers.3.attention.weights": zero(head=5)}')
    placed, all_points = [], points(config)
    found = {pattern: resolve_with_alias(pattern, config) for pattern in requested}
    reached = {name for names in found.values() for name in names}
    for pattern, values in requested.items():
        # what the glob leaves out would still affect the output
        if message := omitted_message(pattern, config, reached):
            raise InputError(message)
        names = found[pattern]
        values = values if isinstance(values, list | tuple) else [values]
        if not values:
            raise InputError(f"no edit was given for {shorten(str(pattern))}: leave it out, or say what to do there")
        for value in values:
            edit = as_edit(value)
            theirs = {name: alias for name, alias in names.items() if alias != name}
            for name in names:
                edit.check(
                    name, _requested_axes(all_points[name], name, theirs), all_points.sizes(name), theirs.get(name, "")
                )
            placed.append(PlacedEdit(pattern, edit, tuple(names), theirs))
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
        placed.check()
    if last is not edited.module:
        raise InputError(
            "edits of a model end in the reverse of the order in which they began, in the thread and task in which "
            "they began: a block of them was left while one within it was still open, as generators may be"
        )
