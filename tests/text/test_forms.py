"""Tokenizers in older formats: ids, offsets, special tokens and pairs equal the reference's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pellucid.errors import CorruptFileError, InputError
from pellucid.text.files import open_tokenizer, write_tokenizer
from tests.quick import few
from tests.text.tokenizer_files import tokenizer_folder, train_bpe, train_sentencepiece, wikitext_lines

Shared = Callable[[str], Path]
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS = [
    "Time flies like an arrow.",
    "  two  spaces\tand a tab\n",
    "Übergrößenträger naïve café ½ ﬁn",
    "北京 is 12,345 big",
    "one <mask> two",
    "",
    " lead",
    "don't stop!? (now) 👨‍👩‍👧 \u200b x",
]
FAMILIES = {
    "gpt2": ("GPT2Tokenizer", {}),
    "gpt2 spaced": ("GPT2Tokenizer", {"add_prefix_space": True}),
    "gpt2 bos": ("GPT2Tokenizer", {"add_bos_token": True}),
    "roberta": ("RobertaTokenizer", {}),
    "roberta spaced": ("RobertaTokenizer", {"add_prefix_space": True}),
    "roberta untrimmed": ("RobertaTokenizer", {"trim_offsets": False}),
    "bart": ("BartTokenizer", {}),
    "t5": ("T5Tokenizer", {}),
    "t5 few": ("T5Tokenizer", {"extra_ids": 7}),
    "xlm-roberta": ("XLMRobertaTokenizer", {}),
    "camembert": ("CamembertTokenizer", {}),
    "llama": ("LlamaTokenizer", {"add_bos_token": True}),
    "llama legacy": ("LlamaTokenizer", {"add_bos_token": True, "legacy": True}),
    "llama unsaid": ("LlamaTokenizer", {"add_bos_token": True, "add_prefix_space": None}),
    "llama both": ("LlamaTokenizer", {"add_bos_token": True, "add_eos_token": True}),
}
MASK_TOKEN = {
    "__type": "AddedToken",
    "content": "<mask>",
    "lstrip": True,
    "rstrip": False,
    "normalized": False,
    "special": True,
}


@pytest.fixture(scope="module")
def family_files(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """The files of each family, trained on wikitext."""
    folder, lines = tmp_path_factory.mktemp("trained"), wikitext_lines(shared("data/wikitext2/valid.txt"))
    t5 = train_sentencepiece(lines, folder / "t5.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    plain = train_sentencepiece(lines, folder / "xlm.model")
    llama = train_sentencepiece(
        lines,
        folder / "llama.model",
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    roberta = train_bpe(lines, folder / "roberta", SPECIAL_TOKENS)
    return {
        "gpt2": train_bpe(lines, folder / "gpt2", ["<|endoftext|>"]),
        "roberta": roberta,
        "bart": roberta,
        "t5": {"spiece.model": t5},
        "xlm-roberta": {"sentencepiece.bpe.model": plain},
        "camembert": {"sentencepiece.bpe.model": plain},
        "llama": {"tokenizer.model": llama},
    }


def open_both(family_files: dict[str, dict[str, Path]], path: Path, name: str) -> tuple[Any, Any, Path]:
    """Ours, the reference's, and the folder that both read."""
    import transformers

    family, (kind, settings) = name.split()[0], FAMILIES[name]
    settings = settings | {"tokenizer_class": kind}
    if family in ("roberta", "bart"):
        settings["mask_token"] = MASK_TOKEN  # as in every RoBERTa folder; the reference's class alone drops the space
    folder = tokenizer_folder(path / "folder", family, family_files[family], **settings)
    ours = open_tokenizer(folder, max_length=None, token_types=True, model_type=family)
    return ours, getattr(transformers, kind).from_pretrained(folder), folder


def encoded_rows(tokenizer: Any, texts: list[str], pairs: list[str] | None = None) -> list[tuple[Any, ...]]:
    encoded = tokenizer.encode(texts, pairs, parse_special_tokens=True)
    return [(row.ids, row.type_ids, [tuple(span) for span in row.offsets], row.tokens) for row in encoded]


def reference_rows(tokenizer: Any, texts: list[str], pairs: list[str] | None = None) -> list[tuple[Any, ...]]:
    inputs = texts if pairs is None else list(zip(texts, pairs))
    encoded = tokenizer._tokenizer.encode_batch(inputs)
    return [(row.ids, row.type_ids, row.offsets, row.tokens) for row in encoded]


