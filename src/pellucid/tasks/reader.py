"""Tasks that read a text once: stretches of all texts, by length, through the model, and what its head says of each."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pellucid.checkpoints.batch import as_batch
from pellucid.config.checks import check_bool
from pellucid.errors import Argument, InputError
from pellucid.machine import no_grad
from pellucid.models import Network, check_finite
from pellucid.tasks.answer import Answer, TextCoverage
from pellucid.tasks.attribution import Target, with_attribution
from pellucid.tasks.passes import run_batches
from pellucid.tasks.task import Task, TaskAnswer, Work
from pellucid.text import Window, windows
from pellucid.text.cut import check_has_tokens, item_name


@dataclass(frozen=True)
class WindowOutput:
    """A stretch of an item, and what is kept of the model's output for it."""

    window: Window
    output: Any


@dataclass(frozen=True, kw_only=True)
class Reader(Task):
    """A task that reads: what to read of an item, what to keep of a pass, and what that answers.

    parse_special_tokens: whether `[SEP]`, typed in an item, is that token, as in the reference; else it is plain
        characters.
    parallel: whether batches may be read side by side; not where the answer to one is large.
    """

    parse_special_tokens: bool = False

    parallel: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool("parse_special_tokens", self.parse_special_tokens)
        if self.explain and type(self).attribution_targets is Reader.attribution_targets:
            wrong = f"{self.name} returns no score that could be explained: leave "
            raise InputError(wrong, Argument("explain"), " out")

    @abstractmethod
    def item_windows(self, work: Work, item: Any, index: int) -> list[Window]:
        """The stretches to be read for an item."""

    def forward_batch(self, work: Work, module: Network, batch: dict[str, Tensor]) -> Tensor:
        """What is looked at of a pass: Float[Tensor, "batch seq answers"], or "batch answers" """
        return module.logits(**batch)

    def window_output(self, work: Work, output: Tensor, window: Window) -> Any:
        """What is kept of one stretch. output: Float32[Tensor, "seq answers"], or "answers" where the text has one."""
        return output

    @abstractmethod
    def answer(self, work: Work, item: Any, outputs: list[WindowOutput]) -> TaskAnswer:
        """The answer to an item."""

    def attribution_targets(self, work: Work, item: Any, outputs: list[WindowOutput], one: Answer) -> list[Target]:
        """The number that an answer stands for, which `explain` shares out by `tasks/attribution.py`; nothing, where
        `explain` is refused."""
        return []

    def text_windows(
        self, work: Work, index: int | str, text: str | list[str], pair: str | None = None, side: int | None = 0
    ) -> list[Window]:
        """A text, a pair, or words read one by one, by the rule for long ones.

        index: the number of the item, or what an error calls the text.
        side: which of a pair is cut; None for the longer one.
        """
        loaded = work.loaded
        max_tokens = loaded.max_length if self.max_length is None else loaded.capped_length(self.max_length)
        options: dict[str, Any] = {"rule": self.long, "max_length": max_tokens, "stride": self.stride}
        options |= {"index": index, "side": side, "parse_special_tokens": self.parse_special_tokens}
        options["is_split_into_words"] = isinstance(text, list)
        found = windows(loaded.required_tokenizer, text, pair, **options)
        check_has_tokens(found[0].ids, item_name(index, "item"))
        return found

    def answer_items(self, work: Work, items: Sequence[Any], first: int) -> Iterator[TaskAnswer]:
        item_rows = [self.item_windows(work, item, first + i) for i, item in enumerate(items)]
        rows = [row for rows in item_rows for row in rows]
        outputs = dict(self._window_outputs(work, rows))
        start = 0
        for item, windows_ in zip(items, item_rows):
            numbers = range(start, start + len(windows_))
            yield self._explained_answer(work, item, [WindowOutput(rows[i], outputs.pop(i)) for i in numbers])
            start += len(windows_)

    @no_grad()
    def _explained_answer(self, work: Work, item: Any, outputs: list[WindowOutput]) -> TaskAnswer:
        found = self.answer(work, item, outputs)
        if not self.explain:
            return found
        return with_attribution(work, found, lambda one: self.attribution_targets(work, item, outputs, one))

    def _window_outputs(self, work: Work, rows: list[Window]) -> Iterator[tuple[int, Any]]:
        """What is kept of each row, by its number."""
        module = work.loaded.module.packed_copy(work.dtype)
        row_groups = _equal_rows(rows)
        lengths = [len(rows[numbers[0]].ids) for numbers in row_groups]

        def outputs_of(group: list[int]) -> list[tuple[int, Any]]:
            firsts = [rows[row_groups[i][0]] for i in group]
            batch = as_batch(work.loaded, [row.ids for row in firsts], [row.type_ids for row in firsts])
            output = self.forward_batch(work, module, batch).float().cpu()
            found = [here[: lengths[i]] if output.dim() == 3 else here for here, i in zip(output, group)]
            if not output.isfinite().all():  # as those of padding may be
                found = [check_finite(here, module) for here in found]
            return [
                (number, self.window_output(work, here, rows[number]))
                for here, i in zip(found, group)
                for number in row_groups[i]
            ]

        for _, numbered_outputs in run_batches(module, lengths, outputs_of, parallel=self.parallel):
            yield from numbered_outputs


