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


def states(model: pellucid.Model, ids: Tensor = IDS) -> Tensor:
    with torch.inference_mode():
        return model.module.packed_copy().states(ids)


@pytest.mark.parametrize("held", ["float32", "int8"])
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_the_usual_kind_of_number_changes_none(folder: Path, held: str, kind: torch.dtype) -> None:
    wanted, before = states(pellucid.load(folder, dtype=held)), torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        found = states(pellucid.load(folder, dtype=held))
        built = pellucid.build(pellucid.load(folder).config, seed=3)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, wanted)
    assert held == "int8" or torch.equal(states(built), wanted)


def test_a_model_made_in_inference_mode_answers_and_learns(folder: Path) -> None:
    with torch.inference_mode():
        model = pellucid.load(folder)
        inside = states(model)
        moved = states(pellucid.load(folder).to(dtype="float64"))
    assert torch.equal(states(model), inside)
    torch.testing.assert_close(moved.float(), inside)
    model(IDS).last_hidden_state.sum().backward()
    table = model.module.embeddings.token.weight
    with torch.no_grad():
        table.sub_(table.grad)
    assert not torch.equal(states(model), inside)


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


def twice(old: nn.Linear) -> nn.Linear:
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


def check_plain_and_packed_agree(model: pellucid.Model, before: Tensor, ids: Tensor = IDS) -> None:
    plain = model(ids).last_hidden_state.detach()
    assert not torch.allclose(plain, before, atol=1e-3)
    torch.testing.assert_close(states(model, ids), plain, atol=1e-5, rtol=1e-5)


def bent(old: nn.Linear) -> nn.Module:
    return nn.Sequential(old, nn.Threshold(1e3, 1.0))


@pytest.mark.parametrize("way", [Doubled, twice, bent])
@pytest.mark.parametrize("path", ["attention.query", "attention.output", "feed_forward.gate", "feed_forward.down"])
def test_a_part_of_somebody_else_s_is_asked(folder: Path, path: str, way: Callable[[nn.Linear], nn.Module]) -> None:
    model = pellucid.load(folder)
    before, layer = states(model), f"layers.0.{path}"
    model.module.set_submodule(layer, way(cast(nn.Linear, model.module.get_submodule(layer))))
    check_plain_and_packed_agree(model, before)
    with pytest.raises(InputError, match=r"layers\.0\..* is of another library"):
        model.module.training_copy(TrainingContext(torch.float32))


def test_a_buffer_that_was_written_to_is_asked(folder: Path) -> None:
    model = pellucid.load(folder)
    part = model.module.get_submodule("layers.0.feed_forward.down")
    parametrize.register_parametrization(part, "weight", Masked(part.weight))
    before = states(model)
    part.parametrizations.weight[0].mask.zero_()
    check_plain_and_packed_agree(model, before)


