"""Sentiment of sentences (SST-2): all of MiniLM is trained for 2 epochs, the best development score counts."""

from collections.abc import Iterator
from typing import Any

from experiment import Evaluation, Options, ResultRow, sst2, train_and_evaluate

RECIPE: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 1e-4,
    "warmup": 0.1,
    "weight_decay": 0.01,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}


def run(options: Options) -> Iterator[ResultRow]:
    train, dev, test = (options.subset(sst2(options.data, part), 200) for part in ("train", "dev", "test"))
    scores, minutes = train_and_evaluate(options, "sst2", train, Evaluation("classify", "accuracy", dev, test), RECIPE)
    recipe = f"{RECIPE['epochs']} epochs of batches of 32, rate 1e-4"
    setting = f"SST-2, {len(train):,} sentences, MiniLM, all of it, {recipe}"
    yield ResultRow(setting, "test accuracy", scores, minutes, wanted=0.885, most_minutes=1.5)
