"""Activation functions."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pellucid.errors import InputError


def gelu_new(x: Tensor) -> Tensor:
    """The tanh approximation of GELU, as GPT-2 computes it (Hendrycks and Gimpel, 2016, arXiv:1606.08415).

    PyTorch's own tanh approximation differs by about 1e-7; matching the reference needs this one.
    """
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_new,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
"""Activations by their names in configuration files."""


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """Returns the activation of this name. Raises InputError if there is none."""
    if name not in ACTIVATIONS:
        raise InputError(f"activation is {name!r}, expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
