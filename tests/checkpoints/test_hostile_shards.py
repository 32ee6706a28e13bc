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
    assert_refused,
    edit_json,
    parametrize_cases,
    split_into_shards,
    valid_checkpoint,
    write_raw,
)

pytestmark = pytest.mark.timeout(30)

INDEX = "model.safetensors.index.json"
BIAS = "embeddings.LayerNorm.bias"


def sharded(name: str) -> Damage:
    """An index that names a file for one tensor."""

    def damage(folder: Path) -> None:
        split_into_shards(folder)
        edit_json(folder / INDEX, lambda index: index["weight_map"].update({NORM: name}))

    return damage


def indexed(change: Damage) -> Damage:
    def damage(folder: Path) -> None:
        split_into_shards(folder)
        change(folder / INDEX)

    return damage


def linked_shard(folder: Path) -> None:
    first = sorted(set(split_into_shards(folder).values()))[0]
    (folder / first).rename(folder.parent / "outside.safetensors")
    (folder / first).symlink_to(folder.parent / "outside.safetensors")


def no_shards(folder: Path) -> None:
    for shard in set(split_into_shards(folder).values()):
        (folder / shard).unlink()


def without_index(folder: Path) -> None:
    split_into_shards(folder)
    (folder / INDEX).unlink()


def swap_entries(folder: Path) -> None:
    names = split_into_shards(folder)
    other = {NORM: names[BIAS], BIAS: names[NORM]}
    assert names[BIAS] != names[NORM]
    edit_json(folder / INDEX, lambda index: index["weight_map"].update(other))


def not_listed(path: Path) -> None:
    edit_json(path, lambda index: index["weight_map"].pop(NORM))


def list_missing_tensor(path: Path) -> None:
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
    Case("A37 all missing", no_shards, ABSENT, "0 of 2 files of the weights are here; missing model-00001-of-00002"),
    Case("A37 no index", without_index, ABSENT, f"-of-00002.safetensors without {INDEX}, which lists them: fetch it"),
    Case("A38 wrong shard", swap_entries, MISMATCH, "which model.safetensors.index.json does not list"),
    Case("A38 not listed", indexed(not_listed), MISMATCH, f"holds {NORM}, which model.safetensors.index"),
    Case("A38 not held", indexed(list_missing_tensor), MISMATCH, "lists no.such, which no file holds"),
    Case("strange name", indexed(strange_name), UNSAFE, "is not a valid tensor name"),
    Case("no weight_map", indexed(lambda p: p.write_text("{}")), CORRUPT, "has no weight_map of names and files"),
    Case("empty weight_map", indexed(lambda p: p.write_text('{"weight_map": {}}')), CORRUPT, "weight_map"),
    Case("weight_map of numbers", indexed(lambda p: p.write_text('{"weight_map": {"a": 1}}')), CORRUPT, "weight_map"),
    Case("not JSON", indexed(lambda p: p.write_text("{")), CORRUPT, "index.json is not JSON"),
    Case("200,000 names and one twice", indexed(duplicates), CORRUPT, "'n199999' appears twice"),
]  # fmt: skip


@parametrize_cases(SHARDS)
def test_a_hostile_index_is_refused(case: Case, tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    write_raw(tmp_path / "outside.safetensors", b"{}")
    case.damage(folder)
    assert_refused(folder, case)
