"""`pellucid.compat.pipeline`: arguments and refusals. `tests/parity/test_golden.py` compares its answers."""

import json
import logging
import re
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pellucid
from pellucid import compat
from pellucid.compat import AutoTokenizer, set_seed
from pellucid.compat.pipeline import pipeline
from pellucid.edits import zero
from pellucid.errors import InputError
from pellucid.tasks.zero_shot import ZeroShotClassification
from tests.parity.tiny import write

TOKENIZERS = Path(__file__).parent / "parity" / "golden" / "tokenizers"
GOOD, BAD = "I love this film.", "I hate this film. The story is boring!"


class Texts(torch.utils.data.Dataset[str]):
    """A dataset as in PyTorch: read by index, until an IndexError."""

    def __getitem__(self, number: int) -> str:
        return (GOOD, BAD)[number]


def test_generator_of_texts_is_answered_lazily(checkpoint: Callable[[str], Path]) -> None:
    classify = pipeline("sentiment-analysis", model=str(checkpoint("bert-feelings")), device=-1)
    found = classify(text for text in (GOOD, BAD))
    assert isinstance(found, types.GeneratorType)
    assert list(found) == classify([GOOD, BAD])
    assert list(classify(Texts())) == classify([GOOD, BAD])
    tag = pipeline("ner", model=checkpoint("bert-people"), aggregation_strategy="simple")
    assert list(tag(iter([GOOD, BAD]))) == tag([GOOD, BAD])


