"""Files changed by accident or on purpose: none opens silently, and none crashes, hangs or runs code."""

import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pellucid
from pellucid.checksummed import seal
from pellucid.errors import CorruptFileError, InputError, PellucidError, UnsafeFileError
from pellucid.search.graph import check_graph
from pellucid.search.manifest import Settings, read_manifest
from pellucid.training.manifest import read_manifest as read_training_manifest
from tests.search.child_processes import exit_code_of, start_fork

FILES = ("generation-000001.json", "segments/000001/entries.sqlite", "segments/000001/vectors.f32")
GRAPH = "segments/000001/vectors.faiss"
QUERY = np.ones(384, np.float32)


@pytest.fixture
def saved_index(index: pellucid.Index, tmp_path: Path) -> Path:
    return index.save(tmp_path / "whole.index")


@pytest.fixture
def graph_index(tmp_path: Path) -> Path:
    """300 vectors of size 16 in a graph of three levels."""
    vectors = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    pellucid.Index.build(None, vectors, tmp_path / "graph.index", kind="hnsw", M=4)
    return tmp_path / "graph.index"


def sign_manifest(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda body: None) -> None:
    """Gives a manifest the sizes and digests of the files that are there, as an attacker would."""
    path = folder / FILES[0]
    body = json.loads(path.read_text())
    body.pop("digest")
    for segment in body["segments"]:
        for name in segment["files"]:
            contents = (folder / "segments" / segment["folder"] / name).read_bytes()
            segment["files"][name] = [len(contents), hashlib.sha256(contents).hexdigest()]
    body = change(body) or body
    path.write_bytes(seal(body))


def use_index(folder: Path, dimension: int = 384) -> None:
    """Opens an index and makes every request that needs no model."""
    index = pellucid.Index.open(folder)
    index.search(np.ones(dimension, np.float32), k=20)
    index.search(np.ones(dimension, np.float32), k=5, where="sector = Financials" if dimension == 384 else None)
    index.search("aple health energy inc", k=20, mode="words")
    index.info()
    for segment in index.segments:
        list(segment.live_entries())
        assert len(segment.row_by_hash) <= segment.segment.rows


# -- by accident ----------------------------------------------------------------------------------------------------


def mutate(contents: bytes, generator: random.Random) -> bytes:
    """A file with a few bytes changed, lost, added or copied, or with a number that is often too large."""
    kind, position = generator.randrange(6), generator.randrange(len(contents))
    if kind == 0:
        return contents[:position]
    if kind == 1:
        return contents + generator.randbytes(generator.randint(1, 64))
    if kind == 2:
        return contents[:position] + contents[position + generator.randint(1, 64) :]
    if kind == 3:
        extreme = struct.pack("<q", generator.choice([0, -1, 1, 2**31 - 1, 2**31, 2**62, -(2**63), 255, 300]))
        size = generator.choice([1, 2, 4, 8])
        position = (
            generator.randrange(max(len(contents) - size, 1)) if generator.random() < 0.5 else generator.randrange(100)
        )
        return contents[:position] + extreme[:size] + contents[position + size :]
    if kind == 4:
        size = min(generator.choice([16, 512, 4096]), len(contents) // 2)
        a, b = (generator.randrange(len(contents) - size) for _ in range(2))
        return contents[:a] + contents[b : b + size] + contents[a + size :]
    changed = bytearray(contents)
    for _ in range(generator.randint(1, 4)):
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def mutants(folder: Path, names: tuple[str, ...], count: int, generator: random.Random) -> Iterator[str]:
    """Changes one file after the other, and restores each."""
    contents_by_name = {name: (folder / name).read_bytes() for name in names}
    for i in range(count):
        name = names[i % len(names)]
        changed = mutate(contents_by_name[name], generator)
        if changed == contents_by_name[name]:
            continue
        (folder / name).write_bytes(changed)
        yield name
        (folder / name).write_bytes(contents_by_name[name])


def refused_mutants(folder: Path, names: tuple[str, ...], count: int) -> int:
    """The number of mutants, all of which must be refused."""
    refused = 0
    for name in mutants(folder, names, count, random.Random(count)):
        with pytest.raises((CorruptFileError, InputError)) as error:
            pellucid.Index.open(folder)
        assert "\n" not in str(error.value) and str(folder) in str(error.value), name
        refused += 1
    return refused


def test_mutated_files_are_refused(saved_index: Path, graph_index: Path) -> None:
    assert refused_mutants(saved_index, FILES, 900) > 850
    assert refused_mutants(graph_index, (GRAPH,), 300) > 280
    use_index(saved_index)
    use_index(graph_index, 16)


@pytest.mark.slow
def test_ten_thousand_mutated_files_are_refused(saved_index: Path, graph_index: Path) -> None:
    assert refused_mutants(saved_index, FILES, 8_000) + refused_mutants(graph_index, (GRAPH,), 2_500) >= 10_000


def assert_mutants_do_no_harm(folder: Path, names: tuple[str, ...], count: int, dimension: int, seed: int = 0) -> None:
    """Opens mutants whose digests are right: an answer or our error, within 20 seconds and 1 GiB."""

    def work() -> None:
        memory_in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (memory_in_use + 2**30, resource.RLIM_INFINITY))
        refused, first = 0, (folder / FILES[0]).read_bytes()
        for _ in mutants(folder, names, count, random.Random(seed)):
            sign_manifest(folder)
            started = time.monotonic()
            try:
                use_index(folder, dimension)
            except PellucidError as error:
                refused += 1
                assert "\n" not in str(error)
            assert time.monotonic() - started < 20
            (folder / FILES[0]).write_bytes(first)
        assert refused > count // 10

    assert exit_code_of(start_fork(work), timeout=600) == 0


