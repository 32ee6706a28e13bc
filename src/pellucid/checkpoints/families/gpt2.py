"""GPT-2: a decoder with trained positions and pre-norm layers (Radford et al., 2019)."""

from typing import Any

from pellucid.checkpoints.facts import Computed, Keys
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import TensorNames
from pellucid.checkpoints.tensor_layouts import JOINED_TRANSPOSED, TRANSPOSED
from pellucid.config import (
    CausalLM,
    Config,
    Dropout,
    LayerNorm,
    Learned,
    Plain,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
)
from pellucid.config.checks import check_count

defaults = Config(
    family="gpt2",
    kind="decoder",
    vocab_size=50257,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    feed_forward=Plain(intermediate_size=3072, hidden_act="gelu_new"),
    norm=LayerNorm(layer_norm_eps=1e-5),
    residual="pre",
    position=Learned(max_position_embeddings=1024),
    embedding_norm=False,
    dropout=Dropout(classifier_dropout=0.1, embedding_dropout=0.1, text_dropout=0.0),
    trainable_padding=True,
    bos_token_id=50256,
    eos_token_id=50256,
)


def _write_inner(config: Config) -> dict[str, Any]:
    """None where it is 4 * hidden_size, so that it follows if the hidden size is changed."""
    width = config.feed_forward.intermediate_size
    return {"n_inner": None if width == 4 * config.hidden_size else width}


def _read_inner(raw: dict[str, Any]) -> dict[str, Any]:
    """4 * hidden_size where the file does not give it."""
    width = raw.get("n_inner")
    if width is None:
        return {"intermediate_size": 4 * raw.get("n_embd", defaults.hidden_size)}
    check_count("n_inner", width)
    return {"intermediate_size": width}


keys = Keys(
    unrenamed=(
        "vocab_size",
        "initializer_range",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "tie_word_embeddings",
    ),
    renamed={
        "n_positions": "max_position_embeddings",
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "activation_function": "hidden_act",
        "resid_pdrop": "hidden_dropout_prob",
        "embd_pdrop": "embedding_dropout",
        "attn_pdrop": "attention_probs_dropout_prob",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    aliases=("hidden_size", "max_position_embeddings", "num_hidden_layers", "num_attention_heads"),
    computed=(Computed(("n_inner",), _read_inner, _write_inner),),
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    inert=tuple(
        """n_ctx predict_special_tokens summary_type summary_use_proj summary_activation summary_proj_to_labels
        summary_first_dropout""".split()
    ),
)

_attention = tuple(f"layers.{{i}}.attention.{name}" for name in ("query", "key", "value"))

names = TensorNames(
    prefix="transformer.",
    body=(
        ("wte", "embeddings.token"),
        ("wpe", "embeddings.position"),
        ("h.{i}.ln_1", "layers.{i}.attention_norm"),
        ("h.{i}.attn.c_attn", _attention, JOINED_TRANSPOSED),
        ("h.{i}.attn.c_proj", "layers.{i}.attention.output", TRANSPOSED),
        ("h.{i}.ln_2", "layers.{i}.feed_forward_norm"),
        ("h.{i}.mlp.c_fc", "layers.{i}.feed_forward.up", TRANSPOSED),
        ("h.{i}.mlp.c_proj", "layers.{i}.feed_forward.down", TRANSPOSED),
        ("ln_f", "norm"),
    ),
    dropped={
        "h.{i}.attn.bias": "the causal mask as a table of zeros and ones",
        "h.{i}.attn.masked_bias": "one large negative number for the causal mask",
    },
)

heads = (
    HeadPage("GPT2Model", None),
    HeadPage("GPT2LMHeadModel", CausalLM(), (("lm_head", "head.decoder"),)),
    HeadPage(
        "GPT2ForSequenceClassification",
        SequenceClassification(pool="last", classifier_bias=False),
        (("score", "head.classifier"),),
    ),
    HeadPage("GPT2ForTokenClassification", TokenClassification(), (("classifier", "head.classifier"),)),
    HeadPage("GPT2ForQuestionAnswering", QuestionAnswering(), (("qa_outputs", "head.classifier"),)),
)

family = Family(defaults=defaults, keys=keys, names=names, heads=heads)
