"""GGUF files for tests: valid ones by the `gguf` library's writer, hostile ones byte by byte."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

F32, F16, BF16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16
Q4_0, Q4_1, Q8_0 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
Q6_K = gguf.GGMLQuantizationType.Q6_K

LLAMA_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GPT2_PARTS = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
OUTER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
}


def permuted(rows: Tensor, heads: int) -> Tensor:
    """`LlamaModel.permute`, copied from llama.cpp's converter: reorders the rows of a query or key weight."""
    array = rows.numpy()
    swapped = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2)
    return torch.from_numpy(np.ascontiguousarray(swapped.reshape(array.shape)))


def llamacpp_name(name: str) -> str:
    """llama.cpp's name of a tensor of the reference."""
    stem, _, ending = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{ending}"
    layer, _, part = stem.removeprefix("model.layers.").removeprefix("transformer.h.").partition(".")
    return f"blk.{layer}.{(LLAMA_PARTS | GPT2_PARTS)[part]}.{ending}"


def write_gguf(
    path: Path,
    architecture: str,
    facts: dict[str, object],
    tensors: Mapping[str, Tensor | np.ndarray],
    kind: gguf.GGMLQuantizationType = F32,
    plain: str | None = None,
) -> Path:
    """Writes a file with the library; `kind` packs each matrix whose rows fit it, except those with `plain` in their
    name. NumPy arrays are already packed as Q6_K, which the library cannot quantise to."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in facts.items():
        add_fact(writer, key, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, np.ndarray):
            writer.add_tensor(name, tensor, raw_dtype=Q6_K)
            continue
        fits = tensor.dim() == 2 and tensor.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        packed = kind if fits and (plain is None or plain not in name) else F32
        array = gguf.quants.quantize(tensor.float().contiguous().numpy(), packed)
        writer.add_tensor(name, array, raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_llama(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Writes a Llama of 2 layers, 4 query and 2 key heads and width 24, from tensors with the reference's names."""
    heads = {"q_proj": 4, "k_proj": 2}
    named = {
        llamacpp_name(name): next((permuted(one, number) for part, number in heads.items() if part in name), one)
        for name, one in tensors.items()
    }
    facts = {
        "llama.context_length": 32,
        "llama.embedding_length": 24,
        "llama.block_count": 2,
        "llama.feed_forward_length": 40,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.vocab_size": 60,
    }
    return write_gguf(path, "llama", facts, named)


def add_fact(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """Writes one fact, in the type that llama.cpp's converter would choose."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


# -- by hand -----------------------------------------------------------------------------------------------------------


def string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def fact(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def text(key: str, value: str | bytes) -> bytes:
    return fact(key, 8, string(value))


def integer(key: str, value: int) -> bytes:
    return fact(key, 4, struct.pack("<I", value))


def array(key: str, kind: int, count: int, body: bytes = b"") -> bytes:
    return fact(key, 9, struct.pack("<IQ", kind, count) + body)


def entry(
    name: str | bytes, sizes: Iterable[int], kind: int = 0, offset: int = 0, dimensions: int | None = None
) -> bytes:
    sizes = list(sizes)
    count = len(sizes) if dimensions is None else dimensions
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, kind, offset)


def raw_file(
    facts: list[bytes],
    entries: list[bytes],
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    alignment: int = 32,
    tensors: int | None = None,
    keys: int | None = None,
) -> bytes:
    """A whole file, whose magic, version, alignment and counts can be wrong."""
    head = magic + struct.pack("<I", version)
    head += struct.pack("<QQ", len(entries) if tensors is None else tensors, len(facts) if keys is None else keys)
    head += b"".join(facts) + b"".join(entries)
    padding = b"\0" * (-len(head) % alignment) if entries and alignment else b""
    return head + padding + data
