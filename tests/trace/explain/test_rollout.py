"""Attention rollout: rows sum to 1, and the result is the product over the layers."""

import pytest
import torch

import pellucid
from pellucid import InputError
from pellucid.checkpoints.families import families
from pellucid.trace.explain import attention_rollout
from tests.trace.explain.models import built_model

TEXT = "time flies like an arrow"


@pytest.mark.parametrize("family", sorted(families()))
def test_rows_sum_to_one_and_respect_the_causal_mask(minilm: pellucid.Model, family: str) -> None:
    model = built_model(minilm.tokenizer, family)
    sides = ("encoder", "decoder") if model.config.kind == "encoder-decoder" else (None,)
    for side in sides:
        rollout = model.explain.attention_rollout(TEXT, side=side)
        assert rollout.shape == (2 if side == "decoder" else 3, 7, 7)
        torch.testing.assert_close(rollout.sum(-1), torch.ones(rollout.shape[:2], dtype=torch.float64))
        assert (rollout >= 0).all()
        if side == "decoder" or model.config.kind == "decoder":
            assert torch.equal(rollout, rollout.tril())


def test_rollout_is_the_product_of_the_layers(minilm: pellucid.Model) -> None:
    trace = minilm.trace(TEXT, "fruit flies", keep="*.attention.weights")
    expected = torch.eye(len(trace.tokens))
    for i in range(6):
        expected = (0.5 * trace[f"layers.{i}.attention.weights"][0].mean(0) + 0.5 * torch.eye(len(expected))) @ expected
        torch.testing.assert_close(attention_rollout(trace)[i], expected)
    assert torch.equal(attention_rollout(trace, residual=1.0)[-1], torch.eye(len(expected)))
    torch.testing.assert_close(attention_rollout(trace, residual=0)[0], trace["layers.0.attention.weights"][0].mean(0))


def test_invalid_arguments_are_refused(minilm: pellucid.Model) -> None:
    with pytest.raises(InputError, match="residual is 2, expected at least 0 and at most 1"):
        minilm.explain.attention_rollout(TEXT, residual=2)
    with pytest.raises(InputError, match="side is 'decoder', and this model is of kind 'encoder'"):
        minilm.explain.attention_rollout(TEXT, side="decoder")
    with pytest.raises(InputError, match="side is 'left', expected 'encoder' or 'decoder'"):
        built_model(minilm.tokenizer, "t5").explain.attention_rollout(TEXT, side="left")
    writer = built_model(minilm.tokenizer, "gpt2")
    with pytest.raises(InputError, match="continues after cached tokens"):
        attention_rollout(writer.trace("an arrow", after="time flies like"))
    with pytest.raises(InputError, match="this trace is of 2 texts"):
        writer.explain.attention_rollout(writer.trace(["time", "flies"]))
    with pytest.raises(InputError, match="this trace is of 2 texts"):
        attention_rollout(writer.trace(["time", "flies"]))
    with pytest.raises(InputError, match=r"no 'layers.1.attention.weights'"):
        attention_rollout(minilm.trace(TEXT, keep="layers.0.attention.weights"))
