"""Recorded tensors by their names, ours and those of other libraries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pellucid.config import Config
from pellucid.errors import InputError, near, short
from pellucid.trace.aliases import aliases


@dataclass(frozen=True, eq=False)
class NamedTensors(Mapping[str, Tensor]):
    """What was recorded of one pass: `these["layers.0.attention.weights"]`, in the order in which it arose.

    points: the tensors by our names.  config: the facts of the model, by which other names are understood.
    """

    called: ClassVar[str] = "record"

    points: dict[str, Tensor]
    config: Config

    __eq__ = object.__eq__  # that of a mapping would compare tensors, which have no one answer
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> Tensor:
        if not isinstance(name, str):
            raise InputError(
                f"a {self.called} is asked by name, and not by {short(repr(name))}; names() lists what it has"
            )
        found = self._ours(name)
        if found not in self.points:
            raise InputError(
                f"this {self.called} has no {short(repr(name))}{near(found, self.points)}; names() lists what it has"
            )
        return self.points[found]

    def __contains__(self, name: object) -> bool:
        return self._ours(str(name)) in self.points

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor of this name, or `default` where there is none."""
        return self.points.get(self._ours(name), default)

    def _ours(self, name: str) -> str:
        return name if name in self.points else aliases(self.config).get(name, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def names(self) -> list[str]:
        """The names of everything that was kept, in the order in which it arose."""
        return list(self.points)
