"""Llama, and what falls out of it: SmolLM2, Mistral, Qwen2. Decoders with turned queries and keys, gated feed-forward
blocks and one gain per norm (Touvron et al., 2023, arXiv:2302.13971; Jiang et al., 2023, arXiv:2310.06825)."""

from dataclasses import replace
from typing import Any

from pellucid.checkpoints.facts import Computed, Keys
from pellucid.checkpoints.names import Names
from pellucid.checkpoints.page import Family, HeadPage
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
    dropout=Dropout(0.0, 0.0),
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
)


def _bias(raw: dict[str, Any]) -> dict[str, Any]:
    given = raw.get("attention_bias", False)
    return {"qkv_bias": given, "output_bias": given}


_same = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "initializer_range",
    "rms_norm_eps",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
)
_dropout = {"attention_dropout": "attention_probs_dropout_prob"}
_attention_bias = Computed(("attention_bias",), _bias, lambda c: {"attention_bias": c.attention.qkv_bias})

keys = Keys(
    same=_same,
    renamed={**_dropout, "mlp_bias": "feed_forward_bias"},
    computed=(ROPE, _attention_bias),
    inert=("pretraining_tp", "rope_interleaved", "is_llama_config"),
)
mistral_keys = Keys(same=(*_same, "sliding_window"), renamed=_dropout, computed=(ROPE,))
qwen2_keys = Keys(
    same=tuple(key for key in _same if key != "head_dim"),
    renamed=_dropout,
    computed=(ROPE,),
    only={"use_sliding_window": False},
    inert=("sliding_window", "max_window_layers", "layer_types"),  # say something only where windows are used
)

names = Names(
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


def _heads(stem: str) -> tuple[HeadPage, ...]:
    last = SequenceClassification(pool="last", classifier_bias=False)
    answers = (("qa_outputs", "head.classifier"),)
    return (
        HeadPage(f"{stem}Model", None),
        HeadPage(f"{stem}ForCausalLM", CausalLM(), (("lm_head", "head.decoder"),)),
        HeadPage(f"{stem}ForSequenceClassification", last, (("score", "head.classifier"),)),
        HeadPage(f"{stem}ForTokenClassification", TokenClassification(), (("score", "head.classifier"),)),
        HeadPage(f"{stem}ForQuestionAnswering", QuestionAnswering(), answers, prefix="transformer."),
    )


_mistral = defaults.replace(
    family="mistral", intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072, sliding_window=4096
)
_qwen2 = defaults.replace(
    family="qwen2", vocab_size=151936, intermediate_size=22016, max_position_embeddings=32768, qkv_bias=True
)

families = (
    Family(("llama",), defaults, keys, names, _heads("Llama")),
    Family(("mistral",), _mistral, mistral_keys, names, _heads("Mistral")),
    Family(("qwen2",), replace(_qwen2, bos_token_id=None, eos_token_id=None), qwen2_keys, names, _heads("Qwen2")),
)
