"""Shared fixture of the tests of commands."""

from pathlib import Path

import pytest

from tests.cli.command_runner import RunCommand, command_runner


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunCommand:
    """Runs `pellucid` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command_runner(monkeypatch, capsys)
