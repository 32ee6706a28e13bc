"""Copies of a module for fast training: they share its parameters, draw dropout from `DropoutMasks`, and have an
explicit backward pass.

The plain module is unchanged and evaluates; its parameters receive the gradients. Results agree with the plain blocks
up to rounding. A training copy cannot be observed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks import backward
from pellucid.blocks.activation import gelu_new
from pellucid.blocks.attention import Attention
from pellucid.blocks.copies import copy_with_parts
from pellucid.blocks.dropout import DropoutMasks
from pellucid.blocks.feed_forward import FeedForward
from pellucid.blocks.forward_pass import Pass
from pellucid.blocks.joint_weights import biases_of
from pellucid.blocks.layer import PostNormLayer, PreNormLayer
from pellucid.blocks.mask import additive_mask, combined_mask
from pellucid.blocks.norm import RMSNorm

MAX_PLAIN_LENGTH = 256
"""Lengths up to which attention is a sequence of plain products; beyond, PyTorch's kernel takes less memory."""
MIN_CONVERTED_COLUMNS = 16
"""A product of fewer columns, such as that of labels, is cheap and computed in the dtype of its weights."""


class TrainingContext:
    """State shared by all parts of one training copy.

    dtype: of matrix products; parameters keep theirs.  dropout_masks: the source of dropout masks.
    activation_checkpointing: whether layers are recomputed in the backward pass instead of keeping their activations.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        activation_checkpointing: bool = False,
    ) -> None:
        self.dtype, self.activation_checkpointing = dtype, activation_checkpointing
        self.dropout_masks = DropoutMasks(seed, dtype, device)
        self.low_precision_tables: backward.LowPrecisionTables = {}
        self._additive_mask: tuple[Any, ...] = (None,)

    def begin(self, step: int, piece: int) -> None:
        """Restarts the random sequence for a piece of a step."""
        self.dropout_masks.begin(step, piece)
        self._additive_mask = (None,)

    def joint_linear(self, x: Tensor, *linears: Any, dtype: torch.dtype | None = None) -> Tensor:
        """Concatenated outputs of linear layers of one input: Float[Tensor, "... in"]  ->  Float[Tensor, "... out"]"""
        weights = [linear.weight for linear in linears]
        return backward.JointLinear.apply(
            x, dtype or self.dtype, self.low_precision_tables, len(weights), *weights, *biases_of(linears)
        )

    def add_with_dropout(self, x: Tensor, part: Tensor, probability: float) -> Tensor:
        """x + part, with dropout on `part`."""
        if probability == 0.0:
            return x + part
        return backward.DropoutAdd.apply(x, part, self.dropout_mask(part, probability))

    def dropout_mask(self, x: Tensor, probability: float) -> Tensor:
        """Returns a dropout mask for x."""
        return self.dropout_masks.mask(x.shape, probability).to(x.dtype)

    def additive_mask(self, run: Pass, seq: int, source: int, like: Tensor) -> Tensor | None:
        """The mask as a summand for scores; computed once for all layers."""
        if run.mask is None and not run.causal:
            return None
        state = (run.causal, seq, source, like.dtype)
        if self._additive_mask[0] != state or self._additive_mask[1] is not run.mask:
            mask = combined_mask(run.mask, run.causal, seq, source, like.device)
            self._additive_mask = (state, run.mask, additive_mask(mask, None, like.dtype))
        return self._additive_mask[2]

    def run_layer(self, layer: Callable[..., Tensor], x: Tensor, run: Pass) -> Tensor:
        """Runs a layer; with activation checkpointing, recomputing it uses the same dropout masks."""
        if not (self.activation_checkpointing and torch.is_grad_enabled()):
            return layer(x, run)
        from torch.utils.checkpoint import checkpoint

        masks_taken = self.dropout_masks.masks_taken

        def once(x: Tensor) -> Tensor:
            self.dropout_masks.masks_taken = masks_taken
            return layer(x, run)

        return checkpoint(once, x, use_reentrant=False, preserve_rng_state=False)


def training_copy(module: nn.Module, context: TrainingContext) -> Any:
    """Returns a copy of `module` that trains its parameters; a module without submodules is shared, unless it has a
    training version."""

    def copy(kind: type[nn.Module]) -> Any:
        copied = copy_with_parts(module, kind, lambda name, part: training_copy(part, context))
        copied.context = context
        return copied

    match module:
        case PostNormLayer():
            return copy(TrainingPostNormLayer)
        case PreNormLayer():
            return copy(TrainingPreNormLayer)
        case Attention():
            copied = copy(TrainingAttention)  # whose layer applies the dropout of its output
            copied.output_dropout_p, copied.output_dropout = module.output_dropout.p, nn.Identity()
            return copied
        case FeedForward():
            copied = copy(type(module))  # likewise
            copied.output_dropout_p, copied.dropout = module.dropout.p, nn.Identity()
            if module.activation is gelu_new:  # PyTorch's kernel takes fewer steps than the explicit formula
                copied.activation = partial(F.gelu, approximate="tanh")
            return copied
        case nn.Linear():
            return TrainingLinear(module, context)
        case nn.Dropout():
            return TrainingDropout(module.p, context)
        case RMSNorm() if type(module) is RMSNorm:  # but not a subclass that may compute its weight
            return copy(TrainingRMSNorm)
        case nn.LayerNorm() if type(module) is nn.LayerNorm:
            return copy(TrainingLayerNorm)
        case _ if not module._modules:
            return module
    return copy(type(module))


class TrainingLinear(nn.Module):
    """A linear layer whose forward product and two gradients use the fastest library. Weight and bias are read from the
    plain layer in each pass, since they may be parametrized."""

    plain: Any
    context: Any

    def __init__(self, plain: nn.Linear, context: TrainingContext) -> None:
        super().__init__()
        self.__dict__ |= {"plain": plain, "context": context}  # not a submodule: its parameters have names already

    @property
    def weight(self) -> Tensor:
        """Float[Tensor, "out in"]"""
        return self.plain.weight

    @property
    def bias(self) -> Tensor | None:
        """Float[Tensor, "out"]"""
        return self.plain.bias

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... in"]  ->  Float[Tensor, "... out"]"""
        few = self.plain.out_features < MIN_CONVERTED_COLUMNS
        return self.context.joint_linear(x, self, dtype=self.plain.weight.dtype if few else None)


