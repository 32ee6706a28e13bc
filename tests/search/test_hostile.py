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
from pellucid.errors import CorruptFileError, InputError, PellucidError, UnsafeFileError
from pellucid.sealed import seal
from pellucid.search.graph import check_graph
from pellucid.search.manifest import Settings, read_manifest
from pellucid.training.manifest import read_manifest as kept
from tests.search.children import ended, start

FILES = ("generation-000001.json", "segments/000001/entries.sqlite", "segments/000001/vectors.f32")
GRAPH = "segments/000001/vectors.faiss"
QUERY = np.ones(384, np.float32)


@pytest.fixture
def whole(index: pellucid.Index, tmp_path: Path) -> Path:
    return index.save(tmp_path / "whole.index")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """300 vectors of size 16 in a graph of three levels."""
    numbers = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    pellucid.Index.build(None, numbers, tmp_path / "graph.index", kind="hnsw", M=4)
    return tmp_path / "graph.index"


def signed(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda body: None) -> None:
    """Gives a manifest the sizes and digests of the files that are there, as an attacker would."""
    path = folder / FILES[0]
    body = json.loads(path.read_text())
    body.pop("digest")
    for segment in body["segments"]:
        for name in segment["files"]:
            held = (folder / "segments" / segment["folder"] / name).read_bytes()
            segment["files"][name] = [len(held), hashlib.sha256(held).hexdigest()]
    body = change(body) or body
    path.write_bytes(seal(body))


def asked(folder: Path, dimension: int = 384) -> None:
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


def mutated(held: bytes, chance: random.Random) -> bytes:
    """A file with a few bytes changed, lost, added or copied, or with a number that is often too large."""
    way, place = chance.randrange(6), chance.randrange(len(held))
    if way == 0:
        return held[:place]
    if way == 1:
        return held + chance.randbytes(chance.randint(1, 64))
    if way == 2:
        return held[:place] + held[place + chance.randint(1, 64) :]
    if way == 3:
        extreme = struct.pack("<q", chance.choice([0, -1, 1, 2**31 - 1, 2**31, 2**62, -(2**63), 255, 300]))
        size = chance.choice([1, 2, 4, 8])
        place = chance.randrange(max(len(held) - size, 1)) if chance.random() < 0.5 else chance.randrange(100)
        return held[:place] + extreme[:size] + held[place + size :]
    if way == 4:
        size = min(chance.choice([16, 512, 4096]), len(held) // 2)
        a, b = (chance.randrange(len(held) - size) for _ in range(2))
        return held[:a] + held[b : b + size] + held[a + size :]
    changed = bytearray(held)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def mutants(folder: Path, names: tuple[str, ...], many: int, chance: random.Random) -> Iterator[str]:
    """Changes one file after the other, and restores each."""
    held = {name: (folder / name).read_bytes() for name in names}
    for i in range(many):
        name = names[i % len(names)]
        changed = mutated(held[name], chance)
        if changed == held[name]:
            continue
        (folder / name).write_bytes(changed)
        yield name
        (folder / name).write_bytes(held[name])


def none_opens(folder: Path, names: tuple[str, ...], many: int) -> int:
    """The number of mutants, all of which must be refused."""
    refused = 0
    for name in mutants(folder, names, many, random.Random(many)):
        with pytest.raises((CorruptFileError, InputError)) as error:
            pellucid.Index.open(folder)
        assert "\n" not in str(error.value) and str(folder) in str(error.value), name
        refused += 1
    return refused


def test_no_mutant_opens(whole: Path, graph: Path) -> None:
    assert none_opens(whole, FILES, 900) > 850
    assert none_opens(graph, (GRAPH,), 300) > 280
    asked(whole)
    asked(graph, 16)


@pytest.mark.slow
def test_none_of_ten_thousand_mutants_opens(whole: Path, graph: Path) -> None:
    assert none_opens(whole, FILES, 8_000) + none_opens(graph, (GRAPH,), 2_500) >= 10_000


def survives(folder: Path, names: tuple[str, ...], many: int, dimension: int, seed: int = 0) -> None:
    """Opens mutants whose digests are right: an answer or our error, within 20 seconds and 1 GiB."""

    def work() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
        refused, first = 0, (folder / FILES[0]).read_bytes()
        for _ in mutants(folder, names, many, random.Random(seed)):
            signed(folder)
            begun = time.monotonic()
            try:
                asked(folder, dimension)
            except PellucidError as error:
                refused += 1
                assert "\n" not in str(error)
            assert time.monotonic() - begun < 20
            (folder / FILES[0]).write_bytes(first)
        assert refused > many // 10

    assert ended(start(work), within=600) == 0


@pytest.mark.slow
def test_mutants_with_the_right_digests_do_no_harm(whole: Path, graph: Path) -> None:
    survives(whole, FILES[1:], 300, 384)
    survives(graph, (GRAPH, FILES[1]), 300, 16)


@pytest.mark.slow
def test_five_thousand_mutants_with_the_right_digests_do_no_harm(whole: Path, graph: Path) -> None:
    survives(whole, FILES[1:], 2_000, 384, seed=1)
    survives(graph, (GRAPH,), 3_000, 16, seed=1)


# -- on purpose -----------------------------------------------------------------------------------------------------

NASTY: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**4000, 1.5, float("inf"), "", "x", "../../etc", "a" * 10_000, [], {}, [[]],
    "000001", {"a": 1}, ["mean"] * 3, "AAAA", "eJwDAAAAAAE=", ["", ""], [1, "0" * 64],
]  # fmt: skip