@pytest.mark.slow
def test_mutated_files_with_valid_digests_do_no_harm(saved_index: Path, graph_index: Path) -> None:
    assert_mutants_do_no_harm(saved_index, FILES[1:], 300, 384)
    assert_mutants_do_no_harm(graph_index, (GRAPH, FILES[1]), 300, 16)


@pytest.mark.slow
def test_five_thousand_mutated_files_with_valid_digests_do_no_harm(saved_index: Path, graph_index: Path) -> None:
    assert_mutants_do_no_harm(saved_index, FILES[1:], 2_000, 384, seed=1)
    assert_mutants_do_no_harm(graph_index, (GRAPH,), 3_000, 16, seed=1)


# -- on purpose -----------------------------------------------------------------------------------------------------

INVALID_VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**4000, 1.5, float("inf"), "", "x", "../../etc", "a" * 10_000, [], {}, [[]],
    "000001", {"a": 1}, ["mean"] * 3, "AAAA", "eJwDAAAAAAE=", ["", ""], [1, "0" * 64],
]  # fmt: skip


def paths_of_values(contents: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a manifest."""
    inner = (
        contents.items() if isinstance(contents, dict) else enumerate(contents) if isinstance(contents, list) else ()
    )
    for key, child in inner:
        yield (*path, key)
        yield from paths_of_values(child, (*path, key))


@pytest.mark.slow
def test_any_value_in_a_signed_manifest_does_no_harm(saved_index: Path) -> None:
    def work() -> None:
        memory_in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (memory_in_use + 2**30, resource.RLIM_INFINITY))
        original = (saved_index / FILES[0]).read_text()
        for path in list(paths_of_values(json.loads(original))):
            if path == ("digest",):
                continue
            for value in (*INVALID_VALUES, "gone"):

                def change(body: dict[str, Any]) -> None:
                    *before, last = path  # noqa: B023
                    for key in before:
                        body = body[key]
                    if value == "gone":  # noqa: B023
                        del body[last]  # type: ignore[arg-type]
                    else:
                        body[last] = value  # type: ignore[index] # noqa: B023

                (saved_index / FILES[0]).write_text(original)
                sign_manifest(saved_index, change)
                try:
                    use_index(saved_index)
                except PellucidError as error:
                    assert "\n" not in str(error) and len(str(error)) < 1_000

    assert exit_code_of(start_fork(work), timeout=300) == 0


def test_compressed_deleted_rows_of_excessive_size_are_refused(saved_index: Path) -> None:
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(bytes(300 * 2**20))).decode()
    for deleted_rows in (bomb, base64.b64encode(zlib.compress(b"")).decode(), "not base64!", "AAAA"):
        sign_manifest(saved_index, lambda body: body["segments"][0].update(dead=deleted_rows))  # noqa: B023
        with pytest.raises(
            CorruptFileError,
            match=r"generation-000001.json is damaged \(segment 000001: its deleted rows .*: restore it, or build",
        ):
            pellucid.Index.open(saved_index)


@pytest.mark.parametrize("file", FILES)
def test_truncated_changed_or_swapped_file_is_named(index: pellucid.Index, saved_index: Path, file: str) -> None:
    contents = (saved_index / file).read_bytes()
    changes = {
        "cut": contents[:-1],
        "flipped": contents[:50] + bytes([contents[50] ^ 1]) + contents[51:],
        "longer": contents + b" ",
        "empty": b"",
        "swapped": (saved_index / FILES[1 if file == FILES[2] else 2]).read_bytes(),
    }
    for name, changed in changes.items():
        (saved_index / file).write_bytes(changed)
        with pytest.raises(CorruptFileError, match=Path(file).name):
            pellucid.Index.open(saved_index)
        (saved_index / file).unlink()
        if file != FILES[0]:
            with pytest.raises(CorruptFileError, match=r"is missing: restore it"):
                pellucid.Index.open(saved_index)
        (saved_index / file).write_bytes(contents)
        assert len(pellucid.Index.open(saved_index)) == 100, name


def test_damaged_entries_with_undecodable_message_are_refused(saved_index: Path) -> None:
    """SQLite quotes the damaged statement in its message, as it is in the file."""
    contents = (saved_index / FILES[1]).read_bytes()
    assert contents.count(b"CREATE TABLE rows") == 1
    (saved_index / FILES[1]).write_bytes(contents.replace(b"CREATE TABLE rows", b"CREATE TABL\xc5 rows"))
    sign_manifest(saved_index)
    with pytest.raises(CorruptFileError, match=r"entries.sqlite cannot be read"):
        pellucid.Index.open(saved_index)


def test_entries_of_another_index_are_refused(saved_index: Path, tmp_path: Path, minilm: pellucid.Model) -> None:
    other = pellucid.Index.build(minilm, [f"text {i}" for i in range(100)], tmp_path / "other.index", progress=False)
    shutil.copy(other.folder / FILES[1], saved_index / FILES[1])
    with pytest.raises(CorruptFileError, match=r"entries.sqlite was changed since it was written"):
        pellucid.Index.open(saved_index)


def test_other_encoder_and_newer_format_are_refused(saved_index: Path, minilm: pellucid.Model) -> None:
    for key, value in (("digest", "0" * 64), ("dimension", 768), ("pooling", ["cls"]), ("max_length", 8), ("bits", 3)):
        (saved_index / FILES[0]).write_text((saved_index / FILES[0]).read_text())
        original = (saved_index / FILES[0]).read_text()
        sign_manifest(saved_index, lambda body: body["encoder"].update({key: value}))  # noqa: B023
        with pytest.raises((InputError, CorruptFileError), match=f"{key}|bytes"):
            pellucid.Index.open(saved_index, model=minilm)
        (saved_index / FILES[0]).write_text(original)
    original = (saved_index / FILES[0]).read_text()
    sign_manifest(saved_index, lambda body: body.update(format=0))
    with pytest.raises(CorruptFileError, match="its format is unknown"):
        pellucid.Index.open(saved_index)
    later = json.loads(original) | {"format": 2, "something": "new"}
    (saved_index / FILES[0]).write_text(json.dumps(later))
    with pytest.raises(InputError, match=r"is of format 2, and this pellucid reads format 1: upgrade pellucid"):
        pellucid.Index.open(saved_index)


def test_links_are_refused(saved_index: Path, tmp_path: Path) -> None:
    for name in ("segments", "segments/000001", FILES[1]):
        (saved_index / name).rename(tmp_path / "elsewhere")
        (saved_index / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UnsafeFileError, match="is reached by a link"):
            pellucid.Index.open(saved_index)
        (saved_index / name).unlink()
        (tmp_path / "elsewhere").rename(saved_index / name)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{0:032x}.npz").write_bytes(b"somebody else's")
    (saved_index / "building").symlink_to(outside)
    with pytest.raises(UnsafeFileError, match="building is a link"):
        pellucid.Index.open(saved_index).add(["a new text"], progress=False)
    assert [path.read_bytes() for path in outside.iterdir()] == [b"somebody else's"]
    (saved_index / "building").unlink()
    (tmp_path / f".copy.index-{os.getpid()}").symlink_to(outside)
    copied = pellucid.Index.open(saved_index).save(tmp_path / "copy.index")
    assert not copied.is_symlink() and len(list(outside.iterdir())) == 1
    (saved_index / "generation-000009.json").symlink_to(saved_index / "nowhere")
    with pytest.raises(CorruptFileError, match="is a broken link"):
        pellucid.Index.open(saved_index)


@pytest.mark.timeout(20)
def test_manifest_that_is_no_regular_file_is_refused(saved_index: Path, tmp_path: Path) -> None:
    for path, read in (
        (saved_index / FILES[0], pellucid.Index.open),
        (tmp_path / "manifest.json", read_training_manifest),
    ):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        with pytest.raises(CorruptFileError, match=r"\.json is not a regular file"):
            read(path.parent)
        path.unlink()
        path.symlink_to("/dev/zero")
        with pytest.raises(CorruptFileError, match=r"\.json is not a regular file"):
            read(path.parent)
        path.unlink()
        (tmp_path / "elsewhere").write_text("{}")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UnsafeFileError, match=r"\.json is a link, which may lead outside"):
            read(path.parent)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("file", FILES[1:])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_pipe_or_folder_in_place_of_a_file_is_refused(
    saved_index: Path, file: str, make: Callable[[Path], None]
) -> None:
    (saved_index / file).unlink()
    make(saved_index / file)
    with pytest.raises(CorruptFileError, match="is not a regular file: put the file itself there"):
        pellucid.Index.open(saved_index)


def test_generations_are_ordered_as_numbers(saved_index: Path) -> None:
    original = (saved_index / FILES[0]).read_text()
    for number in (999_999, 1_000_000):
        (saved_index / FILES[0]).write_text(original)
        sign_manifest(saved_index, lambda body: body.update(generation=number))  # noqa: B023
        (saved_index / FILES[0]).rename(saved_index / f"generation-{number}.json")
        assert pellucid.Index.open(saved_index).manifest.generation == number
        (saved_index / FILES[0]).write_text(original)
    shutil.copy(saved_index / FILES[0], saved_index / "generation-1000001.json")
    with pytest.raises(CorruptFileError, match="it is generation 1"):
        pellucid.Index.open(saved_index)


TAMPERING = {
    "a view": "ALTER TABLE rows RENAME TO real; CREATE VIEW rows AS SELECT * FROM real",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON rows BEGIN SELECT 1; END",
    "another table": "CREATE TABLE more (a)",
    "a text that is a blob": "UPDATE rows SET text = x'ff' WHERE number = 3",
    "an id that is a number": "UPDATE rows SET id = CAST(5 AS BLOB) WHERE number = 3",
    "metadata that is a list": "UPDATE rows SET metadata = '[]' WHERE number = 3",
    "metadata that is deep": "UPDATE rows SET metadata = '{\"a\":' || replace(hex(zeroblob(50000)), '0', '[') || '}'",
    "a place that is a text": "UPDATE rows SET first = 'x' WHERE number = 3",
    "a hash that is a number": "UPDATE rows SET hash = 3 WHERE number = 3",
    "a row less": "DELETE FROM rows WHERE number = 50",
    "a row elsewhere": "UPDATE rows SET number = 5000 WHERE number = 50",
    "words elsewhere": "INSERT INTO words(rowid, terms) VALUES (123456, 'health')",
    "words that are lost": "DELETE FROM words_data WHERE id > 10",
}


@pytest.mark.parametrize("name", TAMPERING)
def test_tampered_entries_are_refused(saved_index: Path, name: str) -> None:
    connection = sqlite3.connect(saved_index / FILES[1], isolation_level=None)
    connection.executescript(f"PRAGMA writable_schema=ON; {TAMPERING[name]}")
    connection.close()
    sign_manifest(saved_index)
    with pytest.raises(CorruptFileError, match=r"entries.sqlite cannot be read: .*; restore it"):
        use_index(saved_index)


@pytest.mark.parametrize("metadata", ["[1, 2]", "5"])
def test_metadata_that_is_no_object_is_refused_in_a_condition(saved_index: Path, metadata: str) -> None:
    with contextlib.closing(sqlite3.connect(saved_index / FILES[1], isolation_level=None)) as connection:
        connection.execute("UPDATE rows SET metadata = ?", (metadata,))
    sign_manifest(saved_index)
    with pytest.raises(CorruptFileError, match=r"entries.sqlite cannot be read: a row is not as it was written"):
        pellucid.Index.open(saved_index).search(QUERY, k=2, where="n = 1")


def test_non_finite_vectors_are_refused(saved_index: Path) -> None:
    vectors = np.fromfile(saved_index / FILES[2], "<f4")
    vectors[5_000] = np.nan
    vectors.tofile(saved_index / FILES[2])
    sign_manifest(saved_index)
    with pytest.raises(CorruptFileError, match="a number that is not finite"):
        pellucid.Index.open(saved_index)


# -- the graph ------------------------------------------------------------------------------------------------------


def graph_parts(contents: bytes) -> dict[str, tuple[int, int, str]]:
    """The parts of a graph's file: start, end and dtype of each."""
    part_by_name, position = {}, 37 - 4 + 4
    for name, kind in (("chances", "f8"), ("upto", "i4"), ("levels", "i4"), ("starts", "u8"), ("neighbours", "i4")):
        (count,) = struct.unpack_from("<Q", contents, position)
        size = count * np.dtype(kind).itemsize
        part_by_name[name] = (position + 8, position + 8 + size, kind)
        position += 8 + size
    return part_by_name | {"entry": (position, position + 4, "i4"), "top": (position + 4, position + 8, "i4")}


def test_graph_check_accepts_what_faiss_writes(tmp_path: Path) -> None:
    for metric in ("cosine", "dot", "euclidean"):
        for rows, connections in ((1, 2), (2, 2), (50, 16), (3_000, 3)):
            vectors = np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)
            folder = tmp_path / f"{metric}{rows}.index"
            pellucid.Index.build(None, vectors, folder, kind="hnsw", metric=metric, M=connections)
            path, other = folder / GRAPH, "euclidean" if metric != "euclidean" else "dot"
            contents = np.fromfile(path, np.uint8)
            check_graph(path, contents, rows, 5, metric)
            with pytest.raises(CorruptFileError):
                check_graph(path, contents, rows, 5, other)
            assert len(pellucid.Index.open(folder).search(np.ones(5), k=1)) == 1


