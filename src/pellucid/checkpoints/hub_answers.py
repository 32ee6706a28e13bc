"""Checks the hub's answers before its client uses them, so that none becomes an unsafe path, fills memory or disk, or
never ends."""

import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from pellucid.checkpoints.location import hub_client
from pellucid.errors import shorten

TIMEOUT = 10
"""Seconds that the hub may take for its first answer, and for each further part of an API answer."""

_COMMIT = re.compile(r"[0-9A-Za-z][\w.-]{0,99}")
_DIGEST = re.compile(r"[0-9A-Za-z-]{1,128}")
"""A digest, or what a hub gives for one: the client names files after it."""

_MARK = "X-Pellucid"
"""The header of requests made within `AnswerGuard.run`. It ends with a space, which no HTTP client may send, until the
guard strips that: where the hub's client has opened a new session, and so lost the guard's hooks, nothing is sent."""

_MAX_API_BYTES, _MAX_API_SECONDS = 64 << 20, 120.0
"""Limits of bytes and seconds for all API answers about one repository."""

_MAX_API_ANSWERS = 1_000
"""Maximum number of those answers; the hub lists a thousand files in each."""

_MAX_ERROR_BYTES = 1 << 20
"""Maximum bytes of an error or redirect answer."""

_MAX_WAIT = 300
"""Maximum seconds that a hub may ask to wait, which is the window of the real hub's rate limit."""

_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 2_048
"""Maximum bytes of a file name that a disk can hold, and of a path."""

_HOOKS = threading.Lock()


class StrangeAnswerError(Exception):
    """An answer of the hub is rejected; the message is the middle of a sentence.  advice: what to do, where known."""

    def __init__(self, reason: str, *advice: str) -> None:
        super().__init__(reason)
        self.advice = advice


def check_model_info(model_info: Any) -> None:
    """Checks a repository's description for impossible values and for names that cannot be paths here.

    model_info: the hub client's record. Raises KeyError or TypeError for what no hub answers, else StrangeAnswerError.
    """
    if not _COMMIT.fullmatch(model_info.sha or ""):
        raise KeyError("sha")
    for file in model_info.siblings or []:
        name, size = file.rfilename, file.size
        if not isinstance(name, str) or not isinstance(size, int | None):
            raise TypeError("siblings")
        if len(name.encode(errors="replace")) > _MAX_PATH_BYTES or any(
            len(part.encode(errors="replace")) > _MAX_NAME_BYTES for part in name.split("/")
        ):
            raise StrangeAnswerError(
                f"the hub lists a file of {len(name):,} letters ({shorten(name, 40)!r}), too long a name for a disk",
                "report it to its owner",
            )
        _check_digests("lists", file.blob_id, *([] if file.lfs is None else [file.lfs.sha256]))


def _check_digests(verb: str, *digests: str | None) -> None:
    for digest in digests:
        if digest is not None and not _DIGEST.fullmatch(digest):
            raise StrangeAnswerError(
                f"the hub {verb} {shorten(digest, 40)!r} as a digest, which it is not", "use another hub"
            )


