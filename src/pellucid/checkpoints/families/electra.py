"""ELECTRA: BERT's layers over a narrow token table, trained to detect replaced tokens (Clark et al., 2020,
arXiv:2003.10555)."""

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.families import bert
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import TensorNames
from pellucid.config import (
    Config,
    MaskedLM,
    Plain,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
)

defaults = Config(
    family="electra",
    vocab_size=30522,
    hidden_size=256,
    num_hidden_layers=12,
    num_attention_heads=4,
    feed_forward=Plain(intermediate_size=1024, hidden_act="gelu"),
    type_vocab_size=2,
    embedding_size=128,
    pad_token_id=0,
)


keys = Keys(
    unrenamed=(*bert.keys.unrenamed, "embedding_size", "bos_token_id", "eos_token_id"),
    fixed=bert.keys.fixed,
    inert=("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),  # of multiple choice
)

_REPLACED = "it detects replaced tokens, for which there is no head here"

names = TensorNames(
    prefix="electra.",
    body=(
        *(row for row in bert.names.body if row[1] != "pooler.dense"),
        ("embeddings_project", "embeddings.projection"),
    ),
    dropped=bert.names.dropped
    | {
        "discriminator_predictions.dense": _REPLACED,
        "discriminator_predictions.dense_prediction": _REPLACED,
    },
)

heads = (
    HeadPage("ElectraModel", None),
    HeadPage(
        "ElectraForMaskedLM",
        MaskedLM(activation="gelu"),
        (
            ("generator_predictions.dense", "head.dense"),
            ("generator_predictions.LayerNorm", "head.norm"),
            ("generator_lm_head", "head.decoder"),
        ),
    ),
    HeadPage(
        "ElectraForSequenceClassification",
        SequenceClassification(pool="first", dense_activation="gelu"),
        (("classifier.dense", "head.pre_classifier"), ("classifier.out_proj", "head.classifier")),
    ),
    HeadPage("ElectraForTokenClassification", TokenClassification(), (("classifier", "head.classifier"),)),
    HeadPage("ElectraForQuestionAnswering", QuestionAnswering(), (("qa_outputs", "head.classifier"),)),
    HeadPage("ElectraForPreTraining", None),  # only its body
)

family = Family(defaults=defaults, keys=keys, names=names, heads=heads)
