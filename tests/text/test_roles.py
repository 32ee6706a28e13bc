"""Which special tokens a tokenizer has: those that its files name, else those of its family's class."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from pellucid import compat
from pellucid.checkpoints.load import read_tokenizer
from pellucid.errors import InputError
from pellucid.text.files import write_tokenizer
from pellucid.text.tokenizer import Tokenizer
from tests.text.test_tokenizer_config import GENERIC_CLASS, GOLDEN, golden_folder, opened_tokenizer
from tests.text.tokenizer_files import tokenizer_folder

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


def folder_with_settings(path: Path, name: str, files: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A checkpoint whose tokenizer_config.json holds these settings and nothing else."""
    folder = tokenizer_folder(path, name, {"tokenizer.json": GOLDEN / name / "tokenizer.json"})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    for file, content in (files or {}).items():
        (folder / file).write_text(json.dumps(content))
    return folder


def open_both(folder: Path) -> tuple[Any, Tokenizer]:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder), opened_tokenizer(folder)


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "gpt2", "albert", "t5", "xlm-roberta", "distilbert", "electra", "gpt_neo"]
)
def test_special_tokens_default_to_those_of_the_class(tmp_path: Path, name: str) -> None:
    golden = {"distilbert": "bert", "electra": "bert", "gpt_neo": "gpt2"}.get(name, name)
    folder = tokenizer_folder(tmp_path / "bare", name, {"tokenizer.json": GOLDEN / golden / "tokenizer.json"})
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    theirs, ours = open_both(folder)
    assert {role: ours.special_token(role) for role in ROLES} == {
        role: getattr(theirs, f"{role}_token") for role in ROLES
    }
    assert ours("a dog")["input_ids"] == theirs("a dog")["input_ids"]
    (mask,) = ours.encode([f"a {ours.mask_token} dog"])
    assert mask.ids.count(ours.mask_token_id) == (ours.mask_token is not None)


def test_generic_class_has_no_default_special_tokens(tmp_path: Path) -> None:
    ours = opened_tokenizer(folder_with_settings(tmp_path / "bare", "bert", tokenizer_class=GENERIC_CLASS))
    assert not any(ours.special_token(role) for role in ROLES)


