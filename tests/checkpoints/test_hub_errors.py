"""What goes wrong between here and the hub: one sentence, exit code 3, and what to do about it."""

import os
import shlex
import shutil
import socket
from pathlib import Path

import pytest

import pellucid
from pellucid.checkpoints.location import HubOptions
from pellucid.checkpoints.source import locate
from tests.checkpoints.builders import WEIGHTS, good, one_sentence
from tests.checkpoints.hub import LOCATE, NAME, Hub, ask, closed_port, fails, found, words

pytestmark = pytest.mark.timeout(120)


def test_a_private_repository_asks_for_the_token(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository, token="hf_right")
    assert "or set HF_TOKEN if it is private" in fails(hub.url, home, "pull", NAME)
    assert "or set HF_TOKEN if it is private" in fails(hub.url, home, "pull", NAME, "--token", "hf_other")
    told = fails(hub.url, home, "pull", NAME, "--token", "hf_wrong")
    assert "the hub refused 'o/tiny': check HF_TOKEN" in told
    assert "hf_wrong" not in told
    assert words(found(hub, home, HF_TOKEN="hf_right")) == 60
    shutil.rmtree(home)
    assert words(found(hub, home, "token='hf_right'")) == 60
    shutil.rmtree(home)
    assert ask(hub.url, home, "pull", NAME, "--token", "hf_right").returncode == 0


def test_a_gated_repository_names_its_terms(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository, gated=True)
    assert "'o/tiny' is gated: accept its terms on the hub" in fails(hub.url, home, "pull", NAME)
    assert "'o/tiny' is gated: accept its terms on the hub" in fails(hub.url, home, "pull", NAME)


@pytest.mark.parametrize("name", ["o/nothing", "nothing"])
def test_an_unknown_name_is_one_sentence(name: str, hub: Hub, home: Path) -> None:
    assert f"the hub does not know {name!r}: check the name" in fails(hub.url, home, "pull", name)
    assert f"the hub does not know {name!r}: check the name" in fails(hub.url, home, "pull", name, HF_TOKEN="hf_other")
    assert f"the hub does not know {name!r}: check the name" in fails(hub.url, home, "describe", name)


@pytest.mark.slow
def test_a_near_name_comes_first(hub: Hub, home: Path, repository: Path) -> None:
    """Among packaged models, and among those in the cache."""
    told = "'all-MiniLM-L6' (did you mean all-MiniLM-L6-v2?)"
    assert f"the hub does not know {told}: check the name" in fails(hub.url, home, "pull", "all-MiniLM-L6")
    offline = fails(hub.url, home, "describe", "all-MiniLM-L6", HF_HUB_OFFLINE="1")
    assert f"{told} is no folder" in offline and "otherwise run: pellucid pull all-MiniLM-L6" in offline
    hub.add(NAME, repository)
    found(hub, home)
    assert "'o/tny' (did you mean o/tiny?)" in fails(hub.url, home, "describe", "o/tny", HF_HUB_OFFLINE="1")


def test_a_repository_that_is_no_checkpoint(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, good(tmp_path / "repository"))
    (tmp_path / "repository" / "config.json").unlink()
    assert "'o/tiny' on the hub has no config.json" in fails(hub.url, home, "pull", NAME)
    assert hub.fetched() == set()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("m.gguf", "it holds m.gguf: fetch one by `hf download --revision v0 o/tiny m.gguf`, and give its path"),
        ("model.fp16.safetensors", "it holds model.fp16.safetensors, which are read by those names alone"),
    ],
)
def test_a_repository_whose_weights_have_another_name(
    name: str, advice: str, hub: Hub, home: Path, tmp_path: Path
) -> None:
    folder = good(tmp_path / "repository")
    (folder / WEIGHTS).rename(folder / name)
    hub.add(NAME, folder)
    told = fails(hub.url, home, "pull", NAME, "--revision", "v0")
    assert "'o/tiny' on the hub holds no weights: expected model.safetensors" in told and advice in told
    assert hub.fetched() == set()


