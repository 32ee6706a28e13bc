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

DOWNLOAD = "-m pip --disable-pip-version-check --no-cache-dir --retries 0 --timeout 15 download --no-deps packaging"
"""Downloads a package of 70 KB from pip's index."""


def test_type_checkers_find_every_public_name() -> None:
    """Names are resolved on first use, so type checkers get imports; a file of the same name would hide one."""
    tree = ast.parse(Path(pellucid.__file__).read_text(encoding="utf-8"))
    type_checking = next(node for node in tree.body if isinstance(node, ast.If))
    module_by_name = {
        one.name: line.module for line in type_checking.body if isinstance(line, ast.ImportFrom) for one in line.names
    }
    assert {"__version__", *module_by_name} == set(pellucid.__all__)
    for name, imported_from in module_by_name.items():
        package = importlib.import_module(str(imported_from))
        assert hasattr(package, name)
        hidden = hasattr(package, "__path__") and importlib.util.find_spec(f"{imported_from}.{name}") is not None
        assert not hidden, f"{imported_from}.{name} is a file too"


@pytest.mark.parametrize("name", ["generate", "score"])
def test_type_hints_give_one_answer_for_one_text(name: str) -> None:
    """The README uses `model.score(text).perplexity`, which a list does not have."""
    single, several = (
        typing.get_type_hints(overload)["return"] for overload in typing.get_overloads(getattr(pellucid.Model, name))
    )
    assert several == list[single]


@pytest.mark.slow
def test_wheel_works_in_its_own_environment(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    download = subprocess.run([sys.executable, *DOWNLOAD.split(), "--dest", tmp_path / "download"], capture_output=True)
    if download.returncode:
        pytest.skip("no package index answers, from which a build takes its backend")
    folder, programs = tmp_path / "dist", Path(sys.executable).parent
    command = ["make", "wheel", "--assume-old=.venv/dev", f"BIN={programs}", f"DIST={folder}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "it draws and classifies" in result.stdout and len([*folder.glob("pellucid-*.whl")]) == 1
