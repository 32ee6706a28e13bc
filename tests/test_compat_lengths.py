"""How much of a text is read: as in the reference, up to the length in the tokenizer's files, else up to the
model's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import pellucid
from pellucid import compat
from pellucid.errors import InputError
from tests.parity.tiny import write

READERS = {
    "gpt2-feelings": "text-classification",
    "llama-feelings": "text-classification",
    "llama-plain": "token-classification",
    "gpt2": "feature-extraction",
}
MODEL_READS = {"gpt2-feelings": 320, "llama-feelings": 128, "llama-plain": 128, "gpt2": 320}


def stating(name: str, length: float | None, folder: Path) -> Path:
    """A tiny checkpoint whose tokenizer states this maximum length, or none."""
    write(name, folder)
    path = folder / "tokenizer_config.json"
    said = json.loads(path.read_text()) | {"model_max_length": length}
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    return folder


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert-body"])
@pytest.mark.parametrize("length", [None, 50, 100_000, 1e30])
def test_a_tokenizer_cuts_where_its_files_say(tmp_path: Path, name: str, length: float | None) -> None:
    """Regardless of the models' own maximum lengths: 98, 128 and 320."""
    folder, text = stating(name, length, tmp_path), "dog " * 400
    ours, theirs = (one.AutoTokenizer.from_pretrained(folder) for one in (compat, transformers))
    assert ours.model_max_length == theirs.model_max_length
    for said in ({}, {"truncation": True}, {"truncation": True, "max_length": 60}, {"max_length": 330}):
        assert ours(text, **said)["input_ids"] == theirs(text, **said)["input_ids"]
    ours.truncation_side = theirs.truncation_side = "left"
    ours.add_tokens("<new>")
    theirs.add_tokens("<new>")
    assert ours.model_max_length == theirs.model_max_length
    assert ours(text, truncation=True)["input_ids"] == theirs(text, truncation=True)["input_ids"]
    ours.save_pretrained(folder / "again")
    assert compat.AutoTokenizer.from_pretrained(folder / "again").model_max_length == ours.model_max_length


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("length", [None, 50, 96])
def test_a_reader_reads_what_the_model_can(tmp_path: Path, name: str, length: int | None) -> None:
    folder, task = stating(name, length, tmp_path), READERS[name]
    ours, theirs = (one.pipeline(task, model=str(folder), device="cpu") for one in (compat, transformers))
    for words in (40, 90, MODEL_READS[name] - 8):
        text = "dog " * words
        same(ours(text), theirs(text))
        if task != "token-classification":
            for said in ({"truncation": True}, {"truncation": True, "max_length": 100}):
                said = {"tokenize_kwargs": said} if task == "feature-extraction" else said
                same(ours(text, **said), theirs(text, **said))
    if task != "token-classification":
        with pytest.raises(InputError, match=f"^item 0 has .* more than the {MODEL_READS[name]} that are read at once"):
            ours("dog " * 400)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "task"), [("bert-people", "ner"), ("bert-nli", "zero-shot-classification")])
def test_nothing_is_cut_in_silence_that_the_tokenizer_does_not_cut(tmp_path: Path, name: str, task: str) -> None:
    folder, text = stating(name, None, tmp_path), "dog " * 120
    said = {"candidate_labels": ["good", "bad"]} if task.startswith("zero") else {}
    advice = r"pass tokenizer=AutoTokenizer.from_pretrained\(NAME, model_max_length=...\) to cut it$"
    with pytest.raises(RuntimeError, match="must match the size"):
        transformers.pipeline(task, model=str(folder), device="cpu")(text, **said)
    with pytest.raises(InputError, match=f"^item 0 has .* more than the 98 that are read at once: {advice}"):
        compat.pipeline(task, model=str(folder))(text, **said)
    words = compat.AutoTokenizer.from_pretrained(folder, model_max_length=90)
    theirs = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=90)
    found = compat.pipeline(task, model=str(folder), tokenizer=words)(text, **said)
    same(found, transformers.pipeline(task, model=str(folder), tokenizer=theirs, device="cpu")(text, **said))


def test_older_files_state_the_length_by_another_name(tmp_path: Path) -> None:
    path = stating("bert-body", None, tmp_path) / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_len": 40}))
    for library in (compat, transformers):
        words = library.AutoTokenizer.from_pretrained(tmp_path)
        assert words.model_max_length == len(words("dog " * 90, truncation=True)["input_ids"]) == 40
    tokenizer = pellucid.load(tmp_path).tokenizer
    assert tokenizer is not None and tokenizer.model_max_length == 40


