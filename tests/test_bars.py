"""A progress bar leaves nothing behind."""

import threading

import pytest

from pellucid.bars import progress_bar


def test_progress_bar_leaves_no_thread(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.bars.DELAY", 0.0)
    before = threading.active_count()
    with progress_bar("Counting", range(3), shown=True) as counted:
        assert list(counted) == [0, 1, 2]
    assert threading.active_count() == before
    assert "Counting" in capfd.readouterr().err
