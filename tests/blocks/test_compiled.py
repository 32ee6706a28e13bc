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
    calls,
    compiled,
    grouped,
    machine_code,
    packing,
    quantized,
    rounding,
    thread_pool,
)
from pellucid.blocks.availability import usable_kernels
from pellucid.blocks.cache import KeyValues
from pellucid.blocks.steps import Kernels, PlainTable
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

WRITERS = [name for name in TINY if pellucid.Config.of(name).kind != "encoder"]


@pytest.fixture(scope="module")
def made() -> Kernels:
    found = usable_kernels()
    assert found is not None
    return found


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with in_threads(request.param) as count:
        yield count


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that disables the kernels, as if numba were not installed."""

    def take() -> None:
        for asking in (compiled, packing, grouped):
            monkeypatch.setattr(asking, "usable_kernels", lambda: None)

    return take


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, wanted: Tensor, within: float = 2e-6) -> None:
    assert found.shape == wanted.shape
    assert (found.double() - wanted).abs().max() <= within * wanted.abs().max().clamp(min=1)


# -- the kernels ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("many", [1, 2, 3])
@pytest.mark.parametrize(("rows", "width"), [((1,), 1), ((7,), 33), ((64, 8), 40), ((12, 5, 30), 576)])
def test_a_product(made: Kernels, dtype: torch.dtype, many: int, rows: tuple[int, ...], width: int) -> None:
    x, tables, wanted = numbers(many, width), [], []
    for i, count in enumerate(rows):
        table = numbers(count, width, seed=i)
        table = (table * 40).clamp(-127, 127).to(dtype) if dtype == torch.int8 else table.to(dtype)
        scale = numbers(count, seed=7) if dtype == torch.int8 else None
        bias = numbers(count, seed=i + 9) if i % 2 == 0 else None
        tables.append(PlainTable(table, scale, bias))
        product = x.double() @ table.double().T * (1 if scale is None else scale.double())
        wanted.append(product if bias is None else product + bias)
    close(made.product(x, tables), torch.cat(wanted, dim=1))


@pytest.mark.parametrize("head", [2, 6, 8])
def test_the_two_halves_of_a_head_become_neighbours(made: Kernels, head: int) -> None:
    x, table, bias = numbers(2, 16), numbers(3 * head, 16), numbers(3 * head, seed=4)
    found = made.product(x, [PlainTable(table, None, bias, head), PlainTable(table[:head])])
    plain = F.linear(x.double(), table.double(), bias.double()).unflatten(1, (3, 2, head // 2))
    close(found[:, : 3 * head], plain.transpose(2, 3).flatten(1))
    close(found[:, 3 * head :], x.double() @ table[:head].double().T)


@pytest.mark.parametrize("shape", [(1, 1), (1, 24), (3, 1, 576), (2, 7)])
def test_a_norm(made: Kernels, shape: tuple[int, ...]) -> None:
    x, gain = numbers(*shape) * 30, numbers(shape[-1], seed=5)
    wide = x.double()
    wanted = wide / (wide.square().sum(-1, keepdim=True) + 0.5).sqrt() * gain
    close(made.norm(x, gain, 0.5), wanted)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [1, 17, 1536])
def test_a_gate(made: Kernels, given: torch.dtype, inner: int) -> None:
    both = (numbers(2, 2 * inner) * 10).to(given)
    gate, pre = both.double().chunk(2, dim=-1)
    found = made.gated_activation(both)
    assert found.dtype == torch.float32
    close(found, F.silu(gate) * pre, within=2e-6)


def test_a_gate_at_the_ends_of_the_numbers(made: Kernels) -> None:
    gate = torch.tensor([-3e38, -1e4, -120.0, -88.0, -20.0, -0.0, 0.0, 1e-30, 20.0, 88.0, 120.0, 1e30, torch.nan])
    found = made.gated_activation(torch.cat((gate, torch.ones_like(gate)))[None])[0]
    wanted = F.silu(gate.double())
    assert torch.isnan(found[-1])
    torch.testing.assert_close(found[:-1].double(), wanted[:-1], rtol=1e-6, atol=1e-30)


def test_a_number_is_narrowed_as_pytorch_does() -> None:
    """Halves round to even, and values beyond the largest become infinity."""
    from pellucid.blocks.numba_language import to_bfloat16

    ties = torch.arange(2**16, dtype=torch.int32).mul(2**15).add(0x42C80000).view(torch.float32)
    given = torch.cat((ties[(ties > 100) & (ties < 3.4e38)], torch.tensor([3.39e38, 3.4e38])))
    found = np.array([to_bfloat16(number) for number in given.numpy()], dtype=np.uint16)
    assert np.array_equal(found, given.bfloat16().view(torch.uint16).numpy())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("turned", ["not", "alike", "each by itself"])
@pytest.mark.parametrize("hidden", ["nothing", "alike", "each by itself"])
@pytest.mark.parametrize(("rows", "heads", "shared", "width"), [(1, 1, 1, 2), (3, 4, 2, 6), (2, 6, 1, 64)])
def test_a_position_and_what_it_sees(
    made: Kernels, dtype: torch.dtype, turned: str, hidden: str, rows: int, heads: int, shared: int, width: int
) -> None:
    """Positions one after the other: 8, or 30 where kernels share the last ones between threads."""
    remembered, keys, values = KeyValues(12), [], []
    for step in range(8 if width < 64 else 30):
        if step == 12:
            remembered.memory = F.pad(remembered.memory, (0, 0, 0, 40))  # as in a larger cache
        together = numbers(rows, (heads + 2 * shared) * width, seed=step).to(dtype)
        parts = together.double().view(rows, -1, width).split([heads, shared, shared], dim=1)
        query, key, value = parts
        rotation = None
        if turned != "not":
            places = torch.full((1, 1), step) if turned == "alike" else torch.arange(rows)[:, None] + step
            rotation = RotaryPositions(width)(places, torch.zeros(1))
            angle = rotation.complex_angles().to(torch.complex128)
            query, key = (torch.view_as_real(torch.view_as_complex(one.unflatten(2, (-1, 2))) * angle).flatten(2)
                          for one in (query, key))  # fmt: skip
        keys.append(key)
        values.append(value)
        mask = None
        if hidden != "nothing":
            count = 1 if hidden == "alike" else rows
            mask = torch.rand(count, step + 1, generator=torch.Generator().manual_seed(step)) < 0.6
            mask[:, -1] = True
        found = made.attend(together, remembered, heads, shared, 0.3, rotation, mask)
        every_key, every_value = (
            torch.stack(one, dim=2).repeat_interleave(heads // shared, dim=1) for one in (keys, values)
        )
        scores = (query[:, :, None] @ every_key.mT * 0.3)[:, :, 0]
        scores = scores if mask is None else scores.masked_fill(~mask[:, None], -torch.inf)
        wanted = (scores.softmax(-1)[:, :, None] @ every_value).flatten(1)
        assert found.dtype == torch.float32
        close(found, wanted, within=4e-6)
    held = remembered.stored()
    close(held[0], torch.stack(keys, dim=2))
    close(held[1], torch.stack(values, dim=2))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none(made: Kernels, broken: float) -> None:
    together = numbers(1, 3 * 8)
    remembered = KeyValues(4)
    assert made.attend(together, remembered, 1, 1, 1.0).isfinite().all()
    together = together.clone()
    together[0, 8] = broken  # an element of its key, not of its value
    assert made.attend(together, remembered, 1, 1, 1.0).isnan().all()
    x = torch.ones(1, 8)
    x[0, 3] = broken
    assert not made.norm(x, torch.ones(8), 1e-6)[0, 3].isfinite()
    assert not made.product(x, [PlainTable(torch.ones(4, 8))]).isfinite().any()


@pytest.mark.parametrize("held", [(2, 4, 5, 8), (1, 2, 5, 8), (1, 4, 5, 6)], ids=["rows", "heads", "width"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_another_model_remembers_is_refused(made: Kernels, dtype: torch.dtype, held: tuple[int, ...]) -> None:
    """The kernel would write by address beyond the cache; without kernels PyTorch refuses it."""
    remembered = KeyValues(5)
    remembered.extend_both(numbers(*held).to(dtype)[:, :, :3])
    with pytest.raises(InputError, match=r"this cache holds .*make a new cache"):
        made.attend(numbers(1, 6 * 8), remembered, 2, 2, 1.0)


def test_memory_of_another_kind_of_number_is_refused(made: Kernels) -> None:
    remembered = KeyValues(5)
    remembered.extend_both(numbers(1, 4, 3, 8).bfloat16())
    with pytest.raises(InputError, match=r"bfloat16\[1, 4, 5, 8\] on cpu, and float32\[1, 4, 5, 8\] on cpu"):
        made.attend(numbers(1, 6 * 8), remembered, 2, 2, 1.0)


@pytest.mark.parametrize("shape", [(1, 3), (1, 5), (2, 4)])
def test_a_mask_of_other_slots_is_refused(made: Kernels, shape: tuple[int, int]) -> None:
    remembered = KeyValues(5)
    remembered.extend_both(numbers(3, 4, 3, 8))
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(InputError, match="this cache holds 3 rows of 4"):
        made.attend(numbers(3, 6 * 8), remembered, 2, 2, 1.0, mask=mask)


def test_what_does_not_lie_straight_is_read_as_it_is(made: Kernels) -> None:
    both, together = numbers(6, 2).T, numbers(24, 2).T
    close(made.gated_activation(both), F.silu(both.double()[:, :3]) * both.double()[:, 3:])
    close(made.attend(together, KeyValues(2), 1, 1, 1.0), together[:, 16:].double())


def test_who_may_look_nowhere_hears_nothing(made: Kernels) -> None:
    mask = torch.tensor([[False], [True]])
    found = made.attend(numbers(2, 3 * 8), KeyValues(2), 1, 1, 1.0, mask=mask)
    close(found, torch.stack((torch.zeros(8), numbers(2, 3, 8)[1, 2])).double())


# -- models -----------------------------------------------------------------------------------------------------------


def steps(model: pellucid.Model, prompts: list[list[int]], *, length: int = 9) -> list[Tensor]:
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
@pytest.mark.parametrize(("name", "facts"), [*((name, {}) for name in WRITERS), ("llama", {"num_key_value_heads": 1})])
def test_every_family_says_what_it_says_without_kernels(
    name: str, facts: dict[str, int], prompts: list[list[int]], tmp_path: Path, without: Callable[[], None]
) -> None:
    folder = save(name, tmp_path / "model", **facts)
    model = pellucid.load(folder)
    quick = steps(model, prompts)
    assert any(type(part).__module__ == compiled.__name__ for part in generation_module(model.loaded).modules())
    without()
    slow = steps(pellucid.load(folder), prompts)
    for found, wanted in zip(quick, slow, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2", "t5"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int4"])
def test_few_bits_say_nearly_what_they_say_without_kernels(
    name: str, dtype: str, tmp_path: Path, without: Callable[[], None]
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}
    sizes |= {"llama": {"head_dim": 16}, "t5": {"head_dim": 16, "decoder_intermediate_size": 96}}.get(name, {})
    folder = save(name, tmp_path / "model", **sizes)
    quick = steps(pellucid.load(folder, dtype=dtype), [[5, 6, 7]], length=5)
    without()
    slow = steps(pellucid.load(folder, dtype=dtype), [[5, 6, 7]], length=5)
    for found, wanted in zip(quick, slow, strict=True):
        assert (found - wanted).abs().max() < 0.03


def test_a_table_is_not_held_twice(tmp_path: Path) -> None:
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
def test_numbers_of_another_width_are_refused(dtype: str, width: int, tmp_path: Path) -> None:
    """The kernels read by address, and would read beyond the weight matrix."""
    folder = save("llama", tmp_path / "model", hidden_size=64, intermediate_size=96, vocab_size=64, head_dim=16)
    twin = pellucid.load(folder, dtype=dtype).module.packed_copy()
    layer = twin.layers[0]
    for part in (layer.attention.output, layer.feed_forward.down, layer.attention_norm, twin.head.decoder):
        assert part(torch.ones(1, 1, 96 if part is layer.feed_forward.down else 64)).isfinite().all()
        with pytest.raises((RuntimeError, InputError)):
            part(torch.ones(1, 1, width))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_one_row_that_does_not_lie_straight(dtype: str, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "model", hidden_size=64, intermediate_size=96, vocab_size=64, head_dim=16)
    output = pellucid.load(folder, dtype=dtype).module.packed_copy().layers[0].attention.output
    row = numbers(64, 2)[:, 0]
    assert torch.equal(output(row), output(row.contiguous()))
    torch.testing.assert_close(output(row), output(row[None])[0])


def test_a_bias_that_does_not_lie_straight_is_read_as_it_is(tmp_path: Path, without: Callable[[], None]) -> None:
    """The kernels receive its address, and read it as contiguous."""
    model = pellucid.load(save("gpt2", tmp_path / "model"))
    for name, one in model.module.named_parameters():
        if name.endswith("up.bias"):
            one.data = numbers(len(one), 7)[:, 2]
        elif name.endswith("down.bias"):
            one.data = torch.tensor([0.3]).expand(len(one))
    quick = steps(model, [[5, 6, 7]])
    without()
    model.module.__dict__.pop("_packed_copies")
    torch.testing.assert_close(quick, steps(model, [[5, 6, 7]]), rtol=2e-5, atol=2e-5)


def test_a_model_that_learned_says_something_else(tmp_path: Path) -> None:
    model = pellucid.load(save("llama", tmp_path / "model"))
    before = steps(model, [[5, 6, 7]])
    with torch.no_grad():
        model.module.layers[0].feed_forward.down.weight.mul_(3)
    after = steps(model, [[5, 6, 7]])
    assert not torch.allclose(before[1], after[1])
    torch.testing.assert_close(after, steps(pellucid.load(model.save(tmp_path / "again")), [[5, 6, 7]]))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deep", "pickle"]
)
def test_a_copy_says_the_same_and_needs_no_kernels(
    copied: Callable[[pellucid.Model], pellucid.Model], tmp_path: Path, without: Callable[[], None]
) -> None:
    folder = save("llama", tmp_path / "model", hidden_size=64, intermediate_size=96, vocab_size=64, head_dim=16)
    model = pellucid.load(folder, dtype="int8")
    wanted = steps(model, [[5, 6, 7]])
    other = copied(model)
    torch.testing.assert_close(steps(other, [[5, 6, 7]]), wanted, rtol=0, atol=0)
    without()
    torch.testing.assert_close(steps(other, [[5, 6, 7]]), wanted, rtol=0, atol=0.03)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_plain_call_within_autocast_says_nearly_the_same(dtype: str, tmp_path: Path) -> None:
    """Matrices whose shape fits no few-bit format stay PyTorch's linear layers, whose products are float16 there."""
    module = pellucid.load(save("llama", tmp_path / "model"), dtype=dtype).module
    ids, said = torch.tensor([[5], [6]]), []
    for kind in (None, torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=kind, enabled=kind is not None), torch.no_grad():
            cache = module.new_cache(2)
            said.append([module(ids, cache=cache)["logits"].float() for _ in range(2)])
    torch.testing.assert_close(said[1], said[0], rtol=0, atol=0.02)
    torch.testing.assert_close(said[2], said[0], rtol=0, atol=0.01)


