"""The attention kernel for many positions matches the formula, for any sizes and any masked positions."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pellucid
from pellucid.blocks import availability, compiled
from pellucid.blocks.availability import usable_kernels
from pellucid.blocks.cache import Cache
from pellucid.blocks.kernel_calls import Kernels
from pellucid.errors import InputError
from pellucid.machine import processor_features
from tests.checkpoints.families import TINY, save
from tests.torch_state import forget_kernels, in_threads

pytest.importorskip("numba")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="the kernels work in OpenMP's threads as Linux has them"),
]

ENCODERS = [name for name in TINY if pellucid.Config.of(name).kind == "encoder"]

SIZES = [(1, 1, 1, 1, 1, 1), (2, 3, 3, 7, 7, 5), (3, 4, 2, 6, 33, 16), (2, 6, 1, 13, 16, 24), (1, 2, 2, 50, 129, 80)]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = usable_kernels()
    assert found is not None
    return found


def random_tensor(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reference_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, *, causal: bool = False
) -> Tensor:
    """Attention by its formula, in float64: [rows, seq, heads, width]."""
    copies = query.shape[1] // key.shape[1]
    query, key, value = query.double(), *(x.double().repeat_interleave(copies, dim=1) for x in (key, value))
    scores = query @ key.mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    if causal:
        seq, source = scores.shape[2:]
        later = torch.ones(seq, source, dtype=torch.bool).triu(source - seq + 1)
        scores = scores.masked_fill(later, -torch.inf)
    return (scores.softmax(-1).nan_to_num() @ value).transpose(1, 2)


def random_heads(
    rows: int, query_size: tuple[int, int], key_size: tuple[int, int], width: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value. query_size, key_size: heads and positions of the query, and of key and value."""
    key, value = (random_tensor(rows, *key_size, width, seed=seed).to(dtype) for seed in (5, 8))
    return (random_tensor(rows, *query_size, width) * 2).to(dtype), key, value


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    tolerance = 3e-6 if found.dtype == torch.float32 else 2**-8
    assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", ["nothing", "alike", "each by itself"])
