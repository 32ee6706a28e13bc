"""The hub: which requests are sent, what is fetched, and what is never requested again."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import pellucid
from pellucid.checkpoints.cache import cached_snapshot, is_complete
from pellucid.checkpoints.inventory import _state
from pellucid.checkpoints.location import HubOptions
from pellucid.checkpoints.model_files import MODEL_FILES, form_of
from pellucid.config import CausalLM
from pellucid.text import files
from tests.checkpoints.builders import PICKLED, WEIGHTS, as_bin, good, sentence, shards, with_file
from tests.checkpoints.families import TINY
from tests.checkpoints.gguf_files import tiny_llama
from tests.checkpoints.hub import LOAD, LOCATE, NAME, Hub, ask, asking, closed_port, fails, found, words
from tests.quick import few
from tests.sigint import ANOTHER, MAIN

pytestmark = pytest.mark.timeout(120)

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")


# -- what is fetched ---------------------------------------------------------------------------------------------------


def test_a_pull_fetches_what_is_wanted_and_nothing_else(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    done = ask(hub.url, home, "pull", NAME)
    assert done.returncode == 0, done.stderr
    snapshot = Path(done.stdout.strip())
    assert snapshot == home / "hub" / "models--o--tiny" / "snapshots" / ("1" * 40)
    wanted = {"config.json", WEIGHTS, "README.md"}
    assert {path.name for path in snapshot.rglob("*")} == wanted
    assert hub.fetched() == wanted
    assert all(line.split()[1].startswith(("/api/models/o/tiny", "/o/tiny/resolve/")) for line in hub.asked)
    assert torch.equal(
        pellucid.load(snapshot).module.embeddings.token.weight,
        pellucid.load(repository).module.embeddings.token.weight,
    )


def test_what_is_cached_asks_for_nothing(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    snapshot = found(hub, home)
    assert snapshot.name == "1" * 40
    assert hub.asked
    hub.asked.clear()
    assert found(hub, home, program=LOAD) == snapshot
    assert found(hub, home, HF_HUB_OFFLINE="1") == snapshot
    assert found(hub, home, "local_files_only=True") == snapshot
    assert found(hub, home, f"revision={snapshot.name!r}") == snapshot
    assert hub.asked == []


@pytest.mark.slow
def test_a_pickle_only_where_there_is_nothing_better(hub: Hub, home: Path, repository: Path) -> None:
    (repository / WEIGHTS).unlink()
    hub.add(NAME, repository)
    snapshot = found(hub, home, program=LOAD)
    assert hub.fetched() == {"config.json", PICKLED, "README.md"}
    hub.asked.clear()
    assert found(hub, home) == snapshot
    assert found(hub, home, HF_HUB_OFFLINE="1") == snapshot
    assert hub.asked == []


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_shards_are_fetched(form: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    folder = good(tmp_path / "repository")
    shards(folder, form)
    hub.add(NAME, folder)
    snapshot = found(hub, home)
    assert hub.fetched() == {path.name for path in folder.iterdir()}
    assert pellucid.load(snapshot).config == pellucid.load(folder).config


def test_every_form_of_a_tokenizer_is_fetched(hub: Hub, home: Path, repository: Path) -> None:
    """What is read of a folder is fetched from the hub too, and is among the files that saving over it replaces."""
    forms = {*files._OPENERS, files.TARGET_TOKENIZER_FILE}
    for name in forms:
        with_file(name, name)(repository)  # equal files are fetched once
    hub.add(NAME, repository)
    found(hub, home)
    assert forms <= hub.fetched()
    assert forms <= set(MODEL_FILES)


def test_what_others_left_in_the_cache_is_enough(hub: Hub, home: Path, tmp_path: Path) -> None:
    """Other tools list every file and fetch fewer: offline, config and weights are enough."""
    folder = good(tmp_path / "repository")
    for name in ("vocab.txt", "added_tokens.json"):
        with_file(name, "{}")(folder)
    hub.add(NAME, folder)
    other = (
        "import huggingface_hub as hub; print(hub.snapshot_download({0!r}, allow_patterns=['config.json', '*.sa*']))"
    )
    snapshot = found(hub, home, program=other)
    assert not (snapshot / "vocab.txt").exists()
    done = ask(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_HUB_OFFLINE="1")
    assert (
        done.stdout.strip() == str(snapshot)
        and "which lacks added_tokens.json, vocab.txt: its answers may" in done.stderr
    )
    assert not (snapshot / "vocab.txt").exists()
    assert found(hub, home) == snapshot
    assert (snapshot / "vocab.txt").exists()


def test_a_repository_of_one_gguf_file_is_that_file(hub: Hub, home: Path, tmp_path: Path) -> None:
    model = pellucid.build(pellucid.Config.of("llama", **TINY["llama"] | {"head_dim": 6}, head=CausalLM()))
    (folder := tmp_path / "repository").mkdir()
    tiny_llama(folder / "m.gguf", load_file(model.save(tmp_path / "model") / WEIGHTS))
    for name in ("README.md", "picture.png", "mmproj-F16.gguf"):
        (folder / name).write_text("of no model")
    hub.add(NAME, folder)
    snapshot = found(hub, home, program=LOAD)
    assert hub.fetched() == {"m.gguf", "README.md"}
    assert found(hub, home, program=LOAD, HF_HUB_OFFLINE="1") == snapshot
    assert ask(hub.url, home, "pull", NAME).returncode == 0
    (folder / "n.gguf").write_bytes((folder / "m.gguf").read_bytes())
    hub.add(NAME, folder)
    told = fails(hub.url, tmp_path / "other", "pull", NAME, "--revision", "v0")
    assert "it holds m.gguf, n.gguf: fetch one by `hf download --revision v0 o/tiny m.gguf`" in told


@pytest.mark.parametrize(
    "names",
    [
        ["mmproj-F16.gguf"],
        ["mmproj-F16.gguf", "Q4/m.gguf"],
        ["imatrix_unsloth.gguf"],
        ["m.gguf", "Q4/m.gguf"],
        ["m-00001-of-00002.gguf"],
        ["Q4/m.gguf"],
        ["config.json", "m.gguf"],
        ["m.gguf", "n.gguf"],
        ["adapter_config.json", "adapter_model.safetensors", "m.gguf"],
    ],
    ids=" ".join,
)
def test_what_lies_beside_models_is_none(names: list[str]) -> None:
    assert form_of(names).gguf_file is None
    assert form_of(["README.md", "mmproj-F16.gguf", "queen-of-hearts.gguf"]).gguf_file == "queen-of-hearts.gguf"


@pytest.mark.parametrize(
    ("files", "opens", "whole"),
    [
        (["config.json", WEIGHTS], True, False),  # without a list of files, none is known to be missing
        (["adapter_config.json", "adapter_model.safetensors"], True, False),
        (["adapter_config.json", "adapter_model.bin"], True, False),
        (["m.gguf"], True, True),
        (["mmproj-F16.gguf", "m.gguf"], True, True),
        (["mmproj-F16.gguf"], False, False),
        (["adapter_config.json", "adapter_model.bin", "m.gguf"], True, False),
        (["config.json", "m.gguf"], True, False),
        (["config.json", *SHARDS], True, False),
        (["config.json", *SHARDS[1:]], True, False),
        (["config.json"], True, False),
        (["adapter_config.json"], False, False),
        ([SHARDS[0]], False, False),
    ],
)
def test_the_cache_holds_what_a_folder_may_hold(files: list[str], opens: bool, whole: bool, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--o--tiny" / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).write_text(json.dumps({"weight_map": dict(zip("ab", SHARDS))} if name == SHARDS[2] else {}))
    assert cached_snapshot(NAME, HubOptions("1" * 40, cache_dir=tmp_path)) == (snapshot if opens else None)
    assert is_complete(snapshot) == whole
    if files == ["config.json", *SHARDS[1:]]:
        assert _state(snapshot) == f"incomplete: no {SHARDS[0]}"


def test_offline_a_download_that_was_broken_off_opens_as_far_as_it_goes(hub: Hub, home: Path, tmp_path: Path) -> None:
    """The hub's client keeps a list of a snapshot's files, and offline finds nothing unless all are there."""
    hub.add(NAME, folder := good(tmp_path / "repository"))
    shards(folder, "safetensors")
    snapshot = found(hub, home)
    gone = sorted(snapshot.glob("model-*.safetensors"))
    for path in (gone[0], *gone[1:]):
        path.unlink()
        assert found(hub, home, HF_HUB_OFFLINE="1") == snapshot
        said = fails(hub.url, home, "embed", "a text", "--model", NAME, HF_HUB_OFFLINE="1")
        assert path.name in said and f"run: pellucid pull {NAME}, with network" in said
    assert found(hub, home) == snapshot and gone[0].exists()


def test_what_makes_other_vectors_is_missed_in_a_cache(hub: Hub, home: Path, tmp_path: Path) -> None:
    """modules.json defines how vectors are made: without it a checkpoint loads as a plain one."""
    hub.add(NAME, sentence(tmp_path / "repository"))
    snapshot = found(hub, home)
    (snapshot / "modules.json").unlink()
    for url, how in ((hub.url, {"HF_HUB_OFFLINE": "1"}), (closed_port(), {})):
        done = ask(url, home, "-c", LOCATE.format(NAME, ""), **how)
        assert done.stdout.strip() == str(snapshot)
        lacks = (
            "o/tiny is not whole in the hub's cache, which lacks modules.json: its answers may differ; run: pellucid"
        )
        assert lacks in done.stderr
        told = "o/tiny is read from the hub's cache as it is there: the hub could not be reached ("
        assert (told in done.stderr) == (not how)
    assert found(hub, home) == snapshot and (snapshot / "modules.json").exists()


def test_a_cache_that_was_filled_file_by_file_is_asked_about_once(hub: Hub, home: Path, tmp_path: Path) -> None:
    """The reference fetches the files that it opens, and leaves no list of files."""
    hub.add(NAME, sentence(tmp_path / "repository"))
    fetch = "import huggingface_hub as hub; [hub.hf_hub_download({0!r}, name) for name in ('config.json', 'WEIGHTS')]"
    assert ask(hub.url, home, "-c", fetch.replace("WEIGHTS", WEIGHTS).format(NAME)).returncode == 0
    done = ask(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_HUB_OFFLINE="1")
    assert "without a list of what belongs to it: its answers may differ; run: pellucid pull o/tiny" in done.stderr
    snapshot = Path(done.stdout.strip())
    assert not (snapshot / "modules.json").exists()
    hub.broken = 403
    done = ask(hub.url, home, "-c", LOCATE.format(NAME, ""))
    assert done.stdout.strip() == str(snapshot) and "as it is there: the hub refused 'o/tiny'" in done.stderr
    hub.broken = None
    hub.add(NAME, sentence(tmp_path / "another"))  # differs from what is cached
    hub.asked.clear()
    assert found(hub, home) == snapshot and (snapshot / "modules.json").exists()
    assert WEIGHTS not in hub.fetched()
    hub.asked.clear()
    assert found(hub, home) == snapshot and hub.asked == []


@pytest.mark.parametrize("gone", [WEIGHTS, "config.json"])
def test_a_link_that_leads_nowhere_is_mended(gone: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, good(tmp_path / "repository"))
    snapshot = found(hub, home)
    (snapshot / gone).resolve().unlink()
    assert found(hub, home) == snapshot and (snapshot / gone).exists()


def test_a_hub_that_gives_no_more_is_asked_once(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, sentence(tmp_path / "repository"))
    snapshot = found(hub, home)
    (snapshot / "modules.json").unlink()
    hub.broken = 403
    hub.asked.clear()
    thrice = f"for i in range(3): {LOCATE.partition('; ')[2]}"
    program = f"{LOCATE.partition('; ')[0]}\n{thrice}"
    done = ask(hub.url, home, "-c", program.format(NAME, ""))
    assert done.stdout.split() == 3 * [str(snapshot)]
    assert len(hub.asked) == 1 and done.stderr.count("the hub refused") == done.stderr.count("lacks modules.json") == 1


def test_another_token_and_the_network_are_tried_at_once(hub: Hub, home: Path, tmp_path: Path) -> None:
    repository = hub.add(NAME, sentence(tmp_path / "repository"))
    snapshot = found(hub, home)
    (snapshot / "modules.json").unlink()
    repository.token = "hf_right"
    program = "from pellucid.checkpoints.source import HubOptions, locate\n"
    program += "for token in (None, 'hf_right'): locate('o/tiny', HubOptions(token=token))"
    done = ask(hub.url, home, "-c", program)
    assert "the hub does not know 'o/tiny'" in done.stderr and done.returncode == 0
    assert (snapshot / "modules.json").exists()
    (snapshot / "modules.json").unlink()
    repository.token = None
    program = program.replace("token in (None, 'hf_right')", "here in (True, False)")
    program = program.replace("token=token", "local_files_only=here")
    assert "which lacks modules.json" in ask(hub.url, home, "-c", program).stderr
    assert (snapshot / "modules.json").exists()


def test_the_list_of_a_snapshot_is_open_to_those_who_share_it(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, good(tmp_path / "repository"))
    snapshot = found(hub, home)
    listed = home / "hub" / "models--o--tiny" / "trees" / f"{snapshot.name}.json"
    assert listed.stat().st_mode == (snapshot / "config.json").stat().st_mode


def test_an_adapter_that_was_fetched_file_by_file_is_asked_about_once(hub: Hub, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "modules.json"):
        with_file(name, {"base_model_name_or_path": "o/base", "of": name})(folder)
    hub.add(NAME, folder)
    fetch = "import huggingface_hub as hub; [hub.hf_hub_download({0!r}, name) for name in ('adapter_config.json', "
    assert ask(hub.url, home, "-c", (fetch + "'adapter_model.safetensors')]").format(NAME)).returncode == 0
    ask(hub.url, home, "-c", LOCATE.format(NAME, ""))  # its base is missing
    assert "modules.json" in hub.fetched()


def test_a_sentence_encoder_comes_with_its_folders(hub: Hub, home: Path, tmp_path: Path) -> None:
    folder = sentence(tmp_path / "repository")
    hub.add(NAME, folder)
    snapshot = found(hub, home)
    assert hub.fetched() == {
        "config.json",
        WEIGHTS,
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
    }
    assert pellucid.load(snapshot).loaded.pooling == pellucid.load(folder).loaded.pooling


# -- which commit ------------------------------------------------------------------------------------------------------


def test_revisions(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, *(good(tmp_path / str(size), vocab_size=size) for size in (50, 60)))
    assert words(found(hub, home, "revision='v0'")) == 50
    assert words(found(hub, home)) == 60
    assert words(found(hub, home, f"revision={'1' * 40!r}")) == 50
    assert words(Path(ask(hub.url, home, "pull", NAME, "--revision", "v0").stdout.strip())) == 50
    assert "has no revision 'v9' on the hub" in fails(hub.url, home, "pull", NAME, "--revision", "v9")
    assert "revision is '../x', expected a branch" in fails(hub.url, home, "pull", NAME, "--revision", "../x")


def test_a_pull_brings_the_copy_up_to_date(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, good(tmp_path / "a", vocab_size=50))
    assert words(found(hub, home)) == 50
    hub.add(NAME, tmp_path / "a", good(tmp_path / "b", vocab_size=60))
    assert words(found(hub, home)) == 50
    assert ask(hub.url, home, "pull", NAME).returncode == 0
    assert words(found(hub, home)) == 60


@pytest.mark.parametrize("lost", few([WEIGHTS, "config.json", "modules.json"], [WEIGHTS]))
def test_a_download_that_was_broken_off_is_finished(lost: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    folder = good(tmp_path / "repository")
    with_file("modules.json", [{"type": "sentence_transformers.models.Transformer"}])(folder)
    hub.add(NAME, folder)
    snapshot = Path(ask(hub.url, home, "pull", NAME).stdout.strip())
    (snapshot / lost).unlink()
    if lost != "modules.json":
        told = fails(hub.url, home, "describe", NAME, HF_HUB_OFFLINE="1")
        assert ("'o/tiny' is no folder" if lost == "config.json" else "holds no weights") in told
        assert "run: pellucid pull o/tiny, with network" in told
    assert found(hub, home) == snapshot
    assert (snapshot / lost).exists()


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
@pytest.mark.parametrize("asked", few([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_a_download_that_is_ended_waits_for_no_byte(asked: int, hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    hub.holds = WEIGHTS
    command, environment = asking(hub.url, home, "pull", NAME)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not list(home.glob("hub/*/blobs/*.incomplete")):
            time.sleep(0.05)
        process.send_signal(asked)
        assert process.wait(9) == (130 if asked == signal.SIGINT else -asked)  # the hub client's timeout is ten seconds
    hub.holds = ""
    assert words(found(hub, home)) == words(repository)


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
@pytest.mark.parametrize("begin", [MAIN, ANOTHER], ids=["main", "another"])
@pytest.mark.parametrize("waits", [0.0, 0.5])  # before the response with the file begins, and after
def test_a_script_that_is_interrupted_ends(waits: float, begin: str, hub: Hub, home: Path, repository: Path) -> None:
    """The hub's client fetches in threads that Python joins when it exits."""
    hub.add(NAME, repository)
    hub.trickles = WEIGHTS
    command, environment = asking(hub.url, home, "-c", begin + LOCATE.format(NAME, ""))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not list(home.glob("hub/*/blobs/*.incomplete")):
            time.sleep(0.001)
        time.sleep(waits)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT  # after the next byte, or the hub client's timeout
    hub.trickles = ""
    assert words(found(hub, home)) == words(repository)


