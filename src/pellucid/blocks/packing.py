"""Weight layouts of packed copies: reordered for oneDNN, in half precision, or quantized to 8 or 4 bits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.blocks import low_bit_weights, quantized, rounding
from pellucid.blocks.availability import usable_kernels
from pellucid.blocks.joint_weights import concatenated
from pellucid.blocks.packed import PackedLinear
from pellucid.blocks.relative import interleaved
from pellucid.blocks.widened import WidenedLinear, WidenedTable
from pellucid.machine import product_dtype


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A parameter with its full name.

    rotary_width: width of a head whose rows are reordered, such that those rotated together are adjacent, or None.
    """

    name: str
    parameter: Tensor
    rotary_width: int | None = None

    def ordered(self, numbers: Tensor) -> Tensor:
        """Reorders the rows of whole heads for packing."""
        return numbers if self.rotary_width is None else interleaved(numbers, self.rotary_width)


class Packing:
    """oneDNN's own layout, in float32 or bfloat16.

    dtype: of all parameters of the packed copy.  fuses_activation: whether a product can apply the activation.
    is_autoregressive: whether the copy reads one token after another, with compiled kernels where there are any.
    """

    fuses_activation = True

    def __init__(self, dtype: torch.dtype, *, is_autoregressive: bool = False) -> None:
        self.dtype, self.is_autoregressive = dtype, is_autoregressive

    def parameter_values(self, name: str, parameter: Tensor) -> Tensor:
        """The values of the parameter `name`."""
        return parameter

    def fits(self, weight: Tensor) -> bool:
        """Whether this weight matrix can be packed."""
        is_available = torch.backends.mkldnn.is_available() and weight.device.type == "cpu"
        return is_available and self.dtype in (torch.float32, torch.bfloat16)

    def linear(
        self, weights: Sequence[NamedTable], biases: Sequence[NamedTable], activation: str | None = None
    ) -> nn.Module:
        """Packs weights, concatenated by rows, into one linear layer: Float[Tensor, "out in"], Float[Tensor, "out"]"""
        return PackedLinear(*_joint_tables(weights, biases), self.dtype, activation)

    def embedding(self, name: str, weight: Tensor) -> nn.Module | None:
        """Packs an embedding table; None leaves it as it is."""
        return None


class Widening(Packing):
    """Weights in half precision, converted to float32 for products of many rows; all other parameters are float32."""

    def __init__(self, dtype: torch.dtype, *, is_autoregressive: bool = False) -> None:
        super().__init__(torch.float32, is_autoregressive=is_autoregressive)
        self.table_dtype = dtype

    def parameter_values(self, name: str, parameter: Tensor) -> Tensor:
        return parameter.to(self.table_dtype)  # rounded as if the model had been converted to this dtype

    def linear(
        self, weights: Sequence[NamedTable], biases: Sequence[NamedTable], activation: str | None = None
    ) -> nn.Module:
        return WidenedLinear(*_joint_tables(weights, biases), self.table_dtype, activation)

    def embedding(self, name: str, weight: Tensor) -> nn.Module | None:
        return WidenedTable(weight.detach().to(self.table_dtype))


def float_packing(dtype: torch.dtype, device: torch.device, *, is_autoregressive: bool = False) -> Packing:
    """The layout in which this device multiplies fastest in this dtype."""
    kind = Packing if product_dtype(dtype, device) == dtype else Widening
    return kind(dtype, is_autoregressive=is_autoregressive and device.type == "cpu")


