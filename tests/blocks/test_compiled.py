"""The compiled kernels match the packed blocks, and the compiled code is cached and found again."""

import copy
import ctypes
import errno
import hashlib
import importlib.util
import logging
import os
import pickle
import py_compile
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pellucid
from pellucid.blocks import (
    RotaryPositions,
    compiled,
    kernel_arguments,
    low_bit_weights,
    machine_code,
    packing,
    quantized,
    rounding,
    thread_pool,
)
from pellucid.blocks.availability import usable_kernels
from pellucid.blocks.cache import KeyValues
from pellucid.blocks.kernel_calls import Kernels, PlainTable
from pellucid.errors import InputError
from pellucid.files import folder_entries, write_atomically
from pellucid.generation import read_settings, write
from pellucid.generation.loop import generation_module
from pellucid.machine import processor_info
from tests.checkpoints.families import TINY, save
from tests.quick import few
from tests.torch_state import forget_kernels, in_threads

pytest.importorskip("numba")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="the kernels work in OpenMP's threads as Linux has them"),
]

DECODERS = [name for name in TINY if pellucid.Config.of(name).kind != "encoder"]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = usable_kernels()
    assert found is not None
    return found


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with in_threads(request.param) as count:
        yield count


@pytest.fixture
def disable_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that disables the kernels, as if numba were not installed."""

    def disable() -> None:
        for module in (compiled, packing, low_bit_weights):
            monkeypatch.setattr(module, "usable_kernels", lambda: None)

    return disable


def random_tensor(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 2e-6) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1)


# -- the kernels ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("many", [1, 2, 3])
@pytest.mark.parametrize(("rows", "width"), [((1,), 1), ((7,), 33), ((64, 8), 40), ((12, 5, 30), 576)])
def test_product_matches_float64(
    kernels: Kernels, dtype: torch.dtype, many: int, rows: tuple[int, ...], width: int
) -> None:
    x, tables, expected = random_tensor(many, width), [], []
    for i, count in enumerate(rows):
        table = random_tensor(count, width, seed=i)
        table = (table * 40).clamp(-127, 127).to(dtype) if dtype == torch.int8 else table.to(dtype)
        scale = random_tensor(count, seed=7) if dtype == torch.int8 else None
        bias = random_tensor(count, seed=i + 9) if i % 2 == 0 else None
        tables.append(PlainTable(table, scale, bias))
        product = x.double() @ table.double().T * (1 if scale is None else scale.double())
        expected.append(product if bias is None else product + bias)
    assert_close(kernels.product(x, tables), torch.cat(expected, dim=1))


@pytest.mark.parametrize("head", [2, 6, 8])
def test_product_interleaves_the_halves_of_a_head(kernels: Kernels, head: int) -> None:
    x, table, bias = random_tensor(2, 16), random_tensor(3 * head, 16), random_tensor(3 * head, seed=4)
    found = kernels.product(x, [PlainTable(table, None, bias, head), PlainTable(table[:head])])
    plain = F.linear(x.double(), table.double(), bias.double()).unflatten(1, (3, 2, head // 2))
    assert_close(found[:, : 3 * head], plain.transpose(2, 3).flatten(1))
    assert_close(found[:, 3 * head :], x.double() @ table[:head].double().T)


@pytest.mark.parametrize("shape", [(1, 1), (1, 24), (3, 1, 576), (2, 7)])
def test_norm_matches_float64(kernels: Kernels, shape: tuple[int, ...]) -> None:
    x, gain = random_tensor(*shape) * 30, random_tensor(shape[-1], seed=5)
    wide = x.double()
    expected = wide / (wide.square().sum(-1, keepdim=True) + 0.5).sqrt() * gain
    assert_close(kernels.norm(x, gain, 0.5), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [1, 17, 1536])
def test_gated_activation_matches_float64(kernels: Kernels, dtype: torch.dtype, inner: int) -> None:
    both = (random_tensor(2, 2 * inner) * 10).to(dtype)
    gate, pre = both.double().chunk(2, dim=-1)
    found = kernels.gated_activation(both)
    assert found.dtype == torch.float32
    assert_close(found, F.silu(gate) * pre, tolerance=2e-6)


def test_gated_activation_of_extreme_values(kernels: Kernels) -> None:
    gate = torch.tensor([-3e38, -1e4, -120.0, -88.0, -20.0, -0.0, 0.0, 1e-30, 20.0, 88.0, 120.0, 1e30, torch.nan])
    found = kernels.gated_activation(torch.cat((gate, torch.ones_like(gate)))[None])[0]
    expected = F.silu(gate.double())
    assert torch.isnan(found[-1])
    torch.testing.assert_close(found[:-1].double(), expected[:-1], rtol=1e-6, atol=1e-30)


def test_bfloat16_rounding_equals_pytorch() -> None:
    """Halves round to even, and values beyond the largest become infinity."""
    from pellucid.blocks.numba_language import to_bfloat16

    ties = torch.arange(2**16, dtype=torch.int32).mul(2**15).add(0x42C80000).view(torch.float32)
    values = torch.cat((ties[(ties > 100) & (ties < 3.4e38)], torch.tensor([3.39e38, 3.4e38])))
    found = np.array([to_bfloat16(number) for number in values.numpy()], dtype=np.uint16)
    assert np.array_equal(found, values.bfloat16().view(torch.uint16).numpy())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rotated", ["not", "alike", "each by itself"])
@pytest.mark.parametrize("masked", ["nothing", "alike", "each by itself"])
@pytest.mark.parametrize(("rows", "heads", "key_heads", "width"), [(1, 1, 1, 2), (3, 4, 2, 6), (2, 6, 1, 64)])
def test_attention_of_one_position_with_cached_keys_matches_the_formula(
    kernels: Kernels, dtype: torch.dtype, rotated: str, masked: str, rows: int, heads: int, key_heads: int, width: int
) -> None:
    """Positions one after the other: 8, or 30 where kernels share the last ones between threads."""
    key_values, keys, values = KeyValues(12), [], []
    for step in range(8 if width < 64 else 30):
        if step == 12:
            key_values.memory = F.pad(key_values.memory, (0, 0, 0, 40))  # as in a larger cache
        together = random_tensor(rows, (heads + 2 * key_heads) * width, seed=step).to(dtype)
        parts = together.double().view(rows, -1, width).split([heads, key_heads, key_heads], dim=1)
        query, key, value = parts
        rotation = None
        if rotated != "not":
            positions = torch.full((1, 1), step) if rotated == "alike" else torch.arange(rows)[:, None] + step
            rotation = RotaryPositions(width)(positions, torch.zeros(1))
            angle = rotation.complex_angles().to(torch.complex128)
            query, key = (torch.view_as_real(torch.view_as_complex(one.unflatten(2, (-1, 2))) * angle).flatten(2)
                          for one in (query, key))  # fmt: skip
        keys.append(key)
        values.append(value)
        mask = None
        if masked != "nothing":
            count = 1 if masked == "alike" else rows
            mask = torch.rand(count, step + 1, generator=torch.Generator().manual_seed(step)) < 0.6
            mask[:, -1] = True
        found = kernels.attend(together, key_values, heads, key_heads, 0.3, rotation, mask)
        every_key, every_value = (
            torch.stack(one, dim=2).repeat_interleave(heads // key_heads, dim=1) for one in (keys, values)
        )
        scores = (query[:, :, None] @ every_key.mT * 0.3)[:, :, 0]
        scores = scores if mask is None else scores.masked_fill(~mask[:, None], -torch.inf)
        expected = (scores.softmax(-1)[:, :, None] @ every_value).flatten(1)
        assert found.dtype == torch.float32
        assert_close(found, expected, tolerance=4e-6)
    stored = key_values.stored()
    assert_close(stored[0], torch.stack(keys, dim=2))
    assert_close(stored[1], torch.stack(values, dim=2))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_nan_and_infinity_propagate(kernels: Kernels, broken: float) -> None:
    together = random_tensor(1, 3 * 8)
    key_values = KeyValues(4)
    assert kernels.attend(together, key_values, 1, 1, 1.0).isfinite().all()
    together = together.clone()
    together[0, 8] = broken  # an element of its key, not of its value
    assert kernels.attend(together, key_values, 1, 1, 1.0).isnan().all()
    x = torch.ones(1, 8)
    x[0, 3] = broken
    assert not kernels.norm(x, torch.ones(8), 1e-6)[0, 3].isfinite()
    assert not kernels.product(x, [PlainTable(torch.ones(4, 8))]).isfinite().any()


@pytest.mark.parametrize("shape", [(2, 4, 5, 8), (1, 2, 5, 8), (1, 4, 5, 6)], ids=["rows", "heads", "width"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_of_another_model_is_refused(kernels: Kernels, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """The kernel would write by address beyond the cache; without kernels PyTorch refuses it."""
    key_values = KeyValues(5)
    key_values.extend_both(random_tensor(*shape).to(dtype)[:, :, :3])
    with pytest.raises(InputError, match=r"this cache holds .*make a new cache"):
        kernels.attend(random_tensor(1, 6 * 8), key_values, 2, 2, 1.0)


def test_cache_of_another_dtype_is_refused(kernels: Kernels) -> None:
    key_values = KeyValues(5)
    key_values.extend_both(random_tensor(1, 4, 3, 8).bfloat16())
    with pytest.raises(InputError, match=r"bfloat16\[1, 4, 5, 8\] on cpu, and float32\[1, 4, 5, 8\] on cpu"):
        kernels.attend(random_tensor(1, 6 * 8), key_values, 2, 2, 1.0)


@pytest.mark.parametrize("shape", [(1, 3), (1, 5), (2, 4)])
def test_mask_of_another_shape_is_refused(kernels: Kernels, shape: tuple[int, int]) -> None:
    key_values = KeyValues(5)
    key_values.extend_both(random_tensor(3, 4, 3, 8))
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(InputError, match="this cache holds 3 rows of 4"):
        kernels.attend(random_tensor(3, 6 * 8), key_values, 2, 2, 1.0, mask=mask)


def test_strided_inputs_are_read_correctly(kernels: Kernels) -> None:
    both, together = random_tensor(6, 2).T, random_tensor(24, 2).T
    assert_close(kernels.gated_activation(both), F.silu(both.double()[:, :3]) * both.double()[:, 3:])
    assert_close(kernels.attend(together, KeyValues(2), 1, 1, 1.0), together[:, 16:].double())


def test_fully_masked_row_gives_zeros(kernels: Kernels) -> None:
    mask = torch.tensor([[False], [True]])
    found = kernels.attend(random_tensor(2, 3 * 8), KeyValues(2), 1, 1, 1.0, mask=mask)
    assert_close(found, torch.stack((torch.zeros(8), random_tensor(2, 3, 8)[1, 2])).double())


# -- models -----------------------------------------------------------------------------------------------------------


def log_probabilities(model: pellucid.Model, prompts: list[list[int]], *, length: int = 9) -> list[Tensor]:
    """The model's log-probabilities at each step of generation."""
    settings = read_settings({"max_new_tokens": length, "min_new_tokens": length})
    found = []
    for step in write(model.loaded, prompts, settings, log_probabilities=True):
        assert step.log_probabilities is not None
        found.append(step.log_probabilities)
    return found


