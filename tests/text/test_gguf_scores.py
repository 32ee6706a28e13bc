"""SentencePiece vocabularies of GGUF files, beside the sentencepiece library and llama.cpp's merging in Python."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece

from pellucid.checkpoints.gguf.header import read_header
from pellucid.text.from_gguf import build_tokenizer
from pellucid.text.gguf_vocabulary import Vocabulary, read_vocabulary
from pellucid.text.tokenizer import Tokenizer
from tests.text.tokenizer_files import encoded_piece, protobuf_field, train_sentencepiece, wikitext_lines

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
Shared = Callable[[str], Path]
Piece = tuple[str, float, int]
SPECIAL_PIECES: list[Piece] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTE_PIECES: list[Piece] = [(f"<0x{i:02X}>", 0.0, BYTE) for i in range(256)]

ODD_TEXTS = (
    *(
        "",
        " ",
        "   ",
        " a",
        "a ",
        "  ab  ",
        "a\nb",
        "\n",
        "\t a\r\n",
        "a\0b",
        "\0",
        "é",
        "👩‍👩‍👧‍👦 a",
        "日本 ab",
        "▁",
        "a▁b",
    ),
    *("<s>", "a<s>b</s>", "<unk>", "<0x41>", "a\u00a0b", "\u200bab", "cd ab cd", "e\u0301", "abab aab  cdcd"),
)


def letters(text: str) -> list[Piece]:
    return [(letter, 0.0, NORMAL) for letter in text]


def reference_tokenizer(pieces: list[Piece], *, prefix: bool = True) -> sentencepiece.SentencePieceProcessor:
    """The sentencepiece library with these pieces; it normalises nothing but spaces."""
    fallback = any(kind == BYTE for _, _, kind in pieces)
    trainer_spec = protobuf_field(2, protobuf_field(3, 2) + protobuf_field(35, int(fallback)))
    normalizer_spec = protobuf_field(
        3, protobuf_field(1, b"identity") + protobuf_field(3, int(prefix)) + protobuf_field(4, 0) + protobuf_field(5, 1)
    )
    return sentencepiece.SentencePieceProcessor(
        model_proto=b"".join(encoded_piece(*one) for one in pieces) + trainer_spec + normalizer_spec
    )


def gguf_tokenizer(pieces: list[Piece], *, prefix: bool = True) -> Tokenizer:
    tokens, scores, kinds = (list(column) for column in zip(*pieces))
    flags = {"add_bos_token": False, "add_space_prefix": prefix}
    return build_tokenizer(
        Vocabulary("here.gguf", "llama", "default", tokens, kinds, scores, [], {"unk": 0}, flags, None), max_length=None
    )


def llamacpp_tokens(scores: dict[str, float], text: str) -> list[str]:
    """llama.cpp's merging: the neighbours that form the best piece are joined, the leftmost among equals."""
    symbols = list(text)
    while True:
        pairs = enumerate(a + b for a, b in itertools.pairwise(symbols))
        candidates = [(-scores[joined], index) for index, joined in pairs if joined in scores]
        if not candidates:
            return symbols
        index = min(candidates)[1]
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode([text])[0].tokens


# -- equal scores ------------------------------------------------------------------------------------------------------


def test_equal_scores_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """llama.cpp splits `aba` into `ab a` and `bab` into `ba b`, which no order of ranks can express."""
    pieces = [*SPECIAL_PIECES, *letters("abc"), ("ba", -1.0, NORMAL), ("ab", -1.0, NORMAL), ("bc", -2.0, NORMAL)]
    tokenizer = gguf_tokenizer(pieces, prefix=False)
    assert [record.getMessage() for record in caplog.records] == [
        "here.gguf: tokenizer.ggml.scores are the same for 'ba', 'ab': of these the one with the smaller id is made "
        "first, where llama.cpp makes the leftmost in a text"
    ]
    scores = {"ba": -1.0, "ab": -1.0, "bc": -2.0}
    assert tokens_of(tokenizer, "bab") == ["ba", "b"] == llamacpp_tokens(scores, "bab")
    assert tokens_of(tokenizer, "aba") == ["a", "ba"] != llamacpp_tokens(scores, "aba")


