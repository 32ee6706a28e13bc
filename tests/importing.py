"""Failing imports."""

import builtins
from typing import Any

import pytest


def refuse(monkeypatch: pytest.MonkeyPatch, module: str, error: BaseException) -> None:
    """From now on, importing this module raises the error."""
    own = builtins.__import__

    def refusing(name: str, *args: Any, **options: Any) -> Any:
        if name == module:
            raise error
        return own(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refusing)
