"""Whether numbers that a pass gives are numbers: a kind of few bits may be too small for what arises on the way."""

import torch
from torch import Tensor, nn

from pellucid.errors import Argument, InputError, MessagePart


def check_finite(numbers: Tensor, module: nn.Module) -> Tensor:
    """These numbers of a pass, Float[Tensor, "... width"], none of whose rows holds NaN or is infinite at its top.

    -inf is left, by which an edit may forbid a token.
    Raises InputError for others: the greatest of them would be an answer like any other.
    """
    if not numbers.numel() or bool((numbers.amax(dim=-1) < torch.inf).all()):
        return numbers
    kind = next(module.parameters()).dtype
    advice: MessagePart = "; its weights, or an edit, hold numbers that are too large for this text"
    if torch.finfo(kind).max < torch.finfo(torch.float32).max:
        advice = ("; load it with ", Argument("dtype", "float32"))
    raise InputError(f"numbers of this pass became infinite or NaN in {str(kind).removeprefix('torch.')}", advice)
