"""The reference's tokenizers, call by call: the same ids, columns, offsets and texts."""

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pellucid
from pellucid import compat
from pellucid.compat import tokenizer as module
from tests.parity import tiny

TOKENIZERS = Path(__file__).parent / "parity" / "golden" / "tokenizers"
KINDS = ("bert", "bert-cased", "roberta", "gpt2", "t5", "xlm-roberta", "mpnet", "mistral", "chat")
TEXTS = ["The old house isn't far, is it?", "Rain.", "A dog barks; an owl — naïve — answers 42 times!"]
PAIRS = ["Who barks?", "What falls?", "How often does the owl answer?"]
REMADE = ("t5", "xlm-roberta", "mistral", "chat")
"""Kinds for which version 5 of the reference builds its own tokenizer instead of reading the file's."""

TokenizerPair = tuple[Any, Any]
ReferenceTokenizer = transformers.PreTrainedTokenizerFast


def both_tokenizers(kind: str, **options: Any) -> TokenizerPair:
    """Our tokenizer and the reference's, from the same files."""
    ours = compat.AutoTokenizer.from_pretrained(TOKENIZERS / kind, **options)
    if kind not in REMADE:
        return ours, transformers.AutoTokenizer.from_pretrained(TOKENIZERS / kind, **options)
    names = ["input_ids", "attention_mask"]
    return ours, ReferenceTokenizer.from_pretrained(TOKENIZERS / kind, model_input_names=names, **options)


