"""Where `tokenizer_config.json` overrides `tokenizer.json`: followed where the reference's classes follow it."""

import cProfile
import json
from pathlib import Path
from typing import Any

import pytest

from pellucid.errors import CorruptFileError
from pellucid.text.files import lower_cased, open_tokenizer, write_tokenizer
from pellucid.text.tokenizer import Tokenizer
from tests.text.tokenizer_files import tokenizer_folder

GOLDEN = Path(__file__).parents[1] / "parity" / "golden" / "tokenizers"
TEXTS = ["Hello World, it's me.", " lead  and tail ", "ÀÉÎ é e\u0301 ﬁ", "中文字 test", "a\nb<mask> [MASK]", ""]
GENERIC_CLASS = "PreTrainedTokenizerFast"


def golden_folder(path: Path, name: str, **settings: Any) -> Path:
    settings_in_file = json.loads((GOLDEN / name / "tokenizer_config.json").read_text()) | settings
    settings_in_file = {key: value for key, value in settings_in_file.items() if value is not None}
    model_type = name.removesuffix("-cased")
    return tokenizer_folder(
        path / "folder", model_type, {"tokenizer.json": GOLDEN / name / "tokenizer.json"}, **settings_in_file
    )


def opened_tokenizer(folder: Path) -> Tokenizer:
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    tokenizer = open_tokenizer(folder, max_length=None, model_type=model_type)
    assert tokenizer is not None
    return tokenizer


def encoded_texts(tokenizer: Tokenizer) -> list[tuple[Any, ...]]:
    encoded = tokenizer.encode(TEXTS, parse_special_tokens=True)
    return [(row.ids, [tuple(span) for span in row.offsets]) for row in encoded]


@pytest.mark.parametrize("without_class", [False, True], ids=["its class", "no class"])
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
def test_settings_override_the_file_as_in_the_reference(
    tmp_path: Path, name: str, settings: dict[str, bool], without_class: bool
) -> None:
    from transformers import AutoTokenizer

    folder = golden_folder(tmp_path, name, **settings, **({"tokenizer_class": None} if without_class else {}))
    theirs = AutoTokenizer.from_pretrained(folder)
    found = [theirs._tokenizer.encode(text) for text in TEXTS]
    assert encoded_texts(opened_tokenizer(folder)) == [(row.ids, row.offsets) for row in found]
    assert encoded_texts(opened_tokenizer(folder)) != encoded_texts(opened_tokenizer(golden_folder(tmp_path, name)))


@pytest.mark.parametrize(
    ("name", "settings"), [("bert", {"do_lower_case": False}), ("gpt2", {"add_prefix_space": True})], ids=str
)
def test_generic_class_ignores_the_settings(tmp_path: Path, name: str, settings: dict[str, bool]) -> None:
    from transformers import AutoTokenizer

    folder = golden_folder(tmp_path, name, **settings, tokenizer_class=GENERIC_CLASS)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert [row[0] for row in encoded_texts(opened_tokenizer(folder))] == [theirs(text)["input_ids"] for text in TEXTS]
    assert encoded_texts(opened_tokenizer(folder)) == encoded_texts(opened_tokenizer(golden_folder(tmp_path, name)))


def test_null_settings_leave_the_file_unchanged(tmp_path: Path) -> None:
    folder = golden_folder(tmp_path, "bert-cased", do_lower_case=None)
    assert encoded_texts(opened_tokenizer(folder)) == encoded_texts(
        opened_tokenizer(golden_folder(tmp_path, "bert-cased"))
    )


@pytest.mark.parametrize("by_file", [False, True], ids=["settings", "file"])
def test_truncation_side_is_applied_and_saved(tmp_path: Path, by_file: bool) -> None:
    from transformers import AutoTokenizer

    folder = golden_folder(tmp_path, "bert", **({} if by_file else {"truncation_side": "left"}))
    if by_file:
        tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
        tokenizer_json["truncation"] = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    text = " ".join(TEXTS)
    expected = AutoTokenizer.from_pretrained(folder)(text, truncation=True, max_length=8)["input_ids"]
    copied = tmp_path / "again"
    copied.mkdir()
    write_tokenizer(opened_tokenizer(folder), copied)
    (copied / "config.json").write_text((folder / "config.json").read_text())
    for found in (opened_tokenizer(folder), opened_tokenizer(copied)):
        assert found.truncation_side == "left"
        assert found(text, truncation=True, max_length=8).input_ids == expected
        assert found.encode([text], max_length=8, parse_special_tokens=True)[0].ids == expected
        assert (
            opened_tokenizer(golden_folder(tmp_path, "bert"))(text, truncation=True, max_length=8).input_ids != expected
        )


def test_default_truncation_side_in_the_file_is_not_a_setting(tmp_path: Path) -> None:
    folder = golden_folder(tmp_path, "bert")
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    tokenizer_json["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    assert (
        opened_tokenizer(folder).truncation_side == "right"
        and "truncation_side" not in opened_tokenizer(folder).settings
    )