@pytest.mark.parametrize("name", few(FAMILIES, ["gpt2", "roberta", "roberta untrimmed"]))
def test_ids_offsets_and_pairs_equal_the_reference(
    family_files: dict[str, dict[str, Path]], shared: Shared, tmp_path: Path, name: str
) -> None:
    ours, theirs, _ = open_both(family_files, tmp_path, name)
    texts = TEXTS + wikitext_lines(shared("data/wikitext2/test.txt"), 200)
    assert encoded_rows(ours, texts) == reference_rows(theirs, texts)
    assert encoded_rows(ours, texts, texts[::-1]) == reference_rows(theirs, texts, texts[::-1])
    assert [ours.decode(row[0]) for row in encoded_rows(ours, texts)] == theirs.batch_decode(
        [r[0] for r in encoded_rows(ours, texts)]
    )
    for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        assert ours.special_token(role) == getattr(theirs, f"{role}_token"), role
        assert getattr(ours, f"{role}_token_id") == getattr(theirs, f"{role}_token_id"), role


@pytest.mark.parametrize("legacy", [None, True, False])
@pytest.mark.parametrize(("family", "kind"), [("mistral", "LlamaTokenizer"), ("mistral", None), ("llama", None)])
def test_leading_spaces_are_encoded_as_in_the_reference(
    family_files: dict[str, dict[str, Path]], tmp_path: Path, family: str, kind: str | None, legacy: bool | None
) -> None:
    from transformers import AutoTokenizer

    settings = {name: value for name, value in (("tokenizer_class", kind), ("legacy", legacy)) if value is not None}
    folder = tokenizer_folder(tmp_path / "folder", family, family_files["llama"], **settings)
    ours = open_tokenizer(folder, max_length=None, token_types=False, model_type=family)
    texts = [*TEXTS, " a", "  a b", "▁a", "a </s> b", " </s>x <s>", "\n a", " "]
    theirs = AutoTokenizer.from_pretrained(folder)._tokenizer.encode_batch(texts, add_special_tokens=False)
    found = ours.encode(texts, parse_special_tokens=True, add_special_tokens=False)
    assert [(row.ids, row.offsets) for row in found] == [(row.ids, row.offsets) for row in theirs]
    assert found[-1].tokens == ["▁"] * (1 if legacy is False else 2)


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_tokenizer_opens_in_the_reference(
    family_files: dict[str, dict[str, Path]], tmp_path: Path, name: str
) -> None:
    from transformers import AutoTokenizer

    ours, _, folder = open_both(family_files, tmp_path, name)
    ours.settings["chat_template"] = "{{ messages[0]['content'] }}{{ eos_token }}"
    (target := tmp_path / "saved").mkdir()
    write_tokenizer(ours, target)
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    theirs, again = AutoTokenizer.from_pretrained(target), open_tokenizer(target, max_length=None, token_types=True)
    assert reference_rows(theirs, TEXTS) == encoded_rows(ours, TEXTS) == encoded_rows(again, TEXTS)
    assert [ours.special_token(r) for r in ("bos", "eos", "unk")] == [
        theirs.bos_token,
        theirs.eos_token,
        theirs.unk_token,
    ]
    messages = [{"role": "user", "content": "a"}]
    assert (
        theirs.apply_chat_template(messages, tokenize=False)
        == again.apply_chat_template(messages)
        == f"a{ours.eos_token}"
    )


@pytest.mark.parametrize("name", ["t5", "xlm-roberta", "llama", "roberta"])
def test_typed_special_tokens_are_plain_text(
    family_files: dict[str, dict[str, Path]], tmp_path: Path, name: str
) -> None:
    ours, _, _ = open_both(family_files, tmp_path, name)
    typed = ["a </s> b", "</s>", "a＜/s＞b <pad> <unk> <s>", "<extra_id_3>"]
    special_ids = {ours._backend.token_to_id(word) for word in ("</s>", "<s>", "<pad>", "<extra_id_3>")} - {None}
    assert any(
        special_ids & set(row.ids) for row in ours.encode(typed, add_special_tokens=False, parse_special_tokens=True)
    )
    for row in ours.encode(typed, add_special_tokens=False):
        assert not special_ids & set(row.ids), row.tokens


