"""Ways of laying out tables for speed, for the twin of a module: by oneDNN, in half precision, or in 8 or 4 bits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.blocks import grouped, quantized, rounding
from pellucid.blocks.availability import usable_kernels
from pellucid.blocks.joined import end_to_end
from pellucid.blocks.packed import PackedLinear
from pellucid.blocks.relative import paired
from pellucid.blocks.widened import WidenedLinear, WidenedTable
from pellucid.machine import product_dtype


@dataclass(frozen=True, slots=True)
class Part:
    """A parameter with its name in the whole.

    paired: width of a head, where the rows that a rotation turns together are to be neighbours; None leaves them.
    """

    name: str
    parameter: Tensor
    paired: int | None = None

    def ordered(self, numbers: Tensor) -> Tensor:
        """Rows of whole heads, in the order in which they are to be laid out."""
        return numbers if self.paired is None else paired(numbers, self.paired)


class Packing:
    """oneDNN's own layout in float32 or bfloat16.

    dtype: of every number of the twin.  activates: whether a product applies the activation behind it.
    reads_on: whether the twin reads token after token, and has compiled steps for it where there are any.
    """

    activates = True

    def __init__(self, dtype: torch.dtype, *, reads_on: bool = False) -> None:
        self.dtype, self.reads_on = dtype, reads_on

    def number(self, name: str, parameter: Tensor) -> Tensor:
        """The numbers of the parameter `name`."""
        return parameter

    def fits(self, weight: Tensor) -> bool:
        """Whether this table can be laid out so."""
        there = torch.backends.mkldnn.is_available() and weight.device.type == "cpu"
        return there and self.dtype in (torch.float32, torch.bfloat16)

    def linear(self, weights: Sequence[Part], biases: Sequence[Part], activation: str | None = None) -> nn.Module:
        """One linear map of several tables, one below the other: Float[Tensor, "out in"], Float[Tensor, "out"]"""
        return PackedLinear(*_together(weights, biases), self.dtype, activation)

    def table(self, name: str, weight: Tensor) -> nn.Module | None:
        """A table of rows by id; None leaves it as it is."""
        return None


class Widening(Packing):
    """Tables in half precision, made float32 for a product of many rows; every other number lies in float32."""

    def __init__(self, dtype: torch.dtype, *, reads_on: bool = False) -> None:
        super().__init__(torch.float32, reads_on=reads_on)
        self.stored = dtype

    def number(self, name: str, parameter: Tensor) -> Tensor:
        return parameter.to(self.stored)  # the numbers of a model are of its kind, wherever they were narrowed

    def linear(self, weights: Sequence[Part], biases: Sequence[Part], activation: str | None = None) -> nn.Module:
        return WidenedLinear(*_together(weights, biases), self.stored, activation)

    def table(self, name: str, weight: Tensor) -> nn.Module | None:
        return WidenedTable(weight.detach().to(self.stored))


def real(dtype: torch.dtype, device: torch.device, *, reads_on: bool = False) -> Packing:
    """The layout in which this device multiplies real numbers of this kind the quickest."""
    kind = Packing if product_dtype(dtype, device) == dtype else Widening
    return kind(dtype, reads_on=reads_on and device.type == "cpu")


class Bits(Packing):
    """8 or 4 bits per number, and what does not fit stays float32. Tables of tokens have 8.

    Where a kernel of ours reads tables of 4 bits, these lie in its own way, and tables of tokens have 6.

    pieces: name of a parameter -> its numbers, some rows at a time.
    grids: name of a parameter -> its numbers as they come in 4 bits (`rounding.GRID`), or None where they do not.
    tied: names of parameters that are another's, as {name: the other's name}.
    """

    activates = False

    def __init__(
        self,
        bits: int,
        pieces: Callable[[str], Iterator[Tensor]],
        grids: Callable[[str], Tensor | None],
        tied: dict[str, str],
        *,
        reads_on: bool = False,
    ) -> None:
        super().__init__(torch.float32, reads_on=reads_on)
        self.bits, self.pieces, self.grids, self.tied = bits, pieces, grids, tied
        self.own = bits == 4 and reads_on and usable_kernels() is not None
        self.tables: dict[str, tuple[Tensor, ...]] = {}
        self.shared: dict[str, nn.Parameter] = {}

    def number(self, name: str, parameter: Tensor) -> Tensor:
        """Those of tied parameters are one and the same object."""
        name = self.tied.get(name, name)
        if name not in self.shared:
            numbers = torch.cat([piece.float() for piece in self.pieces(name)])
            if name not in self.tied.values():
                return numbers
            self.shared[name] = nn.Parameter(numbers, requires_grad=False)
        return self.shared[name]

    def fits(self, weight: Tensor) -> bool:
        return True

    def linear(self, weights: Sequence[Part], biases: Sequence[Part], activation: str | None = None) -> nn.Module:
        bias = torch.cat([self._ordered(part) for part in biases]) if biases else None
        if (source := self.tied.get(weights[0].name)) in self.tables:
            return (grouped.GroupedLinear if self.own else quantized.Int8Linear)(*self.tables[source], bias=bias)
        rows, width = sum(len(part.parameter) for part in weights), weights[0].parameter.shape[1]
        if not quantized.fits(rows, width):
            tables = [self._ordered(part) for part in weights]
            return quantized.real_linear(torch.cat(tables) if len(tables) > 1 else tables[0], bias)
        if self.bits == 8:
            return quantized.Int8Linear(*rounding.to_8_bits(rows, width, self._blocks(weights)), bias)
        blocks = self._grids(weights) or self._blocks(weights)
        if self.own:
            return grouped.GroupedLinear(*grouped.to_4_bits(rows, width, blocks), bias)
        return quantized.Int4Linear(*rounding.to_4_bits(rows, width, blocks), bias)

    def table(self, name: str, weight: Tensor) -> nn.Module | None:
        rows, width = weight.shape
        if not quantized.fits(rows, width):
            return None
        name = self.tied.get(name, name)
        if name not in self.tables:
            lay = grouped.to_6_bits if self.own else rounding.to_8_bits
            self.tables[name] = lay(rows, width, rounding.in_blocks(self.pieces(name)))
        return (grouped.GroupedTable if self.own else quantized.Int8Table)(*self.tables[name])

    def _ordered(self, part: Part) -> Tensor:
        return part.ordered(self.number(part.name, part.parameter))

    def _blocks(self, weights: Sequence[Part]) -> Iterator[Tensor]:
        return rounding.in_blocks(piece for part in weights for piece in self._pieces(part))

    def _grids(self, weights: Sequence[Part]) -> Iterator[Tensor] | None:
        """The same in 4 bits, where all of them come so."""
        found = list[Tensor]()
        for part in weights:
            if (grid := self.grids(part.name)) is None:
                return None
            found.append(part.ordered(grid))
        return rounding.in_blocks(found)

    def _pieces(self, part: Part) -> Iterator[Tensor]:
        pieces = self.pieces(part.name)
        if part.paired is None:
            return pieces
        return (part.ordered(head) for head in rounding.in_blocks(pieces, part.paired))


def _together(weights: Sequence[Part], biases: Sequence[Part]) -> tuple[Tensor, Tensor | None]:
    weight = end_to_end([part.ordered(part.parameter) for part in weights])
    return weight, end_to_end([part.ordered(part.parameter) for part in biases]) if biases else None