def _with_tolerance(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same labels; scores to 1e-6, since MKL's products depend on the alignment of weights in memory."""
    return [one | {"score": pytest.approx(one["score"], abs=1e-6)} for one in answers]


def test_model_and_tokenizer_may_be_loaded_objects(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("bert-feelings")
    expected = _with_tolerance(pipeline("text-classification", str(folder))(GOOD))
    model, compat_tokenizer = pellucid.load(folder), AutoTokenizer.from_pretrained(folder)
    for tokenizer in (None, str(folder), compat_tokenizer, model.tokenizer):
        pipe = pipeline("text-classification", model=model, tokenizer=tokenizer)
        assert pipe(GOOD) == expected and isinstance(pipe.tokenizer, AutoTokenizer)
    cased = pipeline("text-classification", model=model, tokenizer=checkpoint("bert-people"))
    assert cased(GOOD) != expected


def test_model_without_tokenizer_needs_one(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = checkpoint("bert-feelings")
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(folder / name, tmp_path / name)
    model, tokenizer = (
        compat.AutoModelForSequenceClassification.from_pretrained(tmp_path),
        AutoTokenizer.from_pretrained(folder),
    )
    expected = _with_tolerance(pipeline("text-classification", str(folder))(GOOD))
    for loaded in (model, model.pellucid):
        assert pipeline("text-classification", model=loaded, tokenizer=tokenizer)(GOOD) == expected
    with pytest.raises(pellucid.InputError, match="came without a tokenizer"):
        pipeline("text-classification", model=model)


@pytest.mark.filterwarnings("ignore")
def test_pipeline_follows_later_changes_of_its_model(checkpoint: Callable[[str], Path]) -> None:
    found = []
    for library in (compat, transformers):
        model: Any = library.AutoModelForSequenceClassification.from_pretrained(checkpoint("bert-feelings"))
        tokenizer = library.AutoTokenizer.from_pretrained(checkpoint("bert-feelings"))
        model.config.id2label = {2: "good", 0: "bad", 1: "so"}
        model.config.problem_type = "multi_label_classification"
        pipe = library.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
        answers = pipe([GOOD, BAD], top_k=None)
        model.config.id2label = {0: "bad", 1: "fair", 2: "good"}  # after the pipeline was made
        model.config.problem_type = "single_label_classification"
        answers += pipe([GOOD, BAD], top_k=None)
        found.append([[(one["label"], pytest.approx(one["score"], abs=2e-6)) for one in each] for each in answers])
    assert found[0] == found[1]
    assert [{label for label, _ in found[0][i]} for i in (0, 2)] == [{"good", "bad", "so"}, {"good", "bad", "fair"}]
    decoder = compat.AutoModelForCausalLM.from_pretrained(checkpoint("gpt2"))
    (plain,) = pipeline("text-generation", decoder)(GOOD, max_new_tokens=8, do_sample=False, return_tensors=True)
    decoder.generation_config.suppress_tokens = plain["generated_token_ids"][-2:]
    (other,) = pipeline("text-generation", decoder)(GOOD, max_new_tokens=8, do_sample=False, return_tensors=True)
    assert not {*decoder.generation_config.suppress_tokens} & {*other["generated_token_ids"][-2:]}


def test_edits_apply_only_within_their_block(checkpoint: Callable[[str], Path]) -> None:
    """Regardless of whether a pipeline has its own tokenizer, and was made before the block or inside it."""
    model, zeros = pellucid.load(checkpoint("bert-feelings")), {"layers.0.attention.output": zero()}
    plain = pipeline("text-classification", model)(GOOD)
    with model.edit(zeros):
        edited = pipeline("text-classification", model)(GOOD)
    assert edited != plain
    network = compat.AutoModelForSequenceClassification.from_pretrained(checkpoint("bert-feelings"))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bert-feelings"))
    with network.pellucid.edit(zeros):
        pipe = pipeline("text-classification", network, tokenizer=tokenizer)
        assert pipe(GOOD) == edited
    assert pipe(GOOD) == plain
    for own_tokenizer, change_later in ((False, True), (True, False), (True, True)):
        pipe = pipeline("text-classification", model, tokenizer=checkpoint("bert-feelings") if own_tokenizer else None)
        for attempt in range(2):
            with model.edit(zeros) if attempt == 0 else pipe.model.edit(zeros):
                if change_later:
                    pipe.tokenizer.truncation_side = "left" if attempt == 0 else "right"
                assert pipe(GOOD) == edited
            assert pipe(GOOD) == plain == pipeline("text-classification", model)(GOOD)


def test_edited_model_cannot_be_resized() -> None:
    model = compat.AutoModel.from_config(compat.BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1))
    with model.pellucid.edit({"layers.0.attention.output": zero()}):
        with pytest.raises(InputError, match="edited here, and would be resized for good"):
            model.resize_token_embeddings(40)
        model.pellucid(torch.tensor([[1, 2]]))
    assert model.pellucid.loaded.module.observer is None and model.config.vocab_size != 40
    model.resize_token_embeddings(40)
    assert model.pellucid.config.vocab_size == 40


def test_options_without_effect_are_accepted(checkpoint: Callable[[str], Path]) -> None:
    ignored = {"framework": "pt", "use_fast": True, "batch_size": 8, "num_workers": 0, "trust_remote_code": False}
    pipe = pipeline("text-classification", model=checkpoint("bert-feelings"), **ignored)
    assert pipe([GOOD, BAD], batch_size=2, padding=True) == pipeline("text-classification", pipe.model)([GOOD, BAD])
    half = pipeline("text-classification", model=checkpoint("bert-feelings"), torch_dtype=torch.bfloat16)
    assert half(GOOD)[0]["score"] == pytest.approx(pipe(GOOD)[0]["score"], abs=0.05)


def test_model_options_apply_or_are_refused(
    checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"model": checkpoint("bert-feelings"), "trust_remote_code": True}
    half = pipeline("text-classification", model_kwargs={"torch_dtype": torch.bfloat16}, **options)
    plain, bfloat16 = (pipeline(model=options["model"], torch_dtype=kind)(GOOD) for kind in (None, torch.bfloat16))
    assert half(GOOD) == bfloat16 != plain
    assert "trust_remote_code=True: pellucid runs no code" in caplog.text
    with pytest.raises(InputError, match="model_kwargs hold num_labels, which this pipeline does not use"):
        pipeline("text-classification", model_kwargs={"num_labels": 3}, **options)
    with pytest.raises(InputError, match="no option 'cache_dir'"):
        pipeline("text-classification", cache_dir="here", **options)


def test_default_sampling_matches_the_reference(checkpoint: Callable[[str], Path]) -> None:
    pipe = pipeline("text-generation", model=checkpoint("llama"))
    (one,), (other,) = (pipe("Once upon a time", seed=seed, max_new_tokens=8) for seed in (1, 2))
    assert one != other
    options = {"do_sample": True, "temperature": 0.7, "top_k": 50, "seed": 1, "max_new_tokens": 8}
    assert pellucid.pipeline("text-generation", pipe.model)("Once upon a time", **options) == one


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("text-generation", "llama"),
        ("summarization", "bart"),
        ("text2text-generation", "bart"),
        ("translation", "t5-tasks"),
    ],
)
def test_sampling_follows_the_seed_of_torch(checkpoint: Callable[[str], Path], task: str, name: str) -> None:
    """As in the reference and in `generate`; the items of a list are sampled independently."""
    pipe = pipeline(task, model=checkpoint(name), do_sample=True, max_new_tokens=8, temperature=2.0)

    def sampled(torch_seed: int, **options: Any) -> list[Any]:
        set_seed(torch_seed)
        return [as_list(one) for one in pipe(["Once upon a time"] * 2, **options)]

    assert sampled(1) == sampled(1) != sampled(2)
    assert sampled(1)[0] != sampled(1)[1] and sampled(1, seed=3) == sampled(2, seed=3)
    (several,) = as_list(pipe(["Once upon a time"], num_return_sequences=3))
    assert len({str(one) for one in several}) == 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cleans", [True, False])
