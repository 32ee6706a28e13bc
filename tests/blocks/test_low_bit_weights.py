"""Matrices in 4 and 6 bits that our own kernel reads: products use the values that the codes represent."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.blocks import low_bit_weights, rounding
from pellucid.blocks.availability import usable_kernels
from pellucid.blocks.kernel_arguments import GROUP
from pellucid.blocks.low_bit_weights import Grouped, GroupedLinear, GroupedTable, dequantised
from pellucid.blocks.rounding import GRID, in_blocks
from pellucid.edits import add
from pellucid.errors import InputError
from tests.checkpoints.families import save
from tests.torch_state import in_threads

pytest.importorskip("numba")
llvm = pytest.importorskip("llvmlite.binding")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="the kernels work in OpenMP's threads as Linux has them"),
]

EXACT = 6e-5
"""The largest relative error of integer sums, for which inputs have 16 bits instead of 24."""

CONVERTERS = {4: low_bit_weights.to_4_bits, 6: low_bit_weights.to_6_bits}


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with in_threads(request.param) as count:
        yield count


def random_tensor(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def grouped_matrix(bits: int, weight: Tensor) -> Grouped:
    return CONVERTERS[bits](*weight.shape, in_blocks([weight[:50], weight[50:]]))


def relative_error(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("bits", [4, 6])
@pytest.mark.parametrize("many", [1, 2, 4, 7, 70, 133])
@pytest.mark.parametrize(("rows", "width"), [(16, 32), (80, 96), (144, 576)])
def test_product_equals_that_of_the_dequantised_matrix(bits: int, many: int, rows: int, width: int) -> None:
    assert usable_kernels()
    table, x, bias = (
        grouped_matrix(bits, random_tensor(rows, width)),
        random_tensor(many, width, seed=4),
        random_tensor(rows, seed=5),
    )
    expected = x.double() @ dequantised(table).double().T
    linear, biased = GroupedLinear(*table), GroupedLinear(*table, bias)
    tolerance = (
        0.01 if bits == 4 and many >= low_bit_weights.MIN_FLOAT_ROWS else EXACT
    )  # as floats, in bfloat16 where that is faster
    assert linear(x).dtype == torch.float32
    assert relative_error(linear(x), expected) < tolerance and relative_error(biased(x), expected + bias) < tolerance
    assert torch.equal(linear(x.T.contiguous().T.view(1, many, width)), linear(x)[None])
    assert relative_error(linear(x.to(torch.bfloat16)), expected) < 0.01


@pytest.mark.parametrize("bits", [4, 6])
@pytest.mark.parametrize("float_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_product_in_floats_matches_the_dequantised_matrix(
    bits: int, float_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without kernels, and with many rows on a processor that is faster with floats."""
    table, x = grouped_matrix(bits, random_tensor(144, 96)), random_tensor(200, 96, seed=4)
    linear, expected = GroupedLinear(*table), x.double() @ dequantised(table).double().T
    monkeypatch.setattr(low_bit_weights, "has_int8_products", lambda device: True)
    monkeypatch.setattr(low_bit_weights, "fastest_dtype", lambda device: torch.float32)
    assert relative_error(linear(x), expected) < EXACT
    monkeypatch.setattr(low_bit_weights, "has_int8_products", lambda device: False)
    monkeypatch.setattr(low_bit_weights, "fastest_dtype", lambda device: float_dtype)
    monkeypatch.setattr(low_bit_weights, "DEQUANTISED_ROWS", 64)
    tolerance = 1e-6 if float_dtype == torch.float32 else 0.01
    assert relative_error(linear(x), expected) < (tolerance if bits == 4 else EXACT)
    monkeypatch.setattr(low_bit_weights, "usable_kernels", lambda: None)
    assert relative_error(linear(x), expected) < tolerance and relative_error(linear(x[:1]), expected[:1]) < tolerance


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("rows", "width"), [(16, 32), (80, 96), (144, 576)])
def test_kernel_dequantises_as_numpy_does(rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel dequantises to the same values as NumPy, for the whole matrix and a part of it, in both dtypes."""
    table, middle = grouped_matrix(4, random_tensor(rows, width)), slice(16, 64)
    found = [
        dequantised(table, part, kind) for part in (slice(None), middle) for kind in (torch.float32, torch.bfloat16)
    ]
    monkeypatch.setattr(low_bit_weights, "usable_kernels", lambda: None)
    expected = dequantised(table)
    for part, (wide, narrow) in zip((expected, expected[middle]), (found[:2], found[2:]), strict=True):
        torch.testing.assert_close(wide, part, rtol=1e-6, atol=1e-6)
        assert narrow.dtype == torch.bfloat16
        torch.testing.assert_close(narrow, wide.to(torch.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize("bits", [4, 6])
def test_rounding_error_is_at_most_half_a_step(bits: int) -> None:
    """Plus the rounding of scales and zeros to 8 bits."""
    weight = random_tensor(208, 160)
    weight[3], weight[4, 32:64], weight[5] = 0, 0, weight[5] * 1e-20
    weight[6, :32] *= 100  # the other groups of its row must nearly keep their own scale
    groups, found = (
        weight.unflatten(1, (-1, GROUP)),
        dequantised(grouped_matrix(bits, weight)).unflatten(1, (-1, GROUP)),
    )
    step = (groups.amax(-1) - groups.amin(-1)) / ((1 << bits) - 1)
    zero = (groups.amax(-1) + groups.amin(-1) + step) / 2

    def rounding_error(x: Tensor, largest: int) -> Tensor:
        """The error of a number in 8 bits, which store its square root: half a step of the root."""
        root = (x.abs() / x.abs().amax(1, keepdim=True).clamp(min=1e-30)).sqrt() * largest
        return (root + 0.3) / largest**2 * x.abs().amax(1, keepdim=True) * 1.02

    error = (found - groups).abs().amax(-1)
    assert (error <= 0.51 * step + rounding_error(zero, 127) + (1 << bits - 1) * rounding_error(step, 255)).all()
    assert (found[3] == 0).all()


@pytest.mark.parametrize("bits", [4, 6])
def test_row_lookup_returns_dequantised_rows(bits: int) -> None:
    table, ids = grouped_matrix(bits, random_tensor(80, 96)), torch.tensor([[3, 79], [16, 3]])
    found = GroupedTable(*table)
    torch.testing.assert_close(found(ids), dequantised(table)[ids], rtol=1e-6, atol=1e-6)
    assert found.num_embeddings == 80 and found.size == 80 * 96
    assert torch.equal(dequantised(table, slice(16, 48)), dequantised(table)[16:48])


@pytest.mark.parametrize("sign", [-1, 1], ids=["scales below 0", "above"])
def test_4_bit_codes_of_a_file_are_kept(sign: int) -> None:
    """Also with negative scales, as in GGUF's Q4_0."""
    generator = torch.Generator().manual_seed(5)
    scale = (torch.rand((64, 3), generator=generator) + 0.1) * sign
    pairs = torch.randint(0, 256, (64, 3, 16), generator=generator, dtype=torch.uint8)
    zero = torch.rand((64, 3), generator=generator) - 0.5
    scale_and_zero = torch.stack((scale, zero), dim=-1).to(torch.bfloat16)
    grids = torch.cat((scale_and_zero.view(torch.uint8).view(64, 3, 4), pairs), dim=-1)
    assert grids.shape[-1] == GRID
    codes = torch.cat((pairs & 15, pairs >> 4), dim=-1).float()
    expected = (codes - 8) * scale_and_zero[..., :1].float() + scale_and_zero[..., 1:].float()
    found = dequantised(low_bit_weights.to_4_bits(64, 96, in_blocks([grids.flatten(1)]))).unflatten(1, (-1, GROUP))
    assert (found - expected).abs().max() < 0.04  # where steps are up to 1.1
    plain, _, _ = rounding._unpacked_grids(grids.flatten(1))
    assert torch.equal(plain.unflatten(1, (-1, GROUP)).float(), codes)


@pytest.mark.parametrize("bits", [4, 6])
def test_nan_and_infinity_propagate(bits: int) -> None:
    linear, x = GroupedLinear(*grouped_matrix(bits, random_tensor(32, 64))), random_tensor(6, 64)
    alone = [linear(x[row : row + 1]) for row in range(6)]
    x[1, 5], x[2, 40], x[3], x[4] = torch.nan, torch.inf, 0, x[4] * 1e-20
    found = linear(x)
    assert not found[1].isfinite().any() and not found[2].isfinite().any() and (found[3] == 0).all()
    torch.testing.assert_close(found[4:5] * 1e20, alone[4], rtol=0, atol=1e-3)
    for row in (0, 5):
        torch.testing.assert_close(found[row : row + 1], alone[row], rtol=0, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 6])
