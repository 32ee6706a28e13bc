"""SentencePiece models without the library: ids and offsets equal the library's, and hostile files are refused."""

import itertools
import os
import random
import time
import tracemalloc
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from pellucid.errors import CorruptFileError, InputError
from pellucid.text.files import open_tokenizer
from pellucid.text.spm import read_sentencepiece
from tests.quick import few
from tests.text.tokenizer_files import (
    encoded_piece,
    protobuf_field,
    tokenizer_folder,
    train_sentencepiece,
    varint,
    wikitext_lines,
    xquad_paragraphs,
)

Shared = Callable[[str], Path]
ALBERT = "data/tokenizers/albert-spiece.model"
WITHOUT_EXACT_OFFSETS = ("folded", "lines")
"""Unigram models with byte fallback: the library gives each byte of a run the offsets of the whole run."""
ODD_TEXTS = [
    "",
    "   ",
    " a  b ",
    "▁a a▁b",
    "\ta\nb\r\n",
    " \n a ▁",
    "ﬁne ½ … ㈱ ﷺ x",
    "e\u0301 cafe\u0301",
    "👨‍👩‍👧‍👦 hi",
    "\ufeffab\u00a0b a\u200bb a \u200b\u200bb",
    "a\0b",
    "[MASK] [CLS] <unk> <pad>",
    "＜pad＞",
    "각 नमस्ते เก็บ",
]
DECOMPOSED = [
    "Vie\u0323\u0302t o\u0323\u0302",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8",
    "カ\u3099キ\u3099 ハ\u309aン",
    "ｶﾞｲﾄﾞ ﾊﾟﾝ",
    "e\u0301a\u0308",
]
"""Decomposed letters, as in file names on a Mac, and half-width kana."""


