"""Ids or texts through the model once."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.models import Output


def forward(
    loaded: Loaded,
    inputs: Tensor | str | Sequence[str] | Sequence[Sequence[int]],
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
) -> Output:
    """One pass over ids, one text or several texts. See `Model.__call__`."""
    if isinstance(inputs, str) or (isinstance(inputs, Sequence) and any(isinstance(x, str) for x in inputs)):
        return loaded.module(**_read(loaded, inputs))
    ids = inputs if isinstance(inputs, Tensor) else _tensor(inputs)
    device = loaded.module.embeddings.token.weight.device
    if attention_mask is None:
        _warn_of_padding(ids, loaded.config.pad_token_id)
    given = (ids, attention_mask, token_type_ids)
    return loaded.module(*(None if tensor is None else tensor.to(device) for tensor in given))


def _read(loaded: Loaded, texts: str | Sequence[str]) -> dict[str, Tensor]:
    if loaded.tokenizer is None:
        raise InputError("this model came without a tokenizer: give it ids, or put tokenizer.json into its folder")
    batch = loaded.tokenizer(
        [texts] if isinstance(texts, str) else texts, padding=True, return_tensors="pt", parse_special_tokens=False
    )
    return dict(batch.to(loaded.module.embeddings.token.weight.device))


def _tensor(ids: Sequence[object]) -> Tensor:
    try:
        return torch.tensor(ids)
    except (ValueError, TypeError) as error:
        raise InputError("ids must be rows of whole numbers of one length: pad them, or give texts") from error


def _warn_of_padding(ids: Tensor, pad: int | None) -> None:
    if pad is not None and ids.dim() == 2 and ids.shape[1] and bool((ids[:, -1] == pad).any()):
        warnings.warn(
            f"input_ids end in {pad}, the id of padding, and no attention_mask says so: every position counts as real; "
            "pass the tokenizer's attention_mask",
            stacklevel=4,
        )
