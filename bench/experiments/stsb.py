"""Similarity of sentences (STS benchmark): all of MiniLM is trained for 2 epochs, with CoSENT, fixed beforehand."""

from collections.abc import Iterator
from typing import Any

from experiment import MINILM, Evaluation, Options, ResultRow, stsb, train_and_evaluate

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


def run(options: Options) -> Iterator[ResultRow]:
    train, dev, test = (options.subset(stsb(options.data, part), 200) for part in ("train", "dev", "test"))
    task_options = {"criterion": RECIPE["criterion"], "top_score": 5.0}
    before = pellucid.evaluate(MINILM, test, "similarity", **task_options)["spearman"]
    yield ResultRow("STS-B, MiniLM as it comes", "test Spearman", [before], [0.0])
    evaluation = Evaluation("similarity", "spearman", dev, test, task_options)
    scores, minutes = train_and_evaluate(options, "stsb", train, evaluation, RECIPE)
    setting = f"STS-B, {len(train):,} pairs, MiniLM, CoSENT, {RECIPE['epochs']} epochs of batches of 32, rate 7e-5"
    yield ResultRow(setting, "test Spearman", scores, minutes, wanted=0.860, most_minutes=2.5)
