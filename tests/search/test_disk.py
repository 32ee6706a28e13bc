"""Full, read-only and unusual disks, folders with other contents, and files that do not matter."""

import ctypes
import errno
import gc
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pellucid
from pellucid.errors import InputError, NotFoundError, PellucidError, ResourceError
from pellucid.search.change import MAX_SEGMENTS
from tests.search.children import ended, start

NEW = [{"symbol": f"N{i}", "name": f"Something new number {i}", "sector": ""} for i in range(30)]


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(work: Callable[[], object], kind: type[PellucidError], said: str) -> Callable[[], None]:
    """The work, which must end with this error."""

    def check() -> None:
        with pytest.raises(kind, match=said) as error:
            work()
        assert "\n" not in str(error.value)

    return check


def copied(own: pellucid.Index, place: Path) -> Path:
    """A copy of the folder of the index's model."""
    assert own.loaded.source is not None
    return shutil.copytree(own.loaded.source.folder, place)


def opened_to_all(folder: Path) -> None:
    """Lets every user read a folder of a test, and reach it."""
    for path in (folder, *folder.rglob("*"), *folder.parents):
        if path.is_relative_to(tempfile.gettempdir()) and path != Path(tempfile.gettempdir()):
            path.chmod(0o755)


def limited(work: Callable[[], object], most: int) -> Callable[[], None]:
    """The work, with a limit of `most` bytes on the size of a file."""

    def check() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        work()

    return check


@pytest.mark.parametrize("most", [0, 100, 5_000, 30_000, 45_000])
def test_without_room_the_old_one_stays_and_nothing_half_written_is_left(own: pellucid.Index, most: int) -> None:
    """The lock's note, the embedded chunk, the entries, the vectors: each in turn is the first without space."""
    before = listing(own.folder)
    work = refused(
        lambda: own.add(NEW, progress=False), ResourceError, "limit on the size of a file|cannot write .*(disk|space)"
    )
    assert ended(start(limited(work, most))) == 0
    after = listing(own.folder)
    assert {name: held for name, held in after.items() if not name.startswith(("building/", "lock"))} == before
    assert own.add(NEW, progress=False) == len(NEW)