@pytest.mark.parametrize("how", ["gated", "listless", "full"])
def test_an_update_that_fails_leaves_the_model_that_was_there(how: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, good(tmp_path / "a", vocab_size=50))
    old = found(hub, home)
    hub.add(NAME, tmp_path / "a", good(tmp_path / "b", vocab_size=60), gated=how == "gated")
    hub.listless = 403 if how == "listless" else 0
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY)); "
    program = "from pellucid.checkpoints.source import pull; pull({0!r})"
    done = ask(hub.url, home, "-c", ((full if how == "full" else "") + program).format(NAME))
    assert (
        done.returncode == 1
        and {"gated": "is gated", "listless": "the hub refused", "full": "the limit on the size"}[how]
        in (done.stderr.splitlines()[-1])
    )
    assert found(hub, home, HF_HUB_OFFLINE="1") == found(hub, home) == old
    hub.listless, hub.repositories[NAME].gated = 0, False
    assert words(Path(ask(hub.url, home, "pull", NAME).stdout.strip())) == 60


def test_what_the_hub_did_not_give_is_no_success(hub: Hub, home: Path, tmp_path: Path) -> None:
    """Without the list of files, the hub's client takes the cached files for all of them."""
    hub.add(NAME, sentence(tmp_path / "repository"))
    fetch = "import huggingface_hub as hub; [hub.hf_hub_download({0!r}, name) for name in ('config.json', 'WEIGHTS')]"
    assert ask(hub.url, home, "-c", fetch.replace("WEIGHTS", WEIGHTS).format(NAME)).returncode == 0
    hub.listless = 403
    lacks = "the hub did not give 1_Pooling/config.json, modules.json, sentence_bert_config.json"
    assert f"'o/tiny' was not fetched: {lacks}; try again" in fails(hub.url, home, "pull", NAME)
    done = ask(hub.url, home, "-c", LOCATE.format(NAME, ""))
    assert f"o/tiny is read from the hub's cache as it is there: {lacks}\n" in done.stderr
    assert "without a list of what belongs to it: its answers may differ" in done.stderr


