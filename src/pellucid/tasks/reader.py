"""Tasks that read a text once: windows of all texts, sorted by length, run through the model, whose output is kept."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pellucid.checkpoints.batch import as_batch
from pellucid.errors import Argument, InputError
from pellucid.machine import no_grad
from pellucid.models import Network, check_finite
from pellucid.tasks.answer import Answer, TextCoverage
from pellucid.tasks.attribution import Target, with_attribution
from pellucid.tasks.passes import run_batches
from pellucid.tasks.task import Task, TaskAnswer, Work
from pellucid.text import Window, windows
from pellucid.text.truncation import check_has_tokens, item_name


@dataclass(frozen=True)
class WindowOutput:
    """A window of an item, and what is kept of the model's output for it."""

    window: Window
    output: Any


@dataclass(frozen=True, kw_only=True)
class Reader(Task):
    """A task that reads: what to read of an item, what to keep of a pass, and the answer from that.

    parse_special_tokens: whether `[SEP]` in an item is that token, as in the reference; otherwise it is plain text.
    parallel: whether batches may run in parallel; not where their output is large.
    """

    parse_special_tokens: bool = False

    parallel: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.explain and type(self).attribution_targets is Reader.attribution_targets:
            wrong = f"{self.name} returns no score that could be explained: leave "
            raise InputError(wrong, Argument("explain"), " out")

    @abstractmethod
    def item_windows(self, work: Work, item: Any, index: int) -> list[Window]:
        """The windows to be read for an item."""

    def forward_batch(self, work: Work, module: Network, batch: dict[str, Tensor]) -> Tensor:
        """The output of a pass that is used: Float[Tensor, "batch seq answers"], or "batch answers" """
        return module.logits(**batch)

    def window_output(self, work: Work, output: Tensor, window: Window) -> Any:
        """What is kept of a window. output: Float32[Tensor, "seq answers"], or "answers" for one output per text."""
        return output

    @abstractmethod
    def answer(self, work: Work, item: Any, outputs: list[WindowOutput]) -> TaskAnswer:
        """The answer to an item."""

    def attribution_targets(self, work: Work, item: Any, outputs: list[WindowOutput], one: Answer) -> list[Target]:
        """The numbers of an answer that `explain` distributes over tokens (`tasks/attribution.py`); [] where it is
        refused."""
        return []

    def text_windows(
        self, work: Work, index: int | str, text: str | list[str], pair: str | None = None, side: int | None = 0
    ) -> list[Window]:
        """The windows of a text, a pair, or words, by the task's rule for long texts.

        index: the number of the item, or the text's name in an error.
        side: which text of a pair is cut; None for the longer one.
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
        """What is kept of each row, by its index."""
        module = work.loaded.module.packed_copy(work.dtype)
        row_groups = _equal_rows(rows)
        lengths = [len(rows[numbers[0]].ids) for numbers in row_groups]

        def outputs_of(group: list[int]) -> list[tuple[int, Any]]:
            firsts = [rows[row_groups[i][0]] for i in group]
            batch = as_batch(work.loaded, [row.ids for row in firsts], [row.type_ids for row in firsts])
            output = self.forward_batch(work, module, batch).float().cpu()
            found = [here[: lengths[i]] if output.dim() == 3 else here for here, i in zip(output, group)]
            if not output.isfinite().all():  # padding's may be infinite
                found = [check_finite(here, module) for here in found]
            return [
                (number, self.window_output(work, here, rows[number]))
                for here, i in zip(found, group)
                for number in row_groups[i]
            ]

        for _, numbered_outputs in run_batches(module, lengths, outputs_of, parallel=self.parallel):
            yield from numbered_outputs


def _equal_rows(rows: Sequence[Window]) -> list[list[int]]:
    """The indices of the rows, equal ones grouped: they are run once."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for i, row in enumerate(rows):
        found.setdefault((tuple(row.ids), tuple(row.type_ids)), []).append(i)
    return list(found.values())


def outputs_by_text(outputs: Sequence[WindowOutput]) -> list[list[WindowOutput]]:
    """The windows of each text, of several that were read one after the other."""
    starts = [i for i, output in enumerate(outputs) if output.window.index == 0]
    return [list(outputs[i:j]) for i, j in zip(starts, [*starts[1:], len(outputs)])]


def most_central_windows(windows_: Sequence[Window], side: int | None = None) -> list[tuple[int, int]]:
    """For each token of a text, in order, the window in which it is farthest from a cut, so that most of its context
    was read there: the index of that window, and the token's position in it.

    side: which text of a pair; None for all tokens that are not special.
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
    """The distance, in tokens, of the n-th of a text's `size` tokens in a window from where the text was cut there."""
    before = math.inf if window.index == 0 else nth
    return min(before, math.inf if window.index == window.count - 1 else size - 1 - nth)


def mean_output(outputs: Sequence[WindowOutput]) -> Tensor:
    """The mean of what was kept of a text's windows, each weighted by its tokens: Float[Tensor, "width"]"""
    if len(outputs) == 1:
        return outputs[0].output
    like = outputs[0].output
    rows = torch.stack([one.output.clone().to(like) for one in outputs])
    weights = torch.tensor([len(one.window.ids) for one in outputs], device="cpu").to(like)
    return (rows * weights[:, None]).sum(0) / weights.sum()


def text_coverage(text: str, outputs: Sequence[WindowOutput], side: int = 0) -> TextCoverage:
    """What was read of an item's text. side: 1 where the second text of a pair is the one that is read in windows."""
    windows_ = [output.window for output in outputs]
    nothing = all(special or here != side for one in windows_ for special, here in zip(one.special, one.sequence_ids))
    empty = nothing or not text.strip()  # some tokenizers have tokens for spaces
    return TextCoverage(tuple(one.span(side) for one in windows_), sum(one.cut for one in windows_), empty)
