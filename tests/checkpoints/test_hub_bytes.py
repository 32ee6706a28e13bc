"""What came from the hub is what it lists: sizes, digests, and the commit that a name stands for."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub.utils import WeakFileLock

from pellucid.checkpoints.cache import is_complete, update_ref
from tests.checkpoints.builders import WEIGHTS, valid_checkpoint, with_file
from tests.checkpoints.hub import (
    LOCATE,
    NAME,
    Hub,
    error_message,
    find_snapshot,
    pellucid_command,
    run_pellucid,
    vocab_size,
)

pytestmark = pytest.mark.timeout(120)

CONFIG = "config.json"


def assert_same_files(snapshot: Path, repository: Path) -> None:
    """Each file of a snapshot equals that of the repository, byte for byte."""
    for path in snapshot.rglob("*"):
        assert path.read_bytes() == (repository / path.relative_to(snapshot)).read_bytes(), path


# -- what is in the cache ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [WEIGHTS, CONFIG])
def test_truncated_file_is_fetched_again(file: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    """By a pull, as the error advises, and by opening the model with network."""
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    for fetch in (
        lambda: run_pellucid(hub.url, home, "pull", NAME).stdout.strip(),
        lambda: str(find_snapshot(hub, home)),
    ):
        os.truncate(snapshot / file, 0 if file == CONFIG else (snapshot / file).stat().st_size - 5_000)
        assert not is_complete(snapshot)
        rows = json.loads(run_pellucid(hub.url, home, "models", "--json").stdout)
        assert f"incomplete: another size than on the hub: {file}" in {row["state"] for row in rows}
        message = run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_HUB_OFFLINE="1").stderr
        assert f"o/tiny has {file} in another size than the hub lists: its answers may differ; run: pellucid" in message
        hub.requests.clear()
        assert fetch() == str(snapshot)
        assert hub.fetched() == {file} and is_complete(snapshot)
        assert_same_files(snapshot, tmp_path / "repository")


def test_old_file_stays_until_its_replacement_is_verified(hub: Hub, home: Path, tmp_path: Path) -> None:
    """An edited file that opens stays until its replacement is verified; here that is corrupt, and is discarded."""
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    edited = (snapshot / CONFIG).read_bytes() + b"\n\n"
    (snapshot / CONFIG).write_bytes(edited)
    hub.body_changes[CONFIG] = lambda body: body[:-1] + b" "
    assert f"{CONFIG} came with " in error_message(hub.url, home, "pull", NAME)
    assert (snapshot / CONFIG).read_bytes() == edited
    opened = run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_HUB_OFFLINE="1")
    assert opened.stdout.strip() == str(snapshot), opened.stderr
    assert not list(snapshot.parents[1].rglob("*.aside"))
    hub.body_changes.clear()
    assert run_pellucid(hub.url, home, "pull", NAME).stdout.strip() == str(snapshot)
    assert_same_files(snapshot, tmp_path / "repository")


def test_truncated_file_is_detected_without_a_list(hub: Hub, home: Path, tmp_path: Path) -> None:
    """Other tools leave no list; the hub is then queried."""
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    for file_list in (snapshot.parents[1] / "trees").iterdir():
        file_list.unlink()
    os.truncate(snapshot / WEIGHTS, 100)
    assert run_pellucid(hub.url, home, "pull", NAME).stdout.strip() == str(snapshot)
    assert_same_files(snapshot, tmp_path / "repository")


def test_sizes_of_unused_files_are_ignored(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    fetch = "import huggingface_hub as hub; print(hub.snapshot_download({0!r}))"
    snapshot = find_snapshot(hub, home, program=fetch)
    for name in ("tf_model.h5", "pytorch_model.bin"):  # not read beside model.safetensors
        os.truncate(snapshot / name, 1)
    hub.requests.clear()
    assert find_snapshot(hub, home) == snapshot and hub.requests == []


def test_truncated_blob_of_another_commit_is_not_reused(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "a"))
    old = find_snapshot(hub, home)
    os.truncate(old / WEIGHTS, 100)
    with_file("vocab.txt", "a b c")(valid_checkpoint(tmp_path / "b"))
    hub.add(NAME, tmp_path / "a", tmp_path / "b")
    assert_same_files(Path(run_pellucid(hub.url, home, "pull", NAME).stdout.strip()), tmp_path / "b")


# -- what comes from the hub -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "change", "difference"),
    [
        (WEIGHTS, lambda body: body[:-10], "bytes, where the hub lists "),
        (WEIGHTS, lambda body: body + bytes(10), "bytes, where the hub lists "),
        (WEIGHTS, lambda body: body[:-100] + b"\1" * 100, "the sha256 "),
        (CONFIG, lambda body: body.replace(b"gelu", b"relu"), "the sha1 "),
    ],
    ids=["too few", "too many", "others of a large file", "others of a small file"],
)
def test_content_that_differs_from_the_list_is_refused(
    file: str, change: Callable[[bytes], bytes], difference: str, hub: Hub, home: Path, tmp_path: Path
) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    hub.body_changes[file] = change
    message = error_message(hub.url, home, "pull", NAME)
    assert f"'o/tiny' was not fetched: {file} came with " in message and difference in message
    assert "and was removed; try again with network" in message
    hub.body_changes.clear()
    hub.requests.clear()
    assert_same_files(Path(run_pellucid(hub.url, home, "pull", NAME).stdout.strip()), tmp_path / "repository")
    assert file in hub.fetched()


def test_unreadable_file_list_is_fetched_again(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    file_list = home / "hub" / "models--o--tiny" / "trees" / f"{snapshot.name}.json"
    for text, warnings in (("[]", 0), ("{", 1)):
        for flags in ([], ["-q"]):
            file_list.write_text(text)
            result = run_pellucid(hub.url, home, *flags, "pull", NAME)
            assert result.returncode == 0 and is_complete(snapshot)
            assert result.stderr.count("Ignoring corrupted tree cache file") == (0 if flags else warnings), (
                result.stderr
            )
            assert json.loads(file_list.read_text())["files"]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, f"'o/tiny' was not fetched: the hub answered 404 to /o/tiny/resolve/{'1' * 40}/config.json; try again"),
        (401, "the hub refused 'o/tiny': check HF_TOKEN"),
    ],
)
def test_file_that_the_hub_refuses_is_named(status: int, message: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    hub.file_statuses[CONFIG] = status
    assert message in error_message(hub.url, home, "pull", NAME)


def test_branch_without_a_commit_is_named(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository")).refs["main"] = "f" * 40
    assert "'o/tiny' has no revision 'main' on the hub" in error_message(hub.url, home, "pull", NAME)


def test_cache_that_links_to_itself_is_named(hub: Hub, home: Path, tmp_path: Path) -> None:
    (loop := tmp_path / "loop").symlink_to(loop)
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    assert f"{loop} can" in error_message(hub.url, home, "pull", NAME, HF_HUB_CACHE=str(loop))


# -- several processes -------------------------------------------------------------------------------------------------


def test_older_pull_does_not_overwrite_a_newer_ref(hub: Hub, home: Path, tmp_path: Path) -> None:
    old, released = valid_checkpoint(tmp_path / "a", vocab_size=50), threading.Event()
    hub.add(NAME, old)
    body = (old / WEIGHTS).read_bytes()
    hub.body_changes[WEIGHTS] = lambda sent: sent if sent != body or released.wait(9) else b""
    command, environment = pellucid_command(hub.url, home, "pull", NAME)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as older:
        while not any(line.endswith(WEIGHTS) for line in hub.requests):
            time.sleep(0.01)
        hub.add(NAME, old, valid_checkpoint(tmp_path / "b", vocab_size=60))
        newer = Path(run_pellucid(hub.url, home, "pull", NAME).stdout.strip())
        released.set()
        message = older.communicate()[1]
    assert "another process has asked the hub more recently for main of o/tiny: it is not set to " + "1" * 40 in message
    assert older.returncode == 0 and vocab_size(newer) == 60
    assert find_snapshot(hub, home, HF_HUB_OFFLINE="1") == newer


def test_latest_request_determines_a_ref(tmp_path: Path) -> None:
    repository, now = tmp_path / "models--o--tiny", time.time_ns()
    old, new = (repository / "snapshots" / (digit * 40) for digit in "12")
    ref = repository / "refs" / "main"
    update_ref("main", old, now - 20)  # the older request finishes first
    update_ref("main", new, now - 10)
    assert ref.read_text() == new.name
    update_ref("main", old, now - 20)
    assert ref.read_text() == new.name
    os.utime(ref, ns=(now + 10**12, now + 10**12))  # by a wrong clock
    update_ref("main", old, now)
    assert ref.read_text() == old.name


@pytest.mark.parametrize("downloader", ["pull", "hf download"])
def test_waiting_for_another_download_is_reported(downloader: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    """Another pull locks the commit, the hub's own client each file; the process that holds a lock may be suspended."""
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    program = "from pellucid.checkpoints import downloaded; downloaded._SILENT_WAIT = 0.5; " + LOCATE.format(NAME, "")
    command, environment = pellucid_command(hub.url, home, "-c", program)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    locks = home / "hub" / ".locks" / "models--o--tiny"
    lock = locks / f"commit-{'1' * 40}.lock"
    if downloader == "hf download":
        find_snapshot(hub, home)
        stored = (home / "hub" / "models--o--tiny" / "snapshots" / ("1" * 40) / WEIGHTS).readlink().name
        shutil.rmtree(home / "hub")
        locks.mkdir(parents=True)
        lock = locks / f"{stored}.lock"
        hub.requests.clear()
    with WeakFileLock(lock):
        process = subprocess.Popen(command, env=environment, **pipes)
        message = process.stderr.readline()
        assert "another process is fetching o/tiny: waiting until it is done; if it has stopped, end it" in message
        assert str(lock) in message
        assert hub.fetched() == set()
    assert_same_files(Path(process.communicate()[0].strip()), tmp_path / "repository")


def test_files_left_by_a_killed_pull_are_removed(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    find_snapshot(hub, home)
    blobs = home / "hub" / "models--o--tiny" / "blobs"
    leftover, locked, recent = (blobs / f"{digit * 40}.12345678.incomplete" for digit in "abc")
    for path in (leftover, locked, recent):
        path.write_bytes(b"half")
        os.utime(path, (1, 1) if path != recent else None)
    with WeakFileLock(home / "hub" / ".locks" / "models--o--tiny" / f"{'b' * 40}.lock"):
        assert run_pellucid(hub.url, home, "pull", NAME).returncode == 0
    assert not leftover.exists() and locked.exists() and recent.exists()
