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


def checkpoint_with_length(name: str, length: float | None, folder: Path) -> Path:
    """A tiny checkpoint whose tokenizer states this maximum length, or none."""
    write(name, folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"model_max_length": length}
    path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    return folder


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert-body"])
@pytest.mark.parametrize("length", [None, 50, 100_000, 1e30])
def test_tokenizer_truncates_at_the_length_in_its_files(tmp_path: Path, name: str, length: float | None) -> None:
    """Regardless of the models' own maximum lengths: 98, 128 and 320."""
    folder, text = checkpoint_with_length(name, length, tmp_path), "dog " * 400
    ours, theirs = (one.AutoTokenizer.from_pretrained(folder) for one in (compat, transformers))
    assert ours.model_max_length == theirs.model_max_length
    for options in ({}, {"truncation": True}, {"truncation": True, "max_length": 60}, {"max_length": 330}):
        assert ours(text, **options)["input_ids"] == theirs(text, **options)["input_ids"]
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
def test_pipeline_reads_up_to_the_model_length(tmp_path: Path, name: str, length: int | None) -> None:
    folder, task = checkpoint_with_length(name, length, tmp_path), READERS[name]
    ours, theirs = (one.pipeline(task, model=str(folder), device="cpu") for one in (compat, transformers))
    for count in (40, 90, MODEL_READS[name] - 8):
        text = "dog " * count
        assert_same_answers(ours(text), theirs(text))
        if task != "token-classification":
            for options in ({"truncation": True}, {"truncation": True, "max_length": 100}):
                options = {"tokenize_kwargs": options} if task == "feature-extraction" else options
                assert_same_answers(ours(text, **options), theirs(text, **options))
    if task != "token-classification":
        with pytest.raises(InputError, match=f"^item 0 has .* more than the {MODEL_READS[name]} that are read at once"):
            ours("dog " * 400)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "task"), [("bert-people", "ner"), ("bert-nli", "zero-shot-classification")])
def test_too_long_text_is_refused_where_the_tokenizer_has_no_length(tmp_path: Path, name: str, task: str) -> None:
    folder, text = checkpoint_with_length(name, None, tmp_path), "dog " * 120
    options = {"candidate_labels": ["good", "bad"]} if task.startswith("zero") else {}
    advice = r"pass tokenizer=AutoTokenizer.from_pretrained\(NAME, model_max_length=...\) to cut it$"
    with pytest.raises(RuntimeError, match="must match the size"):
        transformers.pipeline(task, model=str(folder), device="cpu")(text, **options)
    with pytest.raises(InputError, match=f"^item 0 has .* more than the 98 that are read at once: {advice}"):
        compat.pipeline(task, model=str(folder))(text, **options)
    for length in (90, 98):
        tokenizer = compat.AutoTokenizer.from_pretrained(folder, model_max_length=length)
        theirs = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=length)
        found = compat.pipeline(task, model=str(folder), tokenizer=tokenizer)(text, **options)
        assert_same_answers(
            found, transformers.pipeline(task, model=str(folder), tokenizer=theirs, device="cpu")(text, **options)
        )


def test_max_len_of_older_files_is_read(tmp_path: Path) -> None:
    path = checkpoint_with_length("bert-body", None, tmp_path) / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_len": 40}))
    for library in (compat, transformers):
        tokenizer = library.AutoTokenizer.from_pretrained(tmp_path)
        assert tokenizer.model_max_length == len(tokenizer("dog " * 90, truncation=True)["input_ids"]) == 40
    our_tokenizer = pellucid.load(tmp_path).tokenizer
    assert our_tokenizer is not None and our_tokenizer.model_max_length == 40


def assert_same_answers(ours: Any, theirs: Any) -> None:
    """Asserts equal answers up to the last bits of their numbers."""
    flat = [numbers_with_paths(one) for one in (ours, theirs)]
    assert [kind for kind, _ in flat[0]] == [kind for kind, _ in flat[1]]
    np.testing.assert_allclose([value for _, value in flat[0]], [value for _, value in flat[1]], rtol=1e-3, atol=2e-4)


