"""Tables of tensor names: the reference's name on the left, ours on the right, `{i}` for the layer number.

One row per module covers its weight and bias. The tables are read both ways, for loading and for saving. A third column
gives the layout where it differs from ours; several of our parameters may share one tensor:

    ("block.{i}.wide", "layers.{i}.feed_forward.up", TRANSPOSED),
    ("block.{i}.qkv", ("layers.{i}.attention.query", ..., "layers.{i}.attention.value"), JOINED),

Where several rows have the same right side, the first is written on saving; the others are only read.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pellucid.checkpoints.tensor_layouts import UNCHANGED, Layout
from pellucid.lazy import cached_property

if TYPE_CHECKING:  # family pages are imported without torch
    from torch import Tensor

Row = tuple[Any, ...]
"""(theirs, ours), (theirs, ours, layout) or (theirs, (ours, ours, ...), layout)"""
Rows = tuple[Row, ...]


@dataclass(frozen=True)
class TensorLocation:
    """Where one of our parameters is stored: part `part` of `parts` of the tensor `tensor_name`."""

    tensor_name: str
    layout: Layout = UNCHANGED
    part: int = 0
    parts: int = 1

    def extract(self, numbers: Tensor) -> Tensor:
        """Our parameter, taken from the file's tensor."""
        return self.layout.from_file(numbers, self.part, self.parts)


@dataclass(frozen=True)
class TensorNames:
    """A family's tensor names.

    body: (reference, ours[, layout]), one row per module.  head: the same for one head, whose names have no prefix.
    prefix: precedes the body's names in files saved from a model with a head, and is absent from the others.
    renamed: older spellings of the last part of a name, as {older: newer}.
    dropped: patterns of tensors that are known and not needed, each with the reason.
    copies: names in the body, each with the name of the tensor that it equals. The reference reads each of them where
        tables are untied, and initialises those that are absent.
    """

    body: Rows
    prefix: str = ""
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    head: Rows = ()

    def parameters_of(self, tensor_name: str) -> dict[str, TensorLocation]:
        """Our parameters that a tensor of a file fills, and their locations; empty where no row covers it."""
        stem, _, last = tensor_name.rpartition(".")
        canonical = f"{stem}.{self.renamed.get(last, last)}" if stem else tensor_name
        found = _parameters_in(canonical.removeprefix(self.prefix), self._body) or _parameters_in(canonical, self._head)
        return {parameter: replace(location, tensor_name=tensor_name) for parameter, location in found.items()}

    def location_of(self, parameter: str, *, prefixed: bool) -> TensorLocation:
        """Where one of our parameters is stored in the reference's file. Raises KeyError for an unknown name."""
        location = _location_in(parameter, self._body)
        if location is not None:
            return replace(location, tensor_name=(self.prefix if prefixed else "") + location.tensor_name)
        location_in_head = _location_in(parameter, self._head)
        if location_in_head is None:
            raise KeyError(parameter)
        return location_in_head

    def drop_reason(self, tensor_name: str) -> str | None:
        """Why this tensor of a file is not needed; None where it is."""
        bare = tensor_name.removeprefix(self.prefix)
        return next((self.dropped[pattern] for pattern, _, _ in _name_patterns(bare) if pattern in self.dropped), None)

    @cached_property
    def _body(self) -> _NameTable:
        return _name_table(self.body)

    @cached_property
    def _head(self) -> _NameTable:
        return _name_table(self.head)


def with_prefixes(reference_prefix: str, own_prefix: str, rows: Rows) -> Rows:
    """The rows with a prefix on either side."""
    return tuple((f"{reference_prefix}{row[0]}", f"{own_prefix}{row[1]}", *row[2:]) for row in rows)


@dataclass(frozen=True)
class _NameTable:
    """Locations by pattern, with `{i}`: our names for each left side, and the location for each name on the right; of
    equal entries the first counts."""

    forward: dict[str, dict[str, TensorLocation]]
    back: dict[str, TensorLocation]


@functools.cache
def _name_table(rows: Rows) -> _NameTable:
    table = _NameTable({}, {})
    for left, right, *rest in rows:
        names, layout = (right,) if isinstance(right, str) else right, rest[0] if rest else UNCHANGED
        locations = {name: TensorLocation(left, layout, part, len(names)) for part, name in enumerate(names)}
        table.forward.setdefault(left, locations)
        for name, location in locations.items():
            table.back.setdefault(name, location)
    return table


def gather_tensors(parameters: Iterable[tuple[TensorLocation, Tensor]]) -> dict[str, Tensor]:
    """The tensors of a file by their names there, assembled from our parameters and their locations."""
    groups: dict[str, dict[int, Tensor]] = {}
    layouts: dict[str, Layout] = {}
    for location, numbers in parameters:
        groups.setdefault(location.tensor_name, {})[location.part] = numbers
        layouts[location.tensor_name] = location.layout
    return {
        tensor_name: layouts[tensor_name].to_file([parts[i] for i in sorted(parts)])
        for tensor_name, parts in groups.items()
    }


def _parameters_in(tensor_name: str, table: _NameTable) -> dict[str, TensorLocation]:
    for pattern, number, last in _name_patterns(tensor_name):
        if (locations := table.forward.get(pattern)) is not None:
            return {name.replace("{i}", number) + last: location for name, location in locations.items()}
    return {}


def _location_in(parameter: str, table: _NameTable) -> TensorLocation | None:
    for pattern, number, last in _name_patterns(parameter):
        if (location := table.back.get(pattern)) is not None:
            return replace(location, tensor_name=location.tensor_name.replace("{i}", number) + last)
    return None


def _name_patterns(name: str) -> Iterator[tuple[str, str, str]]:
    """The patterns of rows that may cover this tensor, each with the layer number and the last part that it leaves out.

    Full names come before module names, and literal names before those with `{i}` for a number.
    """
    stem, _, last = name.rpartition(".")
    for stem_or_name, rest in ((name, ""), (stem, f".{last}")) if last in ("weight", "bias") else ((name, ""),):
        yield stem_or_name, "", rest
        parts = stem_or_name.split(".")
        for index, part in enumerate(parts):
            if part.isascii() and part.isdigit():
                yield ".".join((*parts[:index], "{i}", *parts[index + 1 :])), part, rest
