"""The twin of a module that learns: it shares every parameter, drops out by a `Chance`, and goes back by written steps.

The plain module stays what it is, and evaluates; its parameters get the gradients. Results agree with the plain blocks
up to rounding. Nobody can look on at a twin.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks import backward
from pellucid.blocks.activation import gelu_new
from pellucid.blocks.attention import Attention
from pellucid.blocks.dropout import Chance
from pellucid.blocks.feed_forward import FeedForward
from pellucid.blocks.joined import offset
from pellucid.blocks.layer import PostNormLayer, PreNormLayer
from pellucid.blocks.mask import additive, combine
from pellucid.blocks.norm import RMSNorm
from pellucid.blocks.run import Pass
from pellucid.blocks.twin import copied

LONGEST = 256
"""Positions up to which attention is a chain of plain products; PyTorch's one kernel takes less memory beyond."""
FEW = 16
"""A product of so few columns, such as that of labels, costs nothing and is computed in the numbers of its table."""


class Lesson:
    """What all parts of one twin share.

    dtype: of products; parameters stay as they are.  chance: what is dropped.
    again: whether layers are computed a second time on the way back instead of being remembered.
    """

    def __init__(
        self, dtype: torch.dtype, *, seed: int = 0, device: torch.device | str = "cpu", again: bool = False
    ) -> None:
        self.dtype, self.device, self.again = dtype, torch.device(device), again
        self.chance = Chance(seed, dtype, device)
        self.narrow: backward.Kept = {}
        self._summand: tuple[Any, ...] = (None,)

    def begin(self, step: int, piece: int) -> None:
        """From here on, chance is that of a piece of a step."""
        self.chance.begin(step, piece)
        self._summand = (None,)

    def product(self, x: Tensor, *linears: Any, dtype: torch.dtype | None = None) -> Tensor:
        """These linear maps of one input, their results side by side: Float[Tensor, "... in"]  ->  "... all out" """
        weights = [linear.weight for linear in linears]
        some = any(linear.bias is not None for linear in linears)
        biases = [offset(linear) for linear in linears] if some else ()
        return backward.Product.apply(x, dtype or self.dtype, self.narrow, len(weights), *weights, *biases)

    def added(self, x: Tensor, part: Tensor, share: float) -> Tensor:
        """x + part, some of which is dropped."""
        if share == 0.0:
            return x + part
        return backward.Added.apply(x, part, self.kept(part, share))

    def kept(self, x: Tensor, share: float) -> Tensor:
        """A mask for x."""
        return self.chance.mask(x.shape, share).to(x.dtype)

    def summand(self, run: Pass, seq: int, source: int, like: Tensor) -> Tensor | None:
        """Who may look at whom, as a summand for scores; made once for all layers."""
        if run.mask is None and not run.causal:
            return None
        state = (run.causal, seq, source, like.dtype)
        if self._summand[0] != state or self._summand[1] is not run.mask:
            mask = combine(run.mask, run.causal, seq, source, like.device)
            self._summand = (state, run.mask, additive(mask, None, like.dtype))
        return self._summand[2]

    def through(self, layer: Callable[..., Tensor], x: Tensor, run: Pass) -> Tensor:
        """A layer's result; where layers are computed again, all that is dropped in between is dropped again."""
        if not (self.again and torch.is_grad_enabled()):
            return layer(x, run)
        from torch.utils.checkpoint import checkpoint

        asked = self.chance.asked

        def once(x: Tensor) -> Tensor:
            self.chance.asked = asked
            return layer(x, run)

        return checkpoint(once, x, use_reentrant=False, preserve_rng_state=False)


def learning(module: nn.Module, lesson: Lesson) -> Any:
    """A copy of `module` that learns its parameters; what holds parameters and nothing else is shared."""

    def copy(kind: type[nn.Module]) -> Any:
        twin = copied(module, kind, lambda name, part: learning(part, lesson))
        twin.lesson = lesson
        return twin

    match module:
        case PostNormLayer():
            return copy(LearningPostNormLayer)
        case PreNormLayer():
            return copy(LearningPreNormLayer)
        case Attention():
            return _attention(copy(LearningAttention))
        case FeedForward():
            return _feed_forward(copy(type(module)))
        case nn.Linear():
            return LearningLinear(module, lesson)
        case nn.Dropout():
            return LearningDropout(module.p, lesson)
        case RMSNorm() if type(module) is RMSNorm:  # not one whose numbers are computed from others
            return copy(LearningRMSNorm)
        case nn.LayerNorm() if type(module) is nn.LayerNorm:
            return copy(LearningLayerNorm)
        case _ if not module._modules:
            return module
    return copy(type(module))


def _attention(twin: Any) -> Any:
    """What is dropped of its output is dropped by the layer."""
    twin.share, twin.output_share = twin.dropout.p, twin.output_dropout.p
    twin.explicit = twin.explicit or twin.share > 0.0
    twin.output_dropout = nn.Identity()
    return twin


