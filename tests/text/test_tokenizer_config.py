"""Where `tokenizer_config.json` overrides `tokenizer.json`: followed where the reference's classes follow it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pellucid.errors import CorruptFileError
from pellucid.text.files import lower_cased, open_tokenizer, write_tokenizer
from pellucid.text.tokenizer import Tokenizer
from tests.text.tokenizer_files import folder_of

GOLDEN = Path(__file__).parents[1] / "parity" / "golden" / "tokenizers"
TEXTS = ["Hello World, it's me.", " lead  and tail ", "ÀÉÎ é e\u0301 ﬁ", "中文字 test", "a\nb<mask> [MASK]", ""]
AS_IT_STANDS = "PreTrainedTokenizerFast"


def folder(place: Path, name: str, **settings: Any) -> Path:
    stated = json.loads((GOLDEN / name / "tokenizer_config.json").read_text()) | settings
    stated = {key: value for key, value in stated.items() if value is not None}
    model_type = name.removesuffix("-cased")
    return folder_of(place / "folder", model_type, {"tokenizer.json": GOLDEN / name / "tokenizer.json"}, **stated)


def opened(folder: Path) -> Tokenizer:
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    tokenizer = open_tokenizer(folder, max_length=None, model_type=model_type)
    assert tokenizer is not None
    return tokenizer


def rows(tokenizer: Tokenizer) -> list[tuple[Any, ...]]:
    found = tokenizer.encode(TEXTS, parse_special_tokens=True)
    return [(row.ids, [tuple(place) for place in row.offsets]) for row in found]


@pytest.mark.parametrize("unstated", [False, True], ids=["its class", "no class"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert", {"do_lower_case": False}),
        ("bert", {"strip_accents": False}),
        ("bert", {"tokenize_chinese_chars": False}),
        ("bert-cased", {"do_lower_case": True}),
        ("bert-cased", {"strip_accents": True}),
        ("mpnet", {"do_lower_case": False}),
        ("mpnet", {"strip_accents": False, "tokenize_chinese_chars": False}),
        ("roberta", {"add_prefix_space": True}),
        ("roberta", {"trim_offsets": False}),
        ("roberta", {"add_prefix_space": True, "trim_offsets": False}),
        ("gpt2", {"add_prefix_space": True}),
    ],
    ids=str,
)
def test_settings_go_over_the_file_as_in_the_reference(
    tmp_path: Path, name: str, settings: dict[str, bool], unstated: bool
) -> None:
    from transformers import AutoTokenizer

    place = folder(tmp_path, name, **settings, **({"tokenizer_class": None} if unstated else {}))
    theirs = AutoTokenizer.from_pretrained(place)
    found = [theirs._tokenizer.encode(text) for text in TEXTS]
    assert rows(opened(place)) == [(row.ids, row.offsets) for row in found]
    assert rows(opened(place)) != rows(opened(folder(tmp_path, name)))


@pytest.mark.parametrize(
    ("name", "settings"), [("bert", {"do_lower_case": False}), ("gpt2", {"add_prefix_space": True})], ids=str
)
def test_a_class_that_takes_the_file_as_it_stands_follows_nothing(
    tmp_path: Path, name: str, settings: dict[str, bool]
) -> None:
    from transformers import AutoTokenizer

    place = folder(tmp_path, name, **settings, tokenizer_class=AS_IT_STANDS)
    theirs = AutoTokenizer.from_pretrained(place)
    assert [row[0] for row in rows(opened(place))] == [theirs(text)["input_ids"] for text in TEXTS]
    assert rows(opened(place)) == rows(opened(folder(tmp_path, name)))


def test_what_the_settings_leave_open_stays_as_in_the_file(tmp_path: Path) -> None:
    place = folder(tmp_path, "bert-cased", do_lower_case=None)
    assert rows(opened(place)) == rows(opened(folder(tmp_path, "bert-cased")))


@pytest.mark.parametrize("by_file", [False, True], ids=["settings", "file"])
def test_the_side_of_cutting_is_followed_and_kept(tmp_path: Path, by_file: bool) -> None:
    from transformers import AutoTokenizer

    place = folder(tmp_path, "bert", **({} if by_file else {"truncation_side": "left"}))
    if by_file:
        page = json.loads((place / "tokenizer.json").read_text())
        page["truncation"] = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
        (place / "tokenizer.json").write_text(json.dumps(page))
    whole = " ".join(TEXTS)
    expected = AutoTokenizer.from_pretrained(place)(whole, truncation=True, max_length=8)["input_ids"]
    again = tmp_path / "again"
    again.mkdir()
    write_tokenizer(opened(place), again)
    (again / "config.json").write_text((place / "config.json").read_text())
    for found in (opened(place), opened(again)):
        assert found.truncation_side == "left"
        assert found(whole, truncation=True, max_length=8).input_ids == expected
        assert found.encode([whole], max_length=8, parse_special_tokens=True)[0].ids == expected
        assert opened(folder(tmp_path, "bert"))(whole, truncation=True, max_length=8).input_ids != expected


def test_a_file_that_was_written_after_a_cut_states_no_side(tmp_path: Path) -> None:
    place = folder(tmp_path, "bert")
    page = json.loads((place / "tokenizer.json").read_text())
    page["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    (place / "tokenizer.json").write_text(json.dumps(page))
    assert opened(place).truncation_side == "right" and "truncation_side" not in opened(place).settings


def test_a_side_of_cutting_that_cannot_be_is_told(tmp_path: Path) -> None:
    assert opened(folder(tmp_path, "bert", truncation_side="right")).truncation_side == "right"
    with pytest.raises(CorruptFileError, match=r"tokenizer_config.json: truncation_side is 'top', expected 'left' or"):
        opened(folder(tmp_path, "bert", truncation_side="top"))


ADDED = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": True, "special": False}


def with_file(place: Path, *tokens: str, **changes: Any) -> None:
    """Adds tokens to the `tokenizer.json` of a folder, and replaces other parts of it."""
    path = place / "tokenizer.json"
    page = json.loads(path.read_text()) | changes
    page["added_tokens"] += [ADDED | {"content": token, "id": 600 + i} for i, token in enumerate(tokens)]
    path.write_text(json.dumps(page))


@pytest.mark.parametrize(("name", "lowers"), [("bert", False), ("bert-cased", True)])
def test_added_tokens_are_normalised_as_the_settings_say(tmp_path: Path, name: str, lowers: bool) -> None:
    from transformers import AutoTokenizer

    place = folder(tmp_path, name, do_lower_case=lowers)
    with_file(place, "Zorp")
    theirs = AutoTokenizer.from_pretrained(place)
    for text in ("a Zorp b", "a zorp b"):
        assert opened(place)(text).input_ids == theirs(text)["input_ids"], text
    assert 600 in opened(place)("a Zorp b").input_ids


@pytest.mark.parametrize("legacy", [False, True], ids=["settings", "added_tokens.json"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "roberta", "mistral"])
def test_tokens_that_the_settings_alone_name_are_added(tmp_path: Path, name: str, legacy: bool) -> None:
    from transformers import PreTrainedTokenizerFast

    settings: dict[str, Any] = {"additional_special_tokens": ["<b>", "<a>"], "pad_token": "<p>", "bos_token": "<q>"}
    page = json.loads((GOLDEN / name / "tokenizer.json").read_text())
    listed = {str(token.pop("id")): token for token in page["added_tokens"]}
    if not legacy:
        settings["added_tokens_decoder"] = listed | {"900": ADDED | {"content": "<x>", "rstrip": True}}
    place = folder(tmp_path, name, tokenizer_class=AS_IT_STANDS, **settings)
    if legacy:
        (place / "added_tokens.json").write_text(json.dumps({"<x>": 900, "<a>": 901}))
    ours, theirs = opened(place), PreTrainedTokenizerFast.from_pretrained(place)
    assert len(ours) == len(theirs) and ours.added_vocab == theirs.get_added_vocab()
    for text in ("a<x> b <a><b> c<p> <q>", "<x>", "plain"):
        (row,) = ours.encode([text], parse_special_tokens=True)
        assert row.ids == theirs(text)["input_ids"], text
        assert ours.decode(row.ids, True) == theirs.decode(row.ids, True), text
    assert (ours.pad_token_id, ours.bos_token_id) == (theirs.pad_token_id, theirs.bos_token_id)


@pytest.mark.parametrize("by_file", [False, True], ids=["settings", "file"])
def test_texts_are_padded_where_the_files_say(tmp_path: Path, by_file: bool) -> None:
    from transformers import AutoTokenizer

    place = folder(tmp_path, "bert", **({} if by_file else {"padding_side": "left"}))
    side = {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None}
    with_file(place, **({"padding": side | {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}} if by_file else {}))
    theirs = AutoTokenizer.from_pretrained(place)
    for padding in ({"padding": True}, {"padding": "max_length", "max_length": 60}):
        assert dict(opened(place)(TEXTS, **padding)) == dict(theirs(TEXTS, **padding))
    with pytest.raises(CorruptFileError, match=r"tokenizer_config.json: padding_side is 'top', expected 'left' or"):
        opened(folder(tmp_path, "bert", padding_side="top"))


@pytest.mark.parametrize("whole", [False, True], ids=["vocab.txt", "tokenizer.json"])
def test_tokens_of_older_files_are_written_as_the_reference_reads_them(whole: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the dog".split()
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    files = {"vocab.txt": tmp_path / "vocab.txt"}
    if whole:
        folder_of(tmp_path / "first", "bert", files, tokenizer_class="BertTokenizer")
        AutoTokenizer.from_pretrained(tmp_path / "first").save_pretrained(tmp_path / "second")
        files["tokenizer.json"] = tmp_path / "second" / "tokenizer.json"
    place = folder_of(tmp_path / "folder", "bert", files, tokenizer_class="BertTokenizer", do_lower_case=True)
    (place / "added_tokens.json").write_text(json.dumps({"New": 7, "<x>": 8}))
    (again := tmp_path / "again").mkdir()
    write_tokenizer(opened(place), again)
    (again / "config.json").write_bytes((place / "config.json").read_bytes())
    texts = ["the New dog <x>", "the new[MASK]<x>", ""]
    expected = [row.ids for row in opened(place).encode(texts, parse_special_tokens=True)]
    assert [row.ids for row in opened(again).encode(texts, parse_special_tokens=True)] == expected
    assert AutoTokenizer.from_pretrained(again)(texts)["input_ids"] == expected
    assert expected == AutoTokenizer.from_pretrained(place)(texts)["input_ids"]


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", AS_IT_STANDS])
@pytest.mark.parametrize("side", [{}, {"padding_side": "right"}, {"padding_side": "left"}], ids=str)
def test_a_class_fills_rows_up_on_its_own_side(kind: str, side: dict[str, str], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    files = {"tokenizer.json": GOLDEN / "mistral" / "tokenizer.json"}
    place = folder_of(tmp_path / "folder", "llama", files, tokenizer_class=kind, pad_token="<unk>", **side)
    ours, theirs = opened(place), AutoTokenizer.from_pretrained(place)
    (again := tmp_path / "again").mkdir()
    write_tokenizer(ours, again)
    (again / "config.json").write_bytes((place / "config.json").read_bytes())
    texts = ["hello you", "hello"]
    expected = theirs(texts, padding=True)
    for one in (ours, opened(again), AutoTokenizer.from_pretrained(again)):
        assert dict(one(texts, padding=True)) == dict(expected)


def test_small_letters_come_first_once_and_leave_accents(tmp_path: Path) -> None:
    cased = opened(folder(tmp_path, "bert-cased"))
    lowered = lower_cased(cased)
    assert [row[0] for row in rows(lowered)][:4] == [cased.encode([text.lower()])[0].ids for text in TEXTS[:4]]
    assert lower_cased(lowered).to_json() == lowered.to_json() != cased.to_json()
