"""Checks of arguments that PyTorch would silently misinterpret."""

import torch
from torch import Tensor

from pellucid.errors import InputError, shorten
from pellucid.integers import as_integer


def require_whole_number(name: str, value: object) -> int:
    """A whole number from 0 on, also one of NumPy, as an int. Raises InputError for anything else."""
    number = as_integer(value)
    if number is None or number < 0:
        raise InputError(f"{name} is {shorten(repr(value))}, expected a whole number from 0 on")
    return number


def kind_of(tensor: Tensor) -> str:
    """Dtype and shape, as in `float32[1, 6, 16]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def check_stream(name: str, x: Tensor) -> None:
    """Refuses a text without a batch dimension: the kernel would mix its columns instead of its positions."""
    if x.dim() != 3:
        raise InputError(
            f"{name} is {kind_of(x)}, expected [batch, seq, hidden]: {name}[None] makes a batch of one text"
        )


def check_mask(mask: Tensor) -> None:
    """Refuses a mask that is not boolean, which the kernel adds to the scores, or whose axes it would misinterpret."""
    if mask.dtype != torch.bool or mask.dim() != 4:
        raise InputError(
            f"mask is {kind_of(mask)}, expected bool[batch or 1, 1, seq or 1, source], true where attention is "
            "allowed: causal_mask and padding_mask of pellucid.blocks make such masks"
        )


def check_heads(hidden_size: int, num_heads: int, num_key_value_heads: int, head_dim: int | None) -> None:
    """Refuses a hidden size that the heads do not divide, or heads that the key-value heads do not."""
    for name, number in (("num_heads", num_heads), ("num_key_value_heads", num_key_value_heads)):
        if number < 1:
            raise InputError(f"{name} is {number}, expected a whole number from 1 on")
    if head_dim is None and hidden_size % num_heads:
        raise InputError(
            f"hidden_size {hidden_size} cannot be divided evenly among num_heads {num_heads}: it must be a multiple "
            "of it"
        )
    if num_heads % num_key_value_heads:
        raise InputError(
            f"num_heads {num_heads} cannot share num_key_value_heads {num_key_value_heads}: it must be a multiple"
        )