def test_ids_of_gpt2_equal_llamacpp(shared: Shared, tmp_path: Path) -> None:
    files = {
        "vocab.json": shared("data/tokenizers/gpt2-encoder.json"),
        "merges.txt": shared("data/tokenizers/gpt2-vocab.bpe"),
    }
    folder = tokenizer_folder(tmp_path / "gpt2", "gpt2", files)
    ours = open_tokenizer(folder, max_length=1024, token_types=False, model_type="gpt2")
    gold = shared("data/tokenizers_gguf/ggml-vocab-gpt-2.gguf.inp")
    texts = gold.read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    expected = [[int(i) for i in line.split()] for line in gold.with_suffix(".out").read_text().splitlines()]
    assert len(expected) == 46
    assert [row.ids for row in ours.encode(texts[:46])] == expected
    assert (ours.eos_token_id, ours.eos_token, len(ours)) == (50256, "<|endoftext|>", 50257)
    assert open_tokenizer(folder, max_length=1, token_types=False).encode(["a"])[0] == ours.encode(["a"])[0]


def test_added_tokens_have_the_ids_in_the_files(family_files: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    folder = tokenizer_folder(
        tmp_path / "a", "gpt2", family_files["gpt2"], additional_special_tokens=["<|im_end|>"], pad_token="<|p|>"
    )
    (folder / "added_tokens.json").write_text(json.dumps({"<|p|>": 801, "<|im_end|>": 800}))
    ours = open_tokenizer(folder, max_length=None, token_types=False, model_type="gpt2")
    assert (ours.pad_token_id, ours.convert_tokens_to_ids(["<|im_end|>"])) == (801, [800])
    assert ours.additional_special_tokens == ["<|im_end|>"] and ours("a<|im_end|>").input_ids[-1] == 800
    (folder / "added_tokens.json").write_text(json.dumps({"<|p|>": 805}))
    with pytest.raises(CorruptFileError, match="the settings say 805"):
        open_tokenizer(folder, max_length=None, token_types=False, model_type="gpt2")


ERRORS = {
    "family": ({"config": "qwen2"}, InputError, "do not say how qwen2 splits"),
    "no merges": ({"merges.txt": None}, CorruptFileError, "merges.txt is missing"),
    "three parts": ({"merges.txt": "a b\na b c\n"}, CorruptFileError, "line 2"),
    "strange merge": ({"merges.txt": "qqq zzz\n"}, CorruptFileError, "does not fit"),
    "not JSON": ({"vocab.json": "{"}, CorruptFileError, "not JSON"),
    "deep": ({"vocab.json": "[" * 100_000}, CorruptFileError, "not JSON"),
    "list": ({"vocab.json": "[]"}, CorruptFileError, "not a vocabulary"),
    "giant id": ({"vocab.json": '{"a": 4000000000}'}, CorruptFileError, "4000000000"),
    "twice": ({"vocab.json": '{"a": 0, "b": 0}'}, CorruptFileError, "expected each once"),
    "a word twice": ({"vocab.json": '{"a": 0, "b": 1, "a": 2}'}, CorruptFileError, "'a' appears twice"),
    "a flag twice": ({"tokenizer_config.json": '{"legacy": true, "legacy": false}'}, CorruptFileError, "twice"),
    "a token twice": ({"added_tokens.json": '{"<x>": 800, "<x>": 801}'}, CorruptFileError, "'<x>' appears twice"),
    "flag": ({"tokenizer_config.json": '{"add_prefix_space": 3}'}, CorruptFileError, "add_prefix_space is 3"),
    "extra ids": ({"tokenizer_config.json": '{"extra_ids": 1e9}'}, CorruptFileError, "extra_ids is"),
    "added": ({"added_tokens.json": '{"a": -1}'}, CorruptFileError, "id of an added token is -1"),
    "extra": ({"tokenizer_config.json": '{"additional_special_tokens": [3]}'}, CorruptFileError, "additional_special"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_invalid_files_are_refused(family_files: dict[str, dict[str, Path]], tmp_path: Path, name: str) -> None:
    change, kind, fragment = ERRORS[name]
    folder = tokenizer_folder(tmp_path / "bad", "gpt2", family_files["gpt2"])
    for file, text in change.items():
        (folder / file).unlink(missing_ok=True)
        if text is not None:
            (folder / file).write_text(text)
    with pytest.raises(kind, match=fragment):
        open_tokenizer(folder, max_length=None, token_types=False, model_type=change.get("config", "gpt2"))
