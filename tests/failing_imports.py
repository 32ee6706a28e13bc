"""Failing imports."""

import builtins
from typing import Any

import pytest


def fail_import(monkeypatch: pytest.MonkeyPatch, module: str, error: BaseException) -> None:
    """From now on, importing this module raises the error."""
    original_import = builtins.__import__

    def failing_import(name: str, *args: Any, **options: Any) -> Any:
        if name == module:
            raise error
        return original_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", failing_import)
