"""Tensor names of llama.cpp and of the reference, and the layouts that llama.cpp changed.

This mirrors llama.cpp's converter (`convert_hf_to_gguf.py`): whatever it does to a tensor on writing is undone here on
reading.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.attn_q": "model.layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "model.layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "model.layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_output": "model.layers.{i}.self_attn.o_proj",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.ffn_gate": "model.layers.{i}.mlp.gate_proj",
    "blk.{i}.ffn_up": "model.layers.{i}.mlp.up_proj",
    "blk.{i}.ffn_down": "model.layers.{i}.mlp.down_proj",
}
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{i}.attn_norm": "transformer.h.{i}.ln_1",
    "blk.{i}.attn_qkv": "transformer.h.{i}.attn.c_attn",
    "blk.{i}.attn_output": "transformer.h.{i}.attn.c_proj",
    "blk.{i}.ffn_norm": "transformer.h.{i}.ln_2",
    "blk.{i}.ffn_up": "transformer.h.{i}.mlp.c_fc",
    "blk.{i}.ffn_down": "transformer.h.{i}.mlp.c_proj",
}


@dataclass(frozen=True)
class Naming:
    """Names and layouts of one architecture's tensors.

    names: llama.cpp's names to the reference's, without ".weight" and ".bias".
    transposed: the matrices that the reference stores as [in, out].
    interleaved: matrices whose rows llama.cpp reordered within each head, with the key of the number of heads.
    computed: tensors that are not parameters: the reference computes them from its facts.
    """

    names: Mapping[str, str]
    transposed: tuple[str, ...] = ()
    interleaved: Mapping[str, str] = field(default_factory=dict)
    computed: tuple[str, ...] = ()


NAMINGS = {
    "llama": Naming(
        _LLAMA,
        interleaved={"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"},
        computed=("rope_freqs.weight",),
    ),
    "qwen2": Naming(_LLAMA, computed=("rope_freqs.weight",)),
    "gpt2": Naming(_GPT2, transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down")),
}


def reference_name(naming: Naming, name: str) -> str | None:
    """The reference's name of a tensor, or None where it has none."""
    stem, _, ending = name.rpartition(".")
    match = re.fullmatch(r"blk\.(0|[1-9]\d{0,5})\.(\w+)", stem)
    pattern = f"blk.{{i}}.{match[2]}" if match else stem
    if ending not in ("weight", "bias") or pattern not in naming.names:
        return None
    return naming.names[pattern].replace("{i}", match[1] if match else "") + f".{ending}"


def part_of(name: str) -> str:
    """The tensor's name within its layer: `attn_q` of `blk.3.attn_q.weight`; "" outside of layers."""
    return name.split(".")[-2] if name.startswith("blk.") else ""


def uninterleave(rows: Tensor, heads: int) -> Tensor:
    """The rows of a query or key matrix in the reference's order.

    llama.cpp rotates neighbouring components (0 and 1, 2 and 3 ...) where the reference rotates a head's first half
    against its second, so its converter interleaved the two halves of every head.
    """
    table = rows.reshape(len(rows), -1).view(torch.uint8).numpy()  # NumPy copies on one thread, and has no bfloat16
    sorted_ = np.ascontiguousarray(table.reshape(heads, -1, 2, table.shape[1]).swapaxes(1, 2))
    return torch.from_numpy(sorted_).view(rows.dtype).view(rows.shape)
