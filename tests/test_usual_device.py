"""PyTorch's default device, which callers may set for their own tensors, does not change any answer.

It is set to `meta` here, whose tensors have no data: a tensor created there by mistake raises an error on any machine.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

import pellucid
from tests.doings import DOINGS, Open, same
from tests.quick import few
from tests.usual import usually_on


@pytest.fixture
def opened(checkpoint: Callable[[str], Path]) -> Open:
    return lambda name, **said: pellucid.load(checkpoint(name), **said)


@pytest.mark.parametrize("name", few(DOINGS, DOINGS.keys() - {"classes", "compat", "pairs", "verify"}))
def test_the_same_comes_of_it(opened: Open, name: str, tmp_path: Path) -> None:
    wanted = DOINGS[name](opened, tmp_path / "wanted")
    with usually_on("meta"):
        found = DOINGS[name](opened, tmp_path / "found")
    same(found, wanted)
