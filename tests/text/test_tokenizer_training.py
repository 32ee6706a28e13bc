"""Tokenizers trained on texts: they split like their kind, are deterministic, and open in other libraries."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pellucid
from pellucid.errors import InputError, NotFoundError
from pellucid.text import Tokenizer
from pellucid.text.files import open_tokenizer, write_tokenizer
from pellucid.text.tokenizer_training import train_tokenizer
from tests.documents import ROOT

LICENSE = ROOT / "LICENSE"
ODD_TEXT = "Ein grüner Mann läuft,\n\tnaïve 漢字 ﬁn — “quoted” 🙂 don't"
KINDS = {"bpe": 400, "wordpiece": 300, "unigram": 250, "characters": None}
SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    marks = SPECIAL_TOKENS if request.param == "characters" else None  # an unknown character needs a token
    return request.param, train_tokenizer(LICENSE, request.param, KINDS[request.param], special_tokens=marks)


def test_each_kind_decodes_its_own_ids(trained: tuple[str, Tokenizer]) -> None:
    kind, tokenizer = trained
    text = "You may reproduce and distribute copies of the Work"
    ids = tokenizer(text).input_ids
    assert tokenizer.unk_token_id not in ids or kind == "bpe"  # GPT-2's unknown token is its only special token
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer) == (KINDS[kind] or len(set(LICENSE.read_text())) + len(SPECIAL_TOKENS))


def test_special_tokens_are_at_the_positions_of_the_kind(trained: tuple[str, Tokenizer]) -> None:
    kind, tokenizer = trained
    around = {"wordpiece": ("[CLS]", "[SEP]"), "unigram": (None, "</s>")}.get(kind, (None, None))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("the Work").input_ids)
    first, last = (
        token if token in SPECIAL_TOKENS.values() or token.startswith("[") else None
        for token in tokens[:: len(tokens) - 1]
    )
    assert (first, last) == around
    assert min(tokenizer.special_ids) == 0
    assert max(tokenizer.special_ids) == len(tokenizer.special_ids) - 1


def test_byte_level_tokenizer_encodes_any_text() -> None:
    tokenizer = train_tokenizer(LICENSE, "bpe", 300)
    assert tokenizer.decode(tokenizer(ODD_TEXT).input_ids) == ODD_TEXT


def test_line_ends_of_a_file_are_preserved(tmp_path: Path) -> None:
    for ending in ("\n", "\r\n"):
        path = tmp_path / "play.txt"
        path.write_bytes(f"To be,{ending}or not.{ending}".encode())
        tokenizer = train_tokenizer(path, "characters")
        assert tokenizer.vocab == {one: i for i, one in enumerate(sorted(set("To be,\nor not.\n")))}
        assert tokenizer.decode(tokenizer("be\nor").input_ids) == "be\nor"


def test_training_is_deterministic() -> None:
    """In other processes too, in which the library orders words differently."""
    code = (
        "import hashlib\n"
        "from pellucid.text.tokenizer_training import train_tokenizer\n"
        f"for kind, size in {KINDS!r}.items():\n"
        f"    page = train_tokenizer({str(LICENSE)!r}, kind, size).to_json()\n"
        "    print(hashlib.sha256(page.encode()).hexdigest())\n"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    assert len({run.stdout for run in runs}) == 1
    assert len(set(runs[0].stdout.split())) == len(KINDS)


def test_list_and_file_of_the_same_text_give_the_same_vocabulary() -> None:
    text = LICENSE.read_text(encoding="utf-8")
    assert (
        train_tokenizer(LICENSE, "wordpiece", 300).vocab == train_tokenizer(None, "wordpiece", 300, texts=[text]).vocab
    )
    generator = (line for line in text.splitlines())
    assert (
        train_tokenizer(None, "wordpiece", 300, texts=generator).vocab
        == train_tokenizer(LICENSE, "wordpiece", 300).vocab
    )


def test_reference_opens_the_tokenizer_with_the_same_ids(trained: tuple[str, Tokenizer], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    _, tokenizer = trained
    config = pellucid.Config.of(
        "bert", vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    pellucid.build(config.replace(intermediate_size=8), tokenizer=tokenizer).save(tmp_path / "model")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    texts = [ODD_TEXT, "", "You may reproduce the Work", "a\n\nb  c"]
    assert theirs(texts)["input_ids"] == tokenizer(texts).input_ids
    assert sorted(theirs(texts[2])) == sorted(tokenizer(texts[2]))
    assert (theirs.pad_token, theirs.eos_token, theirs.unk_token) == (
        tokenizer.pad_token,
        tokenizer.eos_token,
        tokenizer.unk_token,
    )
    assert theirs.decode(theirs(texts[2])["input_ids"]) == tokenizer.decode(tokenizer(texts[2]).input_ids)
    again = pellucid.load(tmp_path / "model").tokenizer
    assert again is not None
    assert again(texts).input_ids == tokenizer(texts).input_ids


@pytest.mark.parametrize("container", [list, tuple, iter, np.array, lambda tokens: (token for token in tokens)])
def test_extra_tokens_are_accepted_in_any_container(container: Callable[[list[str]], Any]) -> None:
    tokenizer = train_tokenizer(texts=["a b c"] * 3, vocab_size=270, extra_tokens=container(["__de__", "__en__"]))
    assert tokenizer.additional_special_tokens == ["__de__", "__en__"]


def test_special_tokens_and_their_addition_can_be_chosen(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(
        LICENSE, "bpe", 300, special_tokens=SPECIAL_TOKENS, extra_tokens=["__de__"], add_bos=True, add_eos=True
    )
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["<pad>", "<s>", "</s>", "<unk>", "__de__"]
    ids = tokenizer("Work").input_ids
    assert (ids[0], ids[-1], tokenizer.pad_token_id) == (1, 2, 0)
    assert tokenizer("__de__").input_ids == [1, 4, 2]
    (tmp_path / "t").mkdir()
    write_tokenizer(tokenizer, tmp_path / "t")
    again = open_tokenizer(tmp_path / "t", max_length=None)
    assert again is not None
    assert again.additional_special_tokens == ["__de__"]
    assert again("the __de__ Work").input_ids == tokenizer("the __de__ Work").input_ids


def test_cls_and_sep_are_added_in_any_kind() -> None:
    marks = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    tokenizer = train_tokenizer(LICENSE, "bpe", 300, special_tokens=marks)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("a <mask>", "b").input_ids)
    assert tokens[0] == "<s>"
    assert tokens.count("</s>") == 2
    assert "<mask>" in tokens


@pytest.mark.parametrize("kind", KINDS)
def test_normalization_options_are_applied(kind: str) -> None:
    texts = ["Äpfel und Öl, ﬁne", "ÄPFEL UND ÖL"] * 3
    size = {"bpe": 300, "wordpiece": 40, "unigram": 24, "characters": None}[kind]
    tokenizer = train_tokenizer(None, kind, size, texts=texts, lowercase=True, strip_accents=True, normalization="NFKC")
    assert tokenizer.decode(tokenizer("ÄPFEL").input_ids, skip_special_tokens=True) == "apfel"
    assert tokenizer("FINE").input_ids == tokenizer("ﬁne").input_ids
    assert tokenizer.unk_token_id is None or kind == "bpe" or tokenizer.unk_token_id not in tokenizer("Öl").input_ids


@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_a_trained_tokenizer(kind: str) -> None:
    tokenizer = train_tokenizer(LICENSE, kind, 600, max_length=77)
    assert tokenizer.settings["model_max_length"] == tokenizer.model_max_length == 77
    assert tokenizer.token_types == (kind == "wordpiece") and not tokenizer.clean_up_tokenization_spaces


def test_characters_are_counted_after_normalization() -> None:
    tokenizer = train_tokenizer(None, "characters", texts=["e\u0301"], normalization="NFC")
    assert tokenizer.vocab == {"é": 0}


def test_rare_characters_are_replaced_by_the_unknown_token() -> None:
    tokenizer = train_tokenizer(None, "characters", 3, texts=["aaabbc"], special_tokens={"unk": "?!"})
    assert tokenizer.vocab == {"?!": 0, "a": 1, "b": 2}
    assert tokenizer("abc").input_ids == [1, 2, 0]


def test_tables_are_read_by_column_name(tmp_path: Path) -> None:
    table, lines = tmp_path / "t.csv", tmp_path / "t.jsonl"
    table.write_text("en,de\nabc,xyz\n", encoding="utf-8")
    lines.write_text(json.dumps({"en": "abc", "de": "xyz"}) + "\n", encoding="utf-8")
    assert set(train_tokenizer(table, "characters", column="en").vocab) == set("abc")
    assert set(train_tokenizer([table, lines], "characters", column=("en", "de")).vocab) == set("abcxyz")


def test_small_text_gives_fewer_tokens_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pellucid"):
        tokenizer = train_tokenizer(None, "wordpiece", 5000, texts=["a small text"])
    assert len(tokenizer) < 100
    assert "the requested 5000" in caplog.text


def test_training_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for kind, size in KINDS.items():
        train_tokenizer(LICENSE, kind, size)
    assert capfd.readouterr() == ("", "")


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "give files, or texts"),
    "both": ({"files": LICENSE, "texts": ["a"]}, "give one"),
    "no files": ({"files": []}, "files is empty"),
    "no text": ({"texts": []}, "nothing but white space"),
    "blank": ({"texts": [" \n", "\t"]}, "nothing but white space"),
    "one text": ({"texts": "a text"}, "texts is str"),
    "number": ({"texts": ["a", 3]}, "text 1 is int"),
    "no path": ({"files": [3]}, "something that is no path"),
    "table": ({"files": "x.csv"}, "name the column"),
    "kind": ({"files": LICENSE, "kind": "wordpeace"}, "did you mean wordpiece"),
    "size": ({"files": LICENSE, "vocab_size": 0}, "vocab_size is 0"),
    "small bpe": ({"files": LICENSE, "vocab_size": 200}, "expected at least 257: the 256 bytes"),
    "small wordpiece": ({"files": LICENSE, "kind": "wordpiece", "vocab_size": 60}, "expected at least"),
    "small unigram": ({"files": LICENSE, "kind": "unigram", "vocab_size": 10}, "expected at least"),
    "small characters": ({"files": LICENSE, "kind": "characters", "vocab_size": 10}, "special_tokens={'unk': '<unk>'}"),
    "role": ({"files": LICENSE, "special_tokens": {"end": "x"}}, "special_tokens has the role 'end'"),
    "token": ({"files": LICENSE, "special_tokens": {"eos": ""}}, "special_tokens['eos'] is ''"),
    "no unk": ({"files": LICENSE, "kind": "wordpiece", "special_tokens": {"pad": "p"}}, "has no 'unk'"),
    "no unk of unigram": ({"files": LICENSE, "kind": "unigram", "special_tokens": {"pad": "p"}}, "has no 'unk'"),
    "no eos": ({"files": LICENSE, "special_tokens": {}, "add_eos": True}, "no token has the role 'eos'"),
    "extra": ({"files": LICENSE, "extra_tokens": "abc"}, "expected a list of tokens"),
    "blank extra": ({"files": LICENSE, "extra_tokens": ["a", " "]}, "expected a list of tokens"),
    "form": ({"files": LICENSE, "normalization": "nfc"}, "normalization is 'nfc'"),
    "lowercase": ({"files": LICENSE, "lowercase": 1}, "expected true or false"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_sentence(name: str) -> None:
    arguments, message = ERRORS[name]
    with pytest.raises(InputError) as caught:
        train_tokenizer(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        train_tokenizer(tmp_path / "none.txt")
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"fine\n\xff\xfe\xfd\n")
    with pytest.raises(InputError, match=r"line 2, byte 0xff"):
        train_tokenizer(broken)


def test_file_deleted_during_training_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pellucid.text.corpus import Corpus

    path = tmp_path / "text.txt"
    path.write_text("fine\n" * 100, encoding="utf-8")
    count = Corpus.character_counts

    def count_and_delete(self: Corpus, normalizer: object = None) -> object:
        counts = count(self, normalizer)
        path.unlink()
        return counts

    monkeypatch.setattr(Corpus, "character_counts", count_and_delete)
    with pytest.raises(NotFoundError, match="there is no file"):
        train_tokenizer(path)


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    """Reading it would block, or never end."""
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path / "pipe.txt", "/dev/zero"):
        with pytest.raises(InputError, match="is no file, expected a file"):
            train_tokenizer(path, vocab_size=300)


@pytest.mark.parametrize(
    ("texts", "message"),
    [("3a", "text 0 holds 'a'"), (["12", "3é"], r"text 1 holds '\\xe9'"), ("[x]", r"text 0 holds '\['")],
)
def test_character_without_a_token_is_named(texts: str | list[str], message: str) -> None:
    digits = train_tokenizer(texts=["0123456789"], kind="characters", special_tokens={"pad": "<pad>"})
    with pytest.raises(InputError, match=f"{message}, and its tokenizer has no unk token: leave it out, or train a"):
        digits(texts)
