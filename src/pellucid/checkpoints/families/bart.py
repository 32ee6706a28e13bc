"""BART: BERT's layers, and in the decoder also cross-attention (Lewis et al., 2019, arXiv:1910.13461)."""

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import TensorNames, with_prefixes
from pellucid.checkpoints.tensor_layouts import ONE_ROW
from pellucid.config import (
    Config,
    DecoderSide,
    Dropout,
    LayerNorm,
    Learned,
    Plain,
    QuestionAnswering,
    SequenceClassification,
    SequenceToSequenceLM,
)

defaults = Config(
    family="bart",
    kind="encoder-decoder",
    vocab_size=50265,
    hidden_size=1024,
    num_hidden_layers=12,
    num_attention_heads=16,
    feed_forward=Plain(intermediate_size=4096, hidden_act="gelu"),
    norm=LayerNorm(layer_norm_eps=1e-5),
    position=Learned(max_position_embeddings=1024, position_offset=2),
    decoder=DecoderSide(12, 16, 4096, decoder_start_token_id=2),
    dropout=Dropout(0.1, 0.0, 0.0),
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    labels=("LABEL_0", "LABEL_1", "LABEL_2"),
)

keys = Keys(
    unrenamed=tuple(
        """vocab_size max_position_embeddings decoder_attention_heads decoder_start_token_id classifier_dropout
        activation_dropout scale_embedding pad_token_id bos_token_id eos_token_id tie_word_embeddings""".split()
    ),
    renamed={
        "d_model": "hidden_size",
        "encoder_layers": "num_hidden_layers",
        "encoder_attention_heads": "num_attention_heads",
        "encoder_ffn_dim": "intermediate_size",
        "decoder_layers": "num_decoder_layers",
        "decoder_ffn_dim": "decoder_intermediate_size",
        "activation_function": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "init_std": "initializer_range",
    },
    aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    fixed={"is_decoder": False, "normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True},
    inert=tuple(
        """encoder_layerdrop decoder_layerdrop classif_dropout extra_pos_embeddings
        force_bos_token_to_be_generated add_bias_logits static_position_embeddings""".split()
    ),
)

_attention = (
    (".q_proj", ".query"),
    (".k_proj", ".key"),
    (".v_proj", ".value"),
    (".out_proj", ".output"),
    ("_layer_norm", "_norm"),
)
_layer = (
    *with_prefixes("self_attn", "attention", _attention),
    *with_prefixes("encoder_attn", "cross_attention", _attention),  # in the decoder only
    ("fc1", "feed_forward.up"),
    ("fc2", "feed_forward.down"),
    ("final_layer_norm", "feed_forward_norm"),
)
_side = (
    ("embed_tokens", "embeddings.token"),
    ("embed_positions", "embeddings.position"),
    ("layernorm_embedding", "embeddings.norm"),
    *with_prefixes("layers.{i}.", "layers.{i}.", _layer),
)

names = TensorNames(
    prefix="model.",
    body=(
        ("shared", "encoder.embeddings.token"),
        *with_prefixes("encoder.", "encoder.", _side),
        *with_prefixes("decoder.", "decoder.", _side),
    ),
    dropped={"encoder.version": "a format's number", "decoder.version": "a format's number"},
    copies={f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")},
)

heads = (
    HeadPage("BartModel", None),
    HeadPage(
        "BartForConditionalGeneration",
        SequenceToSequenceLM(logits_bias=True, trainable_bias=False),  # a buffer in the reference
        (("lm_head", "head.decoder"), ("final_logits_bias", "head.bias", ONE_ROW)),
        zeros=("head.bias",),
    ),
    HeadPage(
        "BartForSequenceClassification",
        SequenceClassification(pool="eos", dense_activation="tanh"),
        (("classification_head.dense", "head.pre_classifier"), ("classification_head.out_proj", "head.classifier")),
    ),
    HeadPage("BartForQuestionAnswering", QuestionAnswering(), (("qa_outputs", "head.classifier"),)),
)

family = Family(defaults=defaults, keys=keys, names=names, heads=heads)
