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
from tests.text.tokenizer_files import field, piece, train_pieces, wiki

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
Shared = Callable[[str], Path]
Piece = tuple[str, float, int]
HEAD: list[Piece] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES: list[Piece] = [(f"<0x{i:02X}>", 0.0, BYTE) for i in range(256)]

ODD = (
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


def theirs(pieces: list[Piece], *, prefix: bool = True) -> sentencepiece.SentencePieceProcessor:
    """The sentencepiece library with these pieces; it normalises nothing but spaces."""
    fallback = any(kind == BYTE for _, _, kind in pieces)
    trained = field(2, field(3, 2) + field(35, int(fallback)))
    normal = field(3, field(1, b"identity") + field(3, int(prefix)) + field(4, 0) + field(5, 1))
    return sentencepiece.SentencePieceProcessor(model_proto=b"".join(piece(*one) for one in pieces) + trained + normal)


def ours(pieces: list[Piece], *, prefix: bool = True) -> Tokenizer:
    tokens, scores, kinds = (list(column) for column in zip(*pieces))
    flags = {"add_bos_token": False, "add_space_prefix": prefix}
    return build_tokenizer(
        Vocabulary("here.gguf", "llama", "default", tokens, kinds, scores, [], {"unk": 0}, flags, None), max_length=None
    )


def llamacpp(scores: dict[str, float], text: str) -> list[str]:
    """llama.cpp's merging: the neighbours that form the best piece are joined, the leftmost among equals."""
    symbols = list(text)
    while True:
        pairs = enumerate(a + b for a, b in itertools.pairwise(symbols))
        found = [(-scores[joined], place) for place, joined in pairs if joined in scores]
        if not found:
            return symbols
        place = min(found)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode([text])[0].tokens


# -- equal scores ------------------------------------------------------------------------------------------------------


def test_equal_scores_are_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    """llama.cpp splits `aba` into `ab a` and `bab` into `ba b`, which no order of ranks can express."""
    pieces = [*HEAD, *letters("abc"), ("ba", -1.0, NORMAL), ("ab", -1.0, NORMAL), ("bc", -2.0, NORMAL)]
    tokenizer = ours(pieces, prefix=False)
    assert [record.getMessage() for record in caplog.records] == [
        "here.gguf: tokenizer.ggml.scores are the same for 'ba', 'ab': of these the one with the smaller id is made "
        "first, where llama.cpp makes the leftmost in a text"
    ]
    scores = {"ba": -1.0, "ab": -1.0, "bc": -2.0}
    assert tokens_of(tokenizer, "bab") == ["ba", "b"] == llamacpp(scores, "bab")
    assert tokens_of(tokenizer, "aba") == ["a", "ba"] != llamacpp(scores, "aba")


def some_pieces(chance: random.Random) -> list[Piece]:
    """Pieces of a few letters, each with its own score: random ones, or each joined from two that exist."""
    alphabet, learned = chance.choice(("abc", "abcd", "abcdefgh")), chance.random() < 0.6
    known, made = list(alphabet), chance.randint(4, 20)
    while len(known) < len(alphabet) + made:
        parts = known if learned else alphabet
        joined = "".join(chance.choices(parts, k=2 if learned else chance.randint(2, 4)))
        if joined not in known and len(joined) <= 8:
            known.append(joined)
    scores = [-float(i) for i in range(made)]
    chance.shuffle(scores)
    new = zip(known[len(alphabet) :], scores)
    return [*HEAD, *letters(alphabet), *((one, score, NORMAL) for one, score in new)]


def test_pieces_are_cut_as_llamacpp_and_sentencepiece_cut_them() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        pieces = some_pieces(chance)
        tokenizer, library = ours(pieces, prefix=False), theirs(pieces, prefix=False)
        scores = {one: score for one, score, _ in pieces[3:] if len(one) > 1}
        alphabet = [one for one, _, _ in pieces[3:] if len(one) == 1]
        for _ in range(20):
            text = "".join(chance.choices(alphabet, k=chance.randint(1, 30)))
            expected = llamacpp(scores, text)
            assert tokens_of(tokenizer, text) == expected == library.encode(text, out_type=str), (seed, text)


# -- kinds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "more"),
    [
        (True, []),
        (True, BYTES),
        (True, [*BYTES, ("cdc", -9.0, UNUSED), ("cd", -8.0, UNUSED), ("bc", -7.0, CONTROL)]),
        (True, [*BYTES, ("▁▁", 0.0, USER)]),
        (False, BYTES),
        (False, [*BYTES, ("cd", 0.0, USER)]),
        (False, [*BYTES, ("▁▁", 0.0, USER), ("▁▁▁", -0.5, USER), ("cd", 0.0, NORMAL)]),
        (False, [*BYTES, ("cd▁", 0.0, USER), ("▁▁", -9.0, NORMAL)]),
    ],
)
def test_odd_texts_are_cut_as_sentencepiece_cuts_them(prefix: bool, more: list[Piece]) -> None:
    pieces = [*HEAD, *letters("▁abcd"), ("ab", -1.0, NORMAL), ("▁a", -2.0, NORMAL), ("▁ab", -3.0, NORMAL), *more]
    tokenizer, library = ours(pieces, prefix=prefix), theirs(pieces, prefix=prefix)
    for text in ODD:
        ids = tokenizer.encode([text])[0].ids
        assert ids == library.encode(text), text
        if BYTES[0] in more:
            assert tokenizer.decode(ids) == text.replace("▁", " "), text


