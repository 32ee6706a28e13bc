"""The hardware: device, dtype, number of processors, and available memory."""

import contextlib
import ctypes
import functools
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pellucid import cgroups
from pellucid.errors import (
    Argument,
    InputError,
    MessagePart,
    ResourceError,
    did_you_mean,
    is_out_of_memory,
    requested_memory,
    shorten,
)

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16")}

NARROWER = {"bfloat16": 16, "int8": 8, "int4": 4}
"""Dtypes smaller than float32, with the bits of one number, the widest first."""

NARROWER_FLOATS = {"bfloat16": NARROWER["bfloat16"]}
"""Those of them that are floating point, the only ones that can be trained and compared with another library's."""

AUTOCAST = ("cpu", "cuda", "mps", "xpu")
"""The device types for which `torch.autocast` may be set."""


class _WithoutAutocast:
    """Suspends the caller's `torch.autocast`, which would round our matrix products."""

    def __enter__(self) -> None:
        self.enabled = [kind for kind in AUTOCAST if torch.is_autocast_enabled(kind)]
        for kind in self.enabled:
            torch.set_autocast_enabled(kind, False)
        super().__enter__()  # pyrefly: ignore

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        super().__exit__(exc_type, exc_value, traceback)  # pyrefly: ignore
        for kind in self.enabled:
            torch.set_autocast_enabled(kind, True)


class no_grad(_WithoutAutocast, torch.no_grad):  # noqa: N801 - called as PyTorch calls it
    """`torch.no_grad` without autocast."""


class inference_mode(_WithoutAutocast, torch.inference_mode):  # noqa: N801
    """`torch.inference_mode` without autocast. mode: False turns it off, for work that needs gradients."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def choose_device(device: str | torch.device) -> torch.device:
    """The device for "cpu", "cuda", "mps" or any other name that PyTorch has; "auto" is the fastest one available."""
    if isinstance(device, str) and device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        kind = str(device).removeprefix("torch.")
        advice: MessagePart = ("; to change the kind of number, pass ", Argument("dtype", kind))
        wrong = f"device is {shorten(repr(device))}, expected 'cpu', 'cuda', 'mps' or 'auto'"
        raise InputError(wrong, advice if kind in DTYPES else "") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', and this PyTorch sees no CUDA GPU; use 'cpu', or install a CUDA build")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device is 'mps', and this machine has no Metal GPU; use 'cpu'")
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, ImportError) as error:  # the class depends on the kind of device
        raise InputError(f"device is {str(chosen)!r}, and this PyTorch finds none here; use 'cpu'") from error
    return chosen


def choose_dtype(
    dtype: str | torch.dtype | None, stored: torch.dtype, device: torch.device, *, more: Iterable[str] = ()
) -> torch.dtype:
    """The dtype for a name: None is float32; "checkpoint" is `stored`; "auto" the fastest that is safe on this device.

    stored: dtype of most of the checkpoint's weights.  more: other names that the caller accepts, for the error.
    """
    if dtype is None:
        return torch.float32
    if isinstance(dtype, torch.dtype):
        chosen = dtype
    elif isinstance(dtype, str) and dtype == "checkpoint":
        chosen = stored
    elif isinstance(dtype, str) and dtype == "auto":
        chosen = fastest_dtype(device)
    elif isinstance(dtype, str) and dtype in DTYPES:
        chosen = DTYPES[dtype]
    else:
        known = (*DTYPES, "auto", "checkpoint", *more)
        wrong = f" is {shorten(repr(dtype))}{did_you_mean(dtype, known)}, expected one of {', '.join(known)}"
        raise InputError(Argument("dtype"), wrong)
    if chosen not in DTYPES.values():  # integer dtypes are for storage only, not for computing
        raise InputError(Argument("dtype"), f" is {chosen}, expected a kind of real number: {', '.join(DTYPES)}")
    return chosen


def fastest_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device is known to multiply it natively and faster than float32; otherwise float32."""
    if device.type == "cuda":
        with torch.cuda.device(device):  # the check below is about the current device; older GPUs only emulate
            native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu" and torch.backends.mkldnn.is_available():
        amx = getattr(torch.cpu, "_is_amx_tile_supported", bool)()  # without it Intel's are slower than float32
        native = torch.ops.mkldnn._is_mkldnn_bf16_supported() and (amx or not is_intel())
    else:
        native = False
    return torch.bfloat16 if native else torch.float32


def widest_dtype(device: torch.device) -> torch.dtype:
    """float64; float32 on Metal, which has no wider dtype."""
    return torch.float32 if device.type == "mps" else torch.float64


def product_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The fastest dtype for matrix products of numbers of `dtype`: float32 for half precision that is no faster."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return dtype
    if dtype == torch.float16:
        return dtype if getattr(torch.cpu, "_is_amx_fp16_supported", bool)() else torch.float32
    return fastest_dtype(device) if dtype == torch.bfloat16 else dtype


def has_int8_products(device: torch.device) -> bool:
    """Whether the processor multiplies 8-bit integers by its own instructions (VNNI), and oneDNN with it."""
    vnni = getattr(torch.cpu, "_is_vnni_supported", bool)
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and vnni() and _int8_products_are_exact()


