"""T5, versions 1.0 and 1.1, and Flan-T5: text to text, relative positions only, no bias anywhere (Raffel et al., 2019,
arXiv:1910.10683; Chung et al., 2022, arXiv:2210.11416)."""

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import Rows, TensorNames, with_prefixes
from pellucid.checkpoints.text_to_text import FEED_FORWARD, SIDES
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
    dropout=Dropout(0.1, None, 0.0, activation_dropout=None, last_dropout=None),
    scale_logits=True,
    pad_token_id=0,
    trainable_padding=True,
    eos_token_id=1,
)

keys = Keys(
    unrenamed=tuple(
        """vocab_size relative_attention_num_buckets relative_attention_max_distance decoder_start_token_id
        classifier_dropout pad_token_id bos_token_id eos_token_id tie_word_embeddings""".split()
    ),
    renamed={
        "d_model": "hidden_size",
        "d_kv": "head_dim",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "dropout_rate": "hidden_dropout_prob",
        "layer_norm_epsilon": "rms_norm_eps",
    },
    aliases=("hidden_size", "head_dim", "num_hidden_layers", "num_attention_heads"),
    computed=(FEED_FORWARD, SIDES),
    fixed={"is_decoder": False},
    inert=("initializer_factor", "dense_act_fn", "is_gated_act", "n_positions"),
)


_attention = ((".q", ".query"), (".k", ".key"), (".v", ".value"), (".o", ".output"))
_plain = ((".wi", ".up"), (".wo", ".down"))
_gated = ((".wi_0", ".gate"), (".wi_1", ".up"), (".wo", ".down"))


def _side(*parts: Rows) -> Rows:
    """The rows of encoder or decoder: within a layer each part is numbered and comes with its norm."""
    layer = tuple(row for i, part in enumerate(parts) for row in with_prefixes(f"{i}.", "", part))
    return (
        ("embed_tokens", "embeddings.token"),
        ("block.0.layer.0.SelfAttention.relative_attention_bias", "relative_bias.table"),
        *with_prefixes("block.{i}.layer.", "layers.{i}.", layer),
        ("final_layer_norm", "norm"),
    )


def names(config: Config) -> TensorNames:
    """The tensor names; feed-forward weights are named differently where there is a gate."""
    tables = _gated if isinstance(config.feed_forward, Gated) else _plain
    attention = (*with_prefixes("SelfAttention", "attention", _attention), ("layer_norm", "attention_norm"))
    cross = (*with_prefixes("EncDecAttention", "cross_attention", _attention), ("layer_norm", "cross_attention_norm"))
    feed_forward = (*with_prefixes("DenseReluDense", "feed_forward", tables), ("layer_norm", "feed_forward_norm"))
    return TensorNames(
        body=(
            ("shared", "encoder.embeddings.token"),
            *with_prefixes("encoder.", "encoder.", _side(attention, feed_forward)),
            *with_prefixes("decoder.", "decoder.", _side(attention, cross, feed_forward)),
        ),
        dropped={
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias": "never read: no distances across texts"
        },
    )


heads = (
    HeadPage("T5Model", None),
    HeadPage(
        "T5ForConditionalGeneration",
        SequenceToSequenceLM(),
        (("lm_head", "head.decoder"),),
        tied_if_absent=True,  # in such files the reference takes "not tied" to mean only "not scaled"
        # 1.1, saved by transformers 5
        untied_if_present=lambda config: config.tie_word_embeddings and not config.scale_logits,
    ),
    HeadPage(
        "T5ForSequenceClassification",
        SequenceClassification(pool="eos", dense_activation="tanh"),
        (("classification_head.dense", "head.pre_classifier"), ("classification_head.out_proj", "head.classifier")),
        prefix="transformer.",
    ),
    HeadPage("T5ForQuestionAnswering", QuestionAnswering(), (("qa_outputs", "head.classifier"),)),
)

family = Family(
    defaults=defaults, keys=keys, names=names, heads=heads, prompts_with_languages=True, encoder_states_only=True
)
