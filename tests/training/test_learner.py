"""The training copy: gradients of the plain module, randomness that depends on the step alone, no wasted work."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import pellucid
from pellucid.blocks import backward
from pellucid.blocks.training_copy import MAX_PLAIN_LENGTH, TrainingContext
from pellucid.config import Dropout, Head
from pellucid.errors import InputError
from pellucid.models import freeze
from pellucid.training.learner import Learner
from pellucid.training.settings import Settings
from tests.trace.odd_sized_models import FAMILIES_AND_HEADS, config_of

NO_DROPOUT = Dropout(0.0, 0.0)
DTYPES = [torch.float64, torch.float32]


def model_of(family: str, head: Head | None = None, dropout: Dropout = NO_DROPOUT, **facts: Any) -> "pellucid.Model":
    """A small random model whose biases and gains differ from 0 and 1."""
    model = pellucid.build(config_of(family, head, dropout=dropout, **facts), seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def batch_of(model: "pellucid.Model", rows: int = 3, seq: int = 9) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(5, 90, (rows, seq), generator=generator)
    mask = (torch.arange(seq) < seq - torch.arange(rows)[:, None]).long()
    if model.config.kind == "encoder-decoder":
        (end,) = model.config.end_tokens
        ids[torch.arange(rows), mask.sum(1) - 1] = end  # where a classification head may read its state
    return {"input_ids": ids * mask, "attention_mask": mask}


def gradients(
    module: nn.Module, network: Callable[..., Any], batch: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss that depends on every output, and its gradients by parameter name."""
    output = network(**batch)
    total = torch.zeros((), dtype=torch.float64)
    for name, value in sorted(output.items()):
        weights = torch.linspace(-1.0, 1.0, value.numel(), dtype=torch.float64).view(value.shape)
        total = total + ((value.double() * weights).sum() / value.shape[-1] ** 0.5 if name else 0.0)
    module.zero_grad()
    total.backward()
    return total.detach(), {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(one.abs().max()) for one in expected.values())
    for name in expected:
        difference = float((found[name].double() - expected[name].double()).abs().max())
        assert difference <= tolerance * largest, f"{name}: {difference:g} of {largest:g}"


# -- the same gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("family", "head"), FAMILIES_AND_HEADS, ids=lambda one: one if isinstance(one, str) else type(one).__name__
)
def test_training_copy_has_the_gradients_of_the_plain_module(
    family: str, head: Head | None, dtype: torch.dtype
) -> None:
    model = model_of(family, head).to(dtype=dtype)
    module, batch = model.loaded.module, batch_of(model)
    expected_loss, expected = gradients(module, module, batch)
    loss, found = gradients(module, module.training_copy(TrainingContext(dtype)), batch)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    assert_near(found, expected, tolerance)
    assert abs(float(loss - expected_loss)) <= tolerance * max(1.0, abs(float(expected_loss)))


@pytest.mark.parametrize("without_bias", [("key",), ("query", "value"), ("query", "key", "value")], ids=str)
def test_projections_with_and_without_bias_have_the_same_gradients(without_bias: tuple[str, ...]) -> None:
    model = model_of("bert").to(dtype=torch.float64)
    module, batch = model.loaded.module, batch_of(model)
    for name in without_bias:
        getattr(module.layers[0].attention, name).bias = None
    _, expected = gradients(module, module, batch)
    _, found = gradients(module, module.training_copy(TrainingContext(torch.float64)), batch)
    assert_near(found, expected, 1e-9)