def as_plain_lists(found: Any) -> Any:
    if isinstance(found, dict | transformers.BatchEncoding):
        return {name: as_plain_lists(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [as_plain_lists(value) for value in found]
    return found.tolist() if hasattr(found, "tolist") else found


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "one text": ((TEXTS[0],), {}),
    "several": ((TEXTS,), {}),
    "a pair": ((TEXTS[0], PAIRS[0]), {}),
    "pairs": ((TEXTS, PAIRS), {}),
    "an empty second text": ((TEXTS[0], ""), {}),
    "empty second texts": ((TEXTS[:2], ["", PAIRS[0]]), {}),
    "pairs as tuples": (([(TEXTS[0], PAIRS[0]), (TEXTS[1], PAIRS[1])],), {}),
    "by name": ((), {"text": TEXTS[0], "text_pair": PAIRS[0]}),
    "bare": ((TEXTS,), {"add_special_tokens": False}),
    "cut": ((TEXTS,), {"truncation": True, "max_length": 7}),
    "cut unasked": ((TEXTS,), {"max_length": 7}),
    "cut first": ((TEXTS, PAIRS), {"truncation": "only_first", "max_length": 30}),
    "places": ((TEXTS,), {"return_offsets_mapping": True, "return_special_tokens_mask": True}),
    "ids alone": ((TEXTS,), {"return_attention_mask": False, "return_token_type_ids": False}),
    "types": ((TEXTS, PAIRS), {"return_token_type_ids": True}),
    "lengths": ((TEXTS,), {"return_length": True}),
    "stretches": ((TEXTS,), {"truncation": True, "max_length": 9, "stride": 2, "return_overflowing_tokens": True}),
    "stretches of a pair": (
        ([PAIRS[0], PAIRS[1]], [TEXTS[2], TEXTS[0]]),
        {"truncation": "only_second", "max_length": 24, "stride": 4, "return_overflowing_tokens": True},
    ),
    "words": ((["My", "naïve", "dog's", "name"],), {"is_split_into_words": True}),
    "rows of words": (([["Rain", "falls"], ["A", "dog", "barks"]],), {"is_split_into_words": True}),
    "targets": ((TEXTS,), {"text_target": PAIRS}),
    "targets, bare": ((TEXTS[0],), {"text_target": PAIRS[0], "add_special_tokens": False}),
    "targets in words": ((["a", "dog"],), {"text_target": ["My", "naïve"], "is_split_into_words": True}),
    "targets alone, bare": ((), {"text_target": PAIRS, "add_special_tokens": False, "return_length": True}),
    "targets alone, in stretches": (
        (),
        {"text_target": TEXTS, "truncation": True, "max_length": 9, "stride": 3, "return_overflowing_tokens": True},
    ),
}
PADDED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "tensors": ((TEXTS,), {"padding": True, "return_tensors": "pt"}),
    "arrays": ((TEXTS, PAIRS), {"padding": "longest", "return_tensors": "np"}),
    "to a length": ((TEXTS,), {"padding": "max_length", "max_length": 24, "truncation": True, "return_tensors": "pt"}),
    "to the greatest": ((TEXTS,), {"padding": "max_length", "return_tensors": "pt"}),
    "to a multiple": ((TEXTS,), {"padding": True, "pad_to_multiple_of": 8}),
    "targets": ((TEXTS,), {"text_target": PAIRS, "padding": True, "pad_to_multiple_of": 8, "return_tensors": "pt"}),
    "targets alone": ((), {"text_target": TEXTS, "padding": True, "padding_side": "left", "return_tensors": "np"}),
    "stretches": (
        (TEXTS,),
        {"padding": True, "truncation": True, "max_length": 9, "stride": 2, "return_overflowing_tokens": True},
    ),
    "places": ((TEXTS,), {"padding": True, "return_offsets_mapping": True, "return_special_tokens_mask": True}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_matches_the_reference(kind: str) -> None:
    ours, theirs = both_tokenizers(kind)
    for arguments, options in CALLS.values():
        assert as_plain_lists(ours(*arguments, **options)) == as_plain_lists(theirs(*arguments, **options)), options
    one = ours(TEXTS[0], return_tensors="pt")
    assert torch.equal(one.input_ids, one["input_ids"]) and one.to("cpu").tokens() == ours(TEXTS[0]).tokens()
    if theirs.pad_token is None:
        with pytest.raises(pellucid.InputError, match=r"no padding token: tokenizer.pad_token = tokenizer.eos_token"):
            ours(TEXTS, padding=True)
        assert ours(TEXTS[:1], padding=True).input_ids == ours(TEXTS[:1]).input_ids
        ours.pad_token, theirs.pad_token = ours.eos_token, theirs.eos_token
    for side in ("right", "left"):
        ours.padding_side = theirs.padding_side = side
        for arguments, options in PADDED.values():
            assert as_plain_lists(ours(*arguments, **options)) == as_plain_lists(theirs(*arguments, **options)), (
                side,
                options,
            )
        rows = [{"input_ids": [5, 6, 7]}, {"input_ids": [8]}]
        assert as_plain_lists(ours.pad(rows, return_tensors="pt"))["input_ids"] == as_plain_lists(
            theirs.pad(rows)["input_ids"]
        )
    for row in (range(5, 8), tuple(torch.tensor([5, 6, 7]))):
        found = ours.pad({"input_ids": row}, pad_to_multiple_of=np.int64(4))
        assert as_plain_lists(found) == as_plain_lists(ours.pad({"input_ids": [5, 6, 7]}, pad_to_multiple_of=4))


@pytest.mark.parametrize("endless", [int(1e30), 1e30, None])
def test_padding_to_max_length_needs_a_length(endless: float | None) -> None:
    ours, theirs = both_tokenizers("bert")
    ours.model_max_length, theirs.model_max_length = endless, int(1e30)
    assert ours.model_max_length == theirs.model_max_length
    options = {"padding": "max_length", "pad_to_multiple_of": 8}
    assert as_plain_lists(ours(TEXTS, **options)) == as_plain_lists(theirs(TEXTS, **options))
    assert as_plain_lists(ours(TEXTS, truncation=True)) == as_plain_lists(theirs(TEXTS, truncation=True))


def test_pair_that_fits_overflows_nowhere() -> None:
    ours, theirs = both_tokenizers("bert")
    options: dict[str, Any] = {"truncation": True, "return_overflowing_tokens": True, "max_length": 6}
    found = as_plain_lists(ours("a b", "c", **options))
    assert found == as_plain_lists(theirs("a b", "c", **options)) and len(found["input_ids"]) == 1


def test_lengths_may_be_small_numbers_of_numpy() -> None:
    ours, _ = both_tokenizers("bert")
    text, size = "a b " * 200, np.uint8(200)
    assert len(ours(text, truncation=True, max_length=size).input_ids) == 200
    assert len(ours(text, padding=True, pad_to_multiple_of=np.uint8(8)).input_ids) % 8 == 0


@pytest.mark.parametrize("overflowing", [False, True])
def test_only_second_refuses_a_single_text(overflowing: bool) -> None:
    ours, theirs = both_tokenizers("bert")
    options = {"truncation": "only_second", "return_overflowing_tokens": overflowing}
    assert as_plain_lists(ours(TEXTS[0], max_length=99, **options)) == as_plain_lists(
        theirs(TEXTS[0], max_length=99, **options)
    )
    with pytest.raises(Exception, match="Second sequence not provided"):
        theirs(TEXTS[0], max_length=4, **options)
    with pytest.raises(pellucid.InputError, match="cuts the second text, and there is only one"):
        ours(TEXTS[0], max_length=4, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_on_the_left_matches_the_reference(kind: str) -> None:
    ours, theirs = both_tokenizers(kind, truncation_side="left")
    for arguments, options in CALLS.values():
        if "max_length" in options:
            assert as_plain_lists(ours(*arguments, **options)) == as_plain_lists(theirs(*arguments, **options)), options
    for strategy in (True, "only_first", "only_second"):
        truncation_options = {"truncation": strategy, "max_length": 26, "return_offsets_mapping": True}
        for pair in ((TEXTS[2], PAIRS[0]), (PAIRS[0], TEXTS[2])):
            if strategy is True or len(ours(pair[strategy == "only_second"]).input_ids) > 18:
                assert as_plain_lists(ours(*pair, **truncation_options)) == as_plain_lists(
                    theirs(*pair, **truncation_options)
                ), (truncation_options, pair)
    before = ours(TEXTS, truncation=True, max_length=7).input_ids
    ours.truncation_side = theirs.truncation_side = "right"
    after = ours(TEXTS, truncation=True, max_length=7).input_ids
    assert after == theirs(TEXTS, truncation=True, max_length=7).input_ids != before


@pytest.mark.parametrize("kind", KINDS)
def test_clean_up_of_spaces_matches_the_reference(kind: str) -> None:
    for options in ({}, {"clean_up_tokenization_spaces": True}, {"clean_up_tokenization_spaces": False}):
        ours, theirs = both_tokenizers(kind, **options)
        assert ours.clean_up_tokenization_spaces == theirs.clean_up_tokenization_spaces
        rows = theirs(["It isn 't , is it ? A ' b ' . I 'm , we 've , they 're , he 's !"]).input_ids
        for decoding in ({}, {"clean_up_tokenization_spaces": True}, {"clean_up_tokenization_spaces": False}):
            assert ours.decode(rows[0], **decoding) == theirs.decode(rows[0], **decoding), (options, decoding)
            assert (
                ours.decode(rows, **decoding)
                == ours.batch_decode(rows, **decoding)
                == theirs.batch_decode(rows, **decoding)
            )
    apart = {"spaces_between_special_tokens": False}
    assert ours.decode(rows[0], **apart) == theirs.decode(rows[0], **apart)
    assert ours.batch_decode(rows, **apart) == theirs.batch_decode(rows, **apart)
    ours.clean_up_tokenization_spaces = theirs.clean_up_tokenization_spaces = True
    assert ours.decode(rows[0]) == theirs.decode(rows[0])
    changed = ours.decode(rows[0]) != ours.decode(rows[0], clean_up_tokenization_spaces=False)
    assert changed == (kind in ("bert", "bert-cased", "mpnet", "t5", "xlm-roberta"))


def test_clean_up_of_bpe_text_must_be_forced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module._warn_of_spaces.cache_clear()
    own = compat.AutoTokenizer.from_pretrained(TOKENIZERS / "gpt2")
    for _ in range(2):
        assert own.decode(own("a , b").input_ids, clean_up_tokenization_spaces=True) == "a , b"
    assert caplog.text.count("clean_up_tokenization_spaces=True is not supported") == 1
    shutil.copytree(TOKENIZERS / "gpt2", tmp_path / "gpt2")
    path = tmp_path / "gpt2" / "tokenizer_config.json"
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"clean_up_tokenization_spaces": True, forced: True}))
    ours, theirs = (library.AutoTokenizer.from_pretrained(tmp_path / "gpt2") for library in (compat, transformers))
    ids = ours("Is it , then ?").input_ids
    assert ours.decode(ids) == theirs.decode(ids) == "Is it, then?"


