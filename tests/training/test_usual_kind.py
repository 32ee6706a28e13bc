"""PyTorch's default dtype, which any caller may have set, does not affect training."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.training.classification import TextClassification
from pellucid.training.objective import Objective
from pellucid.training.pairs import SentenceSimilarity
from pellucid.training.regression import TextRegression
from tests.torch_state import default_dtype
from tests.training.learned import result, training
from tests.training.test_pairs import matched, scored

Rows = list[dict[str, Any]]
HOW: dict[str, Any] = {"epochs": 1, "batch_size": 8, "learning_rate": 5e-3, "clip": 0.1}
LORA: dict[str, Any] = {"lora": 2, "precision": "bfloat16"}
WEIGHED = TextClassification(class_weights={"a": 2.0})
SEVERAL: Rows = [
    {"text": "good food", "label": ["a"]},
    {"text": "bad sea", "label": []},
    {"text": "book", "label": ["b"]},
]
ONE: Rows = [{"text": f"{word} story", "label": label} for word, label in (("good", "a"), ("bad", "b"), ("high", "a"))]
NUMBERS: Rows = [{"text": f"{'book ' * i}story", "label": i / 3} for i in range(8)]


@pytest.mark.parametrize(
    ("objective", "rows", "held", "how"),
    [
        (SentenceSimilarity(), scored(16), scored(8, 1), {}),
        (SentenceSimilarity(), scored(16), scored(8, 1), {"accumulation": 2}),
        (SentenceSimilarity(criterion="cosine"), scored(16), scored(8, 1), {}),
        (SentenceSimilarity(criterion="multiple-negatives"), matched(16), matched(4, 1), {}),
        (SentenceSimilarity(), scored(16), scored(8, 1), LORA),
        (TextClassification(), ONE * 4, ONE, {}),
        (WEIGHED, ONE * 4, ONE, {}),
        (WEIGHED, SEVERAL * 4, SEVERAL, {}),
        (TextRegression(), NUMBERS, NUMBERS, {}),
    ],
    ids=["cosent", "pieces", "cosine", "negatives", "adapters", "labels", "weights", "several", "numbers"],
)
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_the_same_is_learned(
    opened: Callable[..., "pellucid.Model"],
    objective: Objective,
    rows: Rows,
    held: Rows,
    how: dict[str, Any],
    kind: torch.dtype,
) -> None:
    def learned() -> tuple[list[dict[str, float]], dict[str, Tensor]]:
        loop, events = training(opened("bert-body").loaded, objective, rows, held, **HOW | how)
        return [one.metrics for one in events if one.is_evaluation], result(loop).module.state_dict()

    looks, wanted = learned()
    with default_dtype(kind):
        seen, found = learned()
    assert seen == looks and len(looks) > 0
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], numbers) for name, numbers in wanted.items())
