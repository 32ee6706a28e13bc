"""Likeness of sentences (STS benchmark): all of MiniLM learns, with CoSENT, 2 epochs; the loss was fixed beforehand."""

from collections.abc import Iterator
from typing import Any

from experiment import MINILM, Asked, Held, Line, stsb, taught

import pellucid

RECIPE: dict[str, Any] = {
    "criterion": "cosent",
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 7e-5,
    "warmup": 0.1,
    "weight_decay": 0.01,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}


def run(asked: Asked) -> Iterator[Line]:
    train, dev, test = (asked.some(stsb(asked.data, part), 200) for part in ("train", "dev", "test"))
    options = {"criterion": RECIPE["criterion"], "top_score": 5.0}
    before = pellucid.evaluate(MINILM, test, "similarity", **options)["spearman"]
    yield Line("STS-B, MiniLM as it comes", "test Spearman", [before], [0.0])
    scores, minutes = taught(asked, "stsb", train, Held("similarity", "spearman", dev, test, options), RECIPE)
    said = f"STS-B, {len(train):,} pairs, MiniLM, CoSENT, {RECIPE['epochs']} epochs of batches of 32, rate 7e-5"
    yield Line(said, "test Spearman", scores, minutes, wanted=0.860, most_minutes=2.5)