GROWTH: dict[str, Callable[[Any], Any]] = {
    "tokens": lambda t: t.add_tokens(["<new>", "zorp", "a"]),
    "one token": lambda t: t.add_tokens("zorp"),
    "a token with flags": lambda t: t.add_tokens(transformers.AddedToken("zorp", single_word=True, lstrip=True)),
    "special tokens": lambda t: t.add_tokens(["<new>"], special_tokens=True),
    "a role": lambda t: t.add_special_tokens({"pad_token": "[PADDING]"}),
    "a role of a token that is there": lambda t: t.add_special_tokens({"pad_token": t.eos_token or t.sep_token}),
    "without a role": lambda t: t.add_special_tokens({"additional_special_tokens": ["<new>", "<b>"]}),
    "further ones without a role": lambda t: t.add_special_tokens({"extra_special_tokens": ("<new>", "<b>")}),
    "a role that is emptied": lambda t: setattr(t, "pad_token", None),
    "an id that is emptied": lambda t: setattr(t, "pad_token_id", None),
    "ids of roles": lambda t: setattr(t, "pad_token_id", max(t.all_special_ids)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("growth", GROWTH)
def test_added_tokens_match_the_reference(kind: str, growth: str, tmp_path: Path) -> None:
    ours, theirs = both_tokenizers(kind)
    old_tokenizer, before = ours.pellucid, len(ours)
    assert GROWTH[growth](ours) == GROWTH[growth](theirs)
    ours.save_pretrained(tmp_path)
    text = "a zorp , zorps <new> <b> and [PADDING]"
    for one in (ours, copy.deepcopy(ours), compat.AutoTokenizer.from_pretrained(tmp_path)):
        assert (len(one), one.get_added_vocab()) == (len(theirs), theirs.get_added_vocab())
        assert as_plain_lists(one(text)) == as_plain_lists(theirs(text)) and one.tokenize(text) == theirs.tokenize(text)
        for skip in (False, True):
            assert one.decode(one(text).input_ids, skip) == theirs.decode(theirs(text).input_ids, skip)
        assert (one.pad_token, one.pad_token_id) == (theirs.pad_token, theirs.pad_token_id)
        assert list(one.special_tokens_map) == list(theirs.special_tokens_map)
        assert set(one.all_special_ids) == set(theirs.all_special_ids)
    assert len(old_tokenizer) == before and "zorp" not in old_tokenizer.vocab  # the vocabulary read before is unchanged


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_tokens_convert_both_ways(kind: str) -> None:
    ours, theirs = both_tokenizers(kind)
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids and ours.tokenize(text) == theirs.tokenize(text)
        for token_ids in (ids, torch.tensor(ids), torch.tensor(ids).numpy()):
            assert ours.decode(token_ids) == theirs.decode(token_ids)
            assert ours.convert_ids_to_tokens(token_ids) == theirs.convert_ids_to_tokens(token_ids)
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)
        tokens = ours.tokenize(text)
        assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
        assert ours.convert_tokens_to_string(tokens) == theirs.convert_tokens_to_string(tokens)
    rows = theirs(TEXTS).input_ids
    assert ours.batch_decode(rows) == theirs.batch_decode(rows) == ours.decode(rows)
    assert ours.convert_ids_to_tokens(7) == theirs.convert_ids_to_tokens(7)
    assert ours.convert_tokens_to_ids("nowhere at all") == theirs.convert_tokens_to_ids("nowhere at all")
    assert ours.encode(TEXTS[0], PAIRS[0], return_tensors="pt").tolist() == [theirs.encode(TEXTS[0], PAIRS[0])]


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_match_the_reference(kind: str) -> None:
    ours, theirs = both_tokenizers(kind)
    for pair in (False, True):
        assert ours.num_special_tokens_to_add(pair) == theirs.num_special_tokens_to_add(pair)
    assert (ours.vocab_size, len(ours), ours.model_max_length) == (
        theirs.vocab_size,
        len(theirs),
        theirs.model_max_length,
    )
    assert ours.get_vocab() == theirs.get_vocab() and ours.is_fast
    for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        assert getattr(ours, f"{role}_token") == getattr(theirs, f"{role}_token")
        assert getattr(ours, f"{role}_token_id") == getattr(theirs, f"{role}_token_id")
    assert set(ours.all_special_tokens) == set(theirs.all_special_tokens)
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)


