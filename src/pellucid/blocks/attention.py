"""Attention: every position asks, every position answers, and the answers are mixed by how well they fit.

    x --> query --.
                   +--> scores = query . key x scale (+ bias) --> weights = softmax --.
    x --> key  ---'                                                                    +--> heads --> output
    x --> value ----------------------------------------------------------------------'

(Vaswani et al., 2017, arXiv:1706.03762, section 3.2.) In cross-attention key and value come from `memory` instead of x.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks.joined import adjoin, joined
from pellucid.blocks.mask import additive, combine
from pellucid.blocks.run import Pass


class Attention(nn.Module):
    """Multi-head attention with two equal paths: `fused`, PyTorch's one kernel, and `explicit`, step by step.

    hidden_size: width of the stream; what comes out has it too.
    num_heads: heads side by side, each with its own query, key and value.
    head_dim: width of one head's query and key; by default `hidden_size / num_heads`.
    value_head_dim: width of one head's value; by default `head_dim`.
    memory_size: width of what key and value are made from in cross-attention; by default `hidden_size`.
    scale: what scores are multiplied with; by default 1 / sqrt(head_dim).
    project: False leaves the heads side by side, without the last linear map.
    explicit: compute scores and weights one after the other instead of in one kernel.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        memory_size: int | None = None,
        scale: float | None = None,
        bias: bool = True,
        project: bool = True,
        dropout: float = 0.0,
        output_dropout: float = 0.0,
        explicit: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim or hidden_size // num_heads
        self.value_head_dim = value_head_dim or self.head_dim
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.explicit = explicit
        width, value_width = num_heads * self.head_dim, num_heads * self.value_head_dim
        self.query = nn.Linear(hidden_size, width, bias=bias)
        self.key = nn.Linear(memory_size or hidden_size, width, bias=bias)
        self.value = nn.Linear(memory_size or hidden_size, value_width, bias=bias)
        self.output = nn.Linear(value_width, hidden_size, bias=bias) if project else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.output_dropout = nn.Dropout(output_dropout)
        self._adjoin()

    def forward(
        self, x: Tensor, run: Pass | None = None, *, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Mixes what every position has to say.

        x: Float[Tensor, "batch seq hidden"], who asks.
        memory: Float[Tensor, "batch source memory"], who answers; None for x itself.
        bias: Float[Tensor, "batch|1 heads|1 seq source"], added to the scaled scores.
        ->  Float[Tensor, "batch seq hidden"]
        """
        run = run or Pass()
        query, key, value = self._project(x, memory)  # each [batch, heads, seq or source, head_dim]
        query, key, value = run.see("query", query), run.see("key", key), run.see("value", value)
        mask = combine(run.mask, run.causal, query.shape[2], key.shape[2], x.device)
        heads = run.see("heads", self._mix(query, key, value, mask, bias, run))
        return run.see("output", self.output_dropout(self._merge(heads, run)))

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _project(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if memory is None:
            width = self.num_heads * self.head_dim
            parts = self._product(x).split([width, width, self.num_heads * self.value_head_dim], dim=-1)
        else:
            parts = (self.query(x), self.key(memory), self.value(memory))
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        return query, key, value

    def _product(self, x: Tensor) -> Tensor:
        """Query, key and value side by side, in one matrix product."""
        return F.linear(x, *joined(self.query, self.key, self.value))

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, run: Pass
    ) -> Tensor:
        """Values mixed by weight, head by head: [batch, heads, seq, value_head_dim].

        What an onlooker wants to know of the fused path is computed beside it, so that looking changes no bit; where
        he answers with other numbers, this layer goes the explicit way with them.
        """
        fused = None if self.explicit else self._fused(query, key, value, mask, bias)
        if fused is not None and not run.wants("scores", "weights"):
            return fused
        scores = self._scores(query, key, mask, bias)
        seen_scores = run.see("scores", scores)
        weights = seen_scores.softmax(dim=-1)
        seen_weights = run.see("weights", weights)
        if fused is not None and seen_scores is scores and seen_weights is weights:
            return fused
        return self.dropout(seen_weights) @ value

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        drop = self.dropout.p if self.training else 0.0
        form = mask if bias is None else additive(mask, bias, query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=form, dropout_p=drop, scale=self.scale)

    def _scores(self, query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        scores = query @ key.transpose(-2, -1) * self.scale  # [batch, heads, seq, source]
        summand = additive(mask, bias, scores.dtype)
        return scores if summand is None else scores + summand

    def _merge(self, heads: Tensor, run: Pass) -> Tensor:
        if run.wants("head_outputs"):
            outputs = self._head_outputs(heads)
            seen = run.see("head_outputs", outputs)
            if seen is not outputs:
                bias = self.output.bias if isinstance(self.output, nn.Linear) else None
                return seen.sum(dim=1) if bias is None else seen.sum(dim=1) + bias
        return self.output(heads.transpose(1, 2).flatten(2))  # from [batch, seq, heads * value_head_dim]

    def _head_outputs(self, heads: Tensor) -> Tensor:
        """What each head alone adds to the stream: [batch, heads, seq, hidden]; bias and these sum to the output."""
        table = (
            self.output.weight if isinstance(self.output, nn.Linear) else torch.eye(self.num_heads * heads.shape[-1])
        )
        per_head = table.to(heads).unflatten(1, (self.num_heads, -1))  # [hidden, heads, value_head_dim]
        return torch.einsum("bhsd,ohd->bhso", heads, per_head)

    # -- three names, one table ---------------------------------------------------------------------------------------

    def _adjoin(self) -> None:
        adjoin(self.query, self.key, self.value)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._adjoin()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._adjoin()
