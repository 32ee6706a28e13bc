"""Calls of the compiled kernels for many positions: from tensors to the addresses that `attention_kernels` takes."""

import torch
from torch import Tensor, nn

from pellucid.blocks import kernel_arguments
from pellucid.blocks.checks import kind_of
from pellucid.blocks.thread_pool import ThreadedKernels, address_of
from pellucid.errors import InputError

MANY_OF = ({torch.float32}, {torch.bfloat16})
"""The dtypes that the kernels for many positions accept, one for all arguments."""


class ManyPositionKernels(ThreadedKernels):
    """Kernels for sums with norms, and for attention."""

    def add_norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """norm(x + y) for many positions. All have one dtype, float32 or bfloat16.

        Float[Tensor, "... hidden"], twice  ->  the same shape
        Raises InputError where shapes or dtypes differ.
        """
        x, y, gain, bias = (one.contiguous() for one in (x, y, norm.weight, norm.bias))
        width = x.shape[-1]
        kinds = {one.dtype for one in (x, y, gain, bias)}
        if x.shape != y.shape or gain.shape != (width,) or bias.shape != (width,) or kinds not in MANY_OF:
            shapes = ", ".join(kind_of(one) for one in (x, y, gain))
            raise InputError(
                f"the two sides of a sum and the gain of its norm are {shapes}: shapes and kinds must agree, and these "
                "be float32 or bfloat16"
            )
        out, rows = torch.empty_like(x), x.numel() // width
        scratch = x.new_empty(torch.get_num_threads(), width, dtype=torch.float32)
        call = kernel_arguments.AddNorm(
            rows=rows,
            width=width,
            narrow=x.dtype == torch.bfloat16,
            x=x.data_ptr(),
            y=y.data_ptr(),
            gain=gain.data_ptr(),
            bias=bias.data_ptr(),
            out=out.data_ptr(),
            room=scratch.data_ptr(),
            eps=norm.eps,
        )
        self.run_threaded("add_norm", call, rows * width)
        return out

    def attend_many(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, *, causal: bool = False
    ) -> Tensor:
        """softmax(query . key x scale) . value for many positions. All have one dtype, float32 or bfloat16.

        query: Float[Tensor, "rows heads seq width"]; key, value: Float[Tensor, "rows shared source width"]
        mask: Bool[Tensor, "rows|1 source"], True where attention is allowed; None where it is everywhere.
        causal: whether queries, the last `seq` positions of `source`, see no later keys.
        ->  Float[Tensor, "rows seq heads width"]
        Raises InputError where shapes or dtypes differ: the kernel would read out of bounds.
        """
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        rows, heads, seq, width = query.shape
        key_value_heads, source = key.shape[1:3]
        fit = key.shape == value.shape == (rows, key_value_heads, source, width) and heads % key_value_heads == 0
        fit = fit and not (causal and seq > source)
        if not fit or {query.dtype, key.dtype, value.dtype} not in MANY_OF:
            shapes = ", ".join(kind_of(x) for x in (query, key, value))
            raise InputError(
                f"query, key and value are {shapes}: rows, width and whole shares of heads must agree, and the kind, "
                "float32 or bfloat16"
            )
        if mask is not None and (mask.dtype != torch.bool or mask.shape[1] != source or mask.shape[0] not in (1, rows)):
            raise InputError(
                f"mask is {kind_of(mask)}, and key {kind_of(key)}: Bool of as many rows and positions is expected"
            )
        mask = None if mask is None else mask.contiguous()
        out = query.new_empty(rows, seq, heads, width)
        each = kernel_arguments.AttendMany.scratch_size(source, width)
        scratch = query.new_empty(torch.get_num_threads() * each, dtype=torch.float32)
        call = kernel_arguments.AttendMany(
            rows=rows,
            heads=heads,
            shared=key_value_heads,
            seq=seq,
            source=source,
            before=source - seq if causal else -1,
            width=width,
            narrow=query.dtype == torch.bfloat16,
            mask=address_of(mask),
            mask_differs=mask is not None and mask.shape[0] > 1,
            out=out.data_ptr(),
            room=scratch.data_ptr(),
            room_each=each,
            scale=scale,
        )
        for name, one in (("query", query), ("key", key), ("value", value)):
            steps = zip(("", "_row", "_head", "_step"), (one.data_ptr(), *one.stride()))
            for ending, number in steps:
                setattr(call, name + ending, number)
        self.run_threaded("attend_many", call, rows * heads * seq * source * width)
        return out
