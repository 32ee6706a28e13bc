"""Text classification: one label for a text or a pair of texts, several labels, or a share of each."""

import logging
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Head, SequenceClassification
from pellucid.config.checks import check_range
from pellucid.errors import Argument, InputError, join_names, shorten
from pellucid.training.data import check_at_least_two, is_blank, row_location, value_of
from pellucid.training.distillation import DistillationObjective, distillation_loss, multilabel_distillation_loss
from pellucid.training.label_losses import label_weights, row_losses
from pellucid.training.labels import (
    Label,
    LabelSummary,
    check_kind,
    column_label_names,
    find_label_id,
    kind_of,
    label_of,
    label_target,
    matches_kind,
    matching_label,
    summarise_labels,
)
from pellucid.training.learner import Learner
from pellucid.training.metrics import label_scores, majority_accuracy, multilabel_scores, require_library
from pellucid.training.objective import Example, Fields, batch_of, head_for, logits_of
from pellucid.training.reading import encode_rows

log = logging.getLogger("pellucid")

PROBLEMS = {
    "single": "single_label_classification",
    "multiple": "multi_label_classification",
    "soft": "single_label_classification",
}
"""The kinds of labels in the saved config; shares are saved as the single kind, a distribution over one label."""


class Target(NamedTuple):
    """The target of a text: a label in the form of `kind` (`training/labels.py`) or None, and a teacher's logits."""

    kind: str
    label: int | list[float] | None
    teacher_logits: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class TextClassification(DistillationObjective):
    """Classification of texts. The values in the label column determine the loss:

        "good", 3, True               one label each: cross-entropy
        ["good", "long"]              any number of labels: binary cross-entropy of each
        {"good": 0.8, "bad": 0.2}     a share of each label: KL divergence; [0.8, 0.2] in the order of the labels

    classes: the labels, in order; None for those of the data (whole numbers by size, else alphabetically), or those of
        the model where it already has them all.
    separator: separates several labels in one text, such as "|" in a table.
    class_weights: weights of rows by label, {label: weight}, 1 for those not named; "balanced" for the inverse of the
        label's frequency. They also apply to distillation losses. Of several labels per row they weigh positive ones.
    label_smoothing: probability mass spread evenly over all labels (Szegedy et al., 2015, arXiv:1512.00567).
    teacher: a model of the same labels, used beside those of rows, or with teacher_share 1 instead of them.
    """

    classes: tuple[str, ...] | None = None
    separator: str | None = None
    class_weights: Any = None
    label_smoothing: float = 0.0
    _label_summary: LabelSummary | None = field(default=None, repr=False)

    name: ClassVar[str] = "text-classification"
    columns: ClassVar[tuple[str, ...]] = ("text", "label", "text_pair")
    reading_options: ClassVar[tuple[str, ...]] = ("separator",)
    default_settings: ClassVar[dict[str, Any]] = {"learning_rate": 1e-4}
    best_metric: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.separator == "":
            raise InputError(Argument("separator"), " is '', expected at least one character")
        check_range("label_smoothing", self.label_smoothing, minimum=0.0, below=1.0)
        if self.classes is not None:  # 0 and "0" are one label
            object.__setattr__(self, "classes", tuple(map(str, self.classes)))
        if self.classes is not None and (len(self.classes) < 2 or len(set(self.classes)) < len(self.classes)):
            raise InputError(f"classes are {shorten(str(list(self.classes)))}, expected at least two, and no two alike")
        weights = self.class_weights
        if not (weights is None or weights == "balanced" or isinstance(weights, Mapping)):
            raise InputError(
                f"class_weights is {shorten(repr(weights))}, expected 'balanced' or a weight for each label"
            )

    # -- labels -------------------------------------------------------------------------------------------------------

    def fitted(self, rows: Sequence[Fields]) -> Self:
        require_library("sklearn")
        check_at_least_two(rows)
        if self.is_unlabelled(rows):
            assert self.loaded_teacher is not None
            classes = self.classes or self.loaded_teacher.config.labels
            return replace(self, _label_summary=LabelSummary("single", classes))
        found = summarise_labels(self._label_column(rows), self.classes)
        if found.kind == "single" and len(found.classes) > 20 and len(found.classes) == len(rows):
            log.warning("each of %d rows has a label of its own: is 'label' the right column?", len(rows))
        if found.kind != "single" and self.label_smoothing:
            raise InputError("label_smoothing is for one label each: leave it out")
        if found.kind == "soft" and self.class_weights is not None:
            raise InputError("class_weights are for labels that hold or do not, and these are shares: leave them out")
        label_weights(self.class_weights, found.classes, found)  # refuses unknown labels before training
        return replace(self, _label_summary=found)

    def _label_column(self, rows: Sequence[Fields]) -> list[Label]:
        """The parsed labels of the rows."""
        found = []
        for row in rows:
            has_none = self.separator is not None and "label" in row and is_blank(row["label"])
            found.append(label_of("" if has_none else value_of(row, "label"), row_location(row), self.separator))
        return found

    def stratum(self, row: Fields) -> Hashable:
        label = row.get("label")
        return str(label) if isinstance(label, str | int | float) and self.separator is None else None

    def labels_of_row(self, row: Fields) -> Collection[str]:
        label = row.get("label")
        if isinstance(label, str) and self.separator is not None:
            label = label_of(label, row_location(row), self.separator).names
        several = isinstance(label, list | tuple) and all(isinstance(one, str | int) for one in label)
        return list(map(str, label)) if several else ()

    def labels(self, loaded: Loaded) -> tuple[str, ...]:
        own, summary = loaded.config.labels, self._label_summary
        is_classifier = isinstance(loaded.config.head, SequenceClassification)
        if self.classes or summary is None:
            found = self.classes or own
        elif is_classifier and all(find_label_id(name, own) is not None for name in summary.classes):
            found = own
        else:
            found = summary.classes
        if len(found) < 2:
            problem = f"the only label is {found[0]!r}" if found else "no row has a label"
            raise InputError(f"{problem}: a classifier needs at least two to tell apart")
        return found

    def with_task_settings(self, loaded: Loaded) -> Loaded:
        self._warn_of_label_ids(self._label_summary.classes if self._label_summary else (), loaded.config.labels)
        return super().with_task_settings(loaded)

    def _warn_of_label_ids(self, names: Sequence[str], labels: Sequence[str]) -> None:
        """Warns of names that are not labels themselves, but ids of labels."""
        if numbers := [name for name in names if matching_label(name, labels) is None]:
            log.warning("the labels %s are taken as the numbers of %s", join_names(numbers), join_names(labels))

    def head(self, loaded: Loaded) -> Head:
        return head_for(loaded, "sequence-classification")

    def facts(self) -> dict[str, Any]:
        return {"problem_type": PROBLEMS[self._label_summary.kind]} if self._label_summary else {}

    def check_teacher(self, teacher: Loaded, loaded: Loaded) -> None:
        student_labels, teacher_labels = loaded.config.labels, teacher.config.labels
        if not isinstance(teacher.config.head, SequenceClassification) or set(student_labels) != set(teacher_labels):
            raise InputError(
                f"the teacher's labels are {join_names(teacher_labels)}, expected those to be learned, "
                f"{join_names(student_labels)}"
            )

    def baseline_scores(self, training_examples: Sequence[Example], held_out: Sequence[Example]) -> dict[str, float]:
        if any(one.target.kind != "single" or one.target.label is None for one in (*training_examples, *held_out)):
            return {}
        labels, right = ([one.target.label for one in side] for side in (training_examples, held_out))
        return {"accuracy": majority_accuracy(labels, right)}

    # -- rows to examples ---------------------------------------------------------------------------------------------

    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        read = encode_rows(loaded, rows, self.max_length)
        targets = self._targets(loaded, rows)
        return [Example((one.ids,), (one.type_ids,), target) for one, target in zip(read, targets)]

    def _targets(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Target]:
        labels, teacher_logits = loaded.config.labels, self._teacher_logits(loaded, rows)
        if self.is_unlabelled(rows):
            return [Target("single", None, one) for one in teacher_logits]
        column = self._label_column(rows)
        kind = self._label_summary.kind if self._label_summary else _kind_to_score(loaded, column)
        if self._label_summary is not None:
            check_kind(kind, column)
        found = [Target(kind, label_target(kind, label, labels), one) for label, one in zip(column, teacher_logits)]
        known = self._label_summary.classes if self._label_summary else ()
        self._warn_of_label_ids([name for name in column_label_names(column) if name not in known], labels)
        return found

    def _teacher_logits(self, loaded: Loaded, rows: Sequence[Fields]) -> list[list[float] | None]:
        """The teacher's logits of each row, in the order of the student's labels; None without a teacher."""
        logits = self.teacher_logits_of_texts(loaded, rows)
        own = self.loaded_teacher.config.labels if self.loaded_teacher is not None else ()
        order = [own.index(label) for label in loaded.config.labels] if own else []
        return [None if one is None else one[order].tolist() for one in logits]

    # -- examples to losses -------------------------------------------------------------------------------------------

    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        targets: list[Target] = [one.target for one in examples]
        found = {"labels": _label_tensor(targets, [0 if one.label is None else one.label for one in targets])}
        if self.class_weights is not None and targets[0].label is not None:
            weights = label_weights(self.class_weights, loaded.config.labels, self._label_summary)
            found["weights"] = weights[found["labels"]] if targets[0].kind == "single" else weights
        if self.teacher is not None:
            found["taught"] = torch.tensor([one.teacher_logits for one in targets], dtype=torch.float32, device="cpu")
        return batch_of(loaded, examples, **found)

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        single = "weights" in batch and batch["labels"].dim() == 1
        return float(batch["weights"].sum()) if single else float(len(batch["labels"]))

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        logits = learner.logits(**batch)
        assert self._label_summary is not None
        weights, single = batch.get("weights"), self._label_summary.kind == "single"
        each = row_losses(
            self._label_summary.kind, logits, batch["labels"], None if single else weights, self.label_smoothing
        )
        if self.teacher is not None:
            distance = multilabel_distillation_loss if self._label_summary.kind == "multiple" else distillation_loss
            each = self.blend_losses(each, distance(logits, batch["taught"], self.temperature))
        return (each * weights if single and weights is not None else each).sum()

    # -- scores -------------------------------------------------------------------------------------------------------

    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """Scores of `label_scores` or `multilabel_scores` (`training/metrics.py`), and "loss", unweighted and
        unsmoothed; shares are scored by the largest one. Rows without labels are compared with the teacher."""
        logits = torch.stack(logits_of(loaded, examples))
        targets: list[Target] = [one.target for one in examples]
        kind = targets[0].kind
        if targets[0].label is None:
            right = torch.tensor([one.teacher_logits for one in targets], device="cpu").argmax(-1)
        else:
            right = _label_tensor(targets, [one.label for one in targets])
        loss = {"loss": float(row_losses(kind, logits, right).mean())}
        if kind == "multiple":
            return loss | multilabel_scores((right > 0.5).tolist(), (logits > 0.0).tolist())
        best = right if kind == "single" else right.argmax(-1)
        return loss | label_scores(best.tolist(), logits.argmax(-1).tolist(), logits.shape[-1])


def _label_tensor(targets: Sequence[Target], labels: list[Any]) -> Tensor:
    """Labels as `row_losses` takes them: Int[Tensor, "batch"], or Float32[Tensor, "batch labels"]"""
    return torch.tensor(labels, dtype=torch.long if targets[0].kind == "single" else torch.float32, device="cpu")


def _kind_to_score(loaded: Loaded, column: Sequence[Label]) -> str:
    """The kind of labels to score by: "multiple" where that is the model's and the rows fit, else that of the rows."""
    is_multiple = loaded.config.inert.get("problem_type") == PROBLEMS["multiple"]
    return "multiple" if is_multiple and matches_kind("multiple", column) else kind_of(column)