def places(held: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a manifest."""
    inner = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


@pytest.mark.slow
def test_a_signed_manifest_that_says_anything_at_all_does_no_harm(whole: Path) -> None:
    def work() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
        original = (whole / FILES[0]).read_text()
        for path in list(places(json.loads(original))):
            if path == ("digest",):
                continue
            for value in (*NASTY, "gone"):

                def change(body: dict[str, Any]) -> None:
                    *before, last = path  # noqa: B023
                    for key in before:
                        body = body[key]
                    if value == "gone":  # noqa: B023
                        del body[last]  # type: ignore[arg-type]
                    else:
                        body[last] = value  # type: ignore[index] # noqa: B023

                (whole / FILES[0]).write_text(original)
                signed(whole, change)
                try:
                    asked(whole)
                except PellucidError as error:
                    assert "\n" not in str(error) and len(str(error)) < 1_000

    assert ended(start(work), within=300) == 0


def test_deleted_rows_that_unfold_without_end_are_refused(whole: Path) -> None:
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(bytes(300 * 2**20))).decode()
    for dead in (bomb, base64.b64encode(zlib.compress(b"")).decode(), "not base64!", "AAAA"):
        signed(whole, lambda body: body["segments"][0].update(dead=dead))  # noqa: B023
        with pytest.raises(
            CorruptFileError,
            match=r"generation-000001.json is damaged \(segment 000001: its deleted rows .*: restore it, or build",
        ):
            pellucid.Index.open(whole)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_was_cut_turned_or_swapped_is_named(index: pellucid.Index, whole: Path, file: str) -> None:
    held = (whole / file).read_bytes()
    changes = {
        "cut": held[:-1],
        "turned": held[:50] + bytes([held[50] ^ 1]) + held[51:],
        "longer": held + b" ",
        "empty": b"",
        "swapped": (whole / FILES[1 if file == FILES[2] else 2]).read_bytes(),
    }
    for name, changed in changes.items():
        (whole / file).write_bytes(changed)
        with pytest.raises(CorruptFileError, match=Path(file).name):
            pellucid.Index.open(whole)
        (whole / file).unlink()
        if file != FILES[0]:
            with pytest.raises(CorruptFileError, match=r"is missing: restore it"):
                pellucid.Index.open(whole)
        (whole / file).write_bytes(held)
        assert len(pellucid.Index.open(whole)) == 100, name


def test_entries_whose_damage_is_no_text_are_refused(whole: Path) -> None:
    """SQLite quotes the damaged statement in its message, as it is in the file."""
    held = (whole / FILES[1]).read_bytes()
    assert held.count(b"CREATE TABLE rows") == 1
    (whole / FILES[1]).write_bytes(held.replace(b"CREATE TABLE rows", b"CREATE TABL\xc5 rows"))
    signed(whole)
    with pytest.raises(CorruptFileError, match=r"entries.sqlite cannot be read"):
        pellucid.Index.open(whole)


def test_the_entries_of_another_index_are_refused(whole: Path, tmp_path: Path, minilm: pellucid.Model) -> None:
    other = pellucid.Index.build(minilm, [f"text {i}" for i in range(100)], tmp_path / "other.index", progress=False)
    shutil.copy(other.folder / FILES[1], whole / FILES[1])
    with pytest.raises(CorruptFileError, match=r"entries.sqlite was changed since it was written"):
        pellucid.Index.open(whole)


def test_another_model_another_format_and_another_place(whole: Path, minilm: pellucid.Model) -> None:
    for fact, value in (("digest", "0" * 64), ("dimension", 768), ("pooling", ["cls"]), ("max_length", 8), ("bits", 3)):
        (whole / FILES[0]).write_text((whole / FILES[0]).read_text())
        original = (whole / FILES[0]).read_text()
        signed(whole, lambda body: body["encoder"].update({fact: value}))  # noqa: B023
        with pytest.raises((InputError, CorruptFileError), match=f"{fact}|bytes"):
            pellucid.Index.open(whole, model=minilm)
        (whole / FILES[0]).write_text(original)
    later = json.loads((whole / FILES[0]).read_text()) | {"format": 2, "something": "new"}
    (whole / FILES[0]).write_text(json.dumps(later))
    with pytest.raises(InputError, match=r"is of format 2, and this pellucid reads up to 1: upgrade pellucid"):
        pellucid.Index.open(whole)


def test_links_lead_nowhere(whole: Path, tmp_path: Path) -> None:
    for name in ("segments", "segments/000001", FILES[1]):
        (whole / name).rename(tmp_path / "elsewhere")
        (whole / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UnsafeFileError, match="is reached by a link"):
            pellucid.Index.open(whole)
        (whole / name).unlink()
        (tmp_path / "elsewhere").rename(whole / name)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{0:032x}.npz").write_bytes(b"somebody else's")
    (whole / "building").symlink_to(outside)
    with pytest.raises(UnsafeFileError, match="building is a link"):
        pellucid.Index.open(whole).add(["a new text"], progress=False)
    assert [path.read_bytes() for path in outside.iterdir()] == [b"somebody else's"]
    (whole / "building").unlink()
    (tmp_path / f".copy.index-{os.getpid()}").symlink_to(outside)
    copied = pellucid.Index.open(whole).save(tmp_path / "copy.index")
    assert not copied.is_symlink() and len(list(outside.iterdir())) == 1
    (whole / "generation-000009.json").symlink_to(whole / "nowhere")
    with pytest.raises(CorruptFileError, match="is a broken link"):
        pellucid.Index.open(whole)


@pytest.mark.timeout(20)
def test_a_manifest_that_is_no_file_is_not_read_for_ever(whole: Path, tmp_path: Path) -> None:
    for path, read in ((whole / FILES[0], pellucid.Index.open), (tmp_path / "manifest.json", kept)):
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
def test_what_lies_in_place_of_a_file_is_no_regular_file(whole: Path, file: str, make: Callable[[Path], None]) -> None:
    (whole / file).unlink()
    make(whole / file)
    with pytest.raises(CorruptFileError, match="is not a regular file: put the file itself there"):
        pellucid.Index.open(whole)


def test_generations_are_counted_as_numbers(whole: Path) -> None:
    held = (whole / FILES[0]).read_text()
    for number in (999_999, 1_000_000):
        (whole / FILES[0]).write_text(held)
        signed(whole, lambda body: body.update(generation=number))  # noqa: B023
        (whole / FILES[0]).rename(whole / f"generation-{number}.json")
        assert pellucid.Index.open(whole).manifest.generation == number
        (whole / FILES[0]).write_text(held)
    shutil.copy(whole / FILES[0], whole / "generation-1000001.json")
    with pytest.raises(CorruptFileError, match="it is generation 1"):
        pellucid.Index.open(whole)


CODE = {
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


@pytest.mark.parametrize("name", CODE)
def test_entries_that_were_written_by_somebody_else_are_refused(whole: Path, name: str) -> None:
    connection = sqlite3.connect(whole / FILES[1], isolation_level=None)
    connection.executescript(f"PRAGMA writable_schema=ON; {CODE[name]}")
    connection.close()
    signed(whole)
    with pytest.raises(CorruptFileError, match=r"entries.sqlite cannot be read: .*; restore it"):
        asked(whole)


@pytest.mark.parametrize("metadata", ["[1, 2]", "5"])
def test_metadata_that_is_no_object_is_refused_where_a_condition_asks_for_its_columns(
    whole: Path, metadata: str
) -> None:
    with contextlib.closing(sqlite3.connect(whole / FILES[1], isolation_level=None)) as connection:
        connection.execute("UPDATE rows SET metadata = ?", (metadata,))
    signed(whole)
    with pytest.raises(CorruptFileError, match=r"entries.sqlite cannot be read: a row is not as it was written"):
        pellucid.Index.open(whole).search(QUERY, k=2, where="n = 1")


def test_vectors_that_are_no_numbers_are_refused(whole: Path) -> None:
    numbers = np.fromfile(whole / FILES[2], "<f4")
    numbers[5_000] = np.nan
    numbers.tofile(whole / FILES[2])
    signed(whole)
    with pytest.raises(CorruptFileError, match="a number that is not finite"):
        pellucid.Index.open(whole)


# -- the graph ------------------------------------------------------------------------------------------------------


def parts(held: bytes) -> dict[str, tuple[int, int, str]]:
    """The parts of a graph's file: start, end and dtype of each."""
    found, place = {}, 37 - 4 + 4
    for name, kind in (("chances", "f8"), ("upto", "i4"), ("levels", "i4"), ("starts", "u8"), ("neighbours", "i4")):
        (many,) = struct.unpack_from("<Q", held, place)
        size = many * np.dtype(kind).itemsize
        found[name] = (place + 8, place + 8 + size, kind)
        place += 8 + size
    return found | {"entry": (place, place + 4, "i4"), "top": (place + 4, place + 8, "i4")}


def test_a_graph_is_what_faiss_writes_for_every_metric_and_size(tmp_path: Path) -> None:
    for metric in ("cosine", "dot", "euclidean"):
        for rows, many in ((1, 2), (2, 2), (50, 16), (3_000, 3)):
            numbers = np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)
            folder = tmp_path / f"{metric}{rows}.index"
            pellucid.Index.build(None, numbers, folder, kind="hnsw", metric=metric, M=many)
            path, other = folder / GRAPH, "euclidean" if metric != "euclidean" else "dot"
            held = np.fromfile(path, np.uint8)
            check_graph(path, held, rows, 5, metric)
            with pytest.raises(CorruptFileError):
                check_graph(path, held, rows, 5, other)
            assert len(pellucid.Index.open(folder).search(np.ones(5), k=1)) == 1


