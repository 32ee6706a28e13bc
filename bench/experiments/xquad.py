"""Answers in paragraphs (XQuAD English, 200 for training, 40 for the test): MiniLM beside `transformers.Trainer`."""

from collections.abc import Iterator
from typing import Any

from experiment import Options, ResultRow, xquad
from trainer_comparison import compare_with_trainer

from pellucid.training.answers import QuestionAnswering

RECIPE: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 16,
    "learning_rate": 2e-4,
    "warmup": 0.1,
    "weight_decay": 0.01,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}


def run(options: Options) -> Iterator[ResultRow]:
    paragraphs = xquad(options.data)
    train, test = ([row for rows in part for row in rows] for part in (paragraphs[:200], paragraphs[200:]))
    train, test = options.subset(train, 60), options.subset(test, 30)
    setting = f"XQuAD English, {len(train):,} questions, MiniLM, 3 epochs of batches of 16, rate 2e-4"
    measure = ("f1", "test F1 of words")
    yield from compare_with_trainer(options, "xquad", QuestionAnswering(), train, test, RECIPE, setting, measure)
