"""Properties of the matrix products of this processor's libraries."""

import functools
import os
import platform
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

AVX2_ENVIRONMENT = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""Environment variables that restrict the libraries, before they start, to AVX2."""


needs_x86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="older processors of this kind are meant"
)


def run_with_avx2(script: str) -> None:
    """Runs `script` in a process restricted to AVX2; it must succeed."""
    environment = os.environ | AVX2_ENVIRONMENT
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert not result.returncode, result.stderr


@functools.cache
def has_fixed_sum_order() -> bool:
    """Whether a product's terms are added in the same order whatever other weights are in the same product.

    MKL's code for AVX2 uses several orders on Intel's processors: a product that is joint here and three in the
    reference differs there in its last bits.
    """
    width, generator = 24, torch.Generator().manual_seed(0)  # the width of the tiny models
    tables = [torch.randn(width, width, generator=generator) for _ in range(3)]
    inputs = [torch.randn(rows, width, generator=generator) for rows in (17, 33, 51)]
    separate = [torch.cat([F.linear(x, table) for table in tables], dim=-1) for x in inputs]
    return all(torch.equal(F.linear(x, torch.cat(tables)), one) for x, one in zip(inputs, separate))