@pytest.mark.parametrize(
    ("name", "change", "fragment"),
    [
        ("neighbours", lambda a: np.where(np.arange(len(a)) == 7, 300, a), "a neighbour is not one of its 300 rows"),
        ("neighbours", lambda a: np.where(np.arange(len(a)) == 7, -2, a), "a neighbour is not one of its 300 rows"),
        ("neighbours", lambda a: np.where(a == -1, -1, np.arange(len(a)) % 300), "on level .* is not on that level"),
        ("levels", lambda a: a + 1, "on levels that do not exist"),
        ("levels", lambda a: np.where(np.arange(len(a)) == 5, 1_000, a), "on levels that do not exist"),
        ("levels", lambda a: np.roll(a, 1), "does not start on the top level|do not follow one another"),
        ("starts", lambda a: a + 1, "do not follow one another"),
        ("starts", lambda a: np.where(np.arange(len(a)) == 9, 2**63, a).astype("u8"), "do not follow one another"),
        ("upto", lambda a: -a, "not counted upwards"),
        ("upto", lambda a: np.append(a[:-1], 2**30), "not counted upwards"),
        ("upto", lambda a: a * 2, "do not follow one another"),
        ("entry", lambda a: a * 0 - 1, "does not start on the top level"),
        ("entry", lambda a: a * 0 + 2**30, "does not start on the top level"),
        ("top", lambda a: a * 0 + 12, "on levels that do not exist"),
    ],
)
def test_invalid_graph_is_refused_before_faiss_reads_it(
    graph_index: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[np.ndarray], np.ndarray],
    fragment: str,
) -> None:
    contents = (graph_index / GRAPH).read_bytes()
    first, last, kind = graph_parts(contents)[name]
    changed = change(np.frombuffer(contents[first:last], kind)).astype(kind).tobytes()
    (graph_index / GRAPH).write_bytes(contents[:first] + changed + contents[last:])
    sign_manifest(graph_index)
    monkeypatch.setattr("faiss.read_index", lambda *_: pytest.fail("FAISS has read it"))
    with pytest.raises(CorruptFileError, match=fragment):
        pellucid.Index.open(graph_index)


