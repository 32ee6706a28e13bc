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
from tests.training.test_pairs import matching_pairs, scored_pairs
from tests.training.whole_run import run_loop, trained_model

Rows = list[dict[str, Any]]
SETTINGS: dict[str, Any] = {"epochs": 1, "batch_size": 8, "learning_rate": 5e-3, "clip": 0.1}
LORA: dict[str, Any] = {"lora": 2, "precision": "bfloat16"}
WEIGHTED = TextClassification(class_weights={"a": 2.0})
MULTI_LABEL: Rows = [
    {"text": "good food", "label": ["a"]},
    {"text": "bad sea", "label": []},
    {"text": "book", "label": ["b"]},
]
SINGLE_LABEL: Rows = [
    {"text": f"{word} story", "label": label} for word, label in (("good", "a"), ("bad", "b"), ("high", "a"))
]
NUMBERS: Rows = [{"text": f"{'book ' * i}story", "label": i / 3} for i in range(8)]


@pytest.mark.parametrize(
    ("objective", "rows", "held_out", "settings"),
    [
        (SentenceSimilarity(), scored_pairs(16), scored_pairs(8, 1), {}),
        (SentenceSimilarity(), scored_pairs(16), scored_pairs(8, 1), {"accumulation": 2}),
        (SentenceSimilarity(criterion="cosine"), scored_pairs(16), scored_pairs(8, 1), {}),
        (SentenceSimilarity(criterion="multiple-negatives"), matching_pairs(16), matching_pairs(4, 1), {}),
        (SentenceSimilarity(), scored_pairs(16), scored_pairs(8, 1), LORA),
        (TextClassification(), SINGLE_LABEL * 4, SINGLE_LABEL, {}),
        (WEIGHTED, SINGLE_LABEL * 4, SINGLE_LABEL, {}),
        (WEIGHTED, MULTI_LABEL * 4, MULTI_LABEL, {}),
        (TextRegression(), NUMBERS, NUMBERS, {}),
    ],
    ids=["cosent", "pieces", "cosine", "negatives", "adapters", "labels", "weights", "several", "numbers"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_dtype_does_not_change_the_training(
    load_tiny: Callable[..., "pellucid.Model"],
    objective: Objective,
    rows: Rows,
    held_out: Rows,
    settings: dict[str, Any],
    dtype: torch.dtype,
) -> None:
    def train() -> tuple[list[dict[str, float]], dict[str, Tensor]]:
        loop, events = run_loop(load_tiny("bert-body").loaded, objective, rows, held_out, **SETTINGS | settings)
        return [one.metrics for one in events if one.is_evaluation], trained_model(loop).module.state_dict()

    expected_scores, expected_weights = train()
    with default_dtype(dtype):
        scores, weights = train()
    assert scores == expected_scores and len(expected_scores) > 0
    assert weights.keys() == expected_weights.keys()
    assert all(torch.equal(weights[name], numbers) for name, numbers in expected_weights.items())
