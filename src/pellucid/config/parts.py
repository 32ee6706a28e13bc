"""The small types that a config is a sum of: each variant carries its own settings, so that an impossible combination
cannot be written. A model with no positions has no field for their number."""

from dataclasses import dataclass

from pellucid.config.checks import check_activation, check_bool, check_count, check_range, check_token_id
from pellucid.errors import Argument, InputError

LEAST_EPS = 1e-30
"""Less is nothing in float32, and a row of zeros divided by nothing is no number."""


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalisation with gain and bias (Ba et al., 2016, arXiv:1607.06450)."""

    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        check_range("layer_norm_eps", self.layer_norm_eps, least=LEAST_EPS, most=1.0)


@dataclass(frozen=True)
class RMSNorm:
    """Division by the root mean square and a gain; no mean, no bias (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

    rms_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_range("rms_norm_eps", self.rms_norm_eps, least=LEAST_EPS, most=1.0)


@dataclass(frozen=True)
class Attention:
    """What attention is made of, beside the number of heads.

    num_key_value_heads: heads of key and value, each shared by as many heads of query; None for one each
        (Ainslie et al., 2023, arXiv:2305.13245).
    head_dim: width of one head; None for `hidden_size / num_attention_heads`.
    attention_scale: what scores are multiplied with; None for 1 / sqrt(head_dim).
    sliding_window: in causal attention, how many positions back one may look, the own one included.
    """

    num_key_value_heads: int | None = None
    head_dim: int | None = None
    attention_scale: float | None = None
    qkv_bias: bool = True
    output_bias: bool = True
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_key_value_heads", "head_dim", "sliding_window"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.attention_scale is not None:
            check_range("attention_scale", self.attention_scale, above=0.0, most=1e6)
        check_bool("qkv_bias", self.qkv_bias)
        check_bool("output_bias", self.output_bias)


@dataclass(frozen=True)
class Plain:
    """Two linear maps with an activation between them, position by position."""

    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    feed_forward_bias: bool = True

    def __post_init__(self) -> None:
        check_count("intermediate_size", self.intermediate_size)
        check_activation("hidden_act", self.hidden_act)
        check_bool("feed_forward_bias", self.feed_forward_bias)


@dataclass(frozen=True)
class Gated:
    """Like `Plain`, and a third linear map decides how much of each number passes (Shazeer, 2020,
    arXiv:2002.05202)."""

    intermediate_size: int = 3072
    hidden_act: str = "silu"
    feed_forward_bias: bool = False

    def __post_init__(self) -> None:
        check_count("intermediate_size", self.intermediate_size)
        check_activation("hidden_act", self.hidden_act)
        check_bool("feed_forward_bias", self.feed_forward_bias)


@dataclass(frozen=True)
class DecoderSide:
    """Where the decoder of an encoder-decoder differs from its encoder, and how it begins.

    decoder_start_token_id: what stands before the first word that the decoder writes.
    share_embeddings: encoder and decoder have one table of tokens.
    source_vocab_size: rows of the encoder's table, where it has its own.
    """

    num_decoder_layers: int = 6
    decoder_attention_heads: int = 8
    decoder_intermediate_size: int = 2048
    decoder_start_token_id: int | None = None
    share_embeddings: bool = True
    source_vocab_size: int | None = None

    def __post_init__(self) -> None:
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
    """Shares of numbers set to zero in training, by place; nothing is dropped in evaluation.

    hidden_dropout_prob: of what attention, its feed-forward block and the embeddings give to the stream.
    attention_probs_dropout_prob: of attention's weights.
    classifier_dropout: before the labels of a head.

    These and the others say where a family, or a file, has another share; None for that of the first, and for
    `dense_dropout` and `text_dropout` that of the third.
    embedding_dropout, attention_output_dropout, feed_forward_dropout: one of the three that the first is of.
    activation_dropout: behind the activation of the feed-forward block.  last_dropout: behind a stack's last norm.
    dense_dropout: before the dense map of a head of labels.  text_dropout: before the labels of a whole text.
    answer_dropout: before the two ends of an answer.
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
                check_range(name, value, least=0.0, below=1.0)

    def probability(self, field_name: str) -> float:
        """The share of numbers that is set to zero, by the name of a field."""
        own = getattr(self, field_name)
        if own is not None:
            return own
        if field_name in ("dense_dropout", "text_dropout"):
            return self.probability("classifier_dropout")
        return self.hidden_dropout_prob


Norm = LayerNorm | RMSNorm
FeedForward = Plain | Gated
