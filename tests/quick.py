"""Which cases of many are tried every time; the others are slow, and `make test-all` tries them."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The cases for `parametrize`, of which all but the `quick` ones are slow.

    quick: whole cases; or what cases of several values begin with.  Raises ValueError for one that finds none.
    """
    every = list(cases)
    names = [[one, one[0]] if isinstance(one, tuple) else [one] for one in every]
    if strange := [one for one in quick if not any(one in name for name in names)]:
        raise ValueError(f"{strange} are none of {every}")
    return [case if any(one in quick for one in name) else _slow(case) for case, name in zip(every, names)]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
