"""The README is true: its commands are run, and the files that it draws exist."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documents
from tests.quick import few

README = (documents.ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for line in documents.commands(README) if line.startswith("pellucid ")]


@pytest.fixture
def examples_folder(tmp_path: Path) -> Path:
    """A separate folder that contains the examples."""
    (tmp_path / "examples").symlink_to(documents.ROOT / "examples")
    return tmp_path


def command_chains() -> list[list[str]]:
    """The commands in groups: each that writes a file, followed by those that read it."""
    result: list[list[str]] = []
    for line in COMMANDS:
        arguments = shlex.split(line)
        chain = next((one for one in result if output_file(one[0]) in arguments[:-1]), None)
        if chain is None:
            result.append([line])
        else:
            chain.append(line)
    return result


def output_file(line: str) -> str | None:
    """The file that a command writes, if any."""
    *_, option, name = shlex.split(line)
    return name if option in ("-o", "--output") else None


QUICK = [lines for lines in command_chains() if not lines[0].startswith(("pellucid train", "pellucid verify"))]


@pytest.mark.parametrize("lines", few(command_chains(), QUICK), ids=lambda lines: lines[0])
def test_commands_of_the_readme_run(lines: list[str], examples_folder: Path) -> None:
    for line in lines:
        command = [sys.executable, "-m", *shlex.split(line)]
        run = subprocess.run(
            command, cwd=examples_folder, capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"}
        )
        assert run.returncode == 0, (line, run.stderr)
        assert run.stdout.strip(), line


def test_make_targets_of_the_documents_exist() -> None:
    makefile = (documents.ROOT / "Makefile").read_text(encoding="utf-8")
    pages = README + (documents.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = [line.split()[1] for line in documents.commands(pages) if line.startswith("make ")]
    assert {"demo", "test", "test-all", "lint", "bench"} <= set(targets)
    assert all(f"\n{target}:" in makefile for target in targets)


def test_snippets_of_the_readme_run(examples_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(examples_folder)
    names: dict[str, object] = {}
    for snippet in documents.fenced(README, "python"):
        exec(compile(snippet, "README.md", "exec"), names)
    assert tuple(names["vectors"].shape) == (2, 384)
    assert tuple(names["weights"].shape) == (1, 12, 13, 13)
    assert tuple(names["hidden"].shape) == (1, 4, 128)
    assert (examples_folder / "flies.html").stat().st_size > 100_000
    assert f'# "{names["answer"]}"' in README


def test_tree_of_the_readme_matches_the_files() -> None:
    paths = documents.tree(README)
    assert all((documents.ROOT / path).exists() for path in paths)
    package = documents.ROOT / "src" / "pellucid"
    rooms = {p.name for p in package.iterdir() if not p.name.startswith("_") and p.suffix in ("", ".py")}
    assert rooms == {Path(path).name for path in paths if path.startswith("src/pellucid/") and path != "src/pellucid/"}


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/tour.md", "bench/README.md"])
def test_links_have_targets(name: str) -> None:
    import re

    page = documents.ROOT / name
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), f"{name} links to {target}"


def test_command_line_page_is_up_to_date() -> None:
    # in its own process, because commands cache the name of the help option of the first caller
    code = "from tests import documents; print(documents.cli_page(), end='')"
    result = subprocess.run([sys.executable, "-c", code], cwd=documents.ROOT, capture_output=True, check=True)
    assert documents.CLI_PAGE.read_text(encoding="utf-8") == result.stdout.decode(), "run: python -m tests.documents"


def test_every_command_shows_an_example_that_fits_a_terminal() -> None:
    from pellucid.cli.app import COMMANDS

    page = documents.cli_page()
    for name in COMMANDS:
        part = page.partition(f"## pellucid {name}\n")[2].partition("\n## ")[0]
        for one in part.split("\n### pellucid "):
            command = one.partition("\n")[0] if one.startswith(f"{name} ") else name
            assert f"\n    pellucid {command}" in one, command
    blocks = re.findall(r"\n  (?:Examples|Tasks):\n((?:    .*\n)+)", page)
    too_long = [line for block in blocks for line in block.splitlines() if len(line) > 80]
    assert blocks and not too_long
