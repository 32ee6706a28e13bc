"""Compiled steps as PyTorch's own threads take them: several at once, each its share."""

import ctypes

import torch
from torch import Tensor

from pellucid.blocks.machine_code import kernels_in_memory

SMALL = 1 << 14
"""Multiplications that one thread is done with before a second has begun."""

WITHIN = ("omp_get_thread_num", "omp_get_num_threads")
"""What the kernels call, by the names of OpenMP."""

SHARED = ("product", "coded", "spelled", "mix", "mix_all", "add_norm")
"""Kernels of which each thread takes its share."""


class ThreadedKernels:
    """The machine code of all kernels, and the threads."""

    def __init__(self) -> None:
        """Raises what `kernels_in_memory` does, and AttributeError where PyTorch has no OpenMP of Linux."""
        # what this process has loaded: PyTorch's threads do this work too, and none wait beside them
        loaded = ctypes.CDLL(None)
        self._run_parallel = loaded.GOMP_parallel
        for name in WITHIN:  # LLVM ends the process where it does not find one
            getattr(loaded, name)
        self.code = kernels_in_memory()
        self._run_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._run_parallel.restype = None
        self._addresses = {kernel: self.code.address(kernel) for kernel in SHARED}

    def run_threaded(self, kernel: str, call: ctypes.Structure, work: int) -> None:
        """Has the threads share it, or does it here and now; work: its multiplications."""
        threads = torch.get_num_threads() if work > SMALL else 1
        self._run_parallel(self._addresses[kernel], ctypes.byref(call), threads, 0)


def address_of(one: Tensor | None) -> int:
    """Where it stands, as a kernel is told."""
    return 0 if one is None else one.data_ptr()
