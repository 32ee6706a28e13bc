"""The small types that a config is composed of. Each variant carries its own settings, so that an impossible
combination cannot be expressed: a model without positions has no field for their number."""

from dataclasses import dataclass

from pellucid.config.checks import (
    check_activation,
    check_bool,
    check_count,
    check_range,
    check_token_id,
    store_plain_numbers,
)
from pellucid.errors import Argument, InputError

LEAST_EPS = 1e-30
"""Anything smaller is 0 in float32, and normalising a row of zeros would divide by 0."""


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalisation with gain and bias (Ba et al., 2016, arXiv:1607.06450)."""

    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        check_range("layer_norm_eps", self.layer_norm_eps, minimum=LEAST_EPS, maximum=1.0)


@dataclass(frozen=True)
class RMSNorm:
    """Division by the root mean square and a gain; no mean, no bias (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

    rms_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_range("rms_norm_eps", self.rms_norm_eps, minimum=LEAST_EPS, maximum=1.0)


@dataclass(frozen=True)
class Attention:
    """The settings of attention, besides the number of heads.

    num_key_value_heads: number of key and value heads, each shared by a group of query heads; None for one per query
        head (Ainslie et al., 2023, arXiv:2305.13245).
    head_dim: width of one head; None for `hidden_size / num_attention_heads`.
    attention_scale: factor of the scores; None for 1 / sqrt(head_dim).
    sliding_window: in causal attention, the number of positions that a token attends to, its own included.
    """

    num_key_value_heads: int | None = None
    head_dim: int | None = None
    attention_scale: float | None = None
    qkv_bias: bool = True
    output_bias: bool = True
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        store_plain_numbers(self)
        for name in ("num_key_value_heads", "head_dim", "sliding_window"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.attention_scale is not None:
            check_range("attention_scale", self.attention_scale, above=0.0, maximum=1e6)
        check_bool("qkv_bias", self.qkv_bias)
        check_bool("output_bias", self.output_bias)


@dataclass(frozen=True)
class _FeedForwardSettings:
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    feed_forward_bias: bool = True

    def __post_init__(self) -> None:
        store_plain_numbers(self)
        check_count("intermediate_size", self.intermediate_size)
        check_activation("hidden_act", self.hidden_act)
        check_bool("feed_forward_bias", self.feed_forward_bias)


@dataclass(frozen=True)
class Plain(_FeedForwardSettings):
    """Two linear layers with an activation between them, applied to each position."""


@dataclass(frozen=True)
class Gated(_FeedForwardSettings):
    """Like `Plain`, with a third linear layer that gates each value (Shazeer, 2020, arXiv:2002.05202)."""

    hidden_act: str = "silu"
    feed_forward_bias: bool = False


@dataclass(frozen=True)
class DecoderSide:
    """Where the decoder of an encoder-decoder differs from its encoder, and how it starts.

    decoder_start_token_id: the token before the first one that the decoder generates.
    share_embeddings: whether encoder and decoder share one token table.
    source_vocab_size: rows of the encoder's token table, where it has its own.
    """

    num_decoder_layers: int = 6
    decoder_attention_heads: int = 8
    decoder_intermediate_size: int = 2048
    decoder_start_token_id: int | None = None
    share_embeddings: bool = True
    source_vocab_size: int | None = None

    def __post_init__(self) -> None:
        store_plain_numbers(self)
        check_bool("share_embeddings", self.share_embeddings)
        check_token_id("decoder_start_token_id", self.decoder_start_token_id)
        if self.source_vocab_size is not None:
            check_count("source_vocab_size", self.source_vocab_size)
            if self.share_embeddings:
                joined = Argument("share_embeddings"), " is true: one table has one size"
                raise InputError(Argument("source_vocab_size"), " is given although ", joined)
        for name in ("num_decoder_layers", "decoder_attention_heads", "decoder_intermediate_size"):
            check_count(name, getattr(self, name))


@dataclass(frozen=True)
class Dropout:
    """Dropout probabilities by place; nothing is dropped in evaluation.

    hidden_dropout_prob: of the outputs of attention, feed-forward block and embeddings.
    attention_probs_dropout_prob: of the attention weights.
    classifier_dropout: before the classifier of a head.

    All fields but the first may be None, which means the value of the first, or of `classifier_dropout` for
    `dense_dropout` and `text_dropout`. The other fields serve families, or files, that differ.
    embedding_dropout, attention_output_dropout, feed_forward_dropout: the three places of the first, separately.
    activation_dropout: after the activation of the feed-forward block.  last_dropout: after a stack's last norm.
    dense_dropout: before the dense layer of a classification head.  text_dropout: before the classifier of whole texts.
    answer_dropout: before the start and end logits of an answer.
    """

    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float | None = 0.1
    classifier_dropout: float | None = None
    embedding_dropout: float | None = None
    attention_output_dropout: float | None = None
    feed_forward_dropout: float | None = None
    activation_dropout: float | None = 0.0
    last_dropout: float | None = 0.0
    dense_dropout: float | None = None
    text_dropout: float | None = None
    answer_dropout: float | None = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                check_range(name, value, minimum=0.0, below=1.0)

    def probability(self, field_name: str) -> float:
        """The dropout probability of a field, with None resolved."""
        own = getattr(self, field_name)
        if own is not None:
            return own
        if field_name in ("dense_dropout", "text_dropout"):
            return self.probability("classifier_dropout")
        return self.hidden_dropout_prob


Norm = LayerNorm | RMSNorm
FeedForward = Plain | Gated
