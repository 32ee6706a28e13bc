"""Texts to ids: the reference's ids, padding and truncation, and many odd inputs."""

import copy
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid
from pellucid.text import batch_limits, collate, length_batches
from pellucid.text.batch import PASS_COST
from pellucid.text.template_marks import mark_special_tokens, split_marked

TEXTS = ["a", "time flies like an arrow", "Übergrößenträger naïve café", "北京 is big", "a" * 200, "don't stop!? (now)"]


@pytest.fixture(scope="module")
def reference(minilm_folder: object) -> object:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(minilm_folder)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("padding", [True, False, "max_length"])
def test_ids_equal_the_reference(minilm: "pellucid.Model", reference: object, special: bool, padding: object) -> None:
    arguments = {"padding": padding, "add_special_tokens": special, "max_length": 40, "truncation": True}
    expected, found = reference(TEXTS, **arguments), minilm.tokenizer(TEXTS, **arguments)
    assert dict(expected) == dict(found)


@pytest.mark.parametrize("strategy", [True, "only_first", "only_second"])
@pytest.mark.parametrize("limit", [9, 12, 13, 20])
@pytest.mark.parametrize("sizes", [(3, 12), (12, 3), (7, 7), (12, 13), (4, 4)])
def test_pairs_are_truncated_as_in_the_reference(
    minilm: "pellucid.Model", reference: object, strategy: object, limit: int, sizes: tuple[int, int]
) -> None:
    first, second = (" ".join(["word"] * n) for n in sizes)
    arguments = {"max_length": limit, "truncation": strategy}
    short = {"only_first": sizes[0], "only_second": sizes[1]}.get(strategy, 99) - (sum(sizes) + 3 - limit)
    if short <= 0 and strategy is not True:
        with pytest.raises(pellucid.InputError, match="cannot fit"):
            minilm.tokenizer(first, second, **arguments)
        return
    assert dict(reference(first, second, **arguments)) == dict(minilm.tokenizer(first, second, **arguments))


def test_tensors_have_ids_and_mask(minilm: "pellucid.Model") -> None:
    batch = minilm.tokenizer(["a", "b c"], padding=True, return_tensors="pt")
    assert batch.input_ids.dtype == torch.int64 and batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert minilm.tokenizer("a", return_tensors="np").input_ids.shape == (1, 3)
    assert minilm.tokenizer("a").input_ids == [101, 1037, 102]
    assert minilm.tokenizer(["a"]).input_ids == [[101, 1037, 102]]
    with pytest.raises(AttributeError, match="it has input_ids"):
        _ = batch.labels


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"texts": ["a", "b c"], "return_tensors": "pt"}, "padding=True"),
        ({"texts": "a", "padding": "longset"}, "longset"),
        ({"texts": "a", "return_tensors": "tf"}, "'pt', 'np'"),
        ({"texts": "a", "truncation": True, "max_length": 0}, "max_length is 0"),
        ({"texts": "a b", "truncation": True, "max_length": 1}, "no room"),
        ({"texts": "a", "truncation": "first"}, "only_first"),
        ({"texts": ["a", "b"], "pair": ["c"]}, "2 texts but 1 second"),
        ({"texts": ["a", None]}, "text 1 is NoneType"),
        ({"texts": ["a", 5]}, "text 1 is int"),
        ({"texts": ["a", b"b"]}, "text 1 is bytes"),
        ({"texts": "x" * 10_000_001}, "10,000,001 characters"),
        ({"texts": "a b c", "padding": "max_length", "max_length": 2}, "does not fit"),
        ({"texts": None}, "^texts is NoneType, expected a text or a list of texts"),
        ({"texts": {"a": "b"}}, "^texts is dict, expected"),
        ({"texts": "a", "pair": torch.tensor(1)}, "^pair is Tensor, expected"),
        ({"texts": "a b c", "max_length": 3}, "^nothing is cut or padded to max_length 3: pass truncation=True$"),
        ({"texts": "a b c", "max_length": 9, "padding": True}, "^nothing is cut or padded to max_length 9"),
        ({"texts": "a", "max_length": {}}, r"^max_length is \{\}, expected a whole number from 1"),
        ({"texts": "a", "padding": np.array([1, 2])}, r"^padding is array\(\[1, 2\]\), expected True"),
        ({"texts": "a", "truncation": torch.tensor([1, 2])}, "^truncation is tensor"),
        ({"texts": "a", "return_tensors": np.array(["pt", "np"])}, "^return_tensors is array"),
        ({"texts": "a", "add_special_tokens": None}, "^add_special_tokens is None, expected true or false"),
        ({"texts": "a", "parse_special_tokens": "no"}, "^parse_special_tokens is 'no', expected true or false"),
    ],
)
def test_invalid_arguments_are_refused(minilm: "pellucid.Model", arguments: dict[str, object], fragment: str) -> None:
    with pytest.raises(pellucid.InputError, match=fragment):
        minilm.tokenizer(**arguments)


