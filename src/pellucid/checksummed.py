"""JSON files with a digest of themselves and one canonical encoding, so that a change of any byte is detected."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

from pellucid.errors import CorruptFileError, InputError, MessagePart, UnsafeFileError
from pellucid.files import unique_keys


def seal(body: dict[str, Any]) -> bytes:
    """The canonical encoding of these facts. body: as JSON has it, with its "format"."""
    return _bytes(json.dumps({"digest": _digest(body), **body}, indent=1, ensure_ascii=False) + "\n")


def read_sealed(path: Path, version: int, max_bytes: int, remedy: MessagePart) -> dict[str, Any]:
    """The facts in such a file.

    version: of the format that can be read.  max_bytes: the largest size, in bytes.
    remedy: what to do where it is damaged, such as "build again".
    Raises OSError where it cannot be read, CorruptFileError for one that was changed, UnsafeFileError for a link, and
    InputError for one of another version.
    """
    content = _read_small_file(path, max_bytes)
    try:
        body: dict[str, Any] = json.loads(content, object_pairs_hook=unique_keys)
        found = body["format"]
        body.pop("digest", None)
        is_unchanged = seal(body) == content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged_error(path, error, remedy) from error
    if type(found) is int and found != version and 0 < found < 1_000_000:
        writer = f", written by pellucid {str(body['pellucid'])[:20]}" if "pellucid" in body else ""
        upgrade = "upgrade pellucid, or " if found > version else ""
        reads = f"this pellucid reads format {version}: {upgrade}"
        raise InputError(f"{path} is of format {found}{writer}, and {reads}", remedy)
    if not is_unchanged:
        raise CorruptFileError(f"{path} was changed, its digest does not match: restore it, or ", remedy)
    return body


def _read_small_file(path: Path, max_bytes: int) -> bytes:
    """The content of a small file. A pipe or a device has no size, and would be read for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise CorruptFileError(f"{path} is not a regular file: put the file itself there")
    if path.is_symlink():
        raise UnsafeFileError(f"{path} is a link, which may lead outside: put the file itself there")
    with path.open("rb") as file:
        content = file.read(min(path.stat().st_size, max_bytes) + 1)  # allocates no more than the file's size
    if len(content) > max_bytes:
        raise CorruptFileError(f"{path} has more than {max_bytes:,} bytes, and no more than that are read")
    return content


def damaged_error(path: Path, error: Exception, remedy: MessagePart) -> CorruptFileError:
    """The error for a file with invalid content."""
    return CorruptFileError(f"{path} is damaged ({str(error)[:120]}): restore it, or ", remedy)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(_bytes(json.dumps(body, sort_keys=True, ensure_ascii=False))).hexdigest()


def _bytes(text: str) -> bytes:
    """JSON as UTF-8; surrogates, of a path that is not UTF-8, are escaped, and JSON reads them back."""
    return text.encode("utf-8", "backslashreplace")