@pytest.mark.parametrize("text", ["", [""], ["", ""]], ids=str)
def test_empty_text_gives_integer_tensors(text: Any) -> None:
    ours, theirs = both_tokenizers("gpt2")
    for kind in ("pt", "np"):
        found, expected = (one(text, return_tensors=kind) for one in (ours, theirs))
        assert {key: (value.dtype, value.shape) for key, value in found.items()} == {
            key: (value.dtype, value.shape) for key, value in expected.items()
        }


def test_word_ids_of_a_batch() -> None:
    ours, theirs = (tokenizer(TEXTS[:2], PAIRS[:2], padding=True) for tokenizer in both_tokenizers("bert"))
    for row in (0, 1):
        assert ours.word_ids(row) == theirs.word_ids(row)
        assert ours.sequence_ids(row) == theirs.sequence_ids(row)
    split = [
        tokenizer(["My", "naïve", "dog"], is_split_into_words=True).word_ids() for tokenizer in both_tokenizers("bert")
    ]
    assert split[0] == split[1]
    assert ours.char_to_token(0, 5) == theirs.char_to_token(0, 5)
    assert ours.char_to_token(0, 5, 1) == theirs.char_to_token(0, 5, 1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", ["bert", "roberta", "t5", "mistral", "chat", "nothing around"])
def test_padding_has_no_sequence_id(kind: str, special: bool, side: str, tmp_path: Path) -> None:
    """With or without special tokens around it, and with or without a post-processor in the file."""
    options: dict[str, Any] = {"padding": True, "padding_side": side, "add_special_tokens": special}
    if kind == "nothing around":
        folder = shutil.copytree(TOKENIZERS / "gpt2", tmp_path / "gpt2")
        file_contents = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(file_contents | {"post_processor": None}))
        ours, theirs = (one.from_pretrained(folder) for one in (compat.AutoTokenizer, ReferenceTokenizer))
    else:
        ours, theirs = both_tokenizers(kind)
    for tokenizer in (ours, theirs):
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    for texts in ({"text": TEXTS}, {"text": [["a", "word"], ["b"]], "is_split_into_words": True}):
        found, expected = ours(**texts, **options), theirs(**texts, **options)
        sides = [found.sequence_ids(row) for row in range(len(texts["text"]))]
        assert sides == [expected.sequence_ids(row) for row in range(len(texts["text"]))]
        assert any(None in row for row in sides)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("padding", [True, "max_length"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "t5", "chat"])
