"""Sentiment of sentences (SST-2): all of MiniLM learns, 2 epochs, the best by the development sentences is kept."""

from collections.abc import Iterator
from typing import Any

from experiment import Asked, Held, Line, sst2, taught

RECIPE: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 1e-4,
    "warmup": 0.1,
    "weight_decay": 0.01,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}


def run(asked: Asked) -> Iterator[Line]:
    train, dev, test = (asked.some(sst2(asked.data, part), 200) for part in ("train", "dev", "test"))
    scores, minutes = taught(asked, "sst2", train, Held("classify", "accuracy", dev, test), RECIPE)
    said = f"SST-2, {len(train):,} sentences, MiniLM, all of it, {RECIPE['epochs']} epochs of batches of 32, rate 1e-4"
    yield Line(said, "test accuracy", scores, minutes, wanted=0.885, most_minutes=1.5)
