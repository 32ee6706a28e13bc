"""Spans of a context from each of its windows separately, as the reference finds them (`transformers` 4.57.6).

Every window has its own softmax, so the scores of two windows cannot be compared; those of spans with the same text are
added, also where two windows share them, so that a score may be greater than 1; and "no answer" gets the lowest score
that any window gives it. It is here for those who need exactly these numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pellucid.tasks.reader import WindowOutput
from pellucid.tasks.spans import Span, SpanOptions
from pellucid.text import Window

Numbers = np.ndarray
OUTSIDE = -10_000.0
"""The logit of tokens outside the context."""


def spans_per_window(
    context: str, outputs: Sequence[WindowOutput], cls_token_id: int | None, options: SpanOptions
) -> list[Span]:
    """The best spans of all windows, the best first.

    outputs: each with the logits of start and end, Float32[Tensor, "seq 2"].
    cls_token_id: the token that may be chosen besides those of the context; None where there is none.
    """
    found: dict[str, Span] = {}
    null_score = 1_000_000.0
    for number, window_output in enumerate(outputs):
        window = window_output.window
        allowed = np.array([side == 1 or i == cls_token_id for side, i in zip(window.sequence_ids, window.ids)])
        starts, ends = (
            _softmax(np.where(allowed, logits, np.float32(OUTSIDE))) for logits in window_output.output.numpy().T
        )
        null_score = min(null_score, float(starts[0] * ends[0]))
        starts[0] = ends[0] = 0.0
        for score, first, last in _most_likely_spans(starts, ends, allowed, options):
            start, end = _characters(window, first, last, options.align_to_words)
            text = context[start:end].lower()
            old = found.get(text, Span(0.0, start, end, number))
            found[text] = replace(old, score=old.score + score)
    every = [*found.values(), *([Span(null_score, 0, 0, 0)] if options.allow_null else [])]
    return sorted(every, key=lambda span: span.score, reverse=True)[: options.top_k]


def _softmax(logits: Numbers) -> Numbers:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def _most_likely_spans(
    starts: Numbers, ends: Numbers, allowed: Numbers, options: SpanOptions
) -> Iterator[tuple[float, int, int]]:
    """Score, first and last token of the best spans of one window, including impossible ones with a score of 0."""
    scores = np.tril(np.triu(np.outer(starts, ends)), options.max_tokens - 1)
    flat = -scores.flatten()
    num_spans = 2 * options.top_k + 10 if options.align_to_words else options.top_k
    if num_spans == 1:
        order = np.array([flat.argmin()])
    elif len(flat) <= num_spans:
        order = np.argsort(flat)
    else:
        chosen = np.argpartition(flat, num_spans)[:num_spans]  # of equal scores, those that this call happens to choose
        order = chosen[np.argsort(flat[chosen])]
    selectable = allowed.copy()
    selectable[0] = True
    for first, last in zip(*(axis.tolist() for axis in np.unravel_index(order, scores.shape))):
        if selectable[first] and selectable[last]:
            yield float(scores[first, last]), first, last


def _characters(window: Window, first: int, last: int, align_to_words: bool) -> tuple[int, int]:
    """The characters of a span, widened to all of the context with the word ids of its first and last token."""
    context_tokens = [
        (window.word_ids[token], span)
        for token, (span, side) in enumerate(zip(window.offsets, window.sequence_ids))
        if side == 1
    ]
    starts = [start for word, (start, _) in context_tokens if word is not None and word == window.word_ids[first]]
    ends = [end for word, (_, end) in context_tokens if word is not None and word == window.word_ids[last]]
    if align_to_words and starts and ends:
        return starts[0], ends[-1]
    return window.offsets[first][0], window.offsets[last][1]
