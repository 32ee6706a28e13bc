"""Calls of the compiled kernels: from tensors to the addresses that `kernels` takes."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.blocks import kernel_arguments
from pellucid.blocks.attention_kernel_calls import ManyPositionKernels
from pellucid.blocks.cache import KeyValues
from pellucid.blocks.checks import kind_of
from pellucid.blocks.relative import Rotation
from pellucid.blocks.thread_pool import address_of
from pellucid.errors import InputError

KINDS = {
    torch.float32: kernel_arguments.FLOAT32,
    torch.bfloat16: kernel_arguments.BFLOAT16,
    torch.int8: kernel_arguments.INT8,
}
"""Dtypes of weights that the kernels read, by their codes there."""


class PlainTable(NamedTuple):
    """A weight in its plain layout: a parameter of the module, or the codes of an 8-bit layer.

    numbers: Float32, BFloat16 or Int8[Tensor, "out in"].  scale: Float32[Tensor, "out"], of 8 bits.
    bias: Float32[Tensor, "out"].
    head: width of a head, if the results of rows c and c + head/2 of each are to be adjacent; 0 for none.
    """

    numbers: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None
    head: int = 0


class Kernels(ManyPositionKernels):
    """The compiled kernels. Arguments are contiguous, and float32 unless stated otherwise."""

    def __init__(self) -> None:
        super().__init__()
        # they take a few microseconds each and do not release Python's lock
        call = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
        self._norm, self._gated_activation, self._store_key_value = (
            call(self.code.address(name)) for name in ("norm", "gated_activation", "store_key_value")
        )

    def product(self, x: Tensor, tables: Sequence[PlainTable]) -> Tensor:
        """x times each weight, concatenated: Float32[Tensor, "few in"]  ->  Float32[Tensor, "few out"]

        tables: of one dtype and one width; at least one
        """
        # addresses are read at each call: a tensor's memory may have moved, as by share_memory()
        parts, across = (kernel_arguments.ProductTable * len(tables))(), 0
        for one, (numbers, scale, bias, head) in zip(parts, tables):
            one.numbers, one.scale, one.bias = numbers.data_ptr(), address_of(scale), address_of(bias)
            one.first, one.rows, one.head = across, numbers.shape[0], head
            across += numbers.shape[0]
        rows, width = x.shape
        out = x.new_empty(rows, across)
        product = kernel_arguments.Product(
            kind=KINDS[tables[0].numbers.dtype],
            rows=rows,
            width=width,
            across=across,
            x=x.data_ptr(),
            out=out.data_ptr(),
            tables=ctypes.addressof(parts),
            parts=len(tables),
        )
        self.run_threaded("product", product, rows * across * width)
        return out

    def low_bit_product(self, x: Tensor, codes: Tensor, scales: Tensor, factors: Tensor) -> Tensor:
        """x times a `low_bit_weights.Grouped` weight: Float32[Tensor, "some in"]  ->  Float32[Tensor, "some out"]

        Raises InputError where x has another width or device than the weight.
        """
        (count, width), (blocks, groups, bits, _) = x.shape, codes.shape
        if width != groups * kernel_arguments.GROUP or x.device != codes.device:
            actual = f"{kind_of(x)} on {x.device}"
            raise InputError(
                f"x is {actual}, and its table has rows of {groups * kernel_arguments.GROUP} numbers on {codes.device}"
            )
        rows = blocks * kernel_arguments.LANES
        out = x.new_empty(count, rows)
        each = kernel_arguments.LowBitProduct.scratch_size(count, width)
        scratch = x.new_empty(torch.get_num_threads() * each)
        call = kernel_arguments.LowBitProduct(
            bits=bits,
            count=count,
            width=width,
            rows=rows,
            x=x.data_ptr(),
            out=out.data_ptr(),
            codes=codes.data_ptr(),
            scales=scales.data_ptr(),
            factors=factors.data_ptr(),
            room=scratch.data_ptr(),
            room_each=each,
        )
        self.run_threaded("low_bit_product", call, count * rows * width)
        return out

    def dequantised(self, codes: Tensor, scales: Tensor, factors: Tensor, dtype: torch.dtype) -> Tensor:
        """Dequantises rows of a 4-bit `low_bit_weights.Grouped` weight: Float[Tensor, "rows in"]

        factors: may be a slice of columns.  dtype: float32 or bfloat16
        """
        blocks, groups = codes.shape[:2]
        rows, width = blocks * kernel_arguments.LANES, groups * kernel_arguments.GROUP
        out = factors.new_empty(rows, width, dtype=dtype)
        call = kernel_arguments.Dequantise(
            width=width,
            rows=rows,
            of=factors.stride(0),
            narrow=dtype == torch.bfloat16,
            codes=codes.data_ptr(),
            scales=scales.data_ptr(),
            factors=factors.data_ptr(),
            out=out.data_ptr(),
        )
        self.run_threaded("dequantise", call, rows * width)
        return out

    def norm(self, x: Tensor, gain: Tensor, floor: float) -> Tensor:
        """x / sqrt(sum(x^2) + floor) x gain: Float32[Tensor, "... hidden"], Float32[Tensor, "hidden"]"""
        out = torch.empty_like(x)
        width = gain.shape[0]
        norm = kernel_arguments.Norm(
            rows=x.numel() // width,
            width=width,
            x=x.data_ptr(),
            gain=gain.data_ptr(),
            out=out.data_ptr(),
            floor=floor,
        )
        self._norm(ctypes.byref(norm))
        return out

    def gated_activation(self, both: Tensor) -> Tensor:
        """silu(gate) x up, which are concatenated, in any dtype.

        both: Float[Tensor, "... 2*inner"]  ->  Float32[Tensor, "... inner"]
        """
        both = _kernel_input(both)
        inner = both.shape[-1] // 2
        out = both.new_empty(*both.shape[:-1], inner, dtype=torch.float32)
        gated = kernel_arguments.GatedActivation(
            rows=out.numel() // inner,
            width=inner,
            both=both.data_ptr(),
            narrow=both.dtype == torch.bfloat16,
            out=out.data_ptr(),
        )
        self._gated_activation(ctypes.byref(gated))
        return out

    def attend(
        self,
        projected: Tensor,
        remembered: KeyValues,
        heads: int,
        key_value_heads: int,
        scale: float,
        rotation: Rotation | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attends from one new position of each row to its cache, to which its key and value are added first.

        projected: Float[Tensor, "rows (heads+2*shared)*width"], heads of query, key and value, in any dtype
        heads: number of query heads.  key_value_heads: of key heads.  scale: factor of the scores.
        rotation: of the new position; None for no rotation.
        mask: Bool[Tensor, "rows|1 filled"], True where attention is allowed; None where it is everywhere.
        ->  Float32[Tensor, "rows heads*width"]
        Raises InputError where the mask or the cache has other sizes: the kernels would read out of bounds.
        """
        projected = _kernel_input(projected)
        wide = torch.empty_like(projected, dtype=torch.float32)
        rows, width = projected.shape[0], projected.shape[1] // (heads + 2 * key_value_heads)
        memory = remembered.reserve(2 * key_value_heads, width, wide)
        filled, slots = remembered.filled, memory.shape[2]
        if mask is not None and (mask.shape[1] != filled or mask.shape[0] not in (1, rows)):
            raise InputError(f"mask is {kind_of(mask)}, and this cache holds {rows} rows of {filled}: make a new cache")
        angles = None if rotation is None else rotation.complex_angles()
        store = kernel_arguments.StoreKeyValue(
            rows=rows,
            heads=heads,
            shared=key_value_heads,
            width=width,
            slots=slots,
            slot=filled - 1,
            together=projected.data_ptr(),
            narrow=projected.dtype == torch.bfloat16,
            wide=wide.data_ptr(),
            memory=memory.data_ptr(),
            angles=address_of(angles),
            angles_differ=angles is not None and angles.shape[0] > 1,
            scale=scale,
        )
        self._store_key_value(ctypes.byref(store))
        out = wide.new_empty(rows, heads * width)
        scratch = wide.new_empty(torch.get_num_threads(), filled + width)
        attend = kernel_arguments.AttendOne(
            rows=rows,
            heads=heads,
            shared=key_value_heads,
            width=width,
            slots=slots,
            filled=filled,
            wide=wide.data_ptr(),
            memory=memory.data_ptr(),
            room=scratch.data_ptr(),
            mask=address_of(mask),
            mask_differs=mask is not None and mask.shape[0] > 1,
            out=out.data_ptr(),
        )
        self.run_threaded("attend_one", attend, rows * heads * filled * width)
        return out


def _kernel_input(x: Tensor) -> Tensor:
    """Makes x contiguous, in a dtype that the kernels read: under `torch.autocast`, products may be float16."""
    return (x if x.dtype in (torch.float32, torch.bfloat16) else x.float()).contiguous()