def library_ids_and_offsets(processor: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The library's ids and offsets, with offsets in characters instead of bytes."""
    ends = itertools.accumulate(len(character.encode()) for character in text)
    characters = {0: 0} | {end: i for i, end in enumerate(ends, 1)}
    pieces = processor.encode(text, return_type="proto").pieces
    return [p.id for p in pieces], [(characters[p.begin], characters[p.end]) for p in pieces]


@pytest.fixture(scope="module")
def models(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, lines = tmp_path_factory.mktemp("models"), wikitext_lines(shared("data/wikitext2/valid.txt"), 800)
    identity = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    return {
        "albert": shared(ALBERT),
        "user": train_sentencepiece(
            lines, folder / "user.model", user_defined_symbols=["wor", "<x>"], character_coverage=0.98
        ),
        "bare": train_sentencepiece(lines, folder / "bare.model", add_dummy_prefix=False),
        "folded": train_sentencepiece(
            lines, folder / "folded.model", normalization_rule_name="nmt_nfkc_cf", byte_fallback=True
        ),
        "merges": train_sentencepiece(lines, folder / "merges.model", model_type="bpe", byte_fallback=True, **identity),
        "plain merges": train_sentencepiece(lines, folder / "plain.model", model_type="bpe"),
        "lines": train_sentencepiece(
            lines, folder / "lines.model", normalization_rule_name="identity", byte_fallback=True
        ),
        "over words": train_sentencepiece(lines[:500], folder / "over.model", split_by_whitespace=False),
    }


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_decomposed_letters_are_encoded_as_by_the_library(tmp_path: Path, kind: str) -> None:
    """The tokenizers library alone leaves kana and Hangul decomposed, and drops one of two accents."""
    composed = [unicodedata.normalize("NFKC", text) for text in DECOMPOSED]
    lines = [f"{one} {two} word" for one in composed for two in composed] * 4
    path = train_sentencepiece(lines, tmp_path / "parts.model", model_type=kind, vocab_size=50, hard_vocab_limit=False)
    ours = open_tokenizer(
        tokenizer_folder(tmp_path / "a", "", {"spiece.model": path}), max_length=None, token_types=False
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    texts = [*DECOMPOSED, *composed, " ".join(DECOMPOSED)]
    for text, row in zip(texts, ours.encode(texts, add_special_tokens=False)):
        assert (row.ids, row.offsets) == library_ids_and_offsets(processor, text)
        assert ours.unk_token_id not in row.ids


NAMES = ["albert", "user", "bare", "folded", "merges", "plain merges", "lines", "over words"]


@pytest.mark.parametrize("name", few(NAMES, NAMES[1:]))
def test_ids_and_offsets_equal_the_library(models: dict[str, Path], shared: Shared, tmp_path: Path, name: str) -> None:
    folder = tokenizer_folder(tmp_path / name, "", {"spiece.model": models[name]})
    ours = open_tokenizer(folder, max_length=None, token_types=False)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(models[name]))
    texts = xquad_paragraphs(shared("data/xquad"))
    texts = [*texts, *(text.lower() for text in texts)] if name == "albert" else texts[::5]
    for text, row in zip([*texts, *ODD_TEXTS], ours.encode([*texts, *ODD_TEXTS], add_special_tokens=False)):
        ids, offsets = library_ids_and_offsets(processor, text)
        assert row.ids == ids, text
        if name not in WITHOUT_EXACT_OFFSETS:
            assert row.offsets == offsets, text


USER_PIECES = {
    "words": ["wor", "<x>", "the", "<|code|>"],
    "spaces": ["▁▁", "▁▁▁▁", "\n", "\t"],
    "ends of lines": ["\n", "\t"],
    "over one another": ["ab", "abc", "bcd", "▁th", "of▁the", "½", "A"],
}
PARTS = ["the", "wor", "world", "there", " of the", "<x>", "<|code|>", "abcd", "bc", "A", "½", " ", "    ", "\n", "\t"]
PARTS += ["é", "☃", "中", "▁", "d", "1", "</s>", "<s>", "<unk>", "＜"]
IDENTITY = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
SETTINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("bpe", "words", {"byte_fallback": True} | IDENTITY),  # GPT-SW3's
    ("bpe", "words", {}),
    ("bpe", "words", {"add_dummy_prefix": False}),
    ("bpe", "spaces", {"byte_fallback": True} | IDENTITY),
    ("bpe", "spaces", {}),
    ("bpe", "over one another", IDENTITY),
    ("bpe", "over one another", {"byte_fallback": True}),
    ("unigram", "words", IDENTITY),
    ("unigram", "ends of lines", {"byte_fallback": True}),
    ("unigram", "ends of lines", {}),
    ("unigram", "ends of lines", {"add_dummy_prefix": False} | IDENTITY),
    ("unigram", "over one another", {}),
]


@pytest.mark.parametrize(("kind", "symbols", "options"), SETTINGS)
def test_user_defined_pieces_are_found_as_by_the_library(
    shared: Shared, tmp_path: Path, kind: str, symbols: str, options: dict[str, Any]
) -> None:
    lines = wikitext_lines(shared("data/wikitext2/valid.txt"), 230)
    training = {"model_type": kind, "user_defined_symbols": USER_PIECES[symbols], "vocab_size": 600} | options
    path = train_sentencepiece(lines[:200], tmp_path / "one.model", **training)
    folder = tokenizer_folder(tmp_path / "folder", "", {"spiece.model": path})
    ours = open_tokenizer(folder, max_length=None, token_types=False)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    generator = random.Random(3)
    parts = PARTS + (["wor<0x4", "1>"] if kind == "bpe" else [])
    random_texts = ["".join(generator.choices(parts, k=generator.randint(1, 9))) for _ in range(300)]
    texts = [*ODD_TEXTS, *USER_PIECES[symbols], *parts, *random_texts, *lines[200:]]
    for text, row in zip(texts, ours.encode(texts, add_special_tokens=False)):
        ids = processor.encode(text)
        assert row.ids == ids, text
        if processor.unk_id() not in ids and "▁▁" not in row.tokens[:1]:
            assert ours.decode(ids) == processor.decode(ids), text


def test_too_many_user_defined_pieces_are_refused(shared: Shared, tmp_path: Path) -> None:
    lines = wikitext_lines(shared("data/wikitext2/valid.txt"), 200)
    options = {"user_defined_symbols": [f"<{i}>" for i in range(4097)], "vocab_size": 4700, "model_type": "bpe"}
    folder = tokenizer_folder(
        tmp_path / "folder", "", {"spiece.model": train_sentencepiece(lines, tmp_path / "one.model", **options)}
    )
    with pytest.raises(CorruptFileError, match=r"with 4,097 pieces that stand in a text as they are, expected at most"):
        open_tokenizer(folder, max_length=None, token_types=False)


# -- ALBERT -----------------------------------------------------------------------------------------------------------


def original_albert_tokens(processor: Any, text: str) -> list[str]:
    """The tokens that ALBERT was trained with: cleaning, pieces, and the comma after a number on its own."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).lower()
    pieces = []
    for one in processor.encode(text, return_type=str):
        if len(one) > 1 and one[-1] == "," and one[-2].isdigit():
            parts = processor.encode(one[:-1].replace("▁", ""), return_type=str)
            if not one.startswith("▁") and parts[0].startswith("▁"):
                parts = parts[1:] if parts[0] == "▁" else [parts[0][1:], *parts[1:]]
            pieces += [*parts, ","]
        else:
            pieces.append(one)
    return pieces


@pytest.fixture
def albert(shared: Shared, tmp_path: Path) -> Any:
    folder = tokenizer_folder(tmp_path / "albert", "albert", {"spiece.model": shared(ALBERT)})
    return open_tokenizer(folder, max_length=512, token_types=True, model_type="albert")


def test_albert_tokens_equal_its_original_tokenization(albert: Any, shared: Shared) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(shared(ALBERT)))
    texts = [*xquad_paragraphs(shared("data/xquad")), "He said ``no'' in 2000, and Ünited [x] well-known (a) $5.00"]
    rows = albert.encode(texts, add_special_tokens=False)
    assert [row.tokens for row in rows] == [original_albert_tokens(processor, text) for text in texts]


def test_albert_ids_equal_the_reference(albert: Any, shared: Shared) -> None:
    """From the vocabulary as its converter writes it; from a bare file 5.x splits at `-` and keeps `2000,` whole."""
    from transformers import AlbertTokenizer
    from transformers.convert_slow_tokenizer import check_number_comma

    model = read_sentencepiece(shared(ALBERT))
    scores = [score if check_number_comma(piece) else score - 100 for piece, score in zip(model.pieces, model.scores)]
    theirs = AlbertTokenizer(list(zip(model.pieces, scores)), _spm_precompiled_charsmap=model.charsmap)
    texts = [text.lower() for text in xquad_paragraphs(shared("data/xquad"))] + ["a [MASK] b", "", " x "]
    for pairs in (None, texts[::-1]):
        expected = theirs._tokenizer.encode_batch(texts if pairs is None else list(zip(texts, pairs)))
        for row, reference_row in zip(albert.encode(texts, pairs), expected):
            assert (row.ids, row.type_ids, row.offsets) == (
                reference_row.ids,
                reference_row.type_ids,
                reference_row.offsets,
            )
    assert (albert.cls_token_id, albert.sep_token_id, albert.mask_token_id, albert.pad_token_id) == (2, 3, 4, 0)


# -- hostile files ----------------------------------------------------------------------------------------------------


UNKNOWN = encoded_piece("<unk>", 0.0, 2)
MODEL_END = protobuf_field(2, protobuf_field(3, 1)) + protobuf_field(3, protobuf_field(3, 1))
PIECE_START, PIECE_END = encoded_piece("00000").split(b"00000")
HOSTILE = {
    "empty": b"",
    "no pieces": MODEL_END,
    "no unknown": encoded_piece("a") + MODEL_END,
    "two unknown": UNKNOWN + encoded_piece("b", 0.0, 2) + MODEL_END,
    "nan": UNKNOWN + encoded_piece("a", float("nan")) + MODEL_END,
    "infinite": UNKNOWN + encoded_piece("a", float("-inf")) + MODEL_END,
    "twice": UNKNOWN + encoded_piece("a") + encoded_piece("a") + MODEL_END,
    "empty piece": UNKNOWN + encoded_piece("") + MODEL_END,
    "NUL": UNKNOWN + encoded_piece("a\0") + MODEL_END,
    "not UTF-8": UNKNOWN + encoded_piece(b"\xff\xfe") + MODEL_END,
    "long piece": UNKNOWN + encoded_piece("a" * 2000) + MODEL_END,
    "kind": UNKNOWN + encoded_piece("a", -1.0, 9) + MODEL_END,
    "length 2^63": UNKNOWN + varint(10) + varint(2**63) + b"abc",
    "length 2^64-1": UNKNOWN + varint(10) + varint(2**64 - 1) + b"abc",
    "length 2^31": UNKNOWN + varint(10) + varint(2**31) + b"abc",
    "endless number": UNKNOWN + b"\xff" * 30,
    "group": UNKNOWN + varint(7 << 3 | 3) + MODEL_END,
    "field 0": b"\x02\x00" + UNKNOWN + MODEL_END,
    "million empty": b"\x0a\x00" * 3_000_000,
    "no tail": UNKNOWN + encoded_piece("a"),
    "short table": UNKNOWN
    + encoded_piece("a")
    + protobuf_field(2, protobuf_field(3, 1))
    + protobuf_field(3, protobuf_field(2, b"abc")),
    "table says 2^32": UNKNOWN
    + encoded_piece("a")
    + protobuf_field(2, protobuf_field(3, 1))
    + protobuf_field(3, protobuf_field(2, b"\xfc\xff\xff\xff" + b"a" * 40)),
    "table grows": UNKNOWN
    + encoded_piece("a")
    + protobuf_field(2, protobuf_field(3, 1))
    + protobuf_field(3, protobuf_field(2, b"\4\0\0\0" * 2 + b"a" * 9999)),
    "million pieces": b"".join(b"%b%05x%b" % (PIECE_START, i, PIECE_END) for i in range(600_000)),
    "table of rubbish": UNKNOWN
    + encoded_piece("a")
    + protobuf_field(2, protobuf_field(3, 1))
    + protobuf_field(3, protobuf_field(2, b"\x40\0\0\0" + b"\xf7" * 64)),
}


def assert_refused(path: Path) -> None:
    """Opening it fails within two seconds, with a sentence that names the file."""
    start = time.process_time()
    with pytest.raises(CorruptFileError) as caught:
        open_tokenizer(path.parent, max_length=None, token_types=False, model_type="t5")
    assert path.name in str(caught.value) and "\n" not in str(caught.value)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("name", few(HOSTILE, [one for one in HOSTILE if one != "million pieces"]))
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    (path := tmp_path / "spiece.model").write_bytes(HOSTILE[name])
    assert_refused(path)
    tracemalloc.start()
    with pytest.raises(CorruptFileError):
        open_tokenizer(tmp_path, max_length=None, token_types=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(HOSTILE[name]) + 100_000


def test_large_files_are_refused(tmp_path: Path) -> None:
    (path := tmp_path / "spiece.model").write_bytes(UNKNOWN + MODEL_END)
    os.truncate(path, 2**25 + 1)
    with pytest.raises(CorruptFileError, match=r"spiece\.model has 33,554,433 bytes, expected at most 33,554,432$"):
        open_tokenizer(tmp_path, max_length=None, token_types=False)


def test_word_and_character_models_are_refused(shared: Shared, tmp_path: Path) -> None:
    lines = wikitext_lines(shared("data/wikitext2/valid.txt"), 300)
    for kind, made_of in (("char", "characters"), ("word", "words")):
        train_sentencepiece(lines, tmp_path / "spiece.model", model_type=kind, vocab_size=60)
        with pytest.raises(InputError, match=f"is a SentencePiece model of {made_of}, expected unigram or BPE"):
            open_tokenizer(tmp_path, max_length=None, token_types=False)
    backwards = (
        UNKNOWN
        + encoded_piece("a")
        + protobuf_field(2, protobuf_field(3, 1) + protobuf_field(24, 1))
        + protobuf_field(3, protobuf_field(3, 1))
    )
    (tmp_path / "spiece.model").write_bytes(backwards)
    with pytest.raises(InputError, match="is a SentencePiece model of word suffixes, expected unigram or BPE"):
        open_tokenizer(tmp_path, max_length=None, token_types=False)


def test_truncated_files_are_refused(shared: Shared, tmp_path: Path) -> None:
    whole = shared(ALBERT).read_bytes()
    path = tmp_path / "spiece.model"
    lengths = [*range(40), *random.Random(0).sample(range(len(whole) - 10), 40)]
    # A small file at every byte too: pieces, training and normalisation all have their edges in it.
    small = UNKNOWN + b"".join(encoded_piece(chr(97 + i)) for i in range(20)) + MODEL_END
    for data, cut in [(whole, length) for length in lengths] + [(small, length) for length in range(len(small) - 1)]:
        path.write_bytes(data[:cut])
        assert_refused(path)


def test_corrupted_files_are_refused_or_read(shared: Shared, tmp_path: Path) -> None:
    generator, path = random.Random(1), tmp_path / "spiece.model"
    small = bytearray(UNKNOWN + b"".join(encoded_piece(chr(97 + i)) for i in range(20)) + MODEL_END)
    for _ in range(300):
        broken = bytearray(small)
        for _ in range(generator.randrange(1, 4)):
            broken[generator.randrange(len(broken))] = generator.randrange(256)
        path.write_bytes(broken)
        try:
            tokenizer = open_tokenizer(tmp_path, max_length=None, token_types=False)
        except (CorruptFileError, InputError) as error:
            assert path.name in str(error)
        else:
            assert tokenizer.encode(["abc xyz"])
