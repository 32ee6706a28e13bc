"""Every family can be traced, and tracing changes no bit."""

import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.trace import Trace
from tests.trace.odd_sized_models import FAMILIES, model_of


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, minilm: pellucid.Model) -> pellucid.Model:
    return model_of(request.param, minilm.tokenizer)


def attention_names(trace: Trace) -> list[str]:
    return [name.removesuffix(".weights") for name in trace if name.endswith("attention.weights")]


def test_every_attention_is_recorded(model: pellucid.Model) -> None:
    trace = model.trace("time flies like an arrow")
    expected = 3 if model.config.kind != "encoder-decoder" else 3 + 2 + 2
    assert len(attention_names(trace)) == expected
    for name in attention_names(trace):
        weights = trace[f"{name}.weights"]
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        mixed = weights @ repeated_heads(trace[f"{name}.value"], weights.shape[1])
        torch.testing.assert_close(mixed, trace[f"{name}.heads"], rtol=1e-4, atol=1e-5)
        outputs = trace[f"{name}.head_outputs"].sum(1)
        bias = bias_of(model, name)
        torch.testing.assert_close(outputs + bias, trace[f"{name}.output"], rtol=1e-4, atol=1e-5)


def test_tracing_changes_no_bit(model: pellucid.Model) -> None:
    traced, last = (
        model.trace("time flies", keep="*residual.post"),
        model.trace("time flies", keep="*layers.2.residual.post"),
    )
    for name in last:
        assert torch.equal(traced[name], last[name])


def test_decoder_reads_its_target(model: pellucid.Model) -> None:
    if model.config.kind != "encoder-decoder":
        with pytest.raises(InputError, match="has no decoder beside it"):
            model.trace("time flies", target="la vie")
        return
    trace = model.trace("time flies like an arrow", target="fruit flies", keep="decoder.*")
    assert trace.target_tokens[2:4] == ("fruit", "flies") or trace.target_tokens[1:4] == ("[CLS]", "fruit", "flies")
    queries, keys = trace["decoder.layers.0.cross_attention.weights"].shape[-2:]
    assert (queries, keys) == (len(trace.target_tokens), len(trace.tokens))


def repeated_heads(value: torch.Tensor, heads: int) -> torch.Tensor:
    return value.repeat_interleave(heads // value.shape[1], dim=1)


def bias_of(model: pellucid.Model, name: str) -> torch.Tensor:
    parts = name.split(".")
    if model.config.num_hidden_groups == 1:
        parts[parts.index("layers") + 1] = "0"
    bias = model.module.get_submodule(".".join(parts)).output.bias
    return torch.zeros(()) if bias is None else bias.detach()
