"""Whether this process has compiled steps."""

import functools
import importlib.util
import logging
import os
import sys
import threading

from pellucid.blocks.steps import Kernels

log = logging.getLogger("pellucid")

_KERNEL_LOCK = threading.Lock()
"""Held while kernels are looked for: several threads would each compile them, and a fork find them half made."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_KERNEL_LOCK.acquire, after_in_parent=_KERNEL_LOCK.release, after_in_child=_KERNEL_LOCK.release
    )


def installed() -> bool:
    """Whether the extra `fast` is there, which compiles for this system, and links."""
    return sys.platform == "linux" and all(importlib.util.find_spec(name) for name in ("numba", "elftools"))


@functools.cache  # asked at every step, so that the lock is for the first time alone
def usable_kernels() -> Kernels | None:
    """The compiled steps of this process; None without numba, elsewhere than on Linux, and where their code cannot be
    kept, since seconds of work are not to be done each time."""
    with _KERNEL_LOCK:
        return loaded_kernels()


@functools.cache
def loaded_kernels() -> Kernels | None:
    """The same, for one thread at a time, and for those that waited."""
    try:
        return Kernels() if installed() else None
    except Exception as reason:  # noqa: BLE001 - a numba that does not fit what it stands on raises anything
        log.warning("numba is installed, and its kernels cannot be used: %s", reason)
        return None
