"""Checks that the results of a pass are finite: a narrow dtype may overflow on the way."""

import torch
from torch import Tensor, nn

from pellucid.errors import Argument, InputError, MessagePart


def check_finite(numbers: Tensor, module: nn.Module) -> Tensor:
    """Returns `numbers`, Float[Tensor, "... width"]. Raises InputError if a row's maximum is NaN or inf: as an
    argmax it would pass for a normal answer.

    -inf is allowed: an edit may forbid a token by it.
    """
    if not numbers.numel() or bool((numbers.amax(dim=-1) < torch.inf).all()):
        return numbers
    kind = next(module.parameters()).dtype
    advice: MessagePart = "; its weights, or an edit, hold numbers that are too large for this text"
    if torch.finfo(kind).max < torch.finfo(torch.float32).max:
        advice = ("; load it with ", Argument("dtype", "float32"))
    raise InputError(f"numbers of this pass became infinite or NaN in {str(kind).removeprefix('torch.')}", advice)