def random_pieces(generator: random.Random) -> list[Piece]:
    """Pieces of a few letters, each with its own score: random ones, or each joined from two that exist."""
    alphabet, merged_pieces = generator.choice(("abc", "abcd", "abcdefgh")), generator.random() < 0.6
    texts, count = list(alphabet), generator.randint(4, 20)
    while len(texts) < len(alphabet) + count:
        parts = texts if merged_pieces else alphabet
        joined = "".join(generator.choices(parts, k=2 if merged_pieces else generator.randint(2, 4)))
        if joined not in texts and len(joined) <= 8:
            texts.append(joined)
    scores = [-float(i) for i in range(count)]
    generator.shuffle(scores)
    new = zip(texts[len(alphabet) :], scores)
    return [*SPECIAL_PIECES, *letters(alphabet), *((one, score, NORMAL) for one, score in new)]


def test_random_texts_are_split_as_by_llamacpp_and_sentencepiece() -> None:
    for seed in range(300):
        generator = random.Random(seed)
        pieces = random_pieces(generator)
        tokenizer, library = gguf_tokenizer(pieces, prefix=False), reference_tokenizer(pieces, prefix=False)
        scores = {one: score for one, score, _ in pieces[3:] if len(one) > 1}
        alphabet = [one for one, _, _ in pieces[3:] if len(one) == 1]
        for _ in range(20):
            text = "".join(generator.choices(alphabet, k=generator.randint(1, 30)))
            expected = llamacpp_tokens(scores, text)
            assert tokens_of(tokenizer, text) == expected == library.encode(text, out_type=str), (seed, text)


# -- kinds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "more"),
    [
        (True, []),
        (True, BYTE_PIECES),
        (True, [*BYTE_PIECES, ("cdc", -9.0, UNUSED), ("cd", -8.0, UNUSED), ("bc", -7.0, CONTROL)]),
        (True, [*BYTE_PIECES, ("▁▁", 0.0, USER)]),
        (False, BYTE_PIECES),
        (False, [*BYTE_PIECES, ("cd", 0.0, USER)]),
        (False, [*BYTE_PIECES, ("▁▁", 0.0, USER), ("▁▁▁", -0.5, USER), ("cd", 0.0, NORMAL)]),
        (False, [*BYTE_PIECES, ("cd▁", 0.0, USER), ("▁▁", -9.0, NORMAL)]),
    ],
)
def test_odd_texts_are_split_as_by_sentencepiece(prefix: bool, more: list[Piece]) -> None:
    pieces = [
        *SPECIAL_PIECES,
        *letters("▁abcd"),
        ("ab", -1.0, NORMAL),
        ("▁a", -2.0, NORMAL),
        ("▁ab", -3.0, NORMAL),
        *more,
    ]
    tokenizer, library = gguf_tokenizer(pieces, prefix=prefix), reference_tokenizer(pieces, prefix=prefix)
    for text in ODD_TEXTS:
        ids = tokenizer.encode([text])[0].ids
        assert ids == library.encode(text), text
        if BYTE_PIECES[0] in more:
            assert tokenizer.decode(ids) == text.replace("▁", " "), text


