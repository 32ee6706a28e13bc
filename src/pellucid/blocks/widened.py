"""Tables in half precision on a processor that multiplies float32 faster: an Intel one without AMX, or an older one.

They stay so in memory, and are made float32 for the time of one product of many rows. All that flows between them is
float32.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks.activation import ACTIVATIONS
from pellucid.blocks.hooks import Hookless
from pellucid.blocks.packed import fused_activation

MANY, SEVERAL = 96, 4
"""From so many rows of x on, a product costs less in float32, the widening of its table with it: where oneDNN has
products of the narrow kind, and where it has none, as without AVX-512."""


class WidenedLinear(Hookless):
    """A linear map, and an activation behind it, with its table in half precision."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, activation: str | None = None) -> None:
        super().__init__()
        self.table_dtype, self.native = dtype, _native(dtype)
        self.table = weight.detach().to(dtype).contiguous()
        if self.native:
            self.table = torch.ops.mkldnn._reorder_linear_weight(self.table, None)
        self.few = MANY if self.native else SEVERAL
        self.narrow = None if bias is None else bias.detach().to(dtype)
        self.offset = None if self.narrow is None else self.narrow.float()
        self.activation = activation
        self.kind, self.algorithm, self.inplace_activation = fused_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... in"]  ->  Float32[Tensor, "... out"]"""
        if x.numel() < self.few * x.shape[-1]:
            narrow = x.to(self.table_dtype)
            product = self._narrow_product(narrow).float()
            # any that is none makes it none; behind an activation that of x may not be seen
            if self.table_dtype != torch.float16 or math.isfinite(narrow.sum(dtype=torch.float32) + product.sum()):
                return product
        # of many rows, and of few whose numbers float16 does not hold
        table = self.table.to_dense(torch.float32) if self.native else self.table.float()
        return self._product(x.float(), table, self.offset)

    def _narrow_product(self, x: Tensor) -> Tensor:
        if self.native:
            return self._product(x, self.table, self.narrow)
        product = F.linear(x, self.table, self.narrow)
        return product if self.activation is None else ACTIVATIONS[self.activation](product)

    def _product(self, x: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
        multiply = torch.ops.mkldnn._linear_pointwise
        product = multiply(x, table, bias, self.kind, [], self.algorithm)
        return product if self.inplace_activation is None else self.inplace_activation(product)

    __call__ = forward  # without the hooks of a module


class WidenedTable(nn.Module):
    """A row of numbers per id, kept in half precision and given in float32."""

    def __init__(self, weight: Tensor) -> None:
        """weight: Float[Tensor, "ids hidden"]"""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.num_embeddings = len(weight)
        self.like = torch.empty(0, dtype=torch.float32, device=weight.device)
        """A tensor of the kind and on the device of what this gives."""

    def forward(self, ids: Tensor) -> Tensor:
        """Int[Tensor, "..."]  ->  Float32[Tensor, "... hidden"]"""
        return F.embedding(ids, self.weight).float()


def _native(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products of this kind here."""
    known = torch.ops.mkldnn
    return known._is_mkldnn_bf16_supported() if dtype == torch.bfloat16 else known._is_mkldnn_fp16_supported()