def numbers_with_paths(answer: Any, name: str = "") -> list[tuple[str, float]]:
    """Every number of an answer, with its path and the surrounding texts."""
    if isinstance(answer, dict):
        return [item for key, value in answer.items() for item in numbers_with_paths(value, f"{name}.{key}")]
    if isinstance(answer, list | tuple):
        return [item for value in answer for item in numbers_with_paths(value, f"{name}[]")]
    return [(f"{name} {answer}", 0.0)] if isinstance(answer, str) else [(name, float(answer))]


@pytest.mark.parametrize(("max_length", "expected"), [(None, 96), (60, 60), (110, 110), (5_000, 128)])
def test_max_length_of_a_call_overrides_the_tokenizer(
    checkpoint: Callable[[str], Path], max_length: int | None, expected: int
) -> None:
    """But not the model's own maximum; in tasks that read and in tasks that generate."""
    model = pellucid.load(checkpoint("llama-plain"))
    assert model.tokenizer is not None and (model.tokenizer.model_max_length, model.config.max_sequence_length) == (
        96,
        128,
    )
    text = "dog " * 200
    size = len(model.tokenizer(text).input_ids)
    tags = pellucid.pipeline("token-classification", model, long="truncate", max_length=max_length)(text)
    assert tags.read.cut == size - expected


def test_prefix_of_the_config_is_prepended_and_not_counted(tmp_path: Path) -> None:
    """The ids used to begin with the text, and the prefix took tokens from those to be generated."""
    path = write("llama", tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prefix": "Once upon "}))
    options = {"do_sample": False, "return_tensors": True}
    pipe = compat.pipeline("text-generation", model=str(tmp_path), max_length=24, **options)
    tokenizer, text = pipe.tokenizer, "the dog sleeps"

    def prefix_length(prefix: str) -> int:
        return len(tokenizer(prefix, add_special_tokens=False)["input_ids"])

    for prefix in ("Once upon ", "Ab ", ""):
        prefix_option = {} if prefix == "Once upon " else {"prefix": prefix}
        (found,) = pipe(text, **prefix_option)
        start = tokenizer(prefix + text)["input_ids"]
        assert found["generated_token_ids"][: len(start)] == start
        assert len(found["generated_token_ids"]) == 24 + prefix_length(prefix)
    (cut,) = pipe(text, max_new_tokens=2, tokenizer_encode_kwargs={"max_length": 11})
    assert cut["generated_token_ids"][:11] == tokenizer("Once upon " + text)["input_ids"][:11]
    prompt_ids = tokenizer("Once upon " + text)["input_ids"]
    (long,) = pipe(text, max_new_tokens=12, min_length=len(prompt_ids) + 2, eos_token_id=list(range(300, 600)))
    assert len(long["generated_token_ids"]) >= len(prompt_ids) + 2 + prefix_length("Once upon ")


def test_max_length_of_a_call_truncates_prompts_but_not_conversations(
    checkpoint: Callable[[str], Path],
) -> None:
    """The pipeline's own `max_length` limits what is generated; a conversation used to lose its oldest turns."""
    options = {"do_sample": False, "return_tensors": True, "max_new_tokens": 2, "min_new_tokens": 2}
    pipe = compat.pipeline("text-generation", model=checkpoint("qwen2-chat"), max_length=5, **options)
    turns = [{"role": role, "content": "the dog sleeps"} for role in ("user", "assistant", "user")]
    assert pipe(turns, max_length=40) == pipe(turns)
    assert pipe([turns, turns], max_length=40) == [pipe(turns)] * 2
    text = "the dog sleeps in the garden"
    assert len(pipe(text)[0]["generated_token_ids"]) == len(pipe.tokenizer(text)["input_ids"]) + 2
    assert len(pipe(text, max_length=4)[0]["generated_token_ids"]) == 4 + 2


def test_empty_prompt_starts_with_the_bos_token(checkpoint: Callable[[str], Path]) -> None:
    """As in the reference, which then generates from that token alone."""
    pipe = compat.pipeline("text-generation", model=checkpoint("gpt2"), return_tensors=True)
    (found,) = pipe("", do_sample=False, max_new_tokens=2, min_new_tokens=2)
    assert len(found["generated_token_ids"]) == 3
    assert found["generated_token_ids"][0] == pipe.model.config.bos_token_id
