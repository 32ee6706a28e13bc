"""Text regression: a number for a text or a pair of texts, such as stars, or the similarity of two sentences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Head, SequenceClassification
from pellucid.errors import InputError, shorten
from pellucid.training.data import check_at_least_two, row_location, value_of
from pellucid.training.distillation import DistillationObjective
from pellucid.training.learner import Learner
from pellucid.training.metrics import regression_scores, require_library
from pellucid.training.objective import Example, Fields, batch_of, head_for, logits_of
from pellucid.training.reading import encode_rows


class Target(NamedTuple):
    """The number to predict; None for a row without one.  teacher_number: a teacher's prediction."""

    number: float | None
    teacher_number: float | None = None


@dataclass(frozen=True, kw_only=True)
class TextRegression(DistillationObjective):
    """One number for each text; squared error.

    teacher: a model of one number, used beside the labels, or with teacher_share 1 in their place, so that rows need
        none. A temperature has no effect on one number, and is refused.
    """

    name: ClassVar[str] = "text-regression"
    columns: ClassVar[tuple[str, ...]] = ("text", "label", "text_pair")
    default_settings: ClassVar[dict[str, Any]] = {"learning_rate": 1e-4}
    best_metric: ClassVar[str] = "spearman"
    uses_temperature: ClassVar[bool] = False

    def fitted(self, rows: Sequence[Fields]) -> Self:
        require_library("scipy")
        check_at_least_two(rows)
        numbers = [] if self.is_unlabelled(rows) else label_numbers(rows)
        if numbers and min(numbers) == max(numbers):
            raise InputError(f"every row has the number {numbers[0]:g}: there is nothing to tell apart")
        return self

    def head(self, loaded: Loaded) -> Head:
        return head_for(loaded, "sequence-classification")

    def labels(self, loaded: Loaded) -> tuple[str, ...]:
        own = isinstance(loaded.config.head, SequenceClassification) and loaded.config.num_labels == 1
        return loaded.config.labels if own else ("LABEL_0",)

    def facts(self) -> dict[str, Any]:
        return {"problem_type": "regression"}

    def check_teacher(self, teacher: Loaded, loaded: Loaded) -> None:
        if not isinstance(teacher.config.head, SequenceClassification) or teacher.config.num_labels != 1:
            raise InputError(f"the teacher has {teacher.config.num_labels} labels, expected a model of one number")

    def baseline_scores(self, training_examples: Sequence[Example], held_out: Sequence[Example]) -> dict[str, float]:
        numbers, right = ([one.target.number for one in side] for side in (training_examples, held_out))
        if None in numbers + right:
            return {}
        mean = math.fsum(numbers) / len(numbers)
        return {"mse": math.fsum((one - mean) ** 2 for one in right) / len(right)}

    # -- rows to examples ---------------------------------------------------------------------------------------------

    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        if loaded.config.num_labels != 1:
            raise InputError(
                f"this model has {loaded.config.num_labels} labels, expected one number: choose another task"
            )
        read = encode_rows(loaded, rows, self.max_length)
        numbers = [None] * len(rows) if self.is_unlabelled(rows) else label_numbers(rows)
        logits = self.teacher_logits_of_texts(loaded, rows)
        targets = map(Target, numbers, (None if one is None else float(one) for one in logits))
        return [Example((one.ids,), (one.type_ids,), target) for one, target in zip(read, targets)]

    # -- examples to losses -------------------------------------------------------------------------------------------

    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        targets: list[Target] = [one.target for one in examples]
        found = {"labels": torch.tensor([one.number or 0.0 for one in targets], dtype=torch.float32, device="cpu")}
        if self.teacher is not None:
            found["taught"] = torch.tensor([one.teacher_number for one in targets], dtype=torch.float32, device="cpu")
        return batch_of(loaded, examples, **found)

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        predictions = learner.logits(**batch)[:, 0]
        each = (predictions - batch["labels"]) ** 2
        if self.teacher is not None:
            each = self.blend_losses(each, (predictions - batch["taught"]) ** 2)
        return each.sum()

    # -- scores -------------------------------------------------------------------------------------------------------

    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """->  "mse", "pearson", "spearman", and "loss", equal to "mse"; without labels by the teacher's numbers"""
        predictions = logits_of(loaded, examples)
        targets: list[Target] = [one.target for one in examples]
        right: list[Any] = [one.teacher_number if one.number is None else one.number for one in targets]
        found = regression_scores(right, [float(one) for one in predictions])
        return {"loss": found["mse"]} | found


def label_numbers(rows: Sequence[Fields]) -> list[float]:
    """The column of labels as numbers. Raises InputError, which names the row, for any that is not a finite number."""
    found = []
    for row in rows:
        value = value_of(row, "label")
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number) or abs(number) > 1e30:
            raise InputError(f"{row_location(row)}: the label is {shorten(repr(value), 60)}, expected a finite number")
        found.append(number)
    return found