def test_fill_mask_follows_clean_up_of_the_tokenizer(checkpoint: Callable[[str], Path], cleans: bool) -> None:
    found = []
    for library in (compat, transformers):
        tokenizer = library.AutoTokenizer.from_pretrained(
            checkpoint("bert-filler"), clean_up_tokenization_spaces=cleans
        )
        pipe = library.pipeline("fill-mask", model=str(checkpoint("bert-filler")), tokenizer=tokenizer)
        found.append([one["sequence"] for one in pipe(f"It isn't {tokenizer.mask_token}, is it?")])
    assert found[0] == found[1] and all(("isn't" in one) == cleans for one in found[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "cleans", "end"),
    [
        ("gpt2", None, " , , ,"),
        ("gpt2", True, " , , ,"),
        ("gpt2", False, " , , ,"),
        ("t5", True, ",,,"),
    ],
)
def test_generated_text_follows_clean_up_of_the_tokenizer(
    checkpoint: Callable[[str], Path], kind: str, cleans: bool | None, end: str
) -> None:
    folder, found = checkpoint("gpt2"), []
    for library in (compat, transformers):
        tokenizer = library.AutoTokenizer.from_pretrained(TOKENIZERS / kind)
        *space, comma = tokenizer(" ,", add_special_tokens=False)["input_ids"]
        bias = [[[*space, comma], 100.0], *([[one], 50.0] for one in space)]
        pipe = library.pipeline("text-generation", model=str(folder), tokenizer=tokenizer)
        cleaning: dict[str, Any] = {} if cleans is None else {"clean_up_tokenization_spaces": cleans}
        options = {"do_sample": False, "max_new_tokens": 6, "sequence_bias": bias}
        found.append(pipe("It was then", **options, **cleaning)[0]["generated_text"])
    assert found[0] == found[1] and found[0].endswith(f"then{end}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", ["left", "right"])
def test_prompt_is_truncated_on_the_side_of_the_tokenizer(checkpoint: Callable[[str], Path], side: str) -> None:
    folder, prompt = checkpoint("gpt2"), "Once upon a time there was a dog in the garden of a small house near the lake"
    options = {"truncation": True, "do_sample": False, "max_new_tokens": 4, "return_tensors": True}
    options |= {"tokenizer_encode_kwargs": {"max_length": 9}}
    found = []
    for library in (compat, transformers):
        tokenizer = library.AutoTokenizer.from_pretrained(folder, truncation_side=side)
        found.append(library.pipeline("text-generation", model=str(folder), tokenizer=tokenizer)(prompt, **options))
    ids = [one[0]["generated_token_ids"] for one in found]
    assert ids[0] == ids[1]
    plain = compat.pipeline("text-generation", model=str(folder))(prompt, **options)
    assert (plain[0]["generated_token_ids"] == ids[0]) == (side == "right")


def test_truncated_conversation_returns_the_ids_that_were_read(checkpoint: Callable[[str], Path]) -> None:
    pipe = pipeline("text-generation", model=checkpoint("llama-chat"), return_tensors=True, seed=1, max_new_tokens=4)
    turns = [{"role": role, "content": "The dog sleeps."} for role in ("user", "assistant") * 9] + [
        {"role": "user", "content": "The end."}
    ]
    ids = pipe.tokenizer.apply_chat_template(turns, add_generation_prompt=True)
    assert len(ids["input_ids"]) > 128
    (found,) = pipe(turns, truncation=True)
    read = found["generated_token_ids"][:-4]
    assert 40 < len(read) <= 92 and read == pipe(turns[-5:])[0]["generated_token_ids"][:-4]


def test_tokenizer_length_applies_only_with_truncation(checkpoint: Callable[[str], Path]) -> None:
    """Otherwise the model's limit applies, which this reference exceeds. Errors name the pipeline's own arguments."""
    pipe = pipeline("text-generation", model=checkpoint("llama"), max_new_tokens=2, return_tensors=True)
    assert pipe.tokenizer.model_max_length == 96 and pipe.model.config.max_sequence_length == 128
    prompt = "dog " * 105
    size = len(pipe.tokenizer(prompt).input_ids)
    assert 96 < size < 126
    assert len(pipe(prompt)[0]["generated_token_ids"]) == size + 2
    assert len(pipe(prompt, truncation=True)[0]["generated_token_ids"]) == 96
    with pytest.raises(InputError, match=r"than the 128 that can be continued: pass truncation=True to cut it$"):
        pipe(prompt * 3)
    with pytest.raises(InputError, match=r"that are read at once: pass truncation=True to cut it$"):
        pipeline("text-classification", model=checkpoint("bert-feelings"))(prompt * 3)
    with pytest.raises(InputError, match=r"read at once: pass tokenizer_kwargs=\{'truncation': True\} to cut it$"):
        pipeline("fill-mask", model=checkpoint("bert-filler"))("[MASK] " + prompt * 3)


@pytest.mark.parametrize(("task", "name"), [("text-generation", "gpt2"), ("summarization", "bart")])
def test_beam_options_are_ignored_without_beams(
    checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture, task: str, name: str
) -> None:
    drawing = {"seed": 1} if task == "text-generation" else {}
    pipe = pipeline(task, model=checkpoint(name), num_beams=1, max_new_tokens=4, **drawing)
    plain = pipe(GOOD)
    assert not caplog.text
    assert pipe(GOOD, length_penalty=1.0, early_stopping=False) == plain
    assert (
        caplog.text.count("early_stopping, length_penalty: left out, since it has no effect without sampling or beams")
        == 1
    )


