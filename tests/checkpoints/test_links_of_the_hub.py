"""Links in the hub's cache lead into the `blobs` of their repository: these are followed, and no others."""

import os
import shutil
from pathlib import Path

import pytest

import pellucid
from pellucid.checkpoints.inventory import _state
from pellucid.errors import NotFoundError
from tests.checkpoints.builders import UNSAFE, good, listing, sentence
from tests.checkpoints.watched import opened


def repository(cache: Path, name: str = "models--a--b") -> Path:
    """The snapshot of a cached repository, with a sentence encoder in its folder `sub/deep`."""
    plain, blobs = sentence(cache / "plain" / name), cache / name / "blobs"
    blobs.mkdir(parents=True)
    snapshot = cache / name / "snapshots" / "0123abcd"
    for path in (plain / below for below in listing(plain)):
        if path.is_file():
            place = snapshot / "sub" / "deep" / path.relative_to(plain)
            place.parent.mkdir(parents=True, exist_ok=True)
            blob = blobs / str(path.relative_to(plain)).replace("/", "-")
            path.rename(blob)
            place.symlink_to(os.path.relpath(blob, place.parent))
    return snapshot


def test_a_folder_below_a_snapshot_opens_by_its_path(tmp_path: Path) -> None:
    folder = repository(tmp_path) / "sub" / "deep"
    model = pellucid.load(folder)
    assert model.loaded.pooling is not None and _state(folder) == "ready"
    assert all((folder / name).is_symlink() for name in listing(folder) if (folder / name).is_file())
    (tmp_path / "short").symlink_to(folder)  # by whichever path
    assert pellucid.load(tmp_path / "short").loaded.config == model.loaded.config


def leads(link: Path, place: Path) -> None:
    link.unlink()
    link.symlink_to(place)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "1_Pooling/config.json", "modules.json"])
def test_no_link_below_a_snapshot_leads_out_of_its_repository(name: str, tmp_path: Path) -> None:
    folder, other = repository(tmp_path) / "sub" / "deep", repository(tmp_path, "models--c--d")
    blob = (folder / name).resolve()
    secret = tmp_path / "secret"
    shutil.copyfile(blob, secret)
    (blob.parent / "away").symlink_to(secret)
    shutil.copyfile(blob, tmp_path / "models--a--b" / "refs")
    outside_of_it = (
        other / "sub" / "deep" / name,
        other.parents[1] / "blobs" / blob.name,
        blob.parent / "away",
        tmp_path / "models--a--b" / "refs",
        blob.parent / ".." / ".." / "secret",
        secret,
    )
    for place in outside_of_it:
        assert place.is_file()
        leads(folder / name, place)
        with opened() as paths, pytest.raises(UNSAFE, match="outside the checkpoint"):
            pellucid.load(folder)
        assert str(place.resolve()) not in {os.path.realpath(path) for path in paths}
    leads(folder / name, blob)
    pellucid.load(folder)


@pytest.mark.parametrize(
    "place",
    [
        "models--a--b/other/0123abcd/sub",
        "anything/snapshots/0123abcd/sub",
        "snapshots/models--a--b/0123abcd/sub",
        "models--a--b/snapshots/0123abcd/other/snapshots/1/sub",
    ],
)
def test_no_other_folder_is_taken_for_a_part_of_a_snapshot(place: str, tmp_path: Path) -> None:
    """The `blobs` beside it is part of something else."""
    folder, blob = good(tmp_path / place), tmp_path / "config.json"
    (folder / "config.json").rename(blob)
    (folder / "config.json").symlink_to(blob)
    for blobs in {one / "blobs" for one in folder.parents if one.is_relative_to(tmp_path)}:
        blobs.mkdir()
        shutil.copyfile(blob, blobs / "config.json")
        leads(folder / "config.json", blobs / "config.json")
        with pytest.raises(UNSAFE, match="outside the checkpoint"):
            pellucid.load(folder)


def test_blobs_that_are_a_link_themselves_are_not_followed(tmp_path: Path) -> None:
    snapshot = repository(tmp_path)
    blobs = snapshot.parents[1] / "blobs"
    blobs.rename(tmp_path / "private")
    blobs.symlink_to(tmp_path / "private")
    with pytest.raises(UNSAFE, match="outside the checkpoint"):
        pellucid.load(snapshot / "sub" / "deep")


@pytest.mark.parametrize("below", ["", "snapshots"])
def test_a_folder_above_the_snapshots_is_told_with_what_to_give_instead(below: str, tmp_path: Path) -> None:
    home = repository(tmp_path).parents[1]
    said = r"is not a checkpoint: the hub's cache keeps those of a/b in folders of .*snapshots; give the name, or one"
    with pytest.raises(NotFoundError, match=said):
        pellucid.load(home / below)


def test_facts_that_are_a_link_to_nothing_are_no_missing_file(tmp_path: Path) -> None:
    good(tmp_path / "model")
    (tmp_path / "model" / "config.json").unlink()
    (tmp_path / "model" / "config.json").symlink_to("gone.json")
    with pytest.raises(NotFoundError, match=r"config\.json is a link to a file that is gone"):
        pellucid.load(tmp_path / "model")
