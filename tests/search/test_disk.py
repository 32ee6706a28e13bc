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
from tests.search.child_processes import exit_code_of, start_fork

NEW = [{"symbol": f"N{i}", "name": f"Something new number {i}", "sector": ""} for i in range(30)]


def contents_by_path(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def expect_error(work: Callable[[], object], kind: type[PellucidError], fragment: str) -> Callable[[], None]:
    """The work, which must end with this error."""

    def check() -> None:
        with pytest.raises(kind, match=fragment) as error:
            work()
        assert "\n" not in str(error.value)

    return check


def copy_of_model(index: pellucid.Index, folder: Path) -> Path:
    """A copy of the folder of the index's model."""
    assert index.loaded.source is not None
    return shutil.copytree(index.loaded.source.folder, folder)


def make_readable_by_all(folder: Path) -> None:
    """Lets every user read a folder of a test, and reach it."""
    for path in (folder, *folder.rglob("*"), *folder.parents):
        if path.is_relative_to(tempfile.gettempdir()) and path != Path(tempfile.gettempdir()):
            path.chmod(0o755)


def with_file_size_limit(work: Callable[[], object], max_bytes: int) -> Callable[[], None]:
    """The work, with a limit of `most` bytes on the size of a file."""

    def check() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))
        work()

    return check


@pytest.mark.parametrize("max_bytes", [0, 100, 5_000, 30_000, 45_000])
def test_failed_change_without_disk_space_leaves_the_old_index(writable_index: pellucid.Index, max_bytes: int) -> None:
    """The lock's note, the embedded chunk, the entries, the vectors: each in turn is the first without space."""
    before = contents_by_path(writable_index.folder)
    work = expect_error(
        lambda: writable_index.add(NEW, progress=False),
        ResourceError,
        "limit on the size of a file|cannot write .*(disk|space)",
    )
    assert exit_code_of(start_fork(with_file_size_limit(work, max_bytes))) == 0
    after = contents_by_path(writable_index.folder)
    assert {name: contents for name, contents in after.items() if not name.startswith(("building/", "lock"))} == before
    assert writable_index.add(NEW, progress=False) == len(NEW)