@pytest.mark.parametrize(
    "prompts", [[[3]], [[5, 6, 7]], [[5, 6, 7], [8]], [[9, 3], [4, 4, 4, 4], [7], [2, 3]]], ids=len
)
@pytest.mark.parametrize(("name", "facts"), [*((name, {}) for name in DECODERS), ("llama", {"num_key_value_heads": 1})])
def test_every_family_matches_its_output_without_kernels(
    name: str, facts: dict[str, int], prompts: list[list[int]], tmp_path: Path, disable_kernels: Callable[[], None]
) -> None:
    folder = save(name, tmp_path / "model", **facts)
    model = pellucid.load(folder)
    with_kernels = log_probabilities(model, prompts)
    assert any(type(part).__module__ == compiled.__name__ for part in generation_module(model.loaded).modules())
    disable_kernels()
    without_kernels = log_probabilities(pellucid.load(folder), prompts)
    for found, expected in zip(with_kernels, without_kernels, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2", "t5"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int4"])
def test_low_bit_models_nearly_match_their_output_without_kernels(
    name: str, dtype: str, tmp_path: Path, disable_kernels: Callable[[], None]
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}
    sizes |= {"llama": {"head_dim": 16}, "t5": {"head_dim": 16, "decoder_intermediate_size": 96}}.get(name, {})
    folder = save(name, tmp_path / "model", **sizes)
    with_kernels = log_probabilities(pellucid.load(folder, dtype=dtype), [[5, 6, 7]], length=5)
    disable_kernels()
    without_kernels = log_probabilities(pellucid.load(folder, dtype=dtype), [[5, 6, 7]], length=5)
    for found, expected in zip(with_kernels, without_kernels, strict=True):
        assert (found - expected).abs().max() < 0.03


def test_kernels_share_the_memory_of_the_model(tmp_path: Path) -> None:
    model = pellucid.load(save("llama", tmp_path / "model"))
    own = {parameter.untyped_storage().data_ptr() for parameter in model.module.parameters()}
    tables = [
        table.numbers
        for part in model.module.packed_copy().modules()
        if isinstance(part, compiled.CompiledLinear)
        for table in part.tables
    ]
    assert len(tables) > 10
    assert all(table.untyped_storage().data_ptr() in own for table in tables)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("width", [32, 40, 128, 192])
def test_input_of_another_width_is_refused(dtype: str, width: int, tmp_path: Path) -> None:
    """The kernels read by address, and would read beyond the weight matrix."""
    folder = save("llama", tmp_path / "model", hidden_size=64, intermediate_size=96, vocab_size=64, head_dim=16)
    packed = pellucid.load(folder, dtype=dtype).module.packed_copy()
    layer = packed.layers[0]
    for part in (layer.attention.output, layer.feed_forward.down, layer.attention_norm, packed.head.decoder):
        assert part(torch.ones(1, 1, 96 if part is layer.feed_forward.down else 64)).isfinite().all()
        with pytest.raises((RuntimeError, InputError)):
            part(torch.ones(1, 1, width))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_strided_row_equals_a_contiguous_one(dtype: str, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "model", hidden_size=64, intermediate_size=96, vocab_size=64, head_dim=16)
    output = pellucid.load(folder, dtype=dtype).module.packed_copy().layers[0].attention.output
    row = random_tensor(64, 2)[:, 0]
    assert torch.equal(output(row), output(row.contiguous()))
    torch.testing.assert_close(output(row), output(row[None])[0])