def test_batch_positions_count_padding(kind: str, padding: bool | str, side: str) -> None:
    options: dict[str, Any] = {"padding": padding, "padding_side": side, "max_length": 40, "truncation": True}
    ours, theirs = (one(TEXTS, PAIRS, return_length=True, **options) for one in both_tokenizers(kind))
    assert as_plain_lists(ours) == as_plain_lists(theirs)
    for row in range(len(TEXTS)):
        assert ours.tokens(batch_index=row) == theirs.tokens(batch_index=row)
        assert ours.word_ids(batch_index=row) == theirs.word_ids(batch_index=row)
        assert ours.sequence_ids(batch_index=row) == theirs.sequence_ids(batch_index=row)
        assert ours[row].ids == theirs[row].ids == ours[row:][0].ids
        assert ours[row].attention_mask == theirs[row].attention_mask
        for i in range(4):
            for name, arguments in (
                ("char_to_token", {"batch_or_char_index": row, "char_index": i, "sequence_index": 1}),
                ("word_to_tokens", {"batch_or_word_index": row, "word_index": 0, "sequence_index": 1}),
                ("token_to_word", {"batch_or_token_index": row, "token_index": 20 + i}),
                ("token_to_chars", {"batch_or_token_index": row, "token_index": 20 + i}),
            ):
                assert getattr(ours, name)(**arguments) == getattr(theirs, name)(**arguments)
    ours, theirs = (one(TEXTS[0], return_length=True) for one in both_tokenizers(kind))
    assert ours["length"] == theirs["length"] == [len(ours.input_ids)]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_masking_collator_matches_the_reference(kind: str) -> None:
    batches = []
    for tokenizer in both_tokenizers(kind):
        torch.manual_seed(0)
        collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4)
        batches.append(as_plain_lists(collate([dict(tokenizer(text)) for text in TEXTS])))
    assert batches[0] == batches[1]
    ours, theirs = both_tokenizers(kind)
    for ids in (ours(TEXTS[0]).input_ids, torch.tensor(ours(TEXTS[1]).input_ids)):
        assert ours.get_special_tokens_mask(ids, already_has_special_tokens=True) == theirs.get_special_tokens_mask(
            ids, already_has_special_tokens=True
        )
    for options in ({}, {"token_ids_1": [5], "already_has_special_tokens": True}):
        with pytest.raises(
            pellucid.InputError, match="only ids of whole rows, with their special tokens, are masked here"
        ):
            ours.get_special_tokens_mask([5], **options)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_token_and_character_positions_match_the_reference(kind: str) -> None:
    ours, theirs = (tokenizer(TEXTS, PAIRS) for tokenizer in both_tokenizers(kind))
    assert ours.n_sequences == theirs.n_sequences == 2
    assert [row.ids for row in ours.encodings] == ours.input_ids and ours[-1].ids == theirs[-1].ids
    for token in range(1, 6):
        for position in ((token,), (1, token)):
            assert ours.token_to_chars(*position) == theirs.token_to_chars(*position)
            assert ours.token_to_word(*position) == theirs.token_to_word(*position)
            assert ours.word_to_tokens(*position) == theirs.word_to_tokens(*position)
    assert ours.word_to_tokens(0, 1, 1) == theirs.word_to_tokens(0, 1, 1)
    assert ours.token_to_chars(2).end == theirs.token_to_chars(2).end


def test_padding_side_and_mask_options_of_a_call() -> None:
    ours, theirs = both_tokenizers("bert")
    rows = {"input_ids": [[5, 6, 7], [8]]}
    for options in ({}, {"padding_side": "left"}, {"return_attention_mask": False}, {"verbose": False}):
        assert as_plain_lists(ours.pad(rows, **options)) == as_plain_lists(theirs.pad(rows, **options)), options
    for options in ({"padding_side": "left"}, {"verbose": False}):
        assert as_plain_lists(ours(TEXTS, padding=True, **options)) == as_plain_lists(
            theirs(TEXTS, padding=True, **options)
        ), options
    assert as_plain_lists(ours(text_target=TEXTS)) == as_plain_lists(theirs(text_target=TEXTS))
    assert ours.padding_side == "right"


def test_several_conversations_match_the_reference() -> None:
    ours, theirs = both_tokenizers("chat")
    turns = [{"role": "user", "content": "What falls?"}, {"role": "assistant", "content": "Rain."}]
    for options in (
        {"tokenize": False},
        {"padding": True, "return_tensors": "pt"},
        {"truncation": True, "max_length": 5},
        {"return_dict": False},
    ):
        for conversations in ([turns, turns[:1]], [turns]):
            expected = theirs.apply_chat_template(conversations, **options)
            assert as_plain_lists(ours.apply_chat_template(conversations, **options)) == as_plain_lists(expected), (
                options
            )
    assert ours.chat_template == theirs.chat_template == ours.get_chat_template() == theirs.get_chat_template()
    with pytest.raises(pellucid.InputError, match="return_assistant_tokens_mask is True"):
        ours.apply_chat_template(turns, return_assistant_tokens_mask=True)


