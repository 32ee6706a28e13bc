"""Tokenizers trained on texts: they split as their kind does, are the same each time, and other libraries open them."""

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
from pellucid.text.learned import train_tokenizer
from tests.documents import ROOT

LICENSE = ROOT / "LICENSE"
ODD = "Ein grüner Mann läuft,\n\tnaïve 漢字 ﬁn — “quoted” 🙂 don't"
KINDS = {"bpe": 400, "wordpiece": 300, "unigram": 250, "characters": None}
MARKS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}


@pytest.fixture(scope="module", params=KINDS)
def learned(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    marks = MARKS if request.param == "characters" else None  # an unknown character needs a token
    return request.param, train_tokenizer(LICENSE, request.param, KINDS[request.param], special_tokens=marks)


def test_each_kind_reads_its_own_texts_back(learned: tuple[str, Tokenizer]) -> None:
    kind, tokenizer = learned
    text = "You may reproduce and distribute copies of the Work"
    ids = tokenizer(text).input_ids
    assert tokenizer.unk_token_id not in ids or kind == "bpe"  # GPT-2's unknown token is its only special token
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer) == (KINDS[kind] or len(set(LICENSE.read_text())) + len(MARKS))


def test_special_tokens_stand_where_the_kind_has_them(learned: tuple[str, Tokenizer]) -> None:
    kind, tokenizer = learned
    around = {"wordpiece": ("[CLS]", "[SEP]"), "unigram": (None, "</s>")}.get(kind, (None, None))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("the Work").input_ids)
    first, last = (
        token if token in MARKS.values() or token.startswith("[") else None for token in tokens[:: len(tokens) - 1]
    )
    assert (first, last) == around
    assert min(tokenizer.special_ids) == 0
    assert max(tokenizer.special_ids) == len(tokenizer.special_ids) - 1


def test_bytes_know_every_text() -> None:
    tokenizer = train_tokenizer(LICENSE, "bpe", 300)
    assert tokenizer.decode(tokenizer(ODD).input_ids) == ODD


def test_lines_of_a_file_keep_their_ends(tmp_path: Path) -> None:
    for ending in ("\n", "\r\n"):
        path = tmp_path / "play.txt"
        path.write_bytes(f"To be,{ending}or not.{ending}".encode())
        tokenizer = train_tokenizer(path, "characters")
        assert tokenizer.vocab == {one: i for i, one in enumerate(sorted(set("To be,\nor not.\n")))}
        assert tokenizer.decode(tokenizer("be\nor").input_ids) == "be\nor"


