"""Linear layers and embeddings with weights of 8 or 4 bits, which are multiplied without unpacking.

A weight w is stored as an integer q, with a scale shared by a row or group:

    8 bits   w = scale x q             one scale per row, q from -127 to 127
    4 bits   w = scale x (q - 8) + zero    one scale and zero per 32 numbers of a row, q from 0 to 15

Scales are bfloat16, as are inputs and results; sums are float32. Many inputs at once are multiplied in float32 where
that is no slower. Where the processor multiplies int8 by int8, several inputs at once are quantized too, to two
integers each: the second holds the remainder of the first. Their results are float32.
"""

import functools
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks.hooks import Hookless, is_differentiated
from pellucid.blocks.kernel_arguments import GROUP
from pellucid.blocks.rounding import BLOCK
from pellucid.machine import fastest_dtype, has_int8_products

MANY_8, MANY_4 = 32, 192
"""Rows of x, as of a prompt, from which weights are dequantised for one product, in the device's fastest dtype:
PyTorch's kernels for 8 and 4 bits are made for few rows, and a third as fast as oneDNN's."""

MIN_INT8_PRODUCTS = 5_000_000
"""Multiplications from which quantizing the input costs less than it saves."""

MAX_RESULTS = 1 << 22
"""Results of such a product computed at a time: twice as many integers are kept beside them."""


class LowBitModule(nn.Module):
    """A module with quantized weights, `size` of them, whose `codes` may be shared with another module, and a bias."""

    codes: Tensor
    size: int
    bias: Tensor | None = None


class LowBitLinear(Hookless, LowBitModule):
    """A linear layer with quantized weights."""

    out_features: int
    in_features: int

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... in"]  ->  Float[Tensor, "... out"]"""
        product = self.product(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]))
        product = product if x.dim() == 2 else product.view(*x.shape[:-1], self.out_features)
        return product if self.bias is None else product + self.bias

    @abstractmethod
    def product(self, x: Tensor) -> Tensor:
        """Product with the weights alone: Float[Tensor, "rows in"]  ->  Float[Tensor, "rows out"]"""


class Int8Linear(LowBitLinear):
    """A linear layer with 8-bit weights; its output is bfloat16 or float32."""

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        """codes: Int8[Tensor, "out in"]; scale: BFloat16[Tensor, "out"]; bias: Float[Tensor, "out"]"""
        super().__init__()
        self.codes, self.scale, self.bias = codes, scale, bias
        self.out_features, self.in_features = codes.shape
        self.size = codes.numel()
        self.fine = scale.float() / 254

    def product(self, x: Tensor) -> Tensor:
        needs_gradient = is_differentiated(x)  # integers have no gradient
        is_large = x.numel() * self.out_features >= MIN_INT8_PRODUCTS and not needs_gradient
        real = fastest_dtype(x.device) if x.shape[0] >= MANY_8 or needs_gradient else None
        if is_large and real != torch.bfloat16 and has_int8_products(x.device):
            return _int8_product(x.float(), self.codes, self.fine)
        if real is not None:
            return F.linear(x.to(real), self.codes.to(real)).mul_(self.scale).to(torch.bfloat16)
        return torch._weight_int8pack_mm(x.to(torch.bfloat16).contiguous(), self.codes, self.scale)


