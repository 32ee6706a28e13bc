"""The axes that a point has under TransformerLens's name for it: heads stand behind positions there, and here before.

    here   [batch, heads, seq, head_dim]
    there  [batch, seq, heads, head_dim]

So `hook_q`, `hook_k`, `hook_v`, `hook_rot_q`, `hook_rot_k`, `hook_z` and `hook_result`, in attention across too. Under
its names every number is read and set as it stands there; under ours as here. All other points have the same axes.
"""

from torch import Tensor

from pellucid.trace.points import AXES, Axes

_TRANSPOSED = {name for name, axes in AXES.items() if axes[1] in ("heads", "key_heads") and axes[-1] != "source"}


def is_transposed(name: str) -> bool:
    """Whether TransformerLens has the axes of one of our points, by its whole name, in another order."""
    return ".".join(name.split(".")[-2:]) in _TRANSPOSED


def transposed(value: Tensor) -> Tensor:
    """From the one order of axes to the other: a view, no copy."""
    return value.transpose(1, 2)


def transposed_axes(axes: Axes) -> Axes:
    """The same of their names."""
    return (axes[0], axes[2], axes[1], *axes[3:])