@pytest.mark.parametrize(("mkl", "pace"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_gradients_are_equal_with_mkl_and_onednn(
    family: str, mkl: bool, pace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MKL where it uses the whole processor, otherwise oneDNN, and a mixture of both."""
    monkeypatch.setattr(backward, "served_by_mkl", lambda: mkl)
    monkeypatch.setattr(backward, "mkl_keeps_pace", lambda: pace)
    model = model_of(family).to(dtype=torch.float32)
    module, batch = model.loaded.module, batch_of(model)
    _, expected = gradients(module, module, batch)
    _, found = gradients(module, module.training_copy(TrainingContext(torch.float32)), batch)
    assert_near(found, expected, 1e-5)


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_long_texts_have_the_same_gradients(family: str) -> None:
    model = model_of(family, max_position_embeddings=400) if family != "t5" else model_of(family)
    module, batch = model.loaded.module, batch_of(model, 2, MAX_PLAIN_LENGTH + 20)
    _, expected = gradients(module, module, batch)
    _, found = gradients(module, module.training_copy(TrainingContext(torch.float32)), batch)
    assert_near(found, expected, 1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_packed_texts_have_the_same_gradients(family: str) -> None:
    model = model_of(family)
    module, batch = model.loaded.module, batch_of(model)
    segments = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 3, 3], [1] * 9, [1, 1, 2, 2, 2, 2, 2, 0, 0]])
    inputs = {"input_ids": batch["input_ids"], "segments": segments}
    _, expected = gradients(module, module, inputs)
    _, found = gradients(module, module.training_copy(TrainingContext(torch.float32)), inputs)
    assert_near(found, expected, 1e-5)


class LowRankSum(nn.Module):
    """A weight matrix plus the product of two narrow ones."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(2, weight.shape[1])), nn.Parameter(torch.randn(len(weight), 2))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + 0.1 * self.up @ self.down


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_adapters_get_gradients_and_their_base_weights_none(family: str) -> None:
    module = model_of(family).loaded.module
    freeze(module, "*")
    for part in list(module.modules()):
        if isinstance(part, nn.Linear):
            parametrize.register_parametrization(part, "weight", LowRankSum(part.weight))
    batch = batch_of(pellucid.Model(model_of(family).loaded))
    learner = module.training_copy(TrainingContext(torch.float32))
    _, expected = gradients(module, module, batch)
    _, found = gradients(module, learner, batch)
    assert_near(found, expected, 1e-5)
    assert found and all("parametrizations" in name for name in found)
    with torch.no_grad():  # weights are read at each pass
        next(p for name, p in module.named_parameters() if name.endswith("up")).add_(1.0)
    _, expected = gradients(module, module, batch)
    _, found = gradients(module, learner, batch)
    assert_near(found, expected, 1e-5)


def test_frozen_weights_need_no_gradient_products(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"linear_input_gradient": 0, "linear_weight_gradient": 0}

    def counting(name: str, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def product(*args: Tensor) -> Tensor:
            calls[name] += 1
            return original(*args)

        return product

    for name in calls:
        monkeypatch.setattr(backward, name, counting(name, getattr(backward, name)))
    model = model_of("bert")
    module, batch = model.loaded.module, batch_of(model)
    training_copy = module.training_copy(TrainingContext(torch.float32))
    gradients(module, training_copy, batch)
    assert calls == {"linear_input_gradient": 13, "linear_weight_gradient": 13}, (
        "four products a layer, three layers, and the pooler"
    )
    calls.update(linear_input_gradient=0, linear_weight_gradient=0)
    freeze(module, "embeddings", "layers.0.*", "layers.1.*")
    _, found = gradients(module, training_copy, batch)
    assert calls == {"linear_input_gradient": 3 + 1, "linear_weight_gradient": 4 + 1}
    assert found and all(name.startswith(("layers.2", "pooler")) for name in found)


# -- recomputed layers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "albert", "llama", "bart", "t5"])
def test_recomputed_layers_draw_the_same_dropout(family: str) -> None:
    model = model_of(family, dropout=Dropout(0.2, 0.1))
    module, batch = model.loaded.module, batch_of(model)
    passes: list[tuple[Tensor, dict[str, Tensor]]] = []
    for checkpointing in (False, True):
        context = TrainingContext(torch.float32, seed=4, activation_checkpointing=checkpointing)
        context.begin(3, 1)
        passes.append(gradients(module, module.training_copy(context), batch))
    (loss, expected), (again_loss, found) = passes
    assert float(loss) == pytest.approx(float(again_loss), rel=1e-6)
    assert_near(found, expected, 1e-6)
    context = TrainingContext(torch.float32, seed=4)
    context.begin(3, 0)
    other, _ = gradients(module, module.training_copy(context), batch)
    assert abs(float(other - loss)) > 1e-3, "another piece drops others"


def test_recomputed_layers_save_few_activations() -> None:
    module = model_of("bert", num_hidden_layers=12).loaded.module
    saved_sizes = []
    for checkpointing in (False, True):
        training_copy = module.training_copy(TrainingContext(torch.float32, activation_checkpointing=checkpointing))
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (sizes.append(x.numel()), x)[1], lambda x: x):  # noqa: B023
            training_copy.states(torch.randint(5, 90, (8, 32)))
        saved_sizes.append(sum(sizes))
    assert saved_sizes[1] < saved_sizes[0] / 4


# -- half precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "bart", "albert"])
def test_bfloat16_gradients_are_close_and_stored_in_float32(family: str) -> None:
    model = model_of(family)
    module, batch = model.loaded.module, batch_of(model, 8, 20)
    _, expected = gradients(module, module, batch)
    _, found = gradients(module, module.training_copy(TrainingContext(torch.bfloat16)), batch)
    assert {one.dtype for one in found.values()} == {torch.float32}
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    ours, theirs = (torch.cat([one[name].flatten() for name in expected]).double() for one in (found, expected))
    assert float(torch.cosine_similarity(ours, theirs, dim=0)) > 0.999
    assert float(ours.norm() / theirs.norm()) == pytest.approx(1.0, abs=0.03)


def test_bfloat16_copies_follow_changes_of_the_weights() -> None:
    model = model_of("bert")
    module, batch = model.loaded.module, batch_of(model)
    training_copy = module.training_copy(TrainingContext(torch.bfloat16))
    with torch.no_grad():
        before = training_copy.states(**batch)
        module.layers[0].attention.query.weight.mul_(-3.0)
        after = training_copy.states(**batch)
        fresh = module.training_copy(TrainingContext(torch.bfloat16)).states(**batch)
    assert torch.equal(after, fresh) and not torch.equal(after, before)


# -- the learner ------------------------------------------------------------------------------------------------------


def learner_of(model: "pellucid.Model", **options: Any) -> Learner:
    return Learner(model.loaded, replace(Settings(precision="float32"), **options))


def test_learner_applies_dropout_and_leaves_its_module_in_evaluation_mode() -> None:
    head = dict(FAMILIES_AND_HEADS)["bert"]
    model = model_of("bert", head, dropout=Dropout(0.3, 0.3))
    batch, learner = batch_of(model), learner_of(model)
    first, second = learner.logits(**batch), learner.logits(**batch)
    assert first.dtype == torch.float32
    assert not torch.equal(first, second), "each pass drops others"
    assert not any(part.training for part in model.loaded.module.modules())
    assert set(learner.parameters()) == {name for name, _ in model.loaded.module.named_parameters()}


def test_hidden_states_and_head_inputs_equal_the_plain_module_s() -> None:
    for family in ("bert", "gpt2", "t5"):
        model = model_of(family)
        batch, module = batch_of(model), model.loaded.module
        torch.testing.assert_close(
            learner_of(model).training_copy.states(**batch), module.states(**batch), rtol=0, atol=1e-4
        )
    model = model_of("bart")
    batch, module = batch_of(model), model.loaded.module
    found = learner_of(model).before_head(**batch, decoder_input_ids=batch["input_ids"])
    expected = module(**batch, decoder_input_ids=batch["input_ids"])["last_hidden_state"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_dropout_depends_on_the_step_and_not_on_the_global_generator() -> None:
    model = model_of("bert", dropout=Dropout(0.3, 0.3))
    batch, first, second = batch_of(model), learner_of(model, seed=9), learner_of(model, seed=9)
    before = torch.get_rng_state()

    def states_at(learner: Learner, step: int, piece: int) -> Tensor:
        learner.seed_dropout(step, piece)
        found: Tensor = learner.training_copy.states(**batch)
        return found

    expected = states_at(first, 5, 1)
    for step in (0, 64, 70, 1000):
        states_at(second, step, 0)
    assert torch.equal(states_at(second, 5, 1), expected), "whatever was before"
    for step, piece in ((5, 0), (6, 1), (69, 1)):
        assert not torch.equal(states_at(second, step, piece), expected)
    assert not torch.equal(states_at(learner_of(model, seed=8), 5, 1), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_edited_model_cannot_be_trained() -> None:
    model = model_of("bert")
    with model.edit({"layers.0.attention.output": lambda value: value}) as edited:
        edited.embed([[5, 6, 7]]) if model.tokenizer else edited.loaded.module.states(torch.tensor([[5, 6, 7]]))
        with pytest.raises(InputError, match="train the model that it was made from"):
            edited.loaded.module.training_copy(TrainingContext(torch.float32))
