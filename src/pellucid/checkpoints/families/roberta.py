"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT trained longer, on bytes or pieces; padding has no position of its own (Liu
et al., 2019, arXiv:1907.11692; Conneau et al., 2019, arXiv:1911.02116; Martin et al., 2019, arXiv:1911.03894)."""

from dataclasses import replace

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.families import bert
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.config import (
    Config,
    Learned,
    MaskedLM,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
)

defaults = Config(
    family="roberta",
    vocab_size=50265,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    position=Learned(max_position_embeddings=512, skip_padding=True),
    type_vocab_size=2,
    pooler=True,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
)

keys = Keys(unrenamed=(*bert.keys.unrenamed, "bos_token_id", "eos_token_id"), fixed=bert.keys.fixed)

names = replace(bert.names, prefix="roberta.", renamed={})

labels = (("classifier", "head.classifier"),)


def heads(stem: str) -> tuple[HeadPage, ...]:
    """The heads; class names begin with `stem`."""
    return (
        HeadPage(f"{stem}Model", None),
        HeadPage(
            f"{stem}ForMaskedLM",
            MaskedLM(activation="gelu"),
            (
                ("lm_head.dense", "head.dense"),
                ("lm_head.layer_norm", "head.norm"),
                ("lm_head.bias", "head.decoder.bias"),
                ("lm_head.decoder", "head.decoder"),
            ),
            duplicate_names={"lm_head.bias": "lm_head.decoder.bias"},
        ),
        HeadPage(
            f"{stem}ForSequenceClassification",
            SequenceClassification(pool="first", dense_activation="tanh"),
            (("classifier.dense", "head.pre_classifier"), ("classifier.out_proj", "head.classifier")),
        ),
        HeadPage(f"{stem}ForTokenClassification", TokenClassification(), labels),
        HeadPage(f"{stem}ForQuestionAnswering", QuestionAnswering(), (("qa_outputs", "head.classifier"),)),
    )


def _family(model_type: str, stem: str, vocab_size: int) -> Family:
    return Family(replace(defaults, family=model_type, vocab_size=vocab_size), keys, names, heads(stem))


families = (
    _family("roberta", "Roberta", 50265),
    _family("xlm-roberta", "XLMRoberta", 30522),
    _family("camembert", "Camembert", 30522),
)
