"""What travels with the hidden states through one pass: who may look at whom, what is remembered, who is watching."""

from typing import NamedTuple, Protocol

from torch import Tensor

from pellucid.blocks.cache import LayerCache
from pellucid.blocks.relative import Rotation


class Observer(Protocol):
    """Somebody who looks on. He is told every number by its full name, and may answer with another in its place."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Told `value`; answers the value to go on with, as a rule the same."""
        ...

    def wants(self, name: str) -> bool:
        """Whether it is worth computing what only an observer needs."""
        ...


class Pass(NamedTuple):
    """One pass through the model: a named tuple, since every layer has its own, and no other record is made as quickly.

    mask: Bool[Tensor, "batch 1 seq|1 source"], True where a position may be looked at; None where all may.
    causal: each position sees itself and what stands before it.
    bias: Float[Tensor, "batch|1 heads seq source"], added to the scores of every layer's self-attention.
    rotation: what query and key are turned by.
    memory: Float[Tensor, "batch source hidden"], what cross-attention looks at.
    memory_mask: Bool[Tensor, "batch 1 1 source"], True where the memory may be looked at.
    cache: what the layer remembers of earlier passes.
    text_lengths: of texts that stand end to end in the one row of a causal pass; each is mixed by itself, which gives
        the very numbers that it has alone; `mask` says the same.
    watch: records and edits the numbers on the way; None on the fast path.
    first: whether the first position alone goes on: in the last layer of a stack that looks both ways, where nobody
        reads another.
    path: where in the model this is, as names of points begin: "" or such as "decoder.layers.3.".
    """

    mask: Tensor | None = None
    causal: bool = False
    bias: Tensor | None = None
    rotation: Rotation | None = None
    memory: Tensor | None = None
    memory_mask: Tensor | None = None
    cache: LayerCache | None = None
    text_lengths: tuple[int, ...] | None = None
    watch: Observer | None = None
    path: str = ""
    first: bool = False

    def observe(self, name: str, value: Tensor) -> Tensor:
        """Shows `value` to the observer, if there is one."""
        return value if self.watch is None else self.watch(self.path + name, value)

    def wants(self, *names: str) -> bool:
        """Whether an observer asks for any of these."""
        return self.watch is not None and any(self.watch.wants(self.path + name) for name in names)

    def output_positions(self, x: Tensor, dim: int = 1) -> Tensor:
        """The positions, along `dim`, behind which somebody reads."""
        return x.narrow(dim, 0, 1) if self.first else x

    def inside(self, name: str) -> "Pass":
        """The same pass, its names told from inside `name`."""
        return self if self.watch is None else self._replace(path=f"{self.path}{name}.")

    def at_layer(self, i: int, cache: LayerCache | None) -> "Pass":
        """The same pass inside layer `i`, with what that layer remembers."""
        if self.watch is None and cache is None:
            return self
        return Pass(  # in full, since `_replace` takes as long as a step of arithmetic
            self.mask, self.causal, self.bias, self.rotation, self.memory, self.memory_mask, cache, self.text_lengths,
            self.watch, f"{self.path}layers.{i}.",
        )  # fmt: skip

    def for_cross_attention(self) -> "Pass":
        """The same pass inside cross-attention: another mask, no order, no bias."""
        path = f"{self.path}cross_attention."
        return Pass(mask=self.memory_mask, cache=self.cache, watch=self.watch, path=path)
