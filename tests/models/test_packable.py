"""The packed copy: the same values under any setting and context of PyTorch."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parameters_to_vector, parametrize, vector_to_parameters

import pellucid
from pellucid.blocks.training_copy import TrainingContext
from pellucid.config import Dropout
from pellucid.errors import InputError
from tests.checkpoints.families import TINY

IDS = torch.tensor([[2, 7, 9, 3]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a decoder, whose norms have a faster form in the packed copy."""
    return pellucid.build(pellucid.Config.of("llama", **TINY["llama"]), seed=3).save(tmp_path / "model")


def packed_states(model: pellucid.Model, ids: Tensor = IDS) -> Tensor:
    with torch.inference_mode():
        return model.module.packed_copy().states(ids)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("default_dtype", [torch.float64, torch.bfloat16])
def test_default_dtype_changes_nothing(folder: Path, dtype: str, default_dtype: torch.dtype) -> None:
    expected, before = packed_states(pellucid.load(folder, dtype=dtype)), torch.get_default_dtype()
    torch.set_default_dtype(default_dtype)
    try:
        found = packed_states(pellucid.load(folder, dtype=dtype))
        built = pellucid.build(pellucid.load(folder).config, seed=3)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, expected)
    assert dtype == "int8" or torch.equal(packed_states(built), expected)


def test_model_loaded_in_inference_mode_runs_and_trains(folder: Path) -> None:
    with torch.inference_mode():
        model = pellucid.load(folder)
        inside = packed_states(model)
        moved = packed_states(pellucid.load(folder).to(dtype="float64"))
    assert torch.equal(packed_states(model), inside)
    torch.testing.assert_close(moved.float(), inside)
    model(IDS).last_hidden_state.sum().backward()
    table = model.module.embeddings.token.weight
    with torch.no_grad():
        table.sub_(table.grad)
    assert not torch.equal(packed_states(model), inside)


# -- what was made of a model is not used when it has become another --------------------------------------------------


class Doubled(nn.Module):
    """A foreign module in place of a linear layer."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)


class Twice(nn.Linear):
    """A subclass of a linear layer that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def doubled_linear(old: nn.Linear) -> nn.Linear:
    new = Twice(old.in_features, old.out_features, bias=old.bias is not None)
    new.load_state_dict(old.state_dict())
    return new