@pytest.mark.parametrize(("rows", "heads", "key_heads", "seq", "source", "width"), SIZES)
def test_bidirectional_attention_matches_the_formula(
    kernels: Kernels, threads: int, dtype: torch.dtype, masked: str, rows: int, heads: int, key_heads: int, seq: int,
    source: int, width: int,
) -> None:  # fmt: skip
    query, key, value = random_heads(rows, (heads, seq), (key_heads, source), width, dtype)
    mask = None
    if masked != "nothing":
        count = 1 if masked == "alike" else rows
        mask = torch.rand(count, source, generator=torch.Generator().manual_seed(1)) < 0.6
        mask[:, source // 2] = True
    with in_threads(threads):
        found = kernels.attend_many(query, key, value, mask, 0.4)
    assert found.dtype == dtype
    assert_close(found, reference_attention(query, key, value, mask, 0.4))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", ["nothing", "the first", "some of each"])
@pytest.mark.parametrize(("rows", "heads", "key_heads", "seq", "source", "width"), SIZES)
def test_causal_attention_matches_the_formula(
    kernels: Kernels, threads: int, dtype: torch.dtype, masked: str, rows: int, heads: int, key_heads: int, seq: int,
    source: int, width: int,
) -> None:  # fmt: skip
    """The queries are all positions, and the last of more; one whose preceding keys are all masked gets zeros."""
    for query_length in {source, min(seq, source)}:
        query, key, value = random_heads(rows, (heads, query_length), (key_heads, source), width, dtype)
        mask = None
        if masked == "the first":
            mask = torch.arange(source)[None] >= source // 3
        elif masked == "some of each":
            mask = torch.rand(rows, source, generator=torch.Generator().manual_seed(1)) < 0.6
        with in_threads(threads):
            found = kernels.attend_many(query, key, value, mask, 0.4, causal=True)
        assert_close(found, reference_attention(query, key, value, mask, 0.4, causal=True))


def test_later_positions_are_not_read_under_a_causal_mask(kernels: Kernels) -> None:
    query, key, value = (random_tensor(1, 2, 40, 8, seed=seed) for seed in (1, 2, 3))
    expected = kernels.attend_many(query, key, value, None, 1.0, causal=True)
    key[:, :, 20:], value[:, :, 20:] = 1e18, 1e30
    assert torch.equal(kernels.attend_many(query, key, value, None, 1.0, causal=True)[:, :20], expected[:, :20])
    with pytest.raises(InputError, match=r"must agree"):
        kernels.attend_many(query, key[:, :, :30], value[:, :, :30], None, 1.0, causal=True)


def test_heads_of_any_memory_layout_match_the_formula(kernels: Kernels) -> None:
    """Views of one product, copies, and keys whose width is not the innermost stride."""
    together = random_tensor(2, 9, 3, 4, 8)
    query, key, value = together.permute(2, 0, 3, 1, 4)
    expected = reference_attention(query, key, value, None, 0.3)
    assert_close(kernels.attend_many(query, key, value, None, 0.3), expected)
    assert_close(kernels.attend_many(query.contiguous(), key, value.contiguous(), None, 0.3), expected)
    assert_close(kernels.attend_many(query, key.mT.contiguous().mT, value, None, 0.3), expected)


def test_masked_keys_and_values_are_not_read(kernels: Kernels) -> None:
    """Masked keys and values are not read, so they may be large or NaN."""
    query, key, value = (random_tensor(1, 2, 20, 8, seed=seed) for seed in (1, 2, 3))
    mask = torch.ones(1, 20, dtype=torch.bool)
    mask[:, 11:] = False
    expected = kernels.attend_many(query, key[:, :, :11], value[:, :, :11], None, 1.0)
    key[:, :, 11:], value[:, :, 15:] = 1e30, torch.nan
    assert torch.equal(kernels.attend_many(query, key, value, mask, 1.0), expected)


def test_fully_masked_row_gives_zeros(kernels: Kernels) -> None:
    query, key, value = (random_tensor(2, 1, 7, 8, seed=seed) for seed in (1, 2, 3))
    mask = torch.tensor([[False] * 7, [True] * 7])
    found = kernels.attend_many(query, key, value, mask, 1.0)
    assert (found[0] == 0).all()
    assert_close(found[1:], reference_attention(query[1:], key[1:], value[1:], None, 1.0))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_infinity_propagate(kernels: Kernels, broken: float, dtype: torch.dtype) -> None:
    query, key, value = (random_tensor(1, 1, 40, 8, seed=seed).to(dtype) for seed in (1, 2, 3))
    key[0, 0, 17, 3] = broken
    found = kernels.attend_many(query, key, value, None, 1.0)
    assert found.isnan().all()
    query[0, 0, 5, 2] = torch.nan
    key[0, 0, 17, 3] = 0
    found = kernels.attend_many(query, key, value, None, 1.0)
    assert found[0, 5].isnan().all()
    assert found[0, :5].isfinite().all() and found[0, 6:].isfinite().all()


def test_scores_far_apart_do_not_overflow(kernels: Kernels) -> None:
    """The kernel subtracts the maximum first, wherever it is: also after the last whole vector."""
    query, value = torch.ones(1, 1, 8, 4), random_tensor(1, 1, 37, 4)
    for position in (0, 15, 16, 31, 32, 36):
        key = torch.full((1, 1, 37, 4), -2e4)
        key[0, 0, position] = 2e4
        assert_close(
            kernels.attend_many(query, key, value, None, 1.0),
            value[:, :, [position]].expand(-1, -1, 8, -1).transpose(1, 2).double(),
        )
    all_low = torch.full((1, 1, 37, 4), -2e4)
    assert_close(
        kernels.attend_many(query, all_low, value, None, 1.0), reference_attention(query, all_low, value, None, 1.0)
    )


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((2, 4, 3, 8), (2, 4, 5, 6), (2, 4, 5, 6)),
        ((2, 4, 3, 8), (1, 4, 5, 8), (1, 4, 5, 8)),
        ((2, 4, 3, 8), (2, 3, 5, 8), (2, 3, 5, 8)),
        ((2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 6, 8)),
    ],
    ids=["width", "rows", "heads", "positions"],
)
def test_mismatched_shapes_are_refused(kernels: Kernels, query: tuple, key: tuple, value: tuple) -> None:
    with pytest.raises(InputError, match=r"query, key and value are float32\[2, 4, 3, 8\]"):
        kernels.attend_many(torch.ones(query), torch.ones(key), torch.ones(value), None, 1.0)


