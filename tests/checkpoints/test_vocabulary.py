"""`vocab.txt` alone gives the reference's ids."""

import json
import random
import shutil
from pathlib import Path

import pytest

import pellucid
from pellucid.errors import CheckpointMismatchError
from tests.checkpoints.builders import valid_checkpoint, vocabulary
from tests.conftest import tiny_config

PIECES = [
    *("time flies like an arrow; fruit flies like a banana.", "Café crème brûlée", "naïve façade", "ÀÉÎÕÜ ñ ç ß ø å"),
    *("東京は日本の首都です", "北京 上海 漢字", "서울 한국어", "नमस्ते दुनिया", "שלום עולם", "مرحبا", "Ελλάδα", "Россия"),
    *(
        "👩\u200d👩\u200d👧\u200d👦 🎉🎉 ☃",
        "e\u0301 n\u0303",
        "x\u0000y\ufffdz",
        "a\u00a0b\u2003c\u200bd",
        "\t tab \r\n new",
    ),
    *("don't won't it's", "3.14159 1,000,000 $5.00 50%", "C++ & C# <b>tag</b>", "user@example.com https://a.b/c?d=e#f"),
    *(
        "Donaudampfschifffahrtsgesellschaft",
        "pneumonoultramicroscopicsilicovolcanoconiosis",
        "A" + "b" * 250,
        "é" * 120,
    ),
    *("[MASK] [SEP] [CLS] [UNK] [PAD]", "##ing ##ed", "…—–“”‘’«»", "½ ² ³ ™ ©", "İstanbul ıI", "ﬁ ﬂ ﬀ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢"),
    *("\t tab \r\n new", "é" * 120, "\U00020000\U0002a6d6", "a\u2028b\u2029c\x85d", ""),
]


def random_texts(number: int) -> list[str]:
    """Random mixtures of PIECES, the same ones every time."""
    generator = random.Random(11)
    separators = ["", " ", "  ", "-", "\n"]
    return [
        generator.choice(separators).join(generator.choices(PIECES, k=generator.randint(1, 5))) for _ in range(number)
    ]


@pytest.mark.parametrize("lower", [True, False])
def test_vocab_txt_gives_the_ids_of_the_reference(lower: bool, minilm_folder: Path, tmp_path: Path) -> None:
    from transformers import BertTokenizer

    folder = valid_checkpoint(tmp_path / "model", **vocabulary_facts(minilm_folder))
    shutil.copy(minilm_folder / "vocab.txt", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    ours = pellucid.load(folder).tokenizer
    theirs = BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=lower)
    assert ours is not None
    for text in random_texts(200):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
    first, second = random_texts(2)
    assert ours(first, second)["input_ids"] == theirs(first, second)["input_ids"]
    assert ours(first, second)["token_type_ids"] == theirs(first, second)["token_type_ids"]


def test_vocab_txt_agrees_with_tokenizer_json(minilm_folder: Path, minilm: pellucid.Model, tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model", **vocabulary_facts(minilm_folder))
    shutil.copy(minilm_folder / "vocab.txt", folder)
    from_vocabulary = pellucid.load(folder).tokenizer
    assert from_vocabulary is not None
    assert minilm.tokenizer is not None
    for text in random_texts(200):
        assert from_vocabulary(text)["input_ids"] == minilm.tokenizer(text)["input_ids"], text


def vocabulary_facts(folder: Path) -> dict[str, int]:
    return {"vocab_size": len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())}


def test_random_texts_contain_every_piece() -> None:
    joined = "".join(random_texts(200))
    assert tiny_config().vocab_size < len(set(joined))
    assert all(piece in joined for piece in PIECES)


def test_vocabulary_entries_may_hold_any_character_but_a_line_break(tmp_path: Path) -> None:
    """`str.splitlines` also splits at U+2028, U+0085 and others, which would shift every id after them."""
    from transformers import BertTokenizer

    entries = [*vocabulary(5), "a\u2028b", "a\x85b", "a\x0cb", "a\x1cb", "plain"]
    folder = valid_checkpoint(tmp_path / "model")
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n", encoding="utf-8")
    ours = pellucid.load(folder).tokenizer
    assert ours is not None
    assert ours("plain")["input_ids"] == [2, 9, 3]
    assert BertTokenizer(vocab=str(folder / "vocab.txt"))("plain")["input_ids"] == [2, 9, 3]


PIECES_OF_CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>", "<s>", "</s>", *"▁abcdefghij", "<mask>")


def test_camembert_saved_by_transformers_5_opens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It adds `<unk>NOTUSED` after the vocabulary, for which no embedding table has a row."""
    from transformers import CamembertTokenizer

    folder = valid_checkpoint(tmp_path / "model", vocab_size=len(PIECES_OF_CAMEMBERT))
    theirs = CamembertTokenizer(vocab=[(piece, 0.0) for piece in PIECES_OF_CAMEMBERT])
    theirs.save_pretrained(folder)
    assert len(theirs) == len(PIECES_OF_CAMEMBERT) + 1
    ours = pellucid.load(folder).tokenizer
    assert ours is not None and len(ours) == len(PIECES_OF_CAMEMBERT)
    assert "no row for '<unk>NOTUSED'" in caplog.text
    for text in ("abc def", "a <mask> j", " ", "xyz"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
    assert max(ours("<unk>NOTUSED")["input_ids"]) < len(PIECES_OF_CAMEMBERT)
    saved = pellucid.load(pellucid.load(folder).save(tmp_path / "saved")).tokenizer
    assert saved is not None and saved.to_json() == ours.to_json()


@pytest.mark.parametrize("role", ["pad", "mask", "cls", "template"])
def test_tokens_without_a_row_are_ignored_where_unused(role: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertTokenizer

    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary()) + "\n", encoding="utf-8")
    theirs = BertTokenizer(
        vocab=str(tmp_path / "vocab.txt"), **({} if role == "template" else {f"{role}_token": "<x>"})
    )
    theirs.add_special_tokens({"additional_special_tokens": ["<x>", "<y>"]})
    folder = valid_checkpoint(tmp_path / "model", vocab_size=57)
    theirs.save_pretrained(folder)
    if role == "template":
        (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}<x>", encoding="utf-8")
    assert len(AutoTokenizer.from_pretrained(folder)) > 57
    if role == "pad":
        ours = pellucid.load(folder).tokenizer
        assert ours is not None and (len(ours), ours.pad_token) == (57, None)
        assert all(token not in str(ours.settings) for token in ("<x>", "<y>"))
        assert ours("a b")["input_ids"] == theirs("a b")["input_ids"]
    else:
        with pytest.raises(CheckpointMismatchError, match="table of tokens has 57 rows; they do not belong together"):
            pellucid.load(folder)
