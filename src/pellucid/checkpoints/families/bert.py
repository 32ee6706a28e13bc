"""BERT: an encoder with post-norm layers and trained positions (Devlin et al., 2018, arXiv:1810.04805)."""

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import TensorNames
from pellucid.config import (
    Config,
    Dropout,
    LayerNorm,
    Learned,
    MaskedLM,
    NextSentence,
    Plain,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
)

defaults = Config(
    family="bert",
    vocab_size=30522,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    feed_forward=Plain(intermediate_size=3072, hidden_act="gelu"),
    norm=LayerNorm(layer_norm_eps=1e-12),
    residual="post",
    position=Learned(max_position_embeddings=512),
    type_vocab_size=2,
    dropout=Dropout(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    pooler=True,
    pad_token_id=0,
)

keys = Keys(
    unrenamed=tuple(
        """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act
        hidden_dropout_prob attention_probs_dropout_prob classifier_dropout max_position_embeddings
        type_vocab_size initializer_range layer_norm_eps pad_token_id tie_word_embeddings""".split()
    ),
    fixed={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    inert=tuple(  # of the multilingual and Chinese checkpoints, which TensorFlow wrote
        """directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
        pooler_type""".split()
    ),
)

names = TensorNames(
    prefix="bert.",
    body=(
        ("embeddings.word_embeddings", "embeddings.token"),
        ("embeddings.position_embeddings", "embeddings.position"),
        ("embeddings.token_type_embeddings", "embeddings.type"),
        ("embeddings.LayerNorm", "embeddings.norm"),
        ("encoder.layer.{i}.attention.self.query", "layers.{i}.attention.query"),
        ("encoder.layer.{i}.attention.self.key", "layers.{i}.attention.key"),
        ("encoder.layer.{i}.attention.self.value", "layers.{i}.attention.value"),
        ("encoder.layer.{i}.attention.output.dense", "layers.{i}.attention.output"),
        ("encoder.layer.{i}.attention.output.LayerNorm", "layers.{i}.attention_norm"),
        ("encoder.layer.{i}.intermediate.dense", "layers.{i}.feed_forward.up"),
        ("encoder.layer.{i}.output.dense", "layers.{i}.feed_forward.down"),
        ("encoder.layer.{i}.output.LayerNorm", "layers.{i}.feed_forward_norm"),
        ("pooler.dense", "pooler.dense"),
    ),
    renamed={"gamma": "weight", "beta": "bias"},  # TensorFlow's names for gain and bias of a norm
    dropped={"embeddings.position_ids": "counts 0, 1, 2, ... and holds nothing learned"},
)

heads = (
    HeadPage("BertModel", None),
    HeadPage(
        "BertForMaskedLM",
        MaskedLM(),
        (
            ("cls.predictions.transform.dense", "head.dense"),
            ("cls.predictions.transform.LayerNorm", "head.norm"),
            ("cls.predictions.bias", "head.decoder.bias"),
            ("cls.predictions.decoder", "head.decoder"),
        ),
        duplicate_names={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    ),
    HeadPage("BertForNextSentencePrediction", NextSentence(), (("cls.seq_relationship", "head.classifier"),)),
    HeadPage("BertForSequenceClassification", SequenceClassification(), (("classifier", "head.classifier"),)),
    HeadPage("BertForTokenClassification", TokenClassification(), (("classifier", "head.classifier"),)),
    HeadPage("BertForQuestionAnswering", QuestionAnswering(), (("qa_outputs", "head.classifier"),)),
    HeadPage("BertForPreTraining", MaskedLM(), ()),  # read as the first of its two heads
)

family = Family(defaults=defaults, keys=keys, names=names, heads=heads)