def test_mixed_dtypes_are_refused(kernels: Kernels) -> None:
    one = torch.ones(1, 1, 4, 8)
    with pytest.raises(InputError, match="kind"):
        kernels.attend_many(one, one.bfloat16(), one, None, 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32])
def test_unsupported_dtypes_are_refused(kernels: Kernels, dtype: torch.dtype) -> None:
    """They used to be read as float32, and the result written beyond the allocated memory."""
    one = torch.ones(1, 1, 4, 8).to(dtype)
    with pytest.raises(InputError, match=r"query, key and value are .* kind"):
        kernels.attend_many(one, one, one, None, 1.0)
    if dtype.is_floating_point:
        with pytest.raises(InputError, match=r"kinds must agree"):
            kernels.add_norm(one, one, nn.LayerNorm(8, dtype=dtype))


def test_integer_mask_is_refused(kernels: Kernels) -> None:
    one = torch.ones(2, 1, 5, 8)
    with pytest.raises(InputError, match=r"mask is int64\[2, 5\].*Bool of as many rows and positions"):
        kernels.attend_many(one, one, one, torch.ones(2, 5, dtype=torch.int64), 1.0)


@pytest.mark.parametrize("shape", [(1, 6), (3, 5), (1, 4)])
def test_mask_of_another_shape_is_refused(kernels: Kernels, shape: tuple[int, int]) -> None:
    one = torch.ones(2, 1, 5, 8)
    with pytest.raises(InputError, match=r"mask is bool\[.*as many rows and positions"):
        kernels.attend_many(one, one, one, torch.ones(shape, dtype=torch.bool), 1.0)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5, 24), (3, 7, 33), (2, 64, 384)])
