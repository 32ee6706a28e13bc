"""Attention rollout: from which tokens information may have reached each position, through all layers."""

import torch
from torch import Tensor

from pellucid.config.checks import check_range, plain_number
from pellucid.errors import InputError
from pellucid.machine import no_grad
from pellucid.trace import Trace
from pellucid.trace.explain.inputs import side_of
from pellucid.trace.points import layers_by_side
from pellucid.trace.trace import single_row


@no_grad()
def attention_rollout(trace: Trace, *, side: str | None = None, residual: float = 0.5) -> Tensor:
    """Attention multiplied through the layers (Abnar and Zuidema, 2020, arXiv:2005.00928, section 3).

    trace: of one text; it holds `attention.weights` of every layer.
    side: "encoder" (the default) or "decoder" of an encoder-decoder; cross-attention is left out.
    residual: the share of the residual stream that bypasses attention; the rest is the mean of the heads. The paper's
        half is a convention, not a measurement.
    ->  Float[Tensor, "layers queries keys"]: row q of layer i gives the share of each token in position q after layer
        i; each row sums to 1, and the last layer is the result.

    What it does not show: what was carried. It ignores values, feed-forward blocks, signs and individual heads; a token
    that is attended to but has no effect counts in full.
    Raises InputError where the trace lacks a layer, or rows because of a cache.
    """
    residual = plain_number(residual)
    check_range("residual", residual, minimum=0, maximum=1)
    single_row(trace)
    found = torch.stack([layer.mean(dim=1)[0] for layer in weights_of(trace, side_of(trace, side, "encoder"))])
    own = torch.eye(found.shape[-1], dtype=found.dtype, device=found.device)
    mixed = (1 - residual) * found + residual * own
    rolled = [mixed[0]]
    for layer in mixed[1:]:
        rolled.append(layer @ rolled[-1])
    return torch.stack(rolled)


def weights_of(trace: Trace, side: str) -> list[Tensor]:
    """The attention weights of every layer of a stack, first to last: Float[Tensor, "batch heads queries keys"]"""
    recorded = [trace[f"{side}layers.{i}.attention.weights"] for i in range(layers_by_side(trace.config)[side])]
    if recorded[0].shape[-2] != recorded[0].shape[-1]:
        raise InputError("this trace continues after cached tokens, whose rows it lacks: trace the whole text at once")
    wide = torch.promote_types(recorded[0].dtype, torch.float32)
    return [weights.to(wide) for weights in recorded]
