"""What the library of matrix products does on this processor."""

import functools

import torch
import torch.nn.functional as F


@functools.cache
def one_order() -> bool:
    """Whether a product's terms are added up in one order, whatever tables stand beside.

    MKL's code for AVX2 has several on Intel's processors: what is one product here and three in the reference differs
    there in its last bits.
    """
    width, source = 24, torch.Generator().manual_seed(0)  # that of the tiny models
    tables = [torch.randn(width, width, generator=source) for _ in range(3)]
    inputs = [torch.randn(rows, width, generator=source) for rows in (17, 33, 51)]
    apart = [torch.cat([F.linear(x, table) for table in tables], dim=-1) for x in inputs]
    return all(torch.equal(F.linear(x, torch.cat(tables)), one) for x, one in zip(inputs, apart))
