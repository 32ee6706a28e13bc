"""Machine code that runs wherever it lies: linked once, when it is made, so that a process needs room for it alone.

What LLVM writes is a file for a linker: parts, and the places in them that are to tell how far away something else is
(Tool Interface Standard, ELF 1.2; System V ABI, AMD64 supplement, 4.4). Here the parts stand side by side, so these
distances hold at any address. What is called outside is reached by a jump to an address that each process fills in.
"""

import ctypes
import json
import mmap
import platform
import struct
from io import BytesIO
from typing import Any

from pellucid.errors import ResourceError

LINKS_AHEAD = platform.machine() == "x86_64"
"""Whether distances are known to be told in one way alone, as this processor's code tells them."""

NOT_RUN = (
    "this system does not let a process run code that it has compiled (SELinux, or systemd's MemoryDenyWriteExecute)"
)

WRITTEN, IN_MEMORY = 1, 2
"""Of a part that the code writes, or needs when it runs: SHF_WRITE, SHF_ALLOC."""

DISTANCES = (2, 4)
"""Ways of telling how far away something is, 32 bits each: R_X86_64_PC32, and R_X86_64_PLT32 of what is called."""

JUMP, JUMP_BYTES = b"\xff\x25", 8
"""To the address that stands so many bytes away: jmp *distance(%rip). Bytes from a jump, which takes six, to that
address."""


class Image:
    """Kernels in memory, as long as this object lives.

    image: what `link` made.
    Raises ResourceError where a process may run nothing that it has written itself.
    """

    def __init__(self, image: bytes) -> None:
        about, _, code = image.partition(b"\n")
        header, system = json.loads(about), ctypes.CDLL(None)
        self._kernel_offsets: dict[str, int] = header["kernels"]
        self._memory = mmap.mmap(-1, len(code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory[:] = code
        for name, offset in header["outside"].items():
            address = ctypes.cast(getattr(system, name), ctypes.c_void_p).value
            struct.pack_into("=Q", self._memory, offset, address)
        self._base_address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        if system.mprotect(
            ctypes.c_void_p(self._base_address), ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_EXEC
        ):
            raise ResourceError(NOT_RUN)

    def address(self, kernel: str) -> int:
        """Where a kernel begins."""
        return self._base_address + self._kernel_offsets[kernel]


def link(code: bytes) -> bytes:
    """An image of a file for a linker: a line that tells where its kernels begin and where addresses from outside are
    to stand, and all parts side by side.

    Raises RuntimeError where the file asks for more than distances, or for memory to write into.
    """
    from elftools.elf.elffile import ELFFile
    from elftools.elf.relocation import RelocationSection
    from elftools.elf.sections import SymbolTableSection

    file, image = ELFFile(BytesIO(code)), bytearray()
    section_offsets: dict[int, int] = {}
    for number, part in enumerate(file.iter_sections()):
        if part["sh_flags"] & IN_MEMORY and part.name != ".eh_frame":  # no exception leaves a kernel, nor passes it
            if part["sh_flags"] & WRITTEN and part["sh_size"]:
                raise RuntimeError(
                    f"the compiled code writes into {part.name}, and its image is read-only: unset NUMBA_BOUNDSCHECK, "
                    "NUMBA_DEBUGINFO and the like in the environment"
                )
            _align(image, part["sh_addralign"])
            section_offsets[number] = len(image)
            image += part.data()
    tables = [part for part in file.iter_sections() if isinstance(part, SymbolTableSection)]
    symbols = [one for table in tables for one in table.iter_symbols()]  # there is one
    outside = {one.name: _append_jump(image) for one in symbols if one["st_shndx"] == "SHN_UNDEF" and one.name}
    at = [_symbol_offset(one, section_offsets, outside) for one in symbols]
    for part in file.iter_sections():
        if not isinstance(part, RelocationSection) or part["sh_info"] not in section_offsets:
            continue
        for one in part.iter_relocations():
            there = at[one["r_info_sym"]]
            if one["r_info_type"] not in DISTANCES or there is None:
                raise RuntimeError(f"the compiled code has an unsupported relocation, type {one['r_info_type']}")
            here = section_offsets[part["sh_info"]] + one["r_offset"]
            struct.pack_into("<i", image, here, there + one["r_addend"] - here)
    kernels = {one.name: there for one, there in zip(symbols, at) if one["st_info"]["bind"] == "STB_GLOBAL"}
    header = {
        "kernels": {name: there for name, there in kernels.items() if name not in outside},
        "outside": {name: there + JUMP_BYTES for name, there in outside.items()},
    }
    return json.dumps(header).encode() + b"\n" + bytes(image)


def _append_jump(image: bytearray) -> int:
    """Adds a jump, with the address where it leads to behind it; where the jump stands."""
    _align(image, JUMP_BYTES)
    here, jump = len(image), JUMP + struct.pack("<i", JUMP_BYTES - len(JUMP) - 4)
    image += jump.ljust(JUMP_BYTES, b"\0") + bytes(8)
    return here


def _symbol_offset(symbol: Any, section_offsets: dict[int, int], outside: dict[str, int]) -> int | None:
    """Where it stands in the image; None where it is not in there."""
    if symbol.name in outside:
        return outside[symbol.name]
    begin = section_offsets.get(symbol["st_shndx"])
    return None if begin is None else begin + symbol["st_value"]


def _align(image: bytearray, size: int) -> None:
    """Up to a multiple of `size`."""
    image += bytes(-len(image) % max(size, 1))
