"""Question answering: the span of a context that answers a question."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_choice, check_count, is_one_of
from pellucid.errors import InputError, Item
from pellucid.tasks.answer import Answer
from pellucid.tasks.attribution import Target
from pellucid.tasks.reader import Reader, WindowOutput, text_coverage
from pellucid.tasks.spans import Span, SpanOptions, outer_tokens, spans
from pellucid.tasks.spans_per_window import spans_per_window
from pellucid.tasks.tagged_tokens import AlignedText
from pellucid.tasks.task import Work, text_or_pair
from pellucid.text import Window
from pellucid.text.truncation import clean_text

NAMES = ("question", "context")
REFERENCE_LENGTH, REFERENCE_STRIDE = 384, 128


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Reader):
    """The span of a context that answers a question, `{"score", "start", "end", "answer"}`.

    Characters `start` to `end` of the context are the answer; alternatives, which never overlap, are in `.all`.
    top_k: how many `.all` holds.
    max_answer_len: tokens of an answer, at most; whole words may make it longer, as in the reference.
    handle_impossible_answer: "" is one of the answers, with the probability that the context has none.
    align_to_words: an answer begins and ends at word boundaries; in scripts without spaces at tokens'.
    scores: "comparable": one softmax over the whole context, however many windows it was read in (`tasks/spans.py`).
        "per_window": the reference's method (`tasks/spans_per_window.py`), with its defaults: windows of at most 384
        tokens that share 128.
    Of a context read in windows each token's logits are taken from the window in which it is farthest from a cut. The
    question is read beside each of them, and never cut.
    """

    top_k: int = 1
    max_answer_len: int = 15
    handle_impossible_answer: bool = False
    align_to_words: bool = True
    scores: str = "comparable"

    name: ClassVar[str] = "question-answering"
    heads: ClassVar[tuple[str | None, ...]] = ("question-answering",)
    inputs: ClassVar[tuple[str, ...]] = NAMES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("top_k", self.top_k)
        check_count("max_answer_len", self.max_answer_len)
        check_choice("scores", self.scores, ("comparable", "per_window"))

    @classmethod
    def resolve_options(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        if not is_one_of(options.get("scores"), "per_window") or loaded.tokenizer is None:
            return dict(options)
        length = options.get("max_length") or min(loaded.max_length or REFERENCE_LENGTH, REFERENCE_LENGTH)
        shared = min(length // 2, REFERENCE_STRIDE) if isinstance(length, int) else None
        return {"long": "windows", "max_length": length, "stride": shared} | dict(options)

    def check_item(self, item: Any, index: int) -> tuple[str, AlignedText]:
        if isinstance(item, Mapping) and (lacks := [name for name in NAMES if item.get(name) is None]):
            raise InputError(Item(index), f" has no {lacks[0]}: give both, as question= and context=")
        question, context = text_or_pair(item, index, NAMES)
        if context is None:
            raise InputError(
                Item(index), " is one text, expected a question and its context: give both, as a tuple or a dict"
            )
        for name, text in zip(NAMES, (question, context)):
            if not text.strip():
                raise InputError(f"the {name} of ", Item(index), " is empty: there is nothing to answer")
        return clean_text(question, index, "item"), AlignedText.of_text(context, index)

    def item_windows(self, work: Work, item: tuple[str, AlignedText], index: int) -> list[Window]:
        found = self.text_windows(work, index, item[0], item[1].read, side=1)
        if 1 not in found[0].sequence_ids:
            raise InputError("the context of ", Item(index), " has no tokens: there is nothing to find an answer in")
        return found

    def answer(self, work: Work, item: tuple[str, AlignedText], outputs: list[WindowOutput]) -> Answer:
        context = item[1]
        read = text_coverage(context.read, outputs, side=1)
        every = []
        for one in self._spans(work, context.read, outputs) or [Span(0.0, 0, 0, 0)]:
            (start, end), _ = context.shown_span(one.start, one.end)
            found = {"score": one.score, "start": start, "end": end, "answer": context.read[one.start : one.end]}
            every.append(Answer(found, read=read, window=one.window))
        return every[0].replace(all=every)

    def _spans(self, work: Work, context: str, outputs: list[WindowOutput]) -> list[Span]:
        options = SpanOptions(self.top_k, self.max_answer_len, self.align_to_words, self.handle_impossible_answer)
        if self.scores == "per_window":
            tokenizer = work.loaded.tokenizer
            return spans_per_window(context, outputs, tokenizer.cls_token_id if tokenizer else None, options)
        return spans(context, outputs, options)

    def attribution_targets(
        self, work: Work, item: tuple[str, AlignedText], outputs: list[WindowOutput], one: Answer
    ) -> list[Target]:
        """The logits of the start and of the end; they come from two windows where a cut goes through the answer."""
        assert one.window is not None
        if not one["end"]:
            window = outputs[one.window].window
            return [Target("logits of no answer", window, lambda output: output["logits"][0, 0].sum())]
        candidates = outputs if self.scores == "comparable" else [outputs[one.window]]
        positions = item[1].positions or range(len(item[1].read) + 1)
        (first, start), (last, end) = outer_tokens(
            candidates, positions.index(one["start"]), positions.index(one["end"])
        )
        if first is last:
            description = f"logits of start and end of {one['answer']!r}"
            return [
                Target(description, first, lambda output: output["logits"][0, start, 0] + output["logits"][0, end, 1])
            ]
        description = f"logits of the start and of the end of {one['answer']!r}"
        return [
            Target(description, first, lambda output: output["logits"][0, start, 0]),
            Target(description, last, lambda output: output["logits"][0, end, 1]),
        ]
