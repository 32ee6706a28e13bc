"""Weights in several files: the index names them, and may not lead anywhere else."""

from pathlib import Path

import pytest

from tests.checkpoints.builders import (
    ABSENT,
    CORRUPT,
    MISMATCH,
    NORM,
    UNSAFE,
    Case,
    Damage,
    each,
    edit_json,
    good,
    refused,
    shards,
    write_raw,
)

pytestmark = pytest.mark.timeout(30)

INDEX = "model.safetensors.index.json"
BIAS = "embeddings.LayerNorm.bias"


def sharded(name: str) -> Damage:
    """An index that names a file for one tensor."""

    def damage(folder: Path) -> None:
        shards(folder)
        edit_json(folder / INDEX, lambda index: index["weight_map"].update({NORM: name}))

    return damage


def table(change: Damage) -> Damage:
    def damage(folder: Path) -> None:
        shards(folder)
        change(folder / INDEX)

    return damage


def linked_shard(folder: Path) -> None:
    first = sorted(set(shards(folder).values()))[0]
    (folder / first).rename(folder.parent / "outside.safetensors")
    (folder / first).symlink_to(folder.parent / "outside.safetensors")


def lost(folder: Path) -> None:
    for shard in set(shards(folder).values()):
        (folder / shard).unlink()


def without_index(folder: Path) -> None:
    shards(folder)
    (folder / INDEX).unlink()


def exchanged(folder: Path) -> None:
    names = shards(folder)
    other = {NORM: names[BIAS], BIAS: names[NORM]}
    assert names[BIAS] != names[NORM]
    edit_json(folder / INDEX, lambda index: index["weight_map"].update(other))


def not_listed(path: Path) -> None:
    edit_json(path, lambda index: index["weight_map"].pop(NORM))


def promised(path: Path) -> None:
    edit_json(path, lambda index: index["weight_map"].update({"no.such": index["weight_map"][NORM]}))


def strange_name(path: Path) -> None:
    edit_json(path, lambda index: index["weight_map"].update({"a\n\x1b[2Jb" * 99: index["weight_map"][NORM]}))


def duplicates(path: Path) -> None:
    rows = [f'"n{i}": "model-00001-of-00002.safetensors"' for i in range(200_000)]
    path.write_text('{"weight_map": {' + ", ".join([*rows, rows[-1]]) + "}}", encoding="utf-8")


SHARDS = [
    Case("A34 parent folder", sharded("../outside.safetensors"), UNSAFE, "'../outside.safetensors', expected"),
    Case("A34 absolute", sharded("/etc/x.safetensors"), UNSAFE, "'/etc/x.safetensors', expected"),
    Case("A34 drive", sharded("C:\\x.safetensors"), UNSAFE, r"'C:\\x.safetensors', expected"),
    Case("A34 share", sharded("\\\\srv\\x.safetensors"), UNSAFE, "expected a plain file name"),
    Case("A34 hidden", sharded(".x.safetensors"), UNSAFE, "expected a plain file name"),
    Case("A35 link outside", linked_shard, UNSAFE, "outside the checkpoint"),
    Case("A36 a pickle", sharded("evil.bin"), UNSAFE, "names 'evil.bin', expected files ending in .safetensors"),
    Case("A37 one missing", sharded("b.safetensors"), ABSENT, "2 of 3 files of the weights are here; missing b."),
    Case("A37 all missing", lost, ABSENT, "0 of 2 files of the weights are here; missing model-00001-of-00002"),
    Case("A37 no index", without_index, ABSENT, f"-of-00002.safetensors without {INDEX}, which lists them: fetch it"),
    Case("A38 wrong shard", exchanged, MISMATCH, "which model.safetensors.index.json does not list"),
    Case("A38 not listed", table(not_listed), MISMATCH, f"holds {NORM}, which model.safetensors.index"),
    Case("A38 not held", table(promised), MISMATCH, "lists no.such, which no file holds"),
    Case("strange name", table(strange_name), UNSAFE, "is not a valid tensor name"),
    Case("no weight_map", table(lambda p: p.write_text("{}")), CORRUPT, "has no weight_map of names and files"),
    Case("empty weight_map", table(lambda p: p.write_text('{"weight_map": {}}')), CORRUPT, "weight_map"),
    Case("weight_map of numbers", table(lambda p: p.write_text('{"weight_map": {"a": 1}}')), CORRUPT, "weight_map"),
    Case("not JSON", table(lambda p: p.write_text("{")), CORRUPT, "index.json is not JSON"),
    Case("200,000 names and one twice", table(duplicates), CORRUPT, "'n199999' appears twice"),
]  # fmt: skip


@each(SHARDS)
def test_a_hostile_index_is_refused(case: Case, tmp_path: Path) -> None:
    folder = good(tmp_path / "model")
    write_raw(tmp_path / "outside.safetensors", b"{}")
    case.damage(folder)
    refused(folder, case)