def test_one_conversation_matches_the_reference() -> None:
    ours, theirs = both_tokenizers("chat")
    turns = [{"role": "user", "content": "What falls?"}, {"role": "assistant", "content": "Rain."}]
    for options in ({"tokenize": False}, {"tokenize": False, "add_generation_prompt": True}, {"return_tensors": "pt"}):
        assert as_plain_lists(ours.apply_chat_template(turns, **options)) == as_plain_lists(
            theirs.apply_chat_template(turns, **options)
        )
    ids = ours.apply_chat_template(turns, return_dict=False)
    assert ids == theirs.apply_chat_template(turns, return_dict=False)
    more = {"tokenizer_kwargs": {"return_offsets_mapping": True}}
    assert as_plain_lists(ours.apply_chat_template(turns, **more)) == as_plain_lists(
        theirs.apply_chat_template(turns, **more)
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [(["old", "house"], ["who", "barks"]), ([["old"], ["a", "house"]], [["who", "barks"], ["x"]])],
    ids=["one", "two"],
)
def test_split_words_may_be_pairs(first: Any, second: Any) -> None:
    ours, theirs = both_tokenizers("bert")
    options = {"is_split_into_words": True, "padding": True}
    assert as_plain_lists(ours(first, second, **options)) == as_plain_lists(theirs(first, second, **options))


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_of_a_fast_tokenizer_exist(kind: str, tmp_path: Path) -> None:
    ours, theirs = both_tokenizers(kind)
    assert ours.max_len_single_sentence == theirs.model_max_length - theirs.num_special_tokens_to_add()
    assert ours.max_len_sentences_pair == theirs.model_max_length - theirs.num_special_tokens_to_add(pair=True)
    added = {i: str(token) for i, token in ours.added_tokens_decoder.items()}
    assert added == {i: str(token) for i, token in theirs.added_tokens_decoder.items()} and added
    found, expected = (one.backend_tokenizer.encode("a dog, THE dog") for one in (ours, theirs))
    assert (found.ids, found.offsets) == (expected.ids, expected.offsets)
    assert ours.init_kwargs == ours.pellucid.settings and ours.init_kwargs is not ours.pellucid.settings
    paths = ours.save_pretrained(tmp_path / "one")
    assert paths == tuple(str(tmp_path / "one" / name) for name in ("tokenizer_config.json", "tokenizer.json"))
    assert {*paths} == {str(path) for path in (tmp_path / "one").iterdir()}
    assert {*paths} <= {path.replace("two", "one") for path in theirs.save_pretrained(str(tmp_path / "two"))}


@pytest.mark.parametrize("kind", ["bert", "roberta", "t5", "gpt2"])
def test_folder_of_a_tokenizer_alone_can_be_opened(kind: str, tmp_path: Path) -> None:
    ours, theirs = both_tokenizers(kind, padding_side="left")
    ours.save_pretrained(tmp_path)
    for again in both_tokenizers(tmp_path.as_posix()):
        assert as_plain_lists(again(TEXTS, PAIRS)) == as_plain_lists(theirs(TEXTS, PAIRS))
        assert again.padding_side == "left"


def test_sides_are_stored_in_the_settings(tmp_path: Path) -> None:
    ours = compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert")
    old_tokenizer = ours.pellucid
    ours.padding_side = ours.truncation_side = "left"
    assert (ours.pellucid.settings["padding_side"], ours.pellucid.truncation_side) == ("left", "left")
    assert old_tokenizer.settings.get("padding_side", "right") == old_tokenizer.truncation_side == "right"
    again = compat.AutoTokenizer(ours.pellucid)
    assert again(TEXTS, padding=True).input_ids == ours(TEXTS, padding=True).input_ids
    assert again.padding_side == copy.deepcopy(ours).padding_side == "left"


@pytest.mark.parametrize("name", ["additional_special_tokens", "pad_token"])
def test_refused_special_tokens_leave_the_vocabulary_unchanged(name: str) -> None:
    ours = compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert")
    before = len(ours)
    with pytest.raises(pellucid.InputError):
        ours.add_special_tokens({"bos_token": "<begin>", name: 3})
    assert len(ours) == before and ours.bos_token is None


def test_settings_belong_to_one_tokenizer(tmp_path: Path) -> None:
    shutil.copytree(TOKENIZERS / "gpt2", tmp_path / "gpt2")
    first, second = (compat.AutoTokenizer.from_pretrained(tmp_path / "gpt2") for _ in range(2))
    old_tokenizer = first.pellucid
    first.pad_token = first.eos_token
    first.model_max_length = 5
    assert (first.pad_token_id, second.pad_token_id, old_tokenizer.pad_token_id) == (first.eos_token_id, None, None)
    assert first("a b c d e f g h", truncation=True).input_ids == second("a b c d e f g h").input_ids[:5]
    for copied in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert (copied.pad_token, copied.model_max_length, copied("a b").input_ids) == (
            first.pad_token,
            5,
            first("a b").input_ids,
        )
    assert "at most 5 a text" in repr(first)