def test_ids_are_converted_to_text_and_tokens(minilm: "pellucid.Model") -> None:
    tokenizer = minilm.tokenizer
    ids = tokenizer("time flies").input_ids
    assert tokenizer.decode(ids) == "[CLS] time flies [SEP]"
    assert tokenizer.decode(torch.tensor(ids), skip_special_tokens=True) == "time flies"
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "time", "flies", "[SEP]"]
    assert tokenizer.convert_tokens_to_ids(["time", "no such token"]) == [2051, None]
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id, len(tokenizer)) == (0, 103, 30522)
    with pytest.raises(pellucid.InputError, match="30,522 tokens"):
        tokenizer.convert_ids_to_tokens([40000])


def test_typed_special_tokens_are_plain_text(minilm: "pellucid.Model") -> None:
    (encoded,) = minilm.tokenizer.encode(["a [SEP] b"])
    assert encoded.tokens == ["[CLS]", "a", "[", "sep", "]", "b", "[SEP]"]
    assert minilm.tokenizer("a [SEP] b").input_ids == [101, 1037, 102, 1038, 102]
    (masked,) = minilm.tokenizer.encode(["Paris is the [MASK] of France"])
    assert "[MASK]" in masked.tokens


LETTERS = ["<", "/", "s", ">", "a", "▁"]
PIECES = tokenizers.models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *((one, -1.0) for one in LETTERS)], unk_id=0)
VOCABULARY = {"<unk>": 0, "</s>": 1, **{one: i for i, one in enumerate([*LETTERS, "</", "s>"], 2)}}
MERGES = tokenizers.models.BPE(VOCABULARY, [("<", "/"), ("s", ">"), ("</", "s>")])


@pytest.mark.parametrize("text", ["a </s> a", "a ＜/s＞ a", "</S>", "</ŝ>a", "a</s>＜/S＞a</s>"])
@pytest.mark.parametrize(
    ("model", "normalized"),
    [
        (PIECES, False),
        (MERGES, False),
        (MERGES, True),
        (tokenizers.models.WordLevel(VOCABULARY, unk_token="<unk>"), False),
        (tokenizers.models.WordPiece(VOCABULARY, unk_token="<unk>"), True),
    ],
)
def test_typed_text_never_becomes_a_special_token(model: object, normalized: bool, text: str) -> None:
    """Also if only the normalizer turns it into one, or if the model's vocabulary has the token."""
    backend = tokenizers.Tokenizer(model)
    steps = tokenizers.normalizers
    backend.normalizer = steps.Sequence([steps.NFKD(), steps.StripAccents(), steps.Lowercase()])
    if not isinstance(model, tokenizers.models.BPE):
        backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([tokenizers.AddedToken("</s>", normalized=normalized)])
    tokenizer = pellucid.text.Tokenizer(backend, settings={"chat_template": "a{{ messages[0].content }}a</s>"})
    assert 1 not in tokenizer.encode([text], add_special_tokens=False)[0].ids
    for content, ends in ((text, 1), ("a a", 1)):
        call = [{"role": "user", "content": content}], {"tokenize": True, "parse_special_tokens": False}
        assert (ids := tokenizer.apply_chat_template(call[0], **call[1])).count(1) == ends and ids[-1] == 1
    assert ids == tokenizer.apply_chat_template(call[0], tokenize=True)


@pytest.mark.parametrize(
    ("text", "special"),
    [
        ("  a", []),
        ("a  ", []),
        (" ", []),
        ("", []),
        ("a\u0301 </s>", ["</s>"]),
        (" ＜/s＞a\u0301 ", ["＜/s＞"]),
        ("oﬃce ½", ["ﬃ", "½"]),
    ],
)
def test_messages_keep_what_normalization_removes(text: str, special: list[str]) -> None:
    """Spaces at its ends, an accent after a typed special token, and a letter that becomes several."""
    backend = tokenizers.Tokenizer(PIECES)
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Strip()]
    )
    backend.add_special_tokens([tokenizers.AddedToken("</s>", normalized=False)])
    parts = list(split_marked(mark_special_tokens(text, ["</s>", "ff", "2"], backend.normalizer)))
    assert "".join(part for part, _ in parts) == text
    assert [part for part, marked in parts if marked] == special


ODD_TEXTS = {
    "empty": "",
    "spaces": "   ",
    "lone surrogate": "a\ud800b",
    "NUL": "a\0b",
    "family emoji": "👨‍👩‍👧‍👦 hi",
    "right to left": "\u202eabc שלום",
    "combining marks": "e" + "\u0301" * 5000,
    "private use": "\ue000\uf8ff",
}


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_encoding_of_odd_texts_is_deterministic(minilm: "pellucid.Model", name: str) -> None:
    (one,), (two,) = minilm.tokenizer.encode([ODD_TEXTS[name]]), minilm.tokenizer.encode([ODD_TEXTS[name]])
    assert one == two
    assert one.tokens[0] == "[CLS]" and one.tokens[-1] == "[SEP]"
    assert all(0 <= start <= end <= len(ODD_TEXTS[name]) for start, end in one.offsets)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_any_text_gives_ids_of_the_vocabulary(text: str) -> None:
    (row,) = _tokenizer().encode([text])
    assert all(0 <= i < 30522 for i in row.ids)


