"""Position-independent machine code that is linked once, when compiled, so that a process only needs to load it.

LLVM writes an object file: sections, and relocations in them, which are to hold distances to other code or data (Tool
Interface Standard, ELF 1.2; System V ABI, AMD64 supplement, 4.4). Here the sections are concatenated, so these
distances hold at any address. External functions are called through jumps to addresses that each process fills in.
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
"""Whether all relocations are known to be relative, as they are on this processor."""

NOT_RUN = (
    "this system does not let a process run code that it has compiled (SELinux, or systemd's MemoryDenyWriteExecute)"
)

WRITTEN, IN_MEMORY = 1, 2
"""Flags of writable sections and of those loaded at run time: SHF_WRITE, SHF_ALLOC."""

DISTANCES = (2, 4)
"""Relocations by a 32-bit distance: R_X86_64_PC32, and R_X86_64_PLT32 for calls."""

JUMP, JUMP_BYTES = b"\xff\x25", 8
"""jmp *distance(%rip), a jump to the address stored at a distance; and the bytes from the jump, which takes six, to
that address."""


class Image:
    """Kernels in memory, for the lifetime of this object.

    image: the result of `link`.
    Raises ResourceError if a process must not run code that it has written itself.
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
        """The address of a kernel."""
        return self._base_address + self._kernel_offsets[kernel]


def link(code: bytes) -> bytes:
    """Links an object file to an image: a line with the offsets of kernels and external addresses, then all sections.

    Raises RuntimeError if the file needs other relocations, or writable memory.
    """
    from elftools.elf.elffile import ELFFile
    from elftools.elf.relocation import RelocationSection
    from elftools.elf.sections import SymbolTableSection

    file, image = ELFFile(BytesIO(code)), bytearray()
    section_offsets: dict[int, int] = {}
    for number, part in enumerate(file.iter_sections()):
        if part["sh_flags"] & IN_MEMORY and part.name != ".eh_frame":  # no exception passes through a kernel
            if part["sh_flags"] & WRITTEN and part["sh_size"]:
                raise RuntimeError(
                    f"the compiled code writes into {part.name}, and its image is read-only: unset NUMBA_BOUNDSCHECK, "
                    "NUMBA_DEBUGINFO and the like in the environment"
                )
            _align(image, part["sh_addralign"])
            section_offsets[number] = len(image)
            image += part.data()
    tables = [part for part in file.iter_sections() if isinstance(part, SymbolTableSection)]
    symbols = [one for table in tables for one in table.iter_symbols()]  # there is one such table
    outside = {one.name: _append_jump(image) for one in symbols if one["st_shndx"] == "SHN_UNDEF" and one.name}
    at = [_symbol_offset(one, section_offsets, outside) for one in symbols]
    for part in file.iter_sections():
        if not isinstance(part, RelocationSection) or part["sh_info"] not in section_offsets:
            continue
        for one in part.iter_relocations():
            symbol_offset = at[one["r_info_sym"]]
            if one["r_info_type"] not in DISTANCES or symbol_offset is None:
                raise RuntimeError(f"the compiled code has an unsupported relocation, type {one['r_info_type']}")
            relocation_offset = section_offsets[part["sh_info"]] + one["r_offset"]
            struct.pack_into("<i", image, relocation_offset, symbol_offset + one["r_addend"] - relocation_offset)
    kernels = {
        one.name: symbol_offset for one, symbol_offset in zip(symbols, at) if one["st_info"]["bind"] == "STB_GLOBAL"
    }
    header = {
        "kernels": {name: symbol_offset for name, symbol_offset in kernels.items() if name not in outside},
        "outside": {name: symbol_offset + JUMP_BYTES for name, symbol_offset in outside.items()},
    }
    return json.dumps(header).encode() + b"\n" + bytes(image)


def _append_jump(image: bytearray) -> int:
    """Appends a jump, followed by the address that it leads to; returns the jump's offset."""
    _align(image, JUMP_BYTES)
    offset, jump = len(image), JUMP + struct.pack("<i", JUMP_BYTES - len(JUMP) - 4)
    image += jump.ljust(JUMP_BYTES, b"\0") + bytes(8)
    return offset


def _symbol_offset(symbol: Any, section_offsets: dict[int, int], outside: dict[str, int]) -> int | None:
    """The offset of a symbol in the image; None if it is not there."""
    if symbol.name in outside:
        return outside[symbol.name]
    begin = section_offsets.get(symbol["st_shndx"])
    return None if begin is None else begin + symbol["st_value"]


def _align(image: bytearray, size: int) -> None:
    """Pads to a multiple of `size`."""
    image += bytes(-len(image) % max(size, 1))
