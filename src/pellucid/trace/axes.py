"""Axes under TransformerLens's names: heads come after positions there, and before them here.

    here   [batch, heads, seq, head_dim]
    there  [batch, seq, heads, head_dim]

This holds for `hook_q`, `hook_k`, `hook_v`, `hook_rot_q`, `hook_rot_k`, `hook_z` and `hook_result`, in cross-attention
too. Under its names tensors are read and edited on its axes, under ours on ours. All other points have the same axes.
"""

from torch import Tensor

from pellucid.trace.points import AXES, Axes

_TRANSPOSED = {name for name, axes in AXES.items() if axes[1] in ("heads", "key_heads") and axes[-1] != "source"}


def is_transposed(name: str) -> bool:
    """Whether TransformerLens orders the axes of this point (given by its full name of ours) differently."""
    return ".".join(name.split(".")[-2:]) in _TRANSPOSED


def transposed(value: Tensor) -> Tensor:
    """The value with its axes in the other order: a view, not a copy."""
    return value.transpose(1, 2)


def transposed_axes(axes: Axes) -> Axes:
    """The names of the axes in the other order."""
    return (axes[0], axes[2], axes[1], *axes[3:])
