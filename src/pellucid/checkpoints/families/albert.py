"""ALBERT: one layer's weights at every depth, and a narrow token table (Lan et al., 2019, arXiv:1909.11942)."""

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.families import bert
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import TensorNames
from pellucid.config import (
    Config,
    Dropout,
    MaskedLM,
    Plain,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
)

defaults = Config(
    family="albert",
    vocab_size=30000,
    hidden_size=4096,
    num_hidden_layers=12,
    num_attention_heads=64,
    feed_forward=Plain(intermediate_size=16384, hidden_act="gelu_new"),
    type_vocab_size=2,
    embedding_size=128,
    embedding_projection=True,
    num_hidden_groups=1,
    dropout=Dropout(0.0, 0.0, 0.1, feed_forward_dropout=0.0),
    pooler=True,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=3,
)

keys = Keys(
    unrenamed=(
        *(key for key in bert.keys.unrenamed if key != "classifier_dropout"),
        "embedding_size",
        "num_hidden_groups",
        "bos_token_id",
        "eos_token_id",
    ),
    renamed={"classifier_dropout_prob": "classifier_dropout"},
    fixed={"inner_group_num": 1, "position_embedding_type": "absolute"},
    inert=("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks", "layers_to_keep"),
)

_LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0."

names = TensorNames(
    prefix="albert.",
    body=(
        ("embeddings.word_embeddings", "embeddings.token"),
        ("embeddings.position_embeddings", "embeddings.position"),
        ("embeddings.token_type_embeddings", "embeddings.type"),
        ("embeddings.LayerNorm", "embeddings.norm"),
        ("encoder.embedding_hidden_mapping_in", "embeddings.projection"),
        (f"{_LAYER}attention.query", "layers.{i}.attention.query"),
        (f"{_LAYER}attention.key", "layers.{i}.attention.key"),
        (f"{_LAYER}attention.value", "layers.{i}.attention.value"),
        (f"{_LAYER}attention.dense", "layers.{i}.attention.output"),
        (f"{_LAYER}attention.LayerNorm", "layers.{i}.attention_norm"),
        (f"{_LAYER}ffn", "layers.{i}.feed_forward.up"),
        (f"{_LAYER}ffn_output", "layers.{i}.feed_forward.down"),
        (f"{_LAYER}full_layer_layer_norm", "layers.{i}.feed_forward_norm"),
        ("pooler", "pooler.dense"),
    ),
    dropped=bert.names.dropped | {"sop_classifier.classifier": "sentence order is not predicted here"},
)

_masked = (
    ("predictions.dense", "head.dense"),
    ("predictions.LayerNorm", "head.norm"),
    ("predictions.bias", "head.decoder.bias"),
    ("predictions.decoder", "head.decoder"),
)

heads = (
    HeadPage("AlbertModel", None),
    HeadPage(
        "AlbertForMaskedLM", MaskedLM(), _masked, duplicate_names={"predictions.bias": "predictions.decoder.bias"}
    ),
    HeadPage("AlbertForSequenceClassification", SequenceClassification(), (("classifier", "head.classifier"),)),
    HeadPage("AlbertForTokenClassification", TokenClassification(), (("classifier", "head.classifier"),)),
    HeadPage("AlbertForQuestionAnswering", QuestionAnswering(), (("qa_outputs", "head.classifier"),)),
    HeadPage("AlbertForPreTraining", MaskedLM(), ()),  # read as the first of its two heads
)

family = Family(defaults=defaults, keys=keys, names=names, heads=heads)