def test_add_norm_matches_float64(kernels: Kernels, threads: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, y = (random_tensor(*shape, seed=1) * 3 + 2).to(dtype), random_tensor(*shape, seed=2).to(dtype)
    norm = nn.LayerNorm(shape[-1], eps=1e-5, dtype=dtype)
    norm.weight.data, norm.bias.data = (random_tensor(shape[-1], seed=seed).to(dtype) for seed in (3, 4))
    with in_threads(threads), torch.no_grad():
        found = kernels.add_norm(x, y, norm)
        gain, bias = norm.weight.double(), norm.bias.double()
        assert_close(found, F.layer_norm(x.double() + y.double(), shape[-1:], gain, bias, 1e-5))
    assert found.dtype == dtype


def test_add_norm_of_strided_inputs_and_of_nan(kernels: Kernels) -> None:
    x, y, norm = random_tensor(4, 3, 8), random_tensor(4, 3, 8, seed=5), nn.LayerNorm(8)
    with torch.no_grad():
        assert_close(kernels.add_norm(x[:, :1], y[:, 1:2], norm), norm.double()(x[:, :1].double() + y[:, 1:2]))
        y[2, 1, 3] = torch.nan
        found = kernels.add_norm(x, y, norm.float())
    assert found[2, 1].isnan().all() and int(found.isnan().sum()) == 8


@pytest.mark.parametrize(
    ("y", "norm"),
    [
        (torch.ones(2, 6), nn.LayerNorm(8)),
        (torch.ones(2, 8).bfloat16(), nn.LayerNorm(8)),
        (torch.ones(2, 8), nn.LayerNorm(6)),
    ],
    ids=["shape", "kind", "norm"],
)
def test_add_norm_refuses_mismatched_inputs(kernels: Kernels, y: Tensor, norm: nn.LayerNorm) -> None:
    with pytest.raises(InputError, match=r"float32\[2, 8\].*must agree"):
        kernels.add_norm(torch.ones(2, 8), y, norm)


@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(8), nn.LayerNorm(8, bias=False), nn.LayerNorm(8, elementwise_affine=False), nn.Identity()],
    ids=["layer norm", "no bias", "neither", "none"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_add_norm_of_other_dtypes_or_norms_uses_pytorch(kernels: Kernels, dtype: torch.dtype, norm: nn.Module) -> None:
    """As with a low-bit linear layer without bias, which gives bfloat16 where the residual stream is float32."""
    x, y = random_tensor(2, 8), random_tensor(2, 8, seed=4).to(dtype)
    with torch.no_grad():
        torch.testing.assert_close(compiled._add_norm(x, y, norm), norm(x + y))


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the queries that the attention kernel computes from now on."""
    shapes: list[tuple[int, ...]] = []
    attend_many = Kernels.attend_many

    def counting(self: Kernels, query: Tensor, *rest: object, **settings: object) -> Tensor:
        shapes.append(tuple(query.shape))
        return attend_many(self, query, *rest, **settings)

    monkeypatch.setattr(Kernels, "attend_many", counting)
    return shapes


def padded_ids(lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Padded rows of ids, and their attention mask."""
    ids = torch.randint(5, 30, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.where(mask, 1), mask.long()


fast = pytest.mark.skipif("avx512" not in processor_features(), reason="PyTorch's own attention is used here")


@fast
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("lengths", [[20] * 30, [20, 3, *[17] * 28]], ids=["alike", "padded"])
@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_matches_its_output_without_kernels(
    name: str,
    lengths: list[int],
    dtype: str,
    tmp_path: Path,
    kernel_calls: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if dtype == "bfloat16" and "amx" in processor_features():
        pytest.skip("PyTorch's own attention is used here")
    module = pellucid.load(save(name, tmp_path / "model"), dtype=dtype).module.packed_copy()
    ids, mask = padded_ids(lengths)
    with torch.inference_mode():
        found = module(ids, attention_mask=mask).last_hidden_state
        kernel_count = len(kernel_calls)
        monkeypatch.setattr(compiled, "usable_kernels", lambda: None)
        expected = module(ids, attention_mask=mask).last_hidden_state
    assert kernel_count == len(kernel_calls) >= 1 or name == "mpnet"  # whose scores have a bias
    is_text = mask.bool()
    tolerance = 2e-5 if dtype == "float32" else 0.1
    torch.testing.assert_close(found[is_text], expected[is_text], rtol=tolerance, atol=tolerance)


@fast
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen2"])
@pytest.mark.parametrize("batch_form", ["alike", "a prompt", "end to end"])
def test_decoder_matches_its_output_without_kernels(
    name: str,
    dtype: str,
    batch_form: str,
    tmp_path: Path,
    kernel_calls: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many short texts, one prompt with a cache, and two texts in one row, whose attention is computed separately."""
    if dtype == "bfloat16" and "amx" in processor_features():
        pytest.skip("PyTorch's own products are used here")
    facts = {"max_position_embeddings": 2000} | ({"sliding_window": None} if name == "mistral" else {})
    module = pellucid.load(save(name, tmp_path / "model", **facts), dtype=dtype).module.packed_copy()
    ids, _ = padded_ids({"a prompt": [100], "end to end": [1200]}.get(batch_form, [20] * 30))

    def logits() -> Tensor:
        with torch.inference_mode():
            cache = None if batch_form == "alike" else Cache(2, 1200)
            segments = torch.tensor([1] * 520 + [2] * 680)[None] if batch_form == "end to end" else None
            return module(ids, cache=cache, segments=segments).logits

    found = logits()
    kernel_count = len(kernel_calls)
    monkeypatch.setattr(compiled, "usable_kernels", lambda: None)
    expected = logits()
    assert kernel_count == len(kernel_calls) >= 2
    tolerance = 2e-5 if dtype == "float32" else 0.1
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@fast
def test_small_batches_use_pytorch(tmp_path: Path, kernel_calls: list[tuple[int, ...]]) -> None:
    """The choice depends on the batch alone, so that a text gets the same values whatever came before."""
    model = pellucid.load(save("bert", tmp_path / "model"))
    ids, mask = padded_ids([20] * 3)
    first = model.module.packed_copy()(ids, attention_mask=mask).last_hidden_state
    assert not kernel_calls
    many, full_mask = padded_ids([20] * 30)
    model.module.packed_copy()(many, attention_mask=full_mask)
    assert kernel_calls
    assert torch.equal(model.module.packed_copy()(ids, attention_mask=mask).last_hidden_state, first)


def test_concurrent_threads_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    constructed: list[Callable[[], None]] = []

    class Counted:
        def __init__(self) -> None:
            constructed.append(self.__init__)

    monkeypatch.setattr(availability, "Kernels", Counted)
    forget_kernels()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(lambda _: usable_kernels(), range(8)))) == 1
    finally:
        forget_kernels()
    assert len(constructed) == 1