class Masked(nn.Module):
    """A parametrization that masks a weight."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones_like(table))

    def forward(self, table: Tensor) -> Tensor:
        return table * self.mask


def assert_plain_and_packed_agree(model: pellucid.Model, before: Tensor, ids: Tensor = IDS) -> None:
    plain = model(ids).last_hidden_state.detach()
    assert not torch.allclose(plain, before, atol=1e-3)
    torch.testing.assert_close(packed_states(model, ids), plain, atol=1e-5, rtol=1e-5)


def with_threshold(old: nn.Linear) -> nn.Module:
    return nn.Sequential(old, nn.Threshold(1e3, 1.0))


@pytest.mark.parametrize("replace", [Doubled, doubled_linear, with_threshold])
@pytest.mark.parametrize("path", ["attention.query", "attention.output", "feed_forward.gate", "feed_forward.down"])
def test_foreign_module_is_run(folder: Path, path: str, replace: Callable[[nn.Linear], nn.Module]) -> None:
    model = pellucid.load(folder)
    before, layer = packed_states(model), f"layers.0.{path}"
    model.module.set_submodule(layer, replace(cast(nn.Linear, model.module.get_submodule(layer))))
    assert_plain_and_packed_agree(model, before)
    with pytest.raises(InputError, match=r"layers\.0\..* is of another library"):
        model.module.training_copy(TrainingContext(torch.float32))


def test_changed_buffer_takes_effect(folder: Path) -> None:
    model = pellucid.load(folder)
    part = model.module.get_submodule("layers.0.feed_forward.down")
    parametrize.register_parametrization(part, "weight", Masked(part.weight))
    before = packed_states(model)
    part.parametrizations.weight[0].mask.zero_()
    assert_plain_and_packed_agree(model, before)


@pytest.mark.parametrize("removed", ["query", "key", "value"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "qwen2"])
def test_removed_bias_leaves_the_others(family: str, removed: str) -> None:
    model = pellucid.build(pellucid.Config.of(family, **TINY[family]), seed=3)
    part, attention = "layers.0.attention", model.module.get_submodule("layers.0.attention")
    with torch.no_grad():
        for one in (attention.query, attention.key, attention.value):
            one.bias.normal_()
        getattr(attention, removed).bias.zero_()
    expected = model(IDS).last_hidden_state.detach()
    model.module.get_submodule(f"{part}.{removed}").bias = None
    assert torch.equal(model(IDS).last_hidden_state, expected)
    torch.testing.assert_close(packed_states(model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_removed_and_appended_layers_take_effect(family: str) -> None:
    config = pellucid.Config.of(family, **TINY[family])
    model, short = (pellucid.build(config.replace(num_hidden_layers=n), seed=3) for n in (3, 2))
    stack, other = (getattr(one.module, "encoder", one.module) for one in (model, short))
    other.load_state_dict(stack.state_dict(), strict=False)
    stack.layers = stack.layers[:2]
    assert torch.equal(stack.states(IDS), other.states(IDS)) and stack.depth == 2
    stack.layers.append(stack.layers[0])
    assert not torch.allclose(stack.states(IDS), other.states(IDS), atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2"])
@pytest.mark.parametrize(
    "path, new",
    [
        ("feed_forward.activation", torch.sin),
        ("feed_forward.activation", nn.Tanh()),
        ("attention.scale", 3.0),
        ("attention_norm.eps", 1.0),
    ],
    ids=["sine", "another module", "scale", "eps"],
)
def test_changed_attributes_take_effect(family: str, path: str, new: object) -> None:
    model = pellucid.build(pellucid.Config.of(family, **TINY[family]), seed=3)
    with torch.no_grad():
        for table in model.module.parameters():
            table.mul_(3)  # so that the activations are not nearly linear
    before, (part, _, name) = packed_states(model), path.rpartition(".")
    assert model.module.packed_copy() is model.module.packed_copy()
    setattr(model.module.get_submodule(f"layers.1.{part}"), name, new)
    assert_plain_and_packed_agree(model, before)
    packed = model.module.packed_copy()
    packed_states(model)
    assert model.module.train().packed_copy() is packed and model.module.eval().packed_copy() is packed


class DoubledWeight(nn.Module):
    """A parametrization that doubles a weight."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_parametrized_norm_runs_and_trains(family: str) -> None:
    model = pellucid.build(pellucid.Config.of(family, **TINY[family]).replace(dropout=Dropout(0.0, 0.0)), seed=3)
    before = packed_states(model)
    for layer in model.module.layers:
        parametrize.register_parametrization(layer.attention_norm, "weight", DoubledWeight())
    assert_plain_and_packed_agree(model, before)
    learner, expected = model.module.training_copy(TrainingContext(torch.float32)), model(IDS).last_hidden_state
    torch.testing.assert_close(learner.states(IDS), expected, rtol=0, atol=1e-5)