def test_rows_are_added_even_if_segments_cannot_be_rewritten(
    writable_index: pellucid.Index, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(MAX_SEGMENTS - 1):
        writable_index.add([{"symbol": f"S{i}", "name": f"Segment {i}"}], progress=False)
    rows, max_bytes = len(writable_index), 4 * 384 * len(writable_index)  # all vectors together would exceed it

    def work() -> None:
        assert writable_index.add([{"symbol": "LAST", "name": "The last"}], progress=False) == 1
        assert len(writable_index) == len(pellucid.Index.open(writable_index.folder)) == rows + 1
        assert "done, but segments could not be rewritten: the limit on the size of a file" in caplog.text

    assert exit_code_of(start_fork(with_file_size_limit(work, max_bytes))) == 0
    writable_index.compact(progress=False)
    assert len(writable_index) == rows + 1 and len(writable_index.segments) == 1


def test_graph_and_manifest_without_disk_space_raise_errors(writable_index: pellucid.Index, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(400, 64)).astype(np.float32)
    folder = tmp_path / "graph.index"
    work = expect_error(
        lambda: pellucid.Index.build(None, vectors, folder, kind="hnsw"), ResourceError, r"cannot write .*vectors.faiss"
    )
    assert exit_code_of(start_fork(with_file_size_limit(work, 100_000))) == 0
    assert not folder.exists()
    before = contents_by_path(writable_index.folder)
    work = expect_error(
        lambda: writable_index.delete(where="sector = Financials"),
        ResourceError,
        "the limit on the size .*generation-000002",
    )
    assert exit_code_of(start_fork(with_file_size_limit(work, 400))) == 0
    assert {
        name: contents
        for name, contents in contents_by_path(writable_index.folder).items()
        if not name.startswith("lock")
    } == before


def test_full_disk_raises_errors_and_loses_nothing(writable_index: pellucid.Index, tmp_path: Path) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    library = ctypes.CDLL(None, use_errno=True)

    def mount_small_disk() -> None:
        assert library.unshare(0x20000) == 0 and library.mount(b"none", b"/", None, 0x44000, None) == 0
        assert library.mount(b"tmpfs", str(disk).encode(), b"tmpfs", 0, b"size=600k") == 0

    def work() -> None:
        mount_small_disk()
        index = pellucid.Index.open(writable_index.save(disk / "a.index"), model=writable_index.loaded)
        (disk / "filler").write_bytes(bytes(max(os.statvfs(disk).f_bavail * 4096 - 60_000, 0)))
        before = {name: contents for name, contents in contents_by_path(disk).items() if "lock" not in name}
        expect_error(lambda: index.add(NEW * 1, progress=False), ResourceError, r"bytes are free there|no space left")()
        expect_error(lambda: index.save(disk / "b.index"), ResourceError, r"no space left while writing .*b.index")()
        after = {
            name: contents
            for name, contents in contents_by_path(disk).items()
            if "lock" not in name and "building" not in name
        }
        assert after == before
        (disk / "filler").unlink()
        assert index.search("Apple", k=1)[0]["id"] == "AAPL"
        assert index.delete("AAPL") == 1

    if exit_code_of(start_fork(mount_small_disk)) != 0:
        pytest.skip("this machine allows no mounts")
    assert exit_code_of(start_fork(work)) == 0


def test_read_only_folder_can_be_searched(writable_index: pellucid.Index, tmp_path: Path) -> None:
    model = pellucid.load(
        copy_of_model(writable_index, tmp_path / "model")
    ).loaded  # the original may be unreadable to others

    def as_nobody() -> None:
        os.setgroups([])
        os.setgid(65_534)
        os.setuid(65_534)
        index = pellucid.Index.open(writable_index.folder, model=model)
        assert index.search("Apple", k=1)[0]["id"] == "AAPL"
        for change in (lambda: index.add(NEW), lambda: index.delete("AAPL"), index.compact):
            expect_error(change, InputError, r"cannot write .*: Permission denied")()
        expect_error(lambda: index.save(writable_index.folder.parent / "b.index"), InputError, "Permission denied")()
        expect_error(
            lambda: pellucid.Index.build(None, np.eye(3), "/proc/x.index"), InputError, "cannot write /proc/x"
        )()

    if os.getuid() != 0:
        pytest.skip("only root can become nobody")
    make_readable_by_all(writable_index.folder)
    before = contents_by_path(writable_index.folder)
    assert exit_code_of(start_fork(as_nobody)) == 0
    assert contents_by_path(writable_index.folder) == before
    (writable_index.folder / "segments" / "000001").chmod(0)
    open_unreadable = lambda: (os.setuid(65_534), pellucid.Index.open(writable_index.folder))  # noqa: E731
    assert (
        exit_code_of(start_fork(expect_error(open_unreadable, PellucidError, "cannot read .*: Permission denied"))) == 0
    )


@pytest.mark.parametrize("unreadable", [".", "vocab.txt"])
def test_unreadable_model_file_is_named(writable_index: pellucid.Index, unreadable: str, tmp_path: Path) -> None:
    model = pellucid.load(copy_of_model(writable_index, tmp_path / "model")).loaded

    def as_nobody() -> None:
        os.setuid(65_534)
        with pytest.raises(InputError, match=f"cannot read {tmp_path / 'model' / unreadable}: Permission denied"):
            pellucid.Index.open(writable_index.folder, model=model)

    if os.getuid() != 0:
        pytest.skip("only root can become nobody")
    make_readable_by_all(writable_index.folder)
    (tmp_path / "model" / unreadable).chmod(0)
    assert exit_code_of(start_fork(as_nobody)) == 0


def test_read_error_within_a_file_names_the_model(
    writable_index: pellucid.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))  # for a read, the system names no file

    monkeypatch.setattr("pellucid.search.encoder.digest_of", failing)
    model = pellucid.load(copy_of_model(writable_index, tmp_path / "model"))
    with pytest.raises(InputError, match=f"cannot read {tmp_path / 'model'}: Input/output error"):
        pellucid.Index.open(writable_index.folder, model=model)


def test_missing_model_folder_is_named(writable_index: pellucid.Index, tmp_path: Path) -> None:
    folder = copy_of_model(writable_index, tmp_path / "model")
    model = pellucid.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match=f"cannot read {folder}: No such file or directory"):
        pellucid.Index.open(writable_index.folder, model=model)
    folder.mkdir()
    (folder / "vocab.txt").symlink_to("nowhere")
    with pytest.raises(InputError, match=f"cannot read {folder / 'vocab.txt'}: No such file or directory"):
        pellucid.Index.open(writable_index.folder, model=model)