def _equal_rows(rows: Sequence[Window]) -> list[list[int]]:
    """The numbers of the rows, those together that a model cannot tell apart: they are run once."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for i, row in enumerate(rows):
        found.setdefault((tuple(row.ids), tuple(row.type_ids)), []).append(i)
    return list(found.values())


def outputs_by_text(outputs: Sequence[WindowOutput]) -> list[list[WindowOutput]]:
    """The stretches of each text, of several that were read one after the other."""
    starts = [i for i, output in enumerate(outputs) if output.window.index == 0]
    return [list(outputs[i:j]) for i, j in zip(starts, [*starts[1:], len(outputs)])]


def most_central_windows(windows_: Sequence[Window], side: int | None = None) -> list[tuple[int, int]]:
    """For each token of a text, in order, the stretch in which it stands farthest from where the text was cut, so that
    most of both sides of it was read there: the number of that stretch, and the token's place in it.

    side: which text of a pair; None for all that is no special token.
    """
    best: dict[int, tuple[float, int, int]] = {}
    for number, window in enumerate(windows_):
        text_positions = [
            position for position, one in enumerate(window.sequence_ids) if one is not None and side in (None, one)
        ]
        for nth, position in enumerate(text_positions):
            depth, token = _distance_to_cut(window, nth, len(text_positions)), window.tokens_before + nth
            if token not in best or depth > best[token][0]:
                best[token] = depth, number, position
    return [best[token][1:] for token in sorted(best)]


def _distance_to_cut(window: Window, nth: int, size: int) -> float:
    """How far the n-th of `size` tokens of a text in a stretch stands from where the text was cut there, in tokens."""
    before = math.inf if window.index == 0 else nth
    return min(before, math.inf if window.index == window.count - 1 else size - 1 - nth)


def mean_output(outputs: Sequence[WindowOutput]) -> Tensor:
    """The mean of what was kept of a text's stretches, each weighed by its tokens: Float[Tensor, "width"]"""
    if len(outputs) == 1:
        return outputs[0].output
    like = outputs[0].output
    rows = torch.stack([one.output.clone().to(like) for one in outputs])
    weights = torch.tensor([len(one.window.ids) for one in outputs], device="cpu").to(like)
    return (rows * weights[:, None]).sum(0) / weights.sum()


def text_coverage(outputs: Sequence[WindowOutput], side: int = 0) -> TextCoverage:
    """What was read of an item's text. side: 1 where the second text of a pair is the one that is read in stretches."""
    windows_ = [output.window for output in outputs]
    nothing = all(special or here != side for one in windows_ for special, here in zip(one.special, one.sequence_ids))
    return TextCoverage(tuple(one.span(side) for one in windows_), sum(one.cut for one in windows_), nothing)
