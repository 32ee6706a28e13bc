"""The hidden state of every token of a text."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_choice
from pellucid.errors import InputError
from pellucid.models import Network
from pellucid.tasks.answer import Answers
from pellucid.tasks.reader import Reader, WindowOutput, most_central_windows, text_coverage
from pellucid.tasks.task import Work, check_readable
from pellucid.text import Window


@dataclass(frozen=True, kw_only=True)
class FeatureExtraction(Reader):
    """The last hidden state of every token, including special ones, as [tokens][hidden].

    side: of an encoder-decoder, "encoder" (the default) or "decoder", which then reads the text shifted right behind
        its start token.
    For one vector per text see `Model.embed`. Where windows share a token, its vector is taken from the window in which
    it is farthest from a cut.
    """

    side: str | None = None

    name: ClassVar[str] = "feature-extraction"
    heads: ClassVar[tuple[str | None, ...]] = (None,)
    inputs: ClassVar[tuple[str, ...]] = ("text",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side is not None:
            check_choice("side", self.side, ("encoder", "decoder"))

    @classmethod
    def check(cls, loaded: Loaded) -> None:
        """Every body has features, whatever its head."""
        check_readable(loaded, ("all",))

    def item_windows(self, work: Work, item: str, index: int) -> list[Window]:
        if self.side is not None and work.loaded.config.kind not in (self.side, "encoder-decoder"):
            kind = work.loaded.config.kind
            raise InputError(f"side is {self.side!r}, and this model is of kind {kind!r}: leave it out")
        return self.text_windows(work, index, item)

    def forward_batch(self, work: Work, module: Network, batch: dict[str, Tensor]) -> Tensor:
        return module(**batch)["last_hidden_state"] if self.side == "decoder" else states_of(module, batch)

    def answer(self, work: Work, item: str, outputs: list[WindowOutput]) -> Answers:
        return Answers(join_vectors(outputs), read=text_coverage(item, outputs))


def states_of(module: Network, batch: dict[str, Tensor]) -> Tensor:
    """The last hidden states, without computing the head: Float[Tensor, "batch seq hidden"]"""
    return module.states(batch["input_ids"], batch.get("attention_mask"), batch.get("token_type_ids"))


def join_vectors(outputs: list[WindowOutput]) -> list[list[float]]:
    """The vectors of a whole text from those of its windows, with the special tokens at its two ends once."""
    if len(outputs) == 1:
        return outputs[0].output.tolist()
    best = most_central_windows([output.window for output in outputs])
    first, last = outputs[0], outputs[-1]
    start = first.window.sequence_ids.index(0)
    end = len(last.window.sequence_ids) - last.window.sequence_ids[::-1].index(0)
    middle = [outputs[number].output[position].tolist() for number, position in best]
    return first.output[:start].tolist() + middle + last.output[end:].tolist()