@pytest.mark.parametrize("gone", ["query", "key", "value"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "qwen2"])
def test_a_bias_that_was_taken_away_takes_no_other_with_it(family: str, gone: str) -> None:
    model = pellucid.build(pellucid.Config.of(family, **TINY[family]), seed=3)
    part, attention = "layers.0.attention", model.module.get_submodule("layers.0.attention")
    with torch.no_grad():
        for one in (attention.query, attention.key, attention.value):
            one.bias.normal_()
        getattr(attention, gone).bias.zero_()
    wanted = model(IDS).last_hidden_state.detach()
    model.module.get_submodule(f"{part}.{gone}").bias = None
    assert torch.equal(model(IDS).last_hidden_state, wanted)
    torch.testing.assert_close(states(model), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_the_layers_that_are_there_are_run(family: str) -> None:
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
def test_what_a_part_says_of_itself_is_asked(family: str, path: str, new: object) -> None:
    model = pellucid.build(pellucid.Config.of(family, **TINY[family]), seed=3)
    with torch.no_grad():
        for table in model.module.parameters():
            table.mul_(3)  # so that the activations are not nearly linear
    before, (part, _, name) = states(model), path.rpartition(".")
    assert model.module.packed_copy() is model.module.packed_copy()
    setattr(model.module.get_submodule(f"layers.1.{part}"), name, new)
    check_plain_and_packed_agree(model, before)
    kept = model.module.packed_copy()
    states(model)
    assert model.module.train().packed_copy() is kept and model.module.eval().packed_copy() is kept


class Doubled(nn.Module):
    """A parametrization that doubles a weight."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_norm_whose_numbers_are_computed_answers_and_learns(family: str) -> None:
    model = pellucid.build(pellucid.Config.of(family, **TINY[family]).replace(dropout=Dropout(0.0, 0.0)), seed=3)
    before = states(model)
    for layer in model.module.layers:
        parametrize.register_parametrization(layer.attention_norm, "weight", Doubled())
    check_plain_and_packed_agree(model, before)
    learner, wanted = model.module.training_copy(TrainingContext(torch.float32)), model(IDS).last_hidden_state
    torch.testing.assert_close(learner.states(IDS), wanted, rtol=0, atol=1e-5)


def test_a_decoder_answers_in_float64_whatever_it_holds(folder: Path) -> None:
    wide, narrow = pellucid.load(folder, dtype="float64"), pellucid.load(folder)
    with torch.inference_mode():
        found = narrow.module.packed_copy(torch.float64).states(IDS)
    torch.testing.assert_close(found, states(wide), rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", ["attention.value", "feed_forward.up", "feed_forward", ""])
def test_a_hook_is_asked_as_long_as_it_is_there(folder: Path, path: str) -> None:
    model = pellucid.load(folder)
    before = states(model)
    part = model.module.get_submodule(f"layers.1.{path}".rstrip("."))
    hook = part.register_forward_hook(lambda _part, _given, found: -found)
    check_plain_and_packed_agree(model, before)
    hook.remove()
    assert torch.equal(states(model), before)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("name", ["bert-body", "gpt2", "llama", "t5-tied"])
def test_a_part_of_few_bits_hears_a_hook_or_refuses_it(
    checkpoint: Callable[[str], Path], name: str, dtype: str
) -> None:
    for rows in (1, 64):  # with 64 rows, sums and their norms are one step
        wanted, _ = who_hears(checkpoint(name), "float32", rows)
        heard, refused = who_hears(checkpoint(name), dtype, rows)
        there = {path for path, _ in pellucid.load(checkpoint(name), dtype=dtype).module.named_modules()}
        assert wanted & there == heard | (refused & wanted) and "layers.0" in "".join(refused)


def who_hears(folder: Path, dtype: str, rows: int) -> tuple[set[str], set[str]]:
    """The modules whose hooks a pass calls, and those that refuse hooks. Dropout modules are left out."""
    module = pellucid.load(folder, dtype=dtype).module
    heard, refused = set[str](), set[str]()
    for path, part in module.named_modules():
        try:
            if not isinstance(part, nn.Dropout):
                part.register_forward_hook(lambda *_, path=path: heard.add(path))
        except InputError as error:
            assert "would ignore a hook" in str(error)
            refused.add(path)
    ids = torch.full((rows, 16), 5)
    module(input_ids=ids, **({"decoder_input_ids": ids} if hasattr(module, "decoder") else {}))
    return heard, refused


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("name", ["bert-body", "gpt2", "llama"])
def test_a_changed_number_of_a_model_of_few_bits_counts(
    checkpoint: Callable[[str], Path], name: str, dtype: str
) -> None:
    module = pellucid.load(checkpoint(name), dtype=dtype).module
    for rows in (1, 64):
        ids = torch.full((rows, 16), 5)
        before = module.states(ids)
        for path, number in module.named_parameters():
            if path.startswith("layers") and "attention.key" not in path:
                kept = number.detach().clone()
                with torch.no_grad():
                    number.mul_(0.5).add_(0.25)
                    changed = module.states(ids)
                    assert not torch.equal(changed, before), path
                    copied = copy.deepcopy(module)
                    assert torch.equal(copied.states(ids), changed), path
                    dict(copied.named_parameters())[path].mul_(2)  # with the same version counter as the original
                    assert not torch.equal(copied.states(ids), changed), path
                    number.copy_(kept)
        assert torch.equal(module.states(ids), before)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_numbers_of_a_model_of_few_bits_that_lie_elsewhere_count(folder: Path, dtype: str) -> None:
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
def test_a_copy_of_a_model_of_few_bits_counts_what_is_written_into_it(folder: Path, way: str) -> None:
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
def test_tables_that_stay_real_in_a_model_of_few_bits_learn(folder: Path, dtype: str, cached: bool) -> None:
    model = pellucid.load(folder, dtype=dtype)
    real = [one.requires_grad_() for path, one in model.module.named_parameters() if path.endswith("product.weight")]
    ids, cache = (IDS[:, :1], model.module.new_cache(4)) if cached else (IDS, None)
    model.module(input_ids=ids, cache=cache)["last_hidden_state"].pow(3).sum().backward()
    assert len(real) == 4 and all(one.grad is not None and one.grad.any() for one in real)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_model_of_few_bits_goes_through_functional_calls_and_answers_after_them(folder: Path, dtype: str) -> None:
    module = pellucid.load(folder, dtype=dtype).module
    gain, before = module.norm.weight.detach(), module.states(IDS)

    def said(gain: Tensor) -> Tensor:
        found = torch.func.functional_call(module, {"norm.weight": gain}, (IDS,))
        return found["last_hidden_state"].pow(3).sum()

    assert torch.func.grad(said)(gain).any()
    assert torch.func.vmap(said)(torch.stack([gain, 2 * gain])).diff().any()
    assert torch.equal(module.states(IDS), before)


def test_a_narrow_table_is_made_anew_where_other_numbers_came_to_lie_in_its_place() -> None:
    for width in (8, 64, 512):
        context, linear = TrainingContext(torch.bfloat16), nn.Linear(width, width, bias=False)
        linear.weight.data.fill_(1.0)
        for times in range(8):
            assert (context.joint_linear(torch.eye(width), linear) == 4.0**times).all()
            linear.weight.data = linear.weight.data * 2
            linear.weight.data = linear.weight.data * 2


@pytest.mark.parametrize("note", [torch.eye(3).to_sparse(), torch.eye(3)])
def test_whatever_tensor_stands_in_a_part_it_answers(folder: Path, note: Tensor) -> None:
    model = pellucid.load(folder)
    before, model.module.layers[0].note = states(model), note
    assert torch.equal(states(model), before)


def test_a_number_that_stands_beside_the_parameters_is_asked(folder: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = torch.tensor(1.0)

        def forward(self, weight: Tensor) -> Tensor:
            return weight * self.by

    model, scaled = pellucid.load(folder), Scaled()
    parametrize.register_parametrization(model.module.layers[0].feed_forward.down, "weight", scaled)
    before = states(model)
    scaled.by.mul_(3)
    check_plain_and_packed_agree(model, before)


def test_a_hook_on_every_module_is_asked_as_long_as_it_is_there(folder: Path) -> None:
    model = pellucid.load(folder)
    before = states(model)
    hook = nn.modules.module.register_module_forward_hook(
        lambda part, _given, found: -found if isinstance(part, nn.Linear) else None
    )
    try:
        check_plain_and_packed_agree(model, before)
    finally:
        hook.remove()
    assert torch.equal(states(model), before)


@pytest.mark.parametrize("path", ["attention.query", "attention.value", "attention", "feed_forward.up", ""])
def test_another_forward_that_somebody_set_on_a_part_is_asked_as_long_as_it_is_there(folder: Path, path: str) -> None:
    model = pellucid.load(folder)
    before = states(model)
    part = model.module.get_submodule(f"layers.1.{path}".rstrip("."))
    of_class = part.forward
    part.forward = lambda *given, **named: turned(of_class(*given, **named))  # as accelerate does
    check_plain_and_packed_agree(model, before)
    del part.forward
    assert torch.equal(states(model), before)


def turned(found: Tensor) -> Tensor:
    return found.flip(-1)


@pytest.mark.parametrize("path", ["attention.query", "attention.value", "feed_forward.up"])
def test_a_hook_on_the_way_back_is_asked(folder: Path, path: str) -> None:
    model, asked = pellucid.load(folder), []
    model.module.get_submodule(f"layers.1.{path}").register_full_backward_hook(lambda *given: asked.append(given[0]))
    model(IDS).last_hidden_state.sum().backward()
    assert len(asked) == 1


def test_what_came_to_stand_where_a_table_was_freed_is_not_taken_for_it(folder: Path) -> None:
    model = pellucid.load(folder)
    up = cast(nn.Linear, model.module.get_submodule("layers.0.feed_forward.up"))
    kept = up.weight.detach().clone()
    for i in range(1, 20):
        before = states(model)
        del up.weight
        up.weight = nn.Parameter(kept * (1 + i))
        assert not torch.equal(states(model), before)


def test_writing_into_the_memory_of_a_parameter_under_a_new_name_for_it_is_seen(folder: Path) -> None:
    model = pellucid.load(folder)
    up = cast(nn.Linear, model.module.get_submodule("layers.0.feed_forward.up"))
    before, written = states(model), up.weight._version
    up.weight = nn.Parameter(up.weight.data)  # resets the version counter
    with torch.no_grad():
        for _ in range(written):
            up.weight.mul_(3)
    assert not torch.equal(states(model), before)


def by_new_numbers(model: nn.Module) -> None:
    for one in model.parameters():
        one.data = one.data.clone()


def to_another_kind(model: nn.Module) -> None:
    model.bfloat16()


@pytest.mark.parametrize("change", [by_new_numbers, to_another_kind])
def test_a_copy_of_what_a_model_was_holds_no_memory(folder: Path, change: Callable[[nn.Module], None]) -> None:
    """It shares what it does not repack, such as token embeddings or matrices that single rows are multiplied by."""
    model = pellucid.load(folder).module
    model.packed_copy()
    old = [StorageWeakRef(one.untyped_storage()) for one in model.parameters()]
    change(model)
    model.packed_copy()
    assert all(one.expired() for one in old)


WAYS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "in place": lambda model, table: table.mul_(3),
    "within inference mode": lambda model, table: torch.inference_mode()(table.mul_)(3),
    "through a view": lambda model, table: table.view(-1)[3:].mul_(3),
    "detached": lambda model, table: table.detach().mul_(3),
    "many at once": lambda model, table: torch._foreach_mul_(list(model.parameters()), 1.5),
    "other numbers": lambda model, table: setattr(table, "data", table * 3),
    "numbers that lie otherwise": lambda model, table: setattr(table, "data", (table * 3).T.contiguous().T),
    "other memory": lambda model, table: table.set_(table * 3),
    "a state": lambda model, table: model.load_state_dict(thrice(model)),
    "a state, assigned": lambda model, table: model.load_state_dict(thrice(model), assign=True),
    "a vector": lambda model, table: vector_to_parameters(1.5 * parameters_to_vector(model.parameters()),
                                                          model.parameters()),
    "shared between processes": lambda model, table: (model.share_memory(), table.mul_(3)),
    "there and back": lambda model, table: (model.double(), model.float(), table.mul_(3)),
}  # fmt: skip
"""Ways of changing a model's weights, including `table`, that PyTorch's version counters register or that move them."""


def thrice(model: nn.Module) -> dict[str, Tensor]:
    return {name: 3 * one for name, one in model.state_dict().items()}


@pytest.mark.parametrize("way", WAYS)
def test_no_copy_mixes_old_numbers_with_new_ones(folder: Path, way: str) -> None:
    """With kernels, a single row reads the model's own matrices, and several rows read the packed ones."""
    model = pellucid.load(folder)
    before, one_before = states(model), states(model, IDS[:, :1])
    with torch.no_grad():
        WAYS[way](model.module, model.module.layers[0].feed_forward.down.weight)
    check_plain_and_packed_agree(model, before)
    check_plain_and_packed_agree(model, one_before, IDS[:, :1])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_a_fused_step_of_somebody_s_own_training_is_seen(folder: Path, kind: str) -> None:
    model = pellucid.load(folder)
    before = states(model)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, fused=True)
    model(IDS).last_hidden_state.pow(2).sum().backward()
    optimizer.step()
    check_plain_and_packed_agree(model, before)


def test_adapters_of_peft_on_attention_are_heard_and_learn(folder: Path) -> None:
    peft = pytest.importorskip("peft")
    model = pellucid.load(folder)
    before = states(model)
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["query"], init_lora_weights=False), model.module)
    check_plain_and_packed_agree(model, before)
    model(IDS).last_hidden_state.pow(2).sum().backward()
    low = [p for name, p in model.module.named_parameters() if "lora_" in name]
    assert low and all(p.grad is not None and p.grad.any() for p in low)
