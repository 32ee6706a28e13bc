"""PyTorch's usual device, which anybody may have set for his own tensors, changes nothing of what is answered.

Set here is `meta`, whose tensors hold no numbers: what stands there by mistake ends in an error on any machine.
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
