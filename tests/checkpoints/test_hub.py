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
from tests.checkpoints.builders import (
    PICKLED,
    WEIGHTS,
    convert_to_bin,
    sentence_encoder,
    split_into_shards,
    valid_checkpoint,
    with_file,
)
from tests.checkpoints.families import TINY
from tests.checkpoints.gguf_files import tiny_llama
from tests.checkpoints.hub import (
    LOAD,
    LOCATE,
    NAME,
    Hub,
    closed_port,
    error_message,
    find_snapshot,
    pellucid_command,
    run_pellucid,
    vocab_size,
)
from tests.quick import few
from tests.sigint import ANOTHER, MAIN

pytestmark = pytest.mark.timeout(120)

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")


# -- what is fetched ---------------------------------------------------------------------------------------------------


def test_pull_fetches_only_what_is_needed(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    result = run_pellucid(hub.url, home, "pull", NAME)
    assert result.returncode == 0, result.stderr
    snapshot = Path(result.stdout.strip())
    assert snapshot == home / "hub" / "models--o--tiny" / "snapshots" / ("1" * 40)
    expected = {"config.json", WEIGHTS, "README.md"}
    assert {path.name for path in snapshot.rglob("*")} == expected
    assert hub.fetched() == expected
    assert all(line.split()[1].startswith(("/api/models/o/tiny", "/o/tiny/resolve/")) for line in hub.requests)
    assert torch.equal(
        pellucid.load(snapshot).module.embeddings.token.weight,
        pellucid.load(repository).module.embeddings.token.weight,
    )


def test_cached_model_sends_no_requests(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    snapshot = find_snapshot(hub, home)
    assert snapshot.name == "1" * 40
    assert hub.requests
    hub.requests.clear()
    assert find_snapshot(hub, home, program=LOAD) == snapshot
    assert find_snapshot(hub, home, HF_HUB_OFFLINE="1") == snapshot
    assert find_snapshot(hub, home, "local_files_only=True") == snapshot
    assert find_snapshot(hub, home, f"revision={snapshot.name!r}") == snapshot
    assert hub.requests == []


@pytest.mark.slow
def test_pickle_is_fetched_only_without_safetensors(hub: Hub, home: Path, repository: Path) -> None:
    (repository / WEIGHTS).unlink()
    hub.add(NAME, repository)
    snapshot = find_snapshot(hub, home, program=LOAD)
    assert hub.fetched() == {"config.json", PICKLED, "README.md"}
    hub.requests.clear()
    assert find_snapshot(hub, home) == snapshot
    assert find_snapshot(hub, home, HF_HUB_OFFLINE="1") == snapshot
    assert hub.requests == []


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_shards_are_fetched(form: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "repository")
    split_into_shards(folder, form)
    hub.add(NAME, folder)
    snapshot = find_snapshot(hub, home)
    assert hub.fetched() == {path.name for path in folder.iterdir()}
    assert pellucid.load(snapshot).config == pellucid.load(folder).config


def test_every_form_of_a_tokenizer_is_fetched(hub: Hub, home: Path, repository: Path) -> None:
    """What is read of a folder is fetched from the hub too, and is among the files that saving over it replaces."""
    forms = {*files._OPENERS, files.TARGET_TOKENIZER_FILE}
    for name in forms:
        with_file(name, name)(repository)  # equal files are fetched once
    hub.add(NAME, repository)
    find_snapshot(hub, home)
    assert forms <= hub.fetched()
    assert forms <= set(MODEL_FILES)


def test_incomplete_snapshot_of_another_tool_is_used_offline(hub: Hub, home: Path, tmp_path: Path) -> None:
    """Other tools list every file and fetch fewer: offline, config and weights are enough."""
    folder = valid_checkpoint(tmp_path / "repository")
    for name in ("vocab.txt", "added_tokens.json"):
        with_file(name, "{}")(folder)
    hub.add(NAME, folder)
    other = (
        "import huggingface_hub as hub; print(hub.snapshot_download({0!r}, allow_patterns=['config.json', '*.sa*']))"
    )
    snapshot = find_snapshot(hub, home, program=other)
    assert not (snapshot / "vocab.txt").exists()
    result = run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_HUB_OFFLINE="1")
    assert (
        result.stdout.strip() == str(snapshot)
        and "which lacks added_tokens.json, vocab.txt: its answers may" in result.stderr
    )
    assert not (snapshot / "vocab.txt").exists()
    assert find_snapshot(hub, home) == snapshot
    assert (snapshot / "vocab.txt").exists()


def test_repository_with_one_gguf_file_opens_and_with_two_is_refused(hub: Hub, home: Path, tmp_path: Path) -> None:
    model = pellucid.build(pellucid.Config.of("llama", **TINY["llama"] | {"head_dim": 6}, head=CausalLM()))
    (folder := tmp_path / "repository").mkdir()
    tiny_llama(folder / "m.gguf", load_file(model.save(tmp_path / "model") / WEIGHTS))
    for name in ("README.md", "picture.png", "mmproj-F16.gguf"):
        (folder / name).write_text("of no model")
    hub.add(NAME, folder)
    snapshot = find_snapshot(hub, home, program=LOAD)
    assert hub.fetched() == {"m.gguf", "README.md"}
    assert find_snapshot(hub, home, program=LOAD, HF_HUB_OFFLINE="1") == snapshot
    assert run_pellucid(hub.url, home, "pull", NAME).returncode == 0
    (folder / "n.gguf").write_bytes((folder / "m.gguf").read_bytes())
    hub.add(NAME, folder)
    message = error_message(hub.url, tmp_path / "other", "pull", NAME, "--revision", "v0")
    assert "it holds m.gguf, n.gguf: fetch one by `hf download --revision v0 o/tiny m.gguf`" in message


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
def test_only_a_single_gguf_model_without_other_forms_is_chosen(names: list[str]) -> None:
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
def test_cached_snapshots_of_every_form_open_if_they_can(
    files: list[str], opens: bool, whole: bool, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--o--tiny" / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).write_text(json.dumps({"weight_map": dict(zip("ab", SHARDS))} if name == SHARDS[2] else {}))
    assert cached_snapshot(NAME, HubOptions("1" * 40, cache_dir=tmp_path)) == (snapshot if opens else None)
    assert is_complete(snapshot) == whole
    if files == ["config.json", *SHARDS[1:]]:
        assert _state(snapshot) == f"incomplete: no {SHARDS[0]}"


def test_interrupted_download_is_found_offline(hub: Hub, home: Path, tmp_path: Path) -> None:
    """The hub's client keeps a list of a snapshot's files, and offline finds nothing unless all are there."""
    hub.add(NAME, folder := valid_checkpoint(tmp_path / "repository"))
    split_into_shards(folder, "safetensors")
    snapshot = find_snapshot(hub, home)
    shards = sorted(snapshot.glob("model-*.safetensors"))
    for path in (shards[0], *shards[1:]):
        path.unlink()
        assert find_snapshot(hub, home, HF_HUB_OFFLINE="1") == snapshot
        message = error_message(hub.url, home, "embed", "a text", "--model", NAME, HF_HUB_OFFLINE="1")
        assert path.name in message and f"run: pellucid pull {NAME}, with network" in message
    assert find_snapshot(hub, home) == snapshot and shards[0].exists()


def test_missing_modules_json_in_the_cache_is_reported(hub: Hub, home: Path, tmp_path: Path) -> None:
    """modules.json defines how vectors are made: without it a checkpoint loads as a plain one."""
    hub.add(NAME, sentence_encoder(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    (snapshot / "modules.json").unlink()
    for url, environment in ((hub.url, {"HF_HUB_OFFLINE": "1"}), (closed_port(), {})):
        result = run_pellucid(url, home, "-c", LOCATE.format(NAME, ""), **environment)
        assert result.stdout.strip() == str(snapshot)
        warning = (
            "o/tiny is not whole in the hub's cache, which lacks modules.json: its answers may differ; run: pellucid"
        )
        assert warning in result.stderr
        message = "o/tiny is read from the hub's cache as it is there: the hub could not be reached ("
        assert (message in result.stderr) == (not environment)
    assert find_snapshot(hub, home) == snapshot and (snapshot / "modules.json").exists()


def test_snapshot_without_a_file_list_is_completed_once(hub: Hub, home: Path, tmp_path: Path) -> None:
    """The reference fetches the files that it opens, and leaves no list of files."""
    hub.add(NAME, sentence_encoder(tmp_path / "repository"))
    fetch = "import huggingface_hub as hub; [hub.hf_hub_download({0!r}, name) for name in ('config.json', 'WEIGHTS')]"
    assert run_pellucid(hub.url, home, "-c", fetch.replace("WEIGHTS", WEIGHTS).format(NAME)).returncode == 0
    result = run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_HUB_OFFLINE="1")
    assert "without a list of what belongs to it: its answers may differ; run: pellucid pull o/tiny" in result.stderr
    snapshot = Path(result.stdout.strip())
    assert not (snapshot / "modules.json").exists()
    hub.error_status = 403
    result = run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, ""))
    assert result.stdout.strip() == str(snapshot) and "as it is there: the hub refused 'o/tiny'" in result.stderr
    hub.error_status = None
    hub.add(NAME, sentence_encoder(tmp_path / "another"))  # differs from what is cached
    hub.requests.clear()
    assert find_snapshot(hub, home) == snapshot and (snapshot / "modules.json").exists()
    assert WEIGHTS not in hub.fetched()
    hub.requests.clear()
    assert find_snapshot(hub, home) == snapshot and hub.requests == []


@pytest.mark.parametrize("missing", [WEIGHTS, "config.json"])
def test_dangling_link_is_repaired(missing: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    (snapshot / missing).resolve().unlink()
    assert find_snapshot(hub, home) == snapshot and (snapshot / missing).exists()


def test_failing_hub_receives_one_request(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, sentence_encoder(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    (snapshot / "modules.json").unlink()
    hub.error_status = 403
    hub.requests.clear()
    loop = f"for i in range(3): {LOCATE.partition('; ')[2]}"
    program = f"{LOCATE.partition('; ')[0]}\n{loop}"
    result = run_pellucid(hub.url, home, "-c", program.format(NAME, ""))
    assert result.stdout.split() == 3 * [str(snapshot)]
    assert (
        len(hub.requests) == 1
        and result.stderr.count("the hub refused") == result.stderr.count("lacks modules.json") == 1
    )


def test_another_token_or_network_setting_is_tried_immediately(hub: Hub, home: Path, tmp_path: Path) -> None:
    repository = hub.add(NAME, sentence_encoder(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    (snapshot / "modules.json").unlink()
    repository.token = "hf_right"
    program = "from pellucid.checkpoints.source import HubOptions, locate\n"
    program += "for token in (None, 'hf_right'): locate('o/tiny', HubOptions(token=token))"
    result = run_pellucid(hub.url, home, "-c", program)
    assert "the hub does not know 'o/tiny'" in result.stderr and result.returncode == 0
    assert (snapshot / "modules.json").exists()
    (snapshot / "modules.json").unlink()
    repository.token = None
    program = program.replace("token in (None, 'hf_right')", "offline in (True, False)")
    program = program.replace("token=token", "local_files_only=offline")
    assert "which lacks modules.json" in run_pellucid(hub.url, home, "-c", program).stderr
    assert (snapshot / "modules.json").exists()


def test_file_list_has_the_permissions_of_the_snapshot(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    file_list = home / "hub" / "models--o--tiny" / "trees" / f"{snapshot.name}.json"
    assert file_list.stat().st_mode == (snapshot / "config.json").stat().st_mode


def test_adapter_without_a_file_list_is_completed(hub: Hub, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "modules.json"):
        with_file(name, {"base_model_name_or_path": "o/base", "of": name})(folder)
    hub.add(NAME, folder)
    fetch = "import huggingface_hub as hub; [hub.hf_hub_download({0!r}, name) for name in ('adapter_config.json', "
    assert run_pellucid(hub.url, home, "-c", (fetch + "'adapter_model.safetensors')]").format(NAME)).returncode == 0
    run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, ""))  # its base is missing
    assert "modules.json" in hub.fetched()


def test_sentence_encoder_is_fetched_with_its_folders(hub: Hub, home: Path, tmp_path: Path) -> None:
    folder = sentence_encoder(tmp_path / "repository")
    hub.add(NAME, folder)
    snapshot = find_snapshot(hub, home)
    assert hub.fetched() == {
        "config.json",
        WEIGHTS,
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
    }
    assert pellucid.load(snapshot).loaded.pooling == pellucid.load(folder).loaded.pooling


# -- which commit ------------------------------------------------------------------------------------------------------


def test_revision_selects_the_commit(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, *(valid_checkpoint(tmp_path / str(size), vocab_size=size) for size in (50, 60)))
    assert vocab_size(find_snapshot(hub, home, "revision='v0'")) == 50
    assert vocab_size(find_snapshot(hub, home)) == 60
    assert vocab_size(find_snapshot(hub, home, f"revision={'1' * 40!r}")) == 50
    assert vocab_size(Path(run_pellucid(hub.url, home, "pull", NAME, "--revision", "v0").stdout.strip())) == 50
    assert "has no revision 'v9' on the hub" in error_message(hub.url, home, "pull", NAME, "--revision", "v9")
    assert "revision is '../x', expected a branch" in error_message(hub.url, home, "pull", NAME, "--revision", "../x")


def test_pull_updates_the_snapshot(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "a", vocab_size=50))
    assert vocab_size(find_snapshot(hub, home)) == 50
    hub.add(NAME, tmp_path / "a", valid_checkpoint(tmp_path / "b", vocab_size=60))
    assert vocab_size(find_snapshot(hub, home)) == 50
    assert run_pellucid(hub.url, home, "pull", NAME).returncode == 0
    assert vocab_size(find_snapshot(hub, home)) == 60


@pytest.mark.parametrize("missing", few([WEIGHTS, "config.json", "modules.json"], [WEIGHTS]))
def test_interrupted_download_is_completed(missing: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "repository")
    with_file("modules.json", [{"type": "sentence_transformers.models.Transformer"}])(folder)
    hub.add(NAME, folder)
    snapshot = Path(run_pellucid(hub.url, home, "pull", NAME).stdout.strip())
    (snapshot / missing).unlink()
    if missing != "modules.json":
        message = error_message(hub.url, home, "describe", NAME, HF_HUB_OFFLINE="1")
        assert ("'o/tiny' is no folder" if missing == "config.json" else "holds no weights") in message
        assert "run: pellucid pull o/tiny, with network" in message
    assert find_snapshot(hub, home) == snapshot
    assert (snapshot / missing).exists()


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
@pytest.mark.parametrize("signal_number", few([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_terminated_download_ends_at_once(signal_number: int, hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    hub.half_sent = WEIGHTS
    command, environment = pellucid_command(hub.url, home, "pull", NAME)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not list(home.glob("hub/*/blobs/*.incomplete")):
            time.sleep(0.05)
        process.send_signal(signal_number)
        assert process.wait(9) == (
            130 if signal_number == signal.SIGINT else -signal_number
        )  # the hub client's timeout is ten seconds
    hub.half_sent = ""
    assert vocab_size(find_snapshot(hub, home)) == vocab_size(repository)


@pytest.mark.skipif(os.name == "nt", reason="this system has no such signals")
@pytest.mark.parametrize("begin", [MAIN, ANOTHER], ids=["main", "another"])
@pytest.mark.parametrize("delay", [0.0, 0.5])  # before the response with the file begins, and after
def test_interrupted_script_ends(delay: float, begin: str, hub: Hub, home: Path, repository: Path) -> None:
    """The hub's client fetches in threads that Python joins when it exits."""
    hub.add(NAME, repository)
    hub.slow_file = WEIGHTS
    command, environment = pellucid_command(hub.url, home, "-c", begin + LOCATE.format(NAME, ""))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not list(home.glob("hub/*/blobs/*.incomplete")):
            time.sleep(0.001)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT  # after the next byte, or the hub client's timeout
    hub.slow_file = ""
    assert vocab_size(find_snapshot(hub, home)) == vocab_size(repository)


@pytest.mark.parametrize("failure", ["gated", "file list", "full"])
def test_failed_update_keeps_the_old_model(failure: str, hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "a", vocab_size=50))
    old = find_snapshot(hub, home)
    hub.add(NAME, tmp_path / "a", valid_checkpoint(tmp_path / "b", vocab_size=60), gated=failure == "gated")
    hub.file_list_error = 403 if failure == "file list" else 0
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY)); "
    program = "from pellucid.checkpoints.source import pull; pull({0!r})"
    result = run_pellucid(hub.url, home, "-c", ((full if failure == "full" else "") + program).format(NAME))
    assert (
        result.returncode == 1
        and {"gated": "is gated", "file list": "the hub refused", "full": "the limit on the size"}[failure]
        in (result.stderr.splitlines()[-1])
    )
    assert find_snapshot(hub, home, HF_HUB_OFFLINE="1") == find_snapshot(hub, home) == old
    hub.file_list_error, hub.repositories[NAME].gated = 0, False
    assert vocab_size(Path(run_pellucid(hub.url, home, "pull", NAME).stdout.strip())) == 60


def test_files_that_the_hub_did_not_send_are_reported(hub: Hub, home: Path, tmp_path: Path) -> None:
    """Without the list of files, the hub's client takes the cached files for all of them."""
    hub.add(NAME, sentence_encoder(tmp_path / "repository"))
    fetch = "import huggingface_hub as hub; [hub.hf_hub_download({0!r}, name) for name in ('config.json', 'WEIGHTS')]"
    assert run_pellucid(hub.url, home, "-c", fetch.replace("WEIGHTS", WEIGHTS).format(NAME)).returncode == 0
    hub.file_list_error = 403
    reason = "the hub did not give 1_Pooling/config.json, modules.json, sentence_bert_config.json"
    assert f"'o/tiny' was not fetched: {reason}; try again" in error_message(hub.url, home, "pull", NAME)
    result = run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, ""))
    assert f"o/tiny is read from the hub's cache as it is there: {reason}\n" in result.stderr
    assert "without a list of what belongs to it: its answers may differ" in result.stderr


def test_pull_without_changes_sends_one_request(hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository)
    assert run_pellucid(hub.url, home, "pull", NAME).returncode == 0
    hub.requests.clear()
    assert run_pellucid(hub.url, home, "pull", NAME).returncode == 0
    assert hub.requests == [f"GET /api/models/{NAME}"]


def test_adapter_ref_is_updated_only_with_its_base(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add("o/base", valid_checkpoint(tmp_path / "base"))
    hub.add("o/gated", valid_checkpoint(tmp_path / "gated"), gated=True)
    folders = []
    for base in ("o/base", "o/gated"):
        folders.append(folder := tmp_path / base.replace("/", "-"))
        folder.mkdir()
        with_file("adapter_config.json", {"base_model_name_or_path": base, "peft_type": "LORA"})(folder)
        with_file("adapter_model.safetensors", {})(folder)
    hub.add(NAME, folders[0])
    old = Path(run_pellucid(hub.url, home, "pull", NAME).stdout.strip())
    hub.add(NAME, *folders)
    assert "'o/gated' is gated" in error_message(hub.url, home, "pull", NAME)
    assert find_snapshot(hub, home) == find_snapshot(hub, home, HF_HUB_OFFLINE="1") == old


def test_adapter_fetched_before_its_base_opens(hub: Hub, home: Path, tmp_path: Path) -> None:
    base = hub.add("o/base", valid_checkpoint(tmp_path / "base"), gated=True)
    (folder := tmp_path / "adapter").mkdir()
    with_file("adapter_config.json", {"base_model_name_or_path": "o/base", "peft_type": "LORA"})(folder)
    with_file("adapter_model.safetensors", {})(folder)
    hub.add(NAME, folder)
    assert "'o/base' is gated" in error_message(hub.url, home, "pull", NAME)
    base.gated = False
    assert run_pellucid(hub.url, home, "pull", "o/base").returncode == 0
    assert find_snapshot(hub, home, HF_HUB_OFFLINE="1").name == "1" * 40


@pytest.mark.parametrize("obstacle", ["branch in place of a folder", "folder in place of a branch", "bytes"])
def test_unwritable_ref_leaves_the_model(obstacle: str, hub: Hub, home: Path, repository: Path) -> None:
    hub.add(NAME, repository).refs["feature/x"] = "1" * 40
    refs = home / "hub" / "models--o--tiny" / "refs"
    if obstacle == "bytes":
        refs.mkdir(parents=True)
        (refs / "main").write_bytes(b"\xff\xfe")
        result = run_pellucid(hub.url, home, "pull", NAME)
        assert result.stderr == "" and (refs / "main").read_text() == "1" * 40
    elif obstacle.startswith("folder"):
        (refs / "v0").mkdir(parents=True)
        result = run_pellucid(hub.url, home, "pull", NAME, "--revision", "v0")
        assert "v0 of o/tiny cannot be noted in the hub's cache: cannot write" in result.stderr
    else:
        refs.mkdir(parents=True)
        (refs / "feature").write_text("2" * 40)
        result = run_pellucid(hub.url, home, "pull", NAME, "--revision", "feature/x")
        assert "feature/x of o/tiny cannot be noted in the hub's cache: " in result.stderr
    assert result.returncode == 0 and result.stderr.count("\n") <= 1
    assert vocab_size(Path(result.stdout.strip())) == 60


def test_refusals_are_remembered_per_token(hub: Hub, home: Path, tmp_path: Path) -> None:
    """What was refused without a token, or with a bad one, is requested again with the right one."""
    hub.add(NAME, sentence_encoder(tmp_path / "repository"), token="hf_right")
    snapshot = find_snapshot(hub, home, HF_TOKEN="hf_right")
    (snapshot / "modules.json").unlink()
    program = "from pellucid.checkpoints.source import HubOptions, locate\n"
    program += "for token in (False, None): locate('o/tiny', HubOptions(token=token))"
    assert "the hub does not know 'o/tiny'" in run_pellucid(hub.url, home, "-c", program, HF_TOKEN="hf_right").stderr
    assert (snapshot / "modules.json").exists()
    (snapshot / "modules.json").unlink()
    result = run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_TOKEN="hf_bäd")
    assert (
        "as it is there: the token, given, stored or in HF_TOKEN, is not a token of the hub" in result.stderr
        and result.returncode == 0
    )
    assert find_snapshot(hub, home, "token='hf_right'", HF_TOKEN="hf_bäd") == snapshot
    assert (snapshot / "modules.json").exists()
    (snapshot / "modules.json").unlink()
    program = """
import pathlib
from pellucid.checkpoints.source import locate
locate("o/tiny")
pathlib.Path({0!r}).write_text("hf_right")  # as one who logs in does
locate("o/tiny")
"""
    assert "does not know 'o/tiny'" in run_pellucid(hub.url, home, "-c", program.format(str(home / "token"))).stderr
    assert (snapshot / "modules.json").exists()
    (home / "token").unlink()
    (home / "token").mkdir()
    assert "the stored token of the hub cannot be read" in error_message(hub.url, home, "pull", NAME)
    assert find_snapshot(hub, home, "token='hf_right'") == snapshot
    (snapshot / "modules.json").unlink()
    assert "lacks modules.json" in run_pellucid(hub.url, home, "-c", LOCATE.format(NAME, ""), HF_HUB_OFFLINE="1").stderr


def test_incomplete_snapshot_is_requested_again_at_once(hub: Hub, home: Path, repository: Path) -> None:
    """The network may be back, or the token set by now."""
    hub.add(NAME, repository, token="hf_right")
    fetch = "import huggingface_hub as hub; hub.hf_hub_download({0!r}, 'config.json', token='hf_right')"
    assert run_pellucid(hub.url, home, "-c", fetch.format(NAME)).returncode == 0
    program = """
import os, pellucid
from pellucid.checkpoints.source import locate
for token in ("hf_other", "hf_right"):
    os.environ["HF_TOKEN"] = token
    print(os.listdir(locate("o/tiny").folder))
"""
    first, second = run_pellucid(hub.url, home, "-c", program).stdout.splitlines()
    assert WEIGHTS not in first and WEIGHTS in second


def test_dangling_link_beside_another_form_is_repaired(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.add(NAME, valid_checkpoint(tmp_path / "repository"))
    snapshot = find_snapshot(hub, home)
    (snapshot / WEIGHTS).resolve().unlink()
    (snapshot / PICKLED).write_bytes(
        convert_to_bin(valid_checkpoint(tmp_path / "other")).joinpath(PICKLED).read_bytes()
    )
    message = error_message(hub.url, home, "embed", "a text", "--model", NAME, HF_HUB_OFFLINE="1")
    assert f"{WEIGHTS} is a link to a file that is gone; run: pellucid pull {NAME}, with network" in message
    assert find_snapshot(hub, home) == snapshot and (snapshot / WEIGHTS).exists()


# -- the list of models ------------------------------------------------------------------------------------------------


def test_model_list_shows_pulled_models(hub: Hub, home: Path, repository: Path, tmp_path: Path) -> None:
    (repository / "README.md").write_text("---\nlicense: mit\n---\n")
    hub.add(NAME, repository)
    hub.add("o/half", convert_to_bin(valid_checkpoint(tmp_path / "half")))
    assert run_pellucid(hub.url, home, "pull", NAME).returncode == 0
    half = Path(run_pellucid(hub.url, home, "pull", "o/half").stdout.strip())
    (half / PICKLED).unlink()
    rows = json.loads(run_pellucid(hub.url, home, "models", "--json").stdout)
    found = {row["name"]: (row["state"], row["licence"]) for row in rows if row["kind"] == "hub"}
    assert found == {NAME: ("ready", "mit"), "o/half": ("incomplete: no weights", "unknown")}


@pytest.mark.parametrize("base", ["o/tiny", "o/round", "o/half", "o/other", "gguf"])
def test_model_list_checks_adapter_bases_silently(
    base: str, hub: Hub, home: Path, tmp_path: Path, shared: Callable[[str], Path]
) -> None:
    """For a base that is itself an adapter, even the same one; that is a single file; that has no weights."""
    base = str(shared("data/tokenizers_gguf/ggml-vocab-gpt-2.gguf")) if base == "gguf" else base
    hub.add("o/other", valid_checkpoint(tmp_path / "other"))
    half = valid_checkpoint(tmp_path / "half")
    hub.add("o/half", half)
    find_snapshot(hub, home, program=LOCATE.replace("{0!r}", "'o/other'"))
    fetch = "import huggingface_hub as hub; hub.hf_hub_download({!r}, {!r})"
    assert run_pellucid(hub.url, home, "-c", fetch.format("o/half", "config.json")).returncode == 0
    for name, base_name in ((NAME, base), ("o/round", NAME)):
        (folder := tmp_path / name.replace("/", "-")).mkdir()
        with_file("adapter_config.json", {"base_model_name_or_path": base_name, "peft_type": "LORA"})(folder)
        with_file("adapter_model.safetensors", {})(folder)
        hub.add(name, folder)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            assert run_pellucid(hub.url, home, "-c", fetch.format(name, file)).returncode == 0
    hub.requests.clear()
    result = run_pellucid(hub.url, home, "models", "--json")
    states = {row["name"]: row["state"] for row in json.loads(result.stdout)}
    assert states[NAME] == ("ready" if base == "o/other" or "gguf" in base else f"needs its base {base}")
    assert "o/" not in result.stderr and hub.requests == []
