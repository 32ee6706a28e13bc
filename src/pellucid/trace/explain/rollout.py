"""From which token the numbers at a position may have come, through all layers."""

import torch
from torch import Tensor

from pellucid.config.checks import check_range, plain_number
from pellucid.errors import InputError
from pellucid.machine import no_grad
from pellucid.trace import Trace
from pellucid.trace.explain.inputs import side_of
from pellucid.trace.points import layers_by_side


@no_grad()
def attention_rollout(trace: Trace, *, side: str | None = None, residual: float = 0.5) -> Tensor:
    """Attention multiplied through the layers (Abnar and Zuidema, 2020, arXiv:2005.00928, section 3).

    trace: of one text; it holds `attention.weights` of every layer.
    side: "encoder" (the default) or "decoder" of an encoder-decoder; what its decoder sees across is left out.
    residual: what of a position passes by attention in the stream; the rest is the mean of the heads. The paper's half
        is a convention, no measurement.
    ->  Float[Tensor, "layers queries keys"]: row q of layer i says from which tokens position q behind layer i has its
        numbers; each row sums to 1, and the last layer is the answer.

    What it does not show: what was carried. It knows no values, no feed-forward, no sign and no head by itself; a token
    that is looked at and ignored counts in full.
    Raises InputError where the trace lacks a layer, or rows because of a cache.
    """
    residual = plain_number(residual)
    check_range("residual", residual, minimum=0, maximum=1)
    if not trace.tokens:  # of several texts this asks for one
        raise InputError("this trace has no tokens: there is nothing to explain")
    found = torch.stack([layer.mean(dim=1)[0] for layer in weights_of(trace, side_of(trace, side, "encoder"))])
    own = torch.eye(found.shape[-1], dtype=found.dtype, device=found.device)
    mixed = (1 - residual) * found + residual * own
    rolled = [mixed[0]]
    for layer in mixed[1:]:
        rolled.append(layer @ rolled[-1])
    return torch.stack(rolled)


def weights_of(trace: Trace, side: str) -> list[Tensor]:
    """The attention weights of every layer of a stack, from first to last: Float[Tensor, "batch heads queries keys"]"""
    recorded = [trace[f"{side}layers.{i}.attention.weights"] for i in range(layers_by_side(trace.config)[side])]
    if recorded[0].shape[-2] != recorded[0].shape[-1]:
        raise InputError("this trace continues after cached tokens, whose rows it lacks: trace the whole text at once")
    wide = torch.promote_types(recorded[0].dtype, torch.float32)
    return [weights.to(wide) for weights in recorded]