def test_an_input_of_another_width_is_refused(bits: int) -> None:
    with pytest.raises(InputError, match=r"x is .*1, 96.*, and its table has rows of 64 numbers on cpu"):
        GroupedLinear(*grouped_matrix(bits, random_tensor(32, 64)))(random_tensor(1, 96))
    with pytest.raises(InputError, match=r"x is .*1, 64.* on meta, and its table has rows of 64 numbers on cpu"):
        GroupedLinear(*grouped_matrix(bits, random_tensor(32, 64)))(random_tensor(1, 64).to("meta"))


@pytest.mark.parametrize("bits", [4, 6])
def test_gradient_of_the_input_is_that_of_the_matrix(bits: int) -> None:
    """Otherwise it would silently be that of the paths around the matrices alone."""
    table, x = grouped_matrix(bits, random_tensor(32, 64)), random_tensor(5, 64).requires_grad_()
    GroupedLinear(*table)(x).sum().backward()
    expected = dequantised(table).sum(0).expand(5, -1)
    torch.testing.assert_close(x.grad, expected, rtol=0, atol=0.02 * float(expected.abs().max()))
    with torch.no_grad():
        assert not GroupedLinear(*table)(x).requires_grad


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 8])
def test_gradient_through_a_model_is_close_to_float32(rows: int, bits: int, tmp_path: Path) -> None:
    """Through norms, gates and attention too; kernels compute few positions, and PyTorch many."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 96, "head_dim": 16}
    folder, ids, found = save("llama", tmp_path / "model", **sizes), torch.arange(5, 17).expand(rows, -1), []
    for dtype in ("float32", f"int{bits}"):
        model, vector = pellucid.load(folder, dtype=dtype), torch.zeros(64, requires_grad=True)
        recorded: list[Tensor] = []

        def record(states: Tensor, recorded: list[Tensor] = recorded) -> Tensor:
            recorded.append(states)
            return states

        with model.edit({"layers.0.residual.post": add(vector, 2.0, position=1), "layers.1.residual.post": record}):
            model(ids)
        (recorded[0][..., 3] * torch.arange(1.0, 13)).sum().backward()
        found.append(vector.grad)
    assert relative_error(found[1], found[0].double()) < 0.3
    assert (
        relative_error(torch.eye(64)[3] * found[1][3], found[0].double()) > 0.3
    )  # the paths around the matrices do not suffice


@pytest.mark.parametrize("bits", [4, 6])
def test_very_large_inputs_give_finite_outputs(bits: int) -> None:
    found = GroupedLinear(*grouped_matrix(bits, random_tensor(32, 64) * 1e-5))(random_tensor(5, 64) * 5e37)
    assert found.isfinite().all() and (found != 0).any()


@pytest.mark.parametrize("bits", [4, 6])
@pytest.mark.parametrize("mean", [0.0, 2.5])
def test_outlier_does_not_affect_other_groups_of_its_row(bits: int, mean: float) -> None:
    plain = random_tensor(32, 576) + mean
    large = plain.clone()
    large[:, 7] = 250
    without_outlier, with_outlier = (
        relative_error(dequantised(grouped_matrix(bits, one))[:, GROUP:], one[:, GROUP:]) for one in (plain, large)
    )
    assert with_outlier < 2 * without_outlier + (0.01 if mean else 0)


@pytest.mark.parametrize(
    ("without", "length", "vnni", "multiplies_bytes"),
    [
        ("avx512", 8, None, True),
        ("avx512 avxvnni", 8, False, True),
        ("avx512 avxvnni avx2", 8, False, False),
        ("avx512vnni", 16, False, True),
        ("avx512vnni avx512bw", 16, False, False),
    ],
    ids=[
        "vectors of 8",
        "vectors of 8 without VNNI",
        "vectors of 8 without byte products",
        "vectors of 16 without VNNI",
        "vectors of 16 without byte products",
    ],
)
def test_kernels_for_another_processor_match_the_dequantised_matrix(
    without: str, length: int, vnni: bool | None, multiplies_bytes: bool
) -> None:
    """With shorter vectors, the kernel reads the 16 interleaved rows in two halves."""
    if length == 16 and not llvm.get_host_cpu_features().get("avx512f"):
        pytest.skip("this processor has no such vectors")
    script = f"""
