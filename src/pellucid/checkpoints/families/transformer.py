"""The Transformer of "Attention Is All You Need": encoder and decoder, post-norm, ReLU, sinusoidal positions (Vaswani
et al., 2017, arXiv:1706.03762). Its files use our own names."""

from typing import Any

from pellucid.checkpoints.facts import Computed, Keys
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import Rows, TensorNames
from pellucid.config import (
    Config,
    DecoderSide,
    Dropout,
    LayerNorm,
    Plain,
    SequenceToSequenceLM,
    Sinusoidal,
)
from pellucid.config.checks import check_bool

defaults = Config(
    family="transformer",
    kind="encoder-decoder",
    vocab_size=37000,
    hidden_size=512,
    num_hidden_layers=6,
    num_attention_heads=8,
    feed_forward=Plain(intermediate_size=2048, hidden_act="relu"),
    norm=LayerNorm(layer_norm_eps=1e-5),
    residual="post",
    position=Sinusoidal(max_position_embeddings=5000),
    embedding_norm=False,
    scale_embedding=True,
    decoder=DecoderSide(6, 8, 2048, decoder_start_token_id=1),
    dropout=Dropout(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0),
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)


def _read_logits_bias(raw: dict[str, Any]) -> dict[str, Any]:
    value = raw.get("logits_bias", False)
    check_bool("logits_bias", value)
    return {"logits_bias": True} if value else {}


keys = Keys(
    computed=(
        Computed(("logits_bias",), _read_logits_bias, lambda c: {"logits_bias": getattr(c.head, "logits_bias", False)}),
    ),
    unrenamed=tuple(
        """vocab_size source_vocab_size share_embeddings hidden_size num_hidden_layers num_decoder_layers
        num_attention_heads decoder_attention_heads intermediate_size decoder_intermediate_size hidden_act
        residual layer_norm_eps scale_embedding waves position_offset max_position_embeddings
        hidden_dropout_prob attention_probs_dropout_prob initializer_range tie_word_embeddings
        decoder_start_token_id pad_token_id bos_token_id eos_token_id""".split()
    ),
)


def _unrenamed(*names: str) -> Rows:
    return tuple((name, name) for name in names)


def _attention(name: str) -> Rows:
    return _unrenamed(*(f"{name}.{part}" for part in ("query", "key", "value", "output")), f"{name}_norm")


def _side(side: str) -> Rows:
    layer = f"{side}.layers.{{i}}"
    return (
        *_unrenamed(f"{side}.embeddings.token", f"{side}.norm"),
        *_attention(f"{layer}.attention"),
        *_attention(f"{layer}.cross_attention"),
        *_unrenamed(f"{layer}.feed_forward.up", f"{layer}.feed_forward.down", f"{layer}.feed_forward_norm"),
    )


heads = (
    HeadPage("TransformerModel", None),
    HeadPage("Transformer", SequenceToSequenceLM(), _unrenamed("head.decoder", "head.bias")),
)

names = TensorNames(body=(*_side("encoder"), *_side("decoder")))

family = Family(defaults=defaults, keys=keys, names=names, heads=heads, is_native=True)
