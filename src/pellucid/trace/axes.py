"""Axes under TransformerLens's names: heads come after positions there, and before them here.

    here   [batch, heads, seq, head_dim]
    there  [batch, seq, heads, head_dim]

This holds for `hook_q`, `hook_k`, `hook_v`, `hook_rot_q`, `hook_rot_k`, `hook_z` and `hook_result`, in cross-attention
too. Under its names tensors are read and edited on its axes, under ours on ours. All other points have the same axes.
"""

from torch import Tensor

from pellucid.trace.points import AXES, Axes

_TRANSPOSED = {name for name, axes in AXES.items() if axes[1] in ("heads", "key_heads") and axes[-1] != "source"}


def is_transposed(name: str, requested: str) -> bool:
    """Whether the axes of a point (by our full name) have the other order under the name by which it was requested."""
    return name != requested and ".".join(name.split(".")[-2:]) in _TRANSPOSED


def requested_value(value: Tensor, name: str, requested: str) -> Tensor:
    """A point's value on the axes of the requested name, or the value on those axes back on ours: a view, not a copy;
    the value itself where the axes are the same."""
    return value.transpose(1, 2) if is_transposed(name, requested) else value


def requested_axes(axes: Axes, name: str, requested: str) -> Axes:
    """The names of a point's axes in the order of the requested name."""
    return (axes[0], axes[2], axes[1], *axes[3:]) if is_transposed(name, requested) else axes