def _feed_forward(twin: Any) -> Any:
    """What is dropped is dropped by the layer; GELU written out as a formula has a kernel of its own."""
    twin.share, twin.dropout = twin.dropout.p, nn.Identity()
    if twin.activation is gelu_new:
        twin.activation = partial(F.gelu, approximate="tanh")
    return twin


class LearningLinear(nn.Module):
    """A linear map, its three products by the quickest library. The plain map is asked for its numbers at each pass,
    since they may be computed from others."""

    plain: Any
    lesson: Any

    def __init__(self, plain: nn.Linear, lesson: Lesson) -> None:
        super().__init__()
        self.__dict__ |= {"plain": plain, "lesson": lesson}  # no part of the twin: its parameters have names already

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
        few = self.plain.out_features < FEW
        return self.lesson.product(x, self, dtype=self.plain.weight.dtype if few else None)


class LearningDropout(nn.Module):
    """Sets a share `p` of numbers to zero and the others up; always, since only a learner asks."""

    def __init__(self, p: float, lesson: Lesson) -> None:
        super().__init__()
        self.p, self.lesson = p, lesson

    def forward(self, x: Tensor) -> Tensor:
        """Any shape  ->  the same"""
        return x if self.p == 0.0 else backward.Dropped.apply(x, self.lesson.kept(x, self.p))  # pyrefly: ignore


class LearningRMSNorm(RMSNorm):
    """The same in fewer steps."""

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  the same shape"""
        return backward.RootMeanSquare.apply(x, self.weight, self.eps)


class LearningLayerNorm(nn.LayerNorm):
    """The same in the numbers of its own weight: of a product in half precision, GPUs take no norm by a wide one."""

    def forward(self, input: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  the same shape"""
        return super().forward(input.to(self.weight.dtype))


class LearningAttention(Attention):
    """One product for query, key and value, or two where the first position alone asks; and between the maps plain
    products and softmax, as one step with its way back."""

    lesson: Lesson
    share: float

    def forward(
        self, x: Tensor, run: Pass | None = None, *, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape, or "batch 1 hidden" for `run.first`"""
        run, lesson = run or Pass(), self.lesson
        source = (x if memory is None else memory).shape[1]
        if self.share == 0.0 and (x.device.type != "cpu" or x.shape[1] * source > LONGEST**2):
            return super().forward(x, run, memory=memory, bias=bias)
        if memory is None and (not run.first or run.rotation is not None):
            own, other = self._product(x), None
        else:
            own = lesson.product(run.going_on(x), self.query)
            other = lesson.product(x if memory is None else memory, self.key, self.value)
            bias = bias if bias is None else run.going_on(bias, 2)
        kept, seq = None, own.shape[1]
        if self.share:
            kept = lesson.chance.mask((len(x), self.num_heads, seq, source), self.share).to(own.dtype)
        summand, turn = lesson.summand(run, seq, source, own), None if memory is not None else run.rotation
        form = backward.Heads(self.num_heads, self.num_key_value_heads, self.head_dim, self.value_head_dim, self.scale)
        mixed = backward.Mix.apply(own, other, bias, summand, turn, kept, form)
        return self.output(run.going_on(mixed))

    def _product(self, x: Tensor) -> Tensor:
        return self.lesson.product(x, self.query, self.key, self.value)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, run: Pass) -> Tensor:
        """What was turned is of the kind of the value again."""
        return super()._mix(query.to(value.dtype), key.to(value.dtype), value, bias, run)


class LearningLayer(nn.Module):
    """What both kinds of layers have: what is dropped and the sum are one step, and the stream stays float32 where
    products are narrower."""

    lesson: Lesson
    attention: Any
    cross_attention: Any
    feed_forward: Any

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        return self.lesson.through(self._step, x, run or Pass())

    @abstractmethod
    def _step(self, x: Tensor, run: Pass) -> Tensor:
        """The layer itself, once or, for `Lesson.again`, twice."""


class LearningPostNormLayer(LearningLayer, PostNormLayer):
    """Norms after the sums."""

    def _step(self, x: Tensor, run: Pass) -> Tensor:
        added, own, across = self.lesson.added, self.attention, self.cross_attention
        x = self.attention_norm(added(run.going_on(x), own(x, run, bias=run.bias), own.output_share))
        if across is not None and self.cross_attention_norm is not None:
            found = across(x, run.looking_across(), memory=run.memory)
            x = self.cross_attention_norm(added(x, found, across.output_share))
        return self.feed_forward_norm(added(x, self.feed_forward(x), self.feed_forward.share))


class LearningPreNormLayer(LearningLayer, PreNormLayer):
    """Norms inside the branches."""

    def _step(self, x: Tensor, run: Pass) -> Tensor:
        added, own, across = self.lesson.added, self.attention, self.cross_attention
        x = added(run.going_on(x), own(self.attention_norm(x), run, bias=run.bias), own.output_share)
        if across is not None and self.cross_attention_norm is not None:
            found = across(self.cross_attention_norm(x), run.looking_across(), memory=run.memory)
            x = added(x, found, across.output_share)
        return added(x, self.feed_forward(self.feed_forward_norm(x)), self.feed_forward.share)