def test_class_in_config_json_is_the_fallback(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = golden_folder(tmp_path, "bert", do_lower_case=False, tokenizer_class=None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tokenizer_class": GENERIC_CLASS}))
    ours, theirs = compat.AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (
        ours.tokenize("Time Flies")
        == theirs.tokenize("Time Flies")
        == opened_tokenizer(golden_folder(tmp_path / "b", "bert"))
        .encode(["Time Flies"], add_special_tokens=False)[0]
        .tokens
    )


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
def test_split_special_tokens_setting_is_applied(tmp_path: Path, name: str) -> None:
    theirs, ours = open_both(golden_folder(tmp_path, name, split_special_tokens=True))
    text = "a [MASK] <mask> </s> <|endoftext|> b"
    expected = theirs(text)["input_ids"]
    assert ours(text)["input_ids"] == pickle.loads(pickle.dumps(ours))(text)["input_ids"] == expected
    assert opened_tokenizer(golden_folder(tmp_path / "b", name))(text)["input_ids"] != expected


def test_unknown_class_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    folder = tokenizer_folder(
        tmp_path / "japanese", "bert", {"vocab.txt": vocabulary}, tokenizer_class="BertJapaneseTokenizer"
    )
    with pytest.raises(InputError, match=r"'BertJapaneseTokenizer', and vocab.txt .*: add its tokenizer.json"):
        read_tokenizer(folder)


@pytest.mark.parametrize("kind", ["T5Tokenizer", "GPT2Tokenizer", "RobertaTokenizerFast", "XLMRobertaTokenizer"])
def test_class_with_files_of_another_format_is_refused(tmp_path: Path, kind: str) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    folder = tokenizer_folder(tmp_path / "other", "bert", {"vocab.txt": vocabulary}, tokenizer_class=kind)
    with pytest.raises(InputError, match=rf"'{kind}', and vocab.txt .*: add its tokenizer.json"):
        read_tokenizer(folder)


def test_stated_unknown_token_is_used(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[OTHER]\n[CLS]\n[SEP]\n[MASK]\na\n")
    folder = tokenizer_folder(
        tmp_path / "other", "bert", {"vocab.txt": vocabulary}, tokenizer_class="BertTokenizer", unk_token="[OTHER]"
    )
    theirs, ours = open_both(folder)
    assert ours("a b")["input_ids"] == theirs("a b")["input_ids"] == [2, 5, 1, 3]


@pytest.mark.parametrize("numbered", [False, True], ids=["no ids", "ids"])
def test_special_tokens_map_overrides_older_settings_only(tmp_path: Path, numbered: bool) -> None:
    more: dict[str, Any] = {"added_tokens_decoder": {"0": {"content": "[PAD]", "special": True}}} if numbered else {}
    settings = {"tokenizer_class": "BertTokenizer", "pad_token": "[PAD]", "extra_special_tokens": ["[ONE]"]}
    map_file = {"special_tokens_map.json": {"pad_token": "[SEP]", "extra_special_tokens": ["[TWO]"]}}
    theirs, ours = open_both(folder_with_settings(tmp_path / "map", "bert", map_file, **settings, **more))
    assert ours.pad_token == theirs.pad_token == ("[PAD]" if numbered else "[SEP]")
    assert ours("[ONE] [TWO]")["input_ids"] == theirs("[ONE] [TWO]")["input_ids"]


def test_special_tokens_map_with_objects_is_saved_for_the_reference(tmp_path: Path) -> None:
    """Up to 4.33 the reference wrote tokens there without the `__type` that it reads elsewhere."""

    def token(text: str, **flags: bool) -> dict[str, Any]:
        return {"content": text, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False} | flags

    map_file = {"special_tokens_map.json": {"mask_token": token("<mask>", lstrip=True), "pad_token": "<pad>"}}
    settings = {"tokenizer_class": "RobertaTokenizer", "mask_token": {"__type": "AddedToken"} | token("<mask>")}
    theirs, ours = open_both(folder_with_settings(tmp_path / "map", "roberta", map_file, **settings))
    ours.settings["additional_special_tokens"] = [token("<one>", rstrip=True)]  # which the reference refuses in a map
    saved = folder_with_settings(tmp_path / "saved", "roberta")
    write_tokenizer(ours, saved)
    again, own = open_both(saved)
    text = "a <mask>  b"
    assert again(text)["input_ids"] == own(text)["input_ids"] == theirs(text)["input_ids"]
    assert again.mask_token == "<mask>"
    assert {token.content: token.rstrip for token in again.added_tokens_decoder.values()}["<one>"]


def test_model_specific_tokens_are_special_and_available_to_templates(tmp_path: Path) -> None:
    settings = {
        "tokenizer_class": GENERIC_CLASS,
        "image_token": "<img>",
        "extra_special_tokens": {"box_token": "<box>"},
        "chat_template": "{{ image_token }}{{ box_token }}",
    }
    theirs, ours = open_both(folder_with_settings(tmp_path / "own", "gpt2", **settings))
    assert ours("a<img>b<box>")["input_ids"] == theirs("a<img>b<box>")["input_ids"]
    messages = [{"role": "user", "content": "x"}]
    expected = theirs.apply_chat_template(messages, tokenize=False)
    assert ours.apply_chat_template(messages) == expected == "<img><box>"


def test_padding_in_tokenizer_json_names_the_padding_token(tmp_path: Path) -> None:
    folder = folder_with_settings(tmp_path / "padded", "bert", tokenizer_class=GENERIC_CLASS)
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    tokenizer_json["padding"] = {
        "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 3, "pad_type_id": 0, "pad_token": "[SEP]",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    theirs, ours = open_both(folder)
    texts = ["a dog sleeps", "a"]
    assert ours.pad_token == theirs.pad_token == "[SEP]"
    assert ours(texts, padding=True)["input_ids"] == theirs(texts, padding=True)["input_ids"]
