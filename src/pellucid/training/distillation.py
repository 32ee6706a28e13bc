"""Knowledge distillation: training on a teacher's predictions, beside the labels or in their place (Hinton et al.,
2015, arXiv:1503.02531)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.model_or_name import resolve_model
from pellucid.config.checks import check_range
from pellucid.errors import Argument, InputError, Placeholder, join_names
from pellucid.lazy import cached_property
from pellucid.machine import no_grad
from pellucid.training.data import is_blank
from pellucid.training.objective import Example, Fields, Objective, logits_of
from pellucid.training.reading import encode_rows


@dataclass(frozen=True, kw_only=True)
class DistillationObjective(Objective):
    """An objective that may have a teacher, a model that is already trained on the same task.

    teacher: its name or folder, or a model; None for no teacher.
    temperature: divides the logits of both, so that the teacher's less likely classes count more.
    teacher_share: weight of the distillation loss, from 0 to 1; the rest is the weight of the label loss.
    """

    teacher: Any = None
    temperature: float = 2.0
    teacher_share: float = 0.5

    uses_temperature: ClassVar[bool] = True
    """Whether the logits are divided by the temperature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("temperature", self.temperature, above=0.0, maximum=1000.0)
        check_range("teacher_share", self.teacher_share, minimum=0.0, maximum=1.0)
        if not self.uses_temperature and self.temperature != DistillationObjective.temperature:
            raise InputError(
                f"temperature softens the probabilities of several answers, and {self.name} has one number: leave ",
                Argument("temperature"),
                " out",
            )
        for name in ("temperature", "teacher_share"):
            if self.teacher is None and getattr(self, name) != getattr(DistillationObjective, name):
                raise InputError(f"{name} is set and teacher is not: pass ", Argument("teacher", Placeholder("MODEL")))

    @cached_property
    def loaded_teacher(self) -> Loaded | None:
        """The loaded teacher; None without one. Raises InputError for one that is not trained."""
        if self.teacher is None:
            return None
        found = resolve_model(self.teacher, "teacher", alternatives={})
        if found.untrained:
            raise InputError(f"the teacher is not trained ({join_names(found.untrained)}): its answers would be random")
        return found

    def with_task_settings(self, loaded: Loaded) -> Loaded:
        if self.loaded_teacher is not None:
            self.check_teacher(self.loaded_teacher, loaded)
        return super().with_task_settings(loaded)

    def check_teacher(self, teacher: Loaded, loaded: Loaded) -> None:
        """Raises InputError for an unsuitable teacher: by default one with another kind of head or vocabulary."""
        kinds = [one.config.head.name if one.config.head else "no" for one in (teacher, loaded)]
        if kinds[0] != kinds[1]:
            raise InputError(f"the teacher has {kinds[0]} head, expected {kinds[1]}, as what it teaches")
        sizes = [one.config.vocab_size for one in (teacher, loaded)]
        if sizes[0] != sizes[1]:
            raise InputError(f"the teacher knows {sizes[0]:,} tokens, expected {sizes[1]:,}, as what it teaches")
        vocabularies = [_vocabulary(one) for one in (teacher, loaded)]
        if None not in vocabularies and vocabularies[0] != vocabularies[1]:
            raise InputError("the teacher has another vocabulary than its student: the same id must be the same token")

    def is_unlabelled(self, rows: Sequence[Fields]) -> bool:
        """Whether no row has a label and `teacher_share` is 1, so that only the teacher is used."""
        is_teacher_only = self.teacher is not None and self.teacher_share == 1.0
        return is_teacher_only and all(is_blank(row.get("label")) for row in rows)

    def teacher_logits_of_texts(self, loaded: Loaded, rows: Sequence[Fields]) -> Sequence[Tensor | None]:
        """The teacher's logits of each row, Float[Tensor, "labels"], computed once for the whole run; without a teacher
        None for each."""
        if self.loaded_teacher is None:
            return [None] * len(rows)
        self.check_teacher(self.loaded_teacher, loaded)
        read = encode_rows(self.loaded_teacher, rows, None)
        return logits_of(self.loaded_teacher, [Example((one.ids,), (one.type_ids,)) for one in read])

    def blend_losses(self, label_loss: Tensor, teacher_loss: Tensor) -> Tensor:
        """The weighted sum of label loss and teacher loss."""
        return (1.0 - self.teacher_share) * label_loss + self.teacher_share * teacher_loss

    @no_grad()
    def teacher_logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The teacher's logits for a batch, without a gradient: Float32[Tensor, "batch seq vocab"]"""
        assert self.loaded_teacher is not None
        module = self.loaded_teacher.module
        read = {name: value for name, value in batch.items() if name in module.input_names}
        logits: Tensor = module.packed_copy()(**read)["logits"]
        return logits.float()


def distillation_loss(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of both distributions at temperature T, times T^2, which keeps the gradients on the scale
    of those of the label loss (Hinton et al., 2015, section 2).

    student_logits, teacher_logits: Float[Tensor, "... classes"].  ->  Float[Tensor, "..."]
    """
    student_log_probabilities = functional.log_softmax(student_logits.float() / temperature, dim=-1)
    teacher_log_probabilities = functional.log_softmax(teacher_logits.float() / temperature, dim=-1)
    each = functional.kl_div(student_log_probabilities, teacher_log_probabilities, reduction="none", log_target=True)
    return each.sum(-1) * temperature**2


def multilabel_distillation_loss(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """The same for multi-label classification: the mean over labels of the KL divergence of their yes and no."""
    both = [torch.stack((logits, torch.zeros_like(logits)), dim=-1) for logits in (student_logits, teacher_logits)]
    return distillation_loss(both[0], both[1], temperature).mean(-1)


def _vocabulary(loaded: Loaded) -> Any:
    """The vocabulary in the tokenizer's file; None without a tokenizer."""
    return None if loaded.tokenizer is None else json.loads(loaded.tokenizer.to_json())["model"]["vocab"]