import llvmlite.binding as llvm
known, without = llvm.get_host_cpu_features(), tuple({without.split()!r})
llvm.get_host_cpu_features = lambda: type(known)(
    {{name: on and not name.startswith(without) for name, on in known.items()}}
)
llvm.get_host_cpu_name = lambda: {"x86-64-v3" if length == 8 else "x86-64-v4"!r}
import tempfile, os
os.environ["PELLUCID_CACHE"] = tempfile.mkdtemp()
import torch
from pellucid.blocks import low_bit_weights, low_bit_sums
assert low_bit_sums.VECTOR == {length} and {vnni} in (None, low_bit_sums.VNNI)
assert low_bit_sums.MULTIPLIES_BYTES is {multiplies_bytes}
greatest = torch.ones(48, 64)
greatest[:, ::32] = -1  # all other codes are the greatest, and so are all sums
cases = [(torch.randn(48, 64), torch.randn(many, 64)) for many in (1, 5, 100)] + [(greatest, torch.ones(5, 64))]
for quantise in (low_bit_weights.to_4_bits, low_bit_weights.to_6_bits):
    for weight, x in cases:
        table, many = quantise(48, 64, [weight]), len(x)
        expected = x.double() @ low_bit_weights.dequantised(table).double().T
        found = low_bit_weights.GroupedLinear(*table)(x)
        as_floats = many >= low_bit_weights.MIN_FLOAT_ROWS and low_bit_weights.fastest_dtype(x.device) == torch.bfloat16
        tolerance = 0.02 if as_floats else 1e-4 if low_bit_sums.MULTIPLIES_BYTES else 1e-5
        assert (found - expected).abs().max() < tolerance * expected.abs().max()
assert low_bit_weights.usable_kernels() is not None
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert not result.returncode, result.stderr
