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
def words_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Loads the tokenizer of a family."""

    def load(family: str) -> Tokenizer:
        folder: Path = tmp_path_factory.mktemp(family)
        return pellucid.load(tiny.write(f"{family}-reader", folder)).tokenizer

    return load


def laid(
    tokenizer: Any, context: str, base: Tensor, null: tuple[float, float] = (0.0, 0.0), **options: Any
) -> list[WindowOutput]:
    """A context in windows, in each of which every token has its logits from `base`."""
    found = []
    for window in windows(tokenizer, "Who?", context, rule="windows", side=1, **options):
        kept = torch.full((len(window.ids), 2), 50.0)  # tokens outside the context must not count
        kept[0] = torch.tensor(null)
        positions = [i for i, side in enumerate(window.sequence_ids) if side == 1]
        kept[positions] = base[window.tokens_before : window.tokens_before + len(positions)]
        found.append(WindowOutput(window, kept))
    return found


@pytest.mark.parametrize("words", [True, False])
def test_stretches_say_what_the_whole_would_say(words_of: Any, words: bool) -> None:
    tokenizer = words_of("bert")
    base = torch.randn(200, 2, generator=torch.Generator().manual_seed(1)) * 3
    options = SpanOptions(top_k=6, max_tokens=9, align_to_words=words, allow_null=True)
    context = ZURICH
    whole = spans(context, laid(tokenizer, context, base), options)
    for stride in (0, 3, 11, None):
        stretches = laid(tokenizer, context, base, max_length=20, stride=stride)
        found = spans(context, stretches, options)
        assert len(stretches) > 2 and [s.score for s in found] == pytest.approx([s.score for s in whole], abs=1e-9)
        assert [(s.start, s.end) for s in found] == [(s.start, s.end) for s in whole]
        apart = spans_per_window(context, stretches, tokenizer.cls_token_id, options)
        assert sum(s.score for s in apart) != pytest.approx(sum(s.score for s in whole), abs=1e-2)


@pytest.mark.parametrize("words", [True, False])
def test_an_answer_ends_with_the_accents_of_its_last_letter(words_of: Any, words: bool) -> None:
    """This tokenizer strips accents, and counts them among the characters of no token."""
    context = "Ana met Jose\u0301 in Cafe\u0301, \u0926\u093f\u0932\u094d\u0932\u0940 \u092e\u0947\u0902 a\u0323\u0302"
    base = torch.randn(40, 2, generator=torch.Generator().manual_seed(3)) * 3
    found = spans(
        context,
        laid(words_of("bert"), context, base),
        SpanOptions(top_k=9, max_tokens=3, align_to_words=words, allow_null=False),
    )
    assert len(found) > 4
    assert not any(unicodedata.category(letter)[0] == "M" for one in found for letter in context[one.end :][:1])


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_an_answer_in_a_script_without_spaces_is_not_the_whole_sentence(words_of: Any, family: str) -> None:
    context, tokenizer = "我昨天在北京見到了", words_of(family)
    (window,) = windows(tokenizer, "Who?", context, side=1)
    base, places = torch.zeros(60, 2), [place for place, side in zip(window.offsets, window.sequence_ids) if side == 1]
    base[next(i for i, (start, _) in enumerate(places) if start == 4), 0] = 9.0
    base[max(i for i, (_, end) in enumerate(places) if end == 6), 1] = 9.0
    (best,) = spans(
        context,
        laid(tokenizer, context, base),
        SpanOptions(top_k=1, max_tokens=9, align_to_words=True, allow_null=False),
    )
    assert (context[best.start : best.end], best.score > 0.9) == ("北京", True)


def test_scores_of_stretches_can_be_compared(words_of: Any) -> None:
    """A window where nothing is likely must not win because it holds nothing likelier."""
    tokenizer, context = words_of("bert"), "Berlin is old and the river is long and the sun is warm in Paris"
    base = torch.zeros(40, 2)
    count = len([i for i in windows(tokenizer, "Who?", context, side=1)[0].sequence_ids if i == 1])
    base[0] = 6.0
    base[count - 3 : count] = 9.0
    options = SpanOptions(top_k=1, max_tokens=1, align_to_words=False, allow_null=False)
    stretches = laid(tokenizer, context, base, null=(-9.0, -9.0), max_length=15, stride=0)
    assert spans(context, stretches, options)[0].start > 30
    assert spans_per_window(context, stretches, tokenizer.cls_token_id, options)[0].start == 0


def test_all_scores_come_to_no_more_than_one(words_of: Any) -> None:
    tokenizer = words_of("roberta")
    base = torch.randn(400, 2, generator=torch.Generator().manual_seed(2))
    for words in (True, False):
        every = SpanOptions(top_k=10_000, max_tokens=200, align_to_words=words, allow_null=True)
        found = spans(LONG, laid(tokenizer, LONG, base, max_length=40), every)
        assert 0 < sum(span.score for span in found) <= 1 and found == sorted(found, key=lambda s: -s.score)
        solid = sorted((s.start, s.end) for s in found if s.end)
        assert all(one[1] <= other[0] for one, other in pairwise(solid)) and len(solid) > 20
        texts = [LONG[start:end].casefold() for start, end in solid]
        assert len(set(texts)) == len(texts) and all(text and text == text.strip() for text in texts)


def test_no_answer_is_what_the_least_sure_stretch_says(words_of: Any) -> None:
    tokenizer, base = words_of("bert"), torch.zeros(200, 2)
    stretches = laid(tokenizer, ZURICH, base, null=(5.0, 5.0), max_length=24)
    options = SpanOptions(top_k=1, max_tokens=5, align_to_words=True, allow_null=True)
    assert spans(ZURICH, stretches, options)[0].end == 0
    stretches[1].output[0] = -5.0
    (found,) = spans(ZURICH, stretches, options)
    assert found.end > 0
    none = [span for span in spans(ZURICH, stretches, SpanOptions(99, 5, True, True)) if not span.end]
    assert none[0].window == 1 and none[0].score < 1e-4