def _tokenizer() -> "pellucid.text.Tokenizer":
    if not hasattr(_tokenizer, "cached"):
        _tokenizer.cached = pellucid.load("all-MiniLM-L6-v2").tokenizer
    return _tokenizer.cached


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))], ids=["deepcopy", "pickle"])
def test_tokenizer_can_be_copied_and_pickled(minilm: "pellucid.Model", copied: object) -> None:
    encoded = minilm.tokenizer.encode(["a [SEP] b"])  # from here on it holds a copy without special tokens
    assert dict(copied(minilm.tokenizer)(TEXTS)) == dict(minilm.tokenizer(TEXTS))
    assert copied(minilm.tokenizer).encode(["a [SEP] b"]) == encoded


def test_maltese_letter_is_not_a_space() -> None:
    pieces = tokenizers.models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("Ġ", -2.0)], unk_id=0)
    for model, decoder, by_bytes, space in (
        (pieces, tokenizers.decoders.Metaspace(), False, "▁"),
        (tokenizers.models.BPE({"Ġ": 0, "a": 1}, []), tokenizers.decoders.ByteLevel(), True, "Ġ"),
        (tokenizers.models.WordLevel({"Ġ": 0}, unk_token="Ġ"), None, False, None),
    ):
        backend = tokenizers.Tokenizer(model)
        if decoder is not None:
            backend.decoder = decoder
        tokenizer = pellucid.text.Tokenizer(backend)
        assert (tokenizer.by_bytes, tokenizer.space_marker) == (by_bytes, space)


# -- batches ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 600), max_size=300), st.integers(1, 4096))
def test_batches_have_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(length_batches(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


def _cost(batches: list[list[int]], lengths: list[int]) -> int:
    return sum(len(batch) * max(1, *(lengths[i] for i in batch)) + PASS_COST for batch in batches)


@given(st.lists(st.sampled_from([0, 1, 2, 30, 90, 91, 200]), max_size=7), st.integers(1, 400))
def test_batches_have_the_least_cost(lengths: list[int], budget: int) -> None:
    """Compared with every way to cut the rows, in order of length, into batches."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    best = _cost(list(length_batches(lengths, budget)), lengths)
    for cuts in itertools.product([False, True], repeat=max(len(order) - 1, 0)):
        ends = [*(i + 1 for i, cut in enumerate(cuts) if cut), *([len(order)] if order else [])]
        batches = [order[start:end] for start, end in zip([0, *ends], ends)]
        if all(len(batch) == 1 or len(batch) * max(1, lengths[batch[0]]) <= budget for batch in batches):
            assert best <= _cost(batches, lengths)


def test_few_texts_of_different_lengths_are_separated() -> None:
    """One batch of all would be two thirds padding."""
    lengths = [250, 100, 12, 11, 10, 9, 8, 7]
    computed = sum(len(batch) * lengths[batch[0]] for batch in length_batches(lengths, 4096))
    assert computed <= sum(lengths) + 50


def test_batches_are_larger_on_a_gpu() -> None:
    """What is split into several batches on a CPU is one batch there, as far as its budget goes."""
    lengths = [250, 100, *range(12, 112)]
    gpu, processor = (list(length_batches(lengths, *batch_limits(device))) for device in ("cuda", "cpu"))
    assert len(gpu) == 2 and len(processor) > 8 and processor == list(length_batches(lengths))


def test_padding_is_below_four_percent(shared: object, minilm: "pellucid.Model") -> None:
    texts = shared("data/sst2/train.txt").read_text(encoding="utf-8").splitlines()[:2000]
    lengths = [len(row.ids) for row in minilm.tokenizer.encode(texts)]
    computed = sum(len(batch) * max(lengths[i] for i in batch) for batch in length_batches(lengths))
    assert 1 - sum(lengths) / computed <= 0.04


def test_collate_pads_left_and_right() -> None:
    right = collate([[1, 2], [3]], [[0, 1], [0]], 9)
    assert right["input_ids"].tolist() == [[1, 2], [3, 9]] and right["attention_mask"].tolist() == [[1, 1], [1, 0]]
    left = collate([[1, 2], [3]], [[0, 1], [0]], 9, left=True)
    assert left["input_ids"].tolist() == [[1, 2], [9, 3]]


_WITHOUT_THREADS = """
import os, resource, sys
import pellucid
from pellucid.errors import ResourceError
from pellucid.text.fingerprint import fingerprint
tokenizer = pellucid.load(sys.argv[1]).tokenizer
if os.geteuid() == 0:  # who is exempt from the limit of processes
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
for work in (lambda: tokenizer.encode(["a text", "another"]), lambda: fingerprint(tokenizer)):
    try:
        work()
    except ResourceError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="this system limits no threads")
def test_failure_to_start_threads_is_reported(checkpoint: Callable[[str], Path]) -> None:
    environment = os.environ | {"RAYON_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, "-c", _WITHOUT_THREADS, str(checkpoint("bert-body"))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert result.stdout.count("set TOKENIZERS_PARALLELISM=false, or raise its limit") == 2, result.stderr