@pytest.mark.parametrize(
    ("name", "change", "said"),
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
        ("upto", lambda a: a * 2, "do not follow one another"),
        ("entry", lambda a: a * 0 - 1, "does not start on the top level"),
        ("entry", lambda a: a * 0 + 2**30, "does not start on the top level"),
        ("top", lambda a: a * 0 + 12, "on levels that do not exist"),
    ],
)
def test_a_graph_that_leads_outside_is_refused_before_faiss_reads_it(
    graph: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[np.ndarray], np.ndarray], said: str
) -> None:
    held = (graph / GRAPH).read_bytes()
    first, last, kind = parts(held)[name]
    changed = change(np.frombuffer(held[first:last], kind)).astype(kind).tobytes()
    (graph / GRAPH).write_bytes(held[:first] + changed + held[last:])
    signed(graph)
    monkeypatch.setattr("faiss.read_index", lambda *_: pytest.fail("FAISS has read it"))
    with pytest.raises(CorruptFileError, match=said):
        pellucid.Index.open(graph)


@pytest.mark.parametrize("many", [2**63, 2**40, 301, 299, 0])
def test_a_length_that_the_file_does_not_hold_is_refused(graph: Path, many: int) -> None:
    held = (graph / GRAPH).read_bytes()
    for name in ("chances", "upto", "levels", "starts", "neighbours"):
        first = parts(held)[name][0]
        if (name, many) in (("chances", 0), ("starts", 301)):  # the first is not read, the second is right
            continue
        (graph / GRAPH).write_bytes(held[: first - 8] + struct.pack("<Q", many) + held[first:])
        signed(graph)
        with pytest.raises(CorruptFileError, match=r"vectors.faiss is not a graph that can be searched"):
            pellucid.Index.open(graph)