def test_strided_bias_is_read_correctly(tmp_path: Path, disable_kernels: Callable[[], None]) -> None:
    """The kernels receive its address, and read it as contiguous."""
    model = pellucid.load(save("gpt2", tmp_path / "model"))
    for name, one in model.module.named_parameters():
        if name.endswith("up.bias"):
            one.data = random_tensor(len(one), 7)[:, 2]
        elif name.endswith("down.bias"):
            one.data = torch.tensor([0.3]).expand(len(one))
    with_kernels = log_probabilities(model, [[5, 6, 7]])
    disable_kernels()
    model.module.__dict__.pop("_packed_copies")
    torch.testing.assert_close(with_kernels, log_probabilities(model, [[5, 6, 7]]), rtol=2e-5, atol=2e-5)


def test_changed_weights_change_the_output(tmp_path: Path) -> None:
    model = pellucid.load(save("llama", tmp_path / "model"))
    before = log_probabilities(model, [[5, 6, 7]])
    with torch.no_grad():
        model.module.layers[0].feed_forward.down.weight.mul_(3)
    after = log_probabilities(model, [[5, 6, 7]])
    assert not torch.allclose(before[1], after[1])
    torch.testing.assert_close(after, log_probabilities(pellucid.load(model.save(tmp_path / "again")), [[5, 6, 7]]))


@pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deep", "pickle"]
)
def test_copied_model_gives_the_same_output_and_needs_no_kernels(
    make_copy: Callable[[pellucid.Model], pellucid.Model], tmp_path: Path, disable_kernels: Callable[[], None]
) -> None:
    folder = save("llama", tmp_path / "model", hidden_size=64, intermediate_size=96, vocab_size=64, head_dim=16)
    model = pellucid.load(folder, dtype="int8")
    expected = log_probabilities(model, [[5, 6, 7]])
    other = make_copy(model)
    torch.testing.assert_close(log_probabilities(other, [[5, 6, 7]]), expected, rtol=0, atol=0)
    disable_kernels()
    torch.testing.assert_close(log_probabilities(other, [[5, 6, 7]]), expected, rtol=0, atol=0.03)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_plain_call_within_autocast_gives_nearly_the_same_output(dtype: str, tmp_path: Path) -> None:
    """Matrices whose shape fits no low-bit format stay PyTorch's linear layers, whose products are float16 there."""
    module = pellucid.load(save("llama", tmp_path / "model"), dtype=dtype).module
    ids, logits = torch.tensor([[5], [6]]), []
    for kind in (None, torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=kind, enabled=kind is not None), torch.no_grad():
            cache = module.new_cache(2)
            logits.append([module(ids, cache=cache)["logits"].float() for _ in range(2)])
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=0.02)
    torch.testing.assert_close(logits[2], logits[0], rtol=0, atol=0.01)