def test_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "a.index"):
        with pytest.raises(InputError, match="cannot write"):
            pellucid.Index.build(None, np.eye(3), out)
    with pytest.raises(NotFoundError, match="there is no index"):
        pellucid.Index.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", "segments/mine/a.txt", "building/weights.npz", ".git/config"])
def test_folder_with_other_contents_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="which is not part of an index: give a new folder's name"):
        pellucid.Index.build(None, np.eye(3), tmp_path)
    assert contents_by_path(tmp_path) == {name: b"mine"}


def test_foreign_files_in_an_index_are_never_deleted(writable_index: pellucid.Index) -> None:
    for name in ("notes.txt", "segments/mine/a.txt", "building/weights.npz", "generation-000001 (copy).json"):
        (writable_index.folder / name).parent.mkdir(exist_ok=True)
        (writable_index.folder / name).write_text("mine")
    writable_index.add(NEW, progress=False)
    writable_index.delete(where="sector = Financials")
    writable_index.compact(progress=False)
    assert sorted(name for name, data in contents_by_path(writable_index.folder).items() if data == b"mine") == [
        "building/weights.npz", "generation-000001 (copy).json", "notes.txt", "segments/mine/a.txt",
    ]  # fmt: skip
    assert pellucid.Index.open(writable_index.folder).manifest.generation == writable_index.manifest.generation


def test_failed_build_leaves_nothing_and_failed_change_no_segment(
    writable_index: pellucid.Index, minilm: pellucid.Model, tmp_path: Path
) -> None:
    for source in ([], [("a", "b"), ("a", "c")], ["fine", None]):
        with pytest.raises(InputError):
            pellucid.Index.build(minilm, source, tmp_path / "deep" / "new.index", progress=False)
        assert not (tmp_path / "deep" / "new.index" / "segments").exists()
    before = {name for name in contents_by_path(writable_index.folder) if not name.startswith(("lock", "building"))}
    for wrong in ([{"symbol": "AAPL", "name": "Another"}], [{"name": "no symbol"}], [{"symbol": "B"}]):
        with pytest.raises(InputError):
            writable_index.add(wrong, progress=False)
        assert {
            name for name in contents_by_path(writable_index.folder) if not name.startswith(("lock", "building"))
        } == before


@pytest.mark.slow
def test_temporary_index_is_deleted_with_its_object_or_process(
    minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other programs create some meanwhile
    index = pellucid.Index.build(None, np.eye(3, dtype=np.float32))
    folder = index.folder
    assert folder.is_dir() and folder.parent == tmp_path
    assert (
        exit_code_of(start_fork(lambda: sys.exit(0) if folder.is_dir() else None)) == 1
    )  # a fork that ends deletes nothing
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


def test_copy_of_an_index_changed_meanwhile_is_refused(
    writable_index: pellucid.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copyfile = shutil.copyfile

    def copyfile_after_a_change(source: Path, target: Path) -> object:
        pellucid.Index.open(writable_index.folder, model=writable_index.loaded).delete([one.id for one in entries])
        return copyfile(source, target)

    entries = [one for segment in writable_index.segments for one in segment.live_entries()][
        :50
    ]  # so many that segments are rewritten
    monkeypatch.setattr(shutil, "copyfile", copyfile_after_a_change)
    with pytest.raises(InputError, match="was changed meanwhile"):
        writable_index.save(tmp_path / "late.index")


def test_copy_holds_only_the_opened_generation(writable_index: pellucid.Index, tmp_path: Path) -> None:
    reader = pellucid.Index.open(writable_index.folder, model=writable_index.loaded)
    writable_index.delete("AAPL")
    writable_index.compact(progress=False)
    with pytest.raises(PellucidError, match="was changed meanwhile"):  # its generation is outdated
        reader.save(tmp_path / "deep" / "old.index")
    assert not (tmp_path / "deep" / "old.index").exists()
    copy = writable_index.save(tmp_path / "deep" / "new.index")
    assert sorted(path.name for path in copy.iterdir()) == [
        f"generation-{writable_index.manifest.generation:06}.json",
        "segments",
    ]
    assert len(pellucid.Index.open(copy)) == 99
    assert list((tmp_path / "deep").iterdir()) == [copy]
