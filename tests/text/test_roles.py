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
from tests.text.test_tokenizer_config import AS_IT_STANDS, GOLDEN, folder, opened
from tests.text.tokenizer_files import folder_of

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


def bare(place: Path, name: str, files: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A checkpoint whose tokenizer_config.json holds these settings and nothing else."""
    made = folder_of(place, name, {"tokenizer.json": GOLDEN / name / "tokenizer.json"})
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    for file, content in (files or {}).items():
        (made / file).write_text(json.dumps(content))
    return made


def both(made: Path) -> tuple[Any, Tokenizer]:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(made), opened(made)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "albert", "t5", "xlm-roberta", "distilbert", "electra"])
def test_a_file_that_names_no_roles_has_those_of_its_class(tmp_path: Path, name: str) -> None:
    golden = {"distilbert": "bert", "electra": "bert"}.get(name, name)
    made = folder_of(tmp_path / "bare", name, {"tokenizer.json": GOLDEN / golden / "tokenizer.json"})
    (made / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    theirs, ours = both(made)
    assert {role: ours.special_token(role) for role in ROLES} == {
        role: getattr(theirs, f"{role}_token") for role in ROLES
    }
    assert ours("a dog")["input_ids"] == theirs("a dog")["input_ids"]
    (mask,) = ours.encode([f"a {ours.mask_token} dog"])
    assert mask.ids.count(ours.mask_token_id) == (ours.mask_token is not None)


def test_a_class_that_takes_the_file_as_it_stands_brings_no_roles(tmp_path: Path) -> None:
    ours = opened(bare(tmp_path / "bare", "bert", tokenizer_class=AS_IT_STANDS))
    assert not any(ours.special_token(role) for role in ROLES)


def test_the_class_in_config_json_counts_where_no_other_is_stated(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    made = folder(tmp_path, "bert", do_lower_case=False, tokenizer_class=None)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"tokenizer_class": AS_IT_STANDS}))
    ours, theirs = compat.AutoTokenizer.from_pretrained(made), AutoTokenizer.from_pretrained(made)
    assert (
        ours.tokenize("Time Flies")
        == theirs.tokenize("Time Flies")
        == opened(folder(tmp_path / "b", "bert")).encode(["Time Flies"], add_special_tokens=False)[0].tokens
    )


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
def test_special_tokens_are_split_where_the_settings_say_so(tmp_path: Path, name: str) -> None:
    theirs, ours = both(folder(tmp_path, name, split_special_tokens=True))
    text = "a [MASK] <mask> </s> <|endoftext|> b"
    expected = theirs(text)["input_ids"]
    assert ours(text)["input_ids"] == pickle.loads(pickle.dumps(ours))(text)["input_ids"] == expected
    assert opened(folder(tmp_path / "b", name))(text)["input_ids"] != expected


def test_a_class_of_another_family_is_refused_where_the_file_does_not_tell_how_it_reads(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    made = folder_of(tmp_path / "japanese", "bert", {"vocab.txt": vocabulary}, tokenizer_class="BertJapaneseTokenizer")
    with pytest.raises(InputError, match=r"'BertJapaneseTokenizer', and vocab.txt .*: add its tokenizer.json"):
        read_tokenizer(made)


@pytest.mark.parametrize("kind", ["T5Tokenizer", "GPT2Tokenizer", "RobertaTokenizerFast", "XLMRobertaTokenizer"])
def test_so_is_a_class_whose_files_have_another_form(tmp_path: Path, kind: str) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    made = folder_of(tmp_path / "other", "bert", {"vocab.txt": vocabulary}, tokenizer_class=kind)
    with pytest.raises(InputError, match=rf"'{kind}', and vocab.txt .*: add its tokenizer.json"):
        read_tokenizer(made)


def test_the_unknown_token_that_is_stated_stands_for_unknown_words(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[OTHER]\n[CLS]\n[SEP]\n[MASK]\na\n")
    made = folder_of(
        tmp_path / "other", "bert", {"vocab.txt": vocabulary}, tokenizer_class="BertTokenizer", unk_token="[OTHER]"
    )
    theirs, ours = both(made)
    assert ours("a b")["input_ids"] == theirs("a b")["input_ids"] == [2, 5, 1, 3]


@pytest.mark.parametrize("numbered", [False, True], ids=["no ids", "ids"])
def test_the_map_of_special_tokens_goes_over_older_settings_alone(tmp_path: Path, numbered: bool) -> None:
    more: dict[str, Any] = {"added_tokens_decoder": {"0": {"content": "[PAD]", "special": True}}} if numbered else {}
    settings = {"tokenizer_class": "BertTokenizer", "pad_token": "[PAD]", "extra_special_tokens": ["[ONE]"]}
    over = {"special_tokens_map.json": {"pad_token": "[SEP]", "extra_special_tokens": ["[TWO]"]}}
    theirs, ours = both(bare(tmp_path / "map", "bert", over, **settings, **more))
    assert ours.pad_token == theirs.pad_token == ("[PAD]" if numbered else "[SEP]")
    assert ours("[ONE] [TWO]")["input_ids"] == theirs("[ONE] [TWO]")["input_ids"]


def test_a_map_of_objects_is_saved_so_that_the_reference_opens_it(tmp_path: Path) -> None:
    """Up to 4.33 the reference wrote tokens there without the `__type` that it reads elsewhere."""

    def token(text: str, **flags: bool) -> dict[str, Any]:
        return {"content": text, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False} | flags

    over = {"special_tokens_map.json": {"mask_token": token("<mask>", lstrip=True), "pad_token": "<pad>"}}
    settings = {"tokenizer_class": "RobertaTokenizer", "mask_token": {"__type": "AddedToken"} | token("<mask>")}
    theirs, ours = both(bare(tmp_path / "map", "roberta", over, **settings))
    ours.settings["additional_special_tokens"] = [token("<one>", rstrip=True)]  # which the reference refuses in a map
    saved = bare(tmp_path / "saved", "roberta")
    write_tokenizer(ours, saved)
    again, own = both(saved)
    text = "a <mask>  b"
    assert again(text)["input_ids"] == own(text)["input_ids"] == theirs(text)["input_ids"]
    assert again.mask_token == "<mask>"
    assert {token.content: token.rstrip for token in again.added_tokens_decoder.values()}["<one>"]


def test_tokens_of_one_model_are_special_and_known_to_templates(tmp_path: Path) -> None:
    settings = {
        "tokenizer_class": AS_IT_STANDS,
        "image_token": "<img>",
        "extra_special_tokens": {"box_token": "<box>"},
        "chat_template": "{{ image_token }}{{ box_token }}",
    }
    theirs, ours = both(bare(tmp_path / "own", "gpt2", **settings))
    assert ours("a<img>b<box>")["input_ids"] == theirs("a<img>b<box>")["input_ids"]
    messages = [{"role": "user", "content": "x"}]
    expected = theirs.apply_chat_template(messages, tokenize=False)
    assert ours.apply_chat_template(messages) == expected == "<img><box>"


def test_the_padding_that_a_file_was_saved_with_names_the_token(tmp_path: Path) -> None:
    made = bare(tmp_path / "padded", "bert", tokenizer_class=AS_IT_STANDS)
    page = json.loads((made / "tokenizer.json").read_text())
    page["padding"] = {
        "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 3, "pad_type_id": 0, "pad_token": "[SEP]",
    }  # fmt: skip
    (made / "tokenizer.json").write_text(json.dumps(page))
    theirs, ours = both(made)
    texts = ["a dog sleeps", "a"]
    assert ours.pad_token == theirs.pad_token == "[SEP]"
    assert ours(texts, padding=True)["input_ids"] == theirs(texts, padding=True)["input_ids"]
