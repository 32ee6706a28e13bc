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


CONTAINERS: dict[str, Callable[[list[str]], Any]] = {
    "tuple": tuple,
    "array": np.array,
    "objects": lambda texts: np.array(texts, object),
    "keys": lambda texts: dict.fromkeys(texts).keys(),
    "generator": iter,
    "Arrow": Arrow,
}


@pytest.fixture(params=CONTAINERS)
def column(request: pytest.FixtureRequest) -> Any:
    return CONTAINERS[request.param](TEXTS)


@pytest.fixture(scope="module")
def encoder(checkpoint: Callable[[str], Path]) -> pellucid.Model:
    return pellucid.load(checkpoint("bert-body"))


@pytest.fixture(scope="module")
def decoder(checkpoint: Callable[[str], Path]) -> pellucid.Model:
    return pellucid.load(checkpoint("gpt2"))


def test_column_is_embedded(encoder: pellucid.Model, column: Any) -> None:
    assert (encoder.embed(column) == encoder.embed(TEXTS)).all()


def test_column_is_accepted_by_a_plain_call(encoder: pellucid.Model, column: Any) -> None:
    assert (encoder(column).last_hidden_state == encoder(TEXTS).last_hidden_state).all()


def test_column_is_traced(encoder: pellucid.Model, column: Any) -> None:
    assert encoder.trace(column).row(1).tokens == encoder.trace(TEXTS).row(1).tokens


def test_column_is_classified(checkpoint: Callable[[str], Path], column: Any) -> None:
    classify = pellucid.pipeline("text-classification", checkpoint("bert-feelings"))
    items = list(column) if isinstance(column, tuple) else column  # a tuple is a pair
    assert [one["label"] for one in classify(items)] == [one["label"] for one in classify(TEXTS)]


def test_column_of_documents_is_ranked(encoder: pellucid.Model, column: Any) -> None:
    rank = pellucid.pipeline("text-ranking", encoder)
    expected = [[one["corpus_id"] for one in each] for each in rank(["dog", "cat"], TEXTS)]
    assert [[one["corpus_id"] for one in each] for each in rank(["dog", "cat"], column)] == expected


def test_column_of_prompts_is_generated_from(decoder: pellucid.Model, column: Any) -> None:
    assert decoder.generate(column, max_new_tokens=2) == decoder.generate(TEXTS, max_new_tokens=2)


def test_column_is_scored(decoder: pellucid.Model, column: Any) -> None:
    assert [one.total for one in decoder.score(column)] == [one.total for one in decoder.score(TEXTS)]


def test_column_of_queries_is_searched(encoder: pellucid.Model, column: Any) -> None:
    index = pellucid.Index.build(encoder, TEXTS, progress=False)
    assert index.search(column, 1) == index.search(TEXTS, 1) and len(index.search(TEXTS, 1)) == 2


def test_index_is_built_from_a_column(encoder: pellucid.Model, column: Any) -> None:
    index = pellucid.Index.build(encoder, column, progress=False)
    assert [entry.text for one in index.segments for entry in one.entries.all()] == TEXTS


def test_columns_are_training_data() -> None:
    columns = {"text": TEXTS, "label": ["x", "y"]}
    assert read({name: Arrow(column) for name, column in columns.items()}).digest == read(columns).digest


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_names_in_options_may_be_a_column(
    checkpoint: Callable[[str], Path], container: Callable[[list[str]], Any]
) -> None:
    tag, names = pellucid.pipeline("token-classification", checkpoint("bert-people")), ["O", "PER"]
    expected = tag(TEXTS, ignore_labels=names)
    assert tag(TEXTS, ignore_labels=container(names)) == expected
    pipe = pellucid.pipeline("token-classification", tag.model, ignore_labels=container(names))
    assert [pipe(TEXTS), pipe(TEXTS)] == [expected, expected]
    theirs = compat.pipeline("token-classification", model=tag.model, ignore_labels=container(names))
    assert theirs(TEXTS) == theirs(TEXTS) == theirs(TEXTS, ignore_labels=names)
    found = convert_value("lora_targets", container(names), tuple[str, ...])
    assert found == tuple(names) and {type(one) for one in found} == {str}


def test_one_vector_is_one_query_in_every_container(encoder: pellucid.Model) -> None:
    index = pellucid.Index.build(encoder, TEXTS, progress=False)
    (first, second) = encoder.embed(TEXTS).numpy()
    expected = index.search(second, 1, mode="dense")
    for one in (second.tolist(), tuple(second), second.astype(object), iter(second.tolist())):
        assert index.search(one, 1, mode="dense") == expected
    both = index.search(np.array([first, second]), 1, mode="dense")
    for vectors in ([first, second], (first.tolist(), second.tolist()), iter([first, second])):
        assert index.search(vectors, 1, mode="dense") == both