@pytest.mark.parametrize(
    ("call", "fragment"),
    [
        (lambda t: t(3), "was given int, expected a text or a list of texts"),
        (lambda t: t(["a", 3]), "text 1 is int, expected a string"),
        (lambda t: t(["a", "b"], ["c"]), "2 texts but 1 second text:"),
        (
            lambda t: t("a", return_offset_mapping=True),
            r"no option 'return_offset_mapping' \(did you mean return_offsets",
        ),
        (lambda t: t([["a"], ["b"]], [["c"]], is_split_into_words=True), "2 texts but 1 second text:"),
        (
            lambda t: t.apply_chat_template([{"role": "user", "content": "x"}], sanitize_control_tokens=True),
            "sanitize_control_tokens is True and is not supported: leave it out, .* and parse_special_tokens=False",
        ),
        (
            lambda t: t.apply_chat_template(
                [{"role": "user", "content": "x"}], chat_template="{{ 1 }}", continue_final_message="reasoning"
            ),
            "continue_final_message is 'reasoning', expected true or false",
        ),
        (lambda t: t([["a", 3]], is_split_into_words=True), "text 0 is .'a', 3., expected a list of words"),
        (lambda t: t(["a b c", "a"], return_tensors="pt"), "pass padding=True"),
        (lambda t: t("a", return_tensors="tf"), "return_tensors is 'tf', expected 'pt', 'np' or None"),
        (lambda t: t("a", padding="all"), "padding is 'all'"),
        (lambda t: t("a b c d e", "f", truncation=True, max_length=6, return_overflowing_tokens=True), "say which"),
        (
            lambda t: t("a b c d e", truncation=True, max_length=5, stride=3, return_overflowing_tokens=True),
            "stride is 3, and a window has room for 3 tokens",
        ),
        (
            lambda t: setattr(t, "pad_token", "[NOTHING]"),
            r"this vocabulary has no such token: tokenizer.add_special_tokens\({'pad_token': ...}\) adds it",
        ),
        (lambda t: setattr(t, "padding_side", "middle"), "padding_side is 'middle'"),
        (lambda t: setattr(t, "truncation_side", "top"), "truncation_side is 'top', expected 'left' or 'right'"),
        (lambda t: t("a", padding=True, padding_side="top"), "padding_side is 'top'"),
        (lambda t: setattr(t, "pad_token_id", 999), "id 999 is not in this vocabulary"),
        (lambda t: setattr(t, "pad_token_id", "0"), "pad_token_id is '0', expected the id of a token, or None"),
        (lambda t: setattr(t, "pad_token", ["[PAD]"]), "this vocabulary has no such token"),
        (
            lambda t: t.add_special_tokens({"additional_special_tokens": "<xy>"}),
            "additional_special_tokens is '<xy>', expected a list of tokens",
        ),
        (
            lambda t: t.add_special_tokens({"extra_special_tokens": transformers.AddedToken("<xy>")}),
            r"extra_special_tokens is AddedToken\(.*, expected a list of tokens",
        ),
        (lambda t: t.add_special_tokens({"pad_token": ["[PAD]"]}), "pad_token is ...PAD..., expected a text"),
        (lambda t: t.add_tokens([3]), "a token to be added is 3, expected a text"),
        (lambda t: t.add_special_tokens({"pad_tokn": "x"}), r"called 'pad_tokn' \(did you mean pad_token"),
        (lambda t: setattr(t, "pad_tokn", "x"), r"cannot be set \(did you mean pad_token"),
        (
            lambda t: type(t).from_pretrained(TOKENIZERS / "bert", do_lowercase=True),
            "no argument 'do_lowercase' to open",
        ),
        (lambda t: type(t).from_pretrained(TOKENIZERS), "holds no tokenizer"),
    ],
)
def test_invalid_calls_are_refused(call: Any, fragment: str) -> None:
    with pytest.raises(pellucid.InputError, match=fragment):
        call(compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert"))


def test_rows_are_padded_as_in_the_reference() -> None:
    ours, theirs = both_tokenizers("bert")
    texts = ["old house", "who barks and how often"]
    padding_options = {"padding": "max_length", "max_length": 6}
    assert as_plain_lists(ours(texts, **padding_options)) == as_plain_lists(theirs(texts, **padding_options))
    for row in ({"input_ids": [5, 6, 7]}, {"input_ids": torch.tensor([5, 6, 7])}, {"input_ids": [5], "labels": 1}):
        for length_options in ({}, {"padding": "max_length", "max_length": 5}):
            assert as_plain_lists(ours.pad(dict(row), **length_options)) == as_plain_lists(
                theirs.pad(dict(row), **length_options)
            )
            assert as_plain_lists(ours.pad(row, **length_options, return_tensors="pt")) == as_plain_lists(
                theirs.pad(dict(row), **length_options)
            )
    assert ours.pad({"input_ids": [5], "name": "q"})["name"] == "q"
    assert as_plain_lists(ours.pad({"input_ids": (5, 6)}, **padding_options)) == as_plain_lists(
        ours.pad({"input_ids": [5, 6]}, **padding_options)
    )
    columns = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    for labels in ([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], [[2, 2], [3, 3, 3]]):  # which only a collator may pad
        rows = [{**theirs(text, **columns), "labels": label, "mine": ["x"]} for text, label in zip(texts, labels)]
        assert as_plain_lists(ours.pad(rows)) == as_plain_lists(theirs.pad(rows))
    with pytest.raises(pellucid.InputError, match=r"^labels of unequal length cannot form a tensor"):
        ours.pad([{"input_ids": [5], "labels": [2, 2]}, {"input_ids": [5], "labels": [3]}], return_tensors="pt")


def test_position_after_the_text_gives_none() -> None:
    ours, theirs = (tokenizer("old house") for tokenizer in both_tokenizers("bert"))
    for position in (1, 3, 40):
        assert ours.token_to_word(position) == theirs.token_to_word(position)
        assert ours.char_to_token(position) == theirs.char_to_token(position)


TOKENIZER_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {"add_prefix_space": flag})
        for name in ("roberta-body", "gpt2-body", "bart-body")
        for flag in (True, False)
    ),
    *((name, {"do_lower_case": flag}) for name in ("bert-body", "bert-cased-body") for flag in (True, False)),
    *(("roberta-body", {key: ["<B>"]}) for key in ("extra_special_tokens", "additional_special_tokens")),
    ("roberta-body", {"split_special_tokens": True}),
    ("bert-body", {"config": None, "tokenizer_file": None, "pad_token": "[MASK]"}),
]