def test_offline_and_not_cached_says_what_to_run(hub: Hub, home: Path) -> None:
    told = fails(hub.url, home, "describe", NAME, HF_HUB_OFFLINE="1")
    assert "the network is switched off; run: pellucid pull o/tiny" in told
    told = fails(hub.url, home, "pull", NAME, HF_HUB_OFFLINE="1")  # as the error advised
    assert told == "pellucid: HF_HUB_OFFLINE switches the network off: unset it to fetch 'o/tiny' from the hub\n"
    assert "TRANSFORMERS_OFFLINE switches" in fails(hub.url, home, "pull", NAME, TRANSFORMERS_OFFLINE="1")
    assert hub.asked == []


def test_a_hub_that_nobody_runs(home: Path) -> None:
    assert "the hub could not be reached" in fails(closed_port(), home, "pull", NAME)
    assert "the hub could not be reached" in fails(closed_port(), home, "describe", NAME)


@pytest.mark.parametrize("status", [400, 403, 418, 500])
def test_a_hub_that_is_ill(status: int, hub: Hub, home: Path) -> None:
    hub.broken = status
    told = fails(hub.url, home, "pull", NAME)
    ill = f"'o/tiny' was not fetched: the hub answered {status} to /api/models/o/tiny; try again later"
    assert ("the hub refused 'o/tiny'" if status == 403 else ill) in told


@pytest.mark.parametrize("page", [b"<html>Your name, please</html>", b'{"answer": 1}'])
def test_something_else_answers_for_the_hub(page: bytes, hub: Hub, home: Path) -> None:
    hub.portal = page
    told = "'o/tiny' was not fetched: the server that answers is not the hub; try again with network"
    assert told in fails(hub.url, home, "pull", NAME)
    told = fails(hub.url, home, "describe", NAME)
    assert (
        "'o/tiny' is no folder" in told
        and "and the server that answers is not the hub; run: pellucid pull o/tiny" in told
    )


@pytest.mark.slow
def test_a_hub_that_never_answers(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = fails(f"http://127.0.0.1:{silent.getsockname()[1]}", home, "pull", NAME)
    assert "the hub could not be reached" in told


def test_the_disk_is_full(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))\n"
    done = ask(hub.url, home, "-c", limit + LOCATE.format(NAME, ""))
    assert done.returncode == 1
    assert (
        "ResourceError: the limit on the size of a file (ulimit -f) is reached while fetching 'o/tiny'" in done.stderr
    )
    assert words(found(hub, home)) == 60


@pytest.mark.parametrize("revision", [5, True, b"main", ["main"], "../x", ""])
def test_what_can_be_no_revision_is_one_sentence(revision: object) -> None:
    with pytest.raises(pellucid.InputError, match=r"revision is .*, expected a branch, a tag or a commit"):
        pellucid.load("o/tiny", revision=revision)


def test_the_command_that_is_advised_brings_what_was_asked_for(
    hub: Hub, home: Path, repository: Path, tmp_path: Path
) -> None:
    hub.add(NAME, repository)
    program = LOCATE.format(NAME, f"revision='v0', cache_dir={str(tmp_path / 'my cache')!r}, local_files_only=True")
    told = ask(hub.url, home, "-c", program).stderr
    place = f"HF_HUB_CACHE={shlex.quote(str(tmp_path / 'my cache'))}"
    advice = f"not in the hub's cache at revision v0, and the network is switched off; run: {place} pellucid pull"
    assert f"{advice} --revision v0 {NAME}, with network" in told
    done = ask(hub.url, home, "pull", NAME, "--revision", "v0", HF_HUB_CACHE=str(tmp_path / "my cache"))
    assert done.returncode == 0
    assert ask(hub.url, home, "-c", program).stdout == done.stdout


def test_the_beginning_of_a_branch_is_no_damage(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository).refs["feature/x"] = "1" * 40
    found(hub, home, "revision='feature/x'")
    told = ask(hub.url, home, "-c", LOCATE.format(NAME, "revision='feature'")).stderr
    assert "'o/tiny' has no revision 'feature' on the hub" in told