def test_what_is_added_is_added_though_there_is_no_room_to_write_segments_anew(
    own: pellucid.Index, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(MAX_SEGMENTS - 1):
        own.add([{"symbol": f"S{i}", "name": f"Segment {i}"}], progress=False)
    rows, most = len(own), 4 * 384 * len(own)  # all vectors together would exceed it

    def work() -> None:
        assert own.add([{"symbol": "LAST", "name": "The last"}], progress=False) == 1
        assert len(own) == len(pellucid.Index.open(own.folder)) == rows + 1
        assert "done, but segments could not be rewritten: the limit on the size of a file" in caplog.text

    assert ended(start(limited(work, most))) == 0
    own.compact(progress=False)
    assert len(own) == rows + 1 and len(own.segments) == 1


def test_a_graph_and_a_manifest_without_room(own: pellucid.Index, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(400, 64)).astype(np.float32)
    folder = tmp_path / "graph.index"
    work = refused(
        lambda: pellucid.Index.build(None, numbers, folder, kind="hnsw"), ResourceError, r"cannot write .*vectors.faiss"
    )
    assert ended(start(limited(work, 100_000))) == 0
    assert not folder.exists()
    before = listing(own.folder)
    work = refused(
        lambda: own.delete(where="sector = Financials"), ResourceError, "the limit on the size .*generation-000002"
    )
    assert ended(start(limited(work, 400))) == 0
    assert {name: held for name, held in listing(own.folder).items() if not name.startswith("lock")} == before


def test_a_disk_that_is_really_full(own: pellucid.Index, tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    library = ctypes.CDLL(None, use_errno=True)

    def mounted() -> None:
        assert library.unshare(0x20000) == 0 and library.mount(b"none", b"/", None, 0x44000, None) == 0
        assert library.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, b"size=600k") == 0

    def work() -> None:
        mounted()
        index = pellucid.Index.open(own.save(place / "a.index"), model=own.loaded)
        (place / "filler").write_bytes(bytes(max(os.statvfs(place).f_bavail * 4096 - 60_000, 0)))
        before = {name: held for name, held in listing(place).items() if "lock" not in name}
        refused(lambda: index.add(NEW * 1, progress=False), ResourceError, r"bytes are free there|no space left")()
        refused(lambda: index.save(place / "b.index"), ResourceError, r"no space left while writing .*b.index")()
        after = {name: held for name, held in listing(place).items() if "lock" not in name and "building" not in name}
        assert after == before
        (place / "filler").unlink()
        assert index.search("Apple", k=1)[0]["id"] == "AAPL"
        assert index.delete("AAPL") == 1

    if ended(start(mounted)) != 0:
        pytest.skip("this machine lets nobody mount")
    assert ended(start(work)) == 0


def test_a_folder_that_cannot_be_written_is_read_all_the_same(own: pellucid.Index, tmp_path: Path) -> None:
    model = pellucid.load(copied(own, tmp_path / "model")).loaded  # the original may be unreadable to others

    def somebody() -> None:
        os.setgroups([])
        os.setgid(65_534)
        os.setuid(65_534)
        index = pellucid.Index.open(own.folder, model=model)
        assert index.search("Apple", k=1)[0]["id"] == "AAPL"
        for change in (lambda: index.add(NEW), lambda: index.delete("AAPL"), index.compact):
            refused(change, InputError, r"cannot write .*: Permission denied")()
        refused(lambda: index.save(own.folder.parent / "b.index"), InputError, "Permission denied")()
        refused(lambda: pellucid.Index.build(None, np.eye(3), "/proc/x.index"), InputError, "cannot write /proc/x")()

    if os.getuid() != 0:
        pytest.skip("only root can become nobody")
    opened_to_all(own.folder)
    before = listing(own.folder)
    assert ended(start(somebody)) == 0
    assert listing(own.folder) == before
    (own.folder / "segments" / "000001").chmod(0)
    blind = lambda: (os.setuid(65_534), pellucid.Index.open(own.folder))  # noqa: E731
    assert ended(start(refused(blind, PellucidError, "cannot read .*: Permission denied"))) == 0


@pytest.mark.parametrize("unread", [".", "vocab.txt"])
def test_a_model_that_cannot_be_read(own: pellucid.Index, unread: str, tmp_path: Path) -> None:
    model = pellucid.load(copied(own, tmp_path / "model")).loaded

    def somebody() -> None:
        os.setuid(65_534)
        with pytest.raises(InputError, match=f"cannot read {tmp_path / 'model' / unread}: Permission denied"):
            pellucid.Index.open(own.folder, model=model)

    if os.getuid() != 0:
        pytest.skip("only root can become nobody")
    opened_to_all(own.folder)
    (tmp_path / "model" / unread).chmod(0)
    assert ended(start(somebody)) == 0


def test_a_disk_that_fails_within_a_file_names_the_model(
    own: pellucid.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))  # for a read, the system names no file

    monkeypatch.setattr("pellucid.search.encoder.digest_of", failing)
    model = pellucid.load(copied(own, tmp_path / "model"))
    with pytest.raises(InputError, match=f"cannot read {tmp_path / 'model'}: Input/output error"):
        pellucid.Index.open(own.folder, model=model)


def test_a_model_whose_folder_is_gone(own: pellucid.Index, tmp_path: Path) -> None:
    place = copied(own, tmp_path / "model")
    model = pellucid.load(place)
    shutil.rmtree(place)
    with pytest.raises(InputError, match=f"cannot read {place}: No such file or directory"):
        pellucid.Index.open(own.folder, model=model)
    place.mkdir()
    (place / "vocab.txt").symlink_to("nowhere")
    with pytest.raises(InputError, match=f"cannot read {place / 'vocab.txt'}: No such file or directory"):
        pellucid.Index.open(own.folder, model=model)


def test_a_file_stands_where_a_folder_should(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "a.index"):
        with pytest.raises(InputError, match="cannot write"):
            pellucid.Index.build(None, np.eye(3), out)
    with pytest.raises(NotFoundError, match="there is no index"):
        pellucid.Index.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", "segments/mine/a.txt", "building/weights.npz", ".git/config"])
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="which is not part of an index: give a new folder's name"):
        pellucid.Index.build(None, np.eye(3), tmp_path)
    assert listing(tmp_path) == {name: b"mine"}


