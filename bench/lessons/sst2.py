"""Sentiment of sentences (SST-2): all of MiniLM learns, 3 epochs, the best by the development sentences is kept."""

import time
from collections.abc import Iterator
from typing import Any

from lesson import MINILM, Asked, Line, sst2

import pellucid

RECIPE: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 1e-4,
    "warmup": 0.1,
    "weight_decay": 0.01,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}


def run(asked: Asked) -> Iterator[Line]:
    train, dev, test = (asked.some(sst2(asked.data, part), 200) for part in ("train", "dev", "test"))
    scores, minutes = list[float](), list[float]()
    for seed in asked.seeds:
        started = time.perf_counter()
        out = asked.scratch / f"sst2-{seed}"
        pellucid.train(MINILM, train, "classify", validation=dev, out=out, overwrite=True, seed=seed, **RECIPE)
        minutes.append((time.perf_counter() - started) / 60)
        scores.append(pellucid.evaluate(out, test, "classify")["accuracy"])
    said = f"SST-2, {len(train):,} sentences, MiniLM, all of it, 3 epochs of batches of 32, rate 1e-4"
    yield Line(said, "test accuracy", scores, minutes, wanted=0.885, most_minutes=1.5)