def same(ours: Any, theirs: Any) -> None:
    """Asserts equal answers up to the last bits of their numbers."""
    flat = [numbers(one) for one in (ours, theirs)]
    assert [kind for kind, _ in flat[0]] == [kind for kind, _ in flat[1]]
    np.testing.assert_allclose([value for _, value in flat[0]], [value for _, value in flat[1]], rtol=1e-3, atol=2e-4)


def numbers(answer: Any, name: str = "") -> list[tuple[str, float]]:
    """Every number of an answer, with its path and the surrounding texts."""
    if isinstance(answer, dict):
        return [found for key, value in answer.items() for found in numbers(value, f"{name}.{key}")]
    if isinstance(answer, list | tuple):
        return [found for value in answer for found in numbers(value, f"{name}[]")]
    return [(f"{name} {answer}", 0.0)] if isinstance(answer, str) else [(name, float(answer))]


@pytest.mark.parametrize(("asked", "read"), [(None, 96), (60, 60), (110, 110), (5_000, 128)])
def test_a_length_that_is_asked_for_goes_over_the_tokenizer_s(
    checkpoint: Callable[[str], Path], asked: int | None, read: int
) -> None:
    """But not the model's own maximum; in tasks that read and in tasks that generate."""
    model = pellucid.load(checkpoint("llama-plain"))
    assert model.tokenizer is not None and (model.tokenizer.model_max_length, model.config.max_sequence_length) == (
        96,
        128,
    )
    text = "dog " * 200
    size = len(model.tokenizer(text).input_ids)
    tags = pellucid.pipeline("token-classification", model, long="truncate", max_length=asked)(text)
    assert tags.read.cut == size - read


def test_a_prefix_of_the_file_is_in_the_ids_and_counts_towards_no_length(tmp_path: Path) -> None:
    """The ids used to begin with the text, and the prefix took tokens from those to be generated."""
    path = write("llama", tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prefix": "Once upon "}))
    told = {"do_sample": False, "return_tensors": True}
    go_on = compat.pipeline("text-generation", model=str(tmp_path), max_length=24, **told)
    words, text = go_on.tokenizer, "the dog sleeps"

    def ahead(prefix: str) -> int:
        return len(words(prefix, add_special_tokens=False)["input_ids"])

    for prefix in ("Once upon ", "Ab ", ""):
        said = {} if prefix == "Once upon " else {"prefix": prefix}
        (found,) = go_on(text, **said)
        start = words(prefix + text)["input_ids"]
        assert found["generated_token_ids"][: len(start)] == start
        assert len(found["generated_token_ids"]) == 24 + ahead(prefix)
    (cut,) = go_on(text, max_new_tokens=2, tokenizer_encode_kwargs={"max_length": 11})
    assert cut["generated_token_ids"][:11] == words("Once upon " + text)["input_ids"][:11]
    ends = words("Once upon " + text)["input_ids"]
    (long,) = go_on(text, max_new_tokens=12, min_length=len(ends) + 2, eos_token_id=list(range(300, 600)))
    assert len(long["generated_token_ids"]) >= len(ends) + 2 + ahead("Once upon ")


def test_a_greatest_length_cuts_texts_where_a_call_says_it_and_no_conversation(
    checkpoint: Callable[[str], Path],
) -> None:
    """The pipeline's own `max_length` limits what is generated; a conversation used to lose its oldest turns."""
    told = {"do_sample": False, "return_tensors": True, "max_new_tokens": 2, "min_new_tokens": 2}
    go_on = compat.pipeline("text-generation", model=checkpoint("qwen2-chat"), max_length=5, **told)
    turns = [{"role": who, "content": "the dog sleeps"} for who in ("user", "assistant", "user")]
    assert go_on(turns, max_length=40) == go_on(turns)
    assert go_on([turns, turns], max_length=40) == [go_on(turns)] * 2
    text = "the dog sleeps in the garden"
    assert len(go_on(text)[0]["generated_token_ids"]) == len(go_on.tokenizer(text)["input_ids"]) + 2
    assert len(go_on(text, max_length=4)[0]["generated_token_ids"]) == 4 + 2


def test_the_ids_of_nothing_begin_with_the_token_that_the_model_begins_with(checkpoint: Callable[[str], Path]) -> None:
    """As in the reference, which then generates from that token alone."""
    go_on = compat.pipeline("text-generation", model=checkpoint("gpt2"), return_tensors=True)
    (found,) = go_on("", do_sample=False, max_new_tokens=2, min_new_tokens=2)
    assert len(found["generated_token_ids"]) == 3
    assert found["generated_token_ids"][0] == go_on.model.config.bos_token_id
