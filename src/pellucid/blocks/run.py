"""What travels with the hidden states through one pass: who may look at whom, and who is watching."""

from dataclasses import dataclass, replace
from typing import Protocol, Self

from torch import Tensor


class Watch(Protocol):
    """Somebody who looks on. He is told every number by its name, and may answer with another in its place."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Told `value`; answers the value to go on with, as a rule the same."""
        ...

    def wants(self, name: str) -> bool:
        """Whether it is worth computing what only an onlooker needs."""
        ...

    def inside(self, name: str) -> Self:
        """The same onlooker, one room further in: names are told relative to `name`."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass through the model.

    mask: Bool[Tensor, "batch 1 seq|1 source"], True where a position may be looked at; None where all may.
    causal: each position sees itself and what stands before it.
    watch: records and edits the numbers on the way; None on the fast path.
    """

    mask: Tensor | None = None
    causal: bool = False
    watch: Watch | None = None

    def see(self, name: str, value: Tensor) -> Tensor:
        """Shows `value` to the onlooker, if there is one."""
        return value if self.watch is None else self.watch(name, value)

    def wants(self, *names: str) -> bool:
        """Whether an onlooker asks for any of these."""
        return self.watch is not None and any(self.watch.wants(name) for name in names)

    def inside(self, name: str) -> "Pass":
        """The same pass, its names told from inside `name`."""
        return self if self.watch is None else replace(self, watch=self.watch.inside(name))