class LowBitPacking(Packing):
    """Weights of 8 or 4 bits; where a shape does not fit, float32. Embedding tables have 8 bits.

    Where our own kernel reads 4-bit weights, these have its layout, and embedding tables have 6 bits.

    pieces: name of a parameter -> its values, some rows at a time.
    grids: name of a parameter -> its values as stored in 4 bits (`rounding.GRID`), or None if they are not.
    tied: tied parameters, as {name: the other's name}.
    """

    fuses_activation = False

    def __init__(
        self,
        bits: int,
        pieces: Callable[[str], Iterator[Tensor]],
        grids: Callable[[str], Tensor | None],
        tied: dict[str, str],
        *,
        is_autoregressive: bool = False,
    ) -> None:
        super().__init__(torch.float32, is_autoregressive=is_autoregressive)
        self.bits, self.pieces, self.grids, self.tied = bits, pieces, grids, tied
        self.uses_own_kernel = bits == 4 and is_autoregressive and usable_kernels() is not None
        self.tables: dict[str, tuple[Tensor, ...]] = {}
        self.tied_parameters: dict[str, nn.Parameter] = {}

    def parameter_values(self, name: str, parameter: Tensor) -> Tensor:
        """Tied parameters are the same object."""
        name = self.tied.get(name, name)
        if name not in self.tied_parameters:
            numbers = torch.cat([piece.float() for piece in self.pieces(name)])
            if name not in self.tied.values():
                return numbers
            self.tied_parameters[name] = nn.Parameter(numbers, requires_grad=False)
        return self.tied_parameters[name]

    def fits(self, weight: Tensor) -> bool:
        return True

    def linear(
        self, weights: Sequence[NamedTable], biases: Sequence[NamedTable], activation: str | None = None
    ) -> nn.Module:
        bias = torch.cat([self._ordered(part) for part in biases]) if biases else None
        if (source := self.tied.get(weights[0].name)) in self.tables:
            return (low_bit_weights.GroupedLinear if self.uses_own_kernel else quantized.Int8Linear)(
                *self.tables[source], bias=bias
            )
        rows, width = sum(len(part.parameter) for part in weights), weights[0].parameter.shape[1]
        if not quantized.fits(rows, width):
            parts = [self._ordered(part) for part in weights]
            return quantized.float32_linear(torch.cat(parts) if len(parts) > 1 else parts[0], bias)
        if self.bits == 8:
            return quantized.Int8Linear(*rounding.to_8_bits(rows, width, self._blocks(weights)), bias)
        blocks = self._grids(weights) or self._blocks(weights)
        if self.uses_own_kernel:
            return low_bit_weights.GroupedLinear(*low_bit_weights.to_4_bits(rows, width, blocks), bias)
        return quantized.Int4Linear(*rounding.to_4_bits(rows, width, blocks), bias)

    def embedding(self, name: str, weight: Tensor) -> nn.Module | None:
        rows, width = weight.shape
        if not quantized.fits(rows, width):
            return None
        name = self.tied.get(name, name)
        if name not in self.tables:
            lay = low_bit_weights.to_6_bits if self.uses_own_kernel else rounding.to_8_bits
            self.tables[name] = lay(rows, width, rounding.in_blocks(self.pieces(name)))
        return (low_bit_weights.GroupedTable if self.uses_own_kernel else quantized.Int8Table)(*self.tables[name])

    def _ordered(self, part: NamedTable) -> Tensor:
        return part.ordered(self.parameter_values(part.name, part.parameter))

    def _blocks(self, weights: Sequence[NamedTable]) -> Iterator[Tensor]:
        return rounding.in_blocks(piece for part in weights for piece in self._pieces(part))

    def _grids(self, weights: Sequence[NamedTable]) -> Iterator[Tensor] | None:
        """Rows as stored in 4 bits, if all of these weights are."""
        found = list[Tensor]()
        for part in weights:
            if (grid := self.grids(part.name)) is None:
                return None
            found.append(part.ordered(grid))
        return rounding.in_blocks(found)

    def _pieces(self, part: NamedTable) -> Iterator[Tensor]:
        pieces = self.pieces(part.name)
        if part.rotary_width is None:
            return pieces
        return (part.ordered(head) for head in rounding.in_blocks(pieces, part.rotary_width))


def _joint_tables(weights: Sequence[NamedTable], biases: Sequence[NamedTable]) -> tuple[Tensor, Tensor | None]:
    weight = concatenated([part.ordered(part.parameter) for part in weights])
    return weight, concatenated([part.ordered(part.parameter) for part in biases]) if biases else None
