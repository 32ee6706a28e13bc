"""A hostile hub, or no hub at all: no answer leaves the cache, fills memory or disk, or takes forever."""

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.checkpoints import hub_answers
from pellucid.checkpoints.hub_answers import AnswerGuard, StrangeAnswerError
from pellucid.checkpoints.location import hub_client
from tests.checkpoints.builders import WEIGHTS, valid_checkpoint
from tests.checkpoints.hub import LOCATE, NAME, Hub, error_message, find_snapshot, run_pellucid, running_hub

pytestmark = pytest.mark.timeout(120)

OUTSIDE = "../../../../elsewhere/x.pth"
COMMIT = "1" * 40


@pytest.fixture(autouse=True)
def _tiny_repository(hub: Hub, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))


def assert_nothing_left(home: Path) -> None:
    """Nothing was written outside the cache, and no partial file is left in it."""
    assert not list(home.parent.rglob("*x.pth*")) and not list(home.rglob("*.incomplete"))
    assert {path.name for path in home.parent.iterdir()} <= {"home", "repository"}


# -- what becomes a path -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"ETag": f'"{OUTSIDE}"'}, f"the hub gives '{OUTSIDE}' as a digest, which it is not; use another hub"),
        ({"ETag": f'W/"{OUTSIDE}"'}, f"the hub gives '{OUTSIDE}' as a digest"),
        ({"ETag": '"HERE/x.pth"'}, "the hub gives '/"),
        ({"ETag": '""'}, "the hub gives '' as a digest"),
        ({"X-Linked-Etag": f'"{OUTSIDE}"'}, f"the hub gives '{OUTSIDE}' as a digest"),
        ({"X-Xet-Hash": OUTSIDE, "X-Xet-Refresh-Route": "/x"}, f"the hub gives '{OUTSIDE}' as a digest"),
        ({"X-Repo-Commit": "../../x.pth"}, f"answers for the commit '../../x.pth', where {COMMIT} was requested"),
        ({"X-Repo-Commit": "2" * 40}, f"the hub answers for the commit '{'2' * 39}"),
    ],
    ids=["etag", "weak etag", "a path from the root", "empty", "linked etag", "xet", "commit", "another commit"],
)
def test_invalid_digest_or_commit_header_is_refused(
    headers: dict[str, str], message: str, hub: Hub, home: Path
) -> None:
    hub.extra_headers[WEIGHTS] = {name: value.replace("HERE", str(home.parent)) for name, value in headers.items()}
    assert message in error_message(hub.url, home, "pull", NAME)
    assert_nothing_left(home)
    assert not list(home.rglob(WEIGHTS))
    hub.extra_headers.clear()
    find_snapshot(hub, home)


def with_digest(answer: Any, digest: str) -> Any:
    """What the hub sends, with another digest of the weights."""
    rows = answer["siblings"] if isinstance(answer, dict) else answer
    for row in rows:
        if WEIGHTS in (row.get("rfilename"), row.get("path")):
            row["lfs"]["sha256" if isinstance(answer, dict) else "oid"] = digest
    return answer


def test_invalid_listed_digest_is_refused(hub: Hub, home: Path) -> None:
    """The client names blobs by it, and we move aside the ones in its way."""
    (home.parent / "x.pth").write_bytes(b"somebody's")
    digest = "../../../../x.pth"
    for kind in (dict, list):
        hub.change_json = lambda answer, kind=kind: with_digest(answer, digest) if isinstance(answer, kind) else answer
        message = error_message(hub.url, home, "pull", NAME)
        assert f"the hub lists '{digest}' as a digest, which it is not; use another hub" in message
        assert (home.parent / "x.pth").read_bytes() == b"somebody's"
        assert WEIGHTS not in hub.fetched()


@pytest.mark.parametrize("name", [5, None, ["config.json"]])
def test_file_name_that_is_no_text_is_refused(name: object, hub: Hub, home: Path) -> None:
    hub.change_json = lambda answer: answer | {"siblings": [*answer["siblings"], {"rfilename": name}]}
    message = "'o/tiny' was not fetched: the server that answers is not the hub; try again with network"
    assert message in error_message(hub.url, home, "pull", NAME)


