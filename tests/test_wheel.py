"""`make wheel`: the package as it is distributed."""

import ast
import importlib.util
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import pellucid

ROOT = Path(__file__).parents[1]

PROBE = "-m pip --disable-pip-version-check --no-cache-dir --retries 0 --timeout 15 download --no-deps packaging"
"""Downloads a package of 70 KB from pip's index."""


def test_a_type_checker_finds_every_public_name() -> None:
    """Names are resolved on first use, so type checkers get imports; a file of the same name would hide one."""
    page = ast.parse(Path(pellucid.__file__).read_text(encoding="utf-8"))
    told = next(node for node in page.body if isinstance(node, ast.If))
    found = {one.name: line.module for line in told.body if isinstance(line, ast.ImportFrom) for one in line.names}
    assert {"__version__", *found} == set(pellucid.__all__)
    for name, module in found.items():
        package = importlib.import_module(str(module))
        assert hasattr(package, name)
        hidden = hasattr(package, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None
        assert not hidden, f"{module}.{name} is a file too"


@pytest.mark.parametrize("name", ["generate", "score"])
def test_a_type_checker_knows_that_one_text_has_one_answer(name: str) -> None:
    """The README uses `model.score(text).perplexity`, which a list does not have."""
    one, several = (typing.get_type_hints(way)["return"] for way in typing.get_overloads(getattr(pellucid.Model, name)))
    assert several == list[one]


@pytest.mark.slow
def test_the_wheel_alone_draws_and_judges(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    asked = subprocess.run([sys.executable, *PROBE.split(), "--dest", tmp_path / "asked"], capture_output=True)
    if asked.returncode:
        pytest.skip("no package index answers, from which a build takes its backend")
    folder, programs = tmp_path / "dist", Path(sys.executable).parent
    command = ["make", "wheel", "--assume-old=.venv/dev", f"BIN={programs}", f"DIST={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "it draws and judges" in done.stdout and len([*folder.glob("pellucid-*.whl")]) == 1
