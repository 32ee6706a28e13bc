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
from tests.checkpoints.builders import WEIGHTS, good
from tests.checkpoints.hub import LOCATE, NAME, Hub, ask, fails, found, running

pytestmark = pytest.mark.timeout(120)

OUT = "../../../../elsewhere/x.pth"
COMMIT = "1" * 40


@pytest.fixture(autouse=True)
def tiny(hub: Hub, tmp_path: Path) -> None:
    hub.add(NAME, good(tmp_path / "repository"))


def nothing_lies(home: Path) -> None:
    """Nothing was written outside the cache, and no partial file is left in it."""
    assert not list(home.parent.rglob("*x.pth*")) and not list(home.rglob("*.incomplete"))
    assert {path.name for path in home.parent.iterdir()} <= {"home", "repository"}


# -- what becomes a path -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"ETag": f'"{OUT}"'}, f"the hub gives '{OUT}' as a digest, which it is not; use another hub"),
        ({"ETag": f'W/"{OUT}"'}, f"the hub gives '{OUT}' as a digest"),
        ({"ETag": '"HERE/x.pth"'}, "the hub gives '/"),
        ({"ETag": '""'}, "the hub gives '' as a digest"),
        ({"X-Linked-Etag": f'"{OUT}"'}, f"the hub gives '{OUT}' as a digest"),
        ({"X-Xet-Hash": OUT, "X-Xet-Refresh-Route": "/x"}, f"the hub gives '{OUT}' as a digest"),
        ({"X-Repo-Commit": "../../x.pth"}, f"answers for the commit '../../x.pth', where {COMMIT} was requested"),
        ({"X-Repo-Commit": "2" * 40}, f"the hub answers for the commit '{'2' * 39}"),
    ],
    ids=["etag", "weak etag", "a path from the root", "empty", "linked etag", "xet", "commit", "another commit"],
)
def test_a_header_is_no_path(headers: dict[str, str], told: str, hub: Hub, home: Path) -> None:
    hub.says[WEIGHTS] = {name: value.replace("HERE", str(home.parent)) for name, value in headers.items()}
    assert told in fails(hub.url, home, "pull", NAME)
    nothing_lies(home)
    assert not list(home.rglob(WEIGHTS))
    hub.says.clear()
    found(hub, home)


def with_digest(told: Any, digest: str) -> Any:
    """What the hub sends, with another digest of the weights."""
    rows = told["siblings"] if isinstance(told, dict) else told
    for row in rows:
        if WEIGHTS in (row.get("rfilename"), row.get("path")):
            row["lfs"]["sha256" if isinstance(told, dict) else "oid"] = digest
    return told


def test_a_listed_digest_is_no_path(hub: Hub, home: Path) -> None:
    """The client names blobs by it, and we move aside the ones in its way."""
    (home.parent / "x.pth").write_bytes(b"somebody's")
    digest = "../../../../x.pth"
    for kind in (dict, list):
        hub.tells = lambda told, kind=kind: with_digest(told, digest) if isinstance(told, kind) else told
        said = fails(hub.url, home, "pull", NAME)
        assert f"the hub lists '{digest}' as a digest, which it is not; use another hub" in said
        assert (home.parent / "x.pth").read_bytes() == b"somebody's"
        assert WEIGHTS not in hub.fetched()


@pytest.mark.parametrize("name", [5, None, ["config.json"]])
def test_a_name_that_is_no_text_is_none_of_the_hub(name: object, hub: Hub, home: Path) -> None:
    hub.tells = lambda told: told | {"siblings": [*told["siblings"], {"rfilename": name}]}
    told = "'o/tiny' was not fetched: the server that answers is not the hub; try again with network"
    assert told in fails(hub.url, home, "pull", NAME)


@pytest.mark.parametrize("name", ["a" * 5_000 + ".json", "é" * 150, "/".join(1_500 * "ab")])
def test_a_name_that_no_disk_holds_is_cut_short(name: str, hub: Hub, home: Path) -> None:
    hub.tells = lambda told: told | {"siblings": [*told["siblings"], {"rfilename": name}]}
    said = fails(hub.url, home, "pull", NAME)
    assert (
        f"the hub lists a file of {len(name):,} letters ('{name[:39]}…'), too long a name for a disk; report it to "
        "its owner" in said
    )
    assert len(said) < 200


def test_a_long_name_of_a_model_is_cut_short() -> None:
    with pytest.raises(pellucid.NotFoundError) as caught:
        pellucid.load("a" * 5_000)
    assert "a" * 79 + "…" in str(caught.value) and len(str(caught.value)) < 160


# -- endless answers ---------------------------------------------------------------------------------------------------