def test_the_same_texts_give_the_same_tokenizer() -> None:
    """In other processes too, in which the library orders words differently."""
    code = (
        "import hashlib\n"
        "from pellucid.text.learned import train_tokenizer\n"
        f"for kind, size in {KINDS!r}.items():\n"
        f"    page = train_tokenizer({str(LICENSE)!r}, kind, size).to_json()\n"
        "    print(hashlib.sha256(page.encode()).hexdigest())\n"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    assert len({run.stdout for run in runs}) == 1
    assert len(set(runs[0].stdout.split())) == len(KINDS)


def test_a_list_and_a_file_of_the_same_text_agree() -> None:
    text = LICENSE.read_text(encoding="utf-8")
    assert (
        train_tokenizer(LICENSE, "wordpiece", 300).vocab == train_tokenizer(None, "wordpiece", 300, texts=[text]).vocab
    )
    generator = (line for line in text.splitlines())
    assert (
        train_tokenizer(None, "wordpiece", 300, texts=generator).vocab
        == train_tokenizer(LICENSE, "wordpiece", 300).vocab
    )


def test_the_reference_opens_it_with_the_same_ids(learned: tuple[str, Tokenizer], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    _, tokenizer = learned
    config = pellucid.Config.of(
        "bert", vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    pellucid.build(config.replace(intermediate_size=8), tokenizer=tokenizer).save(tmp_path / "model")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    texts = [ODD, "", "You may reproduce the Work", "a\n\nb  c"]
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
def test_further_tokens_are_kept_in_whatever_holds_them(container: Callable[[list[str]], Any]) -> None:
    tokenizer = train_tokenizer(texts=["a b c"] * 3, vocab_size=270, extra_tokens=container(["__de__", "__en__"]))
    assert tokenizer.additional_special_tokens == ["__de__", "__en__"]


def test_roles_and_ends_can_be_chosen(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(
        LICENSE, "bpe", 300, special_tokens=MARKS, extra_tokens=["__de__"], add_bos=True, add_eos=True
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


def test_cls_and_sep_stand_around_texts_in_any_kind() -> None:
    marks = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    tokenizer = train_tokenizer(LICENSE, "bpe", 300, special_tokens=marks)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("a <mask>", "b").input_ids)
    assert tokens[0] == "<s>"
    assert tokens.count("</s>") == 2
    assert "<mask>" in tokens


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_cleaned_as_asked(kind: str) -> None:
    texts = ["Äpfel und Öl, ﬁne", "ÄPFEL UND ÖL"] * 3
    size = {"bpe": 300, "wordpiece": 40, "unigram": 24, "characters": None}[kind]
    tokenizer = train_tokenizer(None, kind, size, texts=texts, lowercase=True, strip_accents=True, normalization="NFKC")
    assert tokenizer.decode(tokenizer("ÄPFEL").input_ids, skip_special_tokens=True) == "apfel"
    assert tokenizer("FINE").input_ids == tokenizer("ﬁne").input_ids
    assert tokenizer.unk_token_id is None or kind == "bpe" or tokenizer.unk_token_id not in tokenizer("Öl").input_ids


def test_composed_characters_are_counted_as_they_will_be_read() -> None:
    tokenizer = train_tokenizer(None, "characters", texts=["e\u0301"], normalization="NFC")
    assert tokenizer.vocab == {"é": 0}


def test_rare_characters_are_left_out_where_a_token_stands_for_them() -> None:
    tokenizer = train_tokenizer(None, "characters", 3, texts=["aaabbc"], special_tokens={"unk": "?!"})
    assert tokenizer.vocab == {"?!": 0, "a": 1, "b": 2}
    assert tokenizer("abc").input_ids == [1, 2, 0]


def test_tables_are_read_by_column(tmp_path: Path) -> None:
    table, lines = tmp_path / "t.csv", tmp_path / "t.jsonl"
    table.write_text("en,de\nabc,xyz\n", encoding="utf-8")
    lines.write_text(json.dumps({"en": "abc", "de": "xyz"}) + "\n", encoding="utf-8")
    assert set(train_tokenizer(table, "characters", column="en").vocab) == set("abc")
    assert set(train_tokenizer([table, lines], "characters", column=("en", "de")).vocab) == set("abcxyz")


def test_a_small_text_gives_fewer_tokens_and_a_note(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pellucid"):
        tokenizer = train_tokenizer(None, "wordpiece", 5000, texts=["a small text"])
    assert len(tokenizer) < 100
    assert "the requested 5000" in caplog.text


def test_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    for kind, size in KINDS.items():
        train_tokenizer(LICENSE, kind, size)
    assert capfd.readouterr() == ("", "")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
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
    "no eos": ({"files": LICENSE, "special_tokens": {}, "add_eos": True}, "no token has the role 'eos'"),
    "extra": ({"files": LICENSE, "extra_tokens": "abc"}, "expected a list of tokens"),
    "form": ({"files": LICENSE, "normalization": "nfc"}, "normalization is 'nfc'"),
    "lowercase": ({"files": LICENSE, "lowercase": 1}, "expected true or false"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_learned_from_is_said_in_one_sentence(name: str) -> None:
    arguments, message = FAULTS[name]
    with pytest.raises(InputError) as caught:
        train_tokenizer(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fault_of_a_file_is_told_as_its_reader_tells_it(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        train_tokenizer(tmp_path / "none.txt")
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"fine\n\xff\xfe\xfd\n")
    with pytest.raises(InputError, match=r"line 2, byte 0xff"):
        train_tokenizer(broken)


def test_a_file_that_breaks_while_the_library_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pellucid.text.corpus import Corpus

    path = tmp_path / "text.txt"
    path.write_text("fine\n" * 100, encoding="utf-8")
    count = Corpus.character_counts

    def then_it_goes(self: Corpus, normalizer: object = None) -> object:
        found = count(self, normalizer)
        path.unlink()
        return found

    monkeypatch.setattr(Corpus, "character_counts", then_it_goes)
    with pytest.raises(NotFoundError, match="there is no file"):
        train_tokenizer(path)


def test_a_pipe_is_no_file_of_texts(tmp_path: Path) -> None:
    """Reading it would block, or never end."""
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path / "pipe.txt", "/dev/zero"):
        with pytest.raises(InputError, match="is no file, expected a file"):
            train_tokenizer(path, vocab_size=300)


@pytest.mark.parametrize(
    ("texts", "message"),
    [("3a", "text 0 holds 'a'"), (["12", "3é"], r"text 1 holds '\\xe9'"), ("[x]", r"text 0 holds '\['")],
)
def test_a_character_for_which_there_is_no_token_is_named(texts: str | list[str], message: str) -> None:
    digits = train_tokenizer(texts=["0123456789"], kind="characters", special_tokens={"pad": "<pad>"})
    with pytest.raises(InputError, match=f"{message}, and its tokenizer has no unk token: leave it out, or train a"):
        digits(texts)
