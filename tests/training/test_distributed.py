"""Several processes train the same model as one; where one of them ends, all end, each with a one-sentence error."""

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
from tests.training.small_runs import ROOT, ProcessRun, Rows, log_lines, same_weights
from tests.training.test_killed import wait_for_process
from tests.training.test_resume import train_small

Sentiments = Callable[..., Rows]

NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "batch_size": 7, "learning_rate": 1e-3}
"""For fifteen rows: batches of seven, three rows on one process and four on the other, and a last row on one alone."""


def free_port() -> str:
    """A free port of this machine."""
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        return str(connection.getsockname()[1])


def start_processes(*runs: ProcessRun) -> "list[subprocess.Popen[str]]":
    """Starts one process for each run, with the environment that torchrun would set."""
    variables = {"WORLD_SIZE": str(len(runs)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [run.start(RANK=str(rank), LOCAL_RANK=str(rank), **variables) for rank, run in enumerate(runs)]


def saved_weights(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return {
            name: arrays[name] for name in arrays.files if not name.endswith("key.bias")
        }  # see `small_runs.largest_weight_difference`


def test_two_processes_train_the_same_model_as_one(
    body: "pellucid.Model", checkpoint: Callable[[str], Path], sentiments: Sentiments, tmp_path: Path
) -> None:
    """Twenty-one steps; adapters, with many small gradients, are tested elsewhere. Losses, norms and scores to 1e-6,
    weights to 1e-5: MKL's products depend on the memory address of a matrix."""
    rows, held_out, settings = sentiments(15), sentiments(6, seed=9), NO_DROPOUT | {"epochs": 7}
    single = train_small(body, rows, None, validation=held_out, **settings)
    run = ProcessRun(
        str(checkpoint("bert-body")), str(tmp_path / "a"), rows, held_out, settings, numbers=str(tmp_path / "n")
    )
    for code, stderr in map(wait_for_process, start_processes(run, run)):
        assert (code, stderr) == (0, "")
    for ours, theirs in zip(log_lines(tmp_path / "a" / "log.jsonl"), log_lines(single), strict=True):
        actual, expected = (line | line.get("scores", {}) for line in (ours, theirs))
        assert {name: value for name, value in actual.items() if isinstance(value, float)} == pytest.approx(
            {name: value for name, value in expected.items() if isinstance(value, float)}, abs=1e-6, rel=1e-4
        )
        assert abs(ours.get("loss", 0.0) - theirs.get("loss", 0.0)) < 1e-6
    first, second = saved_weights(str(tmp_path / "n0.npz")), saved_weights(str(tmp_path / "n1.npz"))
    state = single.loaded.module.state_dict()
    assert len(first) > 30 and first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name
        assert np.abs(first[name] - state[name].numpy()).max() < 1e-5, name
    assert not (tmp_path / "a" / "training").exists()


@pytest.mark.slow
def test_torchrun_and_a_single_process_resume_each_other_s_runs(
    body: "pellucid.Model", checkpoint: Callable[[str], Path], sentiments: Sentiments, tmp_path: Path
) -> None:
    rows, settings = sentiments(15), NO_DROPOUT | {"epochs": 4, "save_every": 1}
    single = train_small(body, rows, None, validation=0.0, **settings)

    def on_event(event: Any) -> None:
        if event.step == 5:
            raise MemoryError

    with pytest.raises(MemoryError):
        train_small(body, rows, tmp_path / "a", on_event=on_event, validation=0.0, **settings)
    process_run = ProcessRun(
        str(checkpoint("bert-body")), str(tmp_path / "a"), rows, 0.0, settings, resume=True, interrupt=8
    )
    arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *process_run.command()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PELLUCID_THREADS": "1"}
    completed = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert completed.returncode != 0 and "interrupted after step 9 of 12; it is kept in" in completed.stderr, (
        completed.stderr
    )
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and manifest.step == 9
    result = train_small(body, rows, tmp_path / "a", resume=True, validation=0.0, **settings)
    for ours, theirs in zip(log_lines(result), log_lines(single), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)


@pytest.mark.slow
def test_failure_of_one_process_ends_all_and_keeps_the_state(
    checkpoint: Callable[[str], Path], sentiments: Sentiments, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"settings": NO_DROPOUT | {"save_every": 2}, "fail": (1, 4)}
    run = ProcessRun(str(checkpoint("bert-body")), str(tmp_path / "a"), sentiments(15), 0.0, **options)
    (first_code, first_stderr), (second_code, second_stderr) = map(wait_for_process, start_processes(run, run))
    assert second_code == ResourceError.exit_code and second_stderr == "pellucid: this process has no memory left\n"
    assert first_code == 1 and first_stderr.count("\n") == 1, first_stderr
    assert first_stderr.startswith(
        "pellucid: process 0 of 2 lost contact with the others: one of them has ended, and printed why"
    )
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and manifest.step == 6  # process 1 has rows in two of three steps


@pytest.mark.slow
def test_refused_folder_ends_all_processes(
    checkpoint: Callable[[str], Path], sentiments: Sentiments, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").write_text("mine")
    run = ProcessRun(str(checkpoint("bert-body")), str(tmp_path / "a"), sentiments(15), 0.0)
    for code, stderr in map(wait_for_process, start_processes(run, run)):
        assert code == InputError.exit_code and "already holds files" in stderr and stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine.txt"]


# -- communication ----------------------------------------------------------------------------------------------------

_COMMUNICATION = """
import json, os, sys
import torch
from torch import nn
from pellucid.training import distributed
from pellucid.training.distributed import join_processes
distributed.BUCKET = 10
with join_processes(torch.device("cpu")) as here:
    rank = here.rank
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 2), (5,), (30,), (2, 2), (1,))]
    for i, p in enumerate(parameters):
        if i != 3 and (i != 1 or rank == 2):
            p.grad = torch.full_like(p, 10.0 ** rank)
    here.sum_gradients(parameters)
    same = [torch.full((4, 3), float(rank)), torch.full((2,), 5.0 + rank)]
    here.broadcast_tensors(same)
    found = {
        "gradients": [None if p.grad is None else p.grad.unique().tolist() for p in parameters],
        "total": here.total(rank + 0.5),
        "totals": here.totals([1.0, rank]),
        "broadcast": here.broadcast({"from": rank}),
        "same": [one.unique().tolist() for one in same],
        "gathered": [one.tolist() for one in here.all_gather(torch.full((rank, 2), float(rank)))],
        "first": here.is_first,
    }
print(json.dumps(found))
"""


@pytest.mark.slow
def test_collective_operations_of_three_processes() -> None:
    environment = os.environ | {
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
        "OMP_NUM_THREADS": "1",
    }
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", _COMMUNICATION]
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=environment | {"RANK": str(rank)}, **streams) for rank in range(3)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    expected = {
        "gradients": [[111.0], [100.0], [111.0], None, [111.0]],
        "total": 4.5,
        "totals": [3.0, 3.0],
        "broadcast": {"from": 0},
        "same": [[0.0], [5.0]],
        "gathered": [[], [[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]],
    }
    for rank, (out, _) in enumerate(outputs):
        assert json.loads(out) == expected | {"first": rank == 0}


def test_collective_operations_of_one_process_change_nothing() -> None:
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


def test_gradient_buckets_keep_the_order_and_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "BUCKET", 10)
    sizes = [4, 4, 4, 30, 1, 9, 1]
    found = [[one.numel() for one in bucket] for bucket in distributed._buckets(torch.zeros(size) for size in sizes)]
    assert found == [[4, 4], [4], [30], [1, 9], [1]]
    assert list(distributed._buckets([])) == []


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', expected the number of processes that torchrun has started"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "²"}, "WORLD_SIZE is '²'"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, and RANK is not set: start several processes with torchrun"),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"},
            "could not connect to each other",
        ),
    ],
)
def test_incomplete_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message), join_processes(torch.device("cpu")):
        pass


def test_two_processes_on_one_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked before NCCL starts, so that no GPU is needed to test it."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(
        InputError, match=r"process 1 of this machine has its model on cuda:0: load it with device='cuda:1'"
    ):
        distributed._check_own_gpu(torch.device("cuda:0"))


def test_repeated_training_gives_the_same_weights(body: "pellucid.Model", sentiments: Sentiments) -> None:
    """The comparisons above rely on this."""
    first, second = (train_small(body, sentiments(15), None, validation=0.0, **NO_DROPOUT) for _ in range(2))
    assert same_weights(first.loaded, second.loaded)
