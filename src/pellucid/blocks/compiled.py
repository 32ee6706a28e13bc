"""Blocks for one position at a time, as writing has them, by kernels compiled for this processor.

Beside its packed map, which multiplies many rows, a linear map keeps the plain tables that the module has anyway: one
row by a table costs what reading it from memory does. Results agree with the packed blocks up to rounding.

The kernels need numba, the extra `fast`; without it a twin has the packed blocks alone.
"""

import ctypes
import functools
import importlib.util
import logging
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.blocks.activation import ACTIVATIONS
from pellucid.blocks.cache import KeyValues
from pellucid.blocks.machine_code import MachineCode
from pellucid.blocks.packed import PackedAttention, PackedGatedFeedForward, PackedRMSNorm
from pellucid.blocks.packing import Part
from pellucid.blocks.quantized import Int4Linear, Int8Linear
from pellucid.blocks.relative import Rotation
from pellucid.blocks.run import Pass
from pellucid.errors import PellucidError

log = logging.getLogger(__name__)

FEW = {torch.float32: 2, torch.bfloat16: 2, torch.int8: 6}
"""Rows of x up to which a table is read as it stands, by the kind of its numbers; what reads it once for many rows is
quicker from there on."""

MOST = 32
"""Rows up to which a step between products is done sooner by one thread."""

