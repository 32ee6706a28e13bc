"""WordPiece vocabularies of GGUF files, beside the reference's tokenizer of the same vocabulary."""

from typing import Any

import numpy as np
import pytest
from transformers import BertTokenizer

from pellucid.errors import CorruptFileError
from pellucid.text.from_gguf import build_tokenizer
from pellucid.text.gguf_vocabulary import read_vocabulary
from pellucid.text.tokenizer import Tokenizer

NORMAL, CONTROL = 1, 3
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PLAIN = ["the", "cafe", "uber", "##s", "##d", "a", "b", ".", "日", "क", "i", "##i"]
CASED = ["The", "Café", "Über", "Cafe", "É"]
ACCENTED = ["café", "über", "कु", "é"]

ODD_TEXTS = (
    *(
        "",
        " ",
        " The CAFÉ\nthe Cafés. ",
        "Über über uber",
        "e\u0301 É é",
        "日a日",
        "a\0b\u200b\ufffd",
        "कु क",
        "the[MASK]a",
    ),
    *("İ ı I", "👩‍👩‍👧‍👦", "[CLS] [cls] [UNK]", "a\u00a0b\u3000a\t.", "x" * 101, "_a-b.", "ab"),
)


def gguf_tokenizer(words: list[str], **keys: Any) -> Tokenizer:
    """The tokenizer of a file as llama.cpp's converter writes it: `▁` before words, nothing before special tokens."""
    marked = [word[2:] if word.startswith("##") else f"▁{word}" for word in words]
    metadata = {"model": "bert", "tokens": [*SPECIAL_TOKENS, *marked]} | dict(zip(_IDS, (0, 1, 2, 3, 4)))
    metadata |= {"token_type": np.array([CONTROL] * len(SPECIAL_TOKENS) + [NORMAL] * len(words), np.int32)} | keys
    present = {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}
    vocabulary = read_vocabulary(present, "here.gguf")
    assert vocabulary is not None
    return build_tokenizer(vocabulary, max_length=None)


_IDS = [f"{role}_token_id" for role in ("padding", "unknown", "bos", "seperator", "mask")]
"""As current converters write it: there is no key for [CLS], which they call bos."""


def reference_tokenizer(words: list[str], **options: Any) -> BertTokenizer:
    return BertTokenizer(vocab={word: i for i, word in enumerate([*SPECIAL_TOKENS, *words])}, **options)


@pytest.mark.parametrize(
    ("words", "keys", "options", "warning"),
    [
        (PLAIN, {}, {"do_lower_case": True}, None),
        (
            [*PLAIN, *CASED],
            {},
            {"do_lower_case": False},
            "here.gguf: tokenizer.ggml.normalizer.lowercase is missing; since the vocabulary has 'The', 'Caf\\xe9', "
            "'\\xdcber' and 2 more, texts are not lowercased",
        ),
        (
            [*PLAIN, *ACCENTED],
            {},
            {"do_lower_case": True, "strip_accents": False},
            "here.gguf: tokenizer.ggml.normalizer.strip_accents is missing; since the vocabulary has 'caf\\xe9', "
            "'\\xfcber', '\\u0915\\u0941' and 1 more, texts are not stripped of accents",
        ),
        ([*PLAIN, *CASED], {"lowercase": False}, {"do_lower_case": False}, None),
        (PLAIN, {"lowercase": False}, {"do_lower_case": False}, None),
        (PLAIN, {"lowercase": False, "strip_accents": True}, {"do_lower_case": False, "strip_accents": True}, None),
        ([*PLAIN, *CASED], {"lowercase": True}, {"do_lower_case": True}, None),
        ([*PLAIN, *ACCENTED], {"lowercase": True}, {"do_lower_case": True}, None),
        (
            [*PLAIN, *ACCENTED],
            {"lowercase": True, "strip_accents": False},
            {"do_lower_case": True, "strip_accents": False},
            None,
        ),
        ([*PLAIN, *ACCENTED], {"strip_accents": True}, {"do_lower_case": True, "strip_accents": True}, None),
    ],
)
def test_lowercasing_and_accents_follow_the_file_or_its_vocabulary(
    words: list[str],
    keys: dict[str, bool],
    options: dict[str, bool],
    warning: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = gguf_tokenizer(words, **{f"normalizer.{key}": value for key, value in keys.items()})
    assert [record.getMessage() for record in caplog.records] == ([] if warning is None else [warning])
    reference = reference_tokenizer(words, **options)
    for text in ODD_TEXTS:
        assert tokenizer(text).input_ids == reference(text).input_ids, text


def test_special_tokens_do_not_affect_lowercasing(caplog: pytest.LogCaptureFixture) -> None:
    """Other WordPiece models have `<S>` and the like; older converters put `▁` before these too."""
    kinds = np.array([CONTROL] * 4 + [NORMAL] * 2, np.int32)
    for mark in ("", "▁"):
        tokens = [f"{mark}{word}" for word in ("<PAD>", "<UNK>", "<S>", "</S>")] + ["▁the", "s"]
        tokenizer = gguf_tokenizer([], tokens=tokens, token_type=kinds, mask_token_id=None)
        assert tokenizer.encode(["THES <S> x"], parse_special_tokens=True)[0].tokens == [
            *("<S>", "the", "##s", "<S>", "<UNK>", "</S>")
        ]
        assert tokenizer.cls_token == "<S>" and tokenizer.bos_token is None
    assert not caplog.records


def test_lowercase_key_is_checked() -> None:
    with pytest.raises(CorruptFileError, match=r"tokenizer.ggml.normalizer.lowercase is 1, expected a bool"):
        gguf_tokenizer(PLAIN, **{"normalizer.lowercase": 1})
