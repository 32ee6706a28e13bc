"""Shared fixture of the tests of generation."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Applies to every test here."""