@pytest.mark.parametrize("name", ["a" * 5_000 + ".json", "é" * 150, "/".join(1_500 * "ab")])
def test_overlong_file_name_is_shortened_in_the_error(name: str, hub: Hub, home: Path) -> None:
    hub.change_json = lambda answer: answer | {"siblings": [*answer["siblings"], {"rfilename": name}]}
    message = error_message(hub.url, home, "pull", NAME)
    assert (
        f"the hub lists a file of {len(name):,} letters ('{name[:39]}…'), too long a name for a disk; report it to "
        "its owner" in message
    )
    assert len(message) < 200


def test_overlong_model_name_is_shortened_in_the_error() -> None:
    with pytest.raises(pellucid.NotFoundError) as caught:
        pellucid.load("a" * 5_000)
    assert "a" * 79 + "…" in str(caught.value) and len(str(caught.value)) < 160


# -- endless answers ---------------------------------------------------------------------------------------------------


def limited_run(hub: Hub, home: Path) -> str:
    """The stderr of a process that fetches, with files limited to two million bytes and memory to 2 GiB."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))\n"
    limit += "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
    result = run_pellucid(hub.url, home, "-c", limit + LOCATE.format(NAME, ""))
    assert result.returncode == 1
    return result.stderr


def test_endless_body_stops_at_the_listed_size(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.endless_path = WEIGHTS
    size = (tmp_path / "repository" / WEIGHTS).stat().st_size
    assert f"{WEIGHTS} came with more bytes, where the hub lists {size:,}, and was removed" in limited_run(hub, home)
    assert hub.endless_bytes_sent < 1 << 25
    assert_nothing_left(home)


def test_body_longer_than_listed_is_refused(hub: Hub, home: Path) -> None:
    hub.body_changes[WEIGHTS] = lambda body: body + bytes(1_000_000)
    assert f"{WEIGHTS} came with more bytes" in error_message(hub.url, home, "pull", NAME)
    assert_nothing_left(home)


def test_redirected_file_has_the_same_size_limit(hub: Hub, home: Path, tmp_path: Path) -> None:
    """The real hub redirects large files to an address without their name; smaller files have smaller limits."""
    file, body = "config.json", (tmp_path / "repository" / "config.json").read_bytes()
    hub.file_statuses[file] = 302
    with running_hub() as other:
        other.portal = body
        at = {"Location": f"{other.url}/kept/1", "X-Repo-Commit": COMMIT}
        hub.extra_headers[file] = at | {"X-Linked-Etag": '"c"', "X-Linked-Size": str(len(body))}
        find_snapshot(hub, home)
        assert "GET /kept/1" in other.requests
        shutil.rmtree(home)
        other.endless_path = "/kept/1"
        assert f"{file} came with more bytes, where the hub lists {len(body):,}, and was removed" in limited_run(
            hub, home
        )
    assert_nothing_left(home)


def test_compressed_body_is_refused(hub: Hub, home: Path) -> None:
    bomb = gzip.compress(bytes(1 << 26))
    hub.body_changes[WEIGHTS] = lambda body: bomb
    hub.extra_headers[WEIGHTS] = {"Content-Encoding": "gzip"}
    assert "the hub compresses its answer (gzip), which was not requested" in limited_run(hub, home)
    assert_nothing_left(home)


@pytest.mark.parametrize("path", [f"/api/models/{NAME}", f"/tree/{COMMIT}"])
def test_endless_api_answer_is_refused(path: str, hub: Hub, home: Path) -> None:
    hub.endless_path = path
    assert "the hub's answer does not end" in limited_run(hub, home)
    assert 1 << 26 <= hub.endless_bytes_sent < 1 << 28


def test_circular_pagination_ends(hub: Hub, home: Path) -> None:
    path = f"/api/models/{NAME}/tree/{COMMIT}"
    hub.extra_headers[path] = {"Link": f'<{hub.url}{path}?page=2>; rel="next"'}
    assert "the hub's answer does not end; try again with network" in error_message(hub.url, home, "pull", NAME)
    assert sum(path in line for line in hub.requests) == 3


@pytest.mark.parametrize(
    ("end", "headers"),
    [
        (WEIGHTS, {"Retry-After": "99999"}),
        (f"/tree/{COMMIT}", {"RateLimit": '"api";r=0;t=99999'}),
        (f"/api/models/{NAME}", {"Retry-After": "99999"}),
    ],
    ids=["a file", "the list", "the repository"],
)
def test_long_retry_delay_is_refused(end: str, headers: dict[str, str], hub: Hub, home: Path) -> None:
    hub.extra_headers[end] = headers
    hub.file_statuses[WEIGHTS] = 429
    hub.file_list_error = 429 if "/tree/" in end else 0
    hub.error_status = 429 if end.endswith(NAME) else 0
    message = error_message(hub.url, home, "pull", NAME)
    assert "'o/tiny' was not fetched: the hub asks to wait 99,999 s; try again later" in message


# -- whose requests are checked ----------------------------------------------------------------------------------------


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session of the hub's client, with the network switched on."""
    monkeypatch.setattr(hub_client().constants, "HF_HUB_OFFLINE", False)
    hub_client().close_session()
    yield hub_client().get_session()
    hub_client().close_session()


