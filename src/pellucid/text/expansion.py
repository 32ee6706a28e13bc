"""How many characters a tokenizer can make of one: a chain of replacements can turn a short text into a huge one."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from pellucid.errors import CorruptFileError
from pellucid.text.protobuf import InvalidMessageError
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.truncation import panics_as_errors

MAX_GROWTH = 4095
"""The most characters that one may become, as the product of each step's worst case. ALBERT's come to 3,888: U+FDFA
becomes 18 in Unicode's table and in sentencepiece's."""
MAX_SPECIAL_TOKENS = 1000
"""Special tokens added to a text or a pair."""


def check_growth(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Raises CorruptFileError where a text could grow beyond the limits, before or after it is split into tokens."""
    before = _greatest_growth(path, "normalizer", backend.normalizer) * _greatest_growth(
        path, "pre_tokenizer", backend.pre_tokenizer
    )
    after = _greatest_growth(path, "decoder", backend.decoder)
    for growth, what in ((before, "normalizer and pre_tokenizer"), (after, "decoder")):
        if growth > MAX_GROWTH:
            raise CorruptFileError(
                f"{path}: {what} may make {growth:,.0f} characters of one, expected at most {MAX_GROWTH:,}"
            )
    if backend.pre_tokenizer is not None:
        with panics_as_errors(f"{path}: its pre_tokenizer fails"):
            backend.pre_tokenizer.pre_tokenize_str("a")
    around = max(backend.num_special_tokens_to_add(pair) for pair in (False, True))
    if around > MAX_SPECIAL_TOKENS:
        raise CorruptFileError(
            f"{path}: {around:,} special tokens surround a text, expected at most {MAX_SPECIAL_TOKENS:,}"
        )
    _check_post_processor(backend, path)


def _check_post_processor(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Applies the post-processor to a text and a pair: only that shows a special token that is in no vocabulary."""
    with panics_as_errors(f"{path}: its post_processor fails"):
        text, post_processor = _one_token(), backend.post_processor
        rows = [] if post_processor is None else [post_processor.process(text, second) for second in (None, text)]
    for row in rows:
        for what, numbers in (("id", row.ids), ("type_id", row.type_ids)):
            if max(numbers, default=0) >= 2**31:
                raise CorruptFileError(
                    f"{path}: its post_processor gives the {what} {max(numbers)}, expected one below {2**31}"
                )


def check_template(tokenizer: Tokenizer, path: Path, id_rows: int, type_rows: int) -> None:
    """Raises CorruptFileError where the special tokens added to a text or a pair, or their token types, are beyond the
    rows of the model's embedding tables.

    path: the tokenizer's file.  id_rows, type_rows: rows of the token and the token type embedding table.
    """
    text = _one_token()
    for row in (tokenizer.post_process(text, second, True) for second in (None, text)):
        types = row.type_ids if tokenizer.token_types and type_rows else []
        for what, numbers, rows in (("id", row.ids, id_rows), ("type_id", types, type_rows)):
            if max(numbers, default=-1) >= rows:
                wrong = f"gives the {what} {max(numbers)}, and the model's table of such ends at {rows - 1}"
                raise CorruptFileError(f"{path}: its post_processor {wrong}: correct it")


def _one_token() -> tokenizers.Encoding:
    """An encoding of one token, whose id is 0."""
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).encode("a")


def check_charsmaps(raw: bytes) -> None:
    """Raises InvalidMessageError for a normalisation table whose size field, by which the library allocates, is wrong.

    raw: the bytes of a `tokenizer.json`.
    """
    if b"precompiled_charsmap" in raw or b"\\u" in raw:  # escapes may spell the name differently
        json.loads(raw, object_pairs_hook=_check_charsmap)


def _check_charsmap(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, value in pairs:
        if name == "precompiled_charsmap" and value:
            check_charsmap_size(base64.b64decode(value))
    return dict(pairs)


def check_charsmap_size(table: bytes) -> None:
    """Raises InvalidMessageError where the size field of a table does not fit its bytes."""
    size = int.from_bytes(table[:4], "little")
    if size % 4 or not 4 <= size <= len(table) - 4:
        raise InvalidMessageError(f"its normalisation table says {size:,} bytes of {len(table):,}")


def _greatest_growth(path: Path, what: str, part: Any) -> float:
    """The most characters that one can become by a component of a tokenizer, all of its steps included."""
    left, growth = [] if part is None else [json.loads(part.__getstate__())], 1.0
    while left:
        step = left.pop()
        kind = step["type"]
        if kind == "Sequence":
            left += step[_STEPS_KEY[what]]
        elif kind in GROWTH[what]:
            known = GROWTH[what][kind]
            growth *= known(step) if callable(known) else known
        else:
            raise CorruptFileError(
                f"{path}: {what} has a step {kind[:80]!a}, whose growth of a text is unknown; remove it"
            )
    return growth


def _replace_growth(step: dict[str, Any]) -> float:
    """An empty pattern may match on both sides of a character, and adds to it."""
    old, new = step["pattern"].get("String", ""), step["content"]
    return max(1.0, len(new) / len(old)) if old else 1.0 + 2 * len(new)


def _charsmap_growth(step: dict[str, Any]) -> float:
    """The longest replacement in a sentencepiece table, which is a size, a trie, and NUL-terminated texts."""
    table = base64.b64decode(step["precompiled_charsmap"])
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1.0, *map(len, texts.decode().split("\0")))


_STEPS_KEY = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
"""The key under which a sequence stores its steps."""
_NO_GROWTH = 1.0
GROWTH: dict[str, dict[str, float | Callable[[dict[str, Any]], float]]] = {
    "normalizer": {
        "BertNormalizer": 3.0,  # a Chinese character between spaces
        "ByteLevel": 4.0,
        "Lowercase": 2.0,
        "NFC": 3.0,
        "NFD": 4.0,
        "NFKC": 18.0,
        "NFKD": 18.0,
        "Precompiled": _charsmap_growth,
        "Prepend": lambda step: 1.0 + len(step["prepend"]),
        "Replace": _replace_growth,
        **dict.fromkeys(("Nmt", "Strip", "StripAccents"), _NO_GROWTH),
    },
    "pre_tokenizer": {
        "ByteLevel": lambda step: 4.0 + step["add_prefix_space"],
        "Metaspace": 2.0,  # a mark before a piece
        **dict.fromkeys(("BertPreTokenizer", "CharDelimiterSplit", "Digits", "FixedLength", "Punctuation"), _NO_GROWTH),
        **dict.fromkeys(("Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit"), _NO_GROWTH),
    },
    "decoder": {
        "BPEDecoder": 3.0,  # an empty suffix matches on both sides, as does CTC's empty delimiter
        "CTC": 3.0,
        "Replace": _replace_growth,
        "WordPiece": 2.0,  # a space before a token
        **dict.fromkeys(("ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Strip"), _NO_GROWTH),
    },
}
"""The most characters that one can become, by each type of step in the library."""
