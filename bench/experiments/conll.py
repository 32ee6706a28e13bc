"""Entities in Spanish sentences (CoNLL-2002): MiniLM, which saw little Spanish, beside `transformers.Trainer`."""

from collections.abc import Iterator
from typing import Any

from experiment import Options, ResultRow, conll
from trainer_comparison import compare_with_trainer

from pellucid.training.data import read
from pellucid.training.tagging import TokenClassification

RECIPE: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 2e-4,
    "warmup": 0.1,
    "weight_decay": 0.01,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}


def run(options: Options) -> Iterator[ResultRow]:
    train, test = (
        options.subset(read(conll(options.data, options.scratch, part), objective=TokenClassification).rows, 300)
        for part in ("esp.train", "esp.testb")
    )
    setting = f"CoNLL-2002 Spanish, {len(train):,} sentences, MiniLM, 3 epochs of batches of 32, rate 2e-4"
    measure = ("f1", "test entity F1")
    yield from compare_with_trainer(options, "conll", TokenClassification(), train, test, RECIPE, setting, measure)