def test_a_user_s_piece_is_whole_before_anything_is_merged() -> None:
    pieces = [*HEAD, *letters("▁abcd"), ("ab", 0.0, NORMAL), ("bc", -9.0, USER)]
    for text in ("abc", "bcbc", "aabcd"):
        assert tokens_of(ours(pieces, prefix=False), text) == theirs(pieces, prefix=False).encode(text, out_type=str)
    assert tokens_of(ours(pieces, prefix=False), "abc") == ["a", "bc"]
    assert tokens_of(ours(pieces), "a bc a") == ["▁", "a", "▁", "bc", "▁", "▁", "a"]  # as in llama.cpp


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_a_user_s_blanks_are_cut_as_llamacpp_cuts_them(first: float, caplog: pytest.LogCaptureFixture) -> None:
    """They share one score, that of the first merge, as converters write them; no tie is reported."""
    merged = [("▁a", first, NORMAL), ("ab", -1.0, NORMAL), ("▁ab", -2.0, NORMAL), ("ba", -3.0, NORMAL)]
    for seed in range(60):
        chance = random.Random(seed)
        blanks = [("▁" * many, 0.0, USER) for many in chance.sample(range(2, 9), k=chance.randint(1, 4))]
        tokenizer = ours([*HEAD, *letters("▁ab"), *merged, *blanks])
        scores = {one: score for one, score, _ in [*merged, *blanks]}
        for _ in range(20):
            text = "".join(chance.choices("  ab", k=chance.randint(1, 30)))
            expected = llamacpp(scores, f"▁{text}".replace(" ", "▁"))
            assert tokens_of(tokenizer, text) == expected, (blanks, text)
    assert not caplog.records


def test_unused_pieces_are_never_made(caplog: pytest.LogCaptureFixture) -> None:
    pieces = [*HEAD, *letters("abc"), ("ab", -1.0, UNUSED), ("bc", -2.0, NORMAL)]
    assert tokens_of(ours(pieces, prefix=False), "ab") == theirs(pieces, prefix=False).encode("ab", out_type=str)
    assert "tokenizer.ggml.token_type calls 'ab' unused, and they are never made" in caplog.text
    caplog.clear()
    ours([*HEAD, *letters("abc"), ("[PAD7]", -1.0, UNUSED)])  # converters fill a vocabulary up with such tokens
    assert not caplog.records


# -- from a file -------------------------------------------------------------------------------------------------------


def test_a_trained_model_by_way_of_a_file(tmp_path: Path, shared: Shared) -> None:
    lines = wiki(shared("data/wikitext2/test.txt"), 600)
    options: dict[str, Any] = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    path = train_pieces(
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
    for text in [*lines[300:], *ODD]:
        assert tokenizer.encode([text])[0].ids == [1, *library.encode(text)], text


def test_roles_that_a_file_does_not_name_are_taken_where_they_fit() -> None:
    def special(kinds: list[int], **keys: int) -> dict[str, int]:
        metadata: dict[str, Any] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b", "c"]}
        metadata |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
        vocabulary = read_vocabulary(metadata | {"tokenizer.ggml.token_type": np.array(kinds, np.int32)}, "here")
        assert vocabulary is not None
        return vocabulary.special

    assert special([UNKNOWN, CONTROL, CONTROL]) == {"unk": 0, "bos": 1, "eos": 2}
    assert special([UNKNOWN, CONTROL, NORMAL]) == {"unk": 0, "bos": 1}
    assert special([UNKNOWN, CONTROL, CONTROL], bos_token_id=2, eos_token_id=-1) == {"unk": 0, "bos": 2}
