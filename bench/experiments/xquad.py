"""Answers in paragraphs (XQuAD English, 200 to learn from, 40 to judge by): MiniLM beside `transformers.Trainer`."""

from collections.abc import Iterator
from typing import Any

from experiment import Asked, Line, xquad
from trainer_comparison import beside

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


def run(asked: Asked) -> Iterator[Line]:
    paragraphs = xquad(asked.data)
    train, test = ([row for one in part for row in one] for part in (paragraphs[:200], paragraphs[200:]))
    train, test = asked.some(train, 60), asked.some(test, 30)
    said = f"XQuAD English, {len(train):,} questions, MiniLM, 3 epochs of batches of 16, rate 2e-4"
    yield from beside(asked, "xquad", QuestionAnswering(), train, test, RECIPE, said, ("f1", "test F1 of words"))