def test_sampling_with_beams_is_reported(
    checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The reference samples within the beams; each call here does one or the other."""
    folder = tmp_path / "three"
    shutil.copytree(checkpoint("llama"), folder)
    (folder / "generation_config.json").write_text(json.dumps({"num_beams": 3}))
    for task, name, call, decoding in (
        ("text-generation", "llama", {"num_beams": 2}, "searches"),
        ("text-generation", folder, {"top_k": 1}, "draws"),
        ("summarization", "bart", {"do_sample": True}, "draws"),
        ("summarization", "bart", {"do_sample": False, "num_beams": 3}, None),
        ("text-generation", "llama", {"do_sample": False, "num_beams": 2}, None),
        ("text-generation", "llama", {}, None),
    ):
        caplog.clear()
        pipe = pipeline(task, model=name if isinstance(name, Path) else checkpoint(name))
        assert pipe(["The house", "A"], max_new_tokens=2, **call)
        assert caplog.text.count("do not go together, and ") == (decoding is not None), (task, call)
        assert decoding is None or f": this {decoding}" in caplog.text


@pytest.mark.parametrize(
    ("task", "model", "name", "call"),
    [
        ("text-classification", "bert-feelings", "inputs", {}),
        ("ner", "bert-people", "inputs", {}),
        ("feature-extraction", "bert-body", "inputs", {}),
        ("zero-shot-classification", "bert-nli", "sequences", {"candidate_labels": ["good", "bad"]}),
        ("text-generation", "gpt2", "text_inputs", {"do_sample": False, "max_new_tokens": 3}),
    ],
)
def test_input_may_be_passed_by_name(
    checkpoint: Callable[[str], Path], task: str, model: str, name: str, call: dict[str, Any]
) -> None:
    pipe = pipeline(task, checkpoint(model))
    assert pipe(**{name: GOOD}, **call) == pipe(GOOD, **call)
    with pytest.raises(InputError, match="2 arguments were given"):
        pipe(GOOD, **{name: GOOD}, **call)


@pytest.mark.parametrize("name", ["bert-feelings", "roberta-toxic"])
def test_empty_second_text_is_no_pair(checkpoint: Callable[[str], Path], name: str) -> None:
    """As in a table in which most rows are not pairs; it used to be read as a pair, with other scores."""
    ours, theirs = (
        library.pipeline("text-classification", str(checkpoint(name)), device="cpu")
        for library in (compat, transformers)
    )
    pairs = [{"text": "a good film", "text_pair": ""}, {"text": "a good film", "text_pair": "and a bad one"}]
    for inputs in (pairs[0], pairs, [[["a good film", ""]]], {"text": "", "text_pair": ""}):
        for found, expected in zip(*(as_list(one(inputs)) for one in (ours, theirs)), strict=True):
            assert found["label"] == expected["label"] and found["score"] == pytest.approx(expected["score"], abs=1e-6)


def as_list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize(
    ("task", "name", "stop", "ends"),
    [("text-generation", "gpt2", "owof", 2), ("text2text-generation", "t5-gated", "warrs", 1)],
)
def test_stop_sequence_ends_at_each_of_its_tokens_or_the_first(
    checkpoint: Callable[[str], Path], task: str, name: str, stop: str, ends: int
) -> None:
    """Of an encoder-decoder only the first token counts."""
    pipe, options = pipeline(task, model=checkpoint(name)), {"do_sample": False, "num_beams": 1, "max_new_tokens": 12}
    ids = pipe.tokenizer(stop, add_special_tokens=False)["input_ids"]
    expected = [pipe("Once upon a time", eos_token_id=some, **options) for some in (ids[:1], ids)]
    assert pipe("Once upon a time", stop_sequence=stop, **options) == expected[ends - 1] != expected[2 - ends]


def test_arguments_of_a_pipeline_may_be_numbers_of_numpy(checkpoint: Callable[[str], Path]) -> None:
    pipe = pipeline("text-generation", model=checkpoint("gpt2"), num_beams=np.int64(2))
    numbers = {"min_length": 4, "max_length": 12, "num_return_sequences": 2}
    for more in ({}, {"max_new_tokens": None}):
        plain = pipe("Once upon a time", do_sample=False, num_beams=2, **numbers, **more)
        arrays = {name: np.int64(number) for name, number in numbers.items()}
        assert pipe("Once upon a time", do_sample=np.bool_(False), **arrays, **more) == plain and len(plain) == 2
    classify = pipeline("text-classification", model=checkpoint("bert-feelings"))
    assert classify(GOOD, top_k=np.int64(2)) == classify(GOOD, top_k=2)


SETTINGS: list[dict[str, Any]] = [
    {"max_new_tokens": 5},
    {"max_length": 12, "num_beams": 3},
    {"max_new_tokens": 5, "eos_token_id": 39, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 9, "stop_strings": ["ow"]},
    {"max_length": 6, "max_new_tokens": 4},
    {},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_generation_config_of_a_call_replaces_that_of_the_pipeline(
    checkpoint: Callable[[str], Path], tmp_path: Path, settings: dict[str, Any]
) -> None:
    found = []
    for library in (compat, transformers):
        tokenizer = library.AutoTokenizer.from_pretrained(checkpoint("gpt2"))
        model: Any = library.AutoModelForCausalLM.from_pretrained(checkpoint("gpt2"))
        pipe = library.pipeline(
            "text-generation", model=model, tokenizer=tokenizer, device="cpu", return_full_text=False
        )
        transformers.GenerationConfig(do_sample=False, **settings).save_pretrained(tmp_path)
        generation_config = library.GenerationConfig.from_pretrained(tmp_path)
        found.append(pipe(GOOD, generation_config=generation_config, tokenizer=tokenizer))
    assert found[0] == found[1]


NONE = {"max_new_tokens": None}


@pytest.mark.filterwarnings("ignore")  # the reference warns about the length that it uses
@pytest.mark.parametrize("call", [NONE | {"max_length": 10}, NONE, {"max_new_tokens": 3}], ids=str)
@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 5}, NONE], ids=str)
def test_max_new_tokens_none_matches_the_reference(
    options: dict[str, Any], call: dict[str, Any], checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for library in (compat, transformers):
        pipe = library.pipeline("text-generation", model=str(checkpoint("gpt2")), device="cpu", **options)
        found.append(list(pipe("A B", do_sample=False, return_tensors=True, **call)[0]["generated_token_ids"]))
    assert found[0] == found[1] and "max_length is ignored" not in caplog.text


END_TOKENS = list(range(2, 90, 3))


@pytest.mark.parametrize("call", [{}, {"return_tensors": True}, {"skip_special_tokens": False}, {"pad_token_id": 5}])
@pytest.mark.parametrize("settings", [{"pad_token_id": 7}, {"pad_token_id": 3}, {}], ids=str)
@pytest.mark.parametrize("several", [{}, {"num_beams": 3, "num_return_sequences": 3}], ids=["one", "three"])
def test_end_token_that_is_not_special_stays_in_the_text(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    call: dict[str, Any],
    settings: dict[str, Any],
    several: dict[str, Any],
) -> None:
    """An end token that is not special is part of the text, and the padding of a shorter text follows it."""
    folder = shutil.copytree(checkpoint("gpt2"), tmp_path / "model")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": END_TOKENS, "bos_token_id": 0, **settings})
    )
    found = []
    for library in (compat, transformers):
        pipe = library.pipeline("text-generation", str(folder), device="cpu")
        found.append(pipe(GOOD, do_sample=False, max_new_tokens=10, **several, **call))
    assert found[0] == found[1]


def test_hole_keeps_the_end_of_the_prompt(checkpoint: Callable[[str], Path]) -> None:
    folder, prompt = str(checkpoint("gpt2")), "Once upon a time there was a dog in the garden. " * 12
    options = {"handle_long_generation": "hole", "do_sample": False, "max_new_tokens": 4, "return_full_text": False}
    found = []
    for side in ("left", "right"):
        tokenizer = AutoTokenizer.from_pretrained(folder, truncation_side=side)
        found.append(pipeline("text-generation", model=folder, tokenizer=tokenizer)(prompt, **options))
    plain = pipeline("text-generation", model=folder)
    assert found[0] == found[1] == plain(prompt, **options) == plain(prompt, **options, max_length=20)


LASTING_OPTIONS: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
    ("token-classification", "bert-people", GOOD, {"aggregation_strategy": "simple", "ignore_labels": []}, {}),
    ("text-classification", "bert-feelings", GOOD, {"function_to_apply": "none"}, {}),
    ("question-answering", "bert-reader", BAD, {"top_k": 3, "max_answer_len": 2, "align_to_words": False}, {}),
    ("fill-mask", "bert-filler", "A [MASK].", {"top_k": 2, "targets": ["a", "b"]}, {}),
    ("feature-extraction", "bert-body", GOOD, {"tokenize_kwargs": {"max_length": 3}, "return_tensors": False}, {}),
    ("zero-shot-classification", "bert-nli", GOOD, {"multi_class": True}, {"candidate_labels": ["good", "bad"]}),
    (
        "text-generation",
        "gpt2",
        GOOD,
        {"return_full_text": False, "prefix": "So:"},
        {"seed": 1, "max_new_tokens": 4},
    ),
]


@pytest.mark.parametrize(("task", "name", "text", "options", "common"), LASTING_OPTIONS)
def test_none_in_a_call_keeps_the_options_of_the_pipeline(
    checkpoint: Callable[[str], Path],
    task: str,
    name: str,
    text: Any,
    options: dict[str, Any],
    common: dict[str, Any],
) -> None:
    if task == "question-answering":
        text = {"question": "Who?", "context": text}
    pipe, plain = (pipeline(task, model=checkpoint(name), **one, **common) for one in (options, {}))
    expected = plain(text, **options)
    assert pipe(text) == pipe(text, **dict.fromkeys(options)) == expected != plain(text)


def test_label_options_of_a_call_override_those_of_the_pipeline(
    checkpoint: Callable[[str], Path],
) -> None:
    """As the reference merges them: `top_k=None` means all, `multi_label=None` means no."""
    pipe = pipeline("text-classification", model=checkpoint("bert-feelings"), top_k=2)
    best = pipe(GOOD, top_k=None)
    assert [one["score"] for one in best] == sorted((one["score"] for one in best), reverse=True) and len(best) == 3
    assert pipe(GOOD) == [best[:2]] and pipe([GOOD], return_all_scores=True) == [best]
    assert pipe([GOOD], return_all_scores=False) == [best[:1]]
    zero_shot = pipeline("zero-shot-classification", model=checkpoint("bert-nli"), candidate_labels=["good", "bad"])
    multi_label = pipeline(
        "zero-shot-classification", zero_shot.model, candidate_labels=["good", "bad"], multi_class=True
    )
    assert (
        zero_shot(GOOD, multi_label=None) == zero_shot(GOOD) == multi_label(GOOD, multi_label=None) != multi_label(GOOD)
    )
    features = pipeline("feature-extraction", model=checkpoint("bert-body"), tokenize_kwargs={"max_length": 3})
    assert len(features(GOOD, tokenize_kwargs={"truncation": True})[0]) == 3


@pytest.mark.parametrize(
    "template", ["It is {0}, {0}.", "{!s} it is", "{:s} it is", "{{{}}} it is", "{{a}} {}", "{0!s}{{", "{}"]
)
def test_hypothesis_templates_are_formatted_as_in_the_reference(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    hypotheses: list[str] = []
    original = ZeroShotClassification.text_windows

    def text_windows(self: Any, work: Any, index: int, item: str, hypothesis: str) -> Any:
        hypotheses.append(hypothesis)
        return original(self, work, index, item, hypothesis)

    monkeypatch.setattr(ZeroShotClassification, "text_windows", text_windows)
    pipe = pipeline("zero-shot-classification", model=checkpoint("bert-nli"), candidate_labels=["good", "{0} dog"])
    pipe(GOOD, hypothesis_template=template)
    assert hypotheses == [template.format(label) for label in ("good", "{0} dog")]


@pytest.mark.parametrize(
    "template", ["{label}", "{:>10}", "{} {{}}", "{} {}", "{} {0}", "{1}", "{0.a}", "{!r}", "} {}"]
)
def test_invalid_hypothesis_templates_are_refused(checkpoint: Callable[[str], Path], template: str) -> None:
    pipe = pipeline("zero-shot-classification", model=checkpoint("bert-nli"), candidate_labels=["good", "dog"])
    with pytest.raises(InputError, match=re.escape(f"hypothesis_template is {template!r}")):
        pipe(GOOD, hypothesis_template=template)


def test_last_of_labels_with_equal_scores_comes_first(checkpoint: Callable[[str], Path]) -> None:
    """As the reference sorts them."""
    pipe = pipeline("zero-shot-classification", model=checkpoint("bert-nli"))
    labels = ["dog", "Dog", "small house", "DOG"]
    answer = pipe(GOOD, candidate_labels=labels)
    same_score = [label for label in answer["labels"] if label.lower() == "dog"]
    assert same_score == ["DOG", "Dog", "dog"] and answer["scores"] == sorted(answer["scores"], reverse=True)


def test_return_all_scores_of_a_config_applies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write("bert-feelings", tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"return_all_scores": True}))
    classify = pipeline("text-classification", model=str(tmp_path))
    labels = ["negative", "neutral", "positive"]
    assert not caplog.records
    assert [one["label"] for one in classify([GOOD])[0]] == labels
    assert classify([GOOD], return_all_scores=False) == classify([GOOD], top_k=1)[0]
    assert len(pipeline("text-classification", model=str(tmp_path), top_k=2)([GOOD])[0]) == 3


def test_max_length_includes_the_prompt(checkpoint: Callable[[str], Path]) -> None:
    pipe = pipeline("text-generation", model=checkpoint("llama"), max_length=14, do_sample=False, return_tensors=True)
    for prompt in ("Once upon a time", "The dog"):
        assert len(pipe(prompt)[0]["generated_token_ids"]) == 14
    assert [len(one[0]["generated_token_ids"]) for one in pipe(["Once upon a time", "The dog"])] == [14, 14]
    with pytest.raises(
        InputError, match=r"max_length is 14, expected more than the \d+ tokens before the first new one"
    ):
        pipe("Once upon a time there was a dog in the garden of a small house")


def test_max_length_includes_the_start_token_of_a_decoder(checkpoint: Callable[[str], Path]) -> None:
    pipe = pipeline("summarization", model=checkpoint("bart"), max_length=1)
    with pytest.raises(InputError, match="max_length is 1, expected more than the 1 token before the first new one"):
        pipe("Once upon a time")  # the text does not count


@pytest.mark.parametrize(
    ("options", "equivalent", "message"),
    [
        (
            {"max_new_tokens": 3, "min_new_tokens": 9},
            {"max_new_tokens": 3, "min_new_tokens": 3},
            "max_new_tokens 3: no more are generated",
        ),
        (
            {"min_new_tokens": 2, "min_length": 9},
            {"min_new_tokens": 2},
            "min_length is ignored beside min_new_tokens",
        ),
        (
            {"do_sample": False, "seed": 3},
            {"do_sample": False},
            "seed: left out, since it has no effect without sampling or beams",
        ),
    ],
)
def test_options_without_effect_are_logged(
    checkpoint: Callable[[str], Path],
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    equivalent: dict[str, Any],
    message: str,
) -> None:
    """As in the reference; `Model.generate` refuses these options."""
    common = {"max_new_tokens": 5, "do_sample": False, "return_tensors": True}
    pipe = pipeline("text-generation", model=checkpoint("llama"))
    expected = pipe("The dog", **common | equivalent)
    model = compat.AutoModelForCausalLM.from_pretrained(checkpoint("llama"))
    ids = pipe.tokenizer("The dog", return_tensors="pt")
    del common["return_tensors"]
    generated = model.generate(**ids, **common | equivalent)
    assert not caplog.text
    assert pipe("The dog", **common | options, return_tensors=True) == expected and caplog.text.count(message) == 1
    assert torch.equal(model.generate(**ids, **common | options), generated) and caplog.text.count(message) == 2


def test_changes_of_the_tokenizer_apply(checkpoint: Callable[[str], Path]) -> None:
    pipe = pipeline("text-generation", model=checkpoint("llama"), do_sample=False, max_new_tokens=3)
    before = pipe("The dog")
    pipe.tokenizer.pad_token_id = pipe.model.config.end_tokens[0]
    assert pipe.model.tokenizer.pad_token_id == pipe.model.config.end_tokens[0]
    assert pipe(["The dog", "Once upon a time"])[0] == before
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("llama"))
    assert pipeline("text-generation", model=checkpoint("llama"), tokenizer=tokenizer).tokenizer is tokenizer
    assert pipe.tokenizer("The dog", return_tensors="pt")["input_ids"].shape[0] == 1


def test_ignored_max_length_is_logged(checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    pipe = pipeline("text-generation", model=checkpoint("llama"), max_new_tokens=7, do_sample=False)
    with caplog.at_level(logging.WARNING, "pellucid"):
        plain = pipe("The dog")
        assert not caplog.text
        assert pipe("The dog", max_length=4) == plain
    assert "max_length is ignored beside max_new_tokens, which is 7" in caplog.text


REFUSED = [
    ("text-classification", "bert-feelings", (GOOD,), {"topk": 2}, "no option 'topk'.*top_k"),
    ("text-classification", "bert-feelings", (GOOD,), {"top_k": "2"}, "top_k is '2', expected a whole number"),
    ("text-classification", "bert-feelings", (GOOD,), {"top_k": -1}, "top_k is -1, expected a whole number"),
    (
        "text-classification",
        "bert-feelings",
        (GOOD,),
        {"function_to_apply": np.arange(2)},
        "function_to_apply is array.* expected one of softmax",
    ),
    ("text-classification", "bert-feelings", (GOOD, BAD), {}, "2 arguments were given, expected one"),
    ("text-classification", "bert-feelings", (), {}, "0 arguments were given"),
    ("text-classification", "bert-feelings", (GOOD,), {"function_to_apply": "tanh"}, "function_to_apply is 'tanh'"),
    ("token-classification", "bert-people", (GOOD,), {"stride": 4}, "stride is 4 and nothing is grouped"),
    (
        "token-classification",
        "bert-people",
        (GOOD,),
        {"aggregation_strategy": "mean"},
        "aggregation_strategy is 'mean'",
    ),
    (
        "token-classification",
        "bert-people",
        (GOOD,),
        {"ignore_labels": 5},
        "ignore_labels is 5, expected a list of labels",
    ),
    ("token-classification", "bert-people", (GOOD,), {"offset_mapping": [(0, 1)]}, "no option 'offset_mapping'"),
    ("question-answering", "bert-reader", (), {"question": "Who?", "context": ""}, "context of item 0 is empty"),
    ("question-answering", "bert-reader", (), {"question": "Who?"}, "neither a question and a context"),
    ("question-answering", "bert-reader", (), {"question": ["a", "b"], "context": ["c"]}, "2 questions and 1 context "),
    ("fill-mask", "bert-filler", (GOOD,), {}, "item 0 has no mask"),
    ("fill-mask", "bert-filler", ("[MASK]",), {"targets": "\ud800"}, "the vocabulary has no token for any of them"),
    ("fill-mask", "bert-filler", ("[MASK]",), {"tokenizer_kwargs": True}, "tokenizer_kwargs is bool, expected a dict"),
    (
        "fill-mask",
        "bert-filler",
        ("[MASK]",),
        {"tokenizer_kwargs": {"truncate": True}},
        r"tokenizer_kwargs holds 'truncate' \(did you mean truncation",
    ),
    ("feature-extraction", "bert-body", (GOOD,), {"tokenize_kwargs": [1]}, "tokenize_kwargs is list, expected a dict"),
    ("zero-shot-classification", "bert-nli", (GOOD,), {}, "needs labels"),
    (
        "text-generation",
        "gpt2",
        (GOOD,),
        {"tokenizer_encode_kwargs": "x"},
        "tokenizer_encode_kwargs is str, expected a",
    ),
    ("text-generation", "gpt2", (GOOD,), {"stop_sequence": ["x"]}, "stop_sequence is list, expected a text"),
    ("text-generation", "gpt2", (GOOD,), {"stop_sequence": ""}, "^stop_sequence is '', which has no tokens: give"),
    ("text-generation", "gpt2", (GOOD,), {"handle_long_generation": "cut"}, "expected 'hole' or None"),
    (
        "text-generation",
        "gpt2",
        (GOOD,),
        {"handle_long_generation": "hole", "tokenizer_encode_kwargs": {"truncation": True, "max_length": 9}},
        "'hole' and truncation is set too",
    ),
    ("text-generation", "gpt2", (GOOD,), {"max_token": 3}, "no option 'max_token'"),
    ("text-generation", "gpt2", (GOOD,), {"max_new_tokens": "5", "max_length": 9}, "max_new_tokens is '5', expected a"),
    *(
        (task, name, (GOOD,), {"max_new_tokens": None, "max_length": "9"}, "max_length is '9', expected a whole number")
        for task, name in (("text-generation", "gpt2"), ("text2text-generation", "t5-gated"))
    ),
    ("text-generation", "gpt2", (GOOD,), {"min_length": "3"}, "min_length is '3', expected a whole number from 0"),
    ("text-generation", "gpt2", (GOOD,), {"min_length": 3, "prefix": 7}, "prefix is int, expected a text"),
    ("text-generation", "gpt2", (GOOD,), {"generation_config": {}}, "generation_config is {}, expected settings such"),
    (
        "text-generation",
        "gpt2",
        (GOOD,),
        {"generation_config": compat.GenerationConfig(guidance_scale=2)},
        "guidance_scale is 2, which is not supported",
    ),
    ("summarization", "bart", (3,), {}, "item 0 is int"),
]


@pytest.mark.filterwarnings("ignore:the target")
@pytest.mark.parametrize(("task", "name", "inputs", "call", "message"), REFUSED)
def test_invalid_calls_are_refused(
    checkpoint: Callable[[str], Path],
    task: str,
    name: str,
    inputs: tuple[object, ...],
    call: dict[str, object],
    message: str,
) -> None:
    with pytest.raises(InputError) as error:
        pipeline(task, model=checkpoint(name))(*inputs, **call)
    assert re.search(message, str(error.value))
    assert str(error.value).count("\n") == 0


def test_invalid_pipelines_are_refused(checkpoint: Callable[[str], Path]) -> None:
    for task, options, message in (
        ("text-classificaton", {}, "text-classification"),
        ("text-ranking", {}, "the reference has no task 'text-ranking'"),
        ("token-classification", {}, "token-classification needs"),
        ("text-classification", {"top": 2}, "no option 'top'"),
        ("text-classification", {"tokenizer": 3}, "tokenizer is int"),
    ):
        with pytest.raises(InputError, match=message):
            pipeline(task, model=checkpoint("bert-feelings"), **options)


@pytest.mark.parametrize("loaded", [True, False])
def test_saved_pipeline_contains_model_and_tokenizer(
    checkpoint: Callable[[str], Path], loaded: bool, tmp_path: Path
) -> None:
    folder: Any = checkpoint("bert-feelings")
    model = compat.AutoModelForSequenceClassification.from_pretrained(folder) if loaded else folder
    pipe = pipeline("text-classification", model=model, tokenizer=AutoTokenizer.from_pretrained(folder))
    pipe.tokenizer.add_tokens(["<new>"])
    pipe.save_pretrained(tmp_path / "two")
    assert pipeline("text-classification", tmp_path / "two")(GOOD) == pipe(GOOD)
    theirs = transformers.pipeline("text-classification", str(tmp_path / "two"))
    assert theirs(GOOD)[0]["score"] == pytest.approx(pipe(GOOD)[0]["score"], abs=1e-5)
    assert "<new>" in theirs.tokenizer.get_vocab()
    with pytest.raises(AttributeError, match=r"this pipeline has no 'preprocess': call it, or use its .model and"):
        pipe.preprocess(GOOD)
    with pytest.raises(InputError, match="no argument 'shard' for saving"):
        pipe.save_pretrained(tmp_path / "three", shard=3)


def test_positional_labels_are_refused_with_their_name(checkpoint: Callable[[str], Path]) -> None:
    classify = pellucid.pipeline("zero-shot-classification", checkpoint("bert-nli"))
    with pytest.raises(InputError, match=r"takes sequences, and was given 2 arguments: .* as candidate_labels=...$"):
        classify(GOOD, ["a", "b"])