def test_invalid_truncation_side_is_refused(tmp_path: Path) -> None:
    assert opened_tokenizer(golden_folder(tmp_path, "bert", truncation_side="right")).truncation_side == "right"
    with pytest.raises(CorruptFileError, match=r"tokenizer_config.json: truncation_side is 'top', expected 'left' or"):
        opened_tokenizer(golden_folder(tmp_path, "bert", truncation_side="top"))


ADDED = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": True, "special": False}


def extend_tokenizer_file(folder: Path, *tokens: str, lstrip: bool = False, **changes: Any) -> None:
    """Adds tokens to the `tokenizer.json` of a folder, and replaces other parts of it."""
    path = folder / "tokenizer.json"
    tokenizer_json = json.loads(path.read_text()) | changes
    flags = ADDED | {"lstrip": lstrip}
    tokenizer_json["added_tokens"] += [flags | {"content": token, "id": 600 + i} for i, token in enumerate(tokens)]
    path.write_text(json.dumps(tokenizer_json))


@pytest.mark.parametrize(("name", "lowercase"), [("bert", False), ("bert-cased", True)])
def test_added_tokens_are_normalized_by_the_settings(tmp_path: Path, name: str, lowercase: bool) -> None:
    from transformers import AutoTokenizer

    folder = golden_folder(tmp_path, name, do_lower_case=lowercase)
    extend_tokenizer_file(folder, "Zorp")
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in ("a Zorp b", "a zorp b"):
        assert opened_tokenizer(folder)(text).input_ids == theirs(text)["input_ids"], text
    assert 600 in opened_tokenizer(folder)("a Zorp b").input_ids


@pytest.mark.parametrize("legacy", [False, True], ids=["settings", "added_tokens.json"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "roberta", "mistral"])
def test_tokens_named_only_in_the_settings_are_added(tmp_path: Path, name: str, legacy: bool) -> None:
    from transformers import PreTrainedTokenizerFast

    settings: dict[str, Any] = {"additional_special_tokens": ["<b>", "<a>"], "pad_token": "<p>", "bos_token": "<q>"}
    tokenizer_json = json.loads((GOLDEN / name / "tokenizer.json").read_text())
    listed = {str(token.pop("id")): token for token in tokenizer_json["added_tokens"]}
    if not legacy:
        settings["added_tokens_decoder"] = listed | {"900": ADDED | {"content": "<x>", "rstrip": True}}
    folder = golden_folder(tmp_path, name, tokenizer_class=GENERIC_CLASS, **settings)
    if legacy:
        (folder / "added_tokens.json").write_text(json.dumps({"<x>": 900, "<a>": 901}))
    ours, theirs = opened_tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    assert len(ours) == len(theirs) and ours.added_vocab == theirs.get_added_vocab()
    for text in ("a<x> b <a><b> c<p> <q>", "<x>", "plain"):
        (row,) = ours.encode([text], parse_special_tokens=True)
        assert row.ids == theirs(text)["input_ids"], text
        assert ours.decode(row.ids, True) == theirs.decode(row.ids, True), text
    assert (ours.pad_token_id, ours.bos_token_id) == (theirs.pad_token_id, theirs.bos_token_id)


