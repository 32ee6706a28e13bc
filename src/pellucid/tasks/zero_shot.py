"""Zero-shot classification: which of the caller's labels fits a text, by whether the text entails it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_choice, is_one_of
from pellucid.errors import Argument, InputError, join_names, shorten
from pellucid.tasks.answer import Answer
from pellucid.tasks.attribution import Target, logit_target
from pellucid.tasks.entailment import contradiction_index, entailment_index
from pellucid.tasks.reader import Reader, WindowOutput, mean_output, outputs_by_text, text_coverage
from pellucid.tasks.task import Work
from pellucid.text import Window

_LABELS = Argument("candidate_labels")


@dataclass(frozen=True, kw_only=True)
class ZeroShotClassification(Reader):
    """The caller's labels, the best first, `{"sequence", "labels", "scores"}` (Yin et al., 2019, arXiv:1909.00161).

    The model, trained on natural language inference, reads the text with each label's hypothesis.
    candidate_labels: the labels, as a list or as one text with commas.
    hypothesis_template: the hypothesis for each label, with {} in the place of the label.
    multi_label: several labels may fit, and each is scored alone, by its entailment against its contradiction;
        otherwise they share a score of 1, by their entailment. A single label is always scored alone.
    roles: "named": the model's labels for entailment and contradiction are found by their names. "fixed": the
        reference's way; entailment is the last where no name begins with "entail", and contradiction is the first, or
        the last where entailment is first.
    A text read in windows gets, for each label, the mean of their logits, each weighted by its tokens; the hypothesis
    is read with each of them, and never cut.
    """

    candidate_labels: str | Sequence[str] | None = None
    hypothesis_template: str = "This example is {}."
    multi_label: bool = False
    roles: str = "named"

    name: ClassVar[str] = "zero-shot-classification"
    heads: ClassVar[tuple[str | None, ...]] = ("sequence-classification",)
    inputs: ClassVar[tuple[str, ...]] = ("sequences",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("roles", self.roles, ("named", "fixed"))
        template = self.hypothesis_template
        if not isinstance(template, str) or "{}" not in template:
            raise InputError(
                f"hypothesis_template is {shorten(repr(template))}, expected a text with {{}} where the label goes"
            )
        if self.candidate_labels is not None:
            labels_of(self.candidate_labels)

    @classmethod
    def resolve_options(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        if not is_one_of(options.get("roles"), "fixed") and entailment_index(loaded.config.labels) is None:
            raise InputError(
                f"none of the model's labels ({join_names(loaded.config.labels)}) means entailment: choose a model of "
                "natural language inference, or pass ",
                Argument("roles", "fixed"),
                " to take the last one, as the reference does",
            )
        return dict(options)

    def check_item(self, item: Any, index: int) -> str:
        if self.candidate_labels is None:
            raise InputError(
                f"{self.name} needs labels: pass ", Argument("candidate_labels", ["politics", "sports"]), ", say"
            )
        return super().check_item(item, index)

    def item_windows(self, work: Work, item: str, index: int) -> list[Window]:
        self._entailment_indices(work)
        hypotheses = [self.hypothesis_template.replace("{}", label) for label in self._labels]
        return [window for hypothesis in hypotheses for window in self.text_windows(work, index, item, hypothesis)]

    def answer(self, work: Work, item: str, outputs: list[WindowOutput]) -> Answer:
        by_label = outputs_by_text(outputs)
        scores = self._scores(work, torch.stack([mean_output(one) for one in by_label]))
        order = scores.argsort(descending=True, stable=True).tolist()
        labels = self._labels
        keys = {"sequence": item, "labels": [labels[i] for i in order], "scores": scores[order].tolist()}
        read = text_coverage(item, max(by_label, key=lambda one: (len(one), one[0].window.cut)))
        return Answer(keys, read=read)

    def _scores(self, work: Work, logits: Tensor) -> Tensor:
        """Float[Tensor, "labels answers"]  ->  Float[Tensor, "labels"]"""
        entails, contradicts = self._entailment_indices(work)
        if contradicts is None:
            return logits[:, entails].softmax(dim=0)
        return logits[:, [contradicts, entails]].softmax(dim=-1)[:, 1]

    def attribution_targets(self, work: Work, item: str, outputs: list[WindowOutput], one: Answer) -> list[Target]:
        entails, _ = self._entailment_indices(work)
        best = outputs_by_text(outputs)[self._labels.index(one["labels"][0])]
        best_window = max(best, key=lambda one: float(one.output[entails]))
        return [logit_target(f"entailment of {one['labels'][0]!r}", best_window.window, entails)]

    @property
    def _labels(self) -> list[str]:
        return labels_of(self.candidate_labels or ())

    def _entailment_indices(self, work: Work) -> tuple[int, int | None]:
        """The logits for entailment and contradiction; None for the latter where the labels share a score."""
        labels, alone = work.loaded.config.labels, self.multi_label or len(self._labels) == 1
        if self.roles == "fixed":
            last = len(labels) - 1
            entails = next((i for i, name in enumerate(labels) if name.lower().startswith("entail")), last)
            return entails, (0 if entails else last) if alone else None
        entails, contradicts = entailment_index(labels), contradiction_index(labels)
        assert entails is not None  # checked by `resolve_options`
        if alone and contradicts is None:
            raise InputError(
                f"none of the model's labels ({join_names(labels)}) means contradiction, against which a label is "
                "scored alone: give several without multi_label, or pass ",
                Argument("roles", "fixed"),
                " to take the first as the reference does",
            )
        return entails, contradicts if alone else None


def labels_of(candidate_labels: str | Sequence[str]) -> list[str]:
    """The labels of a list, or of a text with commas; raises InputError for none, an empty one or a duplicate."""
    if isinstance(candidate_labels, str):
        labels = [label.strip() for label in candidate_labels.split(",") if label.strip()]
    elif isinstance(candidate_labels, Sequence) and not isinstance(candidate_labels, bytes):
        labels = list(candidate_labels)
    else:
        kind = type(candidate_labels).__name__
        raise InputError(_LABELS, f" is {kind}, expected a list of texts, or one text with commas")
    if not labels:
        raise InputError(_LABELS, " holds no label: give at least one")
    seen = set[str]()
    for i, label in enumerate(labels):
        if not isinstance(label, str):
            raise InputError(_LABELS, f"[{i}] is {type(label).__name__}, expected a text")
        if not label.strip():
            raise InputError(_LABELS, f"[{i}] is empty: leave it out or write what it stands for")
        if label in seen:
            raise InputError(_LABELS, f"[{i}] is {shorten(repr(label))} again: give each label once")
        seen.add(label)
    return labels
