"""Text classification: which label a text, or a pair of texts, has."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pellucid.config.checks import check_choice, check_count
from pellucid.tasks.answer import Answer
from pellucid.tasks.attribution import Target, logit_target
from pellucid.tasks.reader import Reader, WindowOutput, mean_output, text_coverage
from pellucid.tasks.task import Work, text_or_pair
from pellucid.text import Window

FUNCTIONS = ("softmax", "sigmoid", "none")


@dataclass(frozen=True, kw_only=True)
class TextClassification(Reader):
    """One label per text, `{"label", "score"}`; the others are in `.all`.

    function_to_apply: "softmax", "sigmoid" or "none"; by default by the checkpoint's problem type and number of labels:
        none for regression, sigmoid for one label or several at once, otherwise softmax.
    top_k: how many labels `.all` holds; None for all of them.
    A text read in windows gets the mean of their logits, each weighted by its tokens; `explain` is about the window in
    which the label's logit is greatest.
    """

    function_to_apply: str | None = None
    top_k: int | None = None

    name: ClassVar[str] = "text-classification"
    heads: ClassVar[tuple[str | None, ...]] = ("sequence-classification",)
    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.function_to_apply is not None:
            check_choice("function_to_apply", self.function_to_apply, FUNCTIONS)
        if self.top_k is not None:
            check_count("top_k", self.top_k)

    def check_item(self, item: Any, index: int) -> tuple[str, str | None]:
        return text_or_pair(item, index)

    def item_windows(self, work: Work, item: tuple[str, str | None], index: int) -> list[Window]:
        return self.text_windows(work, index, *item, side=None)

    def answer(self, work: Work, item: tuple[str, str | None], outputs: list[WindowOutput]) -> Answer:
        scores = self._scores(work, mean_output(outputs))
        labels, raw = work.loaded.config.labels, self._function(work) == "none"
        facts: dict[str, Any] = {"read": text_coverage(item[0], outputs), "raw": raw}
        order = scores.argsort(descending=True, stable=True)[: self.top_k].tolist()
        every = [Answer({"label": labels[i], "score": float(scores[i])}, **facts) for i in order]
        return every[0].replace(all=every)

    def attribution_targets(
        self, work: Work, item: tuple[str, str | None], outputs: list[WindowOutput], one: Answer
    ) -> list[Target]:
        number = list(work.loaded.config.labels).index(one["label"])
        best = max(outputs, key=lambda one: float(one.output[number]))
        return [logit_target(repr(one["label"]), best.window, number)]

    def _function(self, work: Work) -> str:
        """The function from logits to scores."""
        if self.function_to_apply is not None:
            return self.function_to_apply
        problem = work.loaded.config.inert.get("problem_type")
        if problem == "regression":
            return "none"
        several = problem == "multi_label_classification"
        return "sigmoid" if several or work.loaded.config.num_labels == 1 else "softmax"

    def _scores(self, work: Work, logits: Tensor) -> Tensor:
        match self._function(work):
            case "sigmoid":
                return logits.sigmoid()
            case "softmax":
                return logits.softmax(-1)
            case _:
                return logits