class Int4Linear(LowBitLinear):
    """A linear layer with 4-bit weights; its output is bfloat16, or float32 with a bias."""

    def __init__(self, codes: Tensor, scale_and_zero: Tensor, bias: Tensor | None = None) -> None:
        """codes: UInt8[Tensor, "out in/2"], as PyTorch packs them; scale_and_zero: BFloat16[Tensor, "groups out 2"];
        bias: Float[Tensor, "out"]"""
        super().__init__()
        self.codes, self.scale_and_zero, self.bias = codes, scale_and_zero, bias
        self.out_features, self.in_features = len(codes), codes.shape[1] * 2
        self.size = codes.numel() * 2

    def product(self, x: Tensor) -> Tensor:
        if is_differentiated(x):  # dequantised through PyTorch's own product
            one = torch.eye(self.in_features, dtype=torch.bfloat16, device=self.codes.device)
            return F.linear(x.float(), self._of_few(one).float().T).to(torch.bfloat16)
        if x.shape[0] < MANY_4 or self.out_features % BLOCK or not _packed_width():
            return self._of_few(x.to(torch.bfloat16).contiguous())
        real = fastest_dtype(x.device)
        return (x.to(real) @ _dequantised(self.codes, self.scale_and_zero, real)).to(torch.bfloat16)

    def _of_few(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm_for_cpu(x, self.codes, GROUP, self.scale_and_zero)


class Int8Table(LowBitModule):
    """An embedding table of 8 bits; an `Int8Linear` may share it."""

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        """codes: Int8[Tensor, "ids hidden"]; scale: BFloat16[Tensor, "ids"]"""
        super().__init__()
        self.codes, self.scale = codes, scale
        self.num_embeddings, self.size = len(codes), codes.numel()
        self.like = torch.empty(0, dtype=torch.float32, device=codes.device)
        """A tensor of the dtype and on the device of the output."""

    def forward(self, ids: Tensor) -> Tensor:
        """Int[Tensor, "..."]  ->  Float32[Tensor, "... hidden"]"""
        return self.codes[ids] * self.scale[ids].float()[..., None]


def low_bit_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The quantized tensors within a module, by name: they are neither parameters nor in a `state_dict`."""
    parts = {path: vars(part) for path, part in module.named_modules() if isinstance(part, LowBitModule)}
    return {
        f"{path}.{name}": one
        for path, attributes in parts.items()
        for name, one in attributes.items()
        if isinstance(one, Tensor)
    }


def _int8_product(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x . codes x scale in int8, whose products and sums are exact, so that no row depends on other rows.

        x = unit x (large + small / 254)    large and small from -127 to 127, unit = the row's greatest |x| / 127

    x: Float32[Tensor, "rows in"]; codes: Int8[Tensor, "out in"]; scale: Float32[Tensor, "out"], the weights' / 254
    ->  Float32[Tensor, "rows out"]
    """
    max_rows = max(1, MAX_RESULTS // len(codes))
    if len(x) > max_rows:
        return torch.cat([_int8_product(some, codes, scale) for some in x.split(max_rows)])
    unit = x.abs().amax(-1, keepdim=True).div_(127)
    steps = x / unit
    rounded = steps.round()
    halves = x.new_empty(2, *x.shape, dtype=torch.int8)
    halves[0].copy_(rounded)
    halves[1].copy_(steps.sub_(rounded).mul_(254).round_())
    large, small = torch._int_mm(halves.flatten(0, 1), codes.t()).chunk(2)
    return torch.add(small, large.float(), alpha=254).mul_(scale).mul_(unit)


def _unpacked_codes(packed: Tensor, width: int) -> Tensor:
    """Unpacks the codes of a 4-bit weight, `width` rows side by side: UInt8[Tensor, "blocks in width"]"""
    pairs = packed.view(len(packed) // width, -1, width // 2)
    return torch.cat((pairs & 15, pairs >> 4), dim=-1)


@functools.cache
def _packed_width() -> int:
    """How many rows PyTorch packs side by side here, as `_unpacked_codes` reads them: 64 with AVX-512, 32 with AVX2; 0
    if its layout is another."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randint(16, (BLOCK, GROUP), dtype=torch.int32, generator=generator, device="cpu")
    packed = torch._convert_weight_to_int4pack_for_cpu(plain, 1)
    return next((width for width in (64, 32) if torch.equal(_unpacked_codes(packed, width).mT.flatten(0, 1), plain)), 0)


def _dequantised(packed: Tensor, scale_and_zero: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantises 4-bit weights: Float[Tensor, "in out"]"""
    width = _packed_width()
    codes = _unpacked_codes(packed, width).unflatten(1, (-1, GROUP))  # [blocks, groups, GROUP, width]
    scale, zero = scale_and_zero.float().unflatten(1, (-1, width)).transpose(0, 1)[:, :, None].unbind(-1)
    numbers = torch.addcmul(zero - 8 * scale, codes.float(), scale).to(dtype)
    return numbers.permute(1, 2, 0, 3).flatten(2).flatten(0, 1)


def fits(rows: int, width: int) -> bool:
    """Whether PyTorch's products accept a weight of this shape; with others they would read out of bounds."""
    return rows % 16 == 0 and width % GROUP == 0


class Float32Linear(nn.Linear):
    """A linear layer in float32 for input of any dtype: quantized layers before it may return bfloat16."""

    def forward(self, input: Tensor) -> Tensor:
        """Float[Tensor, "... in"]  ->  Float32[Tensor, "... out"]"""
        return super().forward(input.float())


def float32_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer in float32, for weights that cannot be quantized; a weight that is a parameter is kept."""
    with torch.device("meta"):
        linear = Float32Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear.eval()
