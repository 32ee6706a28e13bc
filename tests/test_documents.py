"""The README cannot lie: its commands are run, and the files that it draws exist."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documents
from tests.quick import few

README = (documents.ROOT / "README.md").read_text(encoding="utf-8")
TYPED = [line for line in documents.commands(README) if line.startswith("pellucid ")]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A separate folder that contains the examples."""
    (tmp_path / "examples").symlink_to(documents.ROOT / "examples")
    return tmp_path


def chains() -> list[list[str]]:
    """The commands in groups: each that writes a file, followed by those that read it."""
    found: list[list[str]] = []
    for line in TYPED:
        words = shlex.split(line)
        above = next((one for one in found if made(one[0]) in words[:-1]), None)
        if above is None:
            found.append([line])
        else:
            above.append(line)
    return found


def made(line: str) -> str | None:
    """The file that a command writes, if any."""
    *_, option, name = shlex.split(line)
    return name if option in ("-o", "--output") else None


QUICK = [lines for lines in chains() if not lines[0].startswith(("pellucid train", "pellucid verify"))]


@pytest.mark.parametrize("lines", few(chains(), QUICK), ids=lambda lines: lines[0])
def test_commands_of_the_readme_run(lines: list[str], place: Path) -> None:
    for line in lines:
        command = [sys.executable, "-m", *shlex.split(line)]
        run = subprocess.run(command, cwd=place, capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"})
        assert run.returncode == 0, (line, run.stderr)
        assert run.stdout.strip(), line


def test_the_readme_names_its_commands_of_make() -> None:
    makefile = (documents.ROOT / "Makefile").read_text(encoding="utf-8")
    pages = README + (documents.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    made = [line.split()[1] for line in documents.commands(pages) if line.startswith("make ")]
    assert {"demo", "test", "test-all", "lint", "bench"} <= set(made)
    assert all(f"\n{target}:" in makefile for target in made)


def test_snippets_of_the_readme_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    names: dict[str, object] = {}
    for snippet in documents.fenced(README, "python"):
        exec(compile(snippet, "README.md", "exec"), names)
    assert tuple(names["vectors"].shape) == (2, 384)
    assert tuple(names["weights"].shape) == (1, 12, 13, 13)
    assert tuple(names["hidden"].shape) == (1, 4, 128)
    assert (place / "flies.html").stat().st_size > 100_000
    assert f'# "{names["answer"]}"' in README


def test_the_tree_is_the_tree() -> None:
    drawn = documents.tree(README)
    assert all((documents.ROOT / path).exists() for path in drawn)
    package = documents.ROOT / "src" / "pellucid"
    rooms = {p.name for p in package.iterdir() if not p.name.startswith("_") and p.suffix in ("", ".py")}
    assert rooms == {Path(path).name for path in drawn if path.startswith("src/pellucid/") and path != "src/pellucid/"}


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/tour.md", "bench/README.md"])
def test_links_lead_somewhere(name: str) -> None:
    import re

    page = documents.ROOT / name
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), f"{name} links to {target}"


def test_the_page_of_the_command_line_is_its_help() -> None:
    # in its own process, because commands cache the name of the help option of the first caller
    code = "from tests import documents; print(documents.cli_page(), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=documents.ROOT, capture_output=True, check=True)
    assert documents.CLI_PAGE.read_text(encoding="utf-8") == done.stdout.decode(), "run: python -m tests.documents"


def test_every_command_shows_an_example() -> None:
    from pellucid.cli.app import COMMANDS

    page = documents.cli_page()
    for name in COMMANDS:
        part = page.partition(f"## pellucid {name}\n")[2].partition("\n## ")[0]
        for one in part.split("\n### pellucid "):
            command = one.partition("\n")[0] if one.startswith(f"{name} ") else name
            assert f"\n    pellucid {command}" in one, command
