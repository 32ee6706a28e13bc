"""PyTorch's oldest `.bin` files, from before it wrote zips: three small pickles, the main one, then the numbers.

The restricted unpickler reads them in the end. Before it does, the pickles are read as a list of words, which runs
nothing: each word must be one that PyTorch writes for tensors, each name one that tensors need, and the storages
together no larger than the file, since they are set aside before a number is read.
"""

import pickletools
from pathlib import Path
from typing import Any, BinaryIO

from pellucid.errors import CorruptFileError, UnsafeFileError

MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first pickle of such a file, byte for byte."""

_MOST_WORDS = 2_000_000
_WORDS = frozenset(
    """PROTO STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 NONE NEWTRUE NEWFALSE BININT BININT1
    BININT2 LONG1 BINUNICODE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL REDUCE BINPERSID SETITEM SETITEMS APPEND
    APPENDS BUILD""".split()
)
_WIDTHS = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Char": 1, "Byte": 1}
_NAMES = {f"torch {kind}Storage": width for kind, width in (_WIDTHS | {"Bool": 1}).items()}
_HARMLESS = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"}
_INTEGERS = ("BININT", "BININT1", "BININT2", "LONG1")
Word = tuple[str, Any]


def check_oldest(path: Path) -> None:
    """Refuses a file that says anything else than tensors, or claims more numbers than it holds."""
    size = path.stat().st_size
    storages: dict[str, int] = {}
    with path.open("rb") as file:
        file.seek(len(MAGIC))
        for _ in range(4):  # its version, the machine it was written on, the tensors, the names of their storages
            _read_words(path, file, storages)
    if (claimed := sum(storages.values())) > size:
        raise CorruptFileError(f"{path} claims {claimed:,} bytes of numbers and has {size:,} in all: it is damaged")


def _read_words(path: Path, file: BinaryIO, storages: dict[str, int]) -> None:
    """Reads one pickle as words; takes down the bytes of each storage that it asks for, by the storage's key."""
    known: dict[str, Word] = {}  # what the pickle keeps to say it again
    last: list[Word] = []
    try:
        for count, (code, argument, _) in enumerate(pickletools.genops(file)):
            if code.name not in _WORDS or count > _MOST_WORDS:
                raise _unsafe(path, f"the word {code.name}" if count <= _MOST_WORDS else "too many words")
            if code.name == "PROTO" and argument != 2:
                raise _unsafe(path, f"pickle protocol {argument}")
            if code.name == "GLOBAL" and argument not in _NAMES and argument not in _HARMLESS:
                raise _unsafe(path, ascii(argument)[:80])
            if code.name == "BINPERSID":
                _take_down(path, last, storages)
            if "PUT" in code.name:
                known[str(argument)] = last[-1] if last else ("", None)
            else:
                word = known.get(str(argument), ("", None)) if "GET" in code.name else (code.name, argument)
                last = [*last[-5:], word]
    except (ValueError, EOFError, UnicodeDecodeError, OverflowError) as error:
        raise CorruptFileError(f"{path} is a damaged PyTorch file: {ascii(str(error))[1:-1][:120]}") from error


def _take_down(path: Path, last: list[Word], storages: dict[str, int]) -> None:
    """Before a storage stand its kind, key, device and count, then NONE and TUPLE; in this order or not at all."""
    kinds = tuple(name for name, _ in last)
    if kinds[:3] != ("GLOBAL", "BINUNICODE", "BINUNICODE") or kinds[4:] != ("NONE", "TUPLE"):
        raise _unsafe(path, "a storage in an unknown form")
    (_, kind), (_, key), _, (name, count), *_ = last
    if name not in _INTEGERS or not isinstance(count, int) or kind not in _NAMES:
        raise _unsafe(path, "a storage in an unknown form")
    if count < 0:
        raise CorruptFileError(f"{path} is a damaged PyTorch file: a storage of {count} numbers")
    storages[str(key)] = max(storages.get(str(key), 0), count * _NAMES[kind])


def _unsafe(path: Path, what: str) -> UnsafeFileError:
    return UnsafeFileError(
        f"{path} asks for more than tensors when it is opened ({what}), so it was not opened; ask its author for "
        "safetensors"
    )