def test_float32_decoder_runs_in_float64(folder: Path) -> None:
    wide, narrow = pellucid.load(folder, dtype="float64"), pellucid.load(folder)
    with torch.inference_mode():
        found = narrow.module.packed_copy(torch.float64).states(IDS)
    torch.testing.assert_close(found, packed_states(wide), rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", ["attention.value", "feed_forward.up", "feed_forward", ""])
def test_hook_runs_until_it_is_removed(folder: Path, path: str) -> None:
    model = pellucid.load(folder)
    before = packed_states(model)
    part = model.module.get_submodule(f"layers.1.{path}".rstrip("."))
    hook = part.register_forward_hook(lambda _part, _inputs, found: -found)
    assert_plain_and_packed_agree(model, before)
    hook.remove()
    assert torch.equal(packed_states(model), before)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("name", ["bert-body", "gpt2", "llama", "t5-tied"])
def test_hooks_on_low_bit_modules_run_or_are_refused(checkpoint: Callable[[str], Path], name: str, dtype: str) -> None:
    for rows in (1, 64):  # with 64 rows, sums and their norms are one step
        expected, _ = hooks_called(checkpoint(name), "float32", rows)
        called, refused = hooks_called(checkpoint(name), dtype, rows)
        paths = {path for path, _ in pellucid.load(checkpoint(name), dtype=dtype).module.named_modules()}
        assert expected & paths == called | (refused & expected) and "layers.0" in "".join(refused)


def hooks_called(folder: Path, dtype: str, rows: int) -> tuple[set[str], set[str]]:
    """The modules whose hooks a pass calls, and those that refuse hooks. Dropout modules are left out."""
    module = pellucid.load(folder, dtype=dtype).module
    called, refused = set[str](), set[str]()
    for path, part in module.named_modules():
        try:
            if not isinstance(part, nn.Dropout):
                part.register_forward_hook(lambda *_, path=path: called.add(path))
        except InputError as error:
            assert "would ignore a hook" in str(error)
            refused.add(path)
    ids = torch.full((rows, 16), 5)
    module(input_ids=ids, **({"decoder_input_ids": ids} if hasattr(module, "decoder") else {}))
    return called, refused


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("name", ["bert-body", "gpt2", "llama"])
def test_changed_parameter_of_a_low_bit_model_takes_effect(
    checkpoint: Callable[[str], Path], name: str, dtype: str
) -> None:
    module = pellucid.load(checkpoint(name), dtype=dtype).module
    for rows in (1, 64):
        ids = torch.full((rows, 16), 5)
        before = module.states(ids)
        for path, parameter in module.named_parameters():
            if path.startswith("layers") and "attention.key" not in path:
                old = parameter.detach().clone()
                with torch.no_grad():
                    parameter.mul_(0.5).add_(0.25)
                    changed = module.states(ids)
                    assert not torch.equal(changed, before), path
                    copied = copy.deepcopy(module)
                    assert torch.equal(copied.states(ids), changed), path
                    dict(copied.named_parameters())[path].mul_(2)  # with the same version counter as the original
                    assert not torch.equal(copied.states(ids), changed), path
                    parameter.copy_(old)
        assert torch.equal(module.states(ids), before)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_replaced_storage_of_a_low_bit_model_takes_effect(folder: Path, dtype: str) -> None:
    module = pellucid.load(folder, dtype=dtype).module
    norms = [number for path, number in module.named_parameters() if "norm" in path]
    with torch.no_grad():
        module.states(IDS)
        vector_to_parameters(0 * parameters_to_vector(norms), norms)
        assert not module.states(IDS).any()
        for number in norms:
            number.data = number + 1  # possibly at the address of the first ones
            number.data = number - 1
        assert not module.states(IDS).any()


@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_writes_into_a_copied_low_bit_model_take_effect(folder: Path, way: str) -> None:
    module = pellucid.load(folder, dtype="int8").module
    with torch.no_grad():
        for times in range(4):
            module.norm.weight.mul_(2)
            module.states(IDS)
            copied = copy.deepcopy(module) if way == "copy" else pickle.loads(pickle.dumps(module))
            for _ in range(times + 2):
                copied.norm.weight.zero_()
                assert not copied.states(IDS).any()
                copied.norm.weight.fill_(1.0)
                assert copied.states(IDS).any()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("cached", [False, True])
def test_float_matrices_of_a_low_bit_model_get_gradients(folder: Path, dtype: str, cached: bool) -> None:
    model = pellucid.load(folder, dtype=dtype)
    real = [one.requires_grad_() for path, one in model.module.named_parameters() if path.endswith("product.weight")]
    ids, cache = (IDS[:, :1], model.module.new_cache(4)) if cached else (IDS, None)
    model.module(input_ids=ids, cache=cache)["last_hidden_state"].pow(3).sum().backward()
    assert len(real) == 4 and all(one.grad is not None and one.grad.any() for one in real)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_low_bit_model_supports_functional_calls(folder: Path, dtype: str) -> None:
    module = pellucid.load(folder, dtype=dtype).module
    gain, before = module.norm.weight.detach(), module.states(IDS)

    def loss(gain: Tensor) -> Tensor:
        found = torch.func.functional_call(module, {"norm.weight": gain}, (IDS,))
        return found["last_hidden_state"].pow(3).sum()

    assert torch.func.grad(loss)(gain).any()
    assert torch.func.vmap(loss)(torch.stack([gain, 2 * gain])).diff().any()
    assert torch.equal(module.states(IDS), before)


def test_bfloat16_copy_is_renewed_when_the_storage_is_replaced() -> None:
    for width in (8, 64, 512):
        context, linear = TrainingContext(torch.bfloat16), nn.Linear(width, width, bias=False)
        linear.weight.data.fill_(1.0)
        for times in range(8):
            assert (context.joint_linear(torch.eye(width), linear) == 4.0**times).all()
            linear.weight.data = linear.weight.data * 2
            linear.weight.data = linear.weight.data * 2


@pytest.mark.parametrize("note", [torch.eye(3).to_sparse(), torch.eye(3)])
def test_extra_tensor_attribute_changes_nothing(folder: Path, note: Tensor) -> None:
    model = pellucid.load(folder)
    before, model.module.layers[0].note = packed_states(model), note
    assert torch.equal(packed_states(model), before)


def test_changed_tensor_attribute_takes_effect(folder: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = torch.tensor(1.0)

        def forward(self, weight: Tensor) -> Tensor:
            return weight * self.by

    model, scaled = pellucid.load(folder), Scaled()
    parametrize.register_parametrization(model.module.layers[0].feed_forward.down, "weight", scaled)
    before = packed_states(model)
    scaled.by.mul_(3)
    assert_plain_and_packed_agree(model, before)


def test_global_hook_runs_until_it_is_removed(folder: Path) -> None:
    model = pellucid.load(folder)
    before = packed_states(model)
    hook = nn.modules.module.register_module_forward_hook(
        lambda part, _inputs, found: -found if isinstance(part, nn.Linear) else None
    )
    try:
        assert_plain_and_packed_agree(model, before)
    finally:
        hook.remove()
    assert torch.equal(packed_states(model), before)


@pytest.mark.parametrize("path", ["attention.query", "attention.value", "attention", "feed_forward.up", ""])
def test_replaced_forward_runs_until_it_is_removed(folder: Path, path: str) -> None:
    model = pellucid.load(folder)
    before = packed_states(model)
    part = model.module.get_submodule(f"layers.1.{path}".rstrip("."))
    of_class = part.forward
    part.forward = lambda *arguments, **options: flipped(of_class(*arguments, **options))  # as accelerate does
    assert_plain_and_packed_agree(model, before)
    del part.forward
    assert torch.equal(packed_states(model), before)


def flipped(found: Tensor) -> Tensor:
    return found.flip(-1)


@pytest.mark.parametrize("path", ["attention.query", "attention.value", "feed_forward.up"])
def test_backward_hook_runs(folder: Path, path: str) -> None:
    model, calls = pellucid.load(folder), []
    model.module.get_submodule(f"layers.1.{path}").register_full_backward_hook(
        lambda *arguments: calls.append(arguments[0])
    )
    model(IDS).last_hidden_state.sum().backward()
    assert len(calls) == 1


def test_new_parameter_at_a_freed_address_takes_effect(folder: Path) -> None:
    model = pellucid.load(folder)
    up = cast(nn.Linear, model.module.get_submodule("layers.0.feed_forward.up"))
    weight = up.weight.detach().clone()
    for i in range(1, 20):
        before = packed_states(model)
        del up.weight
        up.weight = nn.Parameter(weight * (1 + i))
        assert not torch.equal(packed_states(model), before)


def test_writes_after_a_version_counter_reset_take_effect(folder: Path) -> None:
    model = pellucid.load(folder)
    up = cast(nn.Linear, model.module.get_submodule("layers.0.feed_forward.up"))
    before, version = packed_states(model), up.weight._version
    up.weight = nn.Parameter(up.weight.data)  # resets the version counter
    with torch.no_grad():
        for _ in range(version):
            up.weight.mul_(3)
    assert not torch.equal(packed_states(model), before)


def replace_storage(model: nn.Module) -> None:
    for one in model.parameters():
        one.data = one.data.clone()


def convert_to_bfloat16(model: nn.Module) -> None:
    model.bfloat16()


@pytest.mark.parametrize("change", [replace_storage, convert_to_bfloat16])
def test_outdated_packed_copy_frees_its_memory(folder: Path, change: Callable[[nn.Module], None]) -> None:
    """It shares what it does not repack, such as token embeddings or matrices that single rows are multiplied by."""
    model = pellucid.load(folder).module
    model.packed_copy()
    old = [StorageWeakRef(one.untyped_storage()) for one in model.parameters()]
    change(model)
    model.packed_copy()
    assert all(one.expired() for one in old)


WEIGHT_CHANGES: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "in place": lambda model, table: table.mul_(3),
    "within inference mode": lambda model, table: torch.inference_mode()(table.mul_)(3),
    "through a view": lambda model, table: table.view(-1)[3:].mul_(3),
    "detached": lambda model, table: table.detach().mul_(3),
    "many at once": lambda model, table: torch._foreach_mul_(list(model.parameters()), 1.5),
    "replaced data": lambda model, table: setattr(table, "data", table * 3),
    "another memory layout": lambda model, table: setattr(table, "data", (table * 3).T.contiguous().T),
    "replaced storage": lambda model, table: table.set_(table * 3),
    "a state": lambda model, table: model.load_state_dict(tripled_state(model)),
    "a state, assigned": lambda model, table: model.load_state_dict(tripled_state(model), assign=True),
    "a vector": lambda model, table: vector_to_parameters(1.5 * parameters_to_vector(model.parameters()),
                                                          model.parameters()),
    "shared between processes": lambda model, table: (model.share_memory(), table.mul_(3)),
    "there and back": lambda model, table: (model.double(), model.float(), table.mul_(3)),
}  # fmt: skip
"""Ways of changing a model's weights, including `table`, that PyTorch's version counters register or that move them."""


def tripled_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: 3 * one for name, one in model.state_dict().items()}


