"""Which of many cases always run; the others are marked slow and run with `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The cases for `parametrize`, with all but the `quick` ones marked slow.

    quick: whole cases, or the first value of cases of several. Raises ValueError if one matches no case.
    """
    all_cases = list(cases)
    names = [[one, one[0]] if isinstance(one, tuple) else [one] for one in all_cases]
    if unknown := [one for one in quick if not any(one in name for name in names)]:
        raise ValueError(f"{unknown} are none of {all_cases}")
    return [case if any(one in quick for one in name) else _slow(case) for case, name in zip(all_cases, names)]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
