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
from tests.checkpoints.builders import WEIGHTS, assert_one_sentence, valid_checkpoint
from tests.checkpoints.hub import LOCATE, NAME, Hub, closed_port, error_message, find_snapshot, run_pellucid, vocab_size

pytestmark = pytest.mark.timeout(120)


def test_private_repository_asks_for_the_token(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository, token="hf_right")
    assert "or set HF_TOKEN if it is private" in error_message(hub.url, home, "pull", NAME)
    assert "or set HF_TOKEN if it is private" in error_message(hub.url, home, "pull", NAME, "--token", "hf_other")
    message = error_message(hub.url, home, "pull", NAME, "--token", "hf_wrong")
    assert "the hub refused 'o/tiny': check HF_TOKEN" in message
    assert "hf_wrong" not in message
    assert vocab_size(find_snapshot(hub, home, HF_TOKEN="hf_right")) == 60
    shutil.rmtree(home)
    assert vocab_size(find_snapshot(hub, home, "token='hf_right'")) == 60
    shutil.rmtree(home)
    assert run_pellucid(hub.url, home, "pull", NAME, "--token", "hf_right").returncode == 0


def test_gated_repository_asks_to_accept_its_terms(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository, gated=True)
    assert "'o/tiny' is gated: accept its terms on the hub" in error_message(hub.url, home, "pull", NAME)
    assert "'o/tiny' is gated: accept its terms on the hub" in error_message(hub.url, home, "pull", NAME)


@pytest.mark.parametrize("name", ["o/nothing", "nothing"])
def test_unknown_name_is_refused_in_one_sentence(name: str, hub: Hub, home: Path) -> None:
    assert f"the hub does not know {name!r}: check the name" in error_message(hub.url, home, "pull", name)
    assert f"the hub does not know {name!r}: check the name" in error_message(
        hub.url, home, "pull", name, HF_TOKEN="hf_other"
    )
    assert f"the hub does not know {name!r}: check the name" in error_message(hub.url, home, "describe", name)


@pytest.mark.slow
def test_similar_name_is_suggested(hub: Hub, home: Path, repository: Path) -> None:
    """Among packaged models, and among those in the cache."""
    message = "'all-MiniLM-L6' (did you mean all-MiniLM-L6-v2?)"
    assert f"the hub does not know {message}: check the name" in error_message(hub.url, home, "pull", "all-MiniLM-L6")
    offline = error_message(hub.url, home, "describe", "all-MiniLM-L6", HF_HUB_OFFLINE="1")
    assert f"{message} is no folder" in offline and "otherwise run: pellucid pull all-MiniLM-L6" in offline
    hub.add(NAME, repository)
    find_snapshot(hub, home)
    assert "'o/tny' (did you mean o/tiny?)" in error_message(hub.url, home, "describe", "o/tny", HF_HUB_OFFLINE="1")


def test_repository_without_a_config_is_refused(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    (tmp_path / "repository" / "config.json").unlink()
    assert "'o/tiny' on the hub has no config.json" in error_message(hub.url, home, "pull", NAME)
    assert hub.fetched() == set()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("m.gguf", "it holds m.gguf: fetch one by `hf download --revision v0 o/tiny m.gguf`, and give its path"),
        ("model.fp16.safetensors", "it holds model.fp16.safetensors, which are read by those names alone"),
    ],
)
def test_repository_whose_weights_have_another_name_is_refused(
    name: str, advice: str, hub: Hub, home: Path, tmp_path: Path
) -> None:
    folder = valid_checkpoint(tmp_path / "repository")
    (folder / WEIGHTS).rename(folder / name)
    hub.add(NAME, folder)
    message = error_message(hub.url, home, "pull", NAME, "--revision", "v0")
    assert "'o/tiny' on the hub holds no weights: expected model.safetensors" in message and advice in message
    assert hub.fetched() == set()


def test_uncached_model_offline_names_the_pull_command(hub: Hub, home: Path) -> None:
    message = error_message(hub.url, home, "describe", NAME, HF_HUB_OFFLINE="1")
    assert "the network is switched off; run: pellucid pull o/tiny" in message
    message = error_message(hub.url, home, "pull", NAME, HF_HUB_OFFLINE="1")  # as the error advised
    assert message == "pellucid: HF_HUB_OFFLINE switches the network off: unset it to fetch 'o/tiny' from the hub\n"
    assert "TRANSFORMERS_OFFLINE switches" in error_message(hub.url, home, "pull", NAME, TRANSFORMERS_OFFLINE="1")
    assert hub.requests == []


def test_unreachable_hub_is_reported(home: Path) -> None:
    assert "the hub could not be reached" in error_message(closed_port(), home, "pull", NAME)
    assert "the hub could not be reached" in error_message(closed_port(), home, "describe", NAME)


@pytest.mark.parametrize("status", [400, 403, 418, 500])
def test_server_errors_are_reported(status: int, hub: Hub, home: Path) -> None:
    hub.error_status = status
    message = error_message(hub.url, home, "pull", NAME)
    expected = f"'o/tiny' was not fetched: the hub answered {status} to /api/models/o/tiny; try again later"
    assert ("the hub refused 'o/tiny'" if status == 403 else expected) in message