def test_what_somebody_puts_into_an_index_is_never_taken_away(own: pellucid.Index) -> None:
    for name in ("notes.txt", "segments/mine/a.txt", "building/weights.npz", "generation-000001 (copy).json"):
        (own.folder / name).parent.mkdir(exist_ok=True)
        (own.folder / name).write_text("mine")
    own.add(NEW, progress=False)
    own.delete(where="sector = Financials")
    own.compact(progress=False)
    assert sorted(name for name, held in listing(own.folder).items() if held == b"mine") == [
        "building/weights.npz", "generation-000001 (copy).json", "notes.txt", "segments/mine/a.txt",
    ]  # fmt: skip
    assert pellucid.Index.open(own.folder).manifest.generation == own.manifest.generation


def test_a_failed_build_leaves_nothing_and_a_failed_change_no_segment(
    own: pellucid.Index, minilm: pellucid.Model, tmp_path: Path
) -> None:
    for source in ([], [("a", "b"), ("a", "c")], ["fine", None]):
        with pytest.raises(InputError):
            pellucid.Index.build(minilm, source, tmp_path / "deep" / "new.index", progress=False)
        assert not (tmp_path / "deep" / "new.index" / "segments").exists()
    before = {name for name in listing(own.folder) if not name.startswith(("lock", "building"))}
    for wrong in ([{"symbol": "AAPL", "name": "Another"}], [{"name": "no symbol"}], [{"symbol": "B"}]):
        with pytest.raises(InputError):
            own.add(wrong, progress=False)
        assert {name for name in listing(own.folder) if not name.startswith(("lock", "building"))} == before


@pytest.mark.slow
def test_a_temporary_index_goes_with_its_object_and_with_the_program(
    minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other programs create some meanwhile
    index = pellucid.Index.build(None, np.eye(3, dtype=np.float32))
    folder = index.folder
    assert folder.is_dir() and folder.parent == tmp_path
    assert ended(start(lambda: sys.exit(0) if folder.is_dir() else None)) == 1  # a fork that ends deletes nothing
    assert folder.is_dir()
    del index
    gc.collect()
    assert not folder.exists()
    with pytest.raises(InputError):
        pellucid.Index.build(minilm, [], progress=False)
    assert not list(tmp_path.iterdir())
    code = "import numpy, pellucid; i = pellucid.Index.build(None, numpy.eye(3)); print(i.folder, i.folder.is_dir())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" True\n") and not Path(done.stdout.split()[0]).exists()


def test_a_copy_whose_files_go_while_it_is_made_says_so(
    own: pellucid.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copyfile = shutil.copyfile

    def slow(source: Path, target: Path) -> object:
        pellucid.Index.open(own.folder, model=own.loaded).delete([one.id for one in entries])
        return copyfile(source, target)

    entries = [one for segment in own.segments for one in segment.live_entries()][
        :50
    ]  # so many that segments are rewritten
    monkeypatch.setattr(shutil, "copyfile", slow)
    with pytest.raises(InputError, match="was changed meanwhile"):
        own.save(tmp_path / "late.index")


def test_a_copy_holds_what_is_opened_and_nothing_else(own: pellucid.Index, tmp_path: Path) -> None:
    reader = pellucid.Index.open(own.folder, model=own.loaded)
    own.delete("AAPL")
    own.compact(progress=False)
    with pytest.raises(PellucidError, match="was changed meanwhile"):  # its generation is outdated
        reader.save(tmp_path / "deep" / "old.index")
    assert not (tmp_path / "deep" / "old.index").exists()
    copied = own.save(tmp_path / "deep" / "new.index")
    assert sorted(path.name for path in copied.iterdir()) == [
        f"generation-{own.manifest.generation:06}.json",
        "segments",
    ]
    assert len(pellucid.Index.open(copied)) == 99
    assert list((tmp_path / "deep").iterdir()) == [copied]
