"""How alike the meaning of two texts is."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pellucid.errors import InputError, Item
from pellucid.tasks.answer import Answer, Read
from pellucid.tasks.attribution import Aim
from pellucid.tasks.reader import Stretch, by_text, mean_of, what_was_read
from pellucid.tasks.task import Work, text_or_pair
from pellucid.tasks.vectors import BODIES, Comparing
from pellucid.text import Window


@dataclass(frozen=True, kw_only=True)
class SentenceSimilarity(Comparing):
    """A score for a pair of texts, `{"score"}`, by the vectors of the checkpoint. One text beside several is as many
    pairs.

    `read` tells the stretches of the first text and then those of the second; `explain` shares the score out among the
    tokens of both, of a text in several stretches those of the one that is most like the other text.
    """

    name: ClassVar[str] = "sentence-similarity"
    heads: ClassVar[tuple[str | None, ...]] = BODIES
    inputs: ClassVar[tuple[str, ...]] = ("source_sentence", "sentences")

    def item(self, given: Any, index: int) -> tuple[str, str]:
        first, second = text_or_pair(given, index, ("source_sentence", "sentences"))
        if second is None:
            raise InputError(Item(index), " is one text, expected a pair of texts as a tuple")
        return first, second

    def asked(self, work: Work, item: tuple[str, str], index: int) -> list[Window]:
        return [window for text in item for window in self.stretches(work, index, text)]

    def answer(self, work: Work, item: tuple[str, str], stretches: list[Stretch]) -> Answer:
        first, second = by_text(stretches)
        score = self.compared(work, mean_of(first), mean_of(second))
        one, other = what_was_read(first), what_was_read(second)
        read = Read(one.windows + other.windows, one.cut + other.cut, one.empty or other.empty)
        return Answer({"score": float(score)}, read=read)

    def aims(self, work: Work, item: tuple[str, str], stretches: list[Stretch], one: Answer) -> list[Aim]:
        first, second = by_text(stretches)
        return [
            self.aim(work, first, mean_of(second), "the first"),
            self.aim(work, second, mean_of(first), "the second"),
        ]
