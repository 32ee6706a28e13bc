"""Links in the hub's cache lead into the `blobs` of their repository: these are followed, and no others."""

import os
import shutil
from pathlib import Path

import pytest

import pellucid
from pellucid.checkpoints.inventory import _state
from pellucid.errors import NotFoundError
from tests.checkpoints.builders import UNSAFE, paths_below, sentence_encoder, valid_checkpoint
from tests.checkpoints.opened_files import opened_paths


def cached_snapshot(cache: Path, name: str = "models--a--b") -> Path:
    """The snapshot of a cached repository, with a sentence encoder in its folder `sub/deep`."""
    plain, blobs = sentence_encoder(cache / "plain" / name), cache / name / "blobs"
    blobs.mkdir(parents=True)
    snapshot = cache / name / "snapshots" / "0123abcd"
    for path in (plain / below for below in paths_below(plain)):
        if path.is_file():
            link = snapshot / "sub" / "deep" / path.relative_to(plain)
            link.parent.mkdir(parents=True, exist_ok=True)
            blob = blobs / str(path.relative_to(plain)).replace("/", "-")
            path.rename(blob)
            link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def test_folder_below_a_snapshot_opens_by_its_path(tmp_path: Path) -> None:
    folder = cached_snapshot(tmp_path) / "sub" / "deep"
    model = pellucid.load(folder)
    assert model.loaded.pooling is not None and _state(folder) == "ready"
    assert all((folder / name).is_symlink() for name in paths_below(folder) if (folder / name).is_file())
    (tmp_path / "short").symlink_to(folder)  # by whichever path
    assert pellucid.load(tmp_path / "short").loaded.config == model.loaded.config


def redirect(link: Path, target: Path) -> None:
    link.unlink()
    link.symlink_to(target)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "1_Pooling/config.json", "modules.json"])
def test_link_out_of_the_repository_of_a_snapshot_is_refused(name: str, tmp_path: Path) -> None:
    folder, other = cached_snapshot(tmp_path) / "sub" / "deep", cached_snapshot(tmp_path, "models--c--d")
    blob = (folder / name).resolve()
    secret = tmp_path / "secret"
    shutil.copyfile(blob, secret)
    (blob.parent / "away").symlink_to(secret)
    shutil.copyfile(blob, tmp_path / "models--a--b" / "refs")
    outside = (
        other / "sub" / "deep" / name,
        other.parents[1] / "blobs" / blob.name,
        blob.parent / "away",
        tmp_path / "models--a--b" / "refs",
        blob.parent / ".." / ".." / "secret",
        secret,
    )
    for target in outside:
        assert target.is_file()
        redirect(folder / name, target)
        with opened_paths() as paths, pytest.raises(UNSAFE, match="outside the checkpoint"):
            pellucid.load(folder)
        assert str(target.resolve()) not in {os.path.realpath(path) for path in paths}
    redirect(folder / name, blob)
    pellucid.load(folder)


@pytest.mark.parametrize(
    "path",
    [
        "models--a--b/other/0123abcd/sub",
        "anything/snapshots/0123abcd/sub",
        "snapshots/models--a--b/0123abcd/sub",
        "models--a--b/snapshots/0123abcd/other/snapshots/1/sub",
    ],
)
def test_other_folders_are_not_taken_for_snapshots(path: str, tmp_path: Path) -> None:
    """The `blobs` beside it is part of something else."""
    folder, blob = valid_checkpoint(tmp_path / path), tmp_path / "config.json"
    (folder / "config.json").rename(blob)
    (folder / "config.json").symlink_to(blob)
    for blobs in {one / "blobs" for one in folder.parents if one.is_relative_to(tmp_path)}:
        blobs.mkdir()
        shutil.copyfile(blob, blobs / "config.json")
        redirect(folder / "config.json", blobs / "config.json")
        with pytest.raises(UNSAFE, match="outside the checkpoint"):
            pellucid.load(folder)


def test_blobs_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    snapshot = cached_snapshot(tmp_path)
    blobs = snapshot.parents[1] / "blobs"
    blobs.rename(tmp_path / "private")
    blobs.symlink_to(tmp_path / "private")
    with pytest.raises(UNSAFE, match="outside the checkpoint"):
        pellucid.load(snapshot / "sub" / "deep")


@pytest.mark.parametrize("below", ["", "snapshots"])
def test_folder_above_the_snapshots_is_refused_with_advice(below: str, tmp_path: Path) -> None:
    home = cached_snapshot(tmp_path).parents[1]
    message = (
        r"is not a checkpoint: the hub's cache keeps those of a/b in folders of .*snapshots; give the name, or one"
    )
    with pytest.raises(NotFoundError, match=message):
        pellucid.load(home / below)


def test_dangling_config_link_is_named(tmp_path: Path) -> None:
    valid_checkpoint(tmp_path / "model")
    (tmp_path / "model" / "config.json").unlink()
    (tmp_path / "model" / "config.json").symlink_to("gone.json")
    with pytest.raises(NotFoundError, match=r"config\.json is a link to a file that is gone"):
        pellucid.load(tmp_path / "model")