@pytest.mark.parametrize("length", [2**63, 2**40, 301, 299, 0])
def test_wrong_length_in_a_graph_is_refused(graph_index: Path, length: int) -> None:
    contents = (graph_index / GRAPH).read_bytes()
    for name in ("chances", "upto", "levels", "starts", "neighbours"):
        first = graph_parts(contents)[name][0]
        if (name, length) in (("chances", 0), ("starts", 301)):  # the first is not read, the second is right
            continue
        (graph_index / GRAPH).write_bytes(contents[: first - 8] + struct.pack("<Q", length) + contents[first:])
        sign_manifest(graph_index)
        with pytest.raises(CorruptFileError, match=r"vectors.faiss is not a graph that can be searched"):
            pellucid.Index.open(graph_index)


def test_settings_that_faiss_cannot_use_are_refused() -> None:
    vectors = np.eye(4, dtype=np.float32)
    for setting, value in (
        ("M", 0),
        ("M", 1),
        ("M", 10**6),
        ("efConstruction", 0),
        ("efSearch", -1),
        ("efSearch", 2**40),
    ):
        with pytest.raises(InputError, match=f"{setting} is {value}, expected a whole number from"):
            pellucid.Index.build(None, vectors, kind="hnsw", **{setting: value})
    with pytest.raises(InputError, match=r"metric is 'cosin' .did you mean cosine"):
        pellucid.Index.build(None, vectors, metric="cosin")
    assert replace(Settings(), kind="flat").kind == "flat"


