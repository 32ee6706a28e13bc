"""The compiled steps, from tensors to the addresses that `kernels` asks for."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pellucid.blocks import calls
from pellucid.blocks.cache import KeyValues
from pellucid.blocks.given import kind_of
from pellucid.blocks.machine_code import MachineCode
from pellucid.blocks.relative import Rotation
from pellucid.errors import InputError

SMALL = 1 << 14
"""Multiplications that one thread is done with before a second has begun."""

WITHIN = ("omp_get_thread_num", "omp_get_num_threads")
"""What the kernels call, by the names of OpenMP."""

KINDS = {torch.float32: calls.FLOAT32, torch.bfloat16: calls.BFLOAT16, torch.int8: calls.INT8}
"""Numbers of a table that the kernels read, as these call them."""

MANY_OF = ({torch.float32}, {torch.bfloat16})
"""What all numbers are where there are many positions."""


class Plain(NamedTuple):
    """A table as it lies in memory: a parameter of the module, or the codes of a map of 8 bits.

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
    rotation: of the new position alone; None turns nothing.
    mask: Bool[Tensor, "rows|1 filled"], True where a slot may be looked at; None where all may.
    """

    heads: int
    shared: int
    width: int
    scale: float
    rotation: Rotation | None
    mask: Tensor | None


class Kernels:
    """The compiled steps. Whatever they are given lies without gaps, and is float32 where nothing else is said."""

    def __init__(self) -> None:
        """Raises what `MachineCode` raises, and AttributeError where PyTorch's OpenMP is another than that of Linux."""
        # what this process has loaded: PyTorch's threads do this work too, and none wait beside them
        loaded = ctypes.CDLL(None)
        self._abreast = loaded.GOMP_parallel
        for name in WITHIN:  # LLVM ends the process where it does not find one
            getattr(loaded, name)
        self._code = MachineCode()
        self._abreast.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._abreast.restype = None
        self._product, self._mix, self._mix_all, self._add_norm = (
            self._code.address(name) for name in ("product", "mix", "mix_all", "add_norm")
        )
        # of a few microseconds each, for which Python's lock is kept
        call = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
        self._norm, self._gated, self._remember = (
            call(self._code.address(name)) for name in ("norm", "gated", "remember")
        )

    def product(self, x: Tensor, tables: Sequence[Plain]) -> Tensor:
        """x by each table, side by side: Float32[Tensor, "few in"]  ->  Float32[Tensor, "few out"]

        tables: of one kind and one width; at least one
        """
        # addresses are asked for at each call: a tensor's memory may have moved, as share_memory() moves it
        told, across = (calls.ProductTable * len(tables))(), 0
        for one, (numbers, scale, bias, head) in zip(told, tables):
            one.numbers, one.scale, one.bias = numbers.data_ptr(), _place(scale), _place(bias)
            one.first, one.rows, one.head = across, numbers.shape[0], head
            across += numbers.shape[0]
        rows, width = x.shape
        out = x.new_empty(rows, across)
        product = calls.Product(
            kind=KINDS[tables[0].numbers.dtype],
            rows=rows,
            width=width,
            across=across,
            x=x.data_ptr(),
            out=out.data_ptr(),
            tables=ctypes.addressof(told),
            parts=len(tables),
        )
        self._share(self._product, product, rows * across * width)
        return out

    def norm(self, x: Tensor, gain: Tensor, floor: float) -> Tensor:
        """x / sqrt(sum(x^2) + floor) x gain: Float32[Tensor, "... hidden"], Float32[Tensor, "hidden"]"""
        out = torch.empty_like(x)
        width = gain.shape[0]
        norm = calls.Norm(
            rows=x.numel() // width,
            width=width,
            x=x.data_ptr(),
            gain=gain.data_ptr(),
            out=out.data_ptr(),
            floor=floor,
        )
        self._norm(ctypes.byref(norm))
        return out

    def add_norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """norm(x + y) of many positions. All are of one kind, float32 or bfloat16.

        Float[Tensor, "... hidden"], twice  ->  the same
        Raises InputError where they do not fit each other.
        """
        x, y, gain, bias = (one.contiguous() for one in (x, y, norm.weight, norm.bias))
        width = x.shape[-1]
        kinds = {one.dtype for one in (x, y, gain, bias)}
        if x.shape != y.shape or gain.shape != (width,) or bias.shape != (width,) or kinds not in MANY_OF:
            said = ", ".join(kind_of(one) for one in (x, y, gain))
            raise InputError(
                f"the two sides of a sum and the gain of its norm are {said}: shapes and kinds must agree, and these "
                "be float32 or bfloat16"
            )
        out, rows = torch.empty_like(x), x.numel() // width
        room = x.new_empty(torch.get_num_threads(), width, dtype=torch.float32)
        told = calls.AddNorm(
            rows=rows,
            width=width,
            narrow=x.dtype == torch.bfloat16,
            x=x.data_ptr(),
            y=y.data_ptr(),
            gain=gain.data_ptr(),
            bias=bias.data_ptr(),
            out=out.data_ptr(),
            room=room.data_ptr(),
            eps=norm.eps,
        )
        self._share(self._add_norm, told, rows * width)
        return out

    def gated(self, both: Tensor, dtype: torch.dtype) -> Tensor:
        """silu(gate) x input, which stand side by side, in any kind of number.

        both: Float[Tensor, "... 2*inner"]  ->  Float[Tensor, "... inner"] of kind `dtype`
        """
        both = _readable(both)
        inner = both.shape[-1] // 2
        out = both.new_empty(*both.shape[:-1], inner, dtype=dtype)
        gated = calls.Gated(
            rows=out.numel() // inner,
            width=inner,
            both=both.data_ptr(),
            both_narrow=both.dtype == torch.bfloat16,
            out=out.data_ptr(),
            out_narrow=dtype == torch.bfloat16,
        )
        self._gated(ctypes.byref(gated))
        return out

    def attend(self, together: Tensor, asking: Asking, remembered: KeyValues, dtype: torch.dtype) -> Tensor:
        """One new position of each row, beside all that is remembered; it is remembered too.

        together: Float[Tensor, "rows (heads+2*shared)*width"], heads of query, key and value, in any kind
        ->  Float[Tensor, "rows heads*width"] of kind `dtype`
        Raises InputError where the mask or what is remembered has other sizes: the kernels would read beside it.
        """
        heads, shared, width, scale, rotation, mask = asking
        rows, together = together.shape[0], _readable(together)
        wide = together.new_empty(rows, (heads + 2 * shared) * width, dtype=torch.float32)
        memory = remembered.reserve(2 * shared, width, wide)
        filled, slots = remembered.filled, memory.shape[2]
        if mask is not None and (mask.shape[1] != filled or mask.shape[0] not in (1, rows)):
            raise InputError(f"mask is {kind_of(mask)}, and this cache holds {rows} rows of {filled}: make a new cache")
        angles = None if rotation is None else rotation.of_pairs()
        remember = calls.Remember(
            rows=rows,
            heads=heads,
            shared=shared,
            width=width,
            slots=slots,
            slot=filled - 1,
            together=together.data_ptr(),
            narrow=together.dtype == torch.bfloat16,
            wide=wide.data_ptr(),
            memory=memory.data_ptr(),
            angles=_place(angles),
            angles_differ=angles is not None and angles.shape[0] > 1,
            scale=scale,
        )
        self._remember(ctypes.byref(remember))
        out = wide.new_empty(rows, heads * width, dtype=dtype)
        room = wide.new_empty(torch.get_num_threads(), filled + width)
        mix = calls.Mix(
            rows=rows,
            heads=heads,
            shared=shared,
            width=width,
            slots=slots,
            filled=filled,
            wide=wide.data_ptr(),
            memory=memory.data_ptr(),
            room=room.data_ptr(),
            mask=_place(mask),
            mask_differs=mask is not None and mask.shape[0] > 1,
            out=out.data_ptr(),
            narrow=dtype == torch.bfloat16,
        )
        self._share(self._mix, mix, rows * heads * filled * width)
        return out

    def mix(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """softmax(query . key x scale) . value of many positions. All are of one kind, float32 or bfloat16.

        query: Float[Tensor, "rows heads seq width"]; key, value: Float[Tensor, "rows shared source width"]
        mask: Bool[Tensor, "rows|1 source"], True where a position may be looked at; None where all may.
        ->  Float[Tensor, "rows seq heads width"]
        Raises InputError where they do not fit each other: the kernel would read beside them.
        """
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        rows, heads, seq, width = query.shape
        shared, source = key.shape[1:3]
        fit = key.shape == value.shape == (rows, shared, source, width) and heads % shared == 0
        if not fit or {query.dtype, key.dtype, value.dtype} not in MANY_OF:
            said = ", ".join(kind_of(x) for x in (query, key, value))
            raise InputError(
                f"query, key and value are {said}: rows, width and whole shares of heads must agree, and the kind, "
                "float32 or bfloat16"
            )
        if mask is not None and (mask.dtype != torch.bool or mask.shape[1] != source or mask.shape[0] not in (1, rows)):
            raise InputError(
                f"mask is {kind_of(mask)}, and key {kind_of(key)}: Bool of as many rows and positions is expected"
            )
        mask = None if mask is None else mask.contiguous()
        out = query.new_empty(rows, seq, heads, width)
        each = calls.MixAll.room_for(source, width)
        room = query.new_empty(torch.get_num_threads() * each, dtype=torch.float32)
        told = calls.MixAll(
            rows=rows,
            heads=heads,
            shared=shared,
            seq=seq,
            source=source,
            width=width,
            narrow=query.dtype == torch.bfloat16,
            mask=_place(mask),
            mask_differs=mask is not None and mask.shape[0] > 1,
            out=out.data_ptr(),
            room=room.data_ptr(),
            room_each=each,
            scale=scale,
        )
        for name, one in (("query", query), ("key", key), ("value", value)):
            steps = zip(("", "_row", "_head", "_step"), (one.data_ptr(), *one.stride()))
            for ending, number in steps:
                setattr(told, name + ending, number)
        self._share(self._mix_all, told, rows * heads * seq * source * width)
        return out

    def _share(self, kernel: int, call: ctypes.Structure, work: int) -> None:
        """Has the threads share it, or does it here and now; work: its multiplications."""
        self._abreast(kernel, ctypes.byref(call), torch.get_num_threads() if work > SMALL else 1, 0)


def _readable(x: Tensor) -> Tensor:
    """Without gaps, in a kind that the kernels know: within a caller's `torch.autocast` products may be float16."""
    return (x if x.dtype in (torch.float32, torch.bfloat16) else x.float()).contiguous()


def _place(one: Tensor | None) -> int:
    return 0 if one is None else one.data_ptr()
