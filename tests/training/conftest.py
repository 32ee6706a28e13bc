"""Shared fixtures of the training tests: tiny checkpoints, rows that train in seconds, and rows of real data."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pellucid
from tests.tasks.planted_facts import WORDS

Rows = list[dict[str, Any]]

LABEL_OF_WORD = {"good": "positive", "hate": "negative"}
"""Each planted word, and the label of the texts that contain it."""


@pytest.fixture
def load_tiny(checkpoint: Callable[[str], Path]) -> Callable[..., "pellucid.Model"]:
    """Loads a tiny checkpoint by name, again at each call; other arguments are those of `pellucid.load`."""
    return lambda name, **options: pellucid.load(checkpoint(name), **options)


@pytest.fixture
def body(load_tiny: Callable[..., "pellucid.Model"]) -> "pellucid.Model":
    """A tiny BERT without a head: 2 layers, 4 heads, hidden size 32, 600 tokens, at most 98 positions."""
    return load_tiny("bert-body")


@pytest.fixture
def scratch(load_tiny: Callable[..., "pellucid.Model"]) -> "pellucid.Model":
    """An untrained BERT with the same tokenizer, 1 layer, hidden size 32, no dropout, that trains quickly."""
    sizes = {"vocab_size": 600, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 98}
    config = pellucid.Config.of("bert", intermediate_size=64, pad_token_id=0, **sizes, **no_dropout)
    return pellucid.build(config, seed=3, tokenizer=load_tiny("bert-body").tokenizer)


@pytest.fixture
def sentiments() -> Callable[..., Rows]:
    """Rows of "text" and "label", where one planted word decides the label: `sentiments(40, seed=1)`."""

    def rows(count: int, seed: int = 0, max_words: int = 9) -> Rows:
        generator, found = random.Random(seed), []
        neutral = [word for word in WORDS if word not in (*LABEL_OF_WORD, "love")]
        for i in range(count):
            words = generator.choices(neutral, k=generator.randint(3, max_words))
            planted = list(LABEL_OF_WORD)[i % len(LABEL_OF_WORD)]
            words[generator.randrange(len(words))] = planted
            found.append({"text": " ".join(words), "label": LABEL_OF_WORD[planted]})
        return found

    return rows


@pytest.fixture(scope="session")
def sst2(shared: Callable[[str], Path]) -> Callable[..., Rows]:
    """Sentences of SST-2 as "text" and "label" ("positive" or "negative"): `sst2("train", 200)`; None for all."""

    def rows(split: str, count: int | None = None) -> Rows:
        lines = shared(f"data/sst2/{split}.txt").read_text(encoding="utf-8").splitlines()[:count]
        fields = [line.split(" ", 1) for line in lines]
        return [{"text": text, "label": ("negative", "positive")[int(label)]} for label, text in fields]

    return rows