def test_settings_that_faiss_could_not_work_with_are_refused() -> None:
    numbers = np.eye(4, dtype=np.float32)
    for setting, value in (
        ("M", 0),
        ("M", 1),
        ("M", 10**6),
        ("efConstruction", 0),
        ("efSearch", -1),
        ("efSearch", 2**40),
    ):
        with pytest.raises(InputError, match=f"{setting} is {value}, expected a whole number from"):
            pellucid.Index.build(None, numbers, kind="hnsw", **{setting: value})
    with pytest.raises(InputError, match=r"metric is 'cosin' .did you mean cosine"):
        pellucid.Index.build(None, numbers, metric="cosin")
    assert replace(Settings(), kind="flat").kind == "flat"


# -- deleting from a graph --------------------------------------------------------------------------------------------


def test_what_was_deleted_from_a_graph_is_never_found(graph: Path) -> None:
    index, query = pellucid.Index.open(graph), np.ones(16, np.float32)
    best = [hit["id"] for hit in index.search(query, k=300)]
    assert len(best) == 300
    index.delete(best[:50])
    assert index.manifest.settings.kind == "hnsw" and index.manifest.segments[0].deleted.sum() == 50
    assert [hit["id"] for hit in index.search(query, k=100)] == best[50:150]
    assert [hit["id"] for hit in pellucid.Index.open(graph).search(query, k=300)] == best[50:]
    index.delete(best[50:80])  # more than a fifth is deleted: the segment is rewritten
    assert index.manifest.segments[0].rows == 220 and not index.manifest.segments[0].dead
    assert index.manifest.segments[0].kind == "hnsw"
    assert [hit["id"] for hit in index.search(query, k=300)] == best[80:]
    with pytest.raises(InputError, match=f"no text has the id '{best[0]}'"):
        index.delete(best[0])


def test_what_a_build_has_kept_may_be_anything(minilm: pellucid.Model, tmp_path: Path) -> None:
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
    code = io.BytesIO()
    np.savez(code, encoder=np.array([print], object))
    for i, held in enumerate((b"", b"PK", bomb.getvalue(), wrong.getvalue(), wrong.getvalue()[:-5], code.getvalue())):
        (folder / f"{i:032x}.npz").write_bytes(held)
    index = pellucid.Index.build(minilm, ["one", "two"], tmp_path / "a.index", progress=False)
    assert index.search("one", k=1)[0]["id"] == "1" and not folder.exists()


def test_a_manifest_says_what_it_said(whole: Path) -> None:
    manifest = read_manifest(whole / FILES[0])
    assert manifest.rows == 100 and manifest.numbered == 100 and manifest.corpus["column"] == "name"
