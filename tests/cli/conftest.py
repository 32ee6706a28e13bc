"""What the tests of commands have in common."""

from pathlib import Path

import pytest

from tests.cli.called import Pellucid, caller


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Pellucid:
    """Runs `pellucid` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return caller(monkeypatch, capsys)
