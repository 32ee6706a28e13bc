"""A short digest of a tokenizer's behaviour: two tokenizers with the same one return the same ids."""

import hashlib
from collections.abc import Sequence

from pellucid.errors import CorruptFileError, InputError
from pellucid.text.tokenizer import Tokenizer

_PROBE_TEXTS = (
    "The Quick brown fox jumped over 1,234.5 metres, didn't it?",
    "  ÀÉÎ naïve Straße İstanbul e\u0301 ﬁ Ａ１ ½\tand\nlines\u00a0\u200b ",
    "東京タワー 서울 привет ไทย नमस्ते 🙂👍🏽 \u0000 \ufffd",
)
"""What tokenizers treat differently: case, accents, compatibility characters, spaces, scripts, marks, controls."""

_TRUNCATED_TOKENS = 5
"""Tokens of its own that a truncated text keeps."""


def fingerprint(tokenizer: Tokenizer) -> str:
    """sha256 of a tokenizer's behaviour: its vocabulary, and the ids and types of texts that reveal all its options,
    whole and truncated, alone and in pairs.

    It covers the results and not the library's serialisation, which changes with the library's version.
    """
    digest = hashlib.sha256(f"{tokenizer.truncation_side} {tokenizer.token_types} {tokenizer.tiled}\n".encode())
    for token, number in sorted(tokenizer.vocab.items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{number} {token}\n".encode())
    added = "".join(f" a{token} b {token}" for token in tokenizer.added_vocab)
    for text in (*_PROBE_TEXTS, added):
        for pairs in (None, [_PROBE_TEXTS[0]]):
            around = tokenizer.added_tokens(pair=pairs is not None)
            for limit in (None, around + _TRUNCATED_TOKENS):
                digest.update(_encoding_text(tokenizer, text, pairs, limit).encode())
    return digest.hexdigest()


def _encoding_text(tokenizer: Tokenizer, text: str, pairs: Sequence[str] | None, limit: int | None) -> str:
    try:
        (row,) = tokenizer.encode([text], pairs, max_length=limit, parse_special_tokens=True)
    except (CorruptFileError, InputError):  # such as a vocabulary without an unknown token
        return "refused\n"
    return f"{row.ids} {row.type_ids}\n"
