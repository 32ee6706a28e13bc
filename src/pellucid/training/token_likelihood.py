"""Losses and scores of token predictions, without holding all logits in memory at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.machine import product_dtype
from pellucid.models import Network
from pellucid.models.heads import MaskedToken, NextToken
from pellucid.tasks.passes import run_batches
from pellucid.training.distillation import DistillationObjective, distillation_loss
from pellucid.training.learner import Learner
from pellucid.training.losses import IGNORED, MIN_POSITIONS, vocabulary_loss
from pellucid.training.metrics import perplexity
from pellucid.training.objective import Example


class LikelihoodSums(NamedTuple):
    """The sum of cross-entropies over some positions, their number, and the number of right predictions (argmax)."""

    loss: float
    positions: int
    right: int


@dataclass(frozen=True, kw_only=True)
class VocabularyObjective(DistillationObjective):
    """An objective that predicts tokens at some positions: `labels` Int[Tensor, "batch seq"], -100 for none."""

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        return float((batch["labels"] != IGNORED).sum())

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        features, (weight, bias), labels = target_features(learner, batch)
        if self.loaded_teacher is None:
            return vocabulary_loss(features, weight, bias, labels, dtype=learner.dtype)
        kind = product_dtype(learner.dtype, features.device)
        logits = functional.linear(features.to(kind), weight.to(kind)).float()
        logits = logits if bias is None else logits + bias
        label_loss = functional.cross_entropy(logits, labels, reduction="sum")
        teacher_loss = distillation_loss(
            logits, self.teacher_logits(batch)[batch["labels"] != IGNORED], self.temperature
        ).sum()
        return self.blend_losses(label_loss, teacher_loss)


def target_features(
    learner: Learner, batch: Mapping[str, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor | None], Tensor]:
    """The head's features, vocabulary matrix and bias, and the target tokens, of positions with a target only, since
    the product with the vocabulary is the most expensive of all."""
    has_target, head = batch["labels"] != IGNORED, learner.module.head
    assert isinstance(head, MaskedToken | NextToken)  # what the objective's `head` returns
    return (
        learner.features(learner.before_head(**batch)[has_target]),
        head.output_embedding,
        batch["labels"][has_target],
    )


def likelihood_scores(
    loaded: Loaded, examples: Sequence[Example], read: Callable[[list[int]], dict[str, Tensor]]
) -> dict[str, float]:
    """The mean loss, perplexity and accuracy over all positions with a target.

    read: returns the examples of these indices as one batch, with `labels` Int[Tensor, "batch seq"], -100 for none.
    Raises InputError where no position has a target.
    """
    module, lengths = loaded.module.packed_copy(), [one.length for one in examples]
    found = [one for _, one in run_batches(module, lengths, lambda group: _batch_likelihood(module, **read(group)))]
    positions = sum(one.positions for one in found)
    if not positions:
        raise no_target_error()
    loss = sum(one.loss for one in found) / positions
    return {"loss": loss, "perplexity": perplexity(loss), "accuracy": sum(one.right for one in found) / positions}


def no_target_error() -> InputError:
    """The error for held-out examples without any target."""
    return InputError("the held-out examples have no token to predict: give more of them, or longer ones")


def _batch_likelihood(module: Network, labels: Tensor, **batch: Tensor) -> LikelihoodSums:
    has_target = labels != IGNORED
    targets = labels[has_target]
    loss, right = 0.0, 0
    for logits, chunk_targets in zip(module.logits_at(has_target, batch, MIN_POSITIONS), targets.split(MIN_POSITIONS)):
        loss += float(functional.cross_entropy(logits.float(), chunk_targets, reduction="sum"))
        right += int((logits.argmax(dim=-1) == chunk_targets).sum())
    return LikelihoodSums(loss, len(targets), right)