def test_left_padding_read_token_by_token_matches_the_plain_module(tmp_path: Path) -> None:
    model = pellucid.load(save("llama", tmp_path / "model"))
    ids, mask = torch.tensor([[0, 0, 5], [5, 6, 7]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    logits = []
    for module in (model.module.packed_copy(), model.module):
        cache = module.new_cache(3)
        with torch.no_grad():
            logits.append([module(ids[:, i : i + 1], mask[:, i : i + 1], cache=cache)["logits"] for i in range(3)])
    torch.testing.assert_close(logits[0], logits[1], rtol=2e-5, atol=2e-5)


def test_unpacked_generation_module_has_no_compiled_blocks(tmp_path: Path) -> None:
    model = pellucid.load(save("llama", tmp_path / "model"))
    assert not any(
        type(part).__module__ == compiled.__name__ for part in generation_module(model.loaded, packed=False).modules()
    )


def test_int8_output_projection_applies_its_scale(kernels: Kernels) -> None:
    weight, x = random_tensor(48, 32), random_tensor(1, 32)
    linear = quantized.Int8Linear(*rounding.to_8_bits(48, 32, rounding.in_blocks([weight])), random_tensor(48, seed=8))
    packed = compiled.compiled_linear(linear, [], [], None)
    assert_close(
        packed(x), x.double() @ (linear.codes.double() * linear.scale.double()[:, None]).T + linear.bias.double()
    )
    assert_close(packed(x[None]), packed(x)[None].double())


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A separate cache folder, and a process that has not requested kernels yet."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    forget_kernels()
    yield tmp_path / "cache"
    forget_kernels()


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


RUN_KERNEL = """
import sys, torch
from pellucid.blocks.kernel_calls import PlainTable
from pellucid.blocks.availability import usable_kernels
kernels = usable_kernels()
needed = [name for name in ('elftools', 'llvmlite', 'numba') if name in sys.modules]
print(kernels.product(torch.ones(1, 4), [PlainTable(torch.ones(2, 4))]).tolist(), *needed)
"""


def test_compiled_code_is_cached_for_the_next_process(fresh_cache: Path) -> None:
    outputs = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", RUN_KERNEL], capture_output=True, text=True, check=True)
        outputs.append(run.stdout.strip())
    assert outputs == ["[[4.0, 4.0]] elftools llvmlite numba", "[[4.0, 4.0]]"]
    assert only_file(fresh_cache).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["kernels", "kernel_arguments"])
def test_changed_source_has_its_own_cache_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_spec(f"pellucid.blocks.{name}")
    before = machine_code._cache_path()
    assert source is not None and source.origin is not None
    source.origin = str(tmp_path / "other.py")
    Path(source.origin).write_bytes(b"# in other words")
    others = {f"pellucid.blocks.{name}": source}
    monkeypatch.setattr(machine_code, "find_spec", lambda name: others.get(name) or find_spec(name))
    assert machine_code._cache_path() != before


@pytest.mark.parametrize("other", [{"flags": "fpu sse2"}, {"model": "of no processor"}, {}])
def test_another_processor_has_its_own_cache_file(other: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One home folder may be shared by several machines."""
    before, here = machine_code._cache_path(), processor_info()
    assert here and "processor" not in here  # the processor's number among those of this machine
    monkeypatch.setattr(machine_code, "processor_info", lambda: here | other if other else {})
    assert machine_code._cache_path() != before


def test_compiler_setting_has_its_own_cache_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_code._cache_path()
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert machine_code._cache_path() != before


@pytest.mark.parametrize(
    "call",
    [
        kernel_arguments.Norm,
        kernel_arguments.GatedActivation,
        kernel_arguments.ProductTable,
        kernel_arguments.Product,
        kernel_arguments.StoreKeyValue,
        kernel_arguments.AttendOne,
    ],
)
def test_unknown_kernel_argument_is_refused(call: type) -> None:
    call(rows=3)
    with pytest.raises(AttributeError, match="row_s"):
        call(row_s=3)


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "of others"])
def test_damaged_cache_file_is_compiled_again(fresh_cache: Path, damage: str) -> None:
    first = usable_kernels()
    file = only_file(fresh_cache)
    whole = file.read_bytes()
    if damage == "of others":
        file.chmod(0o666)
    else:
        file.write_bytes({"cut": whole[:-9], "changed": whole[:-1] + b"\x90", "empty": b""}[damage])
    forget_kernels()
    again = usable_kernels()
    assert first is not None and again is not None and again is not first
    content = file.read_bytes()
    assert (
        hashlib.sha256(file.name.encode() + content[machine_code.DIGEST :]).digest() == content[: machine_code.DIGEST]
    )
    assert file.stat().st_mode & 0o777 == 0o600
    assert_close(again.product(torch.ones(1, 4), [PlainTable(torch.ones(2, 4))]), torch.full((1, 2), 4.0).double())


def test_cache_file_that_others_can_replace_is_not_run(
    fresh_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A symbolic link may point elsewhere tomorrow, and a file of another name belongs to other source code."""
    usable_kernels()
    file, code = only_file(fresh_cache), only_file(fresh_cache).read_bytes()[machine_code.DIGEST :]
    assert machine_code._cached_code(file) == code
    assert machine_code._cached_code(file.rename(tmp_path / "elsewhere")) is None
    assert machine_code._cached_code((tmp_path / "elsewhere").rename(file)) == code
    file.rename(tmp_path / file.name)
    file.symlink_to(tmp_path / file.name)
    assert machine_code._cached_code(file) is None and machine_code._cached_code(tmp_path / file.name) == code
    file.unlink()
    os.mkfifo(file)
    assert machine_code._cached_code(file) is None
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert machine_code._cached_code(tmp_path / file.name) is None


def test_cache_file_is_private_while_it_is_written(tmp_path: Path) -> None:
    before, modes = os.umask(0), []
    try:
        write_atomically(tmp_path / "x", lambda file: modes.append(os.fstat(file.fileno()).st_mode & 0o777), mode=0o600)
        write_atomically(tmp_path / "y", lambda file: modes.append(os.fstat(file.fileno()).st_mode & 0o777))
    finally:
        os.umask(before)
    assert modes == [0o600, 0o666]


@pytest.mark.parametrize("where", ["a file", "a folder that others may write", "no room"])
def test_packed_blocks_are_used_where_code_cannot_be_cached(
    fresh_cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(machine_code, "_kernel_sources", lambda: b"")
    monkeypatch.setitem(sys.modules, "pellucid.blocks.kernels", None)  # code that cannot be cached is not compiled
    match where:
        case "a file":
            fresh_cache.write_text("a file where a folder should be")
        case "no room":
            monkeypatch.setattr(machine_code, "bytes", no_space, raising=False)
        case _:
            monkeypatch.setattr(machine_code, "_is_own_file", lambda about: False)
    with caplog.at_level(logging.WARNING):
        model = pellucid.load(save("llama", tmp_path / "model"))
        assert len(log_probabilities(model, [[5, 6, 7]])) == 9
    assert usable_kernels() is None
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(
        f"numba is installed, and its kernels cannot be used: {fresh_cache} cannot keep the compiled kernels ("
    )
    assert message.endswith("): set PELLUCID_CACHE to a folder of yours")


def no_space(size: int) -> bytes:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FORBID_NEW_CODE = """
import ctypes, sys, torch
from pellucid.blocks.compiled import usable_kernels
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE: nothing that was written may be run
    sys.exit(77)
print(usable_kernels())
"""


def test_process_that_may_not_execute_new_code_survives(fresh_cache: Path) -> None:
    """As with systemd's MemoryDenyWriteExecute or SELinux: loading a cached file used to end the process."""
    assert usable_kernels() is not None
    run = subprocess.run([sys.executable, "-c", FORBID_NEW_CODE], capture_output=True, text=True)
    if run.returncode == 77:
        pytest.skip("this Linux is older than 6.3")
    assert (run.returncode, run.stdout) == (0, "None\n")
    assert "does not let a process run code that it has compiled" in run.stderr


def test_code_that_needs_the_numba_runtime_is_not_cached(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unoptimised code calls numba's runtime, which a later process does not have."""
    monkeypatch.setenv("NUMBA_OPT", "0")
    run = subprocess.run(
        [sys.executable, "-c", "import torch; from pellucid.blocks.compiled import usable_kernels; usable_kernels()"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "its kernels cannot be used: the kernels call NRT_" in run.stderr and folder_entries(fresh_cache) == []


@pytest.mark.parametrize(
    "error", [SystemError("initialization of _internal failed"), ValueError("numpy.dtype size changed"), TypeError("x")]
)
def test_broken_numba_gives_one_warning(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*arguments: object) -> object:
        raise error

    monkeypatch.setattr(machine_code, "_compile_to", fail)
    assert usable_kernels() is None
    assert [record.getMessage() for record in caplog.records] == [
        f"numba is installed, and its kernels cannot be used: {error}"
    ]


@pytest.mark.parametrize("name", ["GOMP_parallel", *thread_pool.WITHIN])
def test_missing_openmp_function_does_not_end_the_process(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """LLVM ends the process when it cannot resolve a function that the code calls."""
    loaded = ctypes.CDLL(None)
    others = {one: getattr(loaded, one) for one in ("GOMP_parallel", *thread_pool.WITHIN) if one != name}
    monkeypatch.setattr(thread_pool.ctypes, "CDLL", lambda path: SimpleNamespace(**others))
    assert usable_kernels() is None and not fresh_cache.exists()
    assert name in caplog.text


@pytest.mark.parametrize("source", few([True, False], [True]))
def test_zipped_package_has_kernels(fresh_cache: Path, tmp_path: Path, source: bool) -> None:
    package = Path(pellucid.__file__).parent
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in package.rglob("*.py"):
            name = file.relative_to(package.parent)
            if source:
                archive.write(file, name)
            else:
                compiled_to = py_compile.compile(str(file), str(tmp_path / "one.pyc"), str(name), doraise=True)
                archive.write(str(compiled_to), name.with_suffix(".pyc"))
    fresh = f"import sys; sys.path.insert(0, {str(tmp_path / 'all.zip')!r})" + RUN_KERNEL
    for needed in (" elftools llvmlite numba", ""):
        run = subprocess.run([sys.executable, "-c", fresh], capture_output=True, text=True)
        assert (run.stdout, run.stderr) == (f"[[4.0, 4.0]]{needed}\n", "")


def test_packed_blocks_are_used_without_numba(
    fresh_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    model = pellucid.load(save("llama", tmp_path / "model"))
    assert len(log_probabilities(model, [[5, 6, 7]])) == 9
    assert usable_kernels() is None and not fresh_cache.exists()
    assert not any(type(part).__module__ == compiled.__name__ for part in model.module.packed_copy().modules())
