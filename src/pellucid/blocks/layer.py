"""One layer: attention, then feed-forward, each added to the stream. Only the place of the norms differs."""

from torch import Tensor, nn

from pellucid.blocks.attention import Attention
from pellucid.blocks.feed_forward import FeedForward
from pellucid.blocks.run import Pass


class _Layer(nn.Module):
    def __init__(
        self, attention: Attention, feed_forward: FeedForward, attention_norm: nn.Module, feed_forward_norm: nn.Module
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = attention_norm
        self.feed_forward = feed_forward
        self.feed_forward_norm = feed_forward_norm


class PostNormLayer(_Layer):
    """Norms stand after the sums, on the stream itself (Vaswani et al., 2017): deep stacks need warm-up to train.

    x --+--> attention --(+)--> attention_norm --+--> feed_forward --(+)--> feed_forward_norm -->
        '-----------------'                      '--------------------'
    """

    def forward(self, x: Tensor, run: Pass) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        x = run.see("residual.pre", x)
        mid = run.see("residual.mid", x + self.attention(x, run.inside("attention")))
        normed = self.attention_norm(mid)
        out = self.feed_forward_norm(normed + self.feed_forward(normed, run.inside("feed_forward")))
        return run.see("residual.post", out)


class PreNormLayer(_Layer):
    """Norms stand inside the branches and leave the stream alone (Xiong et al., 2020, arXiv:2002.04745): trains calmly.

    x --+--> attention_norm --> attention --(+)--+--> feed_forward_norm --> feed_forward --(+)-->
        '------------------------------------'   '------------------------------------------'
    """

    def forward(self, x: Tensor, run: Pass) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        x = run.see("residual.pre", x)
        mid = run.see("residual.mid", x + self.attention(self.attention_norm(x), run.inside("attention")))
        out = mid + self.feed_forward(self.feed_forward_norm(mid), run.inside("feed_forward"))
        return run.see("residual.post", out)
