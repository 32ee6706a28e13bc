"""Which span of a context answers a question."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Head
from pellucid.config.checks import check_bool, check_count
from pellucid.errors import Argument, InputError, did_you_mean, format_count, shorten
from pellucid.tasks.question_answering import REFERENCE_LENGTH
from pellucid.tasks.question_answering import QuestionAnswering as Task
from pellucid.tasks.reader import WindowOutput
from pellucid.tasks.task import Work
from pellucid.text import Window, windows
from pellucid.text.truncation import replace_surrogates
from pellucid.training.data import is_blank, row_location, text_of
from pellucid.training.learner import Learner
from pellucid.training.metrics import answer_scores
from pellucid.training.objective import Example, Fields, Objective, batch_of, head_for, logits_of
from pellucid.training.reading import token_limit


class Question(NamedTuple):
    """A question, its context, and its correct answers, if any, with the first character of each in the context."""

    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


class AnswerTarget(NamedTuple):
    """The target of a window of a context: first and last token of the answer, both 0 where the window lacks it.

    row: the index of its question.
    """

    first: int
    last: int
    row: int
    question: Question


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Objective):
    """The span of a context that answers a question; the mean of the cross-entropies of its first and last token.

    Rows hold `question` and `context`, and `answers` as in SQuAD, or `answer` and, where it occurs more than once in
    the context, `answer_start` in characters. The first answer is the target; all count when the model is scored.
    max_length: tokens of a window; None for at most 384.  stride: tokens that a window shares with the one before; None
        for a quarter of a window. The target of a window without the answer is its first token.
    max_answer_len: the most tokens of an answer in scoring.
    impossible: whether a question may have no answer; None for whether the data have such questions.

    Padding is excluded from the softmax, unlike in the reference, so that micro-batches give the same step.
    """

    stride: int | None = None
    max_answer_len: int = 30
    impossible: bool | None = None

    name: ClassVar[str] = "question-answering"
    columns: ClassVar[tuple[str, ...]] = ("question", "context", "answers", "answer", "answer_start")
    default_settings: ClassVar[dict[str, Any]] = {"learning_rate": 5e-5}
    best_metric: ClassVar[str] = "f1"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_answer_len", self.max_answer_len)
        if self.stride is not None:
            check_count("stride", self.stride, minimum=0)
        if self.impossible is not None:
            check_bool("impossible", self.impossible)

    def fitted(self, rows: Sequence[Fields]) -> Self:
        unanswered = [row for row in rows if not _question(row).answers]
        if self.impossible is False and unanswered:
            raise InputError(
                f"{row_location(unanswered[0])} has no answer, and ",
                Argument("impossible", False),
                ": leave such rows out, or pass ",
                Argument("impossible", True),
            )
        return replace(self, impossible=bool(unanswered)) if self.impossible is None else self

    def for_scoring(self, rows: Sequence[Fields]) -> Self:
        return self.fitted(rows)

    def head(self, loaded: Loaded) -> Head:
        return head_for(loaded, self.name)

    # -- rows to examples ---------------------------------------------------------------------------------------------

    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        found = []
        for i, row in enumerate(rows):
            question = _question(row)
            for window in self._windows(loaded, question, row_location(row)):
                first, last = _answer_tokens(window, question)
                found.append(Example((window.ids,), (window.type_ids,), AnswerTarget(first, last, i, question)))
        return found

    def _windows(self, loaded: Loaded, question: Question, index: int | str) -> list[Window]:
        own = token_limit(loaded, self.max_length)
        length = self.max_length or min(own or REFERENCE_LENGTH, REFERENCE_LENGTH)
        rule: dict[str, Any] = {"rule": "windows", "max_length": length, "stride": self.stride, "side": 1}
        return windows(loaded.required_tokenizer, question.question, question.context, index=index, **rule)

    # -- examples to numbers ------------------------------------------------------------------------------------------

    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        ends = torch.tensor([one.target[:2] for one in examples], device="cpu")
        return batch_of(loaded, examples, labels=ends)

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        logits = learner.logits(**batch)
        if (mask := batch.get("attention_mask")) is not None:
            logits = logits.masked_fill(mask[..., None] == 0, -torch.inf)
        return functional.cross_entropy(logits, batch["labels"], reduction="sum") / 2

    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """->  "exact_match" and "f1" of the answers that the task finds in the whole context, and the mean "loss" """
        logits = logits_of(loaded, examples)
        ends = [torch.tensor([one.target[:2]], device="cpu") for one in examples]
        losses = [float(functional.cross_entropy(here[None], target)) for here, target in zip(logits, ends)]
        questions = {one.target.row: one.target.question for one in examples}
        found = list(self._predicted_answers(loaded, questions, logits))
        scores = answer_scores([question.answers for question in questions.values()], found)
        return scores | {"loss": sum(losses) / max(len(losses), 1)}

    def _predicted_answers(
        self, loaded: Loaded, questions: Mapping[int, Question], logits: Sequence[Tensor]
    ) -> Iterator[str]:
        """The task's answers, from the logits of all windows of all questions in their order."""
        task = Task(handle_impossible_answer=bool(self.impossible), max_answer_len=self.max_answer_len)
        work, rest = Work(loaded), iter(logits)
        for i, question in questions.items():
            outputs = [WindowOutput(window, next(rest)) for window in self._windows(loaded, question, i)]
            yield task.answer(work, task.check_item((question.question, question.context), i), outputs)["answer"]

    def baseline_scores(self, training_examples: Sequence[Example], held_out: Sequence[Example]) -> dict[str, float]:
        """Scores of a baseline that answers no question; {} where all have answers."""
        every = {one.target.row: one.target.question.answers for one in held_out}
        return answer_scores([*every.values()], [""] * len(every)) if self.impossible else {}


