"""A traced generation: every pass is recorded, and recording changes nothing."""

from dataclasses import replace

import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.generation import read_settings, write
from pellucid.generation.observed import trace_writing
from tests.generation.writers import TOKENIZERS, writer


@pytest.fixture(params=["llama", "gpt2", "bart"])
def model(request: pytest.FixtureRequest) -> pellucid.Model:
    facts = {"decoder_start_token_id": 2} if request.param == "bart" else {}
    return writer(TOKENIZERS["byte_level"](), request.param, **facts)


def test_every_step_is_recorded(model: pellucid.Model) -> None:
    encoder_decoder = model.config.kind == "encoder-decoder"
    traced = model.trace_writing("a b c d", max_new_tokens=5)
    prefix = "decoder.layers.1" if encoder_decoder else "layers.1"
    prompt_length = 1 if encoder_decoder else len(model.tokenizer.encode(["a b c d"])[0].ids)
    ids = model.tokenizer.encode(["a b c d"])[0].ids
    chosen = [step.tokens[0] for step in write(model.loaded, [ids], read_settings({"max_new_tokens": 5}))]
    assert [step.id for step in traced.steps] == chosen
    for i, step in enumerate(traced.steps):
        weights = step[f"{prefix}.attention.weights"]
        assert weights.shape[-2:] == (prompt_length if i == 0 else 1, prompt_length + i)
        assert len(step.read) == weights.shape[-2] and len(step.before) == weights.shape[-1]
        if encoder_decoder:  # keys and values of its output are computed once
            computed = [f"{prefix}.cross_attention.{name}" in step for name in ("query", "key", "value")]
            assert computed == [True, i == 0, i == 0]
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        log_probabilities = step["logits"][0, -1].log_softmax(-1)
        assert step.log_probability == pytest.approx(float(log_probabilities[step.id]), abs=1e-6)
        assert step.alternatives[0].id == int(log_probabilities.argmax()) == step.id
    assert traced.text == model.generate("a b c d", max_new_tokens=5)


def test_last_pass_equals_a_pass_over_the_whole_text(model: pellucid.Model) -> None:
    if model.config.kind == "encoder-decoder":
        pytest.skip("a pass over everything reads a target, which begins with its start token")
    traced = model.trace_writing("a b c d", max_new_tokens=4)
    ids = model.tokenizer.encode(["a b c d"])[0].ids + [step.id for step in traced.steps[:-1]]
    whole = model(torch.tensor([ids])).last_hidden_state[:, -1:]
    torch.testing.assert_close(traced.steps[-1]["norm.output"], whole, rtol=0, atol=1e-5)


def test_only_requested_points_are_kept(model: pellucid.Model) -> None:
    traced = model.trace_writing("a b", keep="*layers.0.attention.weights", max_new_tokens=3)
    assert {name.split("layers")[-1] for step in traced.steps for name in step} == {".0.attention.weights"}
    with pytest.raises(InputError, match=r"no point is called 'layers.0.atention'"):
        model.trace_writing("a b", keep="layers.0.atention", max_new_tokens=3)
    with pytest.raises(InputError, match="num_beams is 2, and one text is traced: pass num_beams=1"):
        trace_writing(model.loaded, "a b", num_beams=2)
    with pytest.raises(InputError, match="num_return_sequences is 3"):
        trace_writing(model.loaded, "a b", num_return_sequences=3)


def test_steps_accept_aliases_of_points(model: pellucid.Model) -> None:
    side, theirs = ("decoder.", "decoder_") if model.config.kind == "encoder-decoder" else ("", "")
    (step,) = model.trace_writing("a b c", max_new_tokens=1, keep=f"{theirs}attentions[*]").steps
    assert step.names() == list(step) == [f"{side}layers.{i}.attention.weights" for i in range(len(step))]
    last = f"{theirs}attentions[-1]"
    assert last in step and step[last] is step.get(last) is step[step.names()[-1]] and step.get("nothing") is None
    with pytest.raises(InputError, match=r"this step has no 'logits'; names\(\) lists what it has"):
        step["logits"]


def test_traced_text_ends_where_the_generated_one_ends(model: pellucid.Model) -> None:
    whole = model.complete("a b c d", max_new_tokens=12)
    stop = whole.text[len(whole.text) // 2 :][:2]
    for option in ({"stop": stop}, {"stop_token_ids": [whole.ids[4]]}):
        completion = model.complete("a b c d", max_new_tokens=12, **option)
        traced = model.trace_writing("a b c d", keep="logits", max_new_tokens=12, **option)
        assert traced.text == completion.text and [step.id for step in traced.steps] == list(completion.ids)
        assert len(completion.ids) < len(whole.ids)


def test_num_return_sequences_of_a_checkpoint_is_ignored(model: pellucid.Model) -> None:
    several = replace(model.loaded, generation={"num_return_sequences": 3, "do_sample": True})
    options = {"do_sample": False, "max_new_tokens": 3}
    assert trace_writing(several, "a b", **options).text == model.generate("a b", max_new_tokens=3)


def test_steps_and_texts_compare_by_identity(model: pellucid.Model) -> None:
    first, second = (model.trace_writing("a b", keep="logits", max_new_tokens=2) for _ in range(2))
    assert first == first and first != second and first.steps[0] in first.steps and len({*first.steps}) == 2
