"""Serves one page and its blocks to a browser on this machine, so that a long text is loaded layer by layer.

The server listens on 127.0.0.1 only. That keeps out other machines, but not other pages in the same browser, so each
request must also name this server as its Host (unlike one to a domain that an attacker points here), come from this
page or from no page, and have a random token in its path.
"""

import hmac
import logging
import secrets
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from pellucid.errors import Argument, InputError, PellucidError

LOOPBACK, HTTP_PORT = "127.0.0.1", 80
TIMEOUT = 10.0
"""Seconds for a request to arrive and for a response to be sent; then its connection is closed."""
MAX_CONNECTIONS = 64
"""The most open connections; further ones are closed at once."""

_LOG = logging.getLogger("pellucid.serve")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def check_port(port: int) -> None:
    """Raises InputError for a port that is out of range or cannot be bound now."""
    with port_errors(port), socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        line.bind((LOOPBACK, port))


@contextmanager
def port_errors(port: int) -> Iterator[None]:
    """Raises InputError for a port out of range, and turns an OSError within the block into one that names the port."""
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} is out of range: ports go from 1 to 65535, and 0 takes any that is free")
    try:
        yield
    except OSError as error:
        free = Argument("port", 0)
        raise InputError(
            f"port {port} cannot be used: {error.strerror or error}; ", free, " takes a free one"
        ) from error


class PageServer(ThreadingHTTPServer):
    """Serves the page at `/TOKEN/`, the bytes of a block at `/TOKEN/block/NAME`, and nothing else."""

    daemon_threads = False  # closing waits for responses in progress
    request_queue_size = 32

    def __init__(self, page: str, blocks: Mapping[str, bytes], port: int = 0) -> None:
        """page: the HTML.  blocks: read one at a time, from several threads.  port: 0 for any that is free."""
        self._deadlines: dict[socket.socket, float] = {}
        with port_errors(port):
            super().__init__((LOOPBACK, port), _Handler)
        self.page = page.encode("utf-8")
        self.blocks = blocks
        self.token = secrets.token_urlsafe(24)

    @property
    def address(self) -> str:
        """The address to open in a browser, with the token that gives access."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def hosts(self) -> tuple[str, ...]:
        """The valid values of a request's Host; browsers omit the default port."""
        names = (LOOPBACK, "localhost")
        return (*(f"{name}:{self.server_port}" for name in names), *(names if self.server_port == HTTP_PORT else ()))

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether fewer than `MAX_CONNECTIONS` are open."""
        return len(self._deadlines) < MAX_CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        """Sets the deadline of a new connection."""
        self._deadlines[request] = time.monotonic() + TIMEOUT
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Removes the deadline of a closed connection."""
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Stops reading from connections past their deadline; called several times a second."""
        now = time.monotonic()
        self._stop_reading([line for line, end in list(self._deadlines.items()) if end < now])

    def server_close(self) -> None:
        """Waits for responses in progress, but not for requests that are still arriving."""
        self._stop_reading(list(self._deadlines))
        super().server_close()

    @staticmethod
    def _stop_reading(lines: list[socket.socket]) -> None:
        for line in lines:
            with suppress(OSError):  # it was just closed
                line.shutdown(socket.SHUT_RD)

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs an error of a request at debug level; a client that disconnects is no fault."""
        _LOG.debug("a request of %s was not answered", client_address, exc_info=True)


def serve_page(
    page: str,
    blocks: Mapping[str, bytes],
    port: int = 0,
    *,
    ready: Callable[[str], None],
    open_browser: bool = False,
) -> None:
    """Serves until Ctrl-C (KeyboardInterrupt), then closes everything that it opened.

    ready: called with the address once the server listens.
    """
    with running_server(page, blocks, port) as server:
        try:
            ready(server.address)
            if open_browser:
                webbrowser.open(server.address)
            while True:  # in short sleeps: a Ctrl-C delivered to another thread does not end one
                time.sleep(1)
        except KeyboardInterrupt:
            _LOG.debug("interrupted")


@contextmanager
def running_server(page: str, blocks: Mapping[str, bytes], port: int = 0) -> Iterator[PageServer]:
    """A server that runs within the block; afterwards its port is free and its threads have ended."""
    server = PageServer(page, blocks, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="pellucid-page")
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Handles one request: first checks whether it is allowed, then responds."""

    server: PageServer  # pyrefly: ignore[bad-override]
    timeout = TIMEOUT
    server_version, sys_version = "pellucid", ""

    def do_GET(self) -> None:
        refused = self._refusal()
        if refused:
            return self._respond(HTTPStatus.FORBIDDEN, "text/plain", refused)
        path = unquote(self.path.split("?")[0].split("#")[0])
        _, _, resource = path[1:].partition("/")
        if resource == "" and path.endswith("/"):
            return self._respond(HTTPStatus.OK, "text/html", self.server.page)
        name = resource.removeprefix("block/")
        if resource != name and name in self.server.blocks:
            return self._send_block(name)
        return self._respond(
            HTTPStatus.NOT_FOUND, "text/plain", "There is nothing at this address of the page's server."
        )

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send_block(self, name: str) -> None:
        try:
            block = self.server.blocks[name]
        except PellucidError as error:
            return self._respond(
                HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"The block {name} is not there: {error}."
            )
        return self._respond(HTTPStatus.OK, "application/octet-stream", block)

    def _refusal(self) -> str:
        """Why this request is refused; "" where it is allowed."""
        hosts = self.server.hosts()
        if self.headers.get_all("Host") not in [[host] for host in hosts]:
            return "This server answers only to its own address on this machine."
        own = [f"http://{host}" for host in hosts]
        foreign = any(origin not in own for origin in self.headers.get_all("Origin", []))
        if foreign or self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "This server answers only to its own page."
        token = self.path[1:].partition("/")[0].partition("?")[0]
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return "This address does not hold the token of the page: open the one that was printed."
        return ""

    def _respond(self, status: HTTPStatus, kind: str, body: str | bytes) -> None:
        data = body.encode("utf-8") if isinstance(body, str) else body
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind if kind.startswith("application") else f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors of `http.server` itself, as plain text; its 501 for other methods becomes 405."""
        self.close_connection = True
        if self.request_version == "HTTP/0.9":
            self.request_version = "HTTP/1.0"
        if code == HTTPStatus.NOT_IMPLEMENTED:
            return self._respond(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "This server only answers GET and HEAD.")
        return self._respond(HTTPStatus(code), "text/plain", f"This request cannot be read: {HTTPStatus(code).phrase}.")

    def log_message(self, format: str, *args: object) -> None:  # as the base class names it
        """Logs requests at debug level, without the token."""
        _LOG.debug("%s", (format % args).replace(self.server.token, "TOKEN"))
