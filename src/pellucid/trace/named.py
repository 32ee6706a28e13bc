"""Recorded tensors by name, ours or another library's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pellucid.config import Config
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.trace.aliases import aliases, unavailable_message
from pellucid.trace.axes import requested_value


@dataclass(frozen=True, eq=False)
class NamedTensors(Mapping[str, Tensor]):
    """The tensors recorded in one pass, in the order in which they arose: `these["layers.0.attention.weights"]`.

    points: the tensors by our names.  config: the model's facts, which decide what aliases mean. Under a
        TransformerLens name a tensor has its axes ([batch, seq, heads, head_dim] for `hook_z`, where ours is heads
        first).
    """

    type_name: ClassVar[str] = "record"

    points: dict[str, Tensor]
    config: Config

    __eq__ = object.__eq__  # a mapping's would compare tensors, which is not a single bool
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> Tensor:
        if not isinstance(name, str):
            raise InputError(
                f"a {self.type_name} is indexed by name, not by {shorten(repr(name))}; names() lists what it has"
            )
        our_name = self._our_name(name)
        if our_name not in self.points:
            unknown = f"{shorten(repr(name))}{did_you_mean(our_name, self.points)}"
            missing = f"this {self.type_name} has no {unknown}; names() lists what it has"
            raise InputError(unavailable_message(name, self.config) or missing)
        return requested_value(self.points[our_name], our_name, name)

    def __contains__(self, name: object) -> bool:
        return self._our_name(str(name)) in self.points

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor of this name, or `default` where there is none."""
        our_name = self._our_name(name)
        return requested_value(self.points[our_name], our_name, name) if our_name in self.points else default

    def _our_name(self, name: str) -> str:
        return name if name in self.points else aliases(self.config).get(name, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def names(self) -> list[str]:
        """The names of all recorded tensors, in the order in which they arose."""
        return list(self.points)
