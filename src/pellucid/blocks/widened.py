"""Half-precision weights on a processor that multiplies faster in float32: one from Intel without AMX, or an older one.

They are stored in half precision and converted to float32 for each product of many rows. Activations are float32.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks.activation import ACTIVATIONS
from pellucid.blocks.hooks import Hookless
from pellucid.blocks.packed import fused_activation

MIN_FLOAT_ROWS_NATIVE, MIN_FLOAT_ROWS_EMULATED = 96, 4
"""Rows of x from which a product is faster in float32, including the conversion of its weights: where oneDNN has
products in the narrow dtype, and where it has none, as without AVX-512."""


class WidenedLinear(Hookless):
    """A linear layer, optionally with an activation, whose weights are in half precision."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, activation: str | None = None) -> None:
        super().__init__()
        self.table_dtype, self.native = dtype, _native(dtype)
        self.packed_weight = weight.detach().to(dtype).contiguous()
        if self.native:
            self.packed_weight = torch.ops.mkldnn._reorder_linear_weight(self.packed_weight, None)
        self.min_float_rows = MIN_FLOAT_ROWS_NATIVE if self.native else MIN_FLOAT_ROWS_EMULATED
        self.narrow = None if bias is None else bias.detach().to(dtype)
        self.offset = None if self.narrow is None else self.narrow.float()
        self.activation = activation
        self.kind, self.algorithm, self.inplace_activation = fused_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... in"]  ->  Float32[Tensor, "... out"]"""
        if x.numel() < self.min_float_rows * x.shape[-1]:
            narrow = x.to(self.table_dtype)
            product = self._narrow_product(narrow).float()
            # NaN or infinite values make the sum so; of x itself, an activation could hide them
            if self.table_dtype != torch.float16 or math.isfinite(narrow.sum(dtype=torch.float32) + product.sum()):
                return product
        # many rows, or few whose values overflow float16
        weight = self.packed_weight.to_dense(torch.float32) if self.native else self.packed_weight.float()
        return self._product(x.float(), weight, self.offset)

    def _narrow_product(self, x: Tensor) -> Tensor:
        if self.native:
            return self._product(x, self.packed_weight, self.narrow)
        product = F.linear(x, self.packed_weight, self.narrow)
        return product if self.activation is None else ACTIVATIONS[self.activation](product)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        multiply = torch.ops.mkldnn._linear_pointwise
        product = multiply(x, weight, bias, self.kind, [], self.algorithm)
        return product if self.inplace_activation is None else self.inplace_activation(product)


class WidenedTable(nn.Module):
    """An embedding table stored in half precision, whose output is float32."""

    def __init__(self, weight: Tensor) -> None:
        """weight: Float[Tensor, "ids hidden"]"""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.num_embeddings = len(weight)
        self.like = torch.empty(0, dtype=torch.float32, device=weight.device)
        """A tensor of the dtype and on the device of the output."""

    def forward(self, ids: Tensor) -> Tensor:
        """Int[Tensor, "..."]  ->  Float32[Tensor, "... hidden"]"""
        return F.embedding(ids, self.weight).float()


def _native(dtype: torch.dtype) -> bool:
    """Whether oneDNN has matrix products in this dtype here."""
    known = torch.ops.mkldnn
    return known._is_mkldnn_bf16_supported() if dtype == torch.bfloat16 else known._is_mkldnn_fp16_supported()