def test_padding_before_a_text_that_is_read_token_by_token(tmp_path: Path) -> None:
    model = pellucid.load(save("llama", tmp_path / "model"))
    ids, mask = torch.tensor([[0, 0, 5], [5, 6, 7]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    said = []
    for module in (model.module.packed_copy(), model.module):
        cache = module.new_cache(3)
        with torch.no_grad():
            said.append([module(ids[:, i : i + 1], mask[:, i : i + 1], cache=cache)["logits"] for i in range(3)])
    torch.testing.assert_close(said[0], said[1], rtol=2e-5, atol=2e-5)


def test_whoever_looks_on_sees_the_plain_blocks(tmp_path: Path) -> None:
    model = pellucid.load(save("llama", tmp_path / "model"))
    assert not any(
        type(part).__module__ == compiled.__name__ for part in generation_module(model.loaded, packed=False).modules()
    )


def test_eight_bits_of_a_last_map_have_their_scale(made: Kernels) -> None:
    weight, x = numbers(48, 32), numbers(1, 32)
    linear = quantized.Int8Linear(*rounding.to_8_bits(48, 32, rounding.in_blocks([weight])), numbers(48, seed=8))
    few = compiled.compiled_linear(linear, [], [], None)
    close(few(x), x.double() @ (linear.codes.double() * linear.scale.double()[:, None]).T + linear.bias.double())
    close(few(x[None]), few(x)[None].double())


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A separate cache folder, and a process that has not requested kernels yet."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    forget_kernels()
    yield tmp_path / "cache"
    forget_kernels()


def only(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


FRESH = """
import sys, torch
from pellucid.blocks.steps import PlainTable
from pellucid.blocks.availability import usable_kernels
made = usable_kernels()
needed = [name for name in ('elftools', 'llvmlite', 'numba') if name in sys.modules]
print(made.product(torch.ones(1, 4), [PlainTable(torch.ones(2, 4))]).tolist(), *needed)
"""


def test_what_is_compiled_is_found_again(alone: Path) -> None:
    said = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
        said.append(run.stdout.strip())
    assert said == ["[[4.0, 4.0]] elftools llvmlite numba", "[[4.0, 4.0]]"]
    assert only(alone).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["kernels", "calls"])
def test_another_wording_has_a_file_of_its_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_spec(f"pellucid.blocks.{name}")
    before = machine_code._cache_path()
    assert source is not None and source.origin is not None
    source.origin = str(tmp_path / "other.py")
    Path(source.origin).write_bytes(b"# in other words")
    others = {f"pellucid.blocks.{name}": source}
    monkeypatch.setattr(machine_code, "find_spec", lambda name: others.get(name) or find_spec(name))
    assert machine_code._cache_path() != before


@pytest.mark.parametrize("other", [{"flags": "fpu sse2"}, {"model": "of no processor"}, {}])
def test_another_processor_has_a_file_of_its_own(other: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One home folder may be shared by several machines."""
    before, here = machine_code._cache_path(), processor_info()
    assert here and "processor" not in here  # the processor's number among those of this machine
    monkeypatch.setattr(machine_code, "processor_info", lambda: here | other if other else {})
    assert machine_code._cache_path() != before


def test_another_setting_of_what_compiles_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_code._cache_path()
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert machine_code._cache_path() != before


@pytest.mark.parametrize(
    "call", [calls.Norm, calls.GatedActivation, calls.ProductTable, calls.Product, calls.StoreKeyValue, calls.AttendOne]
)
def test_a_kernel_is_told_nothing_that_it_does_not_know(call: type) -> None:
    call(rows=3)
    with pytest.raises(AttributeError, match="row_s"):
        call(row_s=3)


@pytest.mark.parametrize("harm", ["cut", "changed", "empty", "of others"])
def test_a_file_that_is_not_as_it_was_written_is_made_anew(alone: Path, harm: str) -> None:
    first = usable_kernels()
    file = only(alone)
    whole = file.read_bytes()
    if harm == "of others":
        file.chmod(0o666)
    else:
        file.write_bytes({"cut": whole[:-9], "changed": whole[:-1] + b"\x90", "empty": b""}[harm])
    forget_kernels()
    again = usable_kernels()
    assert first is not None and again is not None and again is not first
    kept = file.read_bytes()
    assert hashlib.sha256(file.name.encode() + kept[machine_code.DIGEST :]).digest() == kept[: machine_code.DIGEST]
    assert file.stat().st_mode & 0o777 == 0o600
    close(again.product(torch.ones(1, 4), [PlainTable(torch.ones(2, 4))]), torch.full((1, 2), 4.0).double())


def test_a_file_that_others_can_swap_is_not_run(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A symbolic link may point elsewhere tomorrow, and a file of another name belongs to other source code."""
    usable_kernels()
    file, code = only(alone), only(alone).read_bytes()[machine_code.DIGEST :]
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


def test_while_it_is_written_nobody_else_may_write_it(tmp_path: Path) -> None:
    before, seen = os.umask(0), []
    try:
        write_atomically(tmp_path / "x", lambda file: seen.append(os.fstat(file.fileno()).st_mode & 0o777), mode=0o600)
        write_atomically(tmp_path / "y", lambda file: seen.append(os.fstat(file.fileno()).st_mode & 0o777))
    finally:
        os.umask(before)
    assert seen == [0o600, 0o666]


@pytest.mark.parametrize("where", ["a file", "a folder of nobody's rights", "no room"])
def test_where_nothing_can_be_kept_the_packed_blocks_do_the_work(
    alone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(machine_code, "_kernel_sources", lambda: b"")
    monkeypatch.setitem(sys.modules, "pellucid.blocks.kernels", None)  # code that cannot be cached is not compiled
    match where:
        case "a file":
            alone.write_text("a file where a folder should be")
        case "no room":
            monkeypatch.setattr(machine_code, "bytes", full, raising=False)
        case _:
            monkeypatch.setattr(machine_code, "_is_own_file", lambda about: False)
    with caplog.at_level(logging.WARNING):
        model = pellucid.load(save("llama", tmp_path / "model"))
        assert len(steps(model, [[5, 6, 7]])) == 9
    assert usable_kernels() is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        f"numba is installed, and its kernels cannot be used: {alone} cannot keep the compiled kernels ("
    )
    assert said.endswith("): set PELLUCID_CACHE to a folder of yours")


def full(size: int) -> bytes:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


BARRED = """
import ctypes, sys, torch
from pellucid.blocks.compiled import usable_kernels
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE: nothing that was written may be run
    sys.exit(77)
print(usable_kernels())
"""


def test_a_process_that_may_not_run_what_it_has_written_lives(alone: Path) -> None:
    """As with systemd's MemoryDenyWriteExecute or SELinux: loading a cached file used to end the process."""
    assert usable_kernels() is not None
    run = subprocess.run([sys.executable, "-c", BARRED], capture_output=True, text=True)
    if run.returncode == 77:
        pytest.skip("this Linux is older than 6.3")
    assert (run.returncode, run.stdout) == (0, "None\n")
    assert "does not let a process run code that it has compiled" in run.stderr


def test_settings_of_numba_leave_no_code_that_ends_a_later_process(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unoptimised code calls numba's runtime, which a later process does not have."""
    monkeypatch.setenv("NUMBA_OPT", "0")
    run = subprocess.run(
        [sys.executable, "-c", "import torch; from pellucid.blocks.compiled import usable_kernels; usable_kernels()"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "its kernels cannot be used: the kernels call NRT_" in run.stderr and folder_entries(alone) == []


@pytest.mark.parametrize(
    "error", [SystemError("initialization of _internal failed"), ValueError("numpy.dtype size changed"), TypeError("x")]
)
def test_a_numba_that_is_broken_is_one_warning(
    alone: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def broken(*given: object) -> object:
        raise error

    monkeypatch.setattr(machine_code, "_compile_to", broken)
    assert usable_kernels() is None
    assert [record.getMessage() for record in caplog.records] == [
        f"numba is installed, and its kernels cannot be used: {error}"
    ]


@pytest.mark.parametrize("name", ["GOMP_parallel", *thread_pool.WITHIN])
def test_an_openmp_of_other_names_ends_no_process(
    alone: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """LLVM ends the process when it cannot resolve a function that the code calls."""
    loaded = ctypes.CDLL(None)
    others = {one: getattr(loaded, one) for one in ("GOMP_parallel", *thread_pool.WITHIN) if one != name}
    monkeypatch.setattr(thread_pool.ctypes, "CDLL", lambda path: SimpleNamespace(**others))
    assert usable_kernels() is None and not alone.exists()
    assert name in caplog.text


@pytest.mark.parametrize("source", few([True, False], [True]))
def test_a_zipped_package_has_its_kernels(alone: Path, tmp_path: Path, source: bool) -> None:
    package = Path(pellucid.__file__).parent
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in package.rglob("*.py"):
            name = file.relative_to(package.parent)
            if source:
                archive.write(file, name)
            else:
                compiled_to = py_compile.compile(str(file), str(tmp_path / "one.pyc"), str(name), doraise=True)
                archive.write(str(compiled_to), name.with_suffix(".pyc"))
    fresh = f"import sys; sys.path.insert(0, {str(tmp_path / 'all.zip')!r})" + FRESH
    for needed in (" elftools llvmlite numba", ""):
        run = subprocess.run([sys.executable, "-c", fresh], capture_output=True, text=True)
        assert (run.stdout, run.stderr) == (f"[[4.0, 4.0]]{needed}\n", "")


def test_without_numba_the_packed_blocks_do_the_work(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    model = pellucid.load(save("llama", tmp_path / "model"))
    assert len(steps(model, [[5, 6, 7]])) == 9
    assert usable_kernels() is None and not alone.exists()
    assert not any(type(part).__module__ == compiled.__name__ for part in model.module.packed_copy().modules())
