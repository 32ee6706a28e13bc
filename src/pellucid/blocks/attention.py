"""Attention: each position's query is compared with all keys, and the values are averaged by how well they match.

    x --> query (rotated) -.
                            +--> scores = query . key x scale (+ bias) --> weights = softmax --.
    x --> key (rotated) ---'                                                                    +--> heads --> output
    x --> value -------------------------------------------------------------------------------'

(Vaswani et al., 2017, arXiv:1706.03762, section 3.2.) In cross-attention, keys and values come from `memory`, not x.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks.checks import check_heads, check_stream
from pellucid.blocks.forward_pass import Pass
from pellucid.blocks.joint_weights import are_plain, join_in_memory, joint_weight_and_bias
from pellucid.blocks.mask import additive_mask, combined_mask

STRIP_LENGTH, MAX_MASK_SIZE = 1024, 2**22
"""Queries per chunk where a mask is large, and the number of mask elements above which it is."""


class Attention(nn.Module):
    """Multi-head attention with two equivalent paths: `fused`, PyTorch's single kernel, and `explicit`, step by step.

    hidden_size: width of the input and of the output.
    num_heads: number of query heads.
    num_key_value_heads: number of key and value heads, each shared by a group of consecutive query heads (Ainslie et
        al., 2023, arXiv:2305.13245); by default one each.
    head_dim: width of one head's query and key; by default `hidden_size / num_heads`.
    value_head_dim: width of one head's value; by default `head_dim`.
    memory_size: input width of keys and values in cross-attention; by default `hidden_size`.
    scale: factor of the scores; by default 1 / sqrt(head_dim).
    bias, output_bias: whether query, key and value, and the output layer, have a bias.
    project: False leaves the heads concatenated, without the output layer.
    dropout, output_dropout: dropout probability of the weights, and of the output.
    explicit: whether to compute scores and weights one after the other instead of in one kernel.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        memory_size: int | None = None,
        scale: float | None = None,
        bias: bool = True,
        output_bias: bool = True,
        project: bool = True,
        dropout: float = 0.0,
        output_dropout: float = 0.0,
        explicit: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        check_heads(hidden_size, num_heads, self.num_key_value_heads, head_dim)
        self.head_dim = head_dim or hidden_size // num_heads
        self.value_head_dim = value_head_dim or self.head_dim
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.explicit = explicit
        self.widths = [
            num_heads * self.head_dim,
            self.num_key_value_heads * self.head_dim,
            self.num_key_value_heads * self.value_head_dim,
        ]
        self.query = nn.Linear(hidden_size, self.widths[0], bias=bias)
        self.key = nn.Linear(memory_size or hidden_size, self.widths[1], bias=bias)
        self.value = nn.Linear(memory_size or hidden_size, self.widths[2], bias=bias)
        mixed = num_heads * self.value_head_dim
        self.output = nn.Linear(mixed, hidden_size, bias=output_bias) if project else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.output_dropout = nn.Dropout(output_dropout)
        self._join_weights()

    def forward(
        self, x: Tensor, run: Pass | None = None, *, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Returns the attention output.

        x: Float[Tensor, "batch seq hidden"], the input of the queries.
        memory: Float[Tensor, "batch source memory"], the input of keys and values; None for x itself.
        bias: Float[Tensor, "batch|1 heads|1 seq source"], added to the scaled scores; in self-attention by default that
            of `run`.
        ->  Float[Tensor, "batch seq hidden"]
        """
        run = run or Pass()
        check_stream("x", x)
        if memory is not None:
            check_stream("memory", memory)
        elif bias is None:
            bias = run.bias
        query, key, value = (
            self._self_attention_inputs(x, run) if memory is None else self._cross_attention_inputs(x, memory, run)
        )
        query, bias = run.output_positions(query, 2), bias if bias is None else run.output_positions(bias, 2)
        heads = run.observe("heads", self._attend(query, key, value, bias, run))
        return run.observe("output", self.output_dropout(self._merge(heads, run)))

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _self_attention_inputs(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same positions, preceded by the cached keys and values of earlier passes."""
        query, key, value = self._project_inputs(x).split(self.widths, dim=-1)
        query, key, value = self._observed_heads(query, key, value, run)
        if run.rotation is not None:
            query = run.observe("query_rotated", run.rotation.rotate(query))
            key = run.observe("key_rotated", run.rotation.rotate(key))
        if run.cache is not None:
            key, value = run.cache.self_attention.extend(key, value)
        return query, key, value

    def _cross_attention_inputs(self, x: Tensor, memory: Tensor, run: Pass) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, and keys and values of the memory, which are computed once and then cached."""
        if run.cache is not None and run.cache.cross_attention.filled:
            return run.observe("query", self._split_heads(self.query(x))), *run.cache.cross_attention.stored()
        query, key, value = self._observed_heads(self.query(x), self.key(memory), self.value(memory), run)
        if run.cache is not None:
            run.cache.cross_attention.extend(key, value)
        return query, key, value

    def _observed_heads(self, query: Tensor, key: Tensor, value: Tensor, run: Pass) -> tuple[Tensor, Tensor, Tensor]:
        query, key = run.observe("query", self._split_heads(query)), run.observe("key", self._split_heads(key))
        return query, key, run.observe("value", self._split_heads(value, self.value_head_dim))

    def _split_heads(self, x: Tensor, width: int | None = None) -> Tensor:
        """Float[Tensor, "batch seq heads*width"]  ->  Float[Tensor, "batch heads seq width"]"""
        return x.unflatten(-1, (-1, width or self.head_dim)).transpose(1, 2)

    def _project_inputs(self, x: Tensor) -> Tensor:
        """Query, key and value concatenated; from one matrix product, where all are plain linear layers."""
        linears = self.query, self.key, self.value
        return (
            F.linear(x, *joint_weight_and_bias(*linears))
            if are_plain(*linears)
            else torch.cat([one(x) for one in linears], dim=-1)
        )

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, run: Pass) -> Tensor:
        """Returns the values averaged by attention weight, per head: [batch, heads, seq, value_head_dim].

        Scores and weights that an observer wants are computed beside the fused result, so that observing changes no
        bit; if the observer replaces them, the layer continues on the explicit path.
        """
        # an edit may have set it
        has_minus_infinity = bias is not None and run.observer is not None and bool(bias.isneginf().any())
        fused = not self.explicit and not has_minus_infinity
        if fused and not run.wants("scores", "weights"):
            return self._fused(query, key, value, bias, run)
        mask = _combined_mask(query, key, run)
        scores = self._scores(query, self._repeat_heads(key), mask, bias)
        observed_scores = run.observe("scores", scores)
        softmax_dtype = torch.promote_types(scores.dtype, torch.float32)  # float16 and bfloat16 are summed in float32
        if has_minus_infinity or observed_scores is not scores:
            weights = _masked_softmax(observed_scores, mask, softmax_dtype).to(query.dtype)
        else:
            weights = scores.softmax(dim=-1, dtype=softmax_dtype).to(query.dtype)
        observed_weights = run.observe("weights", weights)
        if fused and observed_scores is scores and observed_weights is weights:
            return self._fused(query, key, value, bias, run)
        return self.dropout(observed_weights) @ self._repeat_heads(value)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, run: Pass) -> Tensor:
        """PyTorch's kernel; a purely causal mask is passed as the `is_causal` flag, which is faster than a tensor."""
        if run.text_lengths is not None and bias is None:
            texts = zip(*(x.split(list(run.text_lengths), dim=2) for x in (query, key, value)))
            return torch.cat([self._fused(q, k, v, None, Pass(causal=True)) for q, k, v in texts], dim=2)
        is_causal = run.causal and run.mask is None and bias is None and query.shape[2] == key.shape[2]
        mask = None if is_causal else _combined_mask(query, key, run)
        if mask is not None and bias is None and mask.shape[2] > STRIP_LENGTH and mask.numel() > MAX_MASK_SIZE:
            return self._fused_in_strips(query, key, value, mask)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask if bias is None else additive_mask(mask, bias, query.dtype),
            dropout_p=self.dropout.p if self.training else 0.0,
            is_causal=is_causal,
            scale=self.scale,
            enable_gqa=self.num_key_value_heads != self.num_heads,
        )

    def _fused_in_strips(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Attention of a few queries at a time, to the range of keys that these can see: the kernel expands the mask to
        floats, and a window, a causal mask or packed texts hide most of it."""
        strips = []
        for query_strip, allowed in zip(query.split(STRIP_LENGTH, dim=2), mask.split(STRIP_LENGTH, dim=2)):
            visible = allowed.flatten(0, 2).any(dim=0).nonzero()
            first, end = (
                (int(visible[0]), int(visible[-1]) + 1) if len(visible) else (0, 1)
            )  # padding, which sees nothing
            strip_pass = Pass(mask=allowed[..., first:end])
            strips.append(self._fused(query_strip, key[:, :, first:end], value[:, :, first:end], None, strip_pass))
        return torch.cat(strips, dim=2)

    def _repeat_heads(self, x: Tensor) -> Tensor:
        """Repeats keys or values for every query head of their group: Float[Tensor, "batch heads source width"]"""
        copies = self.num_heads // self.num_key_value_heads
        return x if copies == 1 else x.repeat_interleave(copies, dim=1)

    def _scores(self, query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        across = key.transpose(-2, -1)
        # float16 is scaled first, as in the fused kernel: products of large queries and keys exceed 65,504
        scores = (query * self.scale) @ across if query.dtype == torch.float16 else (query @ across).mul_(self.scale)
        scores = scores if bias is None else scores.add_(bias.to(scores.dtype))  # in place: faster than a new tensor
        # Masked scores become the minimum, without adding: in float16 a sum is -inf, and a fully masked row NaN.
        return scores if mask is None else scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)

    def _merge(self, heads: Tensor, run: Pass) -> Tensor:
        if run.wants("head_outputs"):
            weight, bias = self._output_weight_and_bias(heads)
            # each head's contribution to the output, [batch, heads, seq, hidden]; these and the bias sum to it
            outputs = torch.einsum("bhsd,ohd->bhso", heads, weight.unflatten(1, (self.num_heads, -1)))
            observed = run.observe("head_outputs", outputs)
            if observed is not outputs:
                return observed.sum(dim=1) if bias is None else observed.sum(dim=1) + bias
        return self.output(heads.transpose(1, 2).flatten(2))  # from [batch, seq, heads * value_head_dim]

    def _output_weight_and_bias(self, heads: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weight Float[Tensor, "hidden heads*value_head_dim"] and bias of the output layer, of whatever class it is."""
        if isinstance(self.output, nn.Linear):
            return self.output.weight.to(heads), self.output.bias
        one = torch.eye(self.num_heads * heads.shape[-1], dtype=heads.dtype, device=heads.device)
        if isinstance(self.output, nn.Identity):
            return one, None
        bias = self.output(torch.zeros_like(one[:1])).to(heads)
        return (self.output(one).to(heads) - bias).T, bias[0]

    # -- query, key and value weights in one memory -------------------------------------------------------------------

    def _join_weights(self) -> None:
        join_in_memory(self.query, self.key, self.value)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._join_weights()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._join_weights()


def _masked_softmax(scores: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Softmax of edited scores: positions that the mask hides stay hidden, and a row of -inf alone gets weights of 0.

    scores: Float[Tensor, "batch heads seq source"]  ->  the same shape
    """
    min_score = torch.finfo(scores.dtype).min
    is_minus_infinity = scores.isneginf()
    if mask is None:
        nowhere = is_minus_infinity.all(dim=-1, keepdim=True)
    else:
        nowhere = ((is_minus_infinity & mask) == mask).all(dim=-1, keepdim=True) & mask.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~mask, min_score)
    return scores.clamp(min=min_score).softmax(dim=-1, dtype=dtype).masked_fill(nowhere, 0.0)


def _combined_mask(query: Tensor, key: Tensor, run: Pass) -> Tensor | None:
    return combined_mask(run.mask, run.causal, query.shape[2], key.shape[2], query.device)
