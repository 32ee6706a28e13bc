"""Runs kernels on PyTorch's own threads, each of which takes its share."""

import ctypes
import functools

import torch
from torch import Tensor

from pellucid.blocks.machine_code import kernels_in_memory

SMALL = 1 << 14
"""Multiplications that one thread completes before a second one has started."""

WITHIN = ("omp_get_thread_num", "omp_get_num_threads")
"""Functions of OpenMP that the kernels call."""


class ThreadedKernels:
    """The machine code of all kernels, and the threads to run it."""

    def __init__(self) -> None:
        """Raises what `kernels_in_memory` does, and AttributeError if the process lacks functions of OpenMP."""
        # of the libraries in this process: uses PyTorch's threads, so that no others wait beside them
        loaded = ctypes.CDLL(None)
        self._run_parallel = loaded.GOMP_parallel
        for name in WITHIN:  # LLVM would end the process if one were missing
            getattr(loaded, name)
        self.code = kernels_in_memory()
        self._run_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._run_parallel.restype = None
        self._address = functools.cache(self.code.address)

    def run_threaded(self, kernel: str, call: ctypes.Structure, work: int) -> None:
        """Runs the kernel on all threads, or on this one if there is little work; work: number of multiplications."""
        threads = torch.get_num_threads() if work > SMALL else 1
        self._run_parallel(self._address(kernel), ctypes.byref(call), threads, 0)


def address_of(one: Tensor | None) -> int:
    """The address of a tensor's data, 0 for None."""
    return 0 if one is None else one.data_ptr()
