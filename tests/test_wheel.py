"""What `make wheel` does: the package as it is given away."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import try_wheel

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_alone_draws_and_judges(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT], check=True)
    try_wheel.main(str(tmp_path))
    assert "it draws and judges" in capfd.readouterr().out
