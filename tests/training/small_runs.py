"""Small training runs that tests repeat, and comparisons of their results; also a program that can be killed or started
in several processes like torchrun's: `python -m tests.training.small_runs RUN`, where RUN is a `ProcessRun` as JSON."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid.checkpoints.loaded import Loaded
from pellucid.training import training_run
from pellucid.training.classification import TextClassification
from pellucid.training.inputs import DataArguments
from pellucid.training.loop import Event
from pellucid.training.settings import Settings
from pellucid.training.state import State
from pellucid.training.training_run import Result, RunStart, run_training

ROOT = Path(__file__).parents[2]

Rows = list[dict[str, Any]]

QUICK: dict[str, Any] = {"batch_size": 6, "epochs": 3, "learning_rate": 3e-3, "precision": "float32"}
"""A run of a few milliseconds a step; dropout is the checkpoint's, 0.1."""


def log_lines(result_or_file: Result | Path) -> list[dict[str, Any]]:
    """The lines of a log, without their seconds."""
    if isinstance(result_or_file, Result):
        entries = list(result_or_file.log)
    else:
        entries = [json.loads(line) for line in result_or_file.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in entries]


def same_weights(first: Loaded, second: Loaded) -> bool:
    """Whether two models have the same weights, bit for bit."""
    ours, theirs = first.module.state_dict(), second.module.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def largest_weight_difference(first: Loaded, second: Loaded) -> float:
    """The largest difference between two models' weights, except key biases: a bias that all keys share cancels in
    softmax, so its gradient is rounding error alone, which AdamW divides by its own size."""
    ours, theirs = first.module.state_dict(), second.module.state_dict()
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours if not name.endswith("key.bias"))


def file_contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, except the lock, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


# -- in a separate process --------------------------------------------------------------------------------------------


@dataclass
class ProcessRun:
    """A training run for a separate process.

    base: folder of the checkpoint.  settings: override `QUICK`.  notes: file that gets a line at the start, for every
    saved state and at the end.  pause: seconds of sleep after each event.  interrupt: step after which the process gets
    Ctrl-C.  fail: rank of the process that fails, and number of its `collate` call, from 0, that does.
    """

    base: str
    out: str | None
    rows: Rows
    validation: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    notes: str | None = None
    pause: float = 0.0
    interrupt: int | None = None
    fail: tuple[int, int] | None = None
    numbers: str | None = None

    def command(self) -> list[str]:
        """The command line of this run, after the interpreter."""
        return ["-m", "tests.training.small_runs", json.dumps(asdict(self))]

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Starts the run in a separate process."""
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PELLUCID_THREADS": "1"} | environment
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, *self.command()], cwd=ROOT, env=variables, **streams)

    def __call__(self) -> Result:
        """Executes the run in this process."""
        objective = TextClassification()
        settings = Settings.of(QUICK | self.settings, objective.default_settings)
        base, out = pellucid.load(self.base).loaded, None if self.out is None else Path(self.out)
        data = DataArguments(self.rows, self.validation)
        options: dict[str, Any] = {"out": out, "resume": self.resume, "progress": False}
        with pytest.MonkeyPatch.context() as patch:
            self._watch(patch)
            return run_training(
                base, data, objective, settings, **options, on_event=self._on_event, on_start=self._on_start
            )

    def note(self, what: str) -> None:
        """Appends a line to the notes; it survives a kill of this process."""
        if self.notes is not None:
            with Path(self.notes).open("a") as file:
                file.write(what + "\n")

    def _on_start(self, start: RunStart) -> None:
        self.note(f"begun {start.step}")

    def _on_event(self, event: Event) -> None:
        time.sleep(self.pause)
        if event.step == self.interrupt and not event.is_evaluation:
            os.kill(os.getpid(), signal.SIGINT)

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        """Notes every state once `State.save` has returned, and makes `collate` fail at the call that `fail` names."""
        patch.setattr(training_run, "SAVE_INTERVAL", 0.0)
        original = State.save

        def save(state: State, loop: Any, *args: Any, **kwargs: Any) -> None:
            original(state, loop, *args, **kwargs)
            self.note(f"kept {loop.progress.step}")

        patch.setattr(State, "save", save)
        rank, step = self.fail or (-1, -1)
        if rank == int(os.environ.get("RANK", "0")):
            collate, calls = TextClassification.collate, iter(range(1_000_000))

            def failing(*args: Any) -> Any:
                if next(calls) == step:
                    raise pellucid.errors.ResourceError("this process has no memory left")
                return collate(*args)

            patch.setattr(TextClassification, "collate", failing)


def main(run: ProcessRun) -> int:
    """Executes the run; returns the exit code of the command line."""
    try:
        result = run()
    except KeyboardInterrupt as stop:
        print(f"pellucid: {stop}", file=sys.stderr)
        return 130
    except pellucid.errors.PellucidError as error:
        print(f"pellucid: {error}", file=sys.stderr)
        return error.exit_code
    if run.numbers is not None:
        weights = {name: tensor.numpy() for name, tensor in result.loaded.module.state_dict().items()}
        np.savez(run.numbers + os.environ.get("RANK", "0"), **weights)
    run.note("done")
    return 0


if __name__ == "__main__":
    sys.exit(main(ProcessRun(**json.loads(sys.argv[1]))))
