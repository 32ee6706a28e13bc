"""A text file as lines, decoded exactly or refused by line and byte. Other encodings are suggested, never applied."""

import codecs
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from pellucid.errors import Argument, InputError, NotFoundError, did_you_mean, shorten
from pellucid.files import cannot_read
from pellucid.text.character_encodings import SAMPLE_BYTES, encodings_of

MAX_LINE_CHARACTERS = 64 * 2**20
"""Characters of a line; a file without line ends is not read into memory whole."""

MAGIC = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "a zip file (or .xlsx)",
    b"\xd0\xcf\x11\xe0": "an old Office file (.xls)",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"%PDF": "a PDF",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"SQLite format 3\0": "an SQLite database",
    b"\x93NUMPY": "a NumPy array",
    **{b"GGUF" + bytes((version, 0, 0, 0)): "a GGUF model" for version in (1, 2, 3)},
    b"\x7fELF": "a program",
}
"""The first bytes of file types that are often mistaken for text."""

_ENCODINGS = "utf-8 utf-16 utf-16-le utf-16-be latin-1 cp1252 cp1251 shift_jis gb18030 big5".split()


def lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a file with their line ends ("\\n", "\\r" or "\\r\\n"), without a byte order mark at its start.

    Raises NotFoundError, and InputError for a file that begins as another file type, is not in this encoding (with
    line, byte and a guess), holds a NUL, or has a line of more than 64 Mi characters.
    """
    kind, number = python_encoding(encoding), 0
    try:
        with path.open("rb") as file:
            _refuse_other_formats(path, file.read(16), kind)
        with path.open(encoding=kind, newline="") as file:
            line = file.readline(MAX_LINE_CHARACTERS + 1)
            line = line.removeprefix("\ufeff")  # the byte order mark, which many codecs decode as text
            while line:
                number += 1
                if len(line) > MAX_LINE_CHARACTERS:
                    raise InputError(
                        f"{path}, line {number}: longer than {MAX_LINE_CHARACTERS:,} characters, expected text in lines"
                    )
                if "\0" in line:
                    raise InputError(
                        f"{path} holds a NUL in line {number}: it is binary or UTF-16, expected {encoding} text"
                    )
                yield line
                line = file.readline(MAX_LINE_CHARACTERS + 1)
    except FileNotFoundError as error:
        raise missing_file_error(path) from error
    except UnicodeError as error:
        raise _decoding_error(path, encoding, number, error) from error
    except OSError as error:
        raise cannot_read(path, error) from error


def missing_file_error(path: Path) -> NotFoundError:
    """The error for a missing file, with similar names in its folder."""
    try:
        siblings = [one.name for one in path.parent.iterdir() if one.is_file()]
    except OSError:
        siblings = []
    return NotFoundError(f"there is no file {str(path)[:200]!r}{did_you_mean(path.name, siblings)}")


def size_and_time(path: Path) -> tuple[int, int]:
    """Size in bytes and modification time in nanoseconds of a regular file. Raises InputError for anything else."""
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise missing_file_error(path) from error
    except (OSError, ValueError) as error:
        raise cannot_read(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is {'a folder' if stat.S_ISDIR(found.st_mode) else 'no file'}, expected a file")
    return found.st_size, found.st_mtime_ns


def python_encoding(encoding: str) -> str:
    """Python's canonical name of a text encoding. Raises InputError for an unknown one."""
    try:
        found = codecs.lookup(encoding) if isinstance(encoding, str) else None
    except (LookupError, ValueError):
        found = None
    if found is None or found.name in ("idna", "punycode") or not getattr(found, "_is_text_encoding", True):
        hint = did_you_mean(encoding, _ENCODINGS)
        message = f" is {shorten(repr(encoding))}{hint}, expected utf-8, latin-1, utf-16, ..."
        raise InputError(Argument("encoding"), message)
    return "utf-8" if found.name == "utf-8-sig" else found.name


def _refuse_other_formats(path: Path, start: bytes, encoding: str) -> None:
    for magic, name in MAGIC.items():
        if start.startswith(magic):
            raise InputError(f"{path} looks like {name}, expected text")
    if encoding == "utf-8" and start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise InputError(
            f"{path} is not UTF-8 text: it begins as UTF-16 does (line 1, byte 0x{start[0]:02x}); try ",
            Argument("encoding", "utf-16"),
        )


def _decoding_error(path: Path, encoding: str, number: int, error: UnicodeError) -> InputError:
    """The error for undecodable bytes; a UTF-8 file is read again to find the line, since it was decoded in blocks."""
    if not isinstance(error, UnicodeDecodeError):
        return InputError(f"{path} is not {encoding} text: {error}; try another ", Argument("encoding"))
    byte = error.object[error.start]
    if python_encoding(encoding) != "utf-8":
        place = f"after line {number}, " if number else ""
        return InputError(
            f"{path} is not {encoding} text ({place}byte 0x{byte:02x}): try another ",
            Argument("encoding"),
        )
    place, byte, guesses = _first_invalid_byte(path)
    tried = [(" or " if at else "", Argument("encoding", guess)) for at, guess in enumerate(guesses)]
    advice = ("try ", *tried) if tried else ("correct it there, or try another ", Argument("encoding"))
    return InputError(f"{path} is not UTF-8 text (line {place}, byte 0x{byte:02x}): ", *advice)


def _first_invalid_byte(path: Path) -> tuple[int, int, list[str]]:
    """The line of the first byte that is not UTF-8, that byte, and what the encoding may be."""
    number = 1
    with path.open("rb") as file:
        while row := file.readline(MAX_LINE_CHARACTERS):
            try:
                row.decode()
            except UnicodeDecodeError as error:
                before = row[: error.start]
                number += len(re.findall(rb"\r(?!\n)", before))
                file.seek(0 if file.tell() < SAMPLE_BYTES else (file.tell() - len(row)) // 2 * 2)
                return number, row[error.start], encodings_of(file.read(SAMPLE_BYTES))
            number += len(re.findall(rb"\r\n?|\n", row))
    return number, 0, []
