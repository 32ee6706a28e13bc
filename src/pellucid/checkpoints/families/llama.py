"""Llama and its descendants such as SmolLM2: decoders with rotary positions, gated feed-forward blocks and RMSNorm
(Touvron et al., 2023, arXiv:2302.13971)."""

from typing import Any

from pellucid.checkpoints.facts import Computed, Keys
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import TensorNames
from pellucid.checkpoints.rope import ROPE
from pellucid.config import (
    Attention,
    CausalLM,
    Config,
    Dropout,
    Gated,
    NoPosition,
    QuestionAnswering,
    RMSNorm,
    Rotary,
    SequenceClassification,
    TokenClassification,
)
from pellucid.config.checks import check_bool

defaults = Config(
    family="llama",
    kind="decoder",
    vocab_size=32000,
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    attention=Attention(qkv_bias=False, output_bias=False),
    feed_forward=Gated(intermediate_size=11008, hidden_act="silu"),
    norm=RMSNorm(rms_norm_eps=1e-6),
    residual="pre",
    position=NoPosition(),
    attention_position=Rotary(rope_theta=10000.0, max_position_embeddings=2048),
    embedding_norm=False,
    dropout=Dropout(0.0, 0.0, 0.1, text_dropout=0.0),
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
)


def _read_bias(raw: dict[str, Any]) -> dict[str, Any]:
    value = raw.get("attention_bias", False)
    check_bool("attention_bias", value)
    return {"qkv_bias": value, "output_bias": value}


unrenamed_keys = tuple(
    """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    hidden_act max_position_embeddings initializer_range rms_norm_eps pad_token_id bos_token_id eos_token_id
    tie_word_embeddings""".split()
)
dropout = {"attention_dropout": "attention_probs_dropout_prob"}
_attention_bias = Computed(("attention_bias",), _read_bias, lambda c: {"attention_bias": c.attention.qkv_bias})

keys = Keys(
    unrenamed=unrenamed_keys,
    renamed={**dropout, "mlp_bias": "feed_forward_bias"},
    computed=(ROPE, _attention_bias),
    inert=("pretraining_tp", "rope_interleaved", "is_llama_config", "max_sequence_length"),
)

names = TensorNames(
    prefix="model.",
    body=(
        ("embed_tokens", "embeddings.token"),
        ("layers.{i}.input_layernorm", "layers.{i}.attention_norm"),
        ("layers.{i}.self_attn.q_proj", "layers.{i}.attention.query"),
        ("layers.{i}.self_attn.k_proj", "layers.{i}.attention.key"),
        ("layers.{i}.self_attn.v_proj", "layers.{i}.attention.value"),
        ("layers.{i}.self_attn.o_proj", "layers.{i}.attention.output"),
        ("layers.{i}.post_attention_layernorm", "layers.{i}.feed_forward_norm"),
        ("layers.{i}.mlp.gate_proj", "layers.{i}.feed_forward.gate"),
        ("layers.{i}.mlp.up_proj", "layers.{i}.feed_forward.up"),
        ("layers.{i}.mlp.down_proj", "layers.{i}.feed_forward.down"),
        ("norm", "norm"),
    ),
    dropped={
        "layers.{i}.self_attn.rotary_emb.inv_freq": "follows from rope_theta",
        "rotary_emb.inv_freq": "follows from rope_theta",
    },
)


def heads(stem: str, answer_prefix: str | None = "transformer.") -> tuple[HeadPage, ...]:
    """The heads; class names begin with `stem`.

    answer_prefix: the body's prefix with the question-answering head; None for the same prefix as with all others.
    """
    classification = SequenceClassification(pool="last", classifier_bias=False)
    answer_rows = (("qa_outputs", "head.classifier"),)
    return (
        HeadPage(f"{stem}Model", None),
        HeadPage(f"{stem}ForCausalLM", CausalLM(), (("lm_head", "head.decoder"),)),
        HeadPage(f"{stem}ForSequenceClassification", classification, (("score", "head.classifier"),)),
        HeadPage(f"{stem}ForTokenClassification", TokenClassification(), (("score", "head.classifier"),)),
        HeadPage(f"{stem}ForQuestionAnswering", QuestionAnswering(), answer_rows, prefix=answer_prefix),
    )


family = Family(defaults, keys, names, heads("Llama"))
