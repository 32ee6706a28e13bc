"""Tiny random models of the reference, saved as checkpoints: what every family is compared with."""

from pathlib import Path
from typing import Any

import torch
import transformers

TINY = {
    "vocab_size": 99,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 33,
    "type_vocab_size": 2,
    "num_labels": 3,
}


def tiny(folder: Path, architecture: str, *, dtype: torch.dtype, attention: str = "sdpa", **changes: Any) -> Any:
    """A random model of the reference in `dtype`, and its checkpoint in `folder`."""
    torch.manual_seed(7)
    kind = getattr(transformers, architecture)
    config = kind.config_class(**(TINY | changes))
    config._attn_implementation = attention
    model = kind(config).eval()
    for parameter in model.parameters():  # away from the all-zero biases and all-one gains of a fresh model
        parameter.data += 0.1 * torch.randn_like(parameter)
    model = model.to(dtype)
    model.save_pretrained(folder)
    return model


def batch(rows: int = 3, length: int = 17, vocabulary: int = 99, padded: bool = True) -> dict[str, torch.Tensor]:
    """Ids, types and a mask with rows of unequal length."""
    chance = torch.Generator().manual_seed(3)
    ids = torch.randint(1, vocabulary, (rows, length), generator=chance)
    mask = torch.ones_like(ids)
    types = torch.zeros_like(ids)
    types[:, length // 2 :] = 1
    if padded:
        for row in range(1, rows):
            mask[row, length - 4 * row :] = 0
            ids[row, length - 4 * row :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
