"""PyTorch's default dtype, default device or number of threads, changed temporarily; a file that cannot be opened; and
a marker for tests that need a GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.blocks import availability

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch sees no CUDA GPU")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def in_threads(count: int) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(before)


def forget_kernels() -> None:
    """Clears the caches of the compiled kernels, as in a new process."""
    availability.usable_kernels.cache_clear()
    availability.loaded_kernels.cache_clear()


def make_unopenable(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Makes opening a file fail with PermissionError, also for the superuser."""
    original_open = Path.open

    def refuse(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            raise PermissionError(13, os.strerror(13), str(path))
        return original_open(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
