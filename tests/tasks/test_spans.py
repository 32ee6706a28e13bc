"""Spans of a context read in windows: a span of two windows is found once, and scores are comparable."""

import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.tasks.reader import WindowOutput
from pellucid.tasks.spans import SpanOptions, spans
from pellucid.tasks.spans_per_window import spans_per_window
from pellucid.text import Tokenizer, windows
from tests.parity import tiny
from tests.parity.cases import LONG, ZURICH


@pytest.fixture(scope="module")
def load_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Loads the tokenizer of a family."""

    def load(family: str) -> Tokenizer:
        folder: Path = tmp_path_factory.mktemp(family)
        return pellucid.load(tiny.write(f"{family}-reader", folder)).tokenizer

    return load


def window_outputs(
    tokenizer: Any, context: str, context_logits: Tensor, null_logits: tuple[float, float] = (0.0, 0.0), **options: Any
) -> list[WindowOutput]:
    """A context in windows, in each of which every token has its logits from `context_logits`."""
    found = []
    for window in windows(tokenizer, "Who?", context, rule="windows", side=1, **options):
        logits = torch.full((len(window.ids), 2), 50.0)  # tokens outside the context must not count
        logits[0] = torch.tensor(null_logits)
        positions = [i for i, side in enumerate(window.sequence_ids) if side == 1]
        logits[positions] = context_logits[window.tokens_before : window.tokens_before + len(positions)]
        found.append(WindowOutput(window, logits))
    return found


@pytest.mark.parametrize("words", [True, False])
def test_windows_give_the_same_spans_as_the_whole_context(load_tokenizer: Any, words: bool) -> None:
    tokenizer = load_tokenizer("bert")
    logits = torch.randn(200, 2, generator=torch.Generator().manual_seed(1)) * 3
    options = SpanOptions(top_k=6, max_tokens=9, align_to_words=words, allow_null=True)
    context = ZURICH
    whole = spans(context, window_outputs(tokenizer, context, logits), options)
    for stride in (0, 3, 11, None):
        windowed = window_outputs(tokenizer, context, logits, max_length=20, stride=stride)
        found = spans(context, windowed, options)
        assert len(windowed) > 2 and [s.score for s in found] == pytest.approx([s.score for s in whole], abs=1e-9)
        assert [(s.start, s.end) for s in found] == [(s.start, s.end) for s in whole]
        per_window = spans_per_window(context, windowed, tokenizer.cls_token_id, options)
        assert sum(s.score for s in per_window) != pytest.approx(sum(s.score for s in whole), abs=1e-2)


@pytest.mark.parametrize("words", [True, False])
def test_span_includes_trailing_combining_accents(load_tokenizer: Any, words: bool) -> None:
    """This tokenizer strips accents, and counts them among the characters of no token."""
    context = "Ana met Jose\u0301 in Cafe\u0301, \u0926\u093f\u0932\u094d\u0932\u0940 \u092e\u0947\u0902 a\u0323\u0302"
    logits = torch.randn(40, 2, generator=torch.Generator().manual_seed(3)) * 3
    found = spans(
        context,
        window_outputs(load_tokenizer("bert"), context, logits),
        SpanOptions(top_k=9, max_tokens=3, align_to_words=words, allow_null=False),
    )
    assert len(found) > 4
    assert not any(unicodedata.category(letter)[0] == "M" for one in found for letter in context[one.end :][:1])


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_span_in_a_script_without_spaces_is_not_extended(load_tokenizer: Any, family: str) -> None:
    context, tokenizer = "我昨天在北京見到了", load_tokenizer(family)
    (window,) = windows(tokenizer, "Who?", context, side=1)
    logits, offsets = (
        torch.zeros(60, 2),
        [offset for offset, side in zip(window.offsets, window.sequence_ids) if side == 1],
    )
    logits[next(i for i, (start, _) in enumerate(offsets) if start == 4), 0] = 9.0
    logits[max(i for i, (_, end) in enumerate(offsets) if end == 6), 1] = 9.0
    (best,) = spans(
        context,
        window_outputs(tokenizer, context, logits),
        SpanOptions(top_k=1, max_tokens=9, align_to_words=True, allow_null=False),
    )
    assert (context[best.start : best.end], best.score > 0.9) == ("北京", True)


def test_scores_are_comparable_across_windows(load_tokenizer: Any) -> None:
    """A window where nothing is likely must not win because it holds nothing likelier."""
    tokenizer, context = load_tokenizer("bert"), "Berlin is old and the river is long and the sun is warm in Paris"
    logits = torch.zeros(40, 2)
    count = len([i for i in windows(tokenizer, "Who?", context, side=1)[0].sequence_ids if i == 1])
    logits[0] = 6.0
    logits[count - 3 : count] = 9.0
    options = SpanOptions(top_k=1, max_tokens=1, align_to_words=False, allow_null=False)
    windowed = window_outputs(tokenizer, context, logits, null_logits=(-9.0, -9.0), max_length=15, stride=0)
    assert spans(context, windowed, options)[0].start > 30
    assert spans_per_window(context, windowed, tokenizer.cls_token_id, options)[0].start == 0


def test_scores_sum_to_at_most_one(load_tokenizer: Any) -> None:
    tokenizer = load_tokenizer("roberta")
    logits = torch.randn(400, 2, generator=torch.Generator().manual_seed(2))
    for words in (True, False):
        all_spans = SpanOptions(top_k=10_000, max_tokens=200, align_to_words=words, allow_null=True)
        found = spans(LONG, window_outputs(tokenizer, LONG, logits, max_length=40), all_spans)
        assert 0 < sum(span.score for span in found) <= 1 and found == sorted(found, key=lambda s: -s.score)
        ranges = sorted((s.start, s.end) for s in found if s.end)
        assert all(one[1] <= other[0] for one, other in pairwise(ranges)) and len(ranges) > 20
        texts = [LONG[start:end].casefold() for start, end in ranges]
        assert len(set(texts)) == len(texts) and all(text and text == text.strip() for text in texts)


def test_null_score_is_that_of_the_least_confident_window(load_tokenizer: Any) -> None:
    tokenizer, logits = load_tokenizer("bert"), torch.zeros(200, 2)
    windowed = window_outputs(tokenizer, ZURICH, logits, null_logits=(5.0, 5.0), max_length=24)
    options = SpanOptions(top_k=1, max_tokens=5, align_to_words=True, allow_null=True)
    assert spans(ZURICH, windowed, options)[0].end == 0
    windowed[1].output[0] = -5.0
    (found,) = spans(ZURICH, windowed, options)
    assert found.end > 0
    null_spans = [span for span in spans(ZURICH, windowed, SpanOptions(99, 5, True, True)) if not span.end]
    assert null_spans[0].window == 1 and null_spans[0].score < 1e-4