def test_user_defined_pieces_are_matched_before_merging() -> None:
    pieces = [*SPECIAL_PIECES, *letters("▁abcd"), ("ab", 0.0, NORMAL), ("bc", -9.0, USER)]
    for text in ("abc", "bcbc", "aabcd"):
        assert tokens_of(gguf_tokenizer(pieces, prefix=False), text) == reference_tokenizer(
            pieces, prefix=False
        ).encode(text, out_type=str)
    assert tokens_of(gguf_tokenizer(pieces, prefix=False), "abc") == ["a", "bc"]
    assert tokens_of(gguf_tokenizer(pieces), "a bc a") == ["▁", "a", "▁", "bc", "▁", "▁", "a"]  # as in llama.cpp


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_user_defined_spaces_are_split_as_by_llamacpp(first: float, caplog: pytest.LogCaptureFixture) -> None:
    """They share one score, that of the first merge, as converters write them; no tie is reported."""
    merged = [("▁a", first, NORMAL), ("ab", -1.0, NORMAL), ("▁ab", -2.0, NORMAL), ("ba", -3.0, NORMAL)]
    for seed in range(60):
        generator = random.Random(seed)
        blanks = [("▁" * length, 0.0, USER) for length in generator.sample(range(2, 9), k=generator.randint(1, 4))]
        tokenizer = gguf_tokenizer([*SPECIAL_PIECES, *letters("▁ab"), *merged, *blanks])
        scores = {one: score for one, score, _ in [*merged, *blanks]}
        for _ in range(20):
            text = "".join(generator.choices("  ab", k=generator.randint(1, 30)))
            expected = llamacpp_tokens(scores, f"▁{text}".replace(" ", "▁"))
            assert tokens_of(tokenizer, text) == expected, (blanks, text)
    assert not caplog.records


def test_unused_pieces_are_never_produced(caplog: pytest.LogCaptureFixture) -> None:
    pieces = [*SPECIAL_PIECES, *letters("abc"), ("ab", -1.0, UNUSED), ("bc", -2.0, NORMAL)]
    assert tokens_of(gguf_tokenizer(pieces, prefix=False), "ab") == reference_tokenizer(pieces, prefix=False).encode(
        "ab", out_type=str
    )
    assert "tokenizer.ggml.token_type calls 'ab' unused, and they are never made" in caplog.text
    caplog.clear()
    gguf_tokenizer(
        [*SPECIAL_PIECES, *letters("abc"), ("[PAD7]", -1.0, UNUSED)]
    )  # converters fill a vocabulary up with such tokens
    assert not caplog.records


# -- from a file -------------------------------------------------------------------------------------------------------


def test_trained_model_from_a_gguf_file(tmp_path: Path, shared: Shared) -> None:
    lines = wikitext_lines(shared("data/wikitext2/test.txt"), 600)
    options: dict[str, Any] = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    path = train_sentencepiece(
        lines[:300], tmp_path / "a.model", remove_extra_whitespaces=False, add_dummy_prefix=True, **options
    )
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    kinds = {"unknown": UNKNOWN, "control": CONTROL, "unused": UNUSED, "byte": BYTE}
    count = range(library.get_piece_size())
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([library.id_to_piece(i) for i in count])
    writer.add_token_scores([library.get_score(i) for i in count])
    writer.add_token_types(
        [next((k for name, k in kinds.items() if getattr(library, f"is_{name}")(i)), NORMAL) for i in count]
    )
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.close):
        write()
    vocabulary = read_vocabulary(read_header(tmp_path / "a.gguf").metadata, "a.gguf")
    assert vocabulary is not None and vocabulary.special == {"unk": 0, "bos": 1, "eos": 2}  # llama.cpp's defaults
    tokenizer = build_tokenizer(vocabulary, max_length=None)
    for text in [*lines[300:], *ODD_TEXTS]:
        assert tokenizer.encode([text])[0].ids == [1, *library.encode(text)], text


def test_default_special_tokens_need_a_fitting_type() -> None:
    def special(kinds: list[int], **keys: int) -> dict[str, int]:
        metadata: dict[str, Any] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b", "c"]}
        metadata |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
        vocabulary = read_vocabulary(metadata | {"tokenizer.ggml.token_type": np.array(kinds, np.int32)}, "here")
        assert vocabulary is not None
        return vocabulary.special

    assert special([UNKNOWN, CONTROL, CONTROL]) == {"unk": 0, "bos": 1, "eos": 2}
    assert special([UNKNOWN, CONTROL, NORMAL]) == {"unk": 0, "bos": 1}
    assert special([UNKNOWN, CONTROL, CONTROL], bos_token_id=2, eos_token_id=-1) == {"unk": 0, "bos": 2}