@functools.cache
def _int8_products_are_exact() -> bool:
    """Whether oneDNN's sums of 8-bit products are exact. Without VNNI they overflow: on an older processor, and where
    ONEDNN_MAX_CPU_ISA declares one, which PyTorch does not check."""
    largest = torch.full((16, 64), 127, dtype=torch.int8, device="cpu")
    return bool((torch._int_mm(largest, largest.t()) == 64 * 127 * 127).all())


def is_intel() -> bool:
    """Whether the processor is made by Intel."""
    return "GenuineIntel" in _vendor_and_family()


@functools.cache
def served_by_mkl() -> bool:
    """Whether Intel's library MKL uses all of the processor: on another vendor's with AVX-512, it uses half."""
    return torch.backends.mkl.is_available() and (is_intel() or "avx512" not in processor_features())


@functools.cache
def mkl_keeps_pace() -> bool:
    """Whether MKL loses nothing by not using another vendor's AVX-512: AMD's family 25 executes it in two halves."""
    family = re.search(r"family\W*(\d+)", _vendor_and_family(), re.IGNORECASE)
    halves = (
        "AuthenticAMD" in _vendor_and_family()
        and family is not None
        and family[1] == "25"
        and "avx512" in processor_features()
    )
    return halves and torch.backends.mkl.is_available()


@functools.cache
def processor_info() -> dict[str, str]:
    """Vendor, model and features of the first processor, from Linux's /proc/cpuinfo; {} on other systems."""
    kinds = "vendor_id,cpu family,model,model name,stepping,flags,CPU implementer,CPU variant,CPU part,Features"
    with contextlib.suppress(OSError):
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")
        lines = (line.partition(":") for line in first.splitlines())
        facts = {name.strip(): fact.strip() for name, _, fact in lines}
        return {name: facts[name] for name in kinds.split(",") if name in facts}
    return {}


def _vendor_and_family() -> str:
    facts = processor_info()
    return f"{facts.get('vendor_id')} family {facts.get('cpu family')}" if facts else platform.processor()


def processor_features() -> list[str]:
    """Features of the processor that speed up matrix products, as PyTorch reports them."""
    checks = {
        "avx2": "_is_avx2_supported",
        "avx512": "_is_avx512_supported",
        "avx512_vnni": "_is_vnni_supported",
        "avx512_bf16": "_is_avx512_bf16_supported",
        "amx": "_is_amx_tile_supported",
        "amx_fp16": "_is_amx_fp16_supported",
    }
    return [name for name, check in checks.items() if getattr(torch.cpu, check, bool)()]


def require_memory(numbers: int, bits: int, device: torch.device, alternatives: Mapping[str, int] = NARROWER) -> None:
    """Raises ResourceError, before anything is allocated, where this machine has not enough memory.

    numbers: how many, of `bits` each.  alternatives: the narrower dtypes that the caller can choose instead, by an
        argument `dtype`; {} where there is no such choice.
    """
    needed, free = numbers * bits // 8, free_memory() if device.type == "cpu" else None
    if free is None or needed <= free:
        return
    narrower_dtypes = {name: few for name, few in alternatives.items() if few < bits}
    fits = next((name for name, few in narrower_dtypes.items() if numbers * few // 8 <= free), None)
    advice: MessagePart = "take a smaller model"
    if fits:
        advice = ("try ", Argument("dtype", fits), f", which takes {_PARTS[bits // narrower_dtypes[fits]]} of it")
    raise ResourceError(
        f"this model needs {needed / 2**30:.1f} GiB for its weights and {free / 2**30:.1f} GiB are free; ", advice
    )


_PARTS = {2: "a half", 4: "a quarter", 8: "an eighth", 16: "a sixteenth"}


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turns a failed allocation within the block into a ResourceError; PyTorch raises a bare RuntimeError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        size = requested_memory(error)
        more = f"{size} more" if size else "more"
        raise ResourceError(
            f"this model needs {more} of memory than the system gives; make room, or take a smaller one"
        ) from error


def release_memory() -> None:
    """Returns freed memory to the system, where the C library (glibc) would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def retain_freed_memory() -> None:
    """Keeps freed memory in the process, where the C library (glibc) would return it to the system.

    A training step allocates and frees hundreds of megabytes, and fresh pages cost up to a tenth of the step.
    `release_memory` returns it.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if choose is not None:
        trim_threshold, map_threshold = -1, -3  # their numbers in malloc.h
        choose(trim_threshold, 2**31 - 1)
        if not choose(map_threshold, 2**30):
            choose(map_threshold, 2**25)  # the maximum of older versions


def free_memory() -> int | None:
    """Bytes that can still be allocated within the limits of the machine, this process's control groups and its `ulimit
    -v`; None where no limit is known."""
    limits = [*cgroups.available_memory(), *_address_space_left()]
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        limits.append(_available_memory())
    return min(limits, default=None)


def _address_space_left() -> list[int]:
    """Bytes left within the limit of this process's address space, if it has one."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # another system
        import resource

        limit, used_pages = resource.getrlimit(resource.RLIMIT_AS)[0], Path("/proc/self/statm").read_text().split()[0]
        return [limit - int(used_pages) * resource.getpagesize()] if limit != resource.RLIM_INFINITY else []
    return []


def _available_memory() -> int:
    if (kibibytes := cgroups.statistic(Path("/proc/meminfo"), "MemAvailable:")) is not None:
        return kibibytes * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_cores() -> int:
    """Processors that this process may use, by its affinity and its control groups; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *cgroups.processor_limits()]))
