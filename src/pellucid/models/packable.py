"""The same model for answering and for learning at speed; a packed copy is made anew when numbers have changed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from pellucid.blocks import packing
from pellucid.blocks.copies import evaluation_copy, packed_copy
from pellucid.blocks.hooks import is_hooked
from pellucid.blocks.training_copy import TrainingContext, training_copy
from pellucid.errors import Argument, InputError
from pellucid.models.heads import TextLabels
from pellucid.models.observable import NetworkObserver, Observable
from pellucid.models.snapshot import Snapshot, foreign_module


class PackableNetwork(Observable):
    """A network that keeps packed copies of itself.

    head: what makes logits of its hidden states, where it has one.
    is_packed: whether it is itself such a copy.  is_training_copy: whether it is the copy that learns.
    bits: per number of its tables, where it holds 8 or 4, and is such a copy without an original; None where it holds
        real numbers.
    is_autoregressive: whether it can read token after token, as writing asks for.
    before_head: gives the hidden states that the head reads, Float[Tensor, "batch seq hidden"], without any logits.
    """

    head: nn.Module | None
    bits: int | None = None
    is_packed: bool = False
    is_training_copy: bool = False
    is_autoregressive: ClassVar[bool] = False
    before_head: Callable[..., Tensor]

    @property
    def dtype(self) -> torch.dtype:
        """The kind of its numbers; of tables of few bits, that of the numbers beside them."""
        return next(self.parameters()).dtype

    @property
    def kind(self) -> str:
        """What its numbers are: "float32", "int4", ..."""
        return f"int{self.bits}" if self.bits else str(self.dtype).removeprefix("torch.")

    @property
    def is_fast(self) -> bool:
        """Whether it is laid out for speed, and nobody looks on."""
        return self.is_packed and not self.is_observed

    @property
    def is_observed(self) -> bool:
        """Whether somebody hears its own pass: an observer, or a hook on it."""
        return self.observer is not None or is_hooked(self)

    def require_float(self, purpose: str | Argument) -> Self:
        """This model, for work that needs float weights. Raises InputError for one of 8 or 4 bits."""
        if self.bits:
            raise InputError(
                purpose, f" needs float weights, and this model has {self.bits}-bit ones: load it as float32"
            )
        return self

    def check_dtype(self, dtype: torch.dtype | None) -> None:
        """Refuses a kind of number that is asked of numbers of 4 or 8 bits, which have a way of their own."""
        if self.bits and dtype is not None:
            own_kind = f"a model of {self.bits} bits computes in its own dtype: leave "
            raise InputError(own_kind, Argument("dtype"), " out")

    def packed_copy(self, dtype: torch.dtype | None = None) -> Self:
        """The same model for answering at speed: always evaluating, its tables packed for the processor.

        Equal to this one up to rounding. It is kept, and made anew when this one's numbers or parts have changed since,
        as far as PyTorch counts that: not what is written through `.data` or NumPy, nor within `torch.inference_mode`
        into numbers that were made there. Such a copy answers with the old numbers where it has laid them out, and with
        the new ones where it reads this one's own: so does one that is still writing while this one learns.
        One with an observer stays as it is, since he knows the plain blocks, and so does one with parts of others or
        with hooks; one that is laid out already too.
        """
        self.check_dtype(dtype)
        if self.is_packed:
            return self
        first = next(self.parameters())
        dtype, own_dtype = dtype or first.dtype, first.dtype
        if self.observer is not None:
            return self._plain_copy(dtype, own_dtype)
        copies: dict[torch.dtype, tuple[Snapshot, Self]] = self.__dict__.setdefault("_packed_copies", {})
        cached = copies.get(dtype)  # once: another thread may make this one another kind of number meanwhile
        if cached is None or not cached[0].matches(self):
            if foreign_module(self):
                return self._plain_copy(dtype, own_dtype)
            self._drop_stale_copies()
            layout = packing.float_packing(dtype, first.device, is_autoregressive=self.is_autoregressive)
            snapshot, copy = Snapshot(self), _without_packed_copies(packed_copy(self, layout))
            copy.is_packed = True
            cached = copies[dtype] = (snapshot, copy)
        return cached[1]

    def logits(self, **batch: Tensor) -> Tensor:
        """What the head says alone. batch: as `forward` takes it."""
        return self(**batch)["logits"]

    def logits_at(self, index: Any, batch: Mapping[str, Any], max_positions: int | None = None) -> Iterator[Tensor]:
        """The logits of some positions, `max_positions` of them at a time, in their order; None for all at once.

        index: which, Bool[Tensor, "batch seq"], or a pair of indices.  batch: as `forward` takes it.
        Who hears this pass is told of every position; else the head reads no others.
        ->  Float[Tensor, "positions vocab"] each time
        """
        assert self.head is not None  # the caller saw to it
        observed = self.is_observed
        values = (self(**batch)["logits"] if observed else self.before_head(**batch))[index]
        for part in (values,) if max_positions is None else values.split(max_positions):
            yield part if observed else self.head(part)

    def _head_logits(
        self, stream: Tensor, input_ids: Tensor, mask: Tensor | None, pooled: Tensor | None = None
    ) -> Tensor:
        """What the head says of a whole pass."""
        assert self.head is not None  # the caller saw to it
        if isinstance(self.head, TextLabels):
            return self.head(stream, pooled, input_ids, mask)
        return self.head(stream)

    def training_copy(self, context: TrainingContext) -> Self:
        """The same model for learning at speed: it shares every parameter, and drops out by the masks of its context.

        Raises InputError for one of 8 or 4 bits, for one that somebody looks on at, and for one with parts of others.
        """
        self.check_trainable()
        copy = _without_packed_copies(training_copy(self, context))
        copy.is_training_copy = True
        return copy

    def check_trainable(self) -> None:
        """Raises InputError as `training_copy` does: asked of the model that was given, since a training that takes
        over its numbers alone would lose the rest without a word."""
        self.require_float("training")
        if self.observer is not None:
            raise InputError("an edited model cannot be trained: train the model that it was made from")
        if name := foreign_module(self):
            raise InputError(f"{name} has a hook or is of another library, which training would ignore: remove it")
        for name, one in self.named_parameters():
            if one._backward_hooks or one._post_accumulate_grad_hooks:
                raise InputError(f"{name} has a hook on its gradient, which training would ignore: remove it")

    def observed_by(self, observer: NetworkObserver) -> Self:
        return _without_packed_copies(super().observed_by(observer))

    def _drop_stale_copies(self) -> None:
        """Lets go of copies of what this model was: they hold their own tables, and numbers that it has no more."""
        copies = self.__dict__.get("_packed_copies", {})
        for dtype, (snapshot, _) in list(copies.items()):
            if not snapshot.matches(self):
                copies.pop(dtype, None)

    def _plain_copy(self, dtype: torch.dtype, own_dtype: torch.dtype) -> Self:
        if dtype != own_dtype:
            description = (
                "an edited model" if self.observer is not None else "a model with hooks or with parts of others"
            )
            raise InputError(f"{description} computes in its own dtype, {own_dtype}: leave ", Argument("dtype"), " out")
        return evaluation_copy(self.require_no_row_edits())

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What PyTorch moves a module by: `half()`, `to(...)`; a few numbers beside the tables would follow alone."""
        plain = torch.empty(0, dtype=torch.float32, device="cpu")
        if self.bits and ((moved := fn(plain)).dtype != plain.dtype or moved.device != plain.device):
            self.require_float("moving")
        super()._apply(fn, recurse)
        self._drop_stale_copies()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_packed_copies"}


def _without_packed_copies(copy: Any) -> Any:
    """A copy without the packed ones that its original keeps."""
    copy.__dict__.pop("_packed_copies", None)
    return copy
