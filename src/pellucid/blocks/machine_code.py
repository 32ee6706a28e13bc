"""The kernels as machine code: compiled once for a processor, cached in a file, and loaded into memory.

Compiling by numba takes seconds. A process that finds the file does not need numba; on processors other than x86-64,
llvmlite, which numba depends on, links the code each time.
"""

import contextlib
import hashlib
import importlib
import importlib.metadata
import logging
import mmap
import os
import stat
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pellucid.blocks.code_image import LINKS_AHEAD, NOT_RUN, Image, link
from pellucid.errors import InputError, ResourceError
from pellucid.files import is_own, write_atomically
from pellucid.machine import processor_info
from pellucid.paths import cache_folder

log = logging.getLogger("pellucid")

DIGEST = 32
"""Bytes of the digest at the beginning of the file, which covers its name and content."""

KERNEL_MODULES = (
    "kernel_arguments",
    "numba_language",
    "simd",
    "kernels",
    "attention_kernels",
    "low_bit_sums",
    "low_bit_kernels",
    "dequantise_kernels",
    "code_image",
)
"""Modules of the kernels and of their arguments."""

MIN_FREE_BYTES = 1 << 16
"""More bytes than the file will take."""


def kernels_in_memory() -> "Image | Relinked":
    """Returns all kernels, loaded into memory for the lifetime of the result.

    Raises ImportError if numba or llvmlite is missing, ResourceError or InputError if the code must not be executed, or
    can be neither read nor compiled and stored, and whatever these libraries raise if they are broken.
    """
    _check_executable_memory()
    path = _cache_path()
    code = _cached_code(path) or _compile_to(path)
    return Image(code) if LINKS_AHEAD else Relinked(code)


class Relinked:
    """Kernels linked by LLVM in each process, which takes 25 ms and 45 MB."""

    def __init__(self, code: bytes) -> None:
        import llvmlite.binding as llvm

        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, kernel: str) -> int:
        """The address of a kernel."""
        return self._engine.get_function_address(kernel)


def _target_machine() -> Any:
    """LLVM's target for this processor."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    options = {"reloc": "pic", "codemodel": "small"} if LINKS_AHEAD else {"jit": True}
    host = llvm.Target.from_default_triple()
    return host.create_target_machine(llvm.get_host_cpu_name(), features, opt=3, **options)


def _check_executable_memory() -> None:
    """Raises ResourceError if a process must not run code that it has written itself: LLVM would load it all the same,
    and the first call would end the process."""
    writes_and_runs = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    try:
        mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=writes_and_runs).close()
    except OSError as error:
        raise ResourceError(NOT_RUN) from error


def _cache_path() -> Path:
    """The file's path, which depends on the user, the processor, the sources of the kernels, and the versions and
    settings of the compiler."""
    makers = [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    makers += sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    about = f"{os.getuid()} {makers} {sorted(processor_info().items())}"
    return cache_folder() / f"kernels-{hashlib.sha256(_kernel_sources() + about.encode()).hexdigest()[:16]}.bin"


def _kernel_sources() -> bytes:
    """The sources of the kernels as installed: as files, in an archive, or as bytecode."""
    found: list[Any] = [find_spec(f"pellucid.blocks.{name}") for name in KERNEL_MODULES]
    return b"".join(one.loader.get_data(one.origin) for one in found)


def _cached_code(path: Path) -> bytes | None:
    """The code in the file; None if there is no file, it is incomplete, or another user could have written it: it is
    going to be executed. All checks are on the open file, since the path may be replaced meanwhile."""
    with contextlib.suppress(OSError):
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # no link is followed, no pipe waited for
        with os.fdopen(opened, "rb") as file:
            if _is_own_file(os.fstat(opened)):
                digest, code = file.read(DIGEST), file.read()
                return code if digest == _digest(path, code) else None
    return None


def _is_own_file(file_stat: os.stat_result) -> bool:
    """Whether it is a regular file that no other user can have written."""
    return stat.S_ISREG(file_stat.st_mode) and is_own(file_stat)


def _digest(path: Path, code: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + code).digest()


def _compile_to(path: Path) -> bytes:
    _check_writable(path.parent)
    from pellucid.blocks.numba_language import object_code

    for name in KERNEL_MODULES:
        importlib.import_module(f"pellucid.blocks.{name}")
    log.info("compiling for this processor, once: %s", path)
    code = object_code(_target_machine())
    code = link(code) if LINKS_AHEAD else code
    write_atomically(path, lambda file: file.write(_digest(path, code) + code), mode=stat.S_IRUSR | stat.S_IWUSR)
    return code


def _check_writable(folder: Path) -> None:
    """Raises InputError if the code cannot be stored, before each process spends seconds compiling it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(MIN_FREE_BYTES))
            file.flush()
            is_own_file = _is_own_file(os.fstat(file.fileno()))
            reason = "" if is_own_file else "a file there belongs to others, or they may write it"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise InputError(
            f"{folder} cannot keep the compiled kernels ({reason}): set PELLUCID_CACHE to a folder of yours"
        )
