"""Tokenizers that are damaged, hostile, or belong to another model."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

import pellucid
from tests.checkpoints.builders import (
    CORRUPT,
    MISMATCH,
    Case,
    Damage,
    assert_refused,
    parametrize_cases,
    valid_checkpoint,
    vocabulary,
    with_bytes,
    with_file,
)

pytestmark = pytest.mark.timeout(60)

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"


def backend() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(vocabulary())}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def changed(**parts: Any) -> Damage:
    """`tokenizer.json` with some parts replaced; a key of its model can be named `model__key`."""

    def damage(folder: Path) -> None:
        whole = json.loads(backend().to_str())
        for name, value in parts.items():
            inner, _, key = name.rpartition("__")
            (whole[inner] if inner else whole)[key] = value
        (folder / TOKENIZER).write_text(json.dumps(whole))

    return damage


def with_vocabulary(*more: str, number: int = 60) -> Damage:
    return with_file("vocab.txt", "\n".join([*vocabulary(number), *more]))


def with_settings(**values: Any) -> Damage:
    """Settings beside a `vocab.txt`."""

    def damage(folder: Path) -> None:
        with_vocabulary()(folder)
        (folder / TOKENIZER).unlink()
        with_file(SETTINGS, values)(folder)

    return damage


def pattern(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def replaced(*lengths: int, **pattern: str) -> list[dict[str, Any]]:
    return [{"type": "Replace", "pattern": pattern or {"String": "a"}, "content": "a" * length} for length in lengths]


LENGTH_0 = {"type": "FixedLength", "length": 0}
TABLE = {"type": "Precompiled", "precompiled_charsmap": "AAAA//8="}


BYTES = {"type": "ByteLevel"}
WHOLE = BYTES | {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def grown(kind: str, steps: list[dict[str, Any]]) -> Damage:
    return changed(**{kind: sequence(kind, steps)})


def sequence(kind: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", f"{kind.replace('_', '')}s": steps}


grow_both = changed(
    normalizer=sequence("normalizer", replaced(100)), pre_tokenizer=sequence("pre_tokenizer", [WHOLE] * 3)
)


def around(times: int, single: str = "[CLS]", pair: str = "", number: int = 1) -> dict[str, Any]:
    """A template with `times` special tokens of `times` ids each.  single, pair: the token before one text and two."""
    tokens = {"[CLS]": {"id": "[CLS]", "ids": [number] * times, "tokens": ["[CLS]"] * times}}
    one, two = ([{"SpecialToken": {"id": name, "type_id": 0}}] for name in (single, pair))
    single = [*one * times, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*two * bool(pair), *({"Sequence": {"id": name, "type_id": 0}} for name in "AB")]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def typed(number: int, second: int = 1) -> dict[str, Any]:
    """A template that gives a single text the type `number`.  second: the type of the second text of a pair."""
    pair = [{"Sequence": {"id": name, "type_id": kind}} for name, kind in (("A", 0), ("B", second))]
    single = [{"Sequence": {"id": "A", "type_id": number}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {}}


def added(number: int) -> list[dict[str, Any]]:
    return [{"id": number, "content": "x", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}]  # fmt: skip # noqa: E501


def numbered(last: int) -> dict[str, int]:
    return {word: i for i, word in enumerate(vocabulary())} | {"z": last}


def only_vocabulary(content: str | bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / TOKENIZER).unlink()
        with_file("vocab.txt", content)(folder)

    return damage


CASES = [
    Case("A46 broken pattern", changed(pre_tokenizer=pattern("(((")), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A46 length 0", changed(pre_tokenizer=LENGTH_0), CORRUPT, "tokenizer.json: its pre_tokenizer fails"),
    Case("A46 growing", grown("normalizer", replaced(100, 100)), CORRUPT, "pre_tokenizer may make 10,000 characters"),
    Case("A46 growing between", grown("normalizer", replaced(*[1] * 25, Regex="(?=a)")), CORRUPT, "may make 847,288,6"),
    Case("A46 growing bytes", grown("normalizer", [BYTES] * 22), CORRUPT, "may make 17,592,186,044,416 characters of"),
    Case("A46 growing pieces", grown("pre_tokenizer", [WHOLE] * 9), CORRUPT, "may make 786,432 characters of one"),
    Case("A46 growing together", grow_both, CORRUPT, "normalizer and pre_tokenizer may make 6,400 characters of one"),
    Case("A46 growing words", grown("decoder", replaced(100, 100)), CORRUPT, "decoder may make 10,000 characters of"),
    Case("A46 growing template", changed(post_processor=around(50)), CORRUPT, "2,500 special tokens surround"),
    Case("A46 no such token", changed(post_processor=around(1, "[NO]")), CORRUPT, "its post_processor fails"),
    Case("A46 none in pairs", changed(post_processor=around(1, pair="[NO]")), CORRUPT, "post_processor fails"),
    Case("A46 id beyond any", changed(post_processor=around(1, number=2**31)), CORRUPT, "gives the id 2147483648"),
    Case("A46 type beyond any", changed(post_processor=typed(4_000_000_000)), CORRUPT, "gives the type_id 4000000000"),
    Case("A46 type without row", changed(post_processor=typed(7)), CORRUPT, "json: its post_processor gives the type"),
    Case("A46 id without row", changed(post_processor=around(1, number=99)), CORRUPT, "json: its post_processor gives"),
    Case("A46 no row in pairs", changed(post_processor=typed(0, 2)), CORRUPT, "gives the type_id 2"),
    Case("A46 table", grown("normalizer", [TABLE]), CORRUPT, "its normalisation table says 4,278,190,080 bytes of 5"),
    Case("A46 id -1", changed(model__vocab=numbered(-1)), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A46 id 2^31", changed(model__vocab=numbered(2**31)), MISMATCH, "gives ids up to 2147483648"),
    Case("A46 id 2^32", changed(model__vocab=numbered(2**32)), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A46 truncated", with_bytes(lambda raw: raw[:-50], TOKENIZER), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A46 empty", with_file(TOKENIZER, ""), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A46 a list", with_file(TOKENIZER, []), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A46 deep", with_file(TOKENIZER, "[" * 533_000), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A46 not UTF-8", with_file(TOKENIZER, b"\xff\xfe"), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A46 unknown model", changed(model__type="payload.Model"), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A46 terminal codes", changed(model__type="\x1b[2J" * 99), CORRUPT, "tokenizer.json is not a tokenizer"),
    Case("A47 words", changed(model__vocab=numbered(60)), MISMATCH, "model's table of tokens has 60 rows"),
    Case("A47 list", only_vocabulary("\n".join(vocabulary(57) + list("ABCDE"))), MISMATCH, "gives ids up to 61"),
    Case("A46 no [UNK]", only_vocabulary("[CLS]\n[SEP]\na"), CORRUPT, "vocab.txt lacks [UNK], needed for unknown"),
    Case("A46 empty list", only_vocabulary(""), CORRUPT, "vocab.txt lacks [UNK], [CLS], [SEP]"),
    Case("A46 list in UTF-16", only_vocabulary("[UNK]".encode("utf-16")), CORRUPT, "vocab.txt is not UTF-8 text"),
    Case("settings not JSON", with_file(SETTINGS, "{"), CORRUPT, "tokenizer_config.json is not JSON"),
    Case("settings a list", with_file(SETTINGS, []), CORRUPT, "tokenizer_config.json holds a list"),
    Case("settings deep", with_file(SETTINGS, "[" * 1_000_000), CORRUPT, "tokenizer_config.json is not JSON"),
    Case("settings 21 MB", with_file(SETTINGS, " " * 21_000_000), CORRUPT, "expected at most 20,000,000"),
    Case("5,000 digits", with_file(SETTINGS, '{"a": %s}' % ("9" * 5000)), CORRUPT, "tokenizer_config.json is not JSON"),
    Case("lower case", with_settings(do_lower_case="no"), CORRUPT, "do_lower_case is 'no', expected true or false"),
    Case("accents", with_settings(strip_accents=5), CORRUPT, "strip_accents is 5, expected true or false"),
    Case("token 5", with_settings(pad_token=5), CORRUPT, "pad_token is 5, expected a token"),
    Case("token of nothing", with_settings(cls_token={"content": None}), CORRUPT, "cls_token is {'content': None}"),
]  # fmt: skip


@parametrize_cases(CASES)
def test_a_hostile_tokenizer_is_refused(case: Case, tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    (folder / TOKENIZER).write_text(backend().to_str())
    assert pellucid.load(folder).embed("abc").shape == (24,)
    case.damage(folder)
    assert_refused(folder, case)


HARMLESS = {
    "a large added token": changed(added_tokens=added(59)),
    "length NaN": with_file(SETTINGS, {"model_max_length": float("nan")}),
    "length below 1": with_file(SETTINGS, {"model_max_length": 0.5}),
    "length negative": with_file(SETTINGS, {"model_max_length": -3}),
    "length as text": with_file(SETTINGS, {"model_max_length": "512"}),
    "length endless": with_file(SETTINGS, {"model_max_length": 1e30}),
    "token as object": with_file(SETTINGS, {"pad_token": {"content": "[PAD]", "special": True}}),
    "no token": with_file(SETTINGS, {"pad_token": None}),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_odd_and_harmless_settings_load_and_run(name: str, tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    (folder / TOKENIZER).write_text(backend().to_str())
    HARMLESS[name](folder)
    assert pellucid.load(folder).embed(["abc", "abc " * 50]).shape == (2, 24)