@pytest.mark.parametrize("class_stated", [True, False])
@pytest.mark.parametrize(("name", "options"), TOKENIZER_OPTIONS)
def test_tokenizer_options_apply_when_opening(
    name: str, options: dict[str, Any], class_stated: bool, tmp_path: Path
) -> None:
    folder = tiny.write(name, tmp_path / "one")
    if not class_stated:
        facts = json.loads((folder / "tokenizer_config.json").read_text())
        facts.pop("tokenizer_class")
        (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    found, expected = (one.AutoTokenizer.from_pretrained(folder, **options) for one in (compat, transformers))
    for text in ("Hello it's Me<B><s> x</s>", "it is"):
        assert found(text).input_ids == expected(text).input_ids
    split_text: Any = ["Hello", "it", "is"]
    assert (
        found(split_text, is_split_into_words=True).input_ids
        == expected(split_text, is_split_into_words=True).input_ids
    )
    assert found.pad_token == expected.pad_token
    found.save_pretrained(tmp_path / "two")
    again = compat.AutoTokenizer.from_pretrained(tmp_path / "two")
    assert again("Hello it's Me<B>").input_ids == found("Hello it's Me<B>").input_ids


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (
            {"add_prefix_space": True},
            "^add_prefix_space is True, and no component of this tokenizer has it: leave it out",
        ),
        ({"do_lower_case": "yes"}, "^do_lower_case is 'yes', expected true or false"),
        ({"legacy": False}, "^legacy is False, and its tokenizer_config.json differs: write it there"),
        ({"add_bos_token": False}, "^add_bos_token is False, .*; a call takes add_special_tokens=False$"),
        ({"tokenizer_file": "a.json"}, "^tokenizer_file is 'a.json': give the folder that holds it"),
        ({"use_auth_token": True}, "^use_auth_token is True, .*: pass token"),
        ({"extra_special_tokens": "<B>"}, "^extra_special_tokens is '<B>', expected a list of tokens"),
    ],
)
def test_unsupported_options_are_refused_when_opening(options: dict[str, Any], fragment: str, tmp_path: Path) -> None:
    folder = tiny.write("bert-body", tmp_path)
    with pytest.raises(pellucid.InputError, match=fragment):
        compat.AutoTokenizer.from_pretrained(folder, **options)


def test_words_and_characters_convert_both_ways() -> None:
    texts = ["the cat sat", "a dog"]
    found, expected = (one.AutoTokenizer.from_pretrained(TOKENIZERS / "bert")(texts) for one in (compat, transformers))
    for position in (1, (0, 1), (1, 1)):
        arguments: Any = position if isinstance(position, tuple) else (position,)
        assert tuple(found.word_to_chars(*arguments)) == tuple(expected.word_to_chars(*arguments))
        assert found.char_to_word(*arguments) == expected.char_to_word(*arguments)
    assert found.data == expected.data
    with pytest.raises(pellucid.InputError, match=r"pad_to_max_length is True, .*: pass padding='max_length'"):
        compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert")(texts, pad_to_max_length=True)
