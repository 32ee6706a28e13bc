"""Spans of a context that answer a question, from a model's logits for where the answer starts and ends.

The windows of a context are merged into one sequence, so that there is one softmax over all starts and one over all
ends (Clark & Gardner, 2018, arXiv:1710.10723), and a token that is in two windows counts once:

    window 0    Marie Curie was born in Warsaw and
    window 1                was born in Warsaw and moved to Paris
    together    Marie Curie was born in Warsaw and moved to Paris
                ---------- 0 ----------|----------- 1 -----------   from where a token is farther from a cut
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.tasks.reader import WindowOutput, most_central_windows
from pellucid.text import Window
from pellucid.text.truncation import trimmed_span, visible_span

STARTS_PER_CHUNK = 1_024
"""Starts whose spans are scored together: all spans of a long context would not fit into memory."""


@dataclass(frozen=True)
class SpanOptions:
    """Options of the search for spans.

    top_k: how many, at most.  max_tokens: tokens of an answer, at most.
    align_to_words: answers begin and end at word boundaries.
    allow_null: "there is no answer" is one of the answers.
    """

    top_k: int
    max_tokens: int
    align_to_words: bool
    allow_null: bool


@dataclass(frozen=True)
class Span:
    """A span of a context.

    score: a probability.  start, end: its first character, and the one after its last; both 0 where there is no answer.
    window: the index of the window that it came from.
    """

    score: float
    start: int
    end: int
    window: int


@dataclass(frozen=True)
class Unit:
    """A word, or a token where answers may begin and end within words.

    first, last: its tokens, counted from the beginning of the context.  start, end: its characters.
    window: the index of the window that its first token is taken from.
    """

    first: int
    last: int
    start: int
    end: int
    window: int


def spans(context: str, outputs: Sequence[WindowOutput], options: SpanOptions) -> list[Span]:
    """The likeliest answers, the best first. None overlaps a better one or has the same text.

    outputs: each with the logits of start and end, Float32[Tensor, "seq 2"].

    A span's score is the probability of its first word as a start times that of its last as an end. A model predicts
    "no answer" by the special token before the texts; of several windows the least confident one counts, and without
    such a token the score is 0. All scores sum to at most 1.
    """
    sources = _token_sources(outputs)
    units, owners = _units(context, outputs, sources, options.align_to_words)
    logits = torch.stack([outputs[number].output[position] for number, position in sources])
    window, null = _least_null(outputs)
    logits = torch.cat((logits, null))
    probabilities = logits.double().softmax(dim=0)
    unit_probabilities = torch.zeros(len(units), 2, dtype=probabilities.dtype, device="cpu")
    unit_probabilities.index_add_(0, torch.tensor(owners, device="cpu"), probabilities[: len(sources)])
    null_span = [Span(float(probabilities[len(sources) :].sum(0).prod()), 0, 0, window)] if options.allow_null else []
    return _select_spans(context, unit_probabilities, units, options, null_span)


def outer_tokens(
    outputs: Sequence[WindowOutput], start: int, end: int
) -> tuple[tuple[Window, int], tuple[Window, int]]:
    """The first and the last token that overlap these characters, each as its window and its position there."""
    windows = ((outputs[number].window, position) for number, position in _token_sources(outputs))
    tokens = [
        (w, position) for w, position in windows if w.offsets[position][0] < end and start < w.offsets[position][1]
    ]
    return tokens[0], tokens[-1]


def _select_spans(
    context: str, probabilities: Tensor, units: list[Unit], options: SpanOptions, null_span: list[Span]
) -> list[Span]:
    """The top_k spans; the number of candidates grows until there are enough."""
    num_candidates = 4 * options.top_k + 12
    while True:
        found, texts = list(null_span), set[str]()
        ranked = _most_likely_spans(probabilities, units, options.max_tokens, num_candidates)
        for score, first, last in ranked:
            start, end = visible_span(context, units[first].start, units[last].end)
            text = context[start:end].casefold()
            if text and text not in texts and not any(one.start < end and start < one.end for one in found):
                texts.add(text)
                found.append(Span(score, start, end, units[first].window))
        if len(found) >= options.top_k + len(null_span) or len(ranked) < num_candidates:
            return sorted(found, key=lambda span: -span.score)[: options.top_k]
        num_candidates *= 4


def _most_likely_spans(
    probabilities: Tensor, units: list[Unit], max_tokens: int, num_spans: int
) -> list[tuple[float, int, int]]:
    """Score, first and last unit of the likeliest spans, the best first."""
    firsts = torch.tensor([unit.first for unit in units], device="cpu")
    lasts = torch.tensor([unit.last for unit in units], device="cpu")
    limits = torch.searchsorted(firsts, lasts + max_tokens)  # the first unit that is too far away
    width = int((limits - torch.arange(len(units), device="cpu")).max())
    found: list[tuple[float, int, int]] = []
    for rows in torch.arange(len(units), device="cpu").split(STARTS_PER_CHUNK):
        columns = rows[:, None] + torch.arange(width, device="cpu")
        scores = probabilities[rows, :1] * probabilities[:, 1][columns.clamp(max=len(units) - 1)]
        scores = scores.masked_fill(columns >= limits[rows, None], -1.0).flatten()
        best = scores.topk(min(num_spans, len(scores)))
        candidates = zip(
            best.values.tolist(), rows[best.indices // width].tolist(), columns.flatten()[best.indices].tolist()
        )
        found += [span for span in candidates if span[0] >= 0]
    return sorted(found, key=lambda span: (-span[0], span[1], span[2]))[:num_spans]


def _token_sources(outputs: Sequence[WindowOutput]) -> list[tuple[int, int]]:
    """For each token of the context the window that it is taken from, and its position there."""
    return most_central_windows([output.window for output in outputs], side=1)


def _units(
    context: str, outputs: Sequence[WindowOutput], sources: list[tuple[int, int]], align_to_words: bool
) -> tuple[list[Unit], list[int]]:
    """The words of the context, or its tokens; and for each token the index of its unit.

    A word ends where the tokenizer ends it, and at a space: some tokenizers have no words.
    """
    units: list[Unit] = []
    owners: list[int] = []
    before: int | None = None
    for token, (number, position) in enumerate(sources):
        window = outputs[number].window
        (start, end), word = trimmed_span(context, *window.offsets[position]), window.words[position]
        if align_to_words and units and word == before and not any(map(str.isspace, context[units[-1].end : start])):
            old = units[-1]
            begin = start if old.start == old.end else old.start
            units[-1] = Unit(old.first, token, begin, max(old.end, end), old.window)
        else:
            units.append(Unit(token, token, start, end, number))
        before = word
        owners.append(len(units) - 1)
    return units, owners


def _least_null(outputs: Sequence[WindowOutput]) -> tuple[int, Tensor]:
    """The window least confident of "no answer", and its logits for that: [1, 2], or [0, 2] without a special token."""
    if outputs[0].window.sequence_ids[0] is not None:
        return 0, outputs[0].output[:0]
    window_number = min(range(len(outputs)), key=lambda number: float(outputs[number].output[0].sum()))
    return window_number, outputs[window_number].output[:1]
