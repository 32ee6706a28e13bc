"""Which number a text, or a pair of texts, has: how many stars, how alike two sentences are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Head, SequenceClassification
from pellucid.errors import InputError, short
from pellucid.training.data import check_several, place, value_of
from pellucid.training.distillation import Taught
from pellucid.training.learner import Learner
from pellucid.training.metrics import number_scores, require
from pellucid.training.objective import Example, Fields, batch_of, head_for, logits_of
from pellucid.training.reading import encoded


class Target(NamedTuple):
    """The number that is to be answered; None for a row without one. taught: what a teacher answers."""

    number: float | None
    taught: float | None = None


@dataclass(frozen=True, kw_only=True)
class TextRegression(Taught):
    """One number for each text, by the squared error.

    teacher: beside the truth, or with teacher_share 1 in its place, so that rows need no number; a model of one number.
        A temperature would soften nothing, and is refused.
    """

    name: ClassVar[str] = "text-regression"
    columns: ClassVar[tuple[str, ...]] = ("text", "label", "text_pair")
    settings: ClassVar[dict[str, Any]] = {"learning_rate": 1e-4}
    best: ClassVar[str] = "spearman"
    softens: ClassVar[bool] = False

    def fitted(self, rows: Sequence[Fields]) -> Self:
        require("scipy")
        check_several(rows)
        numbers = [] if self.unlabelled(rows) else numbers_of(rows)
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

    def simplest(self, learned: Sequence[Example], held_out: Sequence[Example]) -> dict[str, float]:
        numbers, right = ([one.target.number for one in side] for side in (learned, held_out))
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
        read = encoded(loaded, rows, self.max_length)
        numbers = [None] * len(rows) if self.unlabelled(rows) else numbers_of(rows)
        said = self.said_of_texts(loaded, rows)
        targets = map(Target, numbers, (None if one is None else float(one) for one in said))
        return [Example((one.ids,), (one.type_ids,), aim) for one, aim in zip(read, targets)]

    # -- examples to losses -------------------------------------------------------------------------------------------

    def collate(self, loaded: Loaded, examples: Sequence[Example], chance: np.random.Generator) -> dict[str, Tensor]:
        aims: list[Target] = [one.target for one in examples]
        found = {"labels": torch.tensor([one.number or 0.0 for one in aims], dtype=torch.float32, device="cpu")}
        if self.teacher is not None:
            found["taught"] = torch.tensor([one.taught for one in aims], dtype=torch.float32, device="cpu")
        return batch_of(loaded, examples, **found)

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        said = learner.logits(**batch)[:, 0]
        each = (said - batch["labels"]) ** 2
        if self.teacher is not None:
            each = self.shared(each, (said - batch["taught"]) ** 2)
        return each.sum()

    # -- how good it is -----------------------------------------------------------------------------------------------

    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """ "mse", "pearson", "spearman", and "loss", which is the first. Rows without a number are compared with the
        teacher."""
        said = logits_of(loaded, examples)
        aims: list[Target] = [one.target for one in examples]
        right = [one.taught if one.number is None else one.number for one in aims]
        found = number_scores([0.0 if one is None else one for one in right], [float(one) for one in said])
        return {"loss": found["mse"]} | found


def numbers_of(rows: Sequence[Fields]) -> list[float]:
    """The column of labels as numbers. Raises InputError, which names the row, for what is none, and for NaN."""
    found = []
    for row in rows:
        value = value_of(row, "label")
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number) or abs(number) > 1e30:
            raise InputError(f"{place(row)}: the label is {short(repr(value), 60)}, expected a finite number")
        found.append(number)
    return found