@pytest.mark.parametrize("token", ["", " ", "hf_a b", "hf_ä", 5, b"hf_secret"])
def test_what_can_be_no_token_is_one_sentence_that_does_not_show_it(token: object) -> None:
    with pytest.raises(
        pellucid.InputError,
        match=r"^the token, given, stored or in HF_TOKEN, is not a token of the hub: expected one word",
    ):
        pellucid.load("o/tiny", token=token)


def test_a_token_from_a_file_may_end_with_its_line(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository, token="hf_right")
    assert "'o/tiny'" in (told := fails(hub.url, home, "pull", NAME, "--token", "hf_wrong\n")) and "wrong" not in told
    assert ask(hub.url, home, "pull", NAME, "--token", "hf_right\n").returncode == 0
    hub.asked.clear()
    for command, token in (("pull", "hf_geheïm"), ("describe", "hf_geheïm"), ("describe", "hf_a b")):
        assert "in HF_TOKEN, is not a token of the hub" in fails(hub.url, home, command, "o/b", HF_TOKEN=token)
    assert hub.asked == []


def test_what_was_stored_and_is_not_there_says_how_to_store_it(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    told = ask(hub.url, home, "-c", LOCATE.format(NAME, "token=True")).stderr
    assert "token=True is the token that `hf auth login` stores, and none is stored" in told


def test_a_cache_has_a_place(tmp_path: Path) -> None:
    with pytest.raises(pellucid.InputError, match=r"^the name is empty, expected the path of a file or folder$"):
        HubOptions(cache_dir="")
    with pytest.raises(pellucid.InputError, match=r"^5 is int, expected the path of a file or folder$"):
        HubOptions(cache_dir=5)


def test_a_token_is_never_shown() -> None:
    assert "hf_" not in repr(HubOptions(token="hf_right\n")) and HubOptions(token="hf_right\n").token == "hf_right"
    with pytest.raises(
        pellucid.InputError, match=r"^the token, given, stored or in HF_TOKEN, is not a token of the hub"
    ):
        HubOptions(token="hf_bäd")


@pytest.mark.parametrize(
    "name",
    [
        "o/a.",
        "o/a-",
        "o./a",
        "o/a.git",
        "o/" + "x" * 95,
        "o/a--b",
        "o/a..b",
        "../o",
        "o/a/b",
        "o/",
        "~nobody-at-all/x",
        "x" * 5000,
        "",
        "a\0b",
    ],
)
def test_what_can_be_no_name_asks_nobody(name: str) -> None:
    """In this process the network is switched off; an error for that reason would say so."""
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(pellucid.InputError) as caught:
        pellucid.load(name)
    assert "switched off" not in str(caught.value)
    one_sentence(str(caught.value), Path())


@pytest.mark.parametrize("name", [None, 3, b"o/tiny", ["o/tiny"]])
def test_what_is_no_name_at_all_is_one_sentence(name: object) -> None:
    with pytest.raises(pellucid.InputError, match=r"^the model is .*, expected the name of one, a folder or a path$"):
        pellucid.load(name)


def test_a_cache_that_cannot_be_read_names_the_place(tmp_path: Path) -> None:
    at = tmp_path / "models--o--tiny" / "refs" / "main"
    at.mkdir(parents=True)
    with pytest.raises(
        pellucid.InputError, match=r"^'o/tiny' cannot be read in the hub's cache \(.*refs/main.*repair or delete /"
    ):
        locate("o/tiny", HubOptions(cache_dir=tmp_path))
    at.rmdir()
    at.write_bytes(b"\xff\xfe")
    with pytest.raises(
        pellucid.InputError,
        match=r"^'o/tiny' cannot be read in the hub's cache \(.*: repair or delete .*models--o--tiny",
    ):
        locate("o/tiny", HubOptions(cache_dir=tmp_path))
