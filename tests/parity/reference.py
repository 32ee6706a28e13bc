"""Tiny random models of the reference, saved as checkpoints, with which every family is compared."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers

_ENCODER = {
    "vocab_size": 99,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 33,
}
_DECODER = _ENCODER | {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

TINY: dict[str, dict[str, Any]] = {
    "bert": _ENCODER | {"type_vocab_size": 2},
    "distilbert": {
        "vocab_size": 99,
        "dim": 24,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 40,
        "max_position_embeddings": 33,
    },
    "roberta": _ENCODER | {"type_vocab_size": 2, "layer_norm_eps": 1e-5},
    "xlm-roberta": _ENCODER | {"type_vocab_size": 1},
    "camembert": _ENCODER | {"type_vocab_size": 1},
    "albert": _ENCODER | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2},
    "electra": _ENCODER | {"embedding_size": 16},
    "mpnet": _ENCODER,
    "gpt2": {"vocab_size": 99, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 33, "pad_token_id": 0},
    "llama": _DECODER | {"head_dim": 10},
    "mistral": _DECODER | {"head_dim": 8, "sliding_window": 5},
    "qwen2": _DECODER,
    "bart": {"vocab_size": 99, "d_model": 24, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4}
    | {"decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 28, "max_position_embeddings": 33},
    "t5": {
        "vocab_size": 99,
        "d_model": 24,
        "d_kv": 5,
        "d_ff": 40,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 4,
    }
    | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0},
}
"""Odd sizes for every family, by its model_type."""


def tiny(folder: Path, architecture: str, *, dtype: torch.dtype, attention: str = "sdpa", **changes: Any) -> Any:
    """A random model of the reference in `dtype`, also saved in `folder`."""
    torch.manual_seed(7)
    kind = getattr(transformers, architecture)
    config = kind.config_class(**(TINY[kind.config_class.model_type] | {"num_labels": 3} | changes))
    config._attn_implementation = attention
    model = kind(config).eval()
    for parameter in model.parameters():  # away from the zero biases and unit gains of a fresh model
        parameter.data += 0.1 * torch.randn_like(parameter)
    model = model.to(dtype)
    model.save_pretrained(folder)
    return model


def batch(
    rows: int = 3, length: int = 17, vocabulary: int = 99, padded: bool = True, pad: int = 0, types: bool = True
) -> dict[str, torch.Tensor]:
    """Ids, types and a mask, with rows of unequal length."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, vocabulary, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        for row in range(1, rows):
            mask[row, length - 4 * row :] = 0
            ids[row, length - 4 * row :] = pad
    segments = torch.zeros_like(ids)
    segments[:, length // 2 :] = 1
    return {"input_ids": ids, "attention_mask": mask} | ({"token_type_ids": segments} if types else {})


@contextlib.contextmanager
def in_full() -> Iterator[None]:
    """Makes the reference compute in float64 throughout; it uses float32 in norms, softmax and rotary positions."""
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield
