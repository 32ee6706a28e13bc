"""The server of one page: its responses, and every request that it refuses."""

import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from subprocess import PIPE

import pytest

import pellucid
from pellucid.serve import PageServer, page, serve_page
from pellucid.serve.page import running_server
from tests.sigint import ANOTHER, MAIN

BLOCKS = {"layers.0.attention.query": bytes(range(256)), "other/layers.0.attention.query": b"other"}
PAGE = "<!doctype html><p>é</p>"


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with running_server(PAGE, BLOCKS) as server:
        yield server


def request(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Sends one request; `headers` override those of a browser (underscores stand for hyphens)."""
    sent = {"Host": f"127.0.0.1:{server.server_port}"} | {name.replace("_", "-"): v for name, v in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_page_and_blocks_are_served(server: PageServer) -> None:
    status, headers, body = request(server, f"/{server.token}/")
    assert (status, headers["Content-Type"], body.decode()) == (200, "text/html; charset=utf-8", PAGE)
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    for name, block in BLOCKS.items():
        coded = name.replace("/", "%2F")
        status, headers, body = request(server, f"/{server.token}/block/{coded}")
        assert (status, headers["Content-Type"], body) == (200, "application/octet-stream", block)


def test_head_request_has_no_body(server: PageServer) -> None:
    status, headers, body = request(server, f"/{server.token}/", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(len(PAGE.encode())), b"")


def test_localhost_is_accepted_as_host(server: PageServer) -> None:
    host = f"localhost:{server.server_port}"
    assert request(server, f"/{server.token}/", Host=host, Origin=f"http://{host}")[0] == 200


def test_host_without_a_port_is_accepted_at_the_default_http_port(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/{server.token}/"
    port = server.server_port
    assert request(server, path, Host="127.0.0.1")[0] == 403
    monkeypatch.setattr(page, "HTTP_PORT", port)
    for host in ("127.0.0.1", "localhost", f"localhost:{port}"):
        assert request(server, path, Host=host, Origin=f"http://{host}")[0] == 200
    assert request(server, path, Host="evil.example")[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Host": None},
        {"Host": "127.0.0.1.evil.example:{port}"},
        {"Host": "0.0.0.0:{port}"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["", "block/layers.0.attention.query"])
def test_other_hosts_and_origins_are_refused(server: PageServer, headers: dict[str, str], path: str) -> None:
    headers = {name: value and value.format(port=server.server_port) for name, value in headers.items()}
    status, _, body = request(server, f"/{server.token}/{path}", **headers)
    assert status == 403 and body.startswith(b"This server answers only to its own") and body.endswith(b".")


@pytest.mark.parametrize("path", ["/", "/{wrong}/", "/{token}x/", "/{short}/", "/%00/", "/é/", "/{wrong}/block/a"])
def test_other_tokens_are_refused(server: PageServer, path: str) -> None:
    path = path.format(token=server.token, short=server.token[:-1], wrong="A" * len(server.token))
    status, _, body = raw_request(server, path)
    assert status == 403 and b"token" in body and server.token.encode() not in body


def raw_request(
    server: PageServer, path: str, method: str = "GET", version: str = "HTTP/1.1"
) -> tuple[int, str, bytes]:
    """Sends a request as raw bytes, which no well-behaved client would."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as connection:
        host = f"Host: 127.0.0.1:{server.server_port}\r\n"
        connection.sendall(f"{method} {path} {version}\r\n{host}\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode("latin-1"), body


@pytest.mark.parametrize(
    "path", ["", "../", "block/", "block/no", "block/../", "block/%2e%2e%2fetc%2fpasswd", "etc/passwd", "manifest", "/"]
)
def test_other_paths_are_not_found(server: PageServer, path: str) -> None:
    status, _, body = raw_request(server, f"/{server.token}/{path}" if path else f"/{server.token}")
    assert (status, body) == (404, b"There is nothing at this address of the page's server.")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "X"])
def test_other_methods_are_refused(server: PageServer, method: str) -> None:
    status, head, body = raw_request(server, f"/{server.token}/", method)
    assert status == 405 and "Allow: GET, HEAD" in head and b"only answers GET and HEAD" in body


@pytest.mark.parametrize("path", ["x y z", "/" + "a" * 70_000])
def test_malformed_request_is_refused_with_a_plain_message(server: PageServer, path: str) -> None:
    status, _, body = raw_request(server, path)
    assert status in (400, 414) and body.startswith(b"This request cannot be read") and b"<" not in body


def test_server_listens_on_the_loopback_address_only(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_two_servers_have_different_tokens() -> None:
    with running_server(PAGE, {}) as first, running_server(PAGE, {}) as second:
        assert first.token != second.token and len(first.token) >= 32
        assert request(first, f"/{second.token}/")[0] == 403


def test_block_that_cannot_be_computed_gives_a_server_error() -> None:
    class Broken(Mapping[str, bytes]):
        def __getitem__(self, name: str) -> bytes:
            raise pellucid.InputError("the numbers are gone")

        def __contains__(self, name: object) -> bool:
            return True

        def __iter__(self) -> Iterator[str]:
            return iter(())

        def __len__(self) -> int:
            return 0

    with running_server(PAGE, Broken()) as server:
        status, _, body = request(server, f"/{server.token}/block/x")
    assert (status, body) == (500, b"The block x is not there: the numbers are gone.")


def test_silent_client_does_not_block_other_requests() -> None:
    with running_server(PAGE, BLOCKS) as server, socket.create_connection(("127.0.0.1", server.server_port)) as silent:
        assert request(server, f"/{server.token}/")[0] == 200
        silent.close()


def unfinished_request(server: PageServer) -> socket.socket:
    """A connection with an unfinished request."""
    connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
    return connection


@pytest.mark.timeout(20)
def test_slow_request_is_closed_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TIMEOUT", 0.3)
    monkeypatch.setattr(page._Handler, "timeout", 60)
    with running_server(PAGE, BLOCKS) as server, unfinished_request(server) as connection:
        connection.settimeout(0.1)
        answer = None
        for _ in range(100):  # each byte comes before the timeout of a single read
            connection.sendall(b"a")
            try:
                answer = connection.recv(1000)
            except TimeoutError:
                continue
            break
        assert answer is not None and b" 200 " not in answer


@pytest.mark.timeout(20)
def test_closing_the_server_does_not_wait_for_unfinished_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TIMEOUT", 60)
    monkeypatch.setattr(page._Handler, "timeout", 60)
    with running_server(PAGE, BLOCKS) as server:
        connection = unfinished_request(server)
        assert request(server, f"/{server.token}/")[0] == 200  # by now the unfinished request is being read
    connection.close()


def test_connections_above_the_maximum_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_CONNECTIONS", 2)
    with (
        running_server(PAGE, BLOCKS) as server,
        unfinished_request(server),
        unfinished_request(server),
        pytest.raises(ConnectionError),
    ):
        request(server, f"/{server.token}/")  # RemoteDisconnected is a ConnectionError


def test_error_closes_the_server_and_ends_its_threads() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), running_server(PAGE, BLOCKS) as server:
        raise ZeroDivisionError
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        request(server, "/")


@pytest.mark.parametrize("preamble", [MAIN, ANOTHER], ids=["main", "another"])
def test_ctrl_c_ends_the_server(preamble: str) -> None:
    code = preamble + (
        "import threading\n"
        "from pellucid.serve import serve_page\n"
        "serve_page('<p>', {}, ready=lambda address: print(address, flush=True))\n"
        "print([thread for thread in threading.enumerate() if not thread.daemon] == [threading.main_thread()])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n", address)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout, stderr) == (0, "True\n", "")


def test_port_in_use_is_refused(server: PageServer) -> None:
    with pytest.raises(pellucid.InputError, match=f"port {server.server_port} cannot be used"):
        serve_page(PAGE, {}, server.server_port, ready=print)
    with pytest.raises(pellucid.InputError, match="ports go from 1 to 65535"):
        serve_page(PAGE, {}, 70_000, ready=print)
