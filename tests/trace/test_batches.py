"""Several texts in one pass, and texts after a cache: each text has the values of a pass of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.trace import Trace
from tests.trace.odd_sized_models import FAMILIES, config_of, model_of

TEXTS = ["time flies like an arrow", "hi", "fruit flies like a ripe banana"]
TARGETS = ["la vie en rose", "oui", "non"]
DECODERS = [family for family in FAMILIES if config_of(family).kind == "decoder"]
ENCODER_DECODERS = [family for family in FAMILIES if config_of(family).kind == "encoder-decoder"]


def assert_same_trace(actual: Trace, expected: Trace) -> None:
    assert actual.names() == expected.names()
    assert actual.rows == expected.rows
    for name in expected:
        one, other = actual[name], expected[name]
        assert one.shape == other.shape, name
        finite = torch.isfinite(other)
        assert torch.equal(finite, torch.isfinite(one)), name
        scale = max(1.0, float(other[finite].abs().max()))
        torch.testing.assert_close(one[finite], other[finite], rtol=0, atol=1e-5 * scale, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_text_of_a_batch_equals_its_own_pass(family: str, minilm: pellucid.Model) -> None:
    model = model_of(family, minilm.tokenizer)
    targets = TARGETS if family in ENCODER_DECODERS else None
    together = model.trace(TEXTS, target=targets)
    assert together.names() == list(model.points())
    for i, text in enumerate(TEXTS):
        assert_same_trace(together.row(i), model.trace(text, target=targets and targets[i]))


@pytest.mark.parametrize("family", DECODERS)
def test_padding_on_the_left(family: str, minilm: pellucid.Model) -> None:
    model = model_of(family, minilm.tokenizer)
    together = model.trace(TEXTS, padding="left")
    for i, text in enumerate(TEXTS):
        assert_same_trace(together.row(i), model.trace(text, padding="left"))
    last = together["norm.output" if "norm.output" in together else "layers.2.residual.post"][:, -1]
    assert torch.equal(last[1], together.row(1)["last_hidden_state"][0, -1])


def test_real_texts_and_pairs(minilm: pellucid.Model) -> None:
    together = minilm.trace(TEXTS, [*TEXTS[1:], "x"])
    assert together["layers.0.attention.weights"].shape == (3, 12, 10, 10)
    for i, text in enumerate(TEXTS):
        assert_same_trace(together.row(i), minilm.trace(text, [*TEXTS[1:], "x"][i]))
    assert together.row(-1).tokens == together.row(2).tokens
    assert repr(together).startswith("Trace(3 texts of at most 10 tokens, 89 tensors, ")


@pytest.mark.parametrize("family", DECODERS)
def test_pass_after_a_cache_equals_one_pass(family: str, minilm: pellucid.Model) -> None:
    model = model_of(family, minilm.tokenizer)
    tokenizer = minilm.tokenizer
    before, text = "time flies like", "an arrow flies"
    ids = tokenizer.encode([before])[0].ids + tokenizer.encode([text], add_special_tokens=False)[0].ids
    whole = model(torch.tensor([ids]))
    trace = model.trace(text, after=before)
    seq, read = len(trace.tokens), len(ids)
    assert (seq, len(trace.before)) == (read - len(tokenizer.encode([before])[0].ids), read - seq)
    assert trace["layers.1.attention.weights"].shape[-2:] == (seq, read)
    assert trace["layers.1.attention.key"].shape[-2] == seq
    torch.testing.assert_close(trace["norm.output"], whole.last_hidden_state[:, -seq:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_batch_after_caches_equals_single_passes(family: str, minilm: pellucid.Model) -> None:
    model = model_of(family, minilm.tokenizer)
    before = ["time flies like an arrow", "hi", "fruit"]
    texts = ["today", "there you are", "flies"]
    together = model.trace(texts, after=before)
    for i, text in enumerate(texts):
        assert_same_trace(together.row(i), model.trace(text, after=before[i]))


def test_span_checks_point_axis_and_text(minilm: pellucid.Model) -> None:
    trace = minilm.trace(TEXTS, keep="layers.0.attention.weights")
    name, odd = "layers.0.attention.weights", cast(Any, "a")
    assert trace.span(name, "source", 1) == trace.span(name, "source", -2) == (0, len(trace.rows[1].tokens))
    for call, sentence in (
        (("layers.0.attention.weight", "seq", 0), r"this model has no point 'layers\.0\.attention\.weight' \(did you"),
        ((name, "foo", 0), "axis is 'foo', expected one of seq, source"),
        (("pooled", "seq", 0), "pooled has no axis seq: its axes are batch, hidden"),
        ((name, "seq", 3), "row 3 is not there: this trace is of 3 texts"),
        ((name, "seq", odd), "row is 'a', expected the number of a text"),
    ):
        with pytest.raises(InputError, match=f"^{sentence}"):
            trace.span(*call)


def test_facts_of_a_batch_are_read_from_a_row(minilm: pellucid.Model) -> None:
    trace = minilm.trace(TEXTS, keep="pooled")
    for fact in ("texts", "tokens", "ids", "segments", "offsets", "special", "cut", "target_tokens", "before"):
        with pytest.raises(InputError, match=r"of 3 texts: choose one, such as trace.row\(0\)"):
            getattr(trace, fact)
        assert getattr(trace.row(1), fact) == getattr(minilm.trace("hi", keep="pooled"), fact)
    with pytest.raises(InputError, match="row 3 is not there: this trace is of 3 texts"):
        trace.row(3)
    one = minilm.trace(["hi"], keep="pooled")
    assert one.tokens == ["[CLS]", "hi", "[SEP]"] and torch.equal(one.row(0)["pooled"], one["pooled"])


def test_keep_view_records_what_a_page_needs(minilm: pellucid.Model) -> None:
    assert len(minilm.trace("hi", keep="view")) == 6 * 3
    names = model_of("t5", minilm.tokenizer).trace("hi", keep="view").names()
    assert len(names) == 2 + 3 * 3 + 2 * 3 + 2 * 3 and names[0] == "encoder.position_bias"


def test_invalid_input_is_one_clear_error(minilm: pellucid.Model) -> None:
    llama = model_of("llama", minilm.tokenizer)
    pair = model_of("bart", minilm.tokenizer)
    for call, message in (
        (lambda: minilm.trace([]), r"text is empty: expected a string, or a list of strings"),
        (lambda: minilm.trace(3), "text is '3': expected a string"),
        (lambda: minilm.trace("hi", keep=[]), "keep is empty"),
        (lambda: minilm.trace(TEXTS, "hi"), "3 texts and 1 of pair were given"),
        (lambda: pair.trace(TEXTS, target=TARGETS[:2]), "3 texts and 2 of target were given"),
        (lambda: minilm.trace("hi", after="there"), "'after' is for decoders and single texts"),
        (lambda: pair.trace("hi", after="there"), "of kind 'encoder-decoder'"),
        (lambda: llama.trace(TEXTS, after="there"), "3 texts and 1 of after were given"),
        (lambda: llama.trace("hi", after="there " * 600), "'after' has 602 tokens, and this model reads 512 in all"),
        (lambda: minilm.trace("hi", padding="left"), "for decoders that read from the beginning"),
        (lambda: llama.trace("hi", padding="left", after="there"), "for decoders that read from the beginning"),
        (lambda: llama.trace("hi", padding="middle"), "padding is 'middle', expected 'right' or 'left'"),
        (lambda: llama.trace("", after="there"), "text 0 has no tokens"),
        (lambda: llama.trace("hi", "you", after="there"), "of kind 'decoder' with a second text"),
        (lambda: minilm.trace(TEXTS).strongest(0, 0), r"this trace is of 3 texts: choose one, such as trace.row\(0\)"),
        (lambda: minilm.trace(["hi", 3]), r"expected a string, or a list of strings"),
    ):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("name", ["t5-feelings", "bart-nli"])
def test_classified_text_has_no_target(name: str, checkpoint: Callable[[str], Path]) -> None:
    model = pellucid.load(checkpoint(name))
    with pytest.raises(InputError, match="target was given, and sequence-classification judges the text itself"):
        model.trace("a few words of a text", target="other")
    ids = torch.tensor([model.tokenizer.encode(["a few words of a text"])[0].ids])
    with pytest.raises(InputError, match=r"the decoder read 2 other tokens: leave decoder_input_ids out"):
        model(ids, decoder_input_ids=ids[:, :2])
