"""DistilBERT: half of BERT's layers, distilled from BERT; no token types, no pooler (Sanh et al., 2019,
arXiv:1910.01108)."""

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import TensorNames
from pellucid.config import (
    Config,
    Dropout,
    MaskedLM,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
)

defaults = Config(
    family="distilbert",
    vocab_size=30522,
    hidden_size=768,
    num_hidden_layers=6,
    num_attention_heads=12,
    dropout=Dropout(attention_output_dropout=0.0, dense_dropout=0.0, text_dropout=0.2, answer_dropout=0.1),
    pad_token_id=0,
)

keys = Keys(
    unrenamed=("vocab_size", "max_position_embeddings", "initializer_range", "pad_token_id", "tie_word_embeddings"),
    renamed={
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "activation": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "seq_classif_dropout": "text_dropout",
        "qa_dropout": "answer_dropout",
    },
    aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    inert=("sinusoidal_pos_embds", "tie_weights_"),  # sinusoidal tables are stored in the file
)

names = TensorNames(
    prefix="distilbert.",
    body=(
        ("embeddings.word_embeddings", "embeddings.token"),
        ("embeddings.position_embeddings", "embeddings.position"),
        ("embeddings.LayerNorm", "embeddings.norm"),
        ("transformer.layer.{i}.attention.q_lin", "layers.{i}.attention.query"),
        ("transformer.layer.{i}.attention.k_lin", "layers.{i}.attention.key"),
        ("transformer.layer.{i}.attention.v_lin", "layers.{i}.attention.value"),
        ("transformer.layer.{i}.attention.out_lin", "layers.{i}.attention.output"),
        ("transformer.layer.{i}.sa_layer_norm", "layers.{i}.attention_norm"),
        ("transformer.layer.{i}.ffn.lin1", "layers.{i}.feed_forward.up"),
        ("transformer.layer.{i}.ffn.lin2", "layers.{i}.feed_forward.down"),
        ("transformer.layer.{i}.output_layer_norm", "layers.{i}.feed_forward_norm"),
    ),
    dropped={"embeddings.position_ids": "counts 0, 1, 2, ... and holds nothing learned"},
)

heads = (
    HeadPage("DistilBertModel", None),
    HeadPage(
        "DistilBertForMaskedLM",
        MaskedLM(),
        (
            ("vocab_transform", "head.dense"),
            ("vocab_layer_norm", "head.norm"),
            ("vocab_projector", "head.decoder"),
        ),
    ),
    HeadPage(
        "DistilBertForSequenceClassification",
        SequenceClassification(pool="first", dense_activation="relu"),
        (("pre_classifier", "head.pre_classifier"), ("classifier", "head.classifier")),
    ),
    HeadPage("DistilBertForTokenClassification", TokenClassification(), (("classifier", "head.classifier"),)),
    HeadPage("DistilBertForQuestionAnswering", QuestionAnswering(), (("qa_outputs", "head.classifier"),)),
)

family = Family(defaults=defaults, keys=keys, names=names, heads=heads)
