"""Several linear layers of one input as one matrix product, while each keeps its name and parameters."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.blocks.hooks import is_hooked


def are_plain(*linears: nn.Module) -> bool:
    """Whether these layers are plain linear layers: none overrides `forward` or has hooks."""
    return all(type(one).forward is nn.Linear.forward and not is_hooked(one) for one in linears)


def join_in_memory(*linears: nn.Linear) -> None:
    """Moves the weights of these layers into one contiguous memory; each remains a parameter, now a view of it."""
    if not are_plain(*linears) or linears[0].weight.is_meta or len({linear.in_features for linear in linears}) > 1:
        return  # no memory yet, or inputs of different widths
    for name in ("weight", "bias"):
        parts = [getattr(linear, name) for linear in linears]
        if any(part is None for part in parts):
            continue
        joint = torch.cat([part.detach() for part in parts])
        for part, piece in zip(parts, joint.split([len(part) for part in parts])):
            part.data = piece


def joint_weight_and_bias(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Concatenated weight [all rows, in] and bias [all rows]; without a copy if they are adjacent in memory."""
    biases = biases_of(linears)
    return concatenated([linear.weight for linear in linears]), concatenated(biases) if biases else None


def biases_of(linears: Collection[Any]) -> list[Tensor]:
    """The bias of each layer, Float[Tensor, "out"]: 0 for one that has none; an empty list if none of them has one."""
    if all(linear.bias is None for linear in linears):
        return []
    return [linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias for linear in linears]


def concatenated(parts: Sequence[Tensor]) -> Tensor:
    """These weights or biases concatenated; without a copy if they are adjacent in memory."""
    if torch.is_grad_enabled() or not _are_contiguous(parts):
        return torch.cat(list(parts))  # gradients flow to each part
    rows = sum(len(part) for part in parts)
    return parts[0].as_strided((rows, *parts[0].shape[1:]), parts[0].stride())


def _are_contiguous(parts: Sequence[Tensor]) -> bool:
    first = parts[0]
    memory, offset = first.untyped_storage().data_ptr(), first.storage_offset()
    if memory == 0:
        return False
    for part in parts:
        if part.storage_offset() != offset or part.untyped_storage().data_ptr() != memory or not part.is_contiguous():
            return False
        offset += part.numel()
    return True
