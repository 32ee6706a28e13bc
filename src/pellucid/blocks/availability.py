"""Whether compiled kernels can be used in this process."""

import functools
import importlib.util
import logging
import os
import sys
import threading

from pellucid.blocks.kernel_calls import Kernels

log = logging.getLogger("pellucid")

_KERNEL_LOCK = threading.Lock()
"""Held while kernels are loaded: otherwise each thread would compile them, and a fork could find them half loaded."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_KERNEL_LOCK.acquire, after_in_parent=_KERNEL_LOCK.release, after_in_child=_KERNEL_LOCK.release
    )


def installed() -> bool:
    """Whether the extra `fast` is installed, which compiles and links the kernels for this system."""
    return sys.platform == "linux" and all(importlib.util.find_spec(name) for name in ("numba", "elftools"))


@functools.cache  # called at every step, so that the lock is taken only the first time
def usable_kernels() -> Kernels | None:
    """The compiled kernels of this process; None without numba, on systems other than Linux, and where compiled code
    cannot be stored, since compiling takes seconds each time."""
    with _KERNEL_LOCK:
        return loaded_kernels()


@functools.cache
def loaded_kernels() -> Kernels | None:
    """The same, for a thread that holds the lock, and for those that waited for it."""
    try:
        return Kernels() if installed() else None
    except Exception as reason:  # noqa: BLE001 - a numba that does not fit what it stands on raises anything
        log.warning("numba is installed, and its kernels cannot be used: %s", reason)
        return None
