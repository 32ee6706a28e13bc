"""Matrices stored in half precision and multiplied in float32: as exact as their storage, on any processor."""

import pytest
import torch

from pellucid import blocks
from pellucid.blocks import widened
from pellucid.blocks.activation import ACTIVATIONS
from pellucid.blocks.cache import LayerCache
from pellucid.blocks.copies import packed_copy
from pellucid.blocks.packing import Packing, Widening, float_packing
from pellucid.blocks.relative import RotaryPositions
from pellucid.blocks.widened import MIN_FLOAT_ROWS_EMULATED, MIN_FLOAT_ROWS_NATIVE, WidenedLinear, WidenedTable
from tests.matrix_products import needs_x86, run_with_avx2

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(params=[True, False], ids=["native", "older"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether oneDNN's half-precision products are used; True is skipped where this processor has none."""
    if request.param and not all(map(widened._native, (torch.bfloat16, torch.float16))):
        pytest.skip("this processor has no products of half precision")
    monkeypatch.setattr(widened, "_native", lambda dtype: request.param)
    return request.param


@HALF
@pytest.mark.parametrize("activation", [None, "gelu", "gelu_pytorch_tanh", "relu", "tanh"])
@pytest.mark.parametrize("rows", [1, 3, 4, MIN_FLOAT_ROWS_NATIVE - 1, MIN_FLOAT_ROWS_NATIVE, 2 * MIN_FLOAT_ROWS_NATIVE])
@torch.inference_mode()
def test_product_is_as_precise_as_its_dtype(
    native: bool, dtype: torch.dtype, activation: str | None, rows: int
) -> None:
    torch.manual_seed(rows)
    weight, bias, x = torch.randn(48, 64) / 8, torch.randn(48), torch.randn(2, rows, 64)[:1]
    plain = x.double() @ weight.to(dtype).double().T + bias.to(dtype).double()
    expected = plain if activation is None else ACTIVATIONS[activation](plain)
    found = WidenedLinear(weight, bias, dtype, activation)(x)
    assert found.shape == (1, rows, 48) and found.dtype == torch.float32
    many = rows >= (MIN_FLOAT_ROWS_NATIVE if native else MIN_FLOAT_ROWS_EMULATED)
    assert (found - expected).abs().max() < (1e-5 if many else 16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("rows", [1, MIN_FLOAT_ROWS_NATIVE])
@torch.inference_mode()
def test_values_beyond_float16_are_multiplied_in_float32(native: bool, activation: str | None, rows: int) -> None:
    """Inputs or outputs too large for float16 are multiplied in float32, however few rows there are."""
    torch.manual_seed(rows)
    linear = WidenedLinear(weight := torch.rand(48, 64), None, torch.float16, activation)
    for size in (1e4, 1e6):
        x = size * torch.rand(1, rows, 64)
        expected = x.double() @ weight.half().double().T
        assert expected.abs().max() > torch.finfo(torch.float16).max
        torch.testing.assert_close(linear(x).double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@torch.inference_mode()
def test_activation_after_values_beyond_float16(native: bool, activation: str) -> None:
    weight, x = torch.tensor([[-0.001, 1.0]]).repeat(16, 1), torch.tensor([[1e5, 6e4]])
    expected = ACTIVATIONS[activation](x @ weight.half().float().T)
    torch.testing.assert_close(WidenedLinear(weight, None, torch.float16, activation)(x), expected, rtol=1e-5, atol=0)


@HALF
@torch.inference_mode()
def test_rows_of_a_table_are_returned_exactly(dtype: torch.dtype) -> None:
    weight = torch.randn(9, 4).to(dtype)
    table = WidenedTable(weight)
    found = table(torch.tensor([[3, 8, 0]]))
    assert found.dtype == table.like.dtype == torch.float32 and torch.equal(found, weight[[3, 8, 0]].float()[None])
    assert table.num_embeddings == 9


@HALF
@torch.inference_mode()
def test_attention_reads_a_prompt_and_the_next_token(native: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    plain = blocks.Attention(32, 4, num_key_value_heads=2).eval()
    packed, length = packed_copy(plain, Widening(dtype)), MIN_FLOAT_ROWS_NATIVE + 5
    x, ours, theirs = torch.randn(1, length + 1, 32), LayerCache(length + 1), LayerCache(length + 1)
    for first, count in ((0, length), (length, 1)):
        piece, positions = x[:, first : first + count], torch.arange(first, first + count)[None]
        runs = (
            blocks.Pass(causal=True, rotation=RotaryPositions(8)(positions, torch.zeros(1)), cache=cache)
            for cache in (ours, theirs)
        )
        found, expected = packed(piece, next(runs)), plain(piece, next(runs))
        assert (found - expected).abs().max() < 2 * torch.finfo(dtype).eps


def test_widening_is_chosen_where_float32_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for fastest in (torch.float32, torch.bfloat16):
        monkeypatch.setattr("pellucid.blocks.packing.product_dtype", lambda dtype, device, quicker=fastest: quicker)
        chosen = float_packing(torch.bfloat16, torch.device("cpu"))
        assert type(chosen) is (Widening if fastest == torch.float32 else Packing)


@needs_x86
def test_half_precision_on_an_older_processor() -> None:
    """Without AVX-512, oneDNN prepacks no matrix in half precision."""
    run_with_avx2("""
import torch
import pellucid
config = pellucid.Config.of("bert", vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                            intermediate_size=64)
module, ids = pellucid.build(config, seed=1).module, torch.arange(40)[None]
exact = module.packed_copy().states(ids)
assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
for dtype in (torch.bfloat16, torch.float16):
    for length in (40, 2):
        found = module.packed_copy(dtype).states(ids[:, :length])
        expected = module.packed_copy().states(ids[:, :length])
        assert torch.cosine_similarity(found.float(), expected, dim=-1).min() > 0.999
""")
