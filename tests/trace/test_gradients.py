"""Gradients at any point equal finite differences, for every family, also where attention is fused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.errors import InputError
from pellucid.models import Output
from pellucid.trace.gradients import record_with_gradients
from tests.quick import few
from tests.trace.odd_sized_models import FAMILIES, model_of

TEXT, STEP = "time flies like an arrow", 1e-5


def target(output: Output) -> Tensor:
    """A scalar that depends on every position of the output, and on the pooled output if there is one."""
    state = output.last_hidden_state
    coefficients = torch.linspace(-1.0, 1.0, state.numel(), dtype=state.dtype).view(state.shape)
    answer = (state * coefficients).sum()
    return answer + (output["pooler_output"].sin().sum() if "pooler_output" in output else 0.0)


class Shift:
    """An observer that shifts one element of one point."""

    def __init__(self, point: str, index: int, step: float) -> None:
        self.settings = (point, index, step)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        point, index, step = self.settings
        if name != point:
            return value
        moved = value.clone().contiguous()
        moved.view(-1)[index] += step
        return moved

    def wants(self, name: str) -> bool:
        return name == self.settings[0]


def finite_difference(model: pellucid.Model, batch: dict[str, Tensor], point: str, index: int) -> float:
    """The derivative of the target by a central difference."""
    with torch.no_grad():
        up, down = (target(model.module(**batch, observer=Shift(point, index, s))) for s in (STEP, -STEP))
    return float(up - down) / (2 * STEP)


@pytest.mark.parametrize("attention", ["fused", "explicit"])
@pytest.mark.parametrize("family", few(FAMILIES, ["bert", "llama", "t5"]))
def test_gradients_equal_finite_differences(family: str, attention: str, minilm: pellucid.Model) -> None:
    model = model_of(family, minilm.tokenizer, attention=attention, dtype="float64")
    trace = model.trace(TEXT, gradients_of=target)
    assert list(trace.gradients) == trace.names() == list(model.points())
    batch = {"input_ids": torch.tensor([trace.ids])}
    generator = torch.Generator().manual_seed(2)
    for point, gradient in trace.gradients.items():
        assert gradient.shape == trace[point].shape and not trace[point].requires_grad
        reached = gradient.flatten()
        finite = torch.isfinite(trace[point].flatten()).nonzero()[:, 0]  # except where a mask sets minus infinity
        index = int(finite[torch.randint(len(finite), (1,), generator=generator)])
        expected = finite_difference(model, batch, point, index)
        assert float(reached[index]) == pytest.approx(expected, rel=2e-4, abs=2e-5), (point, index)


def test_gradient_mode_of_the_caller_has_no_effect(minilm: pellucid.Model) -> None:
    model = model_of("gpt2", minilm.tokenizer)
    expected = model.trace(TEXT, gradients_of=target).gradients
    for setting in (torch.inference_mode(), torch.no_grad()):
        with setting:
            found = model.trace(TEXT, gradients_of=target).gradients
        assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    with torch.inference_mode():
        plain = model.trace(TEXT)
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in plain.points.values())


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_values_equal_those_without_gradients(family: str, minilm: pellucid.Model) -> None:
    model = model_of(family, minilm.tokenizer)
    keep = ["*layers.1.residual.post", "*layers.0.attention.query"]
    plain, with_gradients = model.trace(TEXT, keep=keep), model.trace(TEXT, keep=keep, gradients_of=target)
    assert not plain.gradients and not any(t.requires_grad for t in plain.points.values())
    for name in plain:
        torch.testing.assert_close(with_gradients[name], plain[name], rtol=0, atol=1e-5)
        assert bool(with_gradients.gradients[name].any())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_under_other_libraries_names(minilm: pellucid.Model, tmp_path: Path) -> None:
    trace = model_of("gpt2", minilm.tokenizer).trace(TEXT, gradients_of=target)
    stored = pellucid.open_trace(trace.save(tmp_path / "trace"))
    for source in (trace, trace.row(0), stored):
        own, theirs = "layers.1.attention.heads", "blocks.1.attn.hook_z"
        assert torch.equal(source.gradients[theirs], source.gradients[own].transpose(1, 2))
        assert source.gradients[theirs].shape == source[theirs].shape
        assert torch.equal(source.gradients["hidden_states[0]"], source.gradients["embeddings.output"])
        with pytest.raises(InputError, match=r"has no 'layers\.9\.residual\.post'"):
            source.gradients["layers.9.residual.post"]


def test_gradients_of_frozen_models(minilm: pellucid.Model) -> None:
    model = model_of("bert", minilm.tokenizer)
    trainable = model.trace(TEXT, gradients_of=target).gradients
    frozen = model.freeze("*").trace(TEXT, gradients_of=target).gradients
    assert trainable.keys() == frozen.keys()
    for name, gradient in trainable.items():
        torch.testing.assert_close(frozen[name], gradient, rtol=1e-4, atol=1e-5)


def test_gradients_of_a_batch_equal_single_texts(minilm: pellucid.Model) -> None:
    def first(output: Output) -> Tensor:
        return output.last_hidden_state[:, 0, 5].sum()

    together = minilm.trace([TEXT, "hi"], keep="layers.*.attention.weights", gradients_of=first)
    for i, text in enumerate([TEXT, "hi"]):
        alone = minilm.trace(text, keep="layers.*.attention.weights", gradients_of=first)
        for name, gradient in alone.gradients.items():
            torch.testing.assert_close(together.row(i).gradients[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_shared_values_have_a_gradient_for_each_text(family: str, minilm: pellucid.Model, tmp_path: Path) -> None:
    """Positions are shared by all texts, but their effect on the output is not."""

    def first(output: Output) -> Tensor:
        return output.last_hidden_state[:, 0].sin().sum()

    model, texts = model_of(family, minilm.tokenizer, dtype="float64"), [TEXT, "hi", "fruit flies"]
    shared = [name for name in model.points() if name.endswith(("embeddings.position", "position_bias"))]
    together = model.trace(texts, keep=shared, gradients_of=first)
    together = pellucid.open_trace(together.save(tmp_path / "a.trace"))
    for i, text in enumerate(texts):
        alone, row = model.trace(text, keep=shared, gradients_of=first), together.row(i)
        for name in shared:
            torch.testing.assert_close(row[name], alone[name], rtol=0, atol=1e-12)
            torch.testing.assert_close(row.gradients[name], alone.gradients[name], rtol=0, atol=1e-9)
        assert any(bool(row.gradients[name].any()) for name in shared)


def test_gradients_after_a_cache_equal_one_pass(minilm: pellucid.Model) -> None:
    def last(output: Output) -> Tensor:
        return output.last_hidden_state[0, -1, :5].sum()

    model, tokenizer = model_of("llama", minilm.tokenizer), minilm.tokenizer
    ids = tokenizer.encode(["time flies"])[0].ids + tokenizer.encode(["like arrows"], add_special_tokens=False)[0].ids
    points = ["layers.0.residual.pre", "layers.1.attention.key"]
    _, whole = record_with_gradients(model.module, {"input_ids": torch.tensor([ids])}, points, last)
    trace = model.trace("like arrows", after="time flies", keep=points, gradients_of=last)
    for name, gradient in trace.gradients.items():
        axis = model.points()[name].index("seq")
        part = whole[name].narrow(axis, len(trace.before), len(trace.tokens))
        torch.testing.assert_close(gradient, part, rtol=1e-4, atol=1e-6)
        assert bool(gradient.any())


@pytest.mark.parametrize(
    ("target_of", "message"),
    [
        (lambda o: o.last_hidden_state, r"returned shape \[1, 7, 384\], expected a tensor of one number"),
        (lambda o: 3.0, "returned float, expected a tensor of one number"),
        (lambda o: o.last_hidden_state.sum() * 1j, "returned a complex number, expected a real one"),
        (lambda o: o.last_hidden_state.detach().sum(), "a number without a gradient"),
        (lambda o: o.last_hidden_state.mul_(2.0).sum(), r"writes into layers.5.residual.post.*change a clone\(\)"),
    ],
)
def test_targets_that_are_not_scalars_are_refused(
    target_of: Callable[[Output], Tensor], message: str, minilm: pellucid.Model
) -> None:
    with pytest.raises(InputError, match=message):
        minilm.trace(TEXT, gradients_of=target_of)


def test_gradients_of_low_bit_models_are_refused(tmp_path: object, minilm_folder: object) -> None:
    model = pellucid.load(minilm_folder, dtype="int8")
    with pytest.raises(InputError, match="a gradient needs float weights, and this model has 8-bit ones"):
        model.trace(TEXT, gradients_of=lambda o: o.last_hidden_state.sum())