SMALL = 1 << 14
"""Products of a query and a key, number by number, that one thread is done with before a second has begun."""

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""Numbers of a table that the kernels read, as these call them."""


class Plain(NamedTuple):
    """A table as it stands in the module.

    numbers: Float32, BFloat16 or Int8[Tensor, "out in"].  scale: Float32[Tensor, "out"], of 8 bits.
    bias: Float32[Tensor, "out"].
    head: width of a head, where the rows c and c + head/2 of each are to give neighbours; 0 for none.
    """

    numbers: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None
    head: int = 0


class Asking(NamedTuple):
    """How one position asks.

    heads: of query.  shared: of key.  width: of each.  scale: of scores.
    mask: Bool[Tensor, "rows|1 filled"], True where a slot may be looked at; None where all may.
    """

    heads: int
    shared: int
    width: int
    scale: float
    rotation: Rotation | None
    mask: Tensor | None


class Kernels:
    """The compiled steps; all that goes in and comes out is float32 and lies straight."""

    def __init__(self) -> None:
        """Raises what `MachineCode` raises, and AttributeError where PyTorch's OpenMP is another than that of Linux."""
        self._code = MachineCode()
        # what this process has loaded: PyTorch's threads do this work too, and none wait beside them
        self._abreast = ctypes.CDLL(None).GOMP_parallel
        self._abreast.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._abreast.restype = None
        self._product, self._mix = self._code.address("product"), self._code.address("mix")
        # of a few microseconds each, for which Python's lock is kept
        call = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
        self._norm, self._gated, self._remember = (
            call(self._code.address(name)) for name in ("norm", "gated", "remember")
        )

    def product(self, x: Tensor, tables: Sequence[Plain]) -> Tensor:
        """x by each table, side by side: Float32[Tensor, "few in"]  ->  Float32[Tensor, "few out"]"""
        parts, first = [], 0
        for numbers, scale, bias, head in tables:
            others = (0 if one is None else one.data_ptr() for one in (scale, bias))
            parts += [numbers.data_ptr(), *others, first, numbers.shape[0], head]
            first += numbers.shape[0]
        out = x.new_empty(x.shape[0], first)
        kind = KINDS[tables[0].numbers.dtype]
        self._share(self._product, [kind, *x.shape, first, x.data_ptr(), out.data_ptr(), len(tables), *parts])
        return out

    def norm(self, x: Tensor, gain: Tensor, floor: float) -> Tensor:
        """x / sqrt(sum(x^2) + floor) x gain: Float32[Tensor, "... hidden"], Float32[Tensor, "hidden"]"""
        out = torch.empty_like(x)
        width = gain.shape[0]
        places = x.data_ptr(), gain.data_ptr(), out.data_ptr()
        self._norm(_numbers([x.numel() // width, width, *places, _bits(floor)]))
        return out

    def gated(self, both: Tensor, dtype: torch.dtype) -> Tensor:
        """silu(gate) x input: Float[Tensor, "... 2*inner"]  ->  Float[Tensor, "... inner"] of kind `dtype`"""
        inner = both.shape[-1] // 2
        out = both.new_empty(*both.shape[:-1], inner, dtype=dtype)
        narrow = both.dtype == torch.bfloat16, dtype == torch.bfloat16
        self._gated(_numbers([out.numel() // inner, inner, both.data_ptr(), out.data_ptr(), *narrow]))
        return out

    def attend(self, together: Tensor, asking: Asking, remembered: KeyValues, dtype: torch.dtype) -> Tensor:
        """One new position of each row, beside all that is remembered; it is remembered too.

        together: Float[Tensor, "rows heads*width"], heads of query, key and value
        ->  Float[Tensor, "rows heads*width"] of kind `dtype`
        """
        heads, shared, width, scale, rotation, mask = asking
        rows = together.shape[0]
        wide = together.new_empty(rows, (heads + 2 * shared) * width, dtype=torch.float32)
        memory = remembered.reserve(2 * shared, width, wide)
        filled, narrow = remembered.filled, together.dtype == torch.bfloat16
        sizes, places = [rows, heads, shared, width, memory.shape[2]], (wide.data_ptr(), memory.data_ptr())
        angles = (0, 0) if rotation is None else _spread(rotation.of_pairs())
        self._remember(_numbers([*sizes, filled - 1, together.data_ptr(), *places, narrow, *angles, _bits(scale)]))
        threads = torch.get_num_threads() if rows * heads * filled * width > SMALL else 1
        out, room = wide.new_empty(rows, heads * width, dtype=dtype), wide.new_empty(threads, filled + width)
        seen = (0, 0) if mask is None else _spread(mask)
        said = [*sizes, filled, places[0], room.data_ptr(), places[1], dtype == torch.bfloat16, *seen, out.data_ptr()]
        self._share(self._mix, said, threads)
        return out

    def _share(self, kernel: int, said: list[int], threads: int | None = None) -> None:
        self._abreast(kernel, _numbers(said), threads or torch.get_num_threads(), 0)


def _spread(one: Tensor) -> tuple[int, int]:
    """The address of what there is for each row, or once for all, and whether each row has its own."""
    return one.data_ptr(), int(one.shape[0] > 1)


def _numbers(said: list[int]) -> Any:
    return (ctypes.c_int64 * len(said))(*said)


@functools.lru_cache(maxsize=64)
def _bits(number: float) -> int:
    """Those of a float32, as a whole number."""
    return struct.unpack("i", struct.pack("f", number))[0]


@functools.cache
def kernels() -> Kernels | None:
    """The compiled steps of this process; None without numba, elsewhere than on Linux, and where their code cannot be
    kept, since seconds of work are not to be done each time."""
    if sys.platform != "linux" or importlib.util.find_spec("numba") is None:
        return None
    try:
        return Kernels()
    except (ImportError, AttributeError, OSError, RuntimeError, PellucidError) as reason:
        log.warning("numba is installed, and its kernels cannot be used: %s", reason)
        return None


class CompiledLinear(nn.Module):
    """A linear map, and an activation behind it: `many` for many rows, the plain tables for few."""

    def __init__(self, many: nn.Module, tables: Sequence[Plain], activation: str | None = None) -> None:
        super().__init__()
        self.many, self.tables, self.activation = many, tuple(tables), activation
        self.few, self.in_features = FEW[tables[0].numbers.dtype], tables[0].numbers.shape[1]
        self.dtype: torch.dtype = getattr(many, "dtype", torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... in"]  ->  Float[Tensor, "... out"]"""
        made = kernels()
        if made is None or x.numel() > self.few * self.in_features:
            return self.many(x)
        product = made.product(x.float().reshape(-1, self.in_features).contiguous(), self.tables)
        product = product if self.activation is None else ACTIVATIONS[self.activation](product)
        return product.view(*x.shape[:-1], -1).to(self.dtype)

    __call__ = forward


def for_few(many: nn.Module, weights: Sequence[Part], biases: Sequence[Part], activation: str | None) -> nn.Module:
    """A packed map with the tables that it was made from beside it, where kernels read tables of their kind."""
    if isinstance(many, Int8Linear):
        bias = None if many.bias is None else many.bias.float()
        return CompiledLinear(many, [Plain(many.codes, many.scale.float(), bias)])
    stored = getattr(many, "stored", None)
    if stored not in (torch.float32, torch.bfloat16) or any(part.parameter.dtype != stored for part in weights):
        return many
    offsets = [part.parameter.float() for part in biases] if biases else [None] * len(weights)
    tables = [
        Plain(part.parameter.contiguous(), None, offset, part.paired or 0) for part, offset in zip(weights, offsets)
    ]
    return CompiledLinear(many, tables, activation)


class CompiledRMSNorm(PackedRMSNorm):
    """Of few rows in one step."""

    def forward(self, x: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  the same shape"""
        made = kernels()
        if made is None or x.numel() > MOST * x.shape[-1]:
            return super().forward(x)
        return made.norm(x.float().contiguous(), self.gain, self.eps * x.shape[-1])

    __call__ = forward


class CompiledGatedFeedForward(PackedGatedFeedForward):
    """Of few rows the gate in one step."""

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        made = kernels()
        watched = run is not None and run.watch is not None
        if made is None or watched or self.activation is not F.silu or x.numel() > MOST * x.shape[-1]:
            return super().forward(x, run)
        return self.down(made.gated(self.product(x), _taken(self.down)))

    __call__ = forward


class CompiledAttention(PackedAttention):
    """One new position of each text in two steps between its products."""

    def next(self, x: Tensor, run: Pass, remembered: KeyValues) -> Tensor:
        """Float[Tensor, "batch hidden"]  ->  the same"""
        made = kernels()
        if made is None:
            return super().next(x, run, remembered)
        mask = None if run.mask is None else run.mask[:, 0, 0].contiguous()
        asking = Asking(self.num_heads, self.num_key_value_heads, self.head_dim, self.scale, run.rotation, mask)
        return self.output(made.attend(self.product(x), asking, remembered, _taken(self.output)))


def _taken(linear: nn.Module) -> torch.dtype:
    """The kind of number that a map multiplies by its table without making it another first."""
    return torch.bfloat16 if isinstance(linear, Int4Linear) else torch.float32


INSTEAD: dict[type[nn.Module], type[nn.Module]] = {
    PackedRMSNorm: CompiledRMSNorm,
    PackedGatedFeedForward: CompiledGatedFeedForward,
    PackedAttention: CompiledAttention,
}
"""Blocks by the packed ones whose work they do for few rows."""
