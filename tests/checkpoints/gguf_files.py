"""GGUF files for tests: honest ones by the `gguf` library's own writer, hostile ones byte by byte."""

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
    """What llama.cpp's `LlamaModel.permute` does to a query or key table, copied from its converter."""
    array = rows.numpy()
    swapped = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2)
    return torch.from_numpy(np.ascontiguousarray(swapped.reshape(array.shape)))


def llamacpp_name(name: str) -> str:
    """The reference's name of a tensor in llama.cpp's words."""
    stem, _, ending = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{ending}"
    layer, _, part = stem.removeprefix("model.layers.").removeprefix("transformer.h.").partition(".")
    return f"blk.{layer}.{(LLAMA_PARTS | GPT2_PARTS)[part]}.{ending}"


def write(
    path: Path,
    architecture: str,
    facts: dict[str, object],
    tensors: Mapping[str, Tensor | np.ndarray],
    kind: gguf.GGMLQuantizationType = F32,
    plain: str | None = None,
) -> Path:
    """A file by the library's writer; `kind` packs every matrix whose rows it fits, but those whose name holds `plain`.
    An array is packed as Q6_K already, which the library cannot do."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in facts.items():
        add(writer, key, value)
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
    """The file of a Llama of 2 layers, 4 heads over 2 and 24 numbers, whose tensors have the reference's names."""
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
    return write(path, "llama", facts, named)


def add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """One fact, in the type that llama.cpp's converter would choose."""
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


def whole(key: str, value: int) -> bytes:
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
    numbers: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    alignment: int = 32,
    tensors: int | None = None,
    keys: int | None = None,
) -> bytes:
    """A whole file; the counts can be made to lie."""
    head = magic + struct.pack("<I", version)
    head += struct.pack("<QQ", len(entries) if tensors is None else tensors, len(facts) if keys is None else keys)
    head += b"".join(facts) + b"".join(entries)
    filling = b"\0" * (-len(head) % alignment) if entries and alignment else b""
    return head + filling + numbers
