"""Sentence similarity: how similar the meanings of two texts are."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pellucid.errors import InputError, Item
from pellucid.tasks.answer import Answer, TextCoverage
from pellucid.tasks.attribution import Target
from pellucid.tasks.reader import WindowOutput, mean_output, outputs_by_text, text_coverage
from pellucid.tasks.task import Work, text_or_pair
from pellucid.tasks.vectors import BODY_HEADS, VectorTask
from pellucid.text import Window


@dataclass(frozen=True, kw_only=True)
class SentenceSimilarity(VectorTask):
    """A score for a pair of texts, `{"score"}`, by the vectors of the checkpoint. One text with several others makes as
    many pairs.

    `read` holds the windows of the first text and then those of the second; `explain` distributes the score over the
    tokens of both, of a text in several windows over those of the window most similar to the other text.
    """

    name: ClassVar[str] = "sentence-similarity"
    heads: ClassVar[tuple[str | None, ...]] = BODY_HEADS
    inputs: ClassVar[tuple[str, ...]] = ("source_sentence", "sentences")

    def check_item(self, item: Any, index: int) -> tuple[str, str]:
        first, second = text_or_pair(item, index, ("source_sentence", "sentences"))
        if second is None:
            raise InputError(Item(index), " is one text, expected a pair of texts as a tuple")
        return first, second

    def item_windows(self, work: Work, item: tuple[str, str], index: int) -> list[Window]:
        return [window for text in item for window in self.text_windows(work, index, text)]

    def answer(self, work: Work, item: tuple[str, str], outputs: list[WindowOutput]) -> Answer:
        first, second = outputs_by_text(outputs)
        score = self.text_similarity(work, mean_output(first), mean_output(second))
        one, other = text_coverage(item[0], first), text_coverage(item[1], second)
        read = TextCoverage(one.windows + other.windows, one.cut + other.cut, one.empty or other.empty)
        return Answer({"score": float(score)}, read=read)

    def attribution_targets(
        self, work: Work, item: tuple[str, str], outputs: list[WindowOutput], one: Answer
    ) -> list[Target]:
        first, second = outputs_by_text(outputs)
        return [
            self.similarity_target(work, first, mean_output(second), "the first"),
            self.similarity_target(work, second, mean_output(first), "the second"),
        ]
