"""Shared fixtures of the training tests: tiny checkpoints, rows that train in seconds, and rows of real data."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pellucid
from tests.tasks.trained import WORDS

Rows = list[dict[str, Any]]

FEELINGS = {"good": "positive", "hate": "negative"}
"""Each planted word, and the label of the texts that contain it."""


@pytest.fixture
def opened(checkpoint: Callable[[str], Path]) -> Callable[..., "pellucid.Model"]:
    """Loads a tiny checkpoint by name, anew at each call; further arguments are those of `pellucid.load`."""
    return lambda name, **said: pellucid.load(checkpoint(name), **said)


@pytest.fixture
def body(opened: Callable[..., "pellucid.Model"]) -> "pellucid.Model":
    """A tiny BERT without a head: 2 layers, 4 heads, hidden size 32, 600 tokens, at most 98 positions."""
    return opened("bert-body")


@pytest.fixture
def scratch(opened: Callable[..., "pellucid.Model"]) -> "pellucid.Model":
    """An untrained BERT with the same tokenizer, 1 layer, hidden size 32, no dropout, that trains quickly."""
    sizes = {"vocab_size": 600, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 98}
    config = pellucid.Config.of("bert", intermediate_size=64, pad_token_id=0, **sizes, **still)
    return pellucid.build(config, seed=3, tokenizer=opened("bert-body").tokenizer)


@pytest.fixture
def feelings() -> Callable[..., Rows]:
    """Rows of "text" and "label", where one planted word decides the label: `feelings(40, seed=1)`."""

    def rows(many: int, seed: int = 0, longest: int = 9) -> Rows:
        chance, found = random.Random(seed), []
        plain = [word for word in WORDS if word not in (*FEELINGS, "love")]
        for i in range(many):
            words = chance.choices(plain, k=chance.randint(3, longest))
            planted = list(FEELINGS)[i % len(FEELINGS)]
            words[chance.randrange(len(words))] = planted
            found.append({"text": " ".join(words), "label": FEELINGS[planted]})
        return found

    return rows


@pytest.fixture(scope="session")
def sst2(shared: Callable[[str], Path]) -> Callable[..., Rows]:
    """Sentences of SST-2 as "text" and "label" ("positive" or "negative"): `sst2("train", 200)`; None for all."""

    def rows(split: str, many: int | None = None) -> Rows:
        lines = shared(f"data/sst2/{split}.txt").read_text(encoding="utf-8").splitlines()[:many]
        parted = [line.split(" ", 1) for line in lines]
        return [{"text": text, "label": ("negative", "positive")[int(label)]} for label, text in parted]

    return rows