def test_api_answers_are_limited_in_number_and_time(session: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, address = AnswerGuard(), f"{hub.url}/api/models/{NAME}"
    monkeypatch.setattr(hub_answers, "_MAX_API_ANSWERS", 2)
    for _ in range(2):
        answer = guard.run(lambda: session.get(address, headers=guard.headers))
        assert answer.json()["sha"] == COMMIT and answer.request.extensions["timeout"]["read"] == hub_answers.TIMEOUT
    with pytest.raises(StrangeAnswerError, match="does not end"):
        guard.run(lambda: session.get(address, headers=guard.headers))
    monkeypatch.setattr(hub_answers, "_MAX_API_ANSWERS", 10_000)
    monkeypatch.setattr(hub_answers, "_MAX_API_SECONDS", 0.2)  # for all answers together
    with pytest.raises(StrangeAnswerError, match="does not end"):
        for _ in range(1_000):
            guard.run(lambda: session.get(address, headers=guard.headers))
    later_guard = AnswerGuard()
    hub.endless_path = NAME
    monkeypatch.setattr(hub_answers, "_MAX_API_BYTES", 1 << 40)
    monkeypatch.setattr(hub_answers, "_MAX_API_SECONDS", 0.1)
    with pytest.raises(StrangeAnswerError, match="does not end"):
        later_guard.run(lambda: session.get(address, headers=later_guard.headers))


def test_guard_checks_only_its_own_requests(session: Any, hub: Hub) -> None:
    hub.extra_headers[WEIGHTS] = {"X-Repo-Commit": "2" * 40}
    address, guard = f"{hub.url}/{NAME}/resolve/{COMMIT}/{WEIGHTS}", AnswerGuard(COMMIT, {WEIGHTS: None})
    other_guard = AnswerGuard("2" * 40, {WEIGHTS: None})
    before = dict(session.event_hooks)

    def both() -> None:
        assert session.head(address).status_code == 200
        assert other_guard.run(lambda: session.head(address, headers=other_guard.headers)).status_code == 200
        session.head(address, headers=guard.headers)

    with pytest.raises(StrangeAnswerError, match="the hub answers for the commit '2222"):
        guard.run(both)
    assert session.event_hooks == before


def test_requests_without_the_guard_are_sent_again(session: Any, hub: Hub) -> None:
    """A new session lacks the guard, so it refuses our requests, and all of them are sent again."""
    guard, tries = AnswerGuard(COMMIT), []
    address = f"{hub.url}/{NAME}/resolve/{COMMIT}/{WEIGHTS}"

    def request(failures: int) -> Any:
        tries.append(1)
        if len(tries) <= failures:
            hub_client().close_session()
        return hub_client().get_session().head(address, headers=guard.headers)

    assert guard.run(lambda: request(2)).status_code == 200 and len(tries) == 3
    hub.requests.clear()
    tries.clear()
    with pytest.raises(StrangeAnswerError, match="the hub could not be reached"):
        guard.run(lambda: request(9))
    assert hub.requests == [] and len(tries) == 3