def _question(row: Fields) -> Question:
    """The checked question of a row, with each answer found at its start in the context."""
    question, context = (replace_surrogates(text_of(row, name)) for name in ("question", "context"))
    location = row_location(row)
    pairs = _answers_with_starts(row, location)
    starts = tuple(_answer_start(context, text, start, location) for text, start in pairs)
    return Question(question, context, tuple(text for text, _ in pairs), starts)


def _answers_with_starts(row: Fields, location: str) -> list[tuple[str, Any]]:
    """The answers of a row, each with its answer_start, or None where the row has none."""
    answers, pairs = row.get("answers", row.get("answer")), list[tuple[Any, Any]]()
    if "answers" not in row and "answer" not in row:
        raise InputError(
            f"{location} has no 'answers'{did_you_mean('answers', row)}: give 'answers', or 'answer' and 'answer_start'"
        )
    if isinstance(answers, str) or answers is None:
        pairs += [(answers, row.get("answer_start"))] if answers else []
    elif isinstance(answers, Mapping):
        listed, starts = (_listed(answers.get(name, ())) for name in ("text", "answer_start"))
        if len(listed) != len(starts):
            raise InputError(
                f"{location}: answers have {format_count(len(listed), 'text')} and {len(starts)} answer_start, "
                "expected as many"
            )
        pairs += zip(listed, starts)
    elif not isinstance(answers, list | tuple):
        shown = shorten(repr(answers), 60)
        raise InputError(f"{location}: answers are {shown}, expected a text, or texts with their answer_start")
    else:
        pairs += [
            (one.get("text"), one.get("answer_start")) if isinstance(one, Mapping) else (one, None) for one in answers
        ]
    for text, _ in pairs:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{location}: an answer is {shorten(repr(text), 60)}, expected a passage of the context")
    return pairs


def _listed(value: Any) -> Sequence[Any]:
    """A list; a single value, as in some data, becomes a list of one."""
    return value if isinstance(value, list | tuple) else [value]


def _answer_start(context: str, text: str, start: Any, location: str) -> int:
    """The first character of an answer: its checked answer_start, or without one its only occurrence."""
    shown, many = shorten(text, 60), context.count(text)
    if is_blank(start):
        if many != 1:
            raise InputError(
                f"{location}: the answer {shown!r} occurs {many} times in the context: give its answer_start"
            )
        return context.index(text)
    try:
        begin = int(start)
    except (TypeError, ValueError, OverflowError):
        begin = None
    if begin is None or isinstance(start, bool) or (isinstance(start, float) and begin != start):
        raise InputError(
            f"{location}: answer_start is {shorten(repr(start), 60)}, expected the answer's first character"
        )
    if begin < 0 or context[begin : begin + len(text)] != text:
        actual = shorten(context[max(begin, 0) :][: len(text)], 60)
        hint = f"it is at {context.index(text)}" if many else "it does not occur"
        raise InputError(
            f"{location}: the answer {shown!r} is not at character {begin} of the context ({actual!r}); {hint}"
        )
    return begin


def _answer_tokens(window: Window, question: Question) -> tuple[int, int]:
    """The first and last token of the first answer where the window holds all of it; else (0, 0)."""
    if not question.answers:
        return 0, 0
    start, end = question.starts[0], question.starts[0] + len(question.answers[0])
    context_tokens = [i for i, side in enumerate(window.sequence_ids) if side == 1]
    inside = [i for i in context_tokens if window.offsets[i][0] < end and start < window.offsets[i][1]]
    first, last = window.span(side=1)
    has_start = first <= start or window.index == 0  # an answer may begin with characters of no token
    whole = inside and has_start and (end <= last or window.index == window.count - 1)
    return (inside[0], inside[-1]) if whole else (0, 0)
