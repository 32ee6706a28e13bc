"""Losses of label logits, row by row, and the weights of labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.config.checks import check_range
from pellucid.errors import Argument, InputError
from pellucid.training.labels import LabelSummary, label_id


def row_losses(
    kind: str, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """The loss of each row.

    logits: Float[Tensor, "batch labels"].  labels: Int[Tensor, "batch"] of the kind "single", else shaped as logits.
    weights: Float[Tensor, "labels"] on the positive labels of the kind "multiple".
    ->  Float[Tensor, "batch"]
    """
    if kind == "single":
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    if kind == "multiple":
        each = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none", pos_weight=weights)
        return each.mean(-1)
    return functional.kl_div(functional.log_softmax(logits, dim=-1), labels, reduction="none").sum(-1)


def label_weights(class_weights: Any, labels: Sequence[str], found: LabelSummary | None) -> Tensor:
    """The weight of each label: Float32[Tensor, "labels"]

    class_weights: {label: weight}, 1 for those not named; "balanced", by the counts of `found`; None for 1 each.
    """
    weights = torch.ones(len(labels), dtype=torch.float32, device="cpu")
    if class_weights == "balanced" and found is not None:
        for name, count in zip(found.classes, found.counts):
            weights[label_id(name, "class_weights", labels)] = _balanced_weight(count, found)
    named = set[int]()
    for name, weight in class_weights.items() if isinstance(class_weights, Mapping) else ():
        check_range(f"class_weights[{name!r}]", weight, above=0.0, maximum=1e6)
        number = label_id(str(name), "class_weights", labels)
        if number in named:
            raise InputError(Argument("class_weights"), f" names the label {labels[number]!r} twice: name it once")
        named.add(number)
        weights[number] = weight
    return weights


def _balanced_weight(count: int, found: LabelSummary) -> float:
    """For one label per row the inverse frequency, with mean 1 over rows; for several, negatives per positive."""
    if found.kind == "multiple":
        return max(found.rows - count, 1) / max(count, 1)
    return found.rows / (len(found.counts) * count)
