"""Matrices in 8 and 4 bits: products use the values that the codes represent, and codes in files are restored."""

import copy
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid import compat
from pellucid.blocks import quantized, rounding
from pellucid.blocks.quantized import GROUP, Int4Linear, Int8Linear, Int8Table, LowBitModule
from pellucid.errors import InputError
from pellucid.generation import read_settings, write
from pellucid.machine import has_int8_products
from pellucid.models import count
from tests.matrix_products import needs_x86, run_with_avx2
from tests.parity.reference import tiny


def random_tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def values_of_codes(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """The real values of 4-bit codes."""
    return ((codes.unflatten(1, (-1, GROUP)) - 8) * scale[..., None] + zero[..., None]).flatten(1)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def fastest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Either of the two dtypes as this machine's fastest one."""
    monkeypatch.setattr(quantized, "fastest_dtype", lambda device: request.param)
    return request.param


@pytest.mark.usefixtures("fastest")
@pytest.mark.parametrize("rows", [16, 96, 128, 144, 400])
@pytest.mark.parametrize("texts", [1, 3, 17, 100])
def test_4_bit_product_matches_the_dequantised_matrix(rows: int, texts: int) -> None:
    weight, x, bias = random_tensor(rows, 96), random_tensor(texts, 2, 96), random_tensor(rows)
    packed = Int4Linear(*rounding.to_4_bits(rows, 96, rounding.in_blocks([weight[:50], weight[50:]])), bias)
    expected = x @ values_of_codes(*rounding.codes_of_4_bits(weight)).T + bias
    assert packed(x).shape == expected.shape
    assert (packed(x) - expected).abs().max() < 0.02 * expected.abs().max()
    assert (
        values_of_codes(*rounding.codes_of_4_bits(weight)) - weight
    ).abs().max() < 0.25  # half a step of the widest group


@pytest.mark.usefixtures("fastest")
@pytest.mark.parametrize("integers", [False, True], ids=["as real numbers", "as whole numbers"])
@pytest.mark.parametrize("rows", [16, 96, 400])
@pytest.mark.parametrize("texts", [5, 40])
def test_8_bit_product_matches_the_dequantised_matrix(
    rows: int, texts: int, integers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if integers and not has_int8_products(torch.device("cpu")):
        pytest.skip("this processor does not multiply whole numbers of 8 bits")
    monkeypatch.setattr(quantized, "MIN_INT8_PRODUCTS", 1)
    monkeypatch.setattr(quantized, "has_int8_products", lambda device: integers)
    weight, x, bias = random_tensor(rows, 64), random_tensor(texts, 64), random_tensor(rows)
    weight[1] = 0
    codes, scale = rounding.to_8_bits(rows, 64, rounding.in_blocks([weight]))
    real = codes * scale.float()[:, None]
    assert (real - weight).abs().max() < 0.02
    expected = x @ real.T + bias
    assert Int8Linear(codes, scale)(x).dtype in (torch.bfloat16, torch.float32)
    assert (Int8Linear(codes, scale, bias)(x) - expected).abs().max() < 0.02 * expected.abs().max()
    ids = torch.tensor([[3, 1], [0, 3]])
    assert torch.equal(Int8Table(codes, scale)(ids), real[ids])


@pytest.mark.parametrize("rows", [3, 200])
def test_strided_rows_are_multiplied(rows: int) -> None:
    """As the result of an edit's function may be, such as that of an `einsum`."""
    weight, x = random_tensor(64, 96), random_tensor(96, rows).T
    for packed in (
        Int8Linear(*rounding.to_8_bits(64, 96, rounding.in_blocks([weight]))),
        Int4Linear(*rounding.to_4_bits(64, 96, rounding.in_blocks([weight]))),
    ):
        for inputs in (x, x.to(torch.bfloat16)):
            assert torch.equal(packed(inputs), packed(inputs.contiguous()))


@pytest.fixture
def int8_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Int8 products on processors that have them: on others, oneDNN's sums overflow."""
    if not has_int8_products(torch.device("cpu")):
        pytest.skip("this processor does not multiply whole numbers of 8 bits")
    monkeypatch.setattr(quantized, "MIN_INT8_PRODUCTS", 1)
    monkeypatch.setattr(quantized, "has_int8_products", lambda device: True)
    monkeypatch.setattr(quantized, "fastest_dtype", lambda device: torch.float32)


@pytest.mark.usefixtures("int8_products")
@pytest.mark.parametrize("width", [32, 1536])
def test_integer_inputs_are_more_precise_than_bfloat16(width: int) -> None:
    codes, scale = rounding.to_8_bits(96, width, rounding.in_blocks([random_tensor(96, width)]))
    x = random_tensor(40, width)
    x[:, 3] *= 100  # an outlier in each row, as in real models
    expected = x.double() @ (codes * scale.double()[:, None]).T
    found = Int8Linear(codes, scale)(x)
    assert found.dtype == torch.float32
    coarse = x.to(torch.bfloat16).double() @ (codes * scale.double()[:, None]).T
    error, bfloat16_error = ((one - expected).norm() / expected.norm() for one in (found, coarse))
    assert error < (1e-4 if width == 32 else 5e-4) and bfloat16_error > 2 * error


@pytest.mark.usefixtures("int8_products")
def test_rows_of_an_integer_product_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = Int8Linear(*rounding.to_8_bits(96, 64, rounding.in_blocks([random_tensor(96, 64)])))
    x = random_tensor(40, 64)
    x[1], x[2, 5], x[3, 5], x[4] = 0, torch.inf, torch.nan, x[4] * 1e30
    together = linear(x)
    monkeypatch.setattr(quantized, "MAX_RESULTS", 7 * 96)
    assert torch.equal(linear(x).nan_to_num(), together.nan_to_num())
    for row, found in zip(x, together):
        assert torch.equal(linear(row[None])[0].nan_to_num(), found.nan_to_num())
    assert (together[1] == 0).all() and not together[2:4].isfinite().any()
    assert together[[0, *range(4, 40)]].isfinite().all()


def test_integer_products_are_used_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products, and processors that multiply floats faster, do not use integers."""
    linear = Int8Linear(*rounding.to_8_bits(96, 64, rounding.in_blocks([random_tensor(96, 64)])))
    calls: list[int] = []
    monkeypatch.setattr(quantized, "_int8_product", lambda x, *_: calls.append(len(x)) or x.new_zeros(len(x), 96))
    for enough, able, fastest in itertools.product((1, 10**9), (True, False), (torch.float32, torch.bfloat16)):
        monkeypatch.setattr(quantized, "MIN_INT8_PRODUCTS", enough)
        monkeypatch.setattr(quantized, "has_int8_products", lambda device, able=able: able)
        monkeypatch.setattr(quantized, "fastest_dtype", lambda device, fastest=fastest: fastest)
        calls.clear()
        for rows in (8, 64):
            linear(random_tensor(rows, 64))
        expected = [8, 64] if fastest == torch.float32 else [8]
        assert calls == (expected if enough == 1 and able else [])


@needs_x86
def test_8_bit_products_on_an_older_processor() -> None:
    """oneDNN's integer sums overflow when it is restricted to AVX2, which PyTorch's query for VNNI does not reveal."""
    run_with_avx2("""
import torch
from pellucid.blocks import quantized, rounding
codes, scale = rounding.to_8_bits(4096, 576, [torch.rand(4096, 576)])
x = torch.rand(4, 576)
assert x.numel() * len(codes) >= quantized.MIN_INT8_PRODUCTS
expected = x @ (codes * scale.float()[:, None]).T
assert (quantized.Int8Linear(codes, scale)(x) - expected).abs().max() < 0.02 * expected.max()
""")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_4_bit_matrix_is_dequantised_to_the_values_of_its_codes(dtype: torch.dtype) -> None:
    weight = random_tensor(128, 96)
    packed = Int4Linear(*rounding.to_4_bits(128, 96, rounding.in_blocks([weight])), None)
    if not quantized._packed_width():
        assert torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512")
        pytest.skip("PyTorch packs rows otherwise on this processor")
    expected = values_of_codes(*rounding.codes_of_4_bits(weight)).to(dtype)
    found = quantized._dequantised(packed.codes, packed.scale_and_zero, dtype).T
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)  # a wrong code would be off by ten times as much


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_4_bit_values_of_a_file_get_their_codes_back(kind: str) -> None:
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 16, (64, 96), generator=generator).unflatten(1, (-1, GROUP))
    codes[..., 0], codes[..., 1] = 0, 15 if kind == "Q4_1" else 14  # each group has its extreme values
    step = torch.rand((64, 3, 1), generator=generator).half().float() + 0.01
    minimum = -8 * step if kind == "Q4_0" else -torch.rand((64, 3, 1), generator=generator).half().float()
    stored = (codes * step + minimum).flatten(1)
    found, scale, zero = rounding.codes_of_4_bits(stored)
    assert torch.equal(found.unflatten(1, (-1, GROUP)), codes)
    torch.testing.assert_close(values_of_codes(found, scale, zero), stored, rtol=0, atol=1e-5)


def test_regrouped_blocks_contain_the_same_rows() -> None:
    weight = random_tensor(700, 32)
    pieces = list(rounding.in_blocks(iter(weight.split([1, 300, 5, 394]))))
    assert torch.equal(torch.cat(pieces), weight)
    assert {len(piece) for piece in pieces[:-1]} == {rounding.BLOCK}


FAMILIES = {
    "LlamaForCausalLM": {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16},
    "GPT2LMHeadModel": {"n_embd": 64},
    "BartForConditionalGeneration": {"d_model": 96, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    "T5ForConditionalGeneration": {"d_model": 64, "d_kv": 16, "d_ff": 96},
    "MistralForCausalLM": {},  # no shape fits: its layers stay as they are
    "LlamaForCausalLM inside": {
        "hidden_size": 64,
        "intermediate_size": 48,
        "head_dim": 16,
    },  # this size alone does not fit
    "GPT2LMHeadModel inside": {"n_embd": 64, "n_inner": 48},
    "T5ForConditionalGeneration inside": {"d_model": 64, "d_kv": 16, "d_ff": 48},
}


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_low_bit_model_nearly_matches_the_float_model(architecture: str, bits: int, tmp_path: Path) -> None:
    sizes = {"vocab_size": 112} | FAMILIES[architecture]
    tiny(tmp_path, architecture.split()[0], dtype=torch.float32, **sizes)
    full, low_bit = pellucid.load(tmp_path), pellucid.load(tmp_path, dtype=f"int{bits}")
    ids = torch.tensor([[5, 17, 80, 3, 44, 9]])
    expected, found = full(ids).logits, low_bit(ids).logits
    error = (expected - found).norm() / expected.norm()
    assert error < (1e-5 if not FAMILIES[architecture] else 0.08 if bits == 8 else 0.6)
    assert count(low_bit.module) == count(full.module)
    assert f"int{bits}" in repr(low_bit)
    again = pickle.loads(pickle.dumps(low_bit))
    assert torch.equal(again(ids).logits, found)
    steps = [step.tokens[0] for step in write(low_bit.loaded, ids.tolist(), read_settings({"max_new_tokens": 5}))]
    assert steps


def has_row_per_token(part: torch.nn.Module, config: pellucid.Config) -> bool:
    """Whether it has one row per token."""
    return config.vocab_size in (getattr(part, "num_embeddings", None), getattr(part, "out_features", None))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", ["gpt2", "bert-filler", "t5-tied", "bart"])
def test_tied_tables_stay_one(name: str, bits: int, checkpoint: Callable[[str], Path]) -> None:
    """Also if the number of rows does not fit, as with GPT-2's 50,257: these weights used to be in memory twice."""
    full, low_bit = pellucid.load(checkpoint(name)), pellucid.load(checkpoint(name), dtype=f"int{bits}")
    assert count(low_bit.module) == count(full.module)
    for one in (low_bit, pickle.loads(pickle.dumps(low_bit)), copy.deepcopy(low_bit)):
        tables = [
            part.codes if isinstance(part, LowBitModule) else part.weight
            for part in one.module.modules()
            if has_row_per_token(part, full.config)
        ]
        assert len({table.data_ptr() for table in tables}) == 1 < len(tables)
    theirs = [compat.AutoModel.from_pretrained(checkpoint(name), dtype=dtype) for dtype in ("float32", f"int{bits}")]
    for options in ({}, {"exclude_embeddings": True}):
        assert len({model.num_parameters(**options) for model in theirs}) == 1


def test_moving_a_low_bit_model_is_refused(checkpoint: Callable[[str], Path]) -> None:
    """Low-bit weights cannot be converted, so only the float weights beside them would follow."""
    model = compat.AutoModelForCausalLM.from_pretrained(checkpoint("gpt2"), dtype="int8")
    before = {name: table.clone() for name, table in model.named_parameters()}
    for move in (model.half, model.bfloat16, lambda: model.to(torch.float64), lambda: model.to("meta")):
        with pytest.raises(InputError, match="moving needs float weights, and this model has 8-bit ones"):
            move()
    assert model.to("cpu").float() is model
    assert all(torch.equal(table, before[name]) for name, table in model.named_parameters())


def test_saving_training_and_converting_a_low_bit_model_is_refused(tmp_path: Path) -> None:
    tiny(tmp_path / "a", "LlamaForCausalLM", dtype=torch.float32, **FAMILIES["LlamaForCausalLM"])
    low_bit = pellucid.load(tmp_path / "a", dtype="int4")
    for call in (lambda: low_bit.save(tmp_path / "b"), lambda: low_bit.train(), lambda: low_bit.to(dtype="float64")):
        with pytest.raises(InputError, match="4-bit ones: load it as float32"):
            call()
    assert not (tmp_path / "b").exists()
    with pytest.raises(InputError, match="int8"):
        pellucid.load(tmp_path / "a", dtype="int5")
    with pytest.raises(InputError, match="random weights"):
        pellucid.load(tmp_path / "a", dtype="int4", head="sequence-classification")


@pytest.mark.parametrize("bits", [8, 4])
def test_another_dtype_for_a_low_bit_model_is_refused(
    bits: int, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Such a model computes in its own format; a request for another dtype is refused."""
    body, classifier, generator = (
        pellucid.load(checkpoint(name), dtype=f"int{bits}") for name in ("bert-body", "bert-feelings", "gpt2")
    )
    assert body.embed("a book").isfinite().all()
    calls: list[Callable[[], object]] = [
        lambda: body.embed("a book", dtype="float16"),
        lambda: body.embed("a book", dtype="auto"),
        lambda: pellucid.pipeline("text-classification", model=classifier, dtype="bfloat16"),
        lambda: pellucid.pipeline("text-generation", model=generator, dtype="bfloat16"),
        lambda: pellucid.Index.build(body, ["a book"], tmp_path / "index", dtype="bfloat16"),
    ]
    for call in calls:
        with pytest.raises(InputError, match=f"a model of {bits} bits computes in its own dtype: leave dtype out"):
            call()
    assert not (tmp_path / "index").exists()
