"""Networks that make packed copies, for fast inference, and training copies; a packed copy follows changed weights."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from pellucid.blocks import packing
from pellucid.blocks.copies import evaluation_copy, packed_copy
from pellucid.blocks.hooks import is_hooked
from pellucid.blocks.training_copy import TrainingContext, training_copy
from pellucid.errors import Argument, InputError
from pellucid.machine import dtype_name
from pellucid.models.heads import TextLabels
from pellucid.models.observable import NetworkObserver, Observable
from pellucid.models.snapshot import Snapshot, foreign_module


class PackableNetwork(Observable):
    """A network that caches packed copies of itself.

    head: computes logits from hidden states; None where there is none.
    is_packed: whether it is itself a packed copy.  is_training_copy: whether it is a training copy.
    bits: bits per weight, 8 or 4, of a quantized network, which is a packed copy without an original; else None.
    is_autoregressive: whether it can read one token after another, as generation requires.
    before_head: returns the hidden states that the head reads, Float[Tensor, "batch seq hidden"], without any logits.
    """

    head: nn.Module | None
    bits: int | None = None
    is_packed: bool = False
    is_training_copy: bool = False
    is_autoregressive: ClassVar[bool] = False
    before_head: Callable[..., Tensor]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its parameters; of a quantized network, that of the parameters that are not quantized."""
        return next(self.parameters()).dtype

    @property
    def kind(self) -> str:
        """Dtype or bit width of its weights: "float32", "int4", ..."""
        return f"int{self.bits}" if self.bits else dtype_name(self.dtype)

    @property
    def is_fast(self) -> bool:
        """Whether it is a packed copy that nothing observes."""
        return self.is_packed and not self.is_observed

    @property
    def is_observed(self) -> bool:
        """Whether its own pass is observed: by an observer, or by a hook on the network itself."""
        return self.observer is not None or is_hooked(self)

    def require_float(self, purpose: str | Argument) -> Self:
        """Returns itself, for work that needs float weights. Raises InputError for 8-bit or 4-bit weights."""
        if self.bits:
            raise InputError(
                purpose, f" needs float weights, and this model has {self.bits}-bit ones: load it as float32"
            )
        return self

    def check_dtype(self, dtype: torch.dtype | None) -> None:
        """Raises InputError for a dtype requested of a quantized network, which computes in its own."""
        if self.bits and dtype is not None:
            own_kind = f"a model of {self.bits} bits computes in its own dtype: leave "
            raise InputError(own_kind, Argument("dtype"), " out")

    def packed_copy(self, dtype: torch.dtype | None = None) -> Self:
        """Returns a copy for fast inference: in evaluation mode, its weights packed for the processor.

        Equal to this network up to rounding. It is cached, and made anew when weights or submodules have changed since,
        as far as PyTorch counts changes: not writes through `.data` or NumPy, nor writes within `torch.inference_mode`
        to tensors created there. A copy already in use mixes old packed weights with new shared ones; that includes one
        that is generating while this network trains. A network that has an observer, hooks or modules of other
        libraries needs the plain blocks and gives a plain copy in evaluation mode; a packed copy returns itself.
        Raises InputError for a dtype other than its own of a plain or quantized copy, and for edits of single rows.
        """
        self.check_dtype(dtype)
        if self.is_packed:
            return self
        first = next(self.parameters())
        dtype, own_dtype = dtype or first.dtype, first.dtype
        if self.observer is not None:
            return self._plain_copy(dtype, own_dtype)
        copies: dict[torch.dtype, tuple[Snapshot, Self]] = self.__dict__.setdefault("_packed_copies", {})
        cached = copies.get(dtype)  # read once: another thread may meanwhile change the dtype of this network
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
        """Returns the head's logits alone. batch: as `forward` takes it."""
        return self(**batch)["logits"]

    def logits_at(self, index: Any, batch: Mapping[str, Any], max_positions: int | None = None) -> Iterator[Tensor]:
        """Yields the logits of selected positions, in order, `max_positions` at a time; None for all at once.

        If the network is observed, the head is computed for every position; else only for those selected.
        index: the positions, as Bool[Tensor, "batch seq"] or a pair of index tensors.  batch: as `forward` takes it.
        ->  Float[Tensor, "positions vocab"] each time
        """
        assert self.head is not None  # checked by the caller
        observed = self.is_observed
        values = (self(**batch)["logits"] if observed else self.before_head(**batch))[index]
        for part in (values,) if max_positions is None else values.split(max_positions):
            yield part if observed else self.head(part)

    def _head_logits(
        self, stream: Tensor, input_ids: Tensor, mask: Tensor | None, pooled: Tensor | None = None
    ) -> Tensor:
        """Returns the head's logits for a whole pass."""
        assert self.head is not None  # checked by the caller
        if isinstance(self.head, TextLabels):
            return self.head(stream, pooled, input_ids, mask)
        return self.head(stream)

    def training_copy(self, context: TrainingContext) -> Self:
        """Returns a copy for fast training: it shares every parameter and takes its dropout masks from `context`.

        Raises InputError for quantized weights, an observer, hooks, or modules of other libraries.
        """
        self.check_trainable()
        copy = _without_packed_copies(training_copy(self, context))
        copy.is_training_copy = True
        return copy

    def check_trainable(self) -> None:
        """Raises InputError as `training_copy` does. To be called on the network as given, since training that takes
        over its weights alone would silently lose the rest."""
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
        """Drops outdated packed copies, which hold weight matrices of their own and values that have changed since."""
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
        """Called by `half()`, `to(...)`, ...; refuses to convert a quantized network, whose codes would not follow."""
        plain = torch.empty(0, dtype=torch.float32, device="cpu")
        if self.bits and ((moved := fn(plain)).dtype != plain.dtype or moved.device != plain.device):
            self.require_float("moving")
        super()._apply(fn, recurse)
        self._drop_stale_copies()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_packed_copies"}


def _without_packed_copies(copy: Any) -> Any:
    """Drops the packed copies that `copy` took over from its original."""
    copy.__dict__.pop("_packed_copies", None)
    return copy
