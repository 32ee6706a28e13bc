"""How likely the tokens of a text are, position by position, without all logits being there at once."""

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
    """Of some positions: their cross-entropies summed, how many they are, and at how many the likeliest is right."""

    loss: float
    positions: int
    right: int


@dataclass(frozen=True, kw_only=True)
class VocabularyObjective(DistillationObjective):
    """An objective that asks some positions for a token: `labels` Int[Tensor, "batch seq"], -100 for none."""

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        return float((batch["labels"] != IGNORED).sum())

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        features, (weight, bias), labels = target_features(learner, batch)
        if self.taught_by is None:
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
    """What the table of the head is multiplied with at the positions that are asked, since the vocabulary is the most
    costly of all products; that table and its bias; and the right tokens."""
    has_target, head = batch["labels"] != IGNORED, learner.module.head
    assert isinstance(head, MaskedToken | NextToken)  # the objective asked for it
    return learner.features(learner.before_head(**batch)[has_target]), head.table, batch["labels"][has_target]


def likelihood_scores(
    loaded: Loaded, examples: Sequence[Example], read: Callable[[list[int]], dict[str, Tensor]]
) -> dict[str, float]:
    """The mean loss, its exponential and the share that is right, over all positions that are asked.

    read: the examples with these numbers as one batch, `labels` Int[Tensor, "batch seq"] among it, -100 for none.
    Raises InputError where no position is asked.
    """
    module, lengths = loaded.module.packed_copy(), [one.length for one in examples]
    found = [one for _, one in run_batches(module, lengths, lambda group: _batch_likelihood(module, **read(group)))]
    positions = sum(one.positions for one in found)
    if not positions:
        raise no_target_error()
    loss = sum(one.loss for one in found) / positions
    return {"loss": loss, "perplexity": perplexity(loss), "accuracy": sum(one.right for one in found) / positions}


def no_target_error() -> InputError:
    """The refusal of held-out examples in which no position is asked."""
    return InputError("the held-out examples have no token to predict: give more of them, or longer ones")


def _batch_likelihood(module: Network, labels: Tensor, **batch: Tensor) -> LikelihoodSums:
    has_target = labels != IGNORED
    targets = labels[has_target]
    loss, right = 0.0, 0
    for logits, chunk_targets in zip(module.logits_at(has_target, batch, MIN_POSITIONS), targets.split(MIN_POSITIONS)):
        loss += float(functional.cross_entropy(logits.float(), chunk_targets, reduction="sum"))
        right += int((logits.argmax(dim=-1) == chunk_targets).sum())
    return LikelihoodSums(loss, len(targets), right)