@pytest.mark.parametrize("page", [b"<html>Your name, please</html>", b'{"answer": 1}'])
def test_answer_of_another_server_is_recognised(page: bytes, hub: Hub, home: Path) -> None:
    hub.portal = page
    message = "'o/tiny' was not fetched: the server that answers is not the hub; try again with network"
    assert message in error_message(hub.url, home, "pull", NAME)
    message = error_message(hub.url, home, "describe", NAME)
    assert (
        "'o/tiny' is no folder" in message
        and "and the server that answers is not the hub; run: pellucid pull o/tiny" in message
    )


@pytest.mark.slow
def test_silent_hub_times_out(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        message = error_message(f"http://127.0.0.1:{silent.getsockname()[1]}", home, "pull", NAME)
    assert "the hub could not be reached" in message


def test_full_disk_is_reported(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))\n"
    result = run_pellucid(hub.url, home, "-c", limit + LOCATE.format(NAME, ""))
    assert result.returncode == 1
    assert (
        "ResourceError: the limit on the size of a file (ulimit -f) is reached while fetching 'o/tiny'" in result.stderr
    )
    assert vocab_size(find_snapshot(hub, home)) == 60


@pytest.mark.parametrize("revision", [5, True, b"main", ["main"], "../x", ""])
def test_invalid_revision_is_refused(revision: object) -> None:
    with pytest.raises(pellucid.InputError, match=r"revision is .*, expected a branch, a tag or a commit"):
        pellucid.load("o/tiny", revision=revision)


def test_advised_command_fetches_the_revision(hub: Hub, home: Path, repository: Path, tmp_path: Path) -> None:
    hub.add(NAME, repository)
    program = LOCATE.format(NAME, f"revision='v0', cache_dir={str(tmp_path / 'my cache')!r}, local_files_only=True")
    message = run_pellucid(hub.url, home, "-c", program).stderr
    variable = f"HF_HUB_CACHE={shlex.quote(str(tmp_path / 'my cache'))}"
    advice = f"not in the hub's cache at revision v0, and the network is switched off; run: {variable} pellucid pull"
    assert f"{advice} --revision v0 {NAME}, with network" in message
    result = run_pellucid(hub.url, home, "pull", NAME, "--revision", "v0", HF_HUB_CACHE=str(tmp_path / "my cache"))
    assert result.returncode == 0
    assert run_pellucid(hub.url, home, "-c", program).stdout == result.stdout


def test_prefix_of_a_branch_is_an_unknown_revision(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository).refs["feature/x"] = "1" * 40
    find_snapshot(hub, home, "revision='feature/x'")
    message = run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, "revision='feature'")).stderr
    assert "'o/tiny' has no revision 'feature' on the hub" in message


@pytest.mark.parametrize("token", ["", " ", "hf_a b", "hf_ä", 5, b"hf_secret"])
def test_invalid_token_is_refused_without_showing_it(token: object) -> None:
    with pytest.raises(
        pellucid.InputError,
        match=r"^the token, given, stored or in HF_TOKEN, is not a token of the hub: expected one word",
    ):
        pellucid.load("o/tiny", token=token)


def test_token_may_end_with_a_line_break(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository, token="hf_right")
    assert (
        "'o/tiny'" in (message := error_message(hub.url, home, "pull", NAME, "--token", "hf_wrong\n"))
        and "wrong" not in message
    )
    assert run_pellucid(hub.url, home, "pull", NAME, "--token", "hf_right\n").returncode == 0
    hub.requests.clear()
    for command, token in (("pull", "hf_geheïm"), ("describe", "hf_geheïm"), ("describe", "hf_a b")):
        assert "in HF_TOKEN, is not a token of the hub" in error_message(hub.url, home, command, "o/b", HF_TOKEN=token)
    assert hub.requests == []


def test_missing_stored_token_names_the_login_command(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    message = run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, "token=True")).stderr
    assert "token=True is the token that `hf auth login` stores, and none is stored" in message


def test_invalid_cache_folder_is_refused(tmp_path: Path) -> None:
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
def test_invalid_name_sends_no_request(name: str) -> None:
    """In this process the network is switched off; an error for that reason would say so."""
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(pellucid.InputError) as caught:
        pellucid.load(name)
    assert "switched off" not in str(caught.value)
    assert_one_sentence(str(caught.value), Path())


@pytest.mark.parametrize("name", [None, 3, b"o/tiny", ["o/tiny"]])
def test_name_of_another_type_is_refused(name: object) -> None:
    with pytest.raises(pellucid.InputError, match=r"^the model is .*, expected the name of one, a folder or a path$"):
        pellucid.load(name)


def test_unreadable_cache_is_named(tmp_path: Path) -> None:
    ref = tmp_path / "models--o--tiny" / "refs" / "main"
    ref.mkdir(parents=True)
    with pytest.raises(
        pellucid.InputError, match=r"^'o/tiny' cannot be read in the hub's cache \(.*refs/main.*repair or delete /"
    ):
        locate("o/tiny", HubOptions(cache_dir=tmp_path))
    ref.rmdir()
    ref.write_bytes(b"\xff\xfe")
    with pytest.raises(
        pellucid.InputError,
        match=r"^'o/tiny' cannot be read in the hub's cache \(.*: repair or delete .*models--o--tiny",
    ):
        locate("o/tiny", HubOptions(cache_dir=tmp_path))
