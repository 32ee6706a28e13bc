"""Several processes learn what one learns; where one of them ends, all end, and each says why in one sentence."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid.errors import InputError, ResourceError
from pellucid.training import distributed
from pellucid.training.distributed import Ranks, join_processes
from pellucid.training.manifest import read_manifest
from tests.training.courses import ROOT, Asked, Rows, lines, same
from tests.training.test_killed import ended
from tests.training.test_resume import study

Feelings = Callable[..., Rows]

STILL: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "batch_size": 7, "learning_rate": 1e-3}
"""Fifteen rows, seven at a time: three texts here and four there, and a last one which one process has alone."""


def port() -> str:
    """A port of this machine that nobody uses."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


def together(*asked: Asked) -> "list[subprocess.Popen[str]]":
    """Starts one process for each, which find each other as torchrun would have them do."""
    around = {"WORLD_SIZE": str(len(asked)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port()}
    return [one.start(RANK=str(rank), LOCAL_RANK=str(rank), **around) for rank, one in enumerate(asked)]


def numbers(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as held:
        return {name: held[name] for name in held.files if not name.endswith("key.bias")}  # see `courses.farthest`


def test_two_processes_learn_what_one_learns(
    body: "pellucid.Model", checkpoint: Callable[[str], Path], feelings: Feelings, tmp_path: Path
) -> None:
    """Twenty-one steps; adapters' many small gradients are elsewhere. Losses, norms, scores to 1e-6, numbers to 1e-5:
    MKL's products depend on where in memory a table begins."""
    rows, held, settings = feelings(15), feelings(6, seed=9), STILL | {"epochs": 7}
    one = study(body, rows, None, validation=held, **settings)
    asked = Asked(str(checkpoint("bert-body")), str(tmp_path / "a"), rows, held, settings, numbers=str(tmp_path / "n"))
    for code, said in map(ended, together(asked, asked)):
        assert (code, said) == (0, "")
    for ours, theirs in zip(lines(tmp_path / "a" / "log.jsonl"), lines(one), strict=True):
        flat, wanted = (line | line.get("scores", {}) for line in (ours, theirs))
        assert {name: value for name, value in flat.items() if isinstance(value, float)} == pytest.approx(
            {name: value for name, value in wanted.items() if isinstance(value, float)}, abs=1e-6, rel=1e-4
        )
        assert abs(ours.get("loss", 0.0) - theirs.get("loss", 0.0)) < 1e-6
    first, second = numbers(str(tmp_path / "n0.npz")), numbers(str(tmp_path / "n1.npz"))
    state = one.loaded.module.state_dict()
    assert len(first) > 30 and first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name
        assert np.abs(first[name] - state[name].numpy()).max() < 1e-5, name
    assert not (tmp_path / "a" / "training").exists()


@pytest.mark.slow
def test_torchrun_goes_on_where_one_process_was_and_one_where_it_was(
    body: "pellucid.Model", checkpoint: Callable[[str], Path], feelings: Feelings, tmp_path: Path
) -> None:
    rows, settings = feelings(15), STILL | {"epochs": 4, "save_every": 1}
    one = study(body, rows, None, validation=0.0, **settings)

    def on_event(step: Any) -> None:
        if step.step == 5:
            raise MemoryError

    with pytest.raises(MemoryError):
        study(body, rows, tmp_path / "a", on_event=on_event, validation=0.0, **settings)
    asked = Asked(str(checkpoint("bert-body")), str(tmp_path / "a"), rows, 0.0, settings, resume=True, interrupt=8)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *asked.command()]
    around = os.environ | {"OMP_NUM_THREADS": "1", "PELLUCID_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *run], cwd=ROOT, env=around, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode != 0 and "interrupted after step 9 of 12; it is kept in" in done.stderr, done.stderr
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and manifest.step == 9
    result = study(body, rows, tmp_path / "a", resume=True, validation=0.0, **settings)
    for ours, theirs in zip(lines(result), lines(one), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)


@pytest.mark.slow
def test_where_one_ends_all_end_and_the_state_stays(
    checkpoint: Callable[[str], Path], feelings: Feelings, tmp_path: Path
) -> None:
    said: dict[str, Any] = {"settings": STILL | {"save_every": 2}, "fail": (1, 4)}
    asked = Asked(str(checkpoint("bert-body")), str(tmp_path / "a"), feelings(15), 0.0, **said)
    (first, heard), (second, why) = map(ended, together(asked, asked))
    assert second == ResourceError.exit_code and why == "pellucid: this process has no memory left\n"
    assert first == 1 and heard.count("\n") == 1, heard
    assert heard.startswith(
        "pellucid: process 0 of 2 lost contact with the others: one of them has ended, and printed why"
    )
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and manifest.step == 6  # of the third step the second process has nothing


@pytest.mark.slow
def test_a_folder_that_may_not_be_used_ends_all_of_them(
    checkpoint: Callable[[str], Path], feelings: Feelings, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").write_text("mine")
    asked = Asked(str(checkpoint("bert-body")), str(tmp_path / "a"), feelings(15), 0.0)
    for code, said in map(ended, together(asked, asked)):
        assert code == InputError.exit_code and "already holds files" in said and said.count("\n") == 1
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine.txt"]


# -- what they tell each other ----------------------------------------------------------------------------------------

_TALK = """
import json, os, sys
import torch
from torch import nn
from pellucid.training import distributed
from pellucid.training.distributed import join_processes
distributed.BUCKET = 10
with join_processes(torch.device("cpu")) as here:
    rank = here.rank
    known = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 2), (5,), (30,), (2, 2), (1,))]
    for i, p in enumerate(known):
        if i != 3 and (i != 1 or rank == 2):
            p.grad = torch.full_like(p, 10.0 ** rank)
    here.sum_gradients(known)
    same = [torch.full((4, 3), float(rank)), torch.full((2,), 5.0 + rank)]
    here.broadcast_tensors(same)
    found = {
        "gradients": [None if p.grad is None else p.grad.unique().tolist() for p in known],
        "total": here.total(rank + 0.5),
        "totals": here.totals([1.0, rank]),
        "said": here.broadcast({"from": rank}),
        "same": [one.unique().tolist() for one in same],
        "gathered": [one.tolist() for one in here.all_gather(torch.full((rank, 2), float(rank)))],
        "first": here.is_first,
    }
print(json.dumps(found))
"""


@pytest.mark.slow
def test_three_processes_tell_each_other_numbers() -> None:
    around = os.environ | {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(), "OMP_NUM_THREADS": "1"}
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", _TALK]
    started = [subprocess.Popen(command, cwd=ROOT, env=around | {"RANK": str(rank)}, **streams) for rank in range(3)]
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    wanted = {
        "gradients": [[111.0], [100.0], [111.0], None, [111.0]],
        "total": 4.5,
        "totals": [3.0, 3.0],
        "said": {"from": 0},
        "same": [[0.0], [5.0]],
        "gathered": [[], [[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]],
    }
    for rank, (out, _) in enumerate(said):
        assert json.loads(out) == wanted | {"first": rank == 0}


def test_one_process_is_a_world_of_one() -> None:
    here, parameter = Ranks(), torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    here.sum_gradients([parameter])
    here.broadcast_tensors([parameter])
    assert parameter.grad.tolist() == [1, 1] and here.total(0.5) == 0.5 and here.totals([1, 2]) == [1, 2]
    assert (
        here.is_first
        and here.broadcast("a") == "a"
        and [one.tolist() for one in here.all_gather(torch.ones(1))] == [[1]]
    )
    with join_processes(torch.device("cpu")) as alone:
        assert alone == Ranks()


def test_buckets_keep_their_order_and_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "BUCKET", 10)
    sizes = [4, 4, 4, 30, 1, 9, 1]
    found = [[one.numel() for one in bucket] for bucket in distributed._buckets(torch.zeros(size) for size in sizes)]
    assert found == [[4, 4], [4], [30], [1, 9], [1]]
    assert list(distributed._buckets([])) == []


@pytest.mark.parametrize(
    ("around", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', expected the number of processes that torchrun has started"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "²"}, "WORLD_SIZE is '²'"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, and RANK is not set: start several processes with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "do not find each other"),
    ],
)
def test_an_environment_that_says_half_is_refused(
    monkeypatch: pytest.MonkeyPatch, around: dict[str, str], said: str
) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=said), join_processes(torch.device("cpu")):
        pass


def test_two_processes_on_one_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before NCCL is asked, so that no GPU is needed to see it."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(
        InputError, match=r"process 1 of this machine has its model on cuda:0: load it with device='cuda:1'"
    ):
        distributed._check_own_gpu(torch.device("cuda:0"))


def test_the_same_twice_is_the_same(body: "pellucid.Model", feelings: Feelings) -> None:
    """What the comparisons above rest on."""
    first, second = (study(body, feelings(15), None, validation=0.0, **STILL) for _ in range(2))
    assert same(first.loaded, second.loaded)