@pytest.mark.parametrize("way", WEIGHT_CHANGES)
def test_packed_copy_follows_every_weight_change(folder: Path, way: str) -> None:
    """With kernels, a single row reads the model's own matrices, and several rows read the packed ones."""
    model = pellucid.load(folder)
    before, one_before = packed_states(model), packed_states(model, IDS[:, :1])
    with torch.no_grad():
        WEIGHT_CHANGES[way](model.module, model.module.layers[0].feed_forward.down.weight)
    assert_plain_and_packed_agree(model, before)
    assert_plain_and_packed_agree(model, one_before, IDS[:, :1])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_fused_optimizer_step_takes_effect(folder: Path, kind: str) -> None:
    model = pellucid.load(folder)
    before = packed_states(model)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, fused=True)
    model(IDS).last_hidden_state.pow(2).sum().backward()
    optimizer.step()
    assert_plain_and_packed_agree(model, before)


def test_peft_adapters_on_attention_run_and_get_gradients(folder: Path) -> None:
    peft = pytest.importorskip("peft")
    model = pellucid.load(folder)
    before = packed_states(model)
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["query"], init_lora_weights=False), model.module)
    assert_plain_and_packed_agree(model, before)
    model(IDS).last_hidden_state.pow(2).sum().backward()
    low = [p for name, p in model.module.named_parameters() if "lora_" in name]
    assert low and all(p.grad is not None and p.grad.any() for p in low)
