"""One Transformer layer: attention, then feed-forward, each with a residual connection; post-norm or pre-norm."""

from torch import Tensor, nn

from pellucid.blocks.attention import Attention
from pellucid.blocks.forward_pass import Pass
from pellucid.errors import InputError


class _Layer(nn.Module):
    def __init__(
        self,
        attention: Attention,
        feed_forward: nn.Module,
        attention_norm: nn.Module,
        feed_forward_norm: nn.Module,
        *,
        cross_attention: Attention | None = None,
        cross_attention_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if (cross_attention is None) != (cross_attention_norm is None):
            raise InputError("cross_attention and cross_attention_norm belong together: give both, or neither")
        self.attention = attention
        self.attention_norm = attention_norm
        self.cross_attention = cross_attention
        self.cross_attention_norm = cross_attention_norm
        self.feed_forward = feed_forward
        self.feed_forward_norm = feed_forward_norm

    def _add(self, x: Tensor, output: Tensor, block: nn.Module) -> Tensor:
        """The residual sum of x and the output of `block`, whose dropout a training copy applies here, in one step."""
        return x + output

    def _self_attention(self, x: Tensor, run: Pass) -> Tensor:
        return self.attention(x, run.inside("attention"), bias=run.bias)

    def _cross_attention(self, attention: Attention, x: Tensor, run: Pass) -> Tensor:
        if run.memory is None:
            raise InputError(
                "this layer has cross_attention, and the pass has no memory: give the encoder's last states"
            )
        return attention(x, run.for_cross_attention(), memory=run.memory)


class PostNormLayer(_Layer):
    """Norms after the residual sums (Vaswani et al., 2017): deep stacks need warm-up to train.

    x --+--> attention --(+)--> attention_norm --+--> feed_forward --(+)--> feed_forward_norm -->
        '-----------------'                      '--------------------'

    In the decoder of an encoder-decoder, cross_attention and its norm come between the two.
    """

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        run = run or Pass()
        x = run.observe("residual.pre", x)
        mid = self._add(run.output_positions(x), self._self_attention(x, run), self.attention)
        normed = self.attention_norm(run.observe("residual.mid", mid))
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            across = self._cross_attention(self.cross_attention, normed, run)
            across = self._add(normed, across, self.cross_attention)
            normed = self.cross_attention_norm(run.observe("residual.cross", across))
        out = self._add(normed, self.feed_forward(normed, run.inside("feed_forward")), self.feed_forward)
        return run.observe("residual.post", self.feed_forward_norm(out))


class PreNormLayer(_Layer):
    """Norms inside the residual branches (Xiong et al., 2020, arXiv:2002.04745): more stable to train.

    x --+--> attention_norm --> attention --(+)--+--> feed_forward_norm --> feed_forward --(+)-->
        '------------------------------------'   '------------------------------------------'

    In the decoder of an encoder-decoder, a third branch with cross_attention comes between the two.
    """

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        run = run or Pass()
        x = run.observe("residual.pre", x)
        mid = self._add(run.output_positions(x), self._self_attention(self.attention_norm(x), run), self.attention)
        mid = run.observe("residual.mid", mid)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            across = self._cross_attention(self.cross_attention, self.cross_attention_norm(mid), run)
            mid = run.observe("residual.cross", self._add(mid, across, self.cross_attention))
        output = self.feed_forward(self.feed_forward_norm(mid), run.inside("feed_forward"))
        return run.observe("residual.post", self._add(mid, output, self.feed_forward))