def test_a_pull_asks_once_where_there_is_nothing_new(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    assert ask(hub.url, home, "pull", NAME).returncode == 0
    hub.asked.clear()
    assert ask(hub.url, home, "pull", NAME).returncode == 0
    assert hub.asked == [f"GET /api/models/{NAME}"]


def test_the_name_of_an_adapter_moves_after_its_base_is_there(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add("o/base", good(tmp_path / "base"))
    hub.add("o/gated", good(tmp_path / "gated"), gated=True)
    folders = []
    for base in ("o/base", "o/gated"):
        folders.append(folder := tmp_path / base.replace("/", "-"))
        folder.mkdir()
        with_file("adapter_config.json", {"base_model_name_or_path": base, "peft_type": "LORA"})(folder)
        with_file("adapter_model.safetensors", {})(folder)
    hub.add(NAME, folders[0])
    old = Path(ask(hub.url, home, "pull", NAME).stdout.strip())
    hub.add(NAME, *folders)
    assert "'o/gated' is gated" in fails(hub.url, home, "pull", NAME)
    assert found(hub, home) == found(hub, home, HF_HUB_OFFLINE="1") == old


def test_an_adapter_that_came_before_its_base_opens_with_it(hub: Hub, home: Path, tmp_path: Path) -> None:
    base = hub.add("o/base", good(tmp_path / "base"), gated=True)
    (folder := tmp_path / "adapter").mkdir()
    with_file("adapter_config.json", {"base_model_name_or_path": "o/base", "peft_type": "LORA"})(folder)
    with_file("adapter_model.safetensors", {})(folder)
    hub.add(NAME, folder)
    assert "'o/base' is gated" in fails(hub.url, home, "pull", NAME)
    base.gated = False
    assert ask(hub.url, home, "pull", "o/base").returncode == 0
    assert found(hub, home, HF_HUB_OFFLINE="1").name == "1" * 40


@pytest.mark.parametrize("there", ["branch in place of a folder", "folder in place of a branch", "bytes"])
def test_a_name_that_cannot_be_noted_leaves_the_model(there: str, hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository).refs["feature/x"] = "1" * 40
    refs = home / "hub" / "models--o--tiny" / "refs"
    if there == "bytes":
        refs.mkdir(parents=True)
        (refs / "main").write_bytes(b"\xff\xfe")
        done = ask(hub.url, home, "pull", NAME)
        assert done.stderr == "" and (refs / "main").read_text() == "1" * 40
    elif there.startswith("folder"):
        (refs / "v0").mkdir(parents=True)
        done = ask(hub.url, home, "pull", NAME, "--revision", "v0")
        assert "v0 of o/tiny cannot be noted in the hub's cache: cannot write" in done.stderr
    else:
        refs.mkdir(parents=True)
        (refs / "feature").write_text("2" * 40)
        done = ask(hub.url, home, "pull", NAME, "--revision", "feature/x")
        assert "feature/x of o/tiny cannot be noted in the hub's cache: " in done.stderr
    assert done.returncode == 0 and done.stderr.count("\n") <= 1
    assert words(Path(done.stdout.strip())) == 60


def test_tokens_are_told_apart(hub: Hub, home: Path, tmp_path: Path) -> None:
    """What was refused without a token, or with a bad one, is requested again with the right one."""
    hub.add(NAME, sentence(tmp_path / "repository"), token="hf_right")
    snapshot = found(hub, home, HF_TOKEN="hf_right")
    (snapshot / "modules.json").unlink()
    program = "from pellucid.checkpoints.source import HubOptions, locate\n"
    program += "for token in (False, None): locate('o/tiny', HubOptions(token=token))"
    assert "the hub does not know 'o/tiny'" in ask(hub.url, home, "-c", program, HF_TOKEN="hf_right").stderr
    assert (snapshot / "modules.json").exists()
    (snapshot / "modules.json").unlink()
    done = ask(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_TOKEN="hf_bäd")
    assert (
        "as it is there: the token, given, stored or in HF_TOKEN, is not a token of the hub" in done.stderr
        and done.returncode == 0
    )
    assert found(hub, home, "token='hf_right'", HF_TOKEN="hf_bäd") == snapshot
    assert (snapshot / "modules.json").exists()
    (snapshot / "modules.json").unlink()
    program = """
import pathlib
from pellucid.checkpoints.source import locate
locate("o/tiny")
pathlib.Path({0!r}).write_text("hf_right")  # as one who logs in does
locate("o/tiny")
"""
    assert "does not know 'o/tiny'" in ask(hub.url, home, "-c", program.format(str(home / "token"))).stderr
    assert (snapshot / "modules.json").exists()
    (home / "token").unlink()
    (home / "token").mkdir()
    assert "the stored token of the hub cannot be read" in fails(hub.url, home, "pull", NAME)
    assert found(hub, home, "token='hf_right'") == snapshot
    (snapshot / "modules.json").unlink()
    assert "lacks modules.json" in ask(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_HUB_OFFLINE="1").stderr


def test_what_cannot_be_opened_is_asked_for_at_once_again(hub: Hub, home: Path, repository: Path) -> None:
    """The network may be back, or the token set by now."""
    hub.add(NAME, repository, token="hf_right")
    fetch = "import huggingface_hub as hub; hub.hf_hub_download({0!r}, 'config.json', token='hf_right')"
    assert ask(hub.url, home, "-c", fetch.format(NAME)).returncode == 0
    program = """
import os, pellucid
from pellucid.checkpoints.source import locate
for token in ("hf_other", "hf_right"):
    os.environ["HF_TOKEN"] = token
    print(os.listdir(locate("o/tiny").folder))
"""
    first, second = ask(hub.url, home, "-c", program).stdout.splitlines()
    assert WEIGHTS not in first and WEIGHTS in second


def test_a_link_to_nowhere_is_mended_beside_another_form(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, good(tmp_path / "repository"))
    snapshot = found(hub, home)
    (snapshot / WEIGHTS).resolve().unlink()
    (snapshot / PICKLED).write_bytes(as_bin(good(tmp_path / "other")).joinpath(PICKLED).read_bytes())
    told = fails(hub.url, home, "embed", "a text", "--model", NAME, HF_HUB_OFFLINE="1")
    assert f"{WEIGHTS} is a link to a file that is gone; run: pellucid pull {NAME}, with network" in told
    assert found(hub, home) == snapshot and (snapshot / WEIGHTS).exists()


# -- the list of models ------------------------------------------------------------------------------------------------


def test_the_list_shows_what_was_pulled(hub: Hub, home: Path, repository: Path, tmp_path: Path) -> None:
    (repository / "README.md").write_text("---\nlicense: mit\n---\n")
    hub.add(NAME, repository)
    hub.add("o/half", as_bin(good(tmp_path / "half")))
    assert ask(hub.url, home, "pull", NAME).returncode == 0
    half = Path(ask(hub.url, home, "pull", "o/half").stdout.strip())
    (half / PICKLED).unlink()
    rows = json.loads(ask(hub.url, home, "models", "--json").stdout)
    found = {row["name"]: (row["state"], row["licence"]) for row in rows if row["kind"] == "hub"}
    assert found == {NAME: ("ready", "mit"), "o/half": ("incomplete: no weights", "unknown")}


@pytest.mark.parametrize("base", ["o/tiny", "o/round", "o/half", "o/other", "gguf"])
def test_the_list_asks_for_the_base_of_an_adapter_without_a_word(
    base: str, hub: Hub, home: Path, tmp_path: Path, shared: Callable[[str], Path]
) -> None:
    """For a base that is itself an adapter, even the same one; that is a single file; that has no weights."""
    base = str(shared("data/tokenizers_gguf/ggml-vocab-gpt-2.gguf")) if base == "gguf" else base
    hub.add("o/other", good(tmp_path / "other"))
    half = good(tmp_path / "half")
    hub.add("o/half", half)
    found(hub, home, program=LOCATE.replace("{0!r}", "'o/other'"))
    fetch = "import huggingface_hub as hub; hub.hf_hub_download({!r}, {!r})"
    assert ask(hub.url, home, "-c", fetch.format("o/half", "config.json")).returncode == 0
    for name, its in ((NAME, base), ("o/round", NAME)):
        (folder := tmp_path / name.replace("/", "-")).mkdir()
        with_file("adapter_config.json", {"base_model_name_or_path": its, "peft_type": "LORA"})(folder)
        with_file("adapter_model.safetensors", {})(folder)
        hub.add(name, folder)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            assert ask(hub.url, home, "-c", fetch.format(name, file)).returncode == 0
    hub.asked.clear()
    done = ask(hub.url, home, "models", "--json")
    states = {row["name"]: row["state"] for row in json.loads(done.stdout)}
    assert states[NAME] == ("ready" if base == "o/other" or "gguf" in base else f"needs its base {base}")
    assert "o/" not in done.stderr and hub.asked == []
