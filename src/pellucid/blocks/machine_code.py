"""The kernels as machine code: made once for a processor, kept in a file, and brought into memory.

numba makes it, in seconds. A process that finds the file does without numba; elsewhere than on x86-64 it has llvmlite,
on which numba stands, link the code again.
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
from pellucid.files import cache_folder, is_own, write_atomically
from pellucid.machine import processor_info

log = logging.getLogger("pellucid")

DIGEST = 32
"""Bytes at the beginning of the file that tell whether the rest is whole, and is what its name says."""

KERNEL_MODULES = (
    "calls",
    "numba_language",
    "simd",
    "kernels",
    "attention_kernels",
    "low_bit_kernels",
    "dequantise_kernels",
    "code_image",
)
"""Where the kernels, and what they are told, are written."""

MIN_FREE_BYTES = 1 << 16
"""Bytes that the file will take, and more."""


def kernels_in_memory() -> "Image | Relinked":
    """All kernels, in memory as long as what is given lives.

    Raises ImportError where what makes or links them is missing, an error of ours where the code may not be run, or can
    be neither read nor made and kept, and whatever these libraries raise where they are broken.
    """
    _check_executable_memory()
    path = _cache_path()
    code = _cached_code(path) or _compile_to(path)
    return Image(code) if LINKS_AHEAD else Relinked(code)


class Relinked:
    """Kernels in memory that LLVM links once more: 25 ms and 45 MB for each process."""

    def __init__(self, code: bytes) -> None:
        import llvmlite.binding as llvm

        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, kernel: str) -> int:
        """Where a kernel begins."""
        return self._engine.get_function_address(kernel)


def _target_machine() -> Any:
    """This processor, for LLVM."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    options = {"reloc": "pic", "codemodel": "small"} if LINKS_AHEAD else {"jit": True}
    host = llvm.Target.from_default_triple()
    return host.create_target_machine(llvm.get_host_cpu_name(), features, opt=3, **options)


def _check_executable_memory() -> None:
    """Raises ResourceError where a process may run nothing that it has written itself: LLVM would bring the code into
    memory all the same, and the first call end the process."""
    writes_and_runs = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    try:
        mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=writes_and_runs).close()
    except OSError as error:
        raise ResourceError(NOT_RUN) from error


def _cache_path() -> Path:
    """A file for each user, each processor, each wording of the kernels, and each version and setting of what compiles
    them."""
    makers = [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    makers += sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    about = f"{os.getuid()} {makers} {sorted(processor_info().items())}"
    return cache_folder() / f"kernels-{hashlib.sha256(_kernel_sources() + about.encode()).hexdigest()[:16]}.bin"


def _kernel_sources() -> bytes:
    """The kernels and what they are given, as installed: files, parts of an archive, or without their source."""
    found: list[Any] = [find_spec(f"pellucid.blocks.{name}") for name in KERNEL_MODULES]
    return b"".join(one.loader.get_data(one.origin) for one in found)


def _cached_code(path: Path) -> bytes | None:
    """What the file holds; None where there is none, it is not whole, or somebody else could have written it: code is
    run. All is asked of the one file that is open, since another may take its place meanwhile."""
    with contextlib.suppress(OSError):
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # neither by a link nor waiting at a pipe
        with os.fdopen(opened, "rb") as file:
            if _is_own_file(os.fstat(opened)):
                digest, code = file.read(DIGEST), file.read()
                return code if digest == _digest(path, code) else None
    return None


def _is_own_file(file_stat: os.stat_result) -> bool:
    """Whether it is a file that nobody else can have written."""
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
    write_atomically(path, lambda file: file.write(_digest(path, code) + code), rights=stat.S_IRUSR | stat.S_IWUSR)
    return code


def _check_writable(folder: Path) -> None:
    """Raises InputError where the code could not be kept, before seconds of each process are lost with it."""
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
