"""How many characters a tokenizer may make of one: a chain of replacements turns a short text into a giant one."""

import base64
import json
import math
from pathlib import Path
from typing import Any

import tokenizers

from pellucid.errors import CorruptFileError
from pellucid.text.wire import BrokenMessage

MOST_GROWTH = 255
"""Characters that one may become; the longest in Unicode's own tables, U+FDFA, becomes 18."""
MOST_AROUND = 1000
"""Special tokens around a text or a pair."""


def check_growth(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Raises CorruptFileError where a text could grow beyond all use, before or after it is split into tokens."""
    for part, what in ((backend.normalizer, "normalizer"), (backend.decoder, "decoder")):
        growth = 1 if part is None else _factor(json.loads(part.__getstate__()))
        if growth > MOST_GROWTH:
            raise CorruptFileError(
                f"{path}: the {what} may make {growth:,.0f} characters of one, expected at most {MOST_GROWTH}"
            )
    around = max(backend.num_special_tokens_to_add(pair) for pair in (False, True))
    if around > MOST_AROUND:
        raise CorruptFileError(
            f"{path}: {around:,} special tokens stand around a text, expected at most {MOST_AROUND:,}"
        )


def check_tables(path: Path) -> None:
    """Raises BrokenMessage for a normalisation table that claims more than it holds, which the library reserves."""
    raw = path.read_bytes()
    if b"precompiled_charsmap" in raw or b"\\u" in raw:  # by which the name may be written otherwise
        json.loads(raw, object_pairs_hook=_checked)


def _checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, value in pairs:
        if name == "precompiled_charsmap" and value:
            check_size(base64.b64decode(value))
    return dict(pairs)


def check_size(table: bytes) -> None:
    """Raises BrokenMessage where the tree of a table is not there."""
    size = int.from_bytes(table[:4], "little")
    if size % 4 or not 4 <= size <= len(table) - 4:
        raise BrokenMessage(f"its normalisation table says {size:,} bytes of {len(table):,}")


def longest_replacement(table: bytes) -> int:
    """Characters of the longest replacement in a table of sentencepiece's: a size, a tree, texts that end in NUL."""
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(map(len, texts.decode().split("\0")))


def _factor(step: dict[str, Any]) -> float:
    """The most that one character becomes; a pattern may fit between characters, and adds to them."""
    match step["type"]:
        case "Sequence":
            return math.prod(map(_factor, step.get("normalizers") or step.get("decoders") or ()))
        case "Replace":
            old, new = step["pattern"].get("String", ""), step["content"]
            return max(1.0, len(new) / len(old)) if old else 1.0 + len(new)
        case "Prepend":
            return 1.0 + len(step["prepend"])
        case "Precompiled":
            return max(1.0, longest_replacement(base64.b64decode(step["precompiled_charsmap"])))
    return 1.0
