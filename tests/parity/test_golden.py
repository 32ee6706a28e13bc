"""The golden answers of the reference, compared with those of `pellucid.compat.pipeline`.

`golden.py` and `golden_real.py` made them; a case is identified by its task, model and number there.
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
from tests.parity.compared import difference
from tests.parity.real import PACKAGES, REAL, chemist

Row = dict[str, Any]


def rows(name: str) -> list[Any]:
    """The cases of a file, each with an id."""
    found = json.loads((tiny.GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return [pytest.param(row, id=f"{row['task']}-{row['model']}-{i}") for i, row in enumerate(found)]


pytestmark = pytest.mark.filterwarnings("ignore:the target:UserWarning")  # of fill-mask; the reference logs it

TINY = [row for task in CASES for row in rows(task)]


@pytest.fixture(scope="module")
def small(checkpoint: Callable[[str], Path]) -> Callable[[str], pellucid.Model]:
    """Tiny checkpoints by name, each loaded once."""
    return functools.cache(lambda name: pellucid.load(checkpoint(name)))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pellucid.Model]:
    """Real checkpoints by name, each loaded once."""

    @functools.cache
    def opened(name: str) -> pellucid.Model:
        distribution, inner = PACKAGES[name]
        try:
            folder = Path(str(importlib.metadata.distribution(distribution).locate_file(inner)))
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{distribution} is not installed; `make test` installs it")
        made = tmp_path_factory.mktemp(name) / name
        if name == "rampart":
            folder = convert(distribution, made).folder
        return pellucid.load(chemist(folder, made) if name == "rxnmapper" else folder)

    return opened


@pytest.mark.parametrize("row", TINY)
def test_tiny(small: Callable[[str], pellucid.Model], row: Row) -> None:
    compare(row, small(row["model"]))


@pytest.mark.parametrize("row", rows("real"))
def test_real(real: Callable[[str], pellucid.Model], row: Row) -> None:
    compare(row, real(row["model"]))


def test_every_case_has_its_answer() -> None:
    """The files contain an answer to each case of `cases.py`."""
    for task, cases in CASES.items():
        asked = [(one.model, list(one.inputs), one.call, one.options) for one in cases]
        found = [row.values[0] for row in rows(task)]
        kept = [(row["model"], row["inputs"], row["call"], row["options"]) for row in found]
        assert json.loads(json.dumps(asked)) == json.loads(json.dumps(kept)), task
    counts = {task: sum(row.values[0]["task"] == task for row in rows("real")) for task in REAL}
    assert counts == {task: len(cases) for task, cases in REAL.items()}


@pytest.mark.parametrize(
    "wrong", [[{"score": 0.5, "label": "b"}], [{"score": 0.50002, "label": "a"}], {"score": 0.5}, []]
)
def test_a_difference_is_seen(wrong: Any) -> None:
    assert difference([{"score": 0.5, "label": "a"}], [{"score": 0.500005, "label": "a"}]) == ""
    assert difference([{"score": 0.5, "label": "a"}], wrong)


def compare(row: Row, model: pellucid.Model) -> None:
    """Asserts that pellucid answers a case as the reference did."""
    made = pipeline(row["task"], model=model, device="cpu", **row["options"])
    assert difference(row["answer"], made(*row["inputs"], **row["call"])) == ""
