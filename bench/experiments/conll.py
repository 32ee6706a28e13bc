"""Names in Spanish sentences (CoNLL-2002): MiniLM, which knows little Spanish, beside `transformers.Trainer`."""

from collections.abc import Iterator
from typing import Any

from experiment import Asked, Line, conll
from trainer_comparison import beside

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


def run(asked: Asked) -> Iterator[Line]:
    train, test = (
        asked.some(read(conll(asked.data, asked.scratch, part), objective=TokenClassification).rows, 300)
        for part in ("esp.train", "esp.testb")
    )
    said = f"CoNLL-2002 Spanish, {len(train):,} sentences, MiniLM, 3 epochs of batches of 32, rate 2e-4"
    yield from beside(asked, "conll", TokenClassification(), train, test, RECIPE, said, ("f1", "test entity F1"))
