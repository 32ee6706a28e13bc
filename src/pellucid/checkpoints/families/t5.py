"""T5, versions 1.0 and 1.1 and Flan: text to text, places known only as distances, no bias anywhere (Raffel et al.,
2019, arXiv:1910.10683; Chung et al., 2022, arXiv:2210.11416)."""

from typing import Any

from pellucid.checkpoints.facts import Computed, Keys
from pellucid.checkpoints.names import Names, Rows
from pellucid.checkpoints.page import Family, HeadPage
from pellucid.config import (
    Attention,
    Config,
    DecoderSide,
    Dropout,
    Gated,
    NoPosition,
    Plain,
    QuestionAnswering,
    RelativeBias,
    RMSNorm,
    SequenceClassification,
    SequenceToSequenceLM,
)
from pellucid.errors import InputError

defaults = Config(
    family="t5",
    kind="encoder-decoder",
    vocab_size=32128,
    hidden_size=512,
    num_hidden_layers=6,
    num_attention_heads=8,
    attention=Attention(head_dim=64, attention_scale=1.0, qkv_bias=False, output_bias=False),
    feed_forward=Plain(2048, "relu", feed_forward_bias=False),
    norm=RMSNorm(rms_norm_eps=1e-6),
    residual="pre",
    position=NoPosition(),
    attention_position=RelativeBias(32, 128),
    embedding_norm=False,
    decoder=DecoderSide(6, 8, 2048, decoder_start_token_id=0),
    dropout=Dropout(0.1, 0.1, 0.0),
    scale_logits=True,
    pad_token_id=0,
    eos_token_id=1,
)

_ACTIVATIONS = {"gated-gelu": "gelu_new", "gated-silu": "silu", "gated-relu": "relu", "relu": "relu", "gelu": "gelu"}


def _feed_forward(raw: dict[str, Any]) -> dict[str, Any]:
    said, width = raw.get("feed_forward_proj", "relu"), raw.get("d_ff", 2048)
    if said not in _ACTIVATIONS:
        raise InputError(f"feed_forward_proj is {str(said)[:60]!r}, expected one of {', '.join(_ACTIVATIONS)}")
    kind = Gated if said.startswith("gated-") else Plain
    return {"feed_forward": kind(width, _ACTIVATIONS[said], False), "decoder_intermediate_size": width}


def _write_feed_forward(config: Config) -> dict[str, Any]:
    known = {(name.startswith("gated-"), ours): name for name, ours in _ACTIVATIONS.items()}
    part = config.feed_forward
    return {"feed_forward_proj": known[isinstance(part, Gated), part.hidden_act], "d_ff": part.intermediate_size}


def _sides(raw: dict[str, Any]) -> dict[str, Any]:
    layers = raw.get("num_decoder_layers") or raw.get("num_layers", 6)
    heads_, tied = raw.get("num_heads", 8), raw.get("tie_word_embeddings", True)
    return {
        "num_decoder_layers": layers,
        "decoder_attention_heads": heads_,
        "scale_logits": raw.get("scale_decoder_outputs", tied),
    }


def _write_sides(config: Config) -> dict[str, Any]:
    side = config.decoder
    layers = side.num_decoder_layers if side else config.num_hidden_layers
    return {"num_decoder_layers": layers, "scale_decoder_outputs": config.scale_logits}


keys = Keys(
    same=(
        "vocab_size",
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
        "decoder_start_token_id",
        "classifier_dropout",
        "pad_token_id",
        "eos_token_id",
        "tie_word_embeddings",
    ),
    renamed={
        "d_model": "hidden_size",
        "d_kv": "head_dim",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "dropout_rate": "hidden_dropout_prob",
        "layer_norm_epsilon": "rms_norm_eps",
    },
    computed=(
        Computed(("feed_forward_proj", "d_ff"), _feed_forward, _write_feed_forward),
        Computed(("num_decoder_layers", "scale_decoder_outputs"), _sides, _write_sides),
    ),
    only={"is_decoder": False},
    inert=("initializer_factor", "dense_act_fn", "is_gated_act", "n_positions", "num_hidden_layers"),
)


def _attention(theirs: str, ours: str) -> Rows:
    parts = (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
    return tuple((f"{theirs}.{left}", f"{ours}.{right}") for left, right in parts)


def _side(side: str, last: int, gated: bool) -> Rows:
    block, layer = f"{side}.block.{{i}}.layer", f"{side}.layers.{{i}}"
    up = (("wi_0", "gate"), ("wi_1", "up")) if gated else (("wi", "up"),)
    return (
        (f"{side}.embed_tokens", f"{side}.embeddings.token"),
        (f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias", f"{side}.relative_bias.table"),
        *_attention(f"{block}.0.SelfAttention", f"{layer}.attention"),
        (f"{block}.0.layer_norm", f"{layer}.attention_norm"),
        *((f"{block}.{last}.DenseReluDense.{a}", f"{layer}.feed_forward.{b}") for a, b in (*up, ("wo", "down"))),
        (f"{block}.{last}.layer_norm", f"{layer}.feed_forward_norm"),
        (f"{side}.final_layer_norm", f"{side}.norm"),
    )


def names(config: Config) -> Names:
    """The feed-forward tables are called differently where there is a gate."""
    gated = isinstance(config.feed_forward, Gated)
    across = "decoder.block.{i}.layer.1"
    return Names(
        body=(
            ("shared", "encoder.embeddings.token"),
            *_side("encoder", 1, gated),
            *_side("decoder", 2, gated),
            *_attention(f"{across}.EncDecAttention", "decoder.layers.{i}.cross_attention"),
            (f"{across}.layer_norm", "decoder.layers.{i}.cross_attention_norm"),
        ),
        dropped={
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias": "never read: no distances across texts"
        },
    )


heads = (
    HeadPage("T5Model", None),
    HeadPage("T5ForConditionalGeneration", SequenceToSequenceLM(), (("lm_head", "head.decoder"),)),
    HeadPage(
        "T5ForSequenceClassification",
        SequenceClassification(pool="eos", dense_activation="tanh"),
        (("classification_head.dense", "head.dense"), ("classification_head.out_proj", "head.classifier")),
        prefix="transformer.",
    ),
    HeadPage("T5ForQuestionAnswering", QuestionAnswering(), (("qa_outputs", "head.classifier"),)),
)

family = Family(model_types=("t5",), defaults=defaults, keys=keys, names=names, heads=heads)
