"""PyTorch's default device, which callers may set for their own tensors, does not change any answer.

It is set to `meta` here, whose tensors have no data: a tensor created there by mistake raises an error on any machine.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

import pellucid
from tests.quick import few
from tests.torch_state import default_device
from tests.use_cases import USE_CASES, LoadModel, assert_equal


@pytest.fixture
def load(checkpoint: Callable[[str], Path]) -> LoadModel:
    return lambda name, **options: pellucid.load(checkpoint(name), **options)


@pytest.mark.parametrize("name", few(USE_CASES, USE_CASES.keys() - {"classify", "compat", "pairs", "verify"}))
def test_results_do_not_change_with_the_default_device(load: LoadModel, name: str, tmp_path: Path) -> None:
    expected = USE_CASES[name](load, tmp_path / "expected")
    with default_device("meta"):
        found = USE_CASES[name](load, tmp_path / "found")
    assert_equal(found, expected)