@pytest.mark.parametrize(
    "settings",
    [
        {"additional_special_tokens": ["<X>"]},
        {"bos_token": "<X>"},
        {"added_tokens_decoder": {"600": {"content": "<X>", "special": True}}},
        {"added_tokens_decoder": {"600": {"content": "<X>", "lstrip": True}}, "bos_token": "<X>"},
        {"added_tokens.json": {"<X>": 600}},
        {"added_tokens_decoder": {"600": {"content": "<X>", "special": True}}, "added_tokens.json": {"<y>": 601}},
    ],
    ids=str,
)
def test_settings_that_name_a_token_of_the_file_change_it_as_in_the_reference(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    from transformers import PreTrainedTokenizerFast

    legacy = settings.pop("added_tokens.json", None)
    folder = golden_folder(tmp_path, "bert", tokenizer_class=GENERIC_CLASS, **settings)
    extend_tokenizer_file(folder, "<X>", lstrip=True)
    if legacy:
        (folder / "added_tokens.json").write_text(json.dumps(legacy))
    ours, theirs = opened_tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    assert ours.added_vocab == theirs.get_added_vocab()
    assert ours.special_ids == {i for i, token in theirs.added_tokens_decoder.items() if token.special}
    text = "a  <X> b  <x> c <y>"
    (row,) = ours.encode([text], parse_special_tokens=True)
    assert (
        row.ids == theirs(text)["input_ids"]
        and row.offsets == theirs(text, return_offsets_mapping=True)["offset_mapping"]
    )
    assert ours.decode(row.ids, True) == theirs.decode(row.ids, True)
    (copied := tmp_path / "again").mkdir()
    write_tokenizer(ours, copied)
    again = PreTrainedTokenizerFast.from_pretrained(copied)
    assert again(text, return_offsets_mapping=True) == theirs(text, return_offsets_mapping=True)


@pytest.mark.parametrize("name", ["added_tokens_decoder", "additional_special_tokens"])
def test_many_tokens_are_added_in_as_many_calls_as_few(tmp_path: Path, name: str) -> None:
    """Each call rebuilds the tables of all tokens: one call a token took minutes for tens of thousands."""
    special, calls = {"normalized": False, "special": True}, []
    for number in (20, 200):
        tokens = [ADDED | special | {"content": f"<{i}>"} for i in range(number)]
        numbered = {str(i): token for i, token in enumerate(tokens, start=600)}
        listed = numbered if name == "added_tokens_decoder" else tokens
        folder = golden_folder(tmp_path / str(number), "bert", **{name: listed})
        with cProfile.Profile() as profile:
            tokenizer = opened_tokenizer(folder)
        (row,), (plain,) = (
            tokenizer.encode([f"the <{number - 1}>"], parse_special_tokens=parse) for parse in (True, False)
        )
        assert row.ids[-2] == 599 + number and row.ids[-2] not in plain.ids
        counts = {one.code: one.callcount for one in profile.getstats() if "tokenizers.Tokenizer" in str(one.code)}
        calls.append({code: count for code, count in counts.items() if "add" in str(code)})
    assert calls[0] and calls[0] == calls[1]


@pytest.mark.parametrize("by_file", [False, True], ids=["settings", "file"])
def test_padding_side_is_applied(tmp_path: Path, by_file: bool) -> None:
    from transformers import AutoTokenizer

    folder = golden_folder(tmp_path, "bert", **({} if by_file else {"padding_side": "left"}))
    side = {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None}
    extend_tokenizer_file(
        folder, **({"padding": side | {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}} if by_file else {})
    )
    theirs = AutoTokenizer.from_pretrained(folder)
    for padding in ({"padding": True}, {"padding": "max_length", "max_length": 60}):
        assert dict(opened_tokenizer(folder)(TEXTS, **padding)) == dict(theirs(TEXTS, **padding))
    with pytest.raises(CorruptFileError, match=r"tokenizer_config.json: padding_side is 'top', expected 'left' or"):
        opened_tokenizer(golden_folder(tmp_path, "bert", padding_side="top"))


@pytest.mark.parametrize("whole", [False, True], ids=["vocab.txt", "tokenizer.json"])
def test_tokens_of_older_files_are_saved_for_the_reference(whole: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the dog".split()
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    files = {"vocab.txt": tmp_path / "vocab.txt"}
    if whole:
        tokenizer_folder(tmp_path / "first", "bert", files, tokenizer_class="BertTokenizer")
        AutoTokenizer.from_pretrained(tmp_path / "first").save_pretrained(tmp_path / "second")
        files["tokenizer.json"] = tmp_path / "second" / "tokenizer.json"
    folder = tokenizer_folder(tmp_path / "folder", "bert", files, tokenizer_class="BertTokenizer", do_lower_case=True)
    (folder / "added_tokens.json").write_text(json.dumps({"New": 7, "<x>": 8}))
    (copied := tmp_path / "again").mkdir()
    write_tokenizer(opened_tokenizer(folder), copied)
    (copied / "config.json").write_bytes((folder / "config.json").read_bytes())
    texts = ["the New dog <x>", "the new[MASK]<x>", ""]
    expected = [row.ids for row in opened_tokenizer(folder).encode(texts, parse_special_tokens=True)]
    assert [row.ids for row in opened_tokenizer(copied).encode(texts, parse_special_tokens=True)] == expected
    assert AutoTokenizer.from_pretrained(copied)(texts)["input_ids"] == expected
    assert expected == AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", GENERIC_CLASS])
@pytest.mark.parametrize("side", [{}, {"padding_side": "right"}, {"padding_side": "left"}], ids=str)
def test_each_class_has_its_own_padding_side(kind: str, side: dict[str, str], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    files = {"tokenizer.json": GOLDEN / "mistral" / "tokenizer.json"}
    folder = tokenizer_folder(tmp_path / "folder", "llama", files, tokenizer_class=kind, pad_token="<unk>", **side)
    ours, theirs = opened_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    (copied := tmp_path / "again").mkdir()
    write_tokenizer(ours, copied)
    (copied / "config.json").write_bytes((folder / "config.json").read_bytes())
    texts = ["hello you", "hello"]
    expected = theirs(texts, padding=True)
    for one in (ours, opened_tokenizer(copied), AutoTokenizer.from_pretrained(copied)):
        assert dict(one(texts, padding=True)) == dict(expected)


def test_lower_cased_tokenizer_keeps_accents(tmp_path: Path) -> None:
    cased = opened_tokenizer(golden_folder(tmp_path, "bert-cased"))
    lowered = lower_cased(cased)
    assert [row[0] for row in encoded_texts(lowered)][:4] == [cased.encode([text.lower()])[0].ids for text in TEXTS[:4]]
    assert lower_cased(lowered).to_json() == lowered.to_json() != cased.to_json()