def limited(hub: Hub, home: Path) -> str:
    """The stderr of a process that fetches, with files limited to two million bytes and memory to 2 GiB."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))\n"
    limit += "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
    done = ask(hub.url, home, "-c", limit + LOCATE.format(NAME, ""))
    assert done.returncode == 1
    return done.stderr


def test_a_body_without_end_is_left_where_it_exceeds_what_is_listed(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.endless = WEIGHTS
    size = (tmp_path / "repository" / WEIGHTS).stat().st_size
    assert f"{WEIGHTS} came with more bytes, where the hub lists {size:,}, and was removed" in limited(hub, home)
    assert hub.sent < 1 << 25
    nothing_lies(home)


def test_a_body_that_is_longer_than_listed_is_not_fetched(hub: Hub, home: Path) -> None:
    hub.lies[WEIGHTS] = lambda body: body + bytes(1_000_000)
    assert f"{WEIGHTS} came with more bytes" in fails(hub.url, home, "pull", NAME)
    nothing_lies(home)


def test_what_lies_elsewhere_is_held_to_the_same_size(hub: Hub, home: Path, tmp_path: Path) -> None:
    """The real hub redirects large files to an address without their name; smaller files have smaller limits."""
    file, body = "config.json", (tmp_path / "repository" / "config.json").read_bytes()
    hub.refuses[file] = 302
    with running() as other:
        other.portal = body
        at = {"Location": f"{other.url}/kept/1", "X-Repo-Commit": COMMIT}
        hub.says[file] = at | {"X-Linked-Etag": '"c"', "X-Linked-Size": str(len(body))}
        found(hub, home)
        assert "GET /kept/1" in other.asked
        shutil.rmtree(home)
        other.endless = "/kept/1"
        assert f"{file} came with more bytes, where the hub lists {len(body):,}, and was removed" in limited(hub, home)
    nothing_lies(home)


def test_a_packed_body_is_not_opened(hub: Hub, home: Path) -> None:
    bomb = gzip.compress(bytes(1 << 26))
    hub.lies[WEIGHTS] = lambda body: bomb
    hub.says[WEIGHTS] = {"Content-Encoding": "gzip"}
    assert "the hub compresses its answer (gzip), which was not requested" in limited(hub, home)
    nothing_lies(home)


@pytest.mark.parametrize("path", [f"/api/models/{NAME}", f"/tree/{COMMIT}"])
def test_what_is_told_without_end_is_left(path: str, hub: Hub, home: Path) -> None:
    hub.endless = path
    assert "the hub's answer does not end" in limited(hub, home)
    assert 1 << 26 <= hub.sent < 1 << 28


def test_a_list_that_leads_back_to_itself_ends(hub: Hub, home: Path) -> None:
    path = f"/api/models/{NAME}/tree/{COMMIT}"
    hub.says[path] = {"Link": f'<{hub.url}{path}?page=2>; rel="next"'}
    assert "the hub's answer does not end; try again with network" in fails(hub.url, home, "pull", NAME)
    assert sum(path in line for line in hub.asked) == 3


@pytest.mark.parametrize(
    ("end", "headers"),
    [
        (WEIGHTS, {"Retry-After": "99999"}),
        (f"/tree/{COMMIT}", {"RateLimit": '"api";r=0;t=99999'}),
        (f"/api/models/{NAME}", {"Retry-After": "99999"}),
    ],
    ids=["a file", "the list", "the repository"],
)
def test_nobody_waits_for_a_day(end: str, headers: dict[str, str], hub: Hub, home: Path) -> None:
    hub.says[end] = headers
    hub.refuses[WEIGHTS] = 429
    hub.listless = 429 if "/tree/" in end else 0
    hub.broken = 429 if end.endswith(NAME) else 0
    said = fails(hub.url, home, "pull", NAME)
    assert "'o/tiny' was not fetched: the hub asks to wait 99,999 s; try again later" in said


# -- whose requests are checked ----------------------------------------------------------------------------------------


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session of the hub's client, with the network switched on."""
    monkeypatch.setattr(hub_client().constants, "HF_HUB_OFFLINE", False)
    hub_client().close_session()
    yield hub_client().get_session()
    hub_client().close_session()


def test_what_is_told_has_its_time_and_its_number(session: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, address = AnswerGuard(), f"{hub.url}/api/models/{NAME}"
    monkeypatch.setattr(hub_answers, "_MAX_API_ANSWERS", 2)
    for _ in range(2):
        told = answers.run(lambda: session.get(address, headers=answers.headers))
        assert told.json()["sha"] == COMMIT and told.request.extensions["timeout"]["read"] == hub_answers.TIMEOUT
    with pytest.raises(StrangeAnswerError, match="does not end"):
        answers.run(lambda: session.get(address, headers=answers.headers))
    later = AnswerGuard()
    hub.endless = NAME
    monkeypatch.setattr(hub_answers, "_MAX_API_BYTES", 1 << 40)
    monkeypatch.setattr(hub_answers, "_MAX_API_SECONDS", 0.1)
    with pytest.raises(StrangeAnswerError, match="does not end"):
        later.run(lambda: session.get(address, headers=later.headers))


def test_what_others_ask_meanwhile_is_not_heard(session: Any, hub: Hub) -> None:
    hub.says[WEIGHTS] = {"X-Repo-Commit": "2" * 40}
    address, answers = f"{hub.url}/{NAME}/resolve/{COMMIT}/{WEIGHTS}", AnswerGuard(COMMIT, {WEIGHTS: None})
    others = AnswerGuard("2" * 40, {WEIGHTS: None})
    before = dict(session.event_hooks)

    def both() -> None:
        assert session.head(address).status_code == 200
        assert others.run(lambda: session.head(address, headers=others.headers)).status_code == 200
        session.head(address, headers=answers.headers)

    with pytest.raises(StrangeAnswerError, match="the hub answers for the commit '2222"):
        answers.run(both)
    assert session.event_hooks == before


def test_nothing_is_sent_that_would_not_be_heard(session: Any, hub: Hub) -> None:
    """A new session lacks the guard, so it refuses our requests, and all of them are sent again."""
    answers, tries = AnswerGuard(COMMIT), []
    address = f"{hub.url}/{NAME}/resolve/{COMMIT}/{WEIGHTS}"

    def asked(breaks: int) -> Any:
        tries.append(1)
        if len(tries) <= breaks:
            hub_client().close_session()
        return hub_client().get_session().head(address, headers=answers.headers)

    assert answers.run(lambda: asked(2)).status_code == 200 and len(tries) == 3
    hub.asked.clear()
    tries.clear()
    with pytest.raises(StrangeAnswerError, match="the hub could not be reached"):
        answers.run(lambda: asked(9))
    assert hub.asked == [] and len(tries) == 3
