"""A small hub on this machine, over HTTP: the part of the real hub's API that fetching a model needs."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.checkpoints.builders import assert_one_sentence

NAME = "o/tiny"

LARGE = (".safetensors", ".bin", ".gguf")
"""Suffixes of the files that the real hub stores outside git."""


@dataclass
class Repository:
    """A model on the hub.

    commits: the folder of each commit, by hash.  refs: branches and tags.
    token: the token that a private repository requires.  gated: its files are listed but refused.
    """

    commits: dict[str, Path]
    refs: dict[str, str]
    token: str | None = None
    gated: bool = False


@dataclass
class Hub:
    """The hub, with a log of its requests, such as `GET /path`."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""
    tokens: tuple[str, ...] = ("hf_right", "hf_other")
    """The tokens of its members; any other token is refused, whatever it is for."""
    error_status: int = 0
    """Status with which every request is answered; 0 for none."""
    half_sent: str = ""
    """File of which only half is sent; the connection then stays open until the client closes it."""
    slow_file: str = ""
    """File that is sent slowly, over a minute."""
    file_list_error: int = 0
    """Status with which requests for the file list of a commit are answered; 0 for none."""
    body_changes: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    """By file, a change to the bytes sent; the list still has the true size and digest."""
    file_statuses: dict[str, int] = field(default_factory=dict)
    """By file, the status with which requests for it are answered."""
    extra_headers: dict[str, dict[str, str]] = field(default_factory=dict)
    """By the end of a path, headers that are added to its answers or replace them."""
    endless_path: str = ""
    """The end of a path that is answered with an endless body."""
    endless_bytes_sent: int = 0
    """Bytes of that body sent so far."""
    change_json: Callable[[Any], Any] | None = None
    """A change to the JSON about a repository (a dict) or about the files of a commit (a list)."""
    portal: bytes = b""
    """A page that answers every request, like a captive portal."""

    def add(self, name: str, *folders: Path, **settings: object) -> Repository:
        """Adds a repository whose commits are `folders`, the last one on `main`; the commits are tagged v0, v1, ..."""
        commits = {f"{i:x}" * 40: folder for i, folder in enumerate(folders, start=1)}
        refs = {f"v{i}": commit for i, commit in enumerate(commits)} | {"main": list(commits)[-1]}
        self.repositories[name] = Repository(commits, refs, **settings)
        return self.repositories[name]

    def fetched(self) -> set[str]:
        """The names of the files that were requested by GET."""
        return {
            line.partition("/resolve/")[2].partition("/")[2] for line in self.requests if line.startswith("GET /o/")
        }


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that serves for the duration of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answers(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.error_status:
            return self._fail(self.hub.error_status, "")
        if self.hub.file_list_error and "/tree/" in path:
            return self._fail(self.hub.file_list_error, "")
        if self.hub.portal:
            return self._send(self.hub.portal)
        if path.startswith("/api/models/"):
            return self._describe(path.removeprefix("/api/models/"))
        if "/resolve/" in path:
            name, _, rest = path[1:].partition("/resolve/")
            return self._file(name, *rest.split("/", 1))
        return self._fail(404, "EntryNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _describe(self, path: str) -> None:
        name, kind, revision = path, "", "main"
        for word in ("/revision/", "/tree/"):
            if word in path:
                kind, (name, _, revision) = word, path.partition(word)
        found = self._open(name, revision)
        if found is None:
            return None
        commit, files = found
        if kind == "/tree/":
            rows = [
                {"type": "file", "path": n, "size": p.stat().st_size, **_listed_digests(p)} for n, p in files.items()
            ]
            return self._send_json(rows)
        siblings = [{"rfilename": n} for n in files]
        if "blobs=" in urlsplit(self.path).query.lower():
            siblings = [{"rfilename": n, "size": p.stat().st_size, **_described_digests(p)} for n, p in files.items()]
        about = {"id": name, "sha": commit, "siblings": siblings, "private": False}
        return self._send_json(about)

    def _send_json(self, answer: object) -> None:
        changed = self.hub.change_json(answer) if self.hub.change_json else answer
        self._send(json.dumps(changed).encode())

    def _file(self, name: str, revision: str, file: str) -> None:
        found = self._open(name, revision)
        if found is None:
            return None
        commit, files = found
        if self.hub.repositories[name].gated:
            return self._fail(403, "GatedRepo")
        if file not in files:
            return self._fail(404, "EntryNotFound")
        if file in self.hub.file_statuses:
            return self._fail(
                self.hub.file_statuses[file], "EntryNotFound" if self.hub.file_statuses[file] == 404 else ""
            )
        body = self.hub.body_changes.get(file, bytes)(files[file].read_bytes())
        if file == self.hub.slow_file and self.command == "GET":
            return self._trickle(body)
        self._send(body, commit, _digest(files[file]), len(body) // 2 if file == self.hub.half_sent else None)
        if file == self.hub.half_sent and self.command == "GET":
            self.rfile.read(1)
        return None

    def _trickle(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        step = len(body) // 100 + 1
        with suppress(OSError):  # the client has gone
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                time.sleep(0.6)

    def _open(self, name: str, revision: str) -> tuple[str, dict[str, Path]] | None:
        """The commit and its files, or None after an error; as on the real hub, names are hidden from strangers."""
        repository = self.hub.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            self._fail(401, "", "Invalid credentials in Authorization header")
            return None
        if repository is None or (repository.token and token != repository.token):
            self._fail(404 if token else 401, "RepoNotFound" if token else "")
            return None
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            self._fail(404, "RevisionNotFound")
            return None
        folder = repository.commits[commit]
        return commit, {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}

    def _send(self, body: bytes, commit: str = "", etag: str = "", max_bytes: int | None = None) -> None:
        path = unquote(urlsplit(self.path).path)
        endless = bool(self.hub.endless_path) and path.endswith(self.hub.endless_path) and self.command == "GET"
        headers = {"Transfer-Encoding": "chunked"} if endless else {"Content-Length": str(len(body))}
        headers |= {"ETag": f'"{etag}"', "X-Repo-Commit": commit} if etag else {}
        self._send_headers(200, headers)
        if endless:
            self._send_endlessly()
        elif self.command == "GET":
            self.wfile.write(body[:max_bytes])

    def _send_headers(self, status: int, headers: dict[str, str]) -> None:
        path = unquote(urlsplit(self.path).path)
        extra = [more for end, more in self.hub.extra_headers.items() if path.endswith(end)]
        self.send_response(status)
        for name, value in (headers | (extra[0] if extra else {})).items():
            self.send_header(name, value)
        self.end_headers()

    def _send_endlessly(self) -> None:
        with suppress(OSError):  # the client has gone
            while self.hub.endless_bytes_sent < 1 << 30:
                self.wfile.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
                self.hub.endless_bytes_sent += 65536
        self.close_connection = True

    def _fail(self, status: int, code: str, message: str = "") -> None:
        headers = {name: value for name, value in (("X-Error-Code", code), ("X-Error-Message", message)) if value}
        self._send_headers(status, headers | {"Content-Length": "0"})

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing to stderr: the requests are in `requests`."""


def _digest(path: Path) -> str:
    """The hub's digest of a file: SHA-256 for the suffixes in LARGE, git's for others."""
    whole = path.read_bytes()
    return hashlib.sha256(whole).hexdigest() if path.suffix in LARGE else _git(whole)


def _git(whole: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(whole) + whole).hexdigest()


def _pointer(path: Path) -> bytes:
    """The Git LFS pointer of a large file."""
    about = f"oid sha256:{_digest(path)}\nsize {path.stat().st_size}\n"
    return b"version https://git-lfs.github.com/spec/v1\n" + about.encode()


def _listed_digests(path: Path) -> dict[str, object]:
    """The digests of a file as the file list of a commit has them."""
    if path.suffix not in LARGE:
        return {"oid": _digest(path)}
    pointer = _pointer(path)
    lfs = {"oid": _digest(path), "size": path.stat().st_size, "pointerSize": len(pointer)}
    return {"oid": _git(pointer), "lfs": lfs}


def _described_digests(path: Path) -> dict[str, object]:
    """The same digests as the description of a repository has them."""
    stored = _listed_digests(path)
    lfs = stored.get("lfs")
    large = {"lfs": {"sha256": lfs["oid"], **{k: lfs[k] for k in ("size", "pointerSize")}}} if lfs else {}
    return {"blobId": stored["oid"], **large}


# -- the client --------------------------------------------------------------------------------------------------------

LOOPBACK_ONLY = """
import os, runpy, sys
def refuse(event, arguments):
    host = arguments[1][0] if event == "socket.connect" else arguments[0] if event == "socket.getaddrinfo" else None
    if host not in (None, "127.0.0.1"):
        print("tried to reach another host:", host, file=sys.stderr)
        os._exit(99)
sys.addaudithook(refuse)
if sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    sys.argv[0] = "pellucid"
    runpy.run_module("pellucid", run_name="__main__")
"""


def run_pellucid(url: str, home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `pellucid` with these arguments, or `-c` and a program, in a process that may only reach this machine."""
    command, settings = pellucid_command(url, home, *arguments, **environment)
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60, check=False)


def pellucid_command(url: str, home: Path, *arguments: str, **environment: str) -> tuple[list[str], dict[str, str]]:
    """The command of such a process, and its environment."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    environ |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_COLOR": "1"}
    return [sys.executable, "-c", LOOPBACK_ONLY, *arguments], environ | environment


LOAD = "import pellucid; print(pellucid.load({0!r}, {1}).loaded.source.folder)"
LOCATE = "from pellucid.checkpoints.source import HubOptions, locate; print(locate({0!r}, HubOptions({1})).folder)"
"""The first half of loading, which needs no PyTorch and is quick."""


def find_snapshot(hub: Hub, home: Path, arguments: str = "", program: str = LOCATE, **environment: str) -> Path:
    """The snapshot that a process finds for the model, without printing anything else."""
    result = run_pellucid(hub.url, home, "-c", program.format(NAME, arguments), **environment)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return Path(result.stdout.strip())


def vocab_size(snapshot: Path) -> int:
    return json.loads((snapshot / "config.json").read_text())["vocab_size"]


def error_message(url: str, home: Path, *arguments: str, **environment: str) -> str:
    """The one-sentence error of a command that fails."""
    result = run_pellucid(url, home, *arguments, **environment)
    assert result.returncode == 3, (result.stdout, result.stderr)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert_one_sentence(result.stderr.strip(), home)
    assert "Traceback" not in result.stderr
    return result.stderr


def closed_port() -> str:
    """An address where no server listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{server.getsockname()[1]}"