# -- deleting from a graph --------------------------------------------------------------------------------------------


def test_deleted_rows_of_a_graph_are_never_found(graph_index: Path) -> None:
    index, query = pellucid.Index.open(graph_index), np.ones(16, np.float32)
    best = [hit["id"] for hit in index.search(query, k=300)]
    assert len(best) == 300
    index.delete(best[:50])
    assert index.manifest.settings.kind == "hnsw" and index.manifest.segments[0].deleted.sum() == 50
    assert [hit["id"] for hit in index.search(query, k=100)] == best[50:150]
    assert [hit["id"] for hit in pellucid.Index.open(graph_index).search(query, k=300)] == best[50:]
    index.delete(best[50:80])  # more than a fifth is deleted: the segment is rewritten
    assert index.manifest.segments[0].rows == 220 and not index.manifest.segments[0].dead
    assert index.manifest.segments[0].kind == "hnsw"
    assert [hit["id"] for hit in index.search(query, k=300)] == best[80:]
    with pytest.raises(InputError, match=f"no text has the id '{best[0]}'"):
        index.delete(best[0])


def test_invalid_leftovers_of_a_build_are_ignored_and_deleted(minilm: pellucid.Model, tmp_path: Path) -> None:
    """Half files, other encoders' vectors, zip bombs: the texts are embedded anyway, and the leftovers deleted."""
    import io
    import zipfile

    folder = tmp_path / "a.index" / "building"
    folder.mkdir(parents=True)
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("vectors.npy", bytes(50_000_000))
    wrong = io.BytesIO()
    np.savez(wrong, encoder="x", hashes=np.zeros((1, 16), np.uint8), vectors=np.zeros((1, 4), np.float32))
    pickled = io.BytesIO()
    np.savez(pickled, encoder=np.array([print], object))
    for i, contents in enumerate(
        (b"", b"PK", bomb.getvalue(), wrong.getvalue(), wrong.getvalue()[:-5], pickled.getvalue())
    ):
        (folder / f"{i:032x}.npz").write_bytes(contents)
    index = pellucid.Index.build(minilm, ["one", "two"], tmp_path / "a.index", progress=False)
    assert index.search("one", k=1)[0]["id"] == "1" and not folder.exists()


def test_manifest_is_read_as_written(saved_index: Path) -> None:
    manifest = read_manifest(saved_index / FILES[0])
    assert manifest.rows == 100 and manifest.numbered == 100 and manifest.corpus["column"] == "name"
