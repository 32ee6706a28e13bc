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
    plan = torch.linspace(-1.0, 1.0, state.numel(), dtype=state.dtype).view(state.shape)
    answer = (state * plan).sum()
    return answer + (output["pooler_output"].sin().sum() if "pooler_output" in output else 0.0)


class Nudge:
    """An observer that shifts one element of one point."""

    def __init__(self, point: str, place: int, step: float) -> None:
        self.said = (point, place, step)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        point, place, step = self.said
        if name != point:
            return value
        moved = value.clone().contiguous()
        moved.view(-1)[place] += step
        return moved

    def wants(self, name: str) -> bool:
        return name == self.said[0]


def nudged(model: pellucid.Model, batch: dict[str, Tensor], point: str, place: int) -> float:
    """The derivative of the target by a central difference."""
    with torch.no_grad():
        up, down = (target(model.module(**batch, watch=Nudge(point, place, s))) for s in (STEP, -STEP))
    return float(up - down) / (2 * STEP)


@pytest.mark.parametrize("attention", ["fused", "explicit"])
@pytest.mark.parametrize("family", few(FAMILIES, ["bert", "llama", "t5"]))
def test_they_are_what_finite_differences_say(family: str, attention: str, minilm: pellucid.Model) -> None:
    model = model_of(family, minilm.tokenizer, attention=attention, dtype="float64")
    trace = model.trace(TEXT, gradients_of=target)
    assert list(trace.gradients) == trace.names() == list(model.points())
    batch = {"input_ids": torch.tensor([trace.ids])}
    chance = torch.Generator().manual_seed(2)
    for point, gradient in trace.gradients.items():
        assert gradient.shape == trace[point].shape and not trace[point].requires_grad
        reached = gradient.flatten()
        seen = torch.isfinite(trace[point].flatten()).nonzero()[:, 0]  # except where a mask sets minus infinity
        place = int(seen[torch.randint(len(seen), (1,), generator=chance)])
        wanted = nudged(model, batch, point, place)
        assert float(reached[place]) == pytest.approx(wanted, rel=2e-4, abs=2e-5), (point, place)


def test_a_callers_own_setting_does_not_matter(minilm: pellucid.Model) -> None:
    model = model_of("gpt2", minilm.tokenizer)
    wanted = model.trace(TEXT, gradients_of=target).gradients
    for setting in (torch.inference_mode(), torch.no_grad()):
        with setting:
            found = model.trace(TEXT, gradients_of=target).gradients
        assert all(torch.equal(found[name], gradient) for name, gradient in wanted.items())
    with torch.inference_mode():
        plain = model.trace(TEXT)
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in plain.points.values())


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_numbers_are_those_of_a_pass_without_gradients(family: str, minilm: pellucid.Model) -> None:
    model = model_of(family, minilm.tokenizer)
    keep = ["*layers.1.residual.post", "*layers.0.attention.query"]
    plain, felt = model.trace(TEXT, keep=keep), model.trace(TEXT, keep=keep, gradients_of=target)
    assert not plain.gradients and not any(t.requires_grad for t in plain.points.values())
    for name in plain:
        torch.testing.assert_close(felt[name], plain[name], rtol=0, atol=1e-5)
        assert bool(felt.gradients[name].any())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_they_answer_to_the_names_of_other_libraries_too(minilm: pellucid.Model, tmp_path: Path) -> None:
    trace = model_of("gpt2", minilm.tokenizer).trace(TEXT, gradients_of=target)
    stored = pellucid.open_trace(trace.save(tmp_path / "trace"))
    for held in (trace, trace.row(0), stored):
        own, theirs = "layers.1.attention.heads", "blocks.1.attn.hook_z"
        assert torch.equal(held.gradients[theirs], held.gradients[own].transpose(1, 2))
        assert held.gradients[theirs].shape == held[theirs].shape
        assert torch.equal(held.gradients["hidden_states[0]"], held.gradients["embeddings.output"])
        with pytest.raises(InputError, match=r"has no 'layers\.9\.residual\.post'"):
            held.gradients["layers.9.residual.post"]


def test_frozen_models_have_them_too(minilm: pellucid.Model) -> None:
    model = model_of("bert", minilm.tokenizer)
    learned = model.trace(TEXT, gradients_of=target).gradients
    frozen = model.freeze("*").trace(TEXT, gradients_of=target).gradients
    assert learned.keys() == frozen.keys()
    for name, gradient in learned.items():
        torch.testing.assert_close(frozen[name], gradient, rtol=1e-4, atol=1e-5)


def test_each_text_of_a_batch_has_its_own(minilm: pellucid.Model) -> None:
    def first(output: Output) -> Tensor:
        return output.last_hidden_state[:, 0, 5].sum()

    together = minilm.trace([TEXT, "hi"], keep="layers.*.attention.weights", gradients_of=first)
    for i, text in enumerate([TEXT, "hi"]):
        alone = minilm.trace(text, keep="layers.*.attention.weights", gradients_of=first)
        for name, gradient in alone.gradients.items():
            torch.testing.assert_close(together.row(i).gradients[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_what_texts_share_has_a_gradient_for_each(family: str, minilm: pellucid.Model, tmp_path: Path) -> None:
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


def test_behind_a_cache_they_are_those_of_one_pass(minilm: pellucid.Model) -> None:
    def last(output: Output) -> Tensor:
        return output.last_hidden_state[0, -1, :5].sum()

    model, words = model_of("llama", minilm.tokenizer), minilm.tokenizer
    ids = words.encode(["time flies"])[0].ids + words.encode(["like arrows"], add_special_tokens=False)[0].ids
    points = ["layers.0.residual.pre", "layers.1.attention.key"]
    _, whole = record_with_gradients(model.module, {"input_ids": torch.tensor([ids])}, points, last)
    trace = model.trace("like arrows", after="time flies", keep=points, gradients_of=last)
    for name, gradient in trace.gradients.items():
        axis = model.points()[name].index("seq")
        part = whole[name].narrow(axis, len(trace.before), len(trace.tokens))
        torch.testing.assert_close(gradient, part, rtol=1e-4, atol=1e-6)
        assert bool(gradient.any())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda o: o.last_hidden_state, r"returned shape \[1, 7, 384\], expected a tensor of one number"),
        (lambda o: 3.0, "returned float, expected a tensor of one number"),
        (lambda o: o.last_hidden_state.sum() * 1j, "returned a complex number, expected a real one"),
        (lambda o: o.last_hidden_state.detach().sum(), "a number without a gradient"),
        (lambda o: o.last_hidden_state.mul_(2.0).sum(), r"writes into layers.5.residual.post.*change a clone\(\)"),
    ],
)
def test_what_is_no_number_is_refused(asked: Callable[[Output], Tensor], said: str, minilm: pellucid.Model) -> None:
    with pytest.raises(InputError, match=said):
        minilm.trace(TEXT, gradients_of=asked)


def test_models_of_few_bits_are_refused(tmp_path: object, minilm_folder: object) -> None:
    model = pellucid.load(minilm_folder, dtype="int8")
    with pytest.raises(InputError, match="a gradient needs float weights, and this model has 8-bit ones"):
        model.trace(TEXT, gradients_of=lambda o: o.last_hidden_state.sum())
