"""What travels with the hidden states through one pass: masks, positions, the cache, the observer."""

from typing import NamedTuple, Protocol

from torch import Tensor

from pellucid.blocks.cache import LayerCache
from pellucid.blocks.relative import Rotation


class Observer(Protocol):
    """Observes a pass: it receives every value by its full name, and may return another in its place."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Receives `value` and returns the value to continue with, usually the same."""
        ...

    def wants(self, name: str) -> bool:
        """Whether it needs the value `name`, which is computed only for observers."""
        ...


class Pass(NamedTuple):
    """One pass through the model. A named tuple, since each layer makes one, and no other record is made as quickly.

    mask: Bool[Tensor, "batch 1 seq|1 source"], True where attention is allowed; None where it is everywhere.
    causal: whether each position sees itself and earlier ones only.
    bias: Float[Tensor, "batch|1 heads seq source"], added to the scores of every layer's self-attention.
    rotation: the rotary embedding of queries and keys.
    memory: Float[Tensor, "batch source hidden"], the input of cross-attention.
    memory_mask: Bool[Tensor, "batch 1 1 source"], True where cross-attention is allowed.
    cache: the layer's cache of earlier passes.
    text_lengths: lengths of the texts that are packed end to end in the single row of a causal pass; attention runs for
        each separately, which gives exactly the results of the text alone; `mask` describes the same.
    observer: the observer; None on the fast path.
    first: whether only the first position is output: in the last layer of a bidirectional stack, if no other is read.
    path: prefix of the names of values: "", or such as "decoder.layers.3.".
    """

    mask: Tensor | None = None
    causal: bool = False
    bias: Tensor | None = None
    rotation: Rotation | None = None
    memory: Tensor | None = None
    memory_mask: Tensor | None = None
    cache: LayerCache | None = None
    text_lengths: tuple[int, ...] | None = None
    observer: Observer | None = None
    path: str = ""
    first: bool = False

    def observe(self, name: str, value: Tensor) -> Tensor:
        """Calls the observer, if there is one, and returns its value."""
        return value if self.observer is None else self.observer(self.path + name, value)

    def wants(self, *names: str) -> bool:
        """Whether an observer wants any of these values."""
        return self.observer is not None and any(self.observer.wants(self.path + name) for name in names)

    def output_positions(self, x: Tensor, dim: int = 1) -> Tensor:
        """The positions, along `dim`, whose output is read."""
        return x.narrow(dim, 0, 1) if self.first else x

    def inside(self, name: str) -> "Pass":
        """The same pass, with `name` appended to its path."""
        return self if self.observer is None else self._replace(path=f"{self.path}{name}.")

    def at_layer(self, i: int, cache: LayerCache | None) -> "Pass":
        """The same pass inside layer `i`, with that layer's cache."""
        if self.observer is None and cache is None:
            return self
        return Pass(  # not by `_replace`, which takes as long as a step of arithmetic
            self.mask, self.causal, self.bias, self.rotation, self.memory, self.memory_mask, cache, self.text_lengths,
            self.observer, f"{self.path}layers.{i}.",
        )  # fmt: skip

    def for_cross_attention(self) -> "Pass":
        """The same pass inside cross-attention: with the memory's mask, not causal, without a bias."""
        path = f"{self.path}cross_attention."
        return Pass(mask=self.memory_mask, cache=self.cache, observer=self.observer, path=path)
