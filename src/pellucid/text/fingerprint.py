"""How a tokenizer reads, as a short text: two that have the same one give the same ids."""

import hashlib
from collections.abc import Sequence

from pellucid.errors import CorruptFileError, InputError
from pellucid.text.tokenizer import Tokenizer

_PROBES = (
    "The Quick brown fox jumped over 1,234.5 metres, didn't it?",
    "  ÀÉÎ naïve Straße İstanbul e\u0301 ﬁ Ａ１ ½\tand\nlines\u00a0\u200b ",
    "東京タワー 서울 привет ไทย नमस्ते 🙂👍🏽 \u0000 \ufffd",
)
"""What tokenizers treat differently: case, accents, forms of one character, spaces, scripts, marks, controls."""

_ROOM = 5
"""Tokens of its own that a text keeps where it is cut."""


def fingerprint(tokenizer: Tokenizer) -> str:
    """sha256 of what a tokenizer does: its vocabulary, and the ids and types of texts that show all its switches, whole
    and cut, alone and in pairs.

    What it does is asked, and not how the library writes it down, which changes with the library's version.
    """
    whole = hashlib.sha256(f"{tokenizer.truncation_side} {tokenizer.token_types} {tokenizer.tiled}\n".encode())
    for token, number in sorted(tokenizer.vocab.items(), key=lambda item: (item[1], item[0])):
        whole.update(f"{number} {token}\n".encode())
    added = "".join(f" a{token} b {token}" for token in tokenizer.added_vocab)
    for text in (*_PROBES, added):
        for pairs in (None, [_PROBES[0]]):
            around = tokenizer.added_tokens(pair=pairs is not None)
            for limit in (None, around + _ROOM):
                whole.update(_encoding_text(tokenizer, text, pairs, limit).encode())
    return whole.hexdigest()


def _encoding_text(tokenizer: Tokenizer, text: str, pairs: Sequence[str] | None, limit: int | None) -> str:
    try:
        (row,) = tokenizer.encode([text], pairs, max_length=limit, parse_special_tokens=True)
    except (CorruptFileError, InputError):  # as where a vocabulary has no token for what is unknown
        return "refused\n"
    return f"{row.ids} {row.type_ids}\n"