class AnswerGuard:
    """Checks the answers to requests with `headers`, and raises StrangeAnswerError before they are used.

    commit: the only commit that answers may be of; None while that is being asked for.
    sizes: the listed bytes of each file that may be fetched; None where the hub does not give them.
    """

    def __init__(self, commit: str | None = None, sizes: Mapping[str, int | None] | None = None) -> None:
        mark = uuid.uuid4().hex[:12]
        self.headers = {_MARK: f"{mark} "}
        self._api_mark, self._file_mark = f"{mark}-list", f"{mark}-file"
        self._commit, self._sizes = commit, dict(sizes or {})
        self._files: dict[str, str] = {}  # by the address that the hub redirected to for each
        self._api_bytes, self._api_seconds, self._api_answers = 0, 0.0, 0
        self._listing_urls: set[str] = set()  # the addresses of file listings so far

    def run(self, ask: Callable[[], Any]) -> Any:
        """The result of `ask`, which calls the hub's client with `headers`. On a broken connection the client opens a
        new session without the guard's hooks; then everything is asked again."""
        for _ in range(3):
            self._listing_urls.clear()
            try:
                with self._guarded():
                    return ask()
            except Exception as error:
                if type(error).__name__ != "LocalProtocolError":  # of either HTTP library that the hub's client may use
                    raise
        raise StrangeAnswerError("the hub could not be reached (the connection broke)")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        session = hub_client().get_session()
        own_hooks = {"request": self._on_request, "response": self._on_response}
        with _HOOKS:  # new lists, since another thread may be iterating over the old ones
            session.event_hooks = {kind: [*session.event_hooks[kind], hook] for kind, hook in own_hooks.items()}
        try:
            yield
        finally:
            with _HOOKS:
                hooks = session.event_hooks
                session.event_hooks = {
                    kind: [one for one in hooks[kind] if one != own_hooks[kind]] for kind in own_hooks
                }

    def _on_request(self, request: Any) -> None:
        """Strips the mark's space from a request of ours, sets its timeouts and refuses compression, with which sizes
        would be unknown."""
        if request.headers.get(_MARK) != self.headers[_MARK]:
            return
        is_api_request = request.url.path.startswith(
            f"{urlsplit(hub_client().constants.ENDPOINT).path.rstrip('/')}/api/"
        )
        request.headers[_MARK] = self._api_mark if is_api_request else self._file_mark
        request.headers["Accept-Encoding"] = "identity"
        if is_api_request:
            limits = request.extensions.get("timeout") or {}
            limits = {kind: limits.get(kind) or TIMEOUT for kind in ("connect", "read", "write", "pool")}
            request.extensions = {**request.extensions, "timeout": limits, "asked": time.monotonic()}

    def _on_response(self, response: Any) -> None:
        request, headers, mark = response.request, response.headers, response.request.headers.get(_MARK)
        if mark not in (self._api_mark, self._file_mark):
            return
        _check_wait(headers)
        if request.method == "HEAD":
            etag = headers.get("X-Linked-Etag") or headers.get("ETag")
            xet = headers.get("X-Xet-Hash")
            _check_digests("gives", None if etag is None else etag.lstrip("W/").strip('"'), xet)
            self._check_commit(headers.get("X-Repo-Commit"))
        elif (encoding := headers.get("Content-Encoding", "identity").lower()) != "identity":
            raise StrangeAnswerError(
                f"the hub compresses its answer ({shorten(encoding, 20)}), which was not requested"
            )
        if mark == self._file_mark:
            self._limit_file(response)
        else:
            self._limit_api_answer(response)

    def _check_commit(self, commit: Any) -> None:
        if self._commit is not None and commit not in (None, self._commit):
            why = f"the hub answers for the commit {shorten(str(commit), 40)!r}, where {self._commit} was requested"
            raise StrangeAnswerError(why, "use another hub")

    def _limit_file(self, response: Any) -> None:
        """Limits the answer for a file to the size that the hub lists."""
        request, headers = response.request, response.headers
        file = self._files.get(str(request.url)) or request.url.path.partition(f"/resolve/{self._commit}/")[2]
        if location := headers.get("Location"):
            self._files[str(request.url.join(location))] = file
        if request.method == "HEAD":
            return
        if response.status_code >= 300:
            _limit_body(
                response,
                _MAX_ERROR_BYTES,
                StrangeAnswerError(f"the hub sends an error of more than {_MAX_ERROR_BYTES:,} bytes"),
            )
            return
        known = [size for size in self._sizes.values() if size is not None]
        size = self._sizes[file] if file in self._sizes else max(known, default=None)
        length = headers.get("Content-Length", "")
        if size is None:
            if not length.isdecimal():
                raise StrangeAnswerError(f"the hub does not say how large {shorten(file)} is")
            return
        resumed_range = (
            re.match(r"bytes=(\d{1,20})-", request.headers.get("Range", "")) if response.status_code == 206 else None
        )
        max_bytes = size - int(resumed_range[1]) if resumed_range else size
        name = shorten(file) if file in self._sizes else "a file"
        error = StrangeAnswerError(f"{name} came with more bytes, where the hub lists {size:,}, and was removed")
        if length.isdecimal() and len(length) < 20 and int(length) > max_bytes:
            raise error
        _limit_body(response, max_bytes, error)

    def _limit_api_answer(self, response: Any) -> None:
        """Limits the bytes, number and duration of API answers, and checks the files that they list."""
        self._api_answers += 1
        requested_at = response.request.extensions.get("asked", time.monotonic())
        error = StrangeAnswerError("the hub's answer does not end")
        seconds_left = _MAX_API_SECONDS - self._api_seconds - (time.monotonic() - requested_at)
        if self._api_answers > _MAX_API_ANSWERS or seconds_left < 0:
            raise error
        is_success = response.status_code == 200
        _limit_body(
            response,
            _MAX_API_BYTES - self._api_bytes if is_success else _MAX_ERROR_BYTES,
            error,
            time.monotonic() + seconds_left,
        )
        if not is_success:
            return
        self._api_bytes += len(response.read())
        self._api_seconds += time.monotonic() - requested_at
        content = response.json()
        if isinstance(content, dict):
            self._check_commit(content.get("sha"))
        if not isinstance(content, list):
            return
        if str(response.url) in self._listing_urls:
            raise error
        self._listing_urls.add(str(response.url))
        for row in content:
            _check_digests("lists", row.get("oid"), (row.get("lfs") or {}).get("oid"), row.get("xetHash"))
            if self._sizes.get(row.get("path"), 0) is None and isinstance(row.get("size"), int):
                self._sizes[row["path"]] = row["size"]


def _check_wait(headers: Mapping[str, str]) -> None:
    """Refuses long waits, which the hub's client would obey."""
    waits = [headers.get("Retry-After", "").strip(), *re.findall(r";\s*t\s*=\s*(\d+)", headers.get("RateLimit", ""))]
    for seconds in waits:
        if seconds.isdecimal() and (len(seconds) > 9 or int(seconds) > _MAX_WAIT):
            duration = f"{int(seconds):,} s" if len(seconds) <= 9 else "for ever"
            raise StrangeAnswerError(f"the hub asks to wait {duration}", "try again later")


def _limit_body(response: Any, max_bytes: int, error: StrangeAnswerError, deadline: float = float("inf")) -> None:
    """Limits an answer to `max_bytes` until `deadline`; reading beyond raises `error`."""
    library: Any = sys.modules[type(response).__module__.partition(".")[0]]  # whichever the hub's client uses
    stream = response.stream

    class Bounded(library.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            bytes_left = max_bytes
            for part in stream:
                bytes_left -= len(part)
                if bytes_left < 0 or time.monotonic() > deadline:
                    raise error
                yield part

        def close(self) -> None:
            stream.close()

    response.stream = Bounded()
