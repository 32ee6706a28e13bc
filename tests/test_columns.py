"""Wherever a list of texts is accepted, a column of another library is too."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pellucid
from pellucid import compat
from pellucid.training.arguments import convert_value
from pellucid.training.data import read

TEXTS = ["a dog sleeps", "a cat"]


class Scalar:
    """A scalar like Arrow's, which is not a string until it is converted."""

    def __init__(self, value: str) -> None:
        self.value = value


class Arrow:
    """The interface of an Arrow array."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __iter__(self) -> Iterator[Scalar]:
        return map(Scalar, self.texts)

    def __len__(self) -> int:
        return len(self.texts)

    def to_pylist(self) -> list[str]:
        return self.texts


HOLDERS: dict[str, Callable[[list[str]], Any]] = {
    "tuple": tuple,
    "array": np.array,
    "objects": lambda texts: np.array(texts, object),
    "keys": lambda texts: dict.fromkeys(texts).keys(),
    "generator": iter,
    "Arrow": Arrow,
}


@pytest.fixture(params=HOLDERS)
def held(request: pytest.FixtureRequest) -> Any:
    return HOLDERS[request.param](TEXTS)


@pytest.fixture(scope="module")
def body(checkpoint: Callable[[str], Path]) -> pellucid.Model:
    return pellucid.load(checkpoint("bert-body"))


@pytest.fixture(scope="module")
def writer(checkpoint: Callable[[str], Path]) -> pellucid.Model:
    return pellucid.load(checkpoint("gpt2"))


def test_it_is_embedded(body: pellucid.Model, held: Any) -> None:
    assert (body.embed(held) == body.embed(TEXTS)).all()


def test_it_goes_through_the_model(body: pellucid.Model, held: Any) -> None:
    assert (body(held).last_hidden_state == body(TEXTS).last_hidden_state).all()


def test_it_is_traced(body: pellucid.Model, held: Any) -> None:
    assert body.trace(held).row(1).tokens == body.trace(TEXTS).row(1).tokens


def test_it_is_answered(checkpoint: Callable[[str], Path], held: Any) -> None:
    ask = pellucid.pipeline("text-classification", checkpoint("bert-feelings"))
    items = list(held) if isinstance(held, tuple) else held  # a tuple is a pair
    assert [one["label"] for one in ask(items)] == [one["label"] for one in ask(TEXTS)]


def test_its_documents_are_ranked(body: pellucid.Model, held: Any) -> None:
    rank = pellucid.pipeline("text-ranking", body)
    wanted = [[one["corpus_id"] for one in each] for each in rank(["dog", "cat"], TEXTS)]
    assert [[one["corpus_id"] for one in each] for each in rank(["dog", "cat"], held)] == wanted


def test_it_is_written_on(writer: pellucid.Model, held: Any) -> None:
    assert writer.generate(held, max_new_tokens=2) == writer.generate(TEXTS, max_new_tokens=2)


def test_it_is_scored(writer: pellucid.Model, held: Any) -> None:
    assert [one.total for one in writer.score(held)] == [one.total for one in writer.score(TEXTS)]


def test_it_is_kept_and_searched(body: pellucid.Model, held: Any) -> None:
    index = pellucid.Index.build(body, TEXTS, progress=False)
    assert index.search(held, 1) == index.search(TEXTS, 1) and len(index.search(TEXTS, 1)) == 2


def test_an_index_is_made_of_it(body: pellucid.Model, held: Any) -> None:
    index = pellucid.Index.build(body, held, progress=False)
    assert [entry.text for one in index.segments for entry in one.entries.all()] == TEXTS


def test_it_is_a_column_to_learn_from() -> None:
    columns = {"text": TEXTS, "label": ["x", "y"]}
    assert read({name: Arrow(column) for name, column in columns.items()}).digest == read(columns).digest


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_so_are_names_among_options(checkpoint: Callable[[str], Path], holder: Callable[[list[str]], Any]) -> None:
    ask, names = pellucid.pipeline("token-classification", checkpoint("bert-people")), ["O", "PER"]
    wanted = ask(TEXTS, ignore_labels=names)
    assert ask(TEXTS, ignore_labels=holder(names)) == wanted
    kept = pellucid.pipeline("token-classification", ask.model, ignore_labels=holder(names))
    assert [kept(TEXTS), kept(TEXTS)] == [wanted, wanted]
    theirs = compat.pipeline("token-classification", model=ask.model, ignore_labels=holder(names))
    assert theirs(TEXTS) == theirs(TEXTS) == theirs(TEXTS, ignore_labels=names)
    found = convert_value("lora_targets", holder(names), tuple[str, ...])
    assert found == tuple(names) and {type(one) for one in found} == {str}


def test_one_vector_is_one_query_in_whatever_holds_its_numbers(body: pellucid.Model) -> None:
    index = pellucid.Index.build(body, TEXTS, progress=False)
    (first, second) = body.embed(TEXTS).numpy()
    wanted = index.search(second, 1, mode="dense")
    for one in (second.tolist(), tuple(second), second.astype(object), iter(second.tolist())):
        assert index.search(one, 1, mode="dense") == wanted
    both = index.search(np.array([first, second]), 1, mode="dense")
    for several in ([first, second], (first.tolist(), second.tolist()), iter([first, second])):
        assert index.search(several, 1, mode="dense") == both