class TrainingDropout(nn.Module):
    """Dropout with probability `p`; always active, since only training uses it."""

    def __init__(self, p: float, context: TrainingContext) -> None:
        super().__init__()
        self.p, self.context = p, context

    def forward(self, x: Tensor) -> Tensor:
        """Any shape  ->  the same"""
        return x if self.p == 0.0 else x * self.context.dropout_mask(x, self.p)


class TrainingRMSNorm(RMSNorm):
    """RMSNorm with an explicit backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  the same shape"""
        return backward.RMSNormalise.apply(x, self.weight, self.eps)


class TrainingLayerNorm(nn.LayerNorm):
    """LayerNorm in the dtype of its weight: on GPUs, half-precision input with a float32 weight is unsupported."""

    def forward(self, input: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  the same shape"""
        return super().forward(input.to(self.weight.dtype))


class TrainingAttention(Attention):
    """Attention with one product for queries, keys and values, or two if only the first position has a query; between
    the linear layers, plain products and softmax are one step with an explicit backward pass."""

    context: TrainingContext

    def forward(
        self, x: Tensor, run: Pass | None = None, *, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape, or "batch 1 hidden" for `run.first`"""
        run, context = run or Pass(), self.context
        source = (x if memory is None else memory).shape[1]
        if self.dropout.p == 0.0 and (x.device.type != "cpu" or x.shape[1] * source > MAX_PLAIN_LENGTH**2):
            return super().forward(x, run, memory=memory, bias=bias)
        if memory is None and (not run.first or run.rotation is not None):
            own, other = self._project_inputs(x), None
        else:
            own = context.joint_linear(run.output_positions(x), self.query)
            other = context.joint_linear(x if memory is None else memory, self.key, self.value)
            bias = bias if bias is None else run.output_positions(bias, 2)
        dropout_mask, seq = None, own.shape[1]
        if self.dropout.p:
            shape = len(x), self.num_heads, seq, source
            dropout_mask = context.dropout_masks.mask(shape, self.dropout.p).to(own.dtype)
        mask, rotation = context.additive_mask(run, seq, source, own), None if memory is not None else run.rotation
        form = backward.HeadLayout(
            self.num_heads, self.num_key_value_heads, self.head_dim, self.value_head_dim, self.scale
        )
        mixed = backward.AttentionProduct.apply(own, other, bias, mask, rotation, dropout_mask, form)
        return self.output(run.output_positions(mixed))

    def _project_inputs(self, x: Tensor) -> Tensor:
        return self.context.joint_linear(x, self.query, self.key, self.value)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, run: Pass) -> Tensor:
        """Converts rotated queries and keys back to the dtype of the values."""
        return super()._attend(query.to(value.dtype), key.to(value.dtype), value, bias, run)


class TrainingLayer(nn.Module):
    """Common to both kinds of layers: dropout and residual sum are one step, and hidden states stay float32 where
    products are narrower."""

    context: TrainingContext

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        return self.context.run_layer(super().forward, x, run or Pass())

    def _add(self, x: Tensor, output: Tensor, block: Any) -> Tensor:
        return self.context.add_with_dropout(x, output, block.output_dropout_p)


class TrainingPostNormLayer(TrainingLayer, PostNormLayer):
    """Post-norm: norms after the sums."""


class TrainingPreNormLayer(TrainingLayer, PreNormLayer):
    """Pre-norm: norms inside the branches."""
