"""A small random model with a real tokenizer for every task, and items for it; its answers are meaningless."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pellucid
from pellucid.config import Head, MaskedLM, QuestionAnswering, SequenceClassification, TokenClassification
from tests.conftest import as_trained, tiny_config
from tests.generation.writers import byte_level, pieces, writer

HEADS: dict[str, tuple[Head | None, dict[str, Any]]] = {
    "feel": (SequenceClassification(), {"labels": ("BAD", "SO SO", "GOOD")}),
    "nli": (SequenceClassification(), {"labels": ("contradiction", "neutral", "entailment")}),
    "tags": (TokenClassification(), {"labels": ("O", "B-PER", "I-PER")}),
    "spans": (QuestionAnswering(), {}),
    "mask": (MaskedLM(), {}),
    "body": (None, {}),
}
"""Small encoders by name: their head, and further facts."""


@dataclass(frozen=True)
class TaskCase:
    """A task's model by name, its items, and the options that it requires."""

    model: str
    items: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


TEXTS = ("I love glass", "Nobody came to the house at five o'clock, and nobody left.", "a [SEP] b", "Ada")
PAIRS = (("I love glass", "a house"), ("Ada came at five, and left again.", "Ada"), ("a [SEP] b", "c [CLS] d"))
SHORT = {"max_new_tokens": 6, "do_sample": False}

TASK_CASES = {
    "text-classification": TaskCase("feel", (*TEXTS, PAIRS[0])),
    "token-classification": TaskCase("tags", TEXTS),
    "question-answering": TaskCase("spans", PAIRS, {"top_k": 3}),
    "fill-mask": TaskCase("mask", tuple(f"{text} [MASK]." for text in TEXTS)),
    "summarization": TaskCase("pair", TEXTS, SHORT),
    "translation": TaskCase("pair", TEXTS, SHORT),
    "text2text-generation": TaskCase("pair", TEXTS, SHORT),
    "text-generation": TaskCase("decoder", TEXTS, SHORT),
    "zero-shot-classification": TaskCase("nli", TEXTS, {"candidate_labels": ["sport", "art", "war"]}),
    "feature-extraction": TaskCase("body", TEXTS),
    "sentence-similarity": TaskCase("body", PAIRS),
    "text-ranking": TaskCase("body", tuple((text, ["glass", "a house", "Ada"]) for text in TEXTS)),
}
"""The test case of every task."""


def saved_folder(name: str, folder: Path, minilm: pellucid.Model) -> Path:
    """Saves a small model as a checkpoint; name: one of `HEADS`, "decoder", or "pair" for an encoder-decoder."""
    if name in HEADS:
        head, facts = HEADS[name]
        sizes = {"vocab_size": minilm.config.vocab_size, "max_position_embeddings": 64, "initializer_range": 0.3}
        model = pellucid.build(tiny_config(head=head, **sizes, **facts), seed=len(name), tokenizer=minilm.tokenizer)
    else:
        model = writer(byte_level(), max_position_embeddings=256) if name == "decoder" else writer(pieces(), "t5")
    return as_trained(model).save(folder / name)
